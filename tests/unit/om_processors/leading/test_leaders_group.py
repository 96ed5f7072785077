"""A node's membership of the leaders' group: a real consumer on a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, TopicPartition

from om_processors.leading import leaders_group
from om_processors.leading.core.leadership_events import (
    GroupSettled,
    GroupUnsettled,
    ShardsAssigned,
    ShardsLost,
    ShardsRevoked,
)
from om_processors.leading.leaders_group import LeadersGroup, consumer_settings
from schemas.topics import OM_REQUESTS
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker

SESSION_MS = 6_000


class Case:
    """A member, and what it says; ``told`` also has "drain" where it drains."""

    def __init__(self, broker: MemoryBroker) -> None:
        config: Any = SimpleNamespace(
            bootstrap_servers=broker.bootstrap_servers, session_timeout_ms=SESSION_MS, node="n1", address="n1:1"
        )
        self.config = config
        self.told: list[Any] = []
        self.group = LeadersGroup(config, self.told.append)

    def first(self, kind: type) -> Any:
        return next((one for one in self.told if isinstance(one, kind)), None)


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        broker.create(OM_REQUESTS)
        yield broker


@pytest.fixture
def case(broker: MemoryBroker) -> Case:
    return Case(broker)


def test_a_member_gets_shards_settles_drains_and_leaves(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leaders_group, "STATISTICS_MS", 20)
    monkeypatch.setattr(leaders_group, "POLL_S", 0.05)
    case.group.stay(lambda: case.first(GroupSettled) is None, lambda: case.told.append("drain"))
    everything = tuple(range(PARTITIONS))
    assert sorted(case.first(ShardsAssigned).shards) == list(everything)
    assert case.first(GroupUnsettled) is not None
    order = [one for one in case.told if not isinstance(one, GroupSettled | GroupUnsettled)]
    assert [one if isinstance(one, str) else type(one) for one in order] == [ShardsAssigned, "drain", ShardsRevoked]
    assert sorted(case.first(ShardsRevoked).shards) == list(everything)


def test_who_is_not_wanted_drains_and_leaves_at_once(case: Case):
    case.group.stay(lambda: False, lambda: case.told.append("drain"))
    assert case.told == ["drain"]


class Assigned:
    """A consumer that notes what it is given, pauses and gives back."""

    def __init__(self) -> None:
        self.done: list[tuple[str, list[tuple[int, int]]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda partitions: self.done.append((name, [(one.partition, one.offset) for one in partitions]))


def test_shards_are_taken_at_their_end_and_never_read(case: Case):
    consumer: Any = Assigned()
    case.group.on_assigned(consumer, [TopicPartition(OM_REQUESTS, 2, 7)])
    at_end = [(2, OFFSET_END)]
    assert consumer.done == [("incremental_assign", at_end), ("pause", at_end)]
    case.group.on_assigned(consumer, [])
    assert consumer.done[2:] == [("incremental_assign", [])], "librdkafka refuses to pause nothing"
    assert case.told == [ShardsAssigned(shards=(2,)), ShardsAssigned(shards=())]


@pytest.mark.parametrize(("lost", "kind"), [(False, ShardsRevoked), (True, ShardsLost)])
def test_shards_that_go_are_told_of_and_then_given_back(case: Case, lost: bool, kind: type):
    consumer: Any = Assigned()
    case.group = LeadersGroup(case.config, lambda event: case.told.append((event, list(consumer.done))))
    act = case.group.on_lost if lost else case.group.on_revoked
    act(consumer, [TopicPartition(OM_REQUESTS, 1, 5)])
    assert case.told == [(kind(shards=(1,)), [])]
    assert consumer.done == [("incremental_unassign", [(1, 5)])]


@pytest.mark.parametrize("said", ["{}", '{"cgrp": {}}', '{"cgrp": {"join_state": "wait-join"}}'])
def test_a_consumer_that_is_no_settled_member_says_so(case: Case, said: str):
    case.group.on_statistics(said)
    assert [type(one) for one in case.told] == [GroupUnsettled]


@pytest.mark.parametrize(("session_ms", "heartbeat_ms"), [(6_000, 1_200), (500, 100), (300, 100)])
def test_a_member_beats_five_times_in_a_session_but_not_too_often(case: Case, session_ms: int, heartbeat_ms: int):
    case.config.session_timeout_ms = session_ms
    found = consumer_settings(case.config, "group")
    assert (found["session.timeout.ms"], found["heartbeat.interval.ms"]) == (session_ms, heartbeat_ms)
    assert (found["group.id"], found["bootstrap.servers"]) == ("group", case.config.bootstrap_servers)
    assert found["enable.auto.commit"] is False, "it reads nothing, so it has nothing to commit"
