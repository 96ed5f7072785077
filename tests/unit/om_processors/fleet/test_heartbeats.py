"""What a node makes of the datanodes' heartbeats, read from a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import RLock
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer

from om_processors.fleet import heartbeats
from om_processors.fleet.core.fleet import Picture
from om_processors.fleet.heartbeats import NOTHING, FleetView, LatestAllocation
from replicated_db.shell.system import SystemClock
from schemas.codecs.codec import encode
from schemas.features import INITIAL, LATEST
from schemas.topics import DN_HEARTBEATS
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker
from tests.support.local.waiting import eventually
from tests.support.om.fleets import CLUSTER, heartbeat
from tests.support.om.om_world import World

TIMEOUT_MS = 60_000


class SetClock(SystemClock):
    """The system's, whose wall clock somebody sets."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class Case:
    """A node that listens, beside a shard 0 without pipelines."""

    def __init__(self, broker: MemoryBroker, servers: str = "") -> None:
        self.broker = broker
        self.noted: list[str] = []
        self.failures: list[BaseException] = []
        self.allocation = LatestAllocation()
        self.state = SimpleNamespace(feature_level=INITIAL)
        config: Any = SimpleNamespace(
            cluster=CLUSTER, datanode_timeout_ms=TIMEOUT_MS, block_bytes=1, container_bytes=1 << 30,
            bootstrap_servers=servers or broker.bootstrap_servers,
        )  # fmt: skip
        world = World().make()
        replica: Any = SimpleNamespace(
            lock=RLock(), rows=world.tables, state=self.state, position=SimpleNamespace(index=0)
        )  # fmt: skip
        self.clock = SetClock()
        self.view = FleetView(config, replica, self.allocation, self.clock, self.noted.append, self.failures.append)

    def say(self, name: str, partition: int = 0, **changed: Any) -> None:
        self.broker.append(DN_HEARTBEATS, encode(replace(heartbeat(name), **changed)), partition=partition)

    def hear(self, name: str, partition: int = 0) -> None:
        """Speak until the node has heard it: it begins at the end of what was said."""

        def heard() -> bool:
            self.say(name, partition)
            return name in self.alive()

        eventually(heard, timeout_s=10)

    def alive(self) -> set[str]:
        return {name for name in ("dn1", "dn2", "dn3", "dn4") if self.view.picture.member(name).alive}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBroker]:
    monkeypatch.setattr(heartbeats, "POLL_S", 0.01)
    monkeypatch.setattr(heartbeats, "REFRESH_MS", 1)
    monkeypatch.setattr(heartbeats, "RETRY_S", 0.01)
    with memory_broker() as broker:
        broker.create(DN_HEARTBEATS)
        yield broker


@pytest.fixture
def case(broker: MemoryBroker) -> Iterator[Case]:
    case = Case(broker)
    yield case
    case.view.close()
    assert case.failures == []


def test_before_the_first_picture_nothing_is_allocated(case: Case):
    assert case.allocation.choose() is NOTHING
    assert not case.view.picture.member("dn1").alive
    assert isinstance(case.view.refresh(), Picture)
    assert case.allocation.choose() is not NOTHING
    assert case.allocation.choose() == NOTHING


def test_who_speaks_in_any_partition_is_alive_soon(case: Case):
    case.view.start()
    for partition, name in enumerate(("dn1", "dn2", "dn3", "dn4")):
        case.hear(name, partition % PARTITIONS)
    assert case.noted == []


@pytest.mark.parametrize("hours", [25, -25])
def test_who_speaks_is_alive_whatever_this_nodes_wall_clock_says(case: Case, hours: int):
    case.clock.ahead_ms = hours * 3_600_000
    case.view.start()
    case.hear("dn1")
    case.clock.ahead_ms = -case.clock.ahead_ms
    case.hear("dn2")
    silent_ms = [case.view.refresh().member(name).silent_ms for name in ("dn1", "dn2")]
    assert max(silent_ms) < TIMEOUT_MS, "a clock that is ahead made it the whole time-out"


def test_what_is_unreadable_and_of_other_clusters_changes_nothing(case: Case):
    case.view.start()
    case.hear("dn1")
    case.broker.append(DN_HEARTBEATS, b"nonsense", None)
    case.say("dn2", cluster="other")
    case.hear("dn3")
    assert case.alive() == {"dn1", "dn3"}
    assert [said.startswith(f"a heartbeat on {DN_HEARTBEATS} is unreadable: ") for said in case.noted] == [True, True]


def test_a_view_that_hears_nothing_begins_again(case: Case, monkeypatch: pytest.MonkeyPatch):
    """A broker that is cut off from the others answers with nothing: the view asks another one."""
    monkeypatch.setattr(heartbeats, "SILENT_BROKER_MS", 200)
    begun: list[Any] = []

    def begin(settings: dict[str, Any]) -> Consumer:
        begun.append(settings)
        return Consumer(settings)

    monkeypatch.setattr(heartbeats, "Consumer", begin)
    case.view.start()
    eventually(lambda: len(begun) > 1)
    assert case.noted == []
    monkeypatch.setattr(heartbeats, "SILENT_BROKER_MS", 10**9)
    case.hear("dn2")


def test_without_brokers_it_says_so_and_tries_again(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heartbeats, "REQUEST_TIMEOUT_S", 0.01)
    case = Case(broker, servers="127.0.0.1:1")
    case.view.start()
    eventually(lambda: len(case.noted) > 1)
    case.view.close()
    assert all("heartbeats of datanodes: " in said and said.endswith("; trying again") for said in case.noted)
    assert case.failures == []


def test_a_picture_of_the_newest_level_knows_generations(case: Case):
    case.view.refresh()
    case.state.feature_level = LATEST
    assert isinstance(case.view.refresh(), Picture)


def test_a_first_picture_comes_at_once_and_others_now_and_then(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heartbeats, "REFRESH_MS", 1_000_000_000)
    seen: list[int] = []
    monkeypatch.setattr(case.view, "refresh", lambda: seen.append(1))
    case.view.start()
    eventually(lambda: len(seen) == 1)
