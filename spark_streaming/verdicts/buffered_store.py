"""Kept barriers and early reports of one micro-batch in memory, on their way to Spark's state store or never there.

Each call of Spark's state store is a question to Java, and a pickled row. On a backlog most of what is kept is dropped
within the same micro-batch: a barrier has all its reports, and an early report its barrier. That never reaches Spark.
:class:`MatchingLimits` bounds what is here, as it bounds what is there.
"""

from __future__ import annotations

from schemas.records.datanode import BlockReport
from spark_streaming.verdicts.core.inputs import ReplicaReport, ReportPlace
from spark_streaming.verdicts.core.shard_state import AuditState, KeptBarrier
from spark_streaming.verdicts.state import SparkStore, report_from, report_value

EncodedReport = tuple[int, bytes]
"""Offset of a report on its topic, and the report as it is kept."""


class BufferedStore:
    """A MatchingStore before a SparkStore, for one micro-batch; :meth:`flush` at its end, or nothing is kept.

    ``state`` names all that lies in ``store`` as the micro-batch begins. Blocks are not held back: there are few, and
    they are large.
    """

    def __init__(self, store: SparkStore, state: AuditState) -> None:
        self._store = store
        self._old_barriers = set(state.waiting)
        held = {ReportPlace(at, *key) for at, waiting in state.waiting.items() for key in waiting.held}
        self._old_reports = held | set(state.early)
        self._barriers: dict[int, KeptBarrier] = {}
        self._reports: dict[ReportPlace, EncodedReport] = {}

    def flush(self) -> None:
        """Keep what is left."""
        for barrier in self._barriers.values():
            self._store.put_barrier(barrier)
        for place, (offset, value) in self._reports.items():
            self._store.put_encoded(place, offset, value)
        self._barriers.clear()
        self._reports.clear()

    def put_barrier(self, barrier: KeptBarrier) -> None:
        """Keep a barrier under its offset."""
        self._barriers[barrier.offset] = barrier

    def get_barrier(self, offset: int) -> KeptBarrier:
        """Return a kept barrier."""
        return self._barriers.get(offset) or self._store.get_barrier(offset)

    def drop_barrier(self, offset: int) -> None:
        """Forget a kept barrier."""
        self._barriers.pop(offset, None)
        if offset in self._old_barriers:
            self._old_barriers.remove(offset)
            self._store.drop_barrier(offset)

    def put_report(self, report: ReplicaReport) -> int:
        """Keep a report at its place; return the bytes that it takes."""
        value = report_value(report)
        self._reports[report.place] = report.offset, value
        return len(value)

    def get_report(self, place: ReportPlace) -> ReplicaReport:
        """Return a kept report."""
        found = self._reports.get(place)
        return self._store.get_report(place) if found is None else report_from(self._store.shard, *found)

    def drop_report(self, place: ReportPlace) -> None:
        """Forget a kept report."""
        self._reports.pop(place, None)
        if place in self._old_reports:
            self._old_reports.remove(place)
            self._store.drop_report(place)

    def put_blocks(self, report: BlockReport) -> None:
        """Keep a member's report of blocks under (barrier offset, node)."""
        self._store.put_blocks(report)

    def get_blocks(self, offset: int, node: str) -> BlockReport:
        """Return a kept report of blocks."""
        return self._store.get_blocks(offset, node)

    def drop_blocks(self, offset: int, node: str) -> None:
        """Forget a kept report of blocks."""
        self._store.drop_blocks(offset, node)
