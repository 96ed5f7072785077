"""One shard's log folded into rows of tables: every record once, in order, by the auditor's reading rule. Pure.

A record that does not count changes nothing here. The fold ends where the reading rule stops (a broken log, or one of
newer software): what came before is whole, and ``stopped`` says why.

What a log does not tell is noted as a *gap*, once for each cause: rows from before a trimmed log's base, and requests
under late validation, whose results are in no record. Rows that are written afterwards are right all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from schemas.codecs.codec import Undecodable
from schemas.records.log import Batch, LogRecord, RequestBatch
from spark_streaming.records.core.reading import AuditPosition, LogBroken, Ruling, read
from spark_streaming.tables.core.record_headers import read_record
from spark_streaming.tables.core.request_targets import RequestAnswer, RequestTarget, answers_of, targets_of
from spark_streaming.tables.core.usage_changes import UsageChanges

OPERATIONS = "effective_operations"
KEYS = "keys_current"
USAGE = "usage_by_bucket"
GROWTH = "growth"
SIZES = "file_sizes"

MAX_GAPS = 16
"""Most gaps that are kept for a shard; later ones add nothing that a reader needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedPosition:
    """Where a shard's log has been read to, and what the tables lack of what lies before."""

    reading: AuditPosition = AuditPosition()
    gaps: tuple[str, ...] = ()

    def with_gap(self, gap: str) -> FoldedPosition:
        """Return the position with one gap more, unless it is known."""
        if gap in self.gaps or len(self.gaps) >= MAX_GAPS:
            return self
        return replace(self, gaps=(*self.gaps, gap))


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveOperation:
    """One effective request, or a change of a key that no result of its batch explains (then ``answer`` is None)."""

    index: int
    offset: int
    at: int
    term: int
    leader: str
    time_ms: int
    answer: RequestAnswer | None
    target: RequestTarget


@dataclass
class ShardFold:
    """Folds the records of one shard. ``begins``: by table, the offset below which it has the log already."""

    shard: int
    position: FoldedPosition
    begins: Mapping[str, int] = field(default_factory=dict)
    usage: UsageChanges = field(default_factory=UsageChanges)
    stopped: str | None = None

    def take(self, offset: int, value: bytes | None) -> list[EffectiveOperation]:
        """Read the next record; return the requests that it makes effective."""
        if self.stopped is not None:
            return []
        header, record = read_record(offset, value)
        before = self.position.reading
        try:
            after, ruling = read(before, header)
            effective = record if ruling is Ruling.COUNTS and isinstance(record, Batch) else None
            found = [] if effective is None else self._operations(effective, offset, after.leader)
        except LogBroken as broken:
            self.stopped = str(broken)
            return []
        except Undecodable as error:
            self.stopped = f"offset {offset}: {error}"
            return []
        self.position = replace(self.position, reading=after)
        if after.base_offset >= 0 > before.base_offset:
            self.position = self.position.with_gap(base_gap(self.shard, after.base_index))
        if ruling is Ruling.COUNTS and record is not None:
            self._count(record, offset)
        return found if self._wants(OPERATIONS, offset) or self._wants(KEYS, offset) else []

    def _count(self, record: LogRecord, offset: int) -> None:
        if isinstance(record, RequestBatch):
            self.position = self.position.with_gap(late_gap(self.shard, record.first_index))
        if isinstance(record, Batch):
            self.usage.take(record, buckets=self._wants(USAGE, offset), growth=self._wants(GROWTH, offset))

    def _wants(self, table: str, offset: int) -> bool:
        return offset >= self.begins.get(table, 0)

    def _operations(self, batch: Batch, offset: int, leader: str) -> list[EffectiveOperation]:
        answers = answers_of(batch)
        return [
            EffectiveOperation(
                index=target.index, offset=offset, at=target.at, term=batch.term, leader=leader,
                time_ms=batch.timestamp_ms, answer=answer, target=target,
            )
            for answer, target in paired(answers, targets_of(batch, answers))
        ]  # fmt: skip


def paired(
    answers: Iterable[RequestAnswer], targets: Iterable[RequestTarget]
) -> Iterator[tuple[RequestAnswer | None, RequestTarget]]:
    """Yield each answer with what its request changed, and each change without an answer, by index."""
    by_index: dict[int, RequestTarget] = {}
    strangers = []
    asked = {one.result.index: one for one in answers}
    for target in targets:
        if target.is_known and target.index in asked:
            by_index[target.index] = target
        else:
            strangers.append(target)
    for index, answer in sorted(asked.items()):
        yield answer, by_index.get(index) or RequestTarget(index)
    for target in strangers:
        yield None, target


def base_gap(shard: int, index: int) -> str:
    """Say what is missing of a log that begins at a base."""
    return f"shard {shard}: rows that were not changed after index {index} are missing, the log was trimmed to there"


def late_gap(shard: int, index: int) -> str:
    """Say what is missing where requests were validated late."""
    return f"shard {shard}: requests under late validation, from index {index} on, are missing"
