"""The audit of a log that was trimmed: it begins at the base, says so, and judges nothing that lies before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.records.messages import AuditReport
from spark_streaming.batch.core.computed import LogPoint
from spark_streaming.batch.core.gathering import FactRow, GatheredVerdicts, LogPartition, facts_from
from spark_streaming.batch.core.results import is_ok, partition_result
from spark_streaming.records.core.reading import BASE, AuditPosition, LogBroken, Ruling, read
from spark_streaming.verdicts.core.shard_state import LogStanding
from tests.support.audit.auditmodel import header, log_rows
from tests.support.audit.shard_auditor import Auditor, simple_log, told
from tests.support.logs.logbuilder import REPLICAS, LogBuilder, Rows, digest


def based(log: LogBuilder) -> int:
    """Log a base, with its batch; return the base's offset."""
    at = log.digest_base()
    log.members(*REPLICAS)
    log.batch(log.put("keyTable", b"/v/b/after", b"2"))
    return at


def trimmed(auditor: Auditor, at: int) -> Auditor:
    auditor.read = at
    return auditor


def reports(log: LogBuilder) -> list[AuditReport]:
    return [log.report(log.barriers[-1], node) for node in REPLICAS]


def test_the_audit_begins_at_the_base_and_says_so():
    log = simple_log()
    log.barrier()
    base = based(log)
    log.claim("om2")
    log.batch(log.merge(b"/v/b/#usedBytes", 3))
    log.barrier()
    auditor = trimmed(Auditor(), base)
    verdicts = auditor.take(log.values, reports(log))
    assert told(verdicts) == {(node, "equal", "incremental"): 1 for node in REPLICAS}
    assert {verdict.reason for verdict in verdicts} == {f"judged from the base of index 1 on (offset {base})"}
    whole = Auditor()
    whole.take(log.values)
    assert (auditor.barriers[-1].sums == whole.barriers[-1].sums).all()
    assert auditor.barriers[-1].chain == whole.barriers[-1].chain


def test_a_replica_that_differs_after_the_base_is_found_and_one_that_is_silent_is_unknown():
    log = simple_log()
    base = based(log)
    log.barrier()
    wrong: Rows = {**log.rows, ("keyTable", b"/v/b/k"): b"other"}
    auditor = trimmed(Auditor(), base)
    verdicts = auditor.take(log.values, [log.report(log.barriers[-1], "om1", rows=wrong)])
    assert told(verdicts) == {("om1", "diverged", "incremental"): 1}
    assert told(auditor.expire(10_000)) == {(node, "unknown", "incremental"): 1 for node in ("om2", "om3")}


def test_members_that_change_after_the_base_are_followed():
    log = simple_log()
    base = based(log)
    log.members(*REPLICAS, "om4")
    log.barrier()
    auditor = trimmed(Auditor(), base)
    verdicts = auditor.take(log.values, [*reports(log), log.report(log.barriers[-1], "om4")])
    assert told(verdicts) == {(node, "equal", "incremental"): 1 for node in (*REPLICAS, "om4")}


def test_what_lies_before_the_base_is_not_judged():
    """Reports of then, evidence of then, and records that would break a log that was read from its beginning."""
    log = simple_log()
    old = log.barrier()
    begin = log.append_value(b"no record")
    log.gap()
    base = based(log)
    log.barrier()
    auditor = trimmed(Auditor(), begin)
    stale = [log.report(old, node) for node in REPLICAS]
    evidence = log.report(old, "om1", basis="evidence", barrier_offset=-1, index=0)
    assert auditor.take(log.values[:base], [*stale, evidence]) == []
    assert auditor.audit().state.position.seeks_base
    assert auditor.take(log.values, stale) == []
    assert auditor.expire(100_000) != []
    assert {v.node for v in auditor.findings if hasattr(v, "node")} == set(REPLICAS)
    assert auditor.take(log.values, stale) == []


def test_reports_that_came_early_for_what_proves_to_lie_before_the_base_are_dropped():
    log = simple_log()
    begin = log.tick()
    old = log.barrier()
    base = based(log)
    log.barrier()
    auditor = trimmed(Auditor(), begin)
    assert auditor.take(log.values[: begin + 1], [log.report(old, node) for node in REPLICAS]) == []
    assert len(auditor.store.reports) == len(REPLICAS)
    assert auditor.take(log.values) == []
    assert not auditor.store.reports
    assert auditor.audit().state.position.base_offset == base


def test_evidence_of_after_the_base_counts():
    log = simple_log()
    base = based(log)
    auditor = trimmed(Auditor(), base)
    at = log.barrier()
    found = auditor.take(log.values, [log.report(at, "om2", basis="evidence", barrier_offset=-1)])
    assert told(found) == {("om2", "diverged", "evidence"): 1}


def follow(log: LogBuilder, begin: int) -> AuditPosition:
    position = AuditPosition()
    for row in log_rows(log.values, begin):
        position, _ = read(position, row.header)
    return position


BROKEN_BASES: dict[str, Callable[[LogBuilder], object]] = {
    "nothing": lambda log: log.tick(),
    "no members": lambda log: (log.digest_base(), log.tick(), log.members(*REPLICAS)),
    "a claim between": lambda log: (log.digest_base(), log.claim("om2"), log.members(*REPLICAS)),
    "members of another chain": lambda log: (log.digest_base(), log.tick(), log.duplicate()),
    "members before it": lambda log: (log.members(*REPLICAS), log.digest_base()),
}


@pytest.mark.parametrize("kind", BROKEN_BASES)
def test_what_is_no_base(kind: str):
    log = simple_log()
    begin = log.tick()
    BROKEN_BASES[kind](log)
    assert follow(log, begin).seeks_base
    at = based(log)
    assert follow(log, begin).base_offset == at


def test_void_records_between_the_base_and_its_members_are_passed_over():
    log = simple_log()
    at = log.digest_base()
    log.stale(term=log.term, nonce=b"z" * 16)
    log.append_value(b"no record")
    log.members(*REPLICAS)
    assert follow(log, at).base_offset == at


def test_after_the_base_the_contract_holds_as_ever():
    log = simple_log()
    base = based(log)
    log.chain = bytes(32)
    log.tick()
    with pytest.raises(LogBroken, match="prev_chain"):
        follow(log, base)
    second = simple_log()
    base = based(second)
    second.genesis()
    with pytest.raises(LogBroken, match="a second Genesis"):
        follow(second, base)


def test_records_that_are_missing_later_are_no_trimming():
    log = simple_log()
    position = follow(log, 0)
    with pytest.raises(LogBroken, match="records are missing"):
        read(position, replace(header(len(log.values), log.values[-1]), offset=len(log.values) + 3))


def test_the_base_opens_with_its_own_sums():
    log = simple_log()
    base = based(log)
    position, ruling = read(AuditPosition(), header(base, log.values[base]))
    assert ruling is Ruling.OPENS_BASE
    assert (position.trimmed_to, position.opened_at, position.seeks_base) == (base, base, True)
    _, ruling = read(position, header(base + 1, log.values[base + 1]))
    assert ruling is Ruling.COUNTS


def test_a_base_heals_what_late_validation_hid():
    log = simple_log()
    log.request_batch(log.put("keyTable", b"/v/b/late", b"1"))
    base = based(log)
    log.barrier()
    auditor = trimmed(Auditor(), base)
    assert told(auditor.take(log.values, reports(log))) == {(node, "equal", "incremental"): 1 for node in REPLICAS}
    assert auditor.audit().state.standing is LogStanding.SUMMED
    assert digest(log.rows)


def test_the_result_of_the_batch_says_from_where_it_judges():
    rows = [FactRow(0, 7, BASE, 0, (), None), FactRow(0, 8, "Members", 0, REPLICAS, None)]
    facts = facts_from(rows, {}, {0: LogPoint(7, 3)})
    assert facts[0].base == LogPoint(7, 3)
    assert facts[0].replicas == list(REPLICAS)
    partition = LogPartition("om.log", 0)
    entry = partition_result(partition, GatheredVerdicts(), None, [], facts[0])
    assert entry["base"] == {"offset": 7, "index": 3}
    assert entry["oracle_agrees"] is None
    assert not is_ok(entry), "nobody has reported"
