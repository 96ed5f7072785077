"""What a datanode below answers to HELLO, and what the client above is told of it. OPEN follows HELLO without a wait."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire.children import Child, StreamChildren
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.core.stream import StreamState, place_in
from datanode_processors.wire.wire import Wire
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.conversation.conversation import own_hello
from schemas.records.datanode import Hello, OpenStream, Route, StreamError
from schemas.records.packets import MAX_HELLO_BYTES, FrameBuffer, Kind, encode_frame, encode_header
from tests.support.datanodes.streams import CLUSTER, Client, Datanode, hello_frame, routes_of


class Below:
    """A datanode below that answers the first bytes that it gets with ``answer``, and keeps what it has heard."""

    name = "below"

    def __init__(self, answer: bytes, *, closes: bool = False) -> None:
        self.heard: list[Kind] = []
        self._answer, self._closes = answer, closes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # it was closed before anybody came
        frames = FrameBuffer()
        frames.greeting = True
        try:
            while Kind.OPEN not in self.heard:
                frames.received(sock.recv_into(frames.space()))
                while frame := frames.frame():
                    self.heard.append(frame.header.kind)
                    frames.greeting = False
            sock.sendall(self._answer)
            while not self._closes and sock.recv(65536):
                pass
        except OSError:
            pass
        sock.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # this wakes who accepts; closing does not
        self._thread.join(10)
        self._listener.close()


@pytest.fixture
def above(tmp_path: Path) -> Iterator[Datanode]:
    made = Datanode("above", tmp_path, WireLimits(connect_timeout_s=0.5, linger_s=0.1, stop_grace_s=0.2))
    yield made
    made.stop()


def told(above: Datanode, below: Below) -> BlockError | None:
    """Open a stream to both; return the error that the client is told, None if the stream is open."""
    client = Client(above.address)
    try:
        client.open(routes_of([above, below], [[1], []]))
    except BlockError as error:
        return error
    else:
        return None
    finally:
        client.close()
        below.close()


def error_frame(code: str, message: str) -> bytes:
    return encode_frame(
        Kind.ERROR, encode(StreamError(code=code, message=message, datanode="below", offset=-1, hint=""))
    )


def hello_of(versions: int) -> bytes:
    hello = Hello(peer="below", cluster=CLUSTER, min_version=versions, max_version=versions, max_payload_bytes=1)
    return encode_frame(Kind.HELLO, encode(hello))


GREETED = hello_frame("below")
ANSWERS = {
    "somebody else": (hello_frame("other"), stream_errors.INVALID_REQUEST, "address of 'other', not of 'below'"),
    "another cluster": (hello_frame("below", "other"), stream_errors.WRONG_CLUSTER, "is of cluster 'other'"),
    "no common version": (hello_of(9), stream_errors.UNSUPPORTED_VERSION, "9"),
    "ERROR": (error_frame("OVERLOADED", "too many"), stream_errors.OVERLOADED, "OVERLOADED: too many"),
    "an ERROR that cannot be read": (encode_frame(Kind.ERROR, b"?"), stream_errors.FAILED, "cannot be read"),
    "a HELLO that cannot be read": (encode_frame(Kind.HELLO, b"?"), stream_errors.INVALID_REQUEST, "payload of HELLO"),
    "a HELLO that is an ERROR": (
        encode_frame(Kind.HELLO, encode(StreamError(code="X", message="", datanode="", offset=-1, hint=""))),
        stream_errors.INVALID_REQUEST, "is a StreamError, not a Hello",
    ),
    "an ACK": (encode_frame(Kind.ACK, stream=1), stream_errors.BAD_FRAME, "ACK"),
    "a flipped bit": (GREETED[:-1] + bytes([GREETED[-1] ^ 1]), stream_errors.BAD_FRAME, "checksum"),
    "a HELLO too large": (
        encode_header(Kind.HELLO, 0, 0, 0, MAX_HELLO_BYTES + 1, 0), stream_errors.BAD_FRAME, str(MAX_HELLO_BYTES + 1),
    ),
    "no frame": (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, stream_errors.BAD_FRAME, ""),
    "half a HELLO": (GREETED[:-1], stream_errors.TIMED_OUT, "was silent"),
    "two HELLOs": (GREETED + GREETED, stream_errors.BAD_FRAME, ""),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_child_that_does_not_greet_is_reported(above: Datanode, answer: str) -> None:
    data, hint, words = ANSWERS[answer]
    below = Below(data)
    error = told(above, below)
    assert error is not None
    assert (error.code, error.hint, error.datanode) == (stream_errors.DOWNSTREAM_FAILED, hint, "below")
    assert words in error.message
    assert error.message.startswith("datanode below: ")
    assert below.heard == [Kind.HELLO, Kind.OPEN], "OPEN was not held back for the answer"


@pytest.mark.parametrize("answer", [b"", GREETED[:-1]], ids=["nothing", "half a HELLO"])
def test_a_child_that_goes_is_reported(above: Datanode, answer: bytes) -> None:
    error = told(above, Below(answer, closes=True))
    assert error is not None
    assert (error.code, error.hint, error.datanode) == (stream_errors.DOWNSTREAM_FAILED, stream_errors.FAILED, "below")


def test_what_comes_with_the_greeting_is_heard(above: Datanode) -> None:
    error = told(above, Below(GREETED + error_frame("DISK_FULL", "no room")))
    assert error is not None
    assert "DISK_FULL: no room" in error.message


def test_a_child_may_leave_its_cluster_out(above: Datanode) -> None:
    hello = encode_frame(Kind.HELLO, encode(own_hello("below", "")))
    assert told(above, Below(hello + encode_frame(Kind.ACK, stream=1, sequence=1))) is None


# ---------------------------------------------------------------------------------------------- in the middle of a send


class Sending:
    """The children of a stream, of which one is greeted; ``peer`` is the other end of its connection."""

    def __init__(self) -> None:
        self.attached: list[tuple[Wire, str]] = []
        self.detached: list[Wire] = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            routes = [
                Route(datanode="above", address="127.0.0.1:1", children=["below"]),
                Route(datanode="below", address=f"127.0.0.1:{listener.getsockname()[1]}", children=[]),
            ]
            opening = OpenStream(
                container_id=1, local_id=1, partition=1, offset=0, bytes_per_checksum=512, window_bytes=1 << 20,
                routes=routes,
            )  # fmt: skip
            self.poll = select.poll()
            self.children = StreamChildren(
                StreamState(opening, 1, place_in(routes, "above")), self.poll, WireLimits(), name="above",
                cluster=CLUSTER, attach=lambda wire, name: self.attached.append((wire, name)),
                detach=self.detached.append,
            )  # fmt: skip
            (self.child,) = self.children
            self.children.connect(self.child, encode_frame(Kind.OPEN, encode(opening), stream=1, sequence=1))
            self.peer, _ = listener.accept()
        self.peer.sendall(GREETED)
        self.children.greet(self.child)

    def offer_until_it_fails(self) -> BlockError:
        try:
            for _ in range(1000):
                self.children.offer(self.child, memoryview(b"x" * 1000))
        except BlockError as error:
            return error
        raise AssertionError("the child takes everything")

    def close(self) -> None:
        self.children.close()
        self.peer.close()


@pytest.fixture
def sending() -> Iterator[Sending]:
    made = Sending()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("last_words", "hint", "words"),
    [(b"", stream_errors.FAILED, "clos"), (error_frame("DISK_FULL", "no room"), "DISK_FULL", "DISK_FULL: no room")],
    ids=["without a word", "with ERROR"],
)
def test_a_child_that_is_lost_in_the_middle_of_a_send_is_reported_with_its_last_words(
    sending: Sending, last_words: bytes, hint: str, words: str
) -> None:
    sending.peer.recv(1 << 16)  # unread bytes would reset the connection
    sending.peer.sendall(last_words)
    sending.peer.close()
    error = sending.offer_until_it_fails()
    assert (error.code, error.hint, error.datanode) == (stream_errors.DOWNSTREAM_FAILED, hint, "below")
    assert words in error.message


def test_a_child_that_resets_the_connection_is_reported(sending: Sending) -> None:
    sending.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sending.peer.close()
    error = sending.offer_until_it_fails()
    assert (error.code, error.hint, error.datanode) == (
        stream_errors.DOWNSTREAM_FAILED, stream_errors.FAILED, "below",
    )  # fmt: skip


def test_what_a_child_does_not_accept_at_once_is_left_and_shows_no_life(sending: Sending) -> None:
    data = memoryview(bytes(range(256)) * (1 << 17))
    child, began = sending.child, time.monotonic()
    child.moved_at = 0.0
    sending.children.offer(child, data)
    assert child.moved_at >= began
    left = child.left
    assert left is not None
    taken = len(data) - len(left)
    assert 0 < taken < len(data)
    child.moved_at = 0.0
    sending.children.offer(child, left)
    while child.moved_at:  # the kernel made some more room meanwhile
        child.moved_at = 0.0
        assert child.left is not None
        sending.children.offer(child, child.left)
    heard = bytearray()
    reading = threading.Thread(target=lambda: read_all(sending.peer, heard, len(data)), daemon=True)
    reading.start()
    while child.left is not None:
        sending.children.offer(child, child.left)
    reading.join(30)
    assert bytes(heard[-len(data) :]) == bytes(data)


def read_all(peer: socket.socket, heard: bytearray, count: int) -> None:
    """Read HELLO and OPEN, and then so many bytes."""
    frames = FrameBuffer()
    frames.greeting = True
    while frames.frame() is None:
        frames.received(peer.recv_into(frames.space()[:1]))
    frames.greeting = False
    while frames.frame() is None:
        frames.received(peer.recv_into(frames.space()[:1]))
    while len(heard) < count:
        heard += peer.recv(1 << 20)


def test_a_child_is_found_by_its_connection_until_that_is_closed(sending: Sending) -> None:
    child: Child = sending.child
    wire = child.connection
    fileno = wire.fileno()
    assert sending.attached == [(wire, "below")]
    assert sending.children.by_fileno(fileno) is child
    assert sending.children.by_fileno(fileno + 1) is None
    child.moved_at = 0.0
    sending.peer.sendall(encode_frame(Kind.ACK, stream=1, sequence=1))
    assert [event for _, event in sending.poll.poll(10_000)] == [select.POLLIN]
    sending.children.hear(child)
    assert child.moved_at > 0
    sending.children.close()
    sending.children.close()
    assert sending.detached == [wire]
    assert wire.sock.fileno() < 0
    assert sending.children.by_fileno(fileno) is None


def test_a_damaged_acknowledgement_is_a_bad_frame_of_the_child(sending: Sending) -> None:
    frame = bytearray(encode_frame(Kind.ACK, stream=1, sequence=1, payload=b"x"))
    frame[-1] ^= 1
    sending.peer.sendall(frame)
    sending.poll.poll(10_000)
    with pytest.raises(BlockError) as caught:
        sending.children.hear(sending.child)
    assert (caught.value.code, caught.value.hint) == (stream_errors.DOWNSTREAM_FAILED, stream_errors.BAD_FRAME)


def test_nobody_at_the_address_of_a_child_is_reported(above: Datanode) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        below = Below(b"")
        below.address = f"127.0.0.1:{free.getsockname()[1]}"
        client = Client(above.address)
        with pytest.raises(BlockError) as caught:
            client.open(routes_of([above, below], [[1], []]))
        client.close()
    below.close()
    assert (caught.value.hint, caught.value.datanode) == (stream_errors.FAILED, "below")
    assert below.address in caught.value.message
