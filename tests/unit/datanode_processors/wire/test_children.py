"""What a datanode below answers to HELLO, and what the client above is told of it. OPEN follows HELLO without a wait."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire.core.limits import WireLimits
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.conversation.conversation import own_hello
from schemas.records.datanode import Hello, StreamError
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
        sock, _ = self._listener.accept()
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
