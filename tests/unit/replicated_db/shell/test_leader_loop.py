"""When the follower of a leader's node may rest, by what the leader's loop says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event

import pytest

from replicated_db.core.applying.replica import Identity
from replicated_db.core.leading.leader import LeaderLimits
from replicated_db.core.tables.memory import ManualClock, MemoryLog, MemoryStore, SequenceIds
from replicated_db.shell.database.embedded import EmbeddedDatabase
from replicated_db.shell.leader_loop import QUIET_MS, LeaderLoop
from stratolog.local.processes import wait_until
from tests.support.replicated.kit import START_MS

DEADLINE_S = 30.0


class Leading:
    """A database that leads, and what its loop says of the follower."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=START_MS)
        self.said: list[bool] = []
        self.hold = Event()
        """Set: the loop's thread stands still when it says the next thing."""
        self.held, self.release = Event(), Event()
        self.database = EmbeddedDatabase.open(
            Identity(cluster="c", shard=0, shards=1, node="a"), ["rows"], log=MemoryLog(self.clock), replicas=["a"],
            store=lambda families: MemoryStore(families.names), clock=self.clock, ids=SequenceIds(seed=1),
            limits=LeaderLimits(scrub_interval_ms=0),
        )  # fmt: skip
        self.loop: LeaderLoop = self.database.loop
        self.loop.on_rest = self.on_rest

    def on_rest(self, rests: bool) -> None:
        self.said.append(rests)
        if self.hold.is_set():
            self.hold.clear()
            self.held.set()
            self.release.wait(DEADLINE_S)

    def write(self) -> None:
        self.database.submit([self.database.put("rows", b"key", b"value")]).result(DEADLINE_S)

    def until(self, condition: Callable[[], bool]) -> None:
        assert wait_until(condition, DEADLINE_S, interval_s=0.001), self.said

    def fall_quiet(self) -> None:
        """Let time pass, in steps: a barrier is due first."""

        def quiet() -> bool:
            if self.said[-1:] == [False]:
                return self.loop.turned_ago_ms() == 0
            self.clock.advance(QUIET_MS // 10)
            return False

        assert wait_until(quiet, DEADLINE_S, interval_s=0.03), self.said


@pytest.fixture
def leading() -> Iterator[Leading]:
    found = Leading()
    found.database.lead()
    found.until(lambda: found.said == [True])
    yield found
    found.release.set()
    found.database.close()


def test_it_rests_while_the_leader_appends_and_goes_on_when_it_has_been_quiet(leading: Leading):
    leading.write()
    assert leading.said == [True]
    leading.fall_quiet()
    assert leading.said == [True, False]
    leading.write()
    leading.until(lambda: leading.said == [True, False, True])


def test_it_goes_on_when_the_leadership_ends(leading: Leading):
    leading.database.resign()
    leading.until(lambda: not leading.loop.leading and leading.said[-1] is False)


def test_it_goes_on_when_the_leaders_thread_stands_still(leading: Leading):
    """Another node leads meanwhile, and the thread may never come back."""
    leading.fall_quiet()
    leading.loop.look()
    assert leading.said == [True, False], "nothing to say"
    leading.hold.set()
    leading.database.submit([leading.database.put("rows", b"key", b"other")])
    assert leading.held.wait(DEADLINE_S)
    assert leading.said == [True, False, True]
    leading.loop.look()
    assert leading.said == [True, False, True], "it has turned a moment ago"
    leading.clock.advance(QUIET_MS + 1)
    leading.loop.look()
    assert leading.said == [True, False, True, False]
    leading.loop.look()
    assert leading.said[3:] == [False, False], "saying it twice does no harm"


def test_the_logs_time_goes_on_by_the_time_since_boot_whatever_the_wall_clock_says(leading: Leading):
    leading.write()
    written_ms = leading.loop.replica.position.timestamp_ms
    leading.clock.now_ms += 25 * 3_600_000
    assert leading.loop.log_time_ms() == written_ms
    leading.clock.elapsed += 60_000
    assert leading.loop.log_time_ms() == written_ms + 60_000, "without a write, too"
    leading.database.resign()
    leading.until(lambda: leading.loop.log_time_ms() == leading.loop.replica.position.timestamp_ms)
