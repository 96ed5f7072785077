"""Reading a log through a broker that may not know its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.errors import AheadOfLog
from replicated_db.core.leading.leader import LeaderLimits
from replicated_db.core.log.log_reads import END_BEHIND_WAIT_S, EndBehind, EndPatience, read_log
from replicated_db.core.ports import Entry, LogBounds, LogUnavailable, OffsetOutOfRange
from replicated_db.core.tables.memory import ManualClock, MemoryLog, MemoryStore, SequenceIds
from replicated_db.shell.database.database import DatabaseService, ReplicatedDatabase
from replicated_db.shell.database.embedded import EmbeddedDatabase
from replicated_db.shell.database.follower import Follower
from stratolog.local.processes import wait_until
from tests.support.replicated.kit import FAMILIES, START_MS

DEADLINE_S = 30.0


class CutOff(MemoryLog):
    """A log behind a broker that may be cut off from the others: it knows the first ``known`` records, and nothing of the rest."""

    known: int | None = None
    first = 0

    def bounds(self) -> LogBounds:
        low, high = super().bounds()
        return LogBounds(max(low, self.first), high if self.known is None else min(high, self.known))

    def read(self, offset: int, limit: int, wait_s: float) -> Sequence[Entry]:
        low, high = self.bounds()
        if not low <= offset <= high:
            raise OffsetOutOfRange(f"offset {offset}: out of range")
        return [entry for entry in super().read(offset, limit, wait_s) if entry.offset < high]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=START_MS)


@pytest.fixture
def log(clock: ManualClock) -> CutOff:
    found = CutOff(clock)
    for number in range(5):
        found.append(b"%d" % number)
    return found


def test_what_the_log_has_is_read(log: CutOff):
    assert [entry.value for entry in read_log(log, 3, 10, 0)] == [b"3", b"4"]
    assert list(read_log(log, 5, 10, 0)) == []


def test_a_position_beyond_the_end_may_be_the_brokers_mistake(log: CutOff):
    log.known = 2
    with pytest.raises(EndBehind, match="the log ends before offset 4, says the broker that was asked"):
        read_log(log, 4, 10, 0)
    assert issubclass(EndBehind, LogUnavailable)


def test_a_position_before_the_first_record_is_none(log: CutOff):
    log.first = 2
    with pytest.raises(AheadOfLog, match="the log's first record is 2; this replica needs a checkpoint from a peer"):
        read_log(log, 1, 10, 0)


def test_the_first_record_that_there_is_needs_no_checkpoint(log: CutOff):
    """A broker that says so of the first record it keeps does not know its end: another one may."""
    log.first, log.known = 3, 2
    assert log.bounds().first == 3
    with pytest.raises(EndBehind):
        read_log(log, 3, 10, 0)


def test_patience_ends():
    patience = EndPatience()
    patience.on_failure(EndBehind("old end"), 100)
    patience.on_failure(LogUnavailable("no answer"), 100 + END_BEHIND_WAIT_S)
    patience.on_failure(EndBehind("old end"), 100 + END_BEHIND_WAIT_S)
    with pytest.raises(AheadOfLog, match="old end; it has been so for 30 s"):
        patience.on_failure(EndBehind("old end"), 101 + END_BEHIND_WAIT_S)


def test_patience_begins_anew_once_the_log_has_answered():
    patience = EndPatience()
    patience.on_failure(EndBehind("old end"), 100)
    patience.on_answer()
    patience.on_failure(EndBehind("old end"), 1000)


def start(name: str, log: CutOff, clock: ManualClock, seed: int) -> EmbeddedDatabase:
    return EmbeddedDatabase.open(
        Identity(cluster="c", shard=0, shards=1, node=name), ["rows"], log=log, replicas=["a", "b"],
        store=lambda families: MemoryStore(families.names), clock=clock, ids=SequenceIds(seed=seed),
    )  # fmt: skip


def test_a_candidate_that_meets_a_broker_with_an_old_end_tries_again(clock: ManualClock):
    """It has read further than that broker knows: no reason to end the process, none to lead."""
    log = CutOff(clock)
    first, second = start("a", log, clock, 1), start("b", log, clock, 2)
    try:
        first.lead()
        first.submit([first.put("rows", b"k", b"v")]).result(DEADLINE_S)
        first.resign()
        assert wait_until(lambda: second.replica.read_offset == len(log.entries) - 1, DEADLINE_S, interval_s=0.001)
        log.known = len(log.entries) - 2
        term, turned = second.replica.position.term, []
        second.loop.beat = lambda *_: turned.append(1)  # type: ignore[method-assign]
        second.lead()
        assert wait_until(lambda: len(turned) > 20, DEADLINE_S, interval_s=0.001), "it has tried more than once"
        second._check_alive()
        assert second.replica.position.term == term
        log.known = None
        second.submit([second.put("rows", b"k", b"w")]).result(DEADLINE_S)
    finally:
        first.close()
        second.close()


def following(replica: Replica, log: CutOff, **more: Any) -> ReplicatedDatabase:
    """Return a database that never leads."""
    nothing: Any = None
    service = DatabaseService(
        executes=nothing, intake=nothing, outbox=nothing, reports=nothing, limits=LeaderLimits(), address="",
        replicas=[],
    )  # fmt: skip
    return ReplicatedDatabase(replica, log, service, clock=ManualClock(), ids=SequenceIds(), **more)


def test_a_follower_fills_a_gap_once_another_broker_answers(log: CutOff):
    replica = Replica(Identity(cluster="c", shard=0, shards=1, node="n1"), FAMILIES, MemoryStore(FAMILIES.names))
    offered: list[int] = []
    now_s, notes = [0.0], []

    def sleep(seconds: float) -> None:
        now_s[0] += seconds
        if now_s[0] > END_BEHIND_WAIT_S / 2:
            log.known = None

    def offer(offset: int, value: bytes) -> Any:
        offered.append(offset)
        replica.read_offset = offset
        return type("Outcome", (), {"reading": None})

    replica.offer = offer  # type: ignore[method-assign, assignment]
    database = following(replica, log, note=lambda text, **_: notes.append(text), now_s=lambda: now_s[0], sleep=sleep)
    replica.read_offset, log.known = 2, 1
    assert database.has_gap(4)
    database.fill(4)
    assert offered == [3]
    assert "trying again" in notes[0]
    replica.read_offset, log.known = 2, 1
    now_s[0] = END_BEHIND_WAIT_S
    database._sleep = lambda seconds: now_s.__setitem__(0, now_s[0] + seconds)
    with pytest.raises(AheadOfLog):
        database.fill(4)


def test_a_record_that_is_left_to_a_leader_which_resigns_is_read_before_the_next(
    log: CutOff, monkeypatch: pytest.MonkeyPatch
):
    """The leader resigns at the worst moment: what it left lies behind a gap, which is no reason to stop."""
    replica = Replica(Identity(cluster="c", shard=0, shards=1, node="n1"), FAMILIES, MemoryStore(FAMILIES.names))
    offered: list[int] = []

    def offer(offset: int, value: bytes) -> Any:
        assert offset == replica.read_offset + 1, "AHEAD_OF_LOG"
        offered.append(offset)
        replica.read_offset = offset
        return type("Outcome", (), {"reading": None})

    replica.offer = offer  # type: ignore[method-assign, assignment]
    answers = iter([True, False, False])
    fatal: list[BaseException] = []
    database = following(replica, log)
    monkeypatch.setattr(database.loop, "leaves_to_leader", lambda _: next(answers))
    follower = Follower("log", "audit", {0: database}, lambda *_, **__: None, fatal.append)
    replica.read_offset = 0
    asyncio.run(follower.take(0, 3, b"3"))
    assert (offered, fatal) == ([], [])
    asyncio.run(follower.take(0, 4, b"4"))
    assert (offered, fatal) == ([1, 2, 3, 4], [])
