"""Which way a client's requests go, by what it was given: brokers, nodes, or both."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import closing

import pytest

from producers import connecting
from producers.connecting import connect
from producers.direct.direct_transport import DirectTransport
from producers.direct.fallback import FallbackConnection
from producers.errors import NotConnected
from producers.requests.engine import RequestSettings, make_settings
from producers.requests.transport import Transport
from schemas.kafka.connection import Brokers
from schemas.topics import OM_REQUESTS, OM_RESPONSES
from stratolog.local.ports import free_ports
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.om.door_site import DoorSite

CLIENT_ID = bytes(16)


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as running:
        running.create(OM_REQUESTS, OM_RESPONSES)
        yield running


@pytest.fixture
def site() -> Iterator[DoorSite]:
    with DoorSite() as found:
        yield found


def settings(brokers: str = "", *nodes: str) -> RequestSettings:
    return make_settings(
        brokers, caller=None, deadline_ms=1000, max_in_flight=1, max_linger_ms=0, connect_timeout_ms=30_000,
        nodes=nodes,
    )  # fmt: skip


def test_brokers_alone_are_asked(broker: MemoryBroker) -> None:
    with closing(connect(settings(broker.bootstrap_servers), CLIENT_ID)) as found:
        assert isinstance(found, Transport)


def test_nodes_alone_are_asked_and_must_answer(site: DoorSite) -> None:
    with closing(connect(settings("", site.address), CLIENT_ID)) as found:
        assert isinstance(found, DirectTransport)
        assert found.shards == 1
    (port,) = free_ports(1)
    nobody = make_settings(
        "", caller=None, deadline_ms=1000, max_in_flight=1, max_linger_ms=0, connect_timeout_ms=1,
        nodes=[f"127.0.0.1:{port}"],
    )  # fmt: skip
    with pytest.raises(NotConnected, match="ECONNREFUSED"):
        connect(nobody, CLIENT_ID)


def test_with_both_the_brokers_must_answer_and_the_nodes_may(broker: MemoryBroker) -> None:
    (port,) = free_ports(1)
    with closing(connect(settings(broker.bootstrap_servers, f"127.0.0.1:{port}"), CLIENT_ID)) as found:
        assert isinstance(found, FallbackConnection)


def test_with_both_the_brokers_are_asked_which_nodes_are_theirs(
    broker: MemoryBroker, site: DoorSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: queue.SimpleQueue[tuple[Brokers, float]] = queue.SimpleQueue()

    def known_nodes(brokers: Brokers, timeout_s: float) -> list[str]:
        asked.put((brokers, timeout_s))
        return ["other:1"]

    monkeypatch.setattr(connecting, "known_nodes", known_nodes)
    site.lead()
    with closing(connect(settings(broker.bootstrap_servers, site.address), CLIENT_ID)) as found:
        assert asked.get(timeout=30) == (broker.bootstrap_servers, 5.0)
        assert isinstance(found, FallbackConnection)
        assert found._word is not None
        assert not found._word.passes(site.address)
