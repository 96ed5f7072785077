"""Asking a datanode over TCP, and the courier that keeps nobody waiting: against real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest

from om_processors.fleet import datanode_client
from om_processors.fleet.datanode_client import (
    FETCH_TIMEOUT_S,
    MAX_FETCHES,
    MAX_PER_DATANODE,
    Courier,
    ask,
)
from schemas.codecs.codec import decode, encode
from schemas.records.datanode import Accepted, ClosePipeline, Hello, StreamError
from schemas.records.packets import HEADER_BYTES, MAX_HELLO_BYTES, Kind, decode_header, encode_frame
from stratolog.local.processes import wait_until
from transport.datanodes.core.failures import DatanodeFailed

REQUEST = ClosePipeline(partition=3, generation=1)
HELLO = Hello(peer="dn1", cluster="c", min_version=1, max_version=1, max_payload_bytes=1 << 20)
WAIT_S = 20.0


@contextmanager
def datanode(answer: Callable[[Any], bytes], hello: Any = HELLO) -> Iterator[tuple[str, list[Any]]]:
    """A datanode that answers each request with a frame; gives its address and what it was asked."""
    asked: list[Any] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            while True:
                try:
                    wire, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(wire,), daemon=True).start()

        def talk(wire: socket.socket) -> None:
            with wire, suppress(ConnectionError):
                stream = wire.makefile("rb")
                wire.sendall(encode_frame(Kind.HELLO, hello if isinstance(hello, bytes) else encode(hello)))
                for _ in range(2):
                    head = stream.read(HEADER_BYTES)
                    if len(head) < HEADER_BYTES:
                        return
                    asked.append(decode(stream.read(decode_header(head).length)))
                wire.sendall(answer(asked[-1]))

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)


def accept(_: Any) -> bytes:
    return encode_frame(Kind.REPLY, encode(Accepted(detail="done")), sequence=1)


def test_a_question_and_its_answer():
    with datanode(accept) as (address, asked):
        assert ask(address, REQUEST, own="om1", cluster="c") == Accepted(detail="done")
        assert asked[0].peer == "om1"
        assert asked[1] == REQUEST


def refuse(_: Any) -> bytes:
    error = StreamError(code="NO_SUCH_PIPELINE", message="pipeline-3 is not here", datanode="dn1", offset=0, hint="")
    return encode_frame(Kind.ERROR, encode(error), sequence=1)


@pytest.mark.parametrize(
    ("answer", "hello", "code", "words"),
    [
        (refuse, HELLO, "NO_SUCH_PIPELINE", "NO_SUCH_PIPELINE: dn1: ClosePipeline: pipeline-3 is not here"),
        (lambda _: b"", HELLO, "UNREACHABLE", "closed the connection"),
        (lambda _: b"GET / HTTP/1.1\r\n" + bytes(100), HELLO, "BAD_FRAME", "a frame begins with b'GE'"),
        (accept, Accepted(detail=""), "BAD_FRAME", "payload of HELLO is a Accepted, not a Hello"),
        (accept, Hello(peer="x", cluster="other", min_version=1, max_version=1, max_payload_bytes=1), "WRONG_CLUSTER", "is of cluster 'other'"),
        (accept, Hello(peer="x", cluster="c", min_version=9, max_version=9, max_payload_bytes=1), "UNSUPPORTED_VERSION", "the peer speaks framing 9 to 9"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_named(answer: Any, hello: Any, code: str, words: str):
    with datanode(answer, hello) as (address, _), pytest.raises(DatanodeFailed) as caught:
        ask(address, REQUEST, own="om1", cluster="c")
    assert caught.value.status == code
    assert words in str(caught.value)


def test_nobody_listens():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(DatanodeFailed, match=f"{address}: cannot connect: .*refused"):
        ask(address, REQUEST, own="om1", cluster="c")


def test_a_silent_datanode_is_given_up():
    gone = threading.Event()
    with datanode(lambda _: bytes(gone.wait(WAIT_S) and 0)) as (address, _):
        with pytest.raises(DatanodeFailed, match="TIMED_OUT: .* is silent"):
            ask(address, REQUEST, own="om1", cluster="c", timeout_s=0.1)
        gone.set()


def test_the_courier_asks_once_at_a_time():
    go = threading.Event()
    answers: list[Any] = []
    told: list[str] = []

    def late(request: Any) -> bytes:
        go.wait(WAIT_S)
        return accept(request)

    courier = Courier(own="om1", cluster="c", log=told.append)
    with datanode(late) as (address, asked):
        assert courier.send(("a",), address, REQUEST, done=answers.append)
        assert not courier.send(("a",), address, REQUEST)
        assert courier.under_way == {("a",)}
        go.set()
        assert wait_until(lambda: not courier.under_way, WAIT_S)
        assert answers == [Accepted(detail="done")]
        assert courier.send(("a",), address, REQUEST)
        assert wait_until(lambda: len(asked) == 4, WAIT_S)
    courier.close()
    assert told == []


def test_a_failure_is_logged_once():
    told: list[str] = []
    courier = Courier(own="om1", cluster="c", log=told.append)
    with datanode(refuse) as (address, _):
        for _ in range(3):
            assert courier.send("k", address, REQUEST)
            assert wait_until(lambda: not courier.under_way, WAIT_S)
    courier.close()
    assert len(told) == 1
    assert "pipeline-3 is not here" in told[0]


@contextmanager
def silent() -> Iterator[str]:
    """A datanode whose process is stopped: the kernel accepts, and nobody says anything."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_silent_datanodes_that_are_to_fetch_do_not_keep_the_courier_from_others():
    courier = Courier(own="om1", cluster="c", log=lambda _: None)
    with ExitStack() as stack:
        hung = [stack.enter_context(silent()) for _ in range(8)]
        for number in range(64):
            courier.send(("fetch", number), hung[number % 8], REQUEST, timeout_s=FETCH_TIMEOUT_S)
        address, asked = stack.enter_context(datanode(accept))
        assert len(courier.under_way) == MAX_FETCHES
        assert courier.send(("open", 1, "dn1"), address, REQUEST)
        assert wait_until(lambda: len(asked) == 2, WAIT_S)
        courier.close()
        assert wait_until(lambda: not courier.under_way, WAIT_S), "closing ends what is under way"


def test_one_datanode_has_few_of_the_couriers_requests():
    courier = Courier(own="om1", cluster="c", log=lambda _: None)
    with silent() as address:
        taken = [courier.send(("delete", number), address, REQUEST) for number in range(MAX_PER_DATANODE + 5)]
        assert taken == [True] * MAX_PER_DATANODE + [False] * 5
        courier.close()
        assert wait_until(lambda: not courier.under_way, WAIT_S)


def test_a_datanode_that_does_not_say_hello_is_given_up_long_before_a_copy_would_be():
    with silent() as address, pytest.raises(DatanodeFailed, match="TIMED_OUT: .* is silent"):
        ask(address, REQUEST, own="om1", cluster="c", timeout_s=FETCH_TIMEOUT_S, hello_timeout_s=0.1)


def test_what_is_asked_of_a_dead_datanode_is_given_up():
    told: list[str] = []
    gone = threading.Event()
    courier = Courier(own="om1", cluster="c", log=told.append)
    with datanode(lambda _: bytes(gone.wait(WAIT_S) and 0)) as (address, asked):
        assert courier.send(("fetch", 1, "dn1"), address, REQUEST, timeout_s=FETCH_TIMEOUT_S)
        assert wait_until(lambda: len(asked) == 2, WAIT_S)
        courier.give_up(lambda key: key == ("fetch", 2, "dn1"))
        assert courier.under_way == {("fetch", 1, "dn1")}
        courier.give_up(lambda key: key == ("fetch", 1, "dn1"))
        assert wait_until(lambda: not courier.under_way, WAIT_S)
        gone.set()
    courier.close()
    assert "given up" in told[0]


def test_another_datanode_at_the_address_is_not_asked():
    with datanode(accept) as (address, asked):
        assert ask(address, REQUEST, own="om1", cluster="c", datanode="dn1") == Accepted(detail="done")
        with pytest.raises(DatanodeFailed, match="it is now the address of 'dn1', not of 'dn2'"):
            ask(address, REQUEST, own="om1", cluster="c", datanode="dn2")
        assert wait_until(lambda: len(asked) > 2, WAIT_S)
    assert asked[2:] == [asked[0]], "only HELLO"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\xc3\x01newerver" + b"x", "UnknownSchema"),
        (b"\xc3\x01", "Undecodable"),
        (encode(HELLO)[:12], "Undecodable"),
        (bytes(MAX_HELLO_BYTES + 1), f"a HELLO frame of {MAX_HELLO_BYTES + 1} bytes"),
    ],
)
def test_a_hello_that_cannot_be_read_is_a_failure_of_that_datanode(payload: bytes, words: str):
    done: list[Any] = []
    told: list[str] = []
    courier = Courier(own="om1", cluster="c", log=told.append)
    with datanode(accept, hello=payload) as (address, _):
        with pytest.raises(DatanodeFailed, match=words):
            ask(address, REQUEST, own="om1", cluster="c")
        assert courier.send("k", address, REQUEST, done=done.append)
        assert wait_until(lambda: not courier.under_way, WAIT_S)
    courier.close()
    assert (done, len(told)) == ([], 1)


def test_failures_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datanode_client, "MAX_UNDER_WAY", 2)
    told: list[str] = []
    courier = Courier(own="om1", cluster="c", log=told.append)
    for number in range(33):
        courier._say(number, "refused")
    assert len(told) == 33
    courier._say(0, "refused")
    assert len(told) == 33, "it is remembered still"
    courier._say(1, "refused")
    assert len(told) == 34, "all were forgotten: some trouble is told once more"
    courier._say(5, "")
    assert 5 not in courier._told
    courier.close()
