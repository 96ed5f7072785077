"""The nodes that the brokers name: members of the leaders' group, by the addresses that their names hold."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from producers.errors import NotConnected
from producers.reads import leaders_group
from producers.reads.leaders_group import NoNode, find_nodes, is_address, known_nodes
from schemas.leader_names import member_name
from schemas.topics import LEADER_GROUP


class Group:
    """The brokers' side: what is said of the leaders' group."""

    def __init__(self, members: list[str] | Exception) -> None:
        self.members = members
        self.asked: list[tuple[list[str], float]] = []

    def __call__(self, _: Any) -> Group:
        return self

    def describe_consumer_groups(self, groups: list[str], *, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked.append((groups, request_timeout))
        answer: Future[Any] = Future()
        if isinstance(self.members, Exception):
            answer.set_exception(self.members)
        else:
            members = [SimpleNamespace(client_id=name) for name in self.members]
            answer.set_result(SimpleNamespace(members=members))
        return {LEADER_GROUP: answer}

    def poll(self, _: float) -> int:
        return 0


@pytest.fixture
def brokers() -> Iterator[str]:
    """Something that listens: that is looked at first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def found(monkeypatch: pytest.MonkeyPatch, brokers: str, members: list[str] | Exception) -> tuple[list[str], Group]:
    group = Group(members)
    monkeypatch.setattr(leaders_group, "AdminClient", group)
    return find_nodes(brokers, 2.5), group


def test_the_members_are_the_nodes_in_the_order_of_their_names(monkeypatch: pytest.MonkeyPatch, brokers: str) -> None:
    members = [member_name("om2", "127.0.0.1:2"), member_name("om1", "127.0.0.1:1")]
    nodes, group = found(monkeypatch, brokers, members)
    assert nodes == ["127.0.0.1:1", "127.0.0.1:2"]
    ((groups, timeout_s),) = group.asked
    assert groups == [LEADER_GROUP]
    assert 0 < timeout_s <= 2.5


def test_members_without_an_address_are_passed_over(monkeypatch: pytest.MonkeyPatch, brokers: str) -> None:
    members = ["om1", "a stranger@http://", member_name("om2", "127.0.0.1:2")]
    assert found(monkeypatch, brokers, members)[0] == ["127.0.0.1:2"]


def test_nodes_without_any_address_are_named(monkeypatch: pytest.MonkeyPatch, brokers: str) -> None:
    with pytest.raises(NotConnected, match="nodes om1, om2 do not tell the brokers where they are: give read_from"):
        found(monkeypatch, brokers, ["om2", "om1"])


@pytest.mark.parametrize("members", [[], KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND))])
def test_a_group_without_members_is_told(
    monkeypatch: pytest.MonkeyPatch, brokers: str, members: list[str] | Exception
) -> None:
    with pytest.raises(NoNode, match="no node is in the group of those that may lead"):
        found(monkeypatch, brokers, members)
    assert known_nodes(brokers, 2.5) == []


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._TRANSPORT)), TimeoutError("no answer")])
def test_brokers_that_do_not_tell_are_named(
    monkeypatch: pytest.MonkeyPatch, brokers: str, error: Exception
) -> None:  # fmt: skip
    with pytest.raises(NotConnected, match=f"brokers {brokers} do not tell which nodes there are") as failed:
        found(monkeypatch, brokers, error)
    assert not isinstance(failed.value, NoNode)
    assert failed.value.__cause__ is error


@pytest.mark.parametrize(("told", "is_one"), [("h:1", True), ("http://h:1", True), ("", False), ("ftp://h", False)])
def test_only_an_address_of_http_is_one(told: str, is_one: bool) -> None:
    assert is_address(told) is is_one
