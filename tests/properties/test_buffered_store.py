"""A shard's audit whose state goes through the buffer finds what one on plain dicts does, and leaves what it names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.column_families import OM_COLUMN_FAMILIES
from schemas.records.messages import AuditReport, Verdict
from spark_streaming.verdicts.buffered_store import BufferedStore
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.inputs import ReportPlace
from spark_streaming.verdicts.core.matching import ShardAudit
from spark_streaming.verdicts.core.shard_state import AuditState, Finding, MatchingLimits
from spark_streaming.verdicts.state import KEPT_KEY, KEPT_SCHEMA, KeptKind, SparkStore, state_row
from tests.properties.examples import examples
from tests.support.audit import auditmodel
from tests.support.audit.auditmodel import MatchingState, ReportsInMemory
from tests.support.audit.spark_state import MapState
from tests.support.logs.logbuilder import REPLICAS, LogBuilder

FAMILIES = len(OM_COLUMN_FAMILIES)


class Audited:
    """One audit over micro-batches. ``buffered``: on Spark's state, as the operator runs it; else on dicts."""

    def __init__(self, limits: MatchingLimits, topic: ReportsInMemory, *, buffered: bool) -> None:
        self.limits, self.topic, self.buffered = limits, topic, buffered
        self.rows = MapState(KEPT_KEY, KEPT_SCHEMA)
        self.dicts = MatchingState(0)
        self.row: tuple[str, bytes] | None = None

    def take(self, log: LogBuilder, offsets: range, reports: list[tuple[int, AuditReport]], now_ms: int) -> list[Any]:
        store = SparkStore(0, self.rows)
        state = store.load(FAMILIES)
        buffer = BufferedStore(store, state)
        audit = ShardAudit(
            shard=0, families=OM_COLUMN_FAMILIES, limits=self.limits, state=state,
            store=buffer if self.buffered else self.dicts, topic=self.topic,
        )  # fmt: skip
        rows = [auditmodel.log_row(offset, log.values[offset]) for offset in offsets]
        found = [*audit.take(rows, [auditmodel.report(sent, at) for at, sent in reports], now_ms)]
        found += audit.expire(now_ms)
        buffer.flush()
        store.save(state)
        self.row = state_row(state)
        if self.buffered:
            self.check(state)
        return list(map(comparable, found))

    def check(self, state: AuditState) -> None:
        assert {offset for kind, offset, *_ in self.rows.rows if kind == KeptKind.BARRIER} == set(state.waiting)
        held = {ReportPlace(at, *key) for at, waiting in state.waiting.items() for key in waiting.held}
        places = {ReportPlace(*place) for kind, *place in self.rows.rows if kind == KeptKind.REPORT}
        assert places == held | set(state.early)


def comparable(finding: Finding) -> Any:
    if isinstance(finding, Verdict):
        return replace(finding, decided_at_ms=0)
    return finding.offset, finding.index, finding.chain, digests.to_bytes(finding.sums), finding.blind


@given(data=st.data())
@settings(max_examples=examples(90), deadline=None)
def test_it_finds_the_same_and_keeps_what_the_state_names(data: st.DataObject):
    log = LogBuilder().start()
    sent: list[AuditReport] = []
    for number in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            log.batch(log.put("keyTable", b"/v/b/%d" % number, b"%d" % number))
        elif data.draw(st.booleans()):
            log.request_batch(log.put("keyTable", b"/v/b/late", b"%d" % number))
        at = log.barrier()
        for node in data.draw(st.permutations(REPLICAS))[: data.draw(st.integers(0, 3))]:
            report = log.report(at, node)
            sent += [report] * data.draw(st.integers(1, 2))
    sent = data.draw(st.permutations(sent)) if data.draw(st.booleans()) else sent
    limits = MatchingLimits(
        report_timeout_ms=data.draw(st.sampled_from((10, 10_000))), kept_barriers=data.draw(st.integers(1, 6)),
        early_reports=data.draw(st.integers(1, 6)), early_bytes=data.draw(st.sampled_from((400, 1 << 20))),
    )  # fmt: skip
    topic = ReportsInMemory()
    topic.reports = sent
    one, other = (Audited(limits, topic, buffered=buffered) for buffered in (True, False))
    read, taken, now_ms = 0, 0, 0
    while read < len(log.values) or taken < len(sent):
        to = min(len(log.values), read + data.draw(st.integers(0, 8)))
        until = min(len(sent), taken + data.draw(st.integers(1, 8)))
        reports = list(enumerate(sent))[taken:until]
        now_ms += data.draw(st.integers(0, 20))
        found, wanted = (audited.take(log, range(read, to), reports, now_ms) for audited in (one, other))
        assert found == wanted
        assert one.row == other.row
        read, taken = to, until
        if taken == len(sent) and read < len(log.values):
            read_all = range(read, len(log.values))
            assert one.take(log, read_all, [], now_ms) == other.take(log, read_all, [], now_ms)
            break
    assert one.take(log, range(0), [], now_ms + 20_000) == other.take(log, range(0), [], now_ms + 20_000)
