"""A datanode as the client of another: a real connection to a peer that is played, answer by answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c

from datanode_processors.errors import UNKNOWN_OFFSET, BlockError
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire import stream_error, unreadable
from schemas import stream_errors as codes
from schemas.codecs.codec import encode
from schemas.records.datanode import Accepted, CloseContainer, ReadBlock, StreamError
from schemas.records.packets import FrameBuffer, Kind, encode_frame
from tests.support.datanodes.streams import CLUSTER, hello_frame

CLOSE = CloseContainer(partition=3, container_id=7)
READ = ReadBlock(partition=3, container_id=7, local_id=1, offset=0, length=8, bcs_id=0, committed_only=True)
WAIT_S = 30.0


class Played:
    """A datanode that greets with ``hello``, and answers each request with the next of ``answers``."""

    def __init__(self, *answers: bytes, hello: bytes | None = None, closes: bool = False) -> None:
        """With ``closes`` it leaves after the last answer."""
        self._closes = closes
        self.answers = list(answers)
        self.heard: list[Kind] = []
        self.sequences: list[int] = []
        self.ended = threading.Event()
        """Whether the other side has closed."""
        self._hello = hello_frame("dn2") if hello is None else hello
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            sock, _ = self._listener.accept()
            sock.sendall(self._hello)
            frames = FrameBuffer()
            frames.greeting = True
            while (self.answers or not self._closes) and (count := sock.recv_into(frames.space())):
                frames.received(count)
                while frame := frames.frame():
                    frames.greeting = False
                    self.heard.append(frame.header.kind)
                    if frame.header.kind is Kind.REQUEST:
                        self.sequences.append(frame.header.sequence)
                        sock.sendall(self.answers.pop(0) if self.answers else b"")
            sock.close()
        except OSError:
            pass
        self.ended.set()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def played() -> Iterator[Any]:
    made: list[Played] = []

    def begin(*answers: bytes, **options: Any) -> Played:
        made.append(Played(*answers, **options))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def peer_of(one: Played, timeout_s: float = WAIT_S, datanode: str = "") -> Peer:
    return Peer(one.address, own="dn1", cluster=CLUSTER, timeout_s=timeout_s, datanode=datanode)


def reply(detail: str, sequence: int) -> bytes:
    return encode_frame(Kind.REPLY, encode(Accepted(detail=detail)), sequence=sequence)


def data(payload: bytes, offset: int, kind: Kind = Kind.DATA) -> bytes:
    return encode_frame(kind, payload, sequence=1, offset=offset)


def error_of(code: str) -> bytes:
    record = StreamError(code=code, message="as if", datanode="dn2", offset=-1, hint="")
    return encode_frame(Kind.ERROR, encode(record), sequence=1)


def refused(do: Any) -> BlockError:
    with pytest.raises(BlockError) as caught:
        do()
    return caught.value


def test_requests_are_answered_one_after_the_other_and_the_connection_is_closed(played: Any) -> None:
    one = played(reply("first", 1), reply("second", 2))
    with peer_of(one) as peer:
        assert peer.name == "dn2"
        assert peer.request(CLOSE).detail == "first"
        assert peer.request(CLOSE).detail == "second"
    assert one.ended.wait(WAIT_S)
    assert one.heard == [Kind.HELLO, Kind.REQUEST, Kind.REQUEST]
    assert one.sequences == [1, 2]


def test_a_request_may_be_sent_long_before_its_answer_is_asked_for(played: Any) -> None:
    one = played(reply("first", 1))
    with peer_of(one) as peer:
        peer.begin(CLOSE)
        assert peer.answer().detail == "first"


def test_an_encoded_request_is_sent_on_as_it_came(played: Any) -> None:
    one = played(reply("first", 1), reply("second", 2))
    payload = encode(CLOSE)
    with peer_of(one) as peer:
        for detail in ("first", "second"):
            peer.send_on(memoryview(payload), crc32c(payload))
            assert peer.answer().detail == detail
    assert one.sequences == [1, 2]


NOT_GREETED = {
    "another cluster": (hello_frame("dn2", "other"), codes.WRONG_CLUSTER),
    "no frame": (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, codes.BAD_FRAME),
    "ERROR": (error_of(codes.OVERLOADED), codes.OVERLOADED),
    "an answer": (reply("", 1), codes.BAD_FRAME),
    "a HELLO that cannot be read": (encode_frame(Kind.HELLO, b"?"), codes.INVALID_REQUEST),
    "another datanode": (hello_frame("dn3"), codes.INVALID_REQUEST),
}


@pytest.mark.parametrize("hello", NOT_GREETED)
def test_a_peer_that_does_not_greet_is_left(played: Any, hello: str) -> None:
    said, code = NOT_GREETED[hello]
    one = played(hello=said)
    error = refused(lambda: peer_of(one, datanode="dn2"))
    assert error.code == code
    assert one.ended.wait(WAIT_S), "its connection is closed"
    if code != codes.OVERLOADED:
        assert error.message.startswith(f"datanode at {one.address}: ")


def test_a_peer_that_is_not_there_or_goes_has_failed_and_a_silent_one_has_timed_out(played: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        error = refused(lambda: Peer(f"127.0.0.1:{port}", own="dn1", cluster=CLUSTER, timeout_s=WAIT_S))
    assert error.code == codes.FAILED
    assert error.message.startswith(f"datanode at 127.0.0.1:{port}: ")
    silent = played(hello=b"")
    error = refused(lambda: peer_of(silent, timeout_s=0.05))
    assert (error.code, "0.05 s" in error.message) == (codes.TIMED_OUT, True)
    assert silent.ended.wait(WAIT_S)


def test_an_answer_is_waited_for_as_long_as_was_said(played: Any) -> None:
    one = played()
    with peer_of(one, timeout_s=0.05) as peer:
        error = refused(lambda: peer.request(CLOSE))
        assert (error.code, "0.05 s" in error.message) == (codes.TIMED_OUT, True)
    with peer_of(played()) as peer:
        peer.begin(CLOSE)
        error = refused(lambda: peer.answer(0.0))
        assert (error.code, "for 0 s" in error.message) == (codes.TIMED_OUT, True)


WRONG_ANSWERS = {
    "its own error": (error_of("NOT_LEADER"), "NOT_LEADER"),
    "an answer that cannot be read": (encode_frame(Kind.REPLY, b"?", sequence=1), codes.INVALID_REQUEST),
    "the answer to another request": (reply("", 2), codes.BAD_FRAME),
    "bytes of a block": (data(b"bytes", 0), codes.BAD_FRAME),
    "a greeting": (hello_frame("dn2"), codes.BAD_FRAME),
    "no frame": (b"x" * 100, codes.BAD_FRAME),
}


@pytest.mark.parametrize("answer", WRONG_ANSWERS)
def test_what_is_no_answer_is_the_peers_fault(played: Any, answer: str) -> None:
    said, code = WRONG_ANSWERS[answer]
    one = played(said)
    with peer_of(one) as peer:
        error = refused(lambda: peer.request(CLOSE))
    assert error.code == code
    if code != "NOT_LEADER":
        assert error.message.startswith(f"datanode at {one.address}: ")


def test_a_blocks_bytes_come_with_their_offsets_until_end(played: Any) -> None:
    one = played(data(b"abcd", 0) + data(b"efgh", 4) + data(b"", 8, Kind.END))
    with peer_of(one) as peer:
        found = [(offset, bytes(payload), crc) for offset, payload, crc in peer.read_block(READ)]
    assert found == [(0, b"abcd", crc32c(b"abcd")), (4, b"efgh", crc32c(b"efgh"))]


@pytest.mark.parametrize(
    ("answer", "code"),
    [(reply("", 1), codes.BAD_FRAME), (error_of(codes.CHECKSUM_MISMATCH), codes.CHECKSUM_MISMATCH)],
    ids=["REPLY", "ERROR"],
)
def test_a_block_that_is_not_given_is_an_error_after_the_cells_that_came(played: Any, answer: bytes, code: str) -> None:
    one = played(data(b"abcd", 0) + answer)
    found: list[bytes] = []

    def read() -> None:
        for _, payload, _ in peer.read_block(READ):
            found.append(bytes(payload))

    with peer_of(one) as peer:
        assert refused(read).code == code
    assert found == [b"abcd"]


def test_a_peer_that_goes_in_the_middle_of_an_answer_has_failed(played: Any) -> None:
    one = played(reply("", 1)[:-1], closes=True)
    with peer_of(one) as peer:
        error = refused(lambda: peer.request(CLOSE))
    assert (error.code, error.message) == (
        codes.FAILED, f"datanode at {one.address}: it closed the connection",
    )  # fmt: skip


@pytest.mark.parametrize("use", ["request", "send_on"])
def test_a_connection_that_has_failed_is_of_no_further_use(played: Any, use: str) -> None:
    one = played(b"x" * 100)
    payload = encode(CLOSE)
    with peer_of(one) as peer:
        assert refused(lambda: peer.request(CLOSE)).code == codes.BAD_FRAME
        error = refused(
            lambda: peer.request(CLOSE) if use == "request" else peer.send_on(memoryview(payload), crc32c(payload))
        )
    assert error.code == codes.BAD_FRAME
    assert error.message.startswith(f"datanode at {one.address}: ")
    assert one.sequences == [1], "nothing more is sent"


def test_an_error_that_cannot_be_read_says_nothing_of_how_far_a_stream_came() -> None:
    said = unreadable(ValueError("cut off"))
    assert said == StreamError(
        code=codes.FAILED, message="an error that cannot be read: cut off", datanode="", offset=UNKNOWN_OFFSET, hint=""
    )
    told = stream_error("dn1", BlockError("X", "as if"))
    assert told == StreamError(code="X", message="as if", datanode="dn1", offset=UNKNOWN_OFFSET, hint="")
    assert stream_error("dn1", BlockError("X", "as if", 7, "h", "dn2")).datanode == "dn2", "whoever failed first"
