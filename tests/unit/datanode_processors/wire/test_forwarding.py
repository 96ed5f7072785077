"""One stream at a datanode between a client and a child: real sockets and files; the child is played, frame by frame."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire import forwarding
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.forwarding import ACK_EVERY_BYTES, Forwarding, put_on_end, stream_request
from datanode_processors.wire.wire import Wire, WireClosed, read_error
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.records.datanode import OpenStream, PutBlock, Route
from schemas.records.packets import Frame, FrameBuffer, FrameHeader, Kind, encode_frame
from tests.support.datanodes.streams import (
    CELL,
    CONTAINER,
    PARTITION,
    TIMEOUT_S,
    Client,
    Datanode,
    hello_frame,
    put_block,
    routes_of,
)
from tests.support.local.waiting import eventually
from tests.support.sdk.written import some_bytes

MIB = 1024 * 1024


class Below:
    """A datanode below that greets and acknowledges OPEN; it reads while ``reads`` is set, and says what it is told to."""

    name = "below"

    def __init__(self) -> None:
        self.reads = threading.Event()
        self.reads.set()
        self.heard: list[FrameHeader] = []
        self.data = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sock: socket.socket | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._sock, _ = self._listener.accept()
            self._sock.sendall(hello_frame(self.name))
            frames = FrameBuffer()
            frames.greeting = True
            while count := self._sock.recv_into(frames.space()):
                frames.received(count)
                while frame := frames.frame():
                    frames.greeting = False
                    self._take(frame)
                self.reads.wait()
        except OSError:
            pass

    def _take(self, frame: Frame) -> None:
        frame.check()
        if frame.header.kind is Kind.DATA:
            self.data += frame.payload
        if frame.header.kind is Kind.OPEN:
            self.acknowledge(frame.header.sequence, frame.header.offset)
        self.heard.append(frame.header)

    def acknowledge(self, sequence: int, offset: int) -> None:
        assert self._sock is not None
        self._sock.sendall(encode_frame(Kind.ACK, stream=1, sequence=sequence, offset=offset))

    def heard_end(self) -> FrameHeader:
        """Return END's header, once it has come whole."""
        eventually(lambda: self.heard and self.heard[-1].kind is Kind.END)
        return self.heard[-1]

    def close(self) -> None:
        self.reads.set()
        for sock in (self._sock, self._listener):
            if sock is not None:
                sock.close()


class World:
    """A datanode, the one below it, and a client that has opened a stream to both."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.node = Datanode("above", folder, replace(WireLimits(linger_s=0.1, stop_grace_s=0.1), **limits))
        self.below = Below()
        self.client = Client(self.node.address)
        self.client.open(routes_of([self.node, self.below], [[1], []]), window_bytes=256 * MIB)

    def hears(self) -> BlockError:
        """Return the error that the client is told, whatever it is told before."""
        while (frame := self.client.answer()).header.kind is Kind.ACK:
            pass
        error = read_error(frame)
        return BlockError(error.code, error.message, error.offset, error.hint, error.datanode)

    def send_until_it_blocks(self) -> None:
        """Send until the datanode takes no more, because the one below does not read."""
        self.below.reads.clear()
        sock, poll, data = self.client.wire.sock, select.poll(), bytes(MIB)
        poll.register(sock, select.POLLOUT)
        for number in range(64):
            left = memoryview(
                encode_frame(Kind.DATA, data, stream=1, sequence=2 + number, offset=number * MIB)
            )  # fmt: skip
            while left:
                if not poll.poll(300):
                    return
                try:
                    left = left[self.client.wire.send(left) :]
                except WireClosed:  # on a slow machine the datanode has given up already
                    return

    def close(self) -> None:
        self.client.close()
        self.below.close()
        self.node.stop()


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[World] = []

    def begin(**limits: Any) -> World:
        made.append(World(tmp_path, **limits))
        return made[-1]

    yield begin
    for world in made:
        world.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times for which streams have waited for an event."""
    found: list[float] = []
    real = Forwarding._wait

    def wait(self: Forwarding, timeout_s: float) -> None:
        found.append(timeout_s)
        real(self, timeout_s)

    monkeypatch.setattr(Forwarding, "_wait", wait)
    return found


@pytest.mark.parametrize("piece", [1000, 13])
def test_what_the_kernel_takes_in_pieces_arrives_whole_below(
    make: Make, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    world, data = make(end_timeout_s=5.0, stall_timeout_s=5.0), some_bytes(10_000)
    real = Wire.send
    monkeypatch.setattr(Wire, "send", lambda wire, part: real(wire, memoryview(part)[:piece]))
    world.client.data(data, offset=0, packet=4000)
    world.client.send(Kind.END, encode(put_block(data, 1)), offset=len(data))
    end = world.below.heard_end()
    assert bytes(world.below.data) == data
    world.below.acknowledge(end.sequence, end.offset)
    assert world.client.until_end().length == len(data)


def test_a_datanode_below_that_takes_nothing_is_waited_for_and_then_named(make: Make, waits: list[float]) -> None:
    world = make(stall_timeout_s=1.0)
    world.send_until_it_blocks()
    error = world.hears()
    assert (error.code, error.hint, error.datanode) == (
        stream_errors.DOWNSTREAM_FAILED, stream_errors.TIMED_OUT, "below",
    )  # fmt: skip
    assert "neither took nor said anything for 1 s" in error.message
    assert len(waits) < 500, "what the client sends meanwhile wakes nobody"


def test_a_client_that_leaves_while_the_one_below_takes_nothing_is_noticed_at_once(make: Make) -> None:
    world = make(stall_timeout_s=500.0)
    world.send_until_it_blocks()
    sock = world.client.wire.sock
    assert isinstance(sock, socket.socket)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    eventually(lambda: world.node.server.snapshot().streams == 0)
    assert world.node.server.snapshot().streams_reclaimed == 1


def test_one_that_was_slow_is_waited_for_in_peace_afterwards(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(stall_timeout_s=60.0, alive_s=0.01)
    real = Wire.send
    monkeypatch.setattr(Wire, "send", lambda wire, part: real(wire, memoryview(part)[:1000]))
    world.client.send(Kind.DATA, bytes(5000), offset=0)
    eventually(lambda: len(world.below.data) == 5000)
    for _ in range(5):  # signs of life come only when nothing has happened
        assert world.client.answer().header.offset == 0
    world.below.acknowledge(2, 5000)
    while world.client.answer().header.offset < 5000:
        pass


def test_a_client_that_never_pauses_is_acknowledged_after_each_mebibyte(make: Make, tmp_path: Path) -> None:
    node = Datanode("alone", tmp_path)
    client = Client(node.address)
    client.open(routes_of([node], [[]]))
    half, data = CELL // 2, bytes(MIB + CELL)
    frames = [
        encode_frame(Kind.DATA, data[at : at + CELL], stream=1, sequence=2 + number, offset=at)
        for number, at in enumerate(range(0, len(data), CELL))
    ]
    assert ACK_EVERY_BYTES == MIB
    # The beginning of a frame shows that more is on its way: without the rule nothing would be acknowledged yet.
    client.wire.wait_send(*frames[:-1], frames[-1][:half], timeout_s=TIMEOUT_S)
    while (acknowledged := client.answer().header.offset) < MIB:
        assert acknowledged > 0
    client.wire.wait_send(frames[-1][half:], timeout_s=TIMEOUT_S)
    assert client.answer().header.offset == len(data)
    client.close()
    node.stop()


def test_nothing_may_follow_end(make: Make) -> None:
    world = make()
    world.client.send(Kind.DATA, b"x" * 100, offset=0)
    world.client.send(Kind.END, offset=100)
    end = world.below.heard_end()
    world.client.send(Kind.DATA, b"y", offset=100)
    world.below.acknowledge(end.sequence - 1, 100)
    error = world.hears()
    assert error.code == stream_errors.OUT_OF_ORDER
    assert error.offset in {0, 100}, "what the one below has, as far as it was heard"
    assert "DATA before END was acknowledged" in error.message


def test_a_stream_that_has_not_ended_below_is_not_acknowledged(make: Make) -> None:
    world = make(stall_timeout_s=0.2, end_timeout_s=0.3)
    world.client.send(Kind.END, offset=0)
    world.below.heard_end()
    error = world.hears()
    assert (error.code, error.hint) == (stream_errors.DOWNSTREAM_FAILED, stream_errors.TIMED_OUT)
    assert "for 0.3 s" in error.message, "the time for a flush, not that for a packet"
    assert not world.node.pipelines.committed


def test_a_stream_waits_for_an_older_one_of_its_block_and_then_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "TAKEOVER_POLL_S", 0.001)
    node = Datanode("alone", tmp_path, WireLimits(takeover_wait_s=600.0, stop_grace_s=0.1))
    older, newer = Client(node.address), Client(node.address)
    older.open(routes_of([node], [[]]))
    opened = threading.Thread(target=lambda: newer.open(routes_of([node], [[]])), daemon=True)
    opened.start()
    eventually(lambda: node.server.snapshot().streams == 2)
    assert opened.is_alive()
    older.send(Kind.END, offset=0)
    older.until_end()
    opened.join(TIMEOUT_S)
    assert not opened.is_alive()
    newer.data(b"new", offset=0)
    newer.send(Kind.END, offset=3)
    newer.until_end()
    assert node.bytes_of() == b"new"
    older.close()
    newer.close()
    node.stop()


def test_a_block_is_let_go_of_before_it_is_committed(tmp_path: Path) -> None:
    node = Datanode("alone", tmp_path)
    real = node.pipelines.handle
    opened: list[int] = []

    def handle(request: object) -> object:
        with node.store.open_writer(CONTAINER, 1, 3, CELL, alive=lambda: True) as writer:
            opened.append(writer.position)
        return real(request)

    node.pipelines.handle = handle  # type: ignore[method-assign]
    client = Client(node.address)
    client.open(routes_of([node], [[]]))
    client.data(b"abc", offset=0)
    client.send(Kind.END, encode(put_block(b"abc", 1)), offset=3)
    client.until_end()
    assert opened == [3]
    client.close()
    node.stop()


def test_the_one_nearest_to_who_hangs_gives_up_first(tmp_path: Path) -> None:
    """Each datanode waits longer for a child that has children, until the stream is open."""
    node = Datanode("above", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    routes = [
        Route(datanode="above", address="127.0.0.1:1", children=["middle"]),
        Route(datanode="middle", address="127.0.0.1:1", children=["last"]),
        Route(datanode="last", address="127.0.0.1:1", children=[]),
    ]
    upstream = Wire(ours)
    opening = FrameHeader(kind=Kind.OPEN, stream=1, sequence=1, offset=0, length=0, crc=0)
    stream = Forwarding(node.server._node, upstream, opening, replace(OPENING, offset=0, routes=routes))
    (child,) = stream._children
    child.moved_at = stream._heard_at + 100.0
    assert stream._next_deadline(10.0) == (child.moved_at + 15.0, child)
    assert stream._next_deadline(10_000.0) == (stream._heard_at + WireLimits().idle_timeout_s, None)
    stream.state.on_child_ack("middle", replace(opening, kind=Kind.ACK))
    assert stream._next_deadline(10.0)[1] is None, "it owes nothing"
    stream.state.on_data(replace(opening, kind=Kind.DATA, sequence=2, length=5))
    assert stream._next_deadline(10.0) == (child.moved_at + 10.0, child), "it has opened its stream"
    stream.state.on_child_ack("middle", replace(opening, kind=Kind.ACK, offset=5))
    assert stream._next_deadline(10.0)[1] is None
    child.left = memoryview(b"not taken yet")
    assert stream._next_deadline(10.0) == (child.moved_at + 10.0, child)
    upstream.close()
    theirs.close()
    node.stop()


# ------------------------------------------------------------------------------------------------ what frames carry

OPENING = OpenStream(
    container_id=CONTAINER, local_id=1, partition=PARTITION, offset=512, bytes_per_checksum=CELL, window_bytes=1, routes=[],
)  # fmt: skip


def frame_of(kind: Kind, payload: bytes, offset: int) -> Frame:
    frames = FrameBuffer()
    data = encode_frame(kind, payload, stream=1, sequence=1, offset=offset)
    frames.space()[: len(data)] = data
    frames.received(len(data))
    frame = frames.frame()
    assert frame is not None
    return frame


def test_open_says_its_offset_twice_and_the_same(make: Make) -> None:
    assert stream_request(frame_of(Kind.OPEN, encode(OPENING), 512)) == (OPENING, b"")
    for offset in (0, 511, 513):
        with pytest.raises(BlockError, match=f"offset {offset}, its request 512") as caught:
            stream_request(frame_of(Kind.OPEN, encode(OPENING), offset))
        assert caught.value.code == stream_errors.INVALID_REQUEST


PUT = PutBlock(
    partition=PARTITION, container_id=CONTAINER, local_id=1, length=600, bytes_per_checksum=CELL, checksums=bytes(4),
    wait_effective=True,
)  # fmt: skip


def test_end_may_carry_the_commit_of_its_own_stream_alone() -> None:
    assert put_on_end(frame_of(Kind.END, b"", 600), OPENING) is None
    assert put_on_end(frame_of(Kind.END, encode(PUT), 600), OPENING) == PUT
    for wrong in (
        replace(PUT, partition=PARTITION + 1), replace(PUT, container_id=CONTAINER + 1), replace(PUT, local_id=2),
        replace(PUT, length=599), replace(PUT, length=601),
    ):  # fmt: skip
        with pytest.raises(BlockError, match="the stream is") as caught:
            put_on_end(frame_of(Kind.END, encode(wrong), 600), OPENING)
        assert caught.value.code == stream_errors.INVALID_REQUEST
