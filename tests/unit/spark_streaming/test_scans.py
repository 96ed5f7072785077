"""Stored bytes of a pipeline's members: against the log, and among themselves in the running audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datanode_processors.blocks.core.digests import container_digest
from schemas.codecs.block_rows import block_key
from schemas.column_families import DN_COLUMN_FAMILIES
from schemas.records.datanode import BlockReport, ContainerDigest
from schemas.records.messages import Verdict
from schemas.topics import DN_LOG
from spark_streaming.verdicts.core.matching import ShardAudit
from spark_streaming.verdicts.core.scans import MAX_CONTAINERS, against_log, among_members
from spark_streaming.verdicts.core.shard_state import EARLY_SCAN_REPORTS, Finding, MatchingLimits
from spark_streaming.verdicts.state import state_from, state_row
from tests.support.audit.auditmodel import MatchingState, log_rows
from tests.support.logs.logbuilder import At
from tests.support.logs.pipelinelog import MEMBERS, PipelineLog, cells, ordinary_pipeline

BLOCKS = "replicas:blocks"


def report_of(digests: dict[int, int], datanode: str = "dn1", *, unreadable: bytes = b"") -> BlockReport:
    containers = [
        ContainerDigest(
            container_id=number, blocks=1, used_bytes=1, digest=digest, unreadable=[unreadable] if unreadable else []
        )
        for number, digest in sorted(digests.items())
    ]
    return BlockReport(
        cluster="c", datanode=datanode, partition=0, index=1, log_offset=2, containers=containers, complete=True,
        reported_at_ms=0,
    )  # fmt: skip


def expected_of(log: PipelineLog) -> dict[int, int]:
    return {
        container: container_digest(
            container,
            [(block[1], len(data), cells(data)) for block, data in sorted(log.disk.items()) if block[0] == container],
        )
        for container in {block[0] for block in log.disk}
    }


def altered(log: PipelineLog) -> dict[tuple[int, int], bytes]:
    """A disk with one bit of one block turned over."""
    block = max(log.disk)
    data = bytearray(log.disk[block])
    data[len(data) // 2] ^= 1
    return {**log.disk, block: bytes(data)}


def missing(log: PipelineLog) -> dict[tuple[int, int], bytes]:
    return {block: data for block, data in log.disk.items() if block != max(log.disk)}


def test_a_healthy_member_equals_the_log():
    log = ordinary_pipeline()
    assert against_log(log.block_report(log.barriers[-1], "dn1"), expected_of(log)).verdict == "equal"


@pytest.mark.parametrize("damage", [altered, missing])
def test_damage_is_named_down_to_the_block(damage: Callable[[PipelineLog], dict[tuple[int, int], bytes]]):
    log = ordinary_pipeline()
    found = against_log(log.block_report(log.barriers[-1], "dn1", damage(log)), expected_of(log))
    assert found.verdict == "diverged"
    (container,) = found.containers
    assert (container.container_id, container.blocks) == (max(log.disk)[0], [block_key(*max(log.disk))])
    assert container.expected != container.found


def test_containers_too_many_or_too_few_differ():
    log = {1: 10, 2: 20}
    assert against_log(report_of(log), log).verdict == "equal"
    assert [c.container_id for c in against_log(report_of({1: 10}), log).containers] == [2]
    assert [c.expected for c in against_log(report_of({**log, 3: 30}), log).containers] == [None]
    assert [c.found for c in against_log(report_of({1: 10}), log).containers] == [None]


def test_an_unreadable_block_differs_even_if_the_digest_does_not():
    found = against_log(report_of({1: 10}, unreadable=b"key"), {1: 10})
    assert (found.verdict, found.containers[0].blocks) == ("diverged", [b"key"])


def test_of_an_incomplete_report_only_what_it_covers_is_compared():
    part = replace(report_of({1: 10, 2: 20}), complete=False)
    assert against_log(part, {1: 10, 2: 20, 3: 30}).verdict == "equal"
    assert against_log(part, {1: 10, 2: 21, 3: 30}).verdict == "diverged"
    assert against_log(replace(report_of({}), complete=False), {1: 10}).verdict == "equal"


def test_empty_containers_are_as_good_as_none():
    empty = ContainerDigest(container_id=7, blocks=0, used_bytes=0, digest=42, unreadable=[])
    report = report_of({1: 10})
    assert against_log(replace(report, containers=[*report.containers, empty]), {1: 10}).verdict == "equal"


def test_differing_containers_are_bounded_and_counted():
    found = against_log(report_of({}), dict.fromkeys(range(200), 1))
    assert len(found.containers) == MAX_CONTAINERS
    assert found.reason.startswith("200 containers")


def test_a_majority_stands_for_what_is_right():
    one, other = {1: 10, 2: 20}, {1: 10, 2: 21}
    found = among_members([report_of(one, "dn1"), report_of(other, "dn2"), report_of(one, "dn3")], 3)
    assert {node: said.verdict for node, said in found.items()} == {"dn1": "equal", "dn2": "diverged", "dn3": "equal"}
    assert [(c.container_id, c.expected, c.found) for c in found["dn2"].containers] == [(2, 20, 21)]


def test_without_a_majority_nobody_is_equal():
    found = among_members([report_of({1: n}, f"dn{n}") for n in (1, 2, 3)], 3)
    assert {said.verdict for said in found.values()} == {"diverged"}
    assert all("no majority" in said.reason for said in found.values())
    assert among_members([report_of({1: 1})], 3)["dn1"].verdict == "unknown"


@given(st.dictionaries(st.integers(1, 9), st.integers(), max_size=5), st.dictionaries(st.integers(1, 9), st.integers()))
def test_equal_means_equal(found: dict[int, int], expected: dict[int, int]):
    assert (against_log(report_of(found), expected).verdict == "equal") == (found == expected)


# In the running audit.


class Auditor:
    """A pipeline's ShardAudit whose state goes through its stored form between micro-batches, as in Spark."""

    def __init__(self, log: PipelineLog, limits: MatchingLimits) -> None:
        self.log, self.limits = log, limits
        self.row: tuple[str, bytes] | None = None
        self.store = MatchingState(log.shard)
        self.read = 0

    def take(self, *reports: BlockReport, now_ms: int = 0, up_to: int | None = None) -> list[Verdict]:
        """Read the log ``up_to`` an offset, all by default, and reports, in one micro-batch."""
        audit, values = self.audit(), self.log.values[:up_to]
        rows = log_rows(values, self.read, DN_COLUMN_FAMILIES)
        self.read = len(values)
        return self.keep(audit, list(audit.take(rows, [], now_ms, reports)))

    def expire(self, now_ms: int) -> list[Verdict]:
        audit = self.audit()
        return self.keep(audit, list(audit.expire(now_ms)))

    def audit(self) -> ShardAudit:
        state = state_from(self.row, len(DN_COLUMN_FAMILIES))
        return ShardAudit(
            log=DN_LOG, shard=self.log.shard, families=DN_COLUMN_FAMILIES, limits=self.limits, state=state,
            store=self.store,
        )  # fmt: skip

    def keep(self, audit: ShardAudit, found: list[Finding]) -> list[Verdict]:
        self.row = state_row(audit.state)
        verdicts = [one for one in found if isinstance(one, Verdict)]
        assert {one.log for one in verdicts} <= {DN_LOG}
        return [one for one in verdicts if one.basis == BLOCKS]


def auditor(log: PipelineLog, **limits: int) -> Auditor:
    return Auditor(log, MatchingLimits(report_timeout_ms=1000, scan_timeout_ms=5000, **limits))


def said(verdicts: list[Verdict]) -> dict[str, str]:
    return {one.node: one.verdict for one in verdicts}


def reports(log: PipelineLog, at: At, **disks: dict[tuple[int, int], bytes]) -> list[BlockReport]:
    return [log.block_report(at, node, disks.get(node)) for node in MEMBERS]


def test_a_scan_is_judged_when_the_last_member_has_reported():
    log = ordinary_pipeline(shard=3)
    running = auditor(log)
    first, second, third = reports(log, log.barriers[-1], dn2=altered(log))
    assert running.take(first) == []
    assert running.take(second, now_ms=4000) == []
    assert running.audit().next_deadline_ms() is not None
    verdicts = running.take(third, now_ms=4500)
    assert said(verdicts) == {"dn1": "equal", "dn2": "diverged", "dn3": "equal"}
    assert [c.blocks for v in verdicts for c in v.containers] == [[block_key(*max(log.disk))]]
    assert running.store.blocks == {}
    assert running.expire(10**6) == []


def test_a_silent_member_is_unknown():
    log = ordinary_pipeline()
    running = auditor(log)
    first, second, _ = reports(log, log.barriers[-1])
    assert running.take(first, second) == []
    assert running.expire(4999) == []
    assert said(running.expire(5000)) == {"dn1": "equal", "dn2": "equal", "dn3": "unknown"}
    assert running.store.blocks == {}


def test_reports_of_others_are_unknown():
    log = ordinary_pipeline()
    good = log.block_report(log.barriers[-1], "dn1")
    running = auditor(log)
    running.take()
    for wrong, reason in (
        ({"cluster": "other"}, "cluster"),
        ({"partition": 9}, "partition 9"),
        ({"datanode": "dn7"}, "no member"),
        ({"index": good.index + 1}, "names index"),
    ):
        (verdict,) = running.take(replace(good, **wrong))
        assert verdict.verdict == "unknown"
        assert reason in verdict.reason
    assert running.store.blocks == {}


def test_reports_of_blocks_may_come_before_their_log():
    """They were judged by a log that had not been read: the member was ``unknown``, and its scan never ended."""
    log = ordinary_pipeline(shard=3)
    running = auditor(log)
    first, second, third = reports(log, log.barriers[-1], dn2=altered(log))
    assert running.take(first, up_to=0) == []
    assert running.take(second, up_to=5) == []
    assert running.take() == []
    assert said(running.take(third)) == {"dn1": "equal", "dn2": "diverged", "dn3": "equal"}
    assert running.store.blocks == {}


def test_whose_reports_came_before_their_log_is_asked_when_it_is_read():
    log = ordinary_pipeline()
    running = auditor(log)
    first, second, third = reports(log, log.barriers[-1])
    early = [
        first,
        replace(second, cluster="other"),
        replace(third, index=third.index + 1),
        replace(third, datanode="x"),
    ]
    assert running.take(*early, up_to=0) == []
    found = running.take()
    assert {one.node: one.reason.split()[0] for one in found} == {"dn2": "reports", "dn3": "names", "x": "'x'"}
    assert {one.verdict for one in found} == {"unknown"}
    assert set(running.store.blocks) == {(log.barriers[-1].offset, "dn1")}
    assert said(running.take(second, third)) == dict.fromkeys(MEMBERS, "equal")


def test_reports_without_a_log_wait_no_longer_than_others_and_are_bounded():
    log = ordinary_pipeline()
    running = auditor(log)
    good = log.block_report(log.barriers[-1], "dn1")
    surplus = running.take(*(replace(good, datanode=f"x{n}") for n in range(EARLY_SCAN_REPORTS + 1)), up_to=0)
    assert said(surplus) == {f"x{EARLY_SCAN_REPORTS}": "unknown"}
    assert len(running.store.blocks) == EARLY_SCAN_REPORTS
    assert {one.reason for one in running.expire(5000)} == {"the log has no Genesis"}
    assert running.store.blocks == {}
    assert running.audit().next_deadline_ms() is None


def test_a_scan_ahead_of_a_broken_log_is_not_waited_with():
    log = ordinary_pipeline()
    running = auditor(log)
    wanted = reports(log, log.barriers[-1])
    log.values[5] = b"not a record of the log"
    assert running.take() == []
    (stranger,) = running.take(replace(wanted[0], datanode="x"))
    assert "no member" in stranger.reason
    assert said(running.take(*wanted)) == dict.fromkeys(MEMBERS, "equal")


def test_scans_are_bounded():
    log = ordinary_pipeline()
    for _ in range(6):
        log.barrier()
    running = auditor(log, kept_scans=2)
    verdicts = running.take(*(log.block_report(at, "dn1") for at in log.barriers[-5:]))
    assert {one.barrier_offset for one in verdicts} == {at.offset for at in log.barriers[-5:-2]}
    assert {one.verdict for one in verdicts} == {"unknown"}
    assert len(running.store.blocks) == 2
