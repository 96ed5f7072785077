"""The rolling scrub: real threads over replicas in memory, and its reports as a broker in this process gets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from replicated_db.core.applying.replica import Offered
from replicated_db.core.errors import StoreFailure
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.shell.reports import REPEAT_MS, AuditReports
from replicated_db.shell.rolling_scrub import RollingScrub
from schemas.codecs.codec import decode_as
from schemas.records.log import DigestBase
from schemas.records.messages import AuditReport
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.local.waiting import eventually
from tests.support.replicated.kit import Shard, put

TOPIC = "reports"
HOUR_MS = 3_600_000
ROW = ("things", b"key-3")


class Case:
    """A shard with rows, and one replica's scans and reports."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        broker.create(TOPIC)
        self.noted: list[str] = []
        self.failures: list[BaseException] = []
        self.shard = Shard()
        for number in range(5):
            self.shard.do(put(b"key-%d" % number, b"value"))
        self.replica = self.shard.replica
        self.reports = AuditReports(
            broker.bootstrap_servers, TOPIC, self.shard.clock, self.noted.append, self.failures.append
        )
        self.scrubs: list[RollingScrub] = []

    def scrub(self, within_ms: int = HOUR_MS) -> RollingScrub:
        found = RollingScrub(lambda: [self.replica], self.reports, within_ms, self.noted.append, self.failures.append)
        self.scrubs.append(found)
        found.start()
        return found

    def scanned(self) -> RollingScrub:
        """Return a scrub whose first pass has ended."""
        scrub = self.scrub()
        eventually(lambda: scrub.last(0))
        return scrub

    def damage(self, value: bytes | None = b"valuf") -> None:
        self.replica.store.write([(*ROW, value)])

    def barrier(self) -> None:
        """Have the leader write a barrier, which the replica applies."""
        shard = self.shard
        offset = len(shard.log.entries)
        shard.clock.advance(10 * shard.limits.barrier_interval_ms)
        shard.leader._barriers.written = True
        shard.append(shard.leader.barrier(shard.clock.elapsed_ms()))
        shard.deliver()
        assert self.replica.barrier == self.replica.position
        assert self.replica.barrier.offset == offset
        _, digests, view = self.replica.snapshot()
        view.close()
        self.reports.publish(self.replica, Offered(reading=None, position=self.replica.position, digests=digests))

    def scan(self, how: str) -> None:
        """Scan all rows once: in a pass of the rolling scrub, or at a barrier."""
        if how == "a pass":
            scrub = self.scrub()
            eventually(lambda: scrub.last(0))
            scrub.close()
            return
        _, digests, snapshot = self.replica.snapshot()
        outcome = Offered(reading=None, position=self.replica.position, digests=digests, snapshot=snapshot)
        self.reports.publish(self.replica, outcome)
        eventually(lambda: not self.reports._scrubbing)

    def told(self, basis: str = "scrubbed") -> list[AuditReport]:
        """Return the reports on one basis; by default those of scans."""
        self.close()
        messages = self._broker.read(TOPIC, self._broker.count(TOPIC)) if self._broker.count(TOPIC) else []
        found = [decode_as(AuditReport, one.value() or b"") for one in messages]
        return [one for one in found if one.basis == basis]

    def close(self) -> None:
        for scrub in self.scrubs:
            scrub.close()
        self.reports.close()


@pytest.fixture
def case() -> Iterator[Case]:
    with memory_broker() as broker:
        case = Case(broker)
        yield case
        case.close()


def test_a_sound_replica_is_reported_so_at_the_next_barrier(case: Case):
    scrub = case.scanned()
    last = scrub.last(0)
    assert last is not None
    assert (last.rows, last.differing_slots) == (10, 0), "five rows, and five of retries"
    case.shard.do(put(b"later", b"value"))
    case.barrier()
    at = case.replica.position
    case.barrier()
    (report,) = case.told()
    assert (report.slots, report.sums) == tuple(case.replica.digests.slots())
    assert (report.barrier_offset, report.index) == (at.offset, at.index)
    said = scrub.told(0)
    assert said is not None
    assert (said["within_ms"], said["last_pass"]["rows"]) == (HOUR_MS, 10)


@pytest.mark.parametrize("value", [b"valuf", None])
def test_a_row_that_changed_at_rest_is_reported_as_it_is_at_a_later_barrier(case: Case, value: bytes | None):
    case.damage(value)
    scrub = case.scrub()
    eventually(lambda: scrub.last(0))
    case.shard.do(put(b"later", b"value"))
    case.shard.do(put(ROW[1], b"written over"))
    case.barrier()
    (report,) = case.told()
    scanned = case.replica.scan(case.replica.store)
    assert (report.slots, report.sums) == tuple(scanned.slots())
    assert scanned != case.replica.digests, "the kept sums never lose the damage"
    assert (report.flagged, report.evidence) == (False, None), "the sums say it: the audit compares them"


@pytest.mark.parametrize("how", ["a pass", "a scrub barrier"])
def test_a_replica_whose_rows_are_wrong_serves_and_leads_no_more_until_a_scan_finds_them_right(
    case: Case, caplog: pytest.LogCaptureFixture, how: str
):
    right = case.replica.store.get(*ROW)
    case.barrier()
    case.damage()
    case.scan(how)
    evidence = case.replica.evidence
    assert evidence is not None
    assert (evidence.claim, evidence.cf, evidence.leader) == ("scan", "things", "")
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "rows are not those of its digest: 1 buckets of things. It serves no reads and leads nothing" in error
    assert case.replica.durable_place().flagged
    case.replica = case.shard.node.restart().replica
    assert case.replica.evidence == evidence, "the flag is durable"
    case.scan(how)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1, "it is told once"
    case.damage(right)
    case.scan(how)
    assert case.replica.evidence is None
    assert [(one.basis, one.evidence) for one in case.told("evidence")] == [("evidence", evidence)]


def test_a_scan_that_began_before_the_damage_was_found_takes_no_flag_away(case: Case):
    standing = case.replica.evidence
    case.reports.judge_rows(case.replica, {3: 17}, None)
    case.reports.judge_rows(case.replica, {}, standing)
    assert case.replica.evidence is not None


def test_a_base_equal_to_the_digest_does_not_make_rows_right(case: Case):
    case.damage()
    case.reports.judge_rows(case.replica, {3: 17}, None)
    evidence = case.replica.evidence
    slots, sums = case.replica.digests.slots()
    base = DigestBase(
        term=1,
        nonce=b"",
        seq=1,
        prev_chain=b"",
        index=case.replica.position.index,
        slots=slots,
        sums=sums,
        basis="test",
    )
    assert case.replica._judge_base(base, case.replica.position, []) is None
    assert case.replica.evidence == evidence


def test_while_nothing_is_written_the_last_barrier_is_named(case: Case):
    case.barrier()
    case.damage()
    case.scanned()
    reports = case.told()
    scanned = tuple(case.replica.scan(case.replica.store).slots())
    assert [(one.slots, one.sums, one.barrier_offset) for one in reports] == [
        (*scanned, case.replica.position.offset)
    ], "when the family was read; at the end it is known"


def test_what_is_known_is_told_once_and_again_after_a_while(case: Case):
    case.barrier()
    for _ in range(3):
        case.reports.scanned(case.replica, {})
    case.shard.clock.advance(REPEAT_MS - 1)
    case.reports.scanned(case.replica, {})
    case.shard.clock.advance(1)
    case.reports.scanned(case.replica, {})
    case.reports.scanned(case.replica, {})
    assert [one.barrier_offset for one in case.told()] == [case.replica.position.offset] * 2


def test_other_rows_and_other_barriers_are_told_at_once(case: Case):
    case.barrier()
    first = case.replica.position.offset
    for differences in ({}, {3: 17}, {3: 17}, {}):
        case.reports.scanned(case.replica, differences)
    case.barrier()
    case.reports.scanned(case.replica, {})
    second = case.replica.position.offset
    reports = case.told()
    assert [one.barrier_offset for one in reports] == [first, first, first, second]
    kept = tuple(case.replica.digests.slots())
    assert [(one.slots, one.sums) == kept for one in reports] == [True, False, True, True]


def test_a_scrub_at_a_barrier_tells_what_the_rolling_one_need_not_repeat(case: Case):
    case.barrier()
    outcome = Offered(reading=None, position=case.replica.position, snapshot=case.replica.store.snapshot())
    case.reports.publish(case.replica, outcome)
    eventually(lambda: not case.reports._scrubbing)
    case.reports.scanned(case.replica, {})
    assert len(case.told()) == 1


@pytest.mark.parametrize("damaged", [False, True])
def test_a_rolling_scan_that_ends_before_a_scrub_barrier_and_the_barriers_own_are_one_report(case: Case, damaged: bool):
    """Found by ``tests.chaos.audit --false-alarms 60``: the audit gave its verdict on the one subject twice."""
    case.shard.do(put(b"later", b"value"))
    case.reports.scanned(case.replica, {})  # it waits for the next barrier
    case.barrier()
    if damaged:
        case.damage()
    outcome = Offered(reading=None, position=case.replica.position, snapshot=case.replica.store.snapshot())
    case.reports.publish(case.replica, outcome)
    eventually(lambda: not case.reports._scrubbing)
    assert len(case.told()) == (2 if damaged else 1), "what another scan found is never left out"


def test_a_restart_and_records_that_change_no_rows_forget_no_barrier(case: Case):
    case.barrier()
    at = case.replica.position
    case.shard.append(case.shard.leader.tick())
    case.shard.deliver()
    assert case.replica.position.offset > at.offset
    case.replica = case.shard.node.restart().replica
    case.scanned()
    (report,) = case.told()
    assert (report.barrier_offset, report.index, report.chain) == (at.offset, at.index, at.chain)


def test_passes_follow_each_other_and_one_that_takes_too_long_is_told(case: Case):
    scrub = case.scrub(within_ms=1)
    eventually(lambda: scrub.last(0))
    first = scrub.last(0)
    eventually(lambda: scrub.last(0) != first)
    eventually(lambda: any("pass over 10 rows took" in line and "not 0 s" in line for line in case.noted))


def test_nothing_is_scanned_if_nothing_is_to_be(case: Case):
    scrub = case.scrub(within_ms=0)
    scrub.close()
    assert (scrub.last(0), scrub.told(0)) == (None, None)
    assert case.told() == []


def test_whatever_fails_ends_the_process_and_no_thread_dies_in_silence(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(case.reports, "scanned", lambda *_: 1 // 0)
    case.scrub()
    eventually(lambda: case.failures)
    assert isinstance(case.failures[0], ZeroDivisionError)


def test_a_store_that_cannot_be_read_ends_the_process(case: Case, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any) -> Iterator[tuple[bytes, bytes]]:
        raise StoreFailure("Corruption")

    store = case.replica.store
    assert isinstance(store, MemoryStore)
    monkeypatch.setattr(store, "snapshot", type("Broken", (), {"iterate": broken, "close": lambda _: None}))
    case.scrub()
    eventually(lambda: case.failures)
    assert "shard 0: rolling scrub: Corruption" in str(case.failures[0])
