"""A client with both doors: a node on real sockets, and the broker that librdkafka brings along."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from producers.direct.brokers_word import BrokersWord
from producers.direct.direct_transport import DirectTransport
from producers.direct.fallback import FallbackConnection
from producers.requests.core.calls import Call
from producers.requests.transport import Transport
from schemas.codecs.codec import decode_as, encode
from schemas.codecs.envelopes import requests_in, responses_in
from schemas.records.door import DoorRead
from schemas.records.messages import CreateVolume, Response
from schemas.topics import OM_REQUESTS, OM_RESPONSES
from stratolog.local.ports import free_ports
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker
from tests.support.local.waiting import eventually
from tests.support.om.door_site import DoorSite
from tests.support.om.om_world import request_of

CLIENT_ID = bytes(15) + b"\x05"
PARTITION = 5 % PARTITIONS
WAIT_S = 30.0
READ = DoorRead(consistency="stale", index=0, volume="vol1", bucket="bucket1", keys=["k"])


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as running:
        running.create(OM_REQUESTS, OM_RESPONSES)
        yield running


@pytest.fixture
def site() -> Iterator[DoorSite]:
    with DoorSite() as found:
        yield found


Open = Callable[..., FallbackConnection]


@pytest.fixture
def connect(broker: MemoryBroker, site: DoorSite) -> Iterator[Open]:
    """Makes connections; the brokers' topics count as having ``shards`` partitions, and the node tells of one."""
    made: list[FallbackConnection] = []

    def begin(shards: int = 1, address: str = "", known: list[str] | None = None) -> FallbackConnection:
        kafka = Transport(broker.bootstrap_servers, CLIENT_ID, message_timeout_ms=5_000, connect_timeout_ms=30_000)
        kafka.shards = shards
        nodes = DirectTransport([address or site.address], CLIENT_ID, connect_timeout_ms=None)
        both = FallbackConnection(kafka, nodes, None if known is None else BrokersWord(lambda _: known))
        made.append(both)
        return both

    yield begin
    for one in made:
        one.close()


def call(number: int, shard: int = 0) -> Call:
    body = CreateVolume(volume=f"v{number}")
    return Call(
        call_id=number, shard=shard, body=body, value=encode(request_of(body)), done=lambda _: None, due_ms=0.0,
        deadline_ms=0.0, proof=None, trace_key=None,
    )  # fmt: skip


def received(both: FallbackConnection, count: int, *, gather: bool = False) -> list[bytes]:
    """Return records of replies, at least ``count``."""
    found: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline_s:
        both.serve()
        found += both.receive(50, gather=gather)
    return found


def until(both: FallbackConnection, holds: Callable[[], bool]) -> None:
    """Do the doors' work until something holds."""

    def worked() -> bool:
        both.serve()
        both.receive(1, gather=False)
        return holds()

    eventually(worked, timeout_s=WAIT_S)


def test_calls_go_to_the_leader_that_is_reached_and_to_no_broker(
    broker: MemoryBroker, site: DoorSite, connect: Open
) -> None:
    leader = site.lead()
    both = connect()
    before = broker.count(OM_REQUESTS, 0)
    until(both, lambda: both._is_direct(0))
    both.send([call(1), call(2)])
    answers = [decode_as(Response, one) for record in received(both, 1) for one in responses_in(record)]
    assert {answer.status for answer in answers} == {"OK"}
    eventually(lambda: len(leader.executed) == 2, timeout_s=WAIT_S)
    assert [request.body for request in leader.executed] == [CreateVolume(volume="v1"), CreateVolume(volume="v2")]
    assert broker.count(OM_REQUESTS, 0) == before


def test_without_a_leader_that_is_reached_calls_go_through_the_brokers_and_replies_come_by_both(
    broker: MemoryBroker, site: DoorSite, connect: Open
) -> None:
    both = connect()
    before = broker.count(OM_REQUESTS, 0)
    until(both, lambda: both.look_up(READ, 0) is not None)  # the node is reached, and nobody leads
    both.send([call(1)])
    [record] = broker.read(OM_REQUESTS, 1, 0, before)
    assert requests_in(record.value() or b"") == [call(1).value]
    leader = site.lead()
    until(both, lambda: both._is_direct(0))
    both.send([call(2)])
    broker.append(OM_RESPONSES, b"by the brokers", partition=PARTITION, key=CLIENT_ID)
    found = received(both, 2, gather=True)
    assert b"by the brokers" in found
    assert len(found) == 2
    assert [request.body for request in leader.executed] == [CreateVolume(volume="v2")]
    assert broker.count(OM_REQUESTS, 0) == before + 1


def test_while_no_node_is_reached_replies_come_from_the_brokers(broker: MemoryBroker, connect: Open) -> None:
    both = connect(address=f"127.0.0.1:{free_ports(1)[0]}")
    both.send([call(1)])
    broker.append(OM_RESPONSES, b"1", b"2", partition=PARTITION, key=CLIENT_ID)
    assert received(both, 2) == [b"1", b"2"]
    assert both.look_up(READ, 0) is None
    began_s = time.monotonic()
    assert both.receive(120, gather=True) == []
    assert time.monotonic() - began_s >= 0.11, "who gathers waits its time out"


def test_nodes_that_tell_of_another_number_of_shards_get_nothing(
    broker: MemoryBroker, site: DoorSite, connect: Open
) -> None:
    leader = site.lead()
    both = connect(shards=PARTITIONS)
    before = broker.count(OM_REQUESTS, 0)
    until(both, lambda: both._direct.reaches(0))
    both.send([call(1)])
    assert len(broker.read(OM_REQUESTS, 1, 0, before)) == 1
    assert both.look_up(READ, 0) is None
    assert leader.executed == []


def test_nodes_that_the_brokers_do_not_know_get_nothing_though_they_have_as_many_shards(
    broker: MemoryBroker, site: DoorSite, connect: Open
) -> None:
    leader = site.lead()
    both = connect(known=["127.0.0.1:1"])
    before = broker.count(OM_REQUESTS, 0)
    until(both, lambda: both._direct.reaches(0))
    assert both._direct.shards == both.shards
    until(both, lambda: both._word is not None and both._word._answered)
    both.send([call(1)])
    assert len(broker.read(OM_REQUESTS, 1, 0, before)) == 1
    assert both.look_up(READ, 0) is None
    assert leader.executed == []


def test_nodes_that_the_brokers_know_get_the_calls(site: DoorSite, connect: Open) -> None:
    leader = site.lead()
    both = connect(known=[site.address])
    until(both, lambda: both._is_direct(0))
    both.send([call(1)])
    assert len(received(both, 1)) == 1
    assert both.look_up(READ, 0) is not None
    assert [request.body for request in leader.executed] == [CreateVolume(volume="v1")]


def test_both_doors_are_opened_anew_and_closed(broker: MemoryBroker, site: DoorSite, connect: Open) -> None:
    site.lead()
    both = connect()
    until(both, lambda: both._is_direct(0))
    before = both._kafka
    assert isinstance(before, Transport)
    reader = before._consumer
    both.renew()
    assert before._consumer is not reader
    until(both, lambda: both._is_direct(0))
    assert (both.take_lost(), both.take_lost()) == ({0}, set()), "what went by the old way is not answered any more"
    both.close()
    eventually(lambda: site.door.connections == 0, timeout_s=WAIT_S)
    with pytest.raises(RuntimeError):
        before._consumer.poll(0)
