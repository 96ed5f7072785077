"""One connection of the stream protocol by itself: a pair of TCP sockets, and a peer that is slow, silent or gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire import wire as module
from datanode_processors.wire.wire import (
    Room,
    Wire,
    WireClosed,
    connect,
    decode_bounded,
    error_frame,
    read_error,
    read_record,
    read_request,
    refusal,
    stream_error,
)
from schemas import stream_errors as codes
from schemas.codecs.codec import encode
from schemas.conversation.limits import UnreadableRecord, record_of
from schemas.records.datanode import BlockWatched, StreamError, WriteBlocks
from schemas.records.framing import BadFrame
from schemas.records.packets import PACKET_BYTES, Frame, FrameBuffer, Kind, encode_frame
from tests.support.local.waiting import eventually
from transport.datanodes.dialing import KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES, NO_DESCRIPTOR
from transport.waiting.deadline import Deadline

WAIT_S = 30.0
SMALL = encode_frame(Kind.ACK, b"", sequence=1)
LARGE = encode_frame(Kind.DATA, bytes(4 * PACKET_BYTES))
WATCHED = BlockWatched(datanode="dn1", bcs_id=1, length=1, satisfied=True)
Pair = tuple[Wire, socket.socket]


@pytest.fixture
def pairs() -> Iterator[Callable[..., Pair]]:
    """Return a factory of (wire, the peer's socket)."""
    made: list[Pair] = []

    def begin(room: Room | None = None) -> Pair:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours = socket.create_connection(listening.getsockname())
            theirs, _ = listening.accept()
        theirs.settimeout(WAIT_S)
        made.append((Wire(ours, room), theirs))
        return made[-1]

    yield begin
    for wire, theirs in made:
        wire.close()
        theirs.close()


def fill(wire: Wire) -> int:
    """Send until the kernel takes no more; return how many bytes it took."""
    taken = 0
    while count := wire.send(bytes(1 << 20)):
        taken += count
    return taken


def heard(theirs: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (more := theirs.recv(count - len(found))):
        found += more
    return found


# -- frames in


def test_a_frame_is_taken_once_it_has_arrived_whole_and_its_bytes_are_counted(pairs: Callable[..., Pair]):
    wire, theirs = pairs()
    assert (wire.frame(), wire.is_receiving) == (None, False)
    theirs.sendall(SMALL[:-1])
    eventually(lambda: wire.frame() is None and wire.is_receiving)
    theirs.sendall(SMALL[-1:])
    found = wire.wait_frame(WAIT_S)
    assert (found.header.kind, found.header.sequence) == (Kind.ACK, 1)
    assert (wire.bytes_in, wire.is_receiving) == (len(SMALL), False)


def test_frames_that_came_together_are_taken_without_another_look_at_the_socket(pairs: Callable[..., Pair]):
    wire, theirs = pairs()
    data = encode_frame(Kind.DATA, b"ab")
    theirs.sendall(data * 3)
    first = wire.wait_frame(WAIT_S)
    eventually(lambda: wire.is_receiving)
    second, last = wire.ready(), wire.ready()
    assert second is not None
    assert last is not None
    assert bytes(wire.together(first, last)) == data * 3
    assert wire.ready() is None


def test_a_payload_with_another_checksum_is_a_bad_frame(pairs: Callable[..., Pair]):
    wire, theirs = pairs()
    theirs.sendall(encode_frame(Kind.DATA, b"ab")[:-1] + b"?")
    with pytest.raises(BadFrame):
        wire.wait_frame(WAIT_S)


def test_a_peer_that_is_silent_is_told_from_one_that_closes(pairs: Callable[..., Pair]):
    wire, theirs = pairs()
    with pytest.raises(WireClosed, match=r"the peer was silent for 0\.02 s") as caught:
        wire.wait_frame(0.02)
    assert caught.value.timed_out
    assert not wire.has_hung_up()
    theirs.close()
    with pytest.raises(WireClosed, match="the peer closed the connection") as caught:
        wire.wait_frame(WAIT_S)
    assert not caught.value.timed_out
    assert wire.has_hung_up()
    wire.close()
    wire.close()
    assert wire.has_hung_up()


def test_another_thread_ends_a_wait_and_frames_still_go_out(pairs: Callable[..., Pair]):
    wire, theirs = pairs()
    ended: list[WireClosed] = []

    def wait() -> None:
        try:
            wire.wait_frame(WAIT_S)
        except WireClosed as error:
            ended.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    wire.stop_receiving()
    waiting.join(WAIT_S)
    assert [error.timed_out for error in ended] == [False]
    wire.wait_send(SMALL, timeout_s=WAIT_S)
    assert heard(theirs, len(SMALL)) == SMALL
    wire.close()
    wire.stop_receiving()  # it is closed already


# -- the room for large frames


def test_large_frames_take_room_and_give_it_back_when_they_are_done(pairs: Callable[..., Pair]):
    room = Room(1 << 30)
    wire, theirs = pairs(room)
    theirs.sendall(LARGE + SMALL)
    assert wire.wait_frame(WAIT_S).header.length == 4 * PACKET_BYTES
    assert room.taken_bytes >= 3 * PACKET_BYTES
    wire.wait_frame(WAIT_S)
    with pytest.raises(WireClosed):
        wire.wait_frame(0.01)
    assert room.taken_bytes == 0


def test_the_room_of_a_large_frame_is_kept_for_the_next_one_and_given_back_after_a_while(
    pairs: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
):
    room = Room(1 << 30)
    wire, theirs = pairs(room)
    theirs.sendall(LARGE)
    wire.wait_frame(WAIT_S)
    buffer, waits = wire._buffer._buffer, []

    def ready(events: int, deadline: Deadline) -> bool:
        waits.append(room.taken_bytes)
        if len(waits) == 1:
            theirs.sendall(LARGE)
        return is_ready(events, deadline)

    is_ready = wire._is_ready
    monkeypatch.setattr(wire, "_is_ready", ready)
    wire.wait_frame(WAIT_S)
    assert wire._buffer._buffer is buffer, "the next large frame needs no other"
    monkeypatch.setattr(module, "LARGE_KEPT_S", 0.01)
    waits.clear()
    monkeypatch.setattr(wire, "_is_ready", lambda *_: waits.append(room.taken_bytes))
    with pytest.raises(WireClosed):
        wire.wait_frame(WAIT_S)
    assert waits[0] > 0
    assert waits[1:] == [0]


def in_a_buffer(payload: bytes, kind: Kind = Kind.REQUEST) -> Frame:
    buffer, frame = FrameBuffer(), encode_frame(kind, payload)
    while len(buffer) < len(frame):
        space = buffer.space()
        some = frame[len(buffer) :][: len(space)]
        space[: len(some)] = some
        buffer.received(len(some))
        if (found := buffer.frame()) is not None:
            return found
    raise AssertionError("no frame")


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 300_000])
def test_the_bytes_of_blocks_are_not_copied_out_of_their_frame(size: int):
    data = b"d" * size
    frame = in_a_buffer(encode(WriteBlocks(opening=b"o" * size, data=data)))
    request, tokens = read_request(frame)
    assert (request, tokens) == (WriteBlocks(opening=b"o" * size, data=data), b"")
    assert isinstance(request.data, memoryview)
    assert request.data.obj is frame.payload.obj
    assert isinstance(request.opening, bytes)


BLOCKS = encode(WriteBlocks(opening=b"opening", data=b"data"))


@pytest.mark.parametrize(
    "payload",
    [
        *(BLOCKS[:cut] for cut in range(len(BLOCKS))),
        BLOCKS + b"x",
        BLOCKS[:10] + b"\x01" + BLOCKS[11:],
        BLOCKS[:10] + b"\xff" * 11,
        BLOCKS[:10] + b"\xff" * 9 + b"\x01" + BLOCKS[11:],
    ],
)
def test_blocks_that_are_not_whole_are_refused_as_other_requests_are(payload: bytes):
    with pytest.raises(UnreadableRecord) as meant:
        record_of(in_a_buffer(payload))
    with pytest.raises(BlockError) as caught:
        read_request(in_a_buffer(payload))
    assert (caught.value.code, caught.value.message) == (codes.INVALID_REQUEST, str(meant.value))


def test_blocks_in_a_frame_of_another_kind_are_what_they_were():
    request, _ = read_request(in_a_buffer(BLOCKS, Kind.END))
    assert request == WriteBlocks(opening=b"opening", data=b"data")
    assert isinstance(request.data, bytes)


@pytest.mark.parametrize("part", [len(LARGE) // 2, len(LARGE)])
def test_a_connection_that_closes_gives_its_room_back_once(pairs: Callable[..., Pair], part: int):
    room = Room(1 << 30)
    room.take(100)
    wire, theirs = pairs(room)
    theirs.sendall(LARGE[:part])
    eventually(lambda: wire.frame() is not None or wire.bytes_in == part < len(LARGE))
    assert room.taken_bytes > 100
    wire.close()
    wire.close()
    assert room.taken_bytes == 100


def test_a_frame_for_which_there_is_no_room_is_refused(pairs: Callable[..., Pair]):
    wire, theirs = pairs(Room(PACKET_BYTES))
    theirs.sendall(LARGE[:100])
    with pytest.raises(BlockError, match=f"take 0 of {PACKET_BYTES} bytes here") as caught:
        wire.wait_frame(WAIT_S)
    assert caught.value.code == codes.OVERLOADED


def test_room_is_taken_up_to_its_last_byte():
    room = Room(10)
    room.take(4)
    room.take(6)
    with pytest.raises(BlockError, match="take 10 of 10 bytes"):
        room.take(1)
    assert room.taken_bytes == 10
    room.give(1)
    room.take(1)


# -- frames out


def test_what_a_slow_peer_takes_in_pieces_arrives_in_order(pairs: Callable[..., Pair]):
    wire, theirs = pairs()
    parts: list[bytes | memoryview] = [b"a", b"", b"b" * 9_000_000, memoryview(b"c" * 3_000_000), b"d"]
    whole = b"".join(parts)
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(heard(theirs, len(whole))), daemon=True)
    later = threading.Timer(0.1, reading.start)
    later.start()
    wire.wait_send(*parts, timeout_s=WAIT_S)
    later.join()
    reading.join(WAIT_S)
    assert found == [whole]
    assert wire.bytes_out == len(whole)


def test_a_peer_that_takes_nothing_is_given_up(pairs: Callable[..., Pair]):
    wire, _ = pairs()
    taken = fill(wire)
    assert wire.bytes_out == taken
    assert wire.send(SMALL) == 0
    with pytest.raises(WireClosed, match=r"silent for 0\.02 s") as caught:
        wire.wait_send(SMALL, timeout_s=0.02)
    assert caught.value.timed_out


def test_a_small_frame_that_was_cut_is_finished_before_the_next_one(
    pairs: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
):
    for next_way in ("small", "wait"):
        wire, theirs = pairs()
        real, most = wire.send, [3, 2, 0]
        monkeypatch.setattr(wire, "send", lambda data: real(data[: most.pop(0)]) if most[0] else most.pop(0))  # noqa: B023
        assert wire.send_small(SMALL), "the kernel took three bytes"
        assert not wire.send_small(SMALL), "two more, and there is no room yet"
        assert not wire.send_small(SMALL)
        monkeypatch.undo()
        if next_way == "small":
            assert wire.send_small(SMALL)
        else:
            wire.wait_send(SMALL, timeout_s=WAIT_S)
        assert heard(theirs, 2 * len(SMALL)) == SMALL * 2


def test_a_small_frame_of_which_nothing_was_taken_is_not_sent(pairs: Callable[..., Pair]):
    wire, theirs = pairs()
    taken = fill(wire)
    assert not wire.send_small(SMALL)
    assert heard(theirs, taken) == bytes(taken)
    eventually(lambda: wire.send_small(SMALL))
    assert heard(theirs, len(SMALL)) == SMALL


def test_what_is_sent_to_nobody_says_that_the_connection_broke(pairs: Callable[..., Pair]):
    for act in (lambda wire: wire.send(bytes(1 << 16)), lambda wire: wire.wait_send(bytes(1 << 16), timeout_s=WAIT_S)):
        wire, theirs = pairs()
        theirs.close()
        with pytest.raises(WireClosed, match="the connection broke") as caught:
            again_and_again(partial(act, wire))
        assert not caught.value.timed_out


def again_and_again(act: Callable[[], object]) -> None:
    """The first bytes that are sent to nobody are still taken."""
    for _ in range(10_000):
        act()


# -- the end


def test_the_last_frame_is_heard_though_the_peer_is_still_sending(pairs: Callable[..., Pair]):
    wire, theirs = pairs()
    wire.wait_send(SMALL, timeout_s=WAIT_S)
    theirs.sendall(bytes(1000))
    closing = threading.Thread(target=wire.discard, args=(WAIT_S, 1 << 20), daemon=True)
    closing.start()
    assert heard(theirs, len(SMALL) + 1) == SMALL, "and the end"
    theirs.sendall(bytes(1000))
    assert closing.is_alive()
    theirs.close()
    closing.join(WAIT_S)
    assert not closing.is_alive()


@pytest.mark.parametrize(("timeout_s", "limit_bytes"), [(0.02, 1 << 20), (WAIT_S, 1000), (WAIT_S, 0)])
def test_a_peer_that_goes_on_is_left_after_a_time_or_so_many_bytes(
    pairs: Callable[..., Pair], timeout_s: float, limit_bytes: int
):
    wire, theirs = pairs()
    theirs.sendall(bytes(1000))
    wire.discard(timeout_s, limit_bytes)
    assert heard(theirs, 1) == b""
    wire.close()
    wire.discard(timeout_s, limit_bytes)  # nobody is there any more


# -- addresses


def test_options_of_a_connection(pairs: Callable[..., Pair]):
    wire, _ = pairs()
    assert not wire.sock.getblocking()
    assert wire.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert wire.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    after_s = [
        wire.sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    ]
    assert after_s == [KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES]
    assert KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES == 25


def test_where_nobody_listens_is_no_connection():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        wire = connect(address, WAIT_S)
        wire.close()
    with pytest.raises(WireClosed, match=f"{address}: cannot connect") as caught:
        connect(address, WAIT_S)
    assert not caught.value.timed_out
    with pytest.raises(BlockError, match="is no address") as refused:
        connect("a" * 70 + ".example:7", WAIT_S)
    assert refused.value.code == codes.INVALID_REQUEST


@pytest.mark.parametrize("number", sorted(NO_DESCRIPTOR))
def test_a_datanode_without_descriptors_does_not_blame_the_other_one(monkeypatch: pytest.MonkeyPatch, number: int):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(BlockError, match="Too many open files here") as caught:
        connect("127.0.0.1:7", WAIT_S)
    assert caught.value.code == codes.OVERLOADED

    def wait(*_: Any, **__: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", wait)
    with pytest.raises(WireClosed, match=r"127\.0\.0\.1:7: cannot connect in 30 s") as late:
        connect("127.0.0.1:7", WAIT_S)
    assert late.value.timed_out


# -- records and errors


def framed(data: bytes) -> Any:
    buffer = FrameBuffer()
    while data:
        space = buffer.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        buffer.received(count)
        data = data[count:]
    return buffer.frame()


def test_an_error_comes_through_a_frame_as_it_was():
    error = BlockError(codes.NOT_LEADER, "another leads", 7, "dn2")
    frame = framed(error_frame("dn1", error, stream=4, sequence=5))
    assert (frame.header.kind, frame.header.stream, frame.header.sequence, frame.header.offset) == (Kind.ERROR, 4, 5, 7)
    said = read_error(frame)
    assert said == StreamError(code=codes.NOT_LEADER, message="another leads", datanode="dn1", offset=7, hint="dn2")
    again = refusal(said)
    assert (again.code, again.message, again.offset, again.hint, again.datanode) == (
        codes.NOT_LEADER, "another leads", 7, "dn2", "dn1",
    )  # fmt: skip
    assert stream_error("dn9", again).datanode == "dn1", "it stays that of the one that failed"
    assert framed(error_frame("dn1", BlockError(codes.FAILED, "no offset"))).header.offset == 0


@pytest.mark.parametrize("payload", [b"no record", encode(WATCHED)])
def test_an_error_that_cannot_be_read_is_one_too(payload: bytes):
    said = read_error(framed(encode_frame(Kind.ERROR, payload)))
    assert (said.code, said.offset, said.datanode) == (codes.FAILED, -1, "")
    assert said.message.startswith("an error that cannot be read: ")
    damaged = framed(encode_frame(Kind.ERROR, payload)[:-1] + b"?")
    assert read_error(damaged).code == codes.FAILED


def test_records_that_cannot_be_read_are_the_peers_fault():
    good = framed(encode_frame(Kind.REPLY, encode(WATCHED)))
    assert read_record(good, BlockWatched) == WATCHED
    for use in (
        lambda: read_record(good, StreamError),
        lambda: read_record(framed(encode_frame(Kind.REPLY, b"no record"))),
        lambda: decode_bounded(b"no record", "a request", frozenset()),
    ):
        with pytest.raises(BlockError) as caught:
            use()
        assert caught.value.code == codes.INVALID_REQUEST
    assert decode_bounded(encode(WATCHED), "a request", frozenset()) == WATCHED
