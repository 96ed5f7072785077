"""One connection that a datanode serves: defects, refusals and counts, on real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire.connection import ServedConnection
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.counters import Counters
from datanode_processors.wire.wire import Wire, connect, error_frame, read_error
from schemas import stream_errors as codes
from schemas.records.datanode import BlocksWritten, GetBlock
from schemas.records.packets import Kind
from tests.support.datanodes.refusals import refused
from tests.support.datanodes.streams import (
    CONTAINER,
    PARTITION,
    TIMEOUT_S,
    Client,
    Datanode,
    blocks_together,
    routes_of,
)
from tests.support.local.waiting import eventually

GET = GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Datanode]:
    made = Datanode("dn1", tmp_path, WireLimits(max_streams=1, linger_s=0.1, stop_grace_s=0.1))
    yield made
    made.stop()


def defect(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("by nought")


def test_a_defect_in_a_stream_is_told_and_logged_and_ends_the_connection(node: Datanode) -> None:
    node.pipelines.check_stream = defect  # type: ignore[method-assign]
    client = Client(node.address)
    error = refused(lambda: client.open(routes_of([node], [[]])))
    assert (error.code, error.datanode) == (codes.FAILED, "dn1")
    assert error.message == "ZeroDivisionError in datanode dn1; its log says more"
    eventually(lambda: node.server.snapshot().connections == 0)
    assert node.notes == ["defect in a stream of client: ZeroDivisionError('by nought')"]
    counts = node.server.snapshot()
    assert (counts.streams, counts.streams_opened, counts.streams_failed) == (0, 1, 1)
    client.close()


def test_a_defect_in_a_request_is_told_and_logged_and_the_connection_goes_on(node: Datanode) -> None:
    node.pipelines.handle = defect  # type: ignore[method-assign]
    client = Client(node.address)
    for number in (1, 2):
        frame = client.request(GET)
        error = read_error(frame)
        assert (frame.header.kind, frame.header.sequence) == (Kind.ERROR, number)
        assert (error.code, error.message) == (codes.FAILED, "ZeroDivisionError in datanode dn1; its log says more")
    assert node.notes == ["defect in a request of client: ZeroDivisionError('by nought')"] * 2
    assert node.server.snapshot().requests == 2
    client.close()


def test_a_defect_before_a_peer_is_known_is_a_strangers(node: Datanode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServedConnection, "_hear", defect)
    wire = connect(node.address, TIMEOUT_S)
    while (frame := wire.wait_frame(TIMEOUT_S)).header.kind is Kind.HELLO:
        pass
    assert read_error(frame).code == codes.FAILED
    eventually(lambda: node.server.snapshot().connections == 0)
    assert node.notes == ["defect in a connection of a stranger: ZeroDivisionError('by nought')"]
    wire.close()


def test_a_defect_between_two_requests_is_the_peers(node: Datanode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServedConnection, "_serve_frame", defect)
    client = Client(node.address)
    assert read_error(client.request(GET)).code == codes.FAILED
    eventually(lambda: node.notes == ["defect in a connection of client: ZeroDivisionError('by nought')"])
    client.close()


def test_a_peer_that_greets_with_an_error_is_told_it_back(node: Datanode) -> None:
    wire = connect(node.address, TIMEOUT_S)
    said = BlockError("NOT_NOW", "as if", hint="later", datanode="dn7")
    wire.wait_send(error_frame("dn7", said), timeout_s=TIMEOUT_S)
    while (frame := wire.wait_frame(TIMEOUT_S)).header.kind is Kind.HELLO:
        pass
    error = read_error(frame)
    assert (error.code, error.message, error.hint, error.datanode) == ("NOT_NOW", "as if", "later", "dn7")
    eventually(lambda: node.server.snapshot().connections == 0)
    wire.close()


def test_blocks_that_are_written_together_count_as_a_stream(node: Datanode) -> None:
    request = blocks_together(routes_of([node], [[]]), [(1, b"data")])
    client = Client(node.address)
    assert client.request(request).header.kind is Kind.REPLY
    counts = node.server.snapshot()
    assert (counts.streams, counts.streams_opened, counts.streams_completed) == (0, 1, 1)
    other = Client(node.address)
    other.open(routes_of([node], [[]]), block=2)
    error = read_error(client.request(request))
    assert error.code == codes.OVERLOADED, "there is room for one stream"
    other.close()
    client.close()


class Alone:
    """One end of a connection that is served, and a datanode of which little is asked."""

    def __init__(self, node: Datanode) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        self.counters = Counters()
        host: Any = node.server._node
        self.served = ServedConnection(host, Wire(ours), self.counters, lambda *_, **__: None)


def test_a_datanode_that_stops_writes_no_more_blocks_together(node: Datanode) -> None:
    alone = Alone(node)
    request = blocks_together(routes_of([node], [[]]), [(1, b"data")])
    frame: Any = None
    answer = alone.served._write_together(frame, request)
    assert isinstance(answer, BlocksWritten)
    alone.served.stop()
    error = refused(lambda: alone.served._write_together(frame, request))
    assert (error.code, error.message) == (codes.STOPPING, "datanode dn1 stops")
    assert alone.counters.snapshot(0).streams_opened == 1
    alone.theirs.close()
    alone.served.wire.close()


def test_a_connection_says_whether_a_stream_is_open(node: Datanode) -> None:
    client = Client(node.address)
    eventually(lambda: len(node.server._connections) == 1)
    ((served, thread),) = node.server._connections.items()
    assert not served.streaming
    assert thread.daemon, "it keeps no process"
    client.open(routes_of([node], [[]]))
    assert served.streaming
    client.send(Kind.END, offset=0)
    client.until_end()
    eventually(lambda: not served.streaming)
    client.close()
