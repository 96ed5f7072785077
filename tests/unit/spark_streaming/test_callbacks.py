"""The callback server of Spark's Python: real sockets, and a caller that speaks as Spark's Java does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from pyspark import accumulators

from spark_streaming.records import callbacks
from spark_streaming.records.callbacks import is_to_be_started
from transport.waiting.deadline import Deadline

SECRET = "c0ffee" * 8
PROOF = f"A\n{SECRET}\ne\n".encode()
CALL = b"c\np0\ncall\ne\n"
"""A call of what is registered as ``p0``."""


class Called:
    """What Java would call."""

    count = 0

    def call(self) -> str:
        Called.count += 1
        return "done"

    class Java:
        implements: ClassVar[list[str]] = ["java.util.concurrent.Callable"]


def python_side() -> PythonParameters:
    return PythonParameters(
        port=0, eager_load=False, daemonize=True, daemonize_connections=True, accept_timeout=0.05
    )  # fmt: skip


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(callbacks, "PROOF_S", 1.0)
    monkeypatch.setattr(Called, "count", 0)
    gateway: Any = ClientServer(
        java_parameters=JavaParameters(port=9, auth_token=SECRET),
        python_parameters=python_side(),
    )
    assert is_to_be_started(gateway)
    gateway.start_callback_server()
    assert not is_to_be_started(gateway)
    gateway.gateway_property.pool.put(Called(), "p0")
    yield gateway._callback_server.server_socket.getsockname()[1]
    gateway.shutdown_callback_server()


def connect(port: int) -> socket.socket:
    """Connect; Py4J's server begins to listen a moment after it was started."""
    deadline = Deadline.after_s(10)
    while True:
        try:
            made = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            assert not deadline.has_passed
    made.settimeout(10)
    return made


def heard(sock: socket.socket, data: bytes) -> bytes:
    """Say something, and return the answer; nothing if the server hangs up."""
    try:
        sock.sendall(data)
        return sock.recv(1000)
    except ConnectionError:
        return b""


def test_java_calls_once_it_has_proved_itself(port: int) -> None:
    with connect(port) as java:
        assert heard(java, PROOF) == b"!yv\n"
        assert heard(java, CALL) == b"!ysdone\n"
        assert heard(java, CALL) == b"!ysdone\n"
    assert Called.count == 2


@pytest.mark.parametrize(
    "said", [CALL, b"A\n" + b"0" * 48 + b"\ne\n" + CALL, b"A\n\ne\n" + CALL, PROOF.replace(b"e\n", b"x\n") + CALL,
             b"x" * 100_000, b"\n\n\n\n", b"\xff" * 600 + b"\n"],
)  # fmt: skip
def test_a_stranger_calls_nothing(said: bytes, port: int) -> None:
    with connect(port) as stranger:
        assert heard(stranger, said) == b""
    assert Called.count == 0


def test_silent_strangers_are_closed_and_keep_java_from_nothing(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "MOST_UNPROVEN", 3)
    strangers = [connect(port) for _ in range(10)]
    for one in strangers[::2]:
        with suppress(ConnectionError):  # it has made room
            one.send(b"A\n")
    with connect(port) as java:
        assert heard(java, PROOF + CALL).startswith(b"!yv\n")
    for one in strangers:
        assert heard(one, b"") == b""
        one.close()
    assert Called.count == 1


def test_accumulators_are_heard_of_java_alone_and_nobody_holds_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "PROOF_S", 1.0)
    monkeypatch.setattr(callbacks, "MOST_UNPROVEN", 3)
    monkeypatch.setattr(accumulators, "AccumulatorServer", accumulators.AccumulatorServer)
    callbacks.guard_accumulators()
    server = accumulators._start_update_server(SECRET)
    port = server.server_address[1]
    nothing = (0).to_bytes(4, "big")
    strangers = [connect(port) for _ in range(6)]
    try:
        for said in (b"0" * 48 + nothing, b"\0" * 1000, SECRET[:10].encode() + b"x"):
            with connect(port) as wrong:
                assert heard(wrong, said) == b""
        with connect(port) as java:
            java.sendall(SECRET[:7].encode())
            assert heard(java, SECRET[7:].encode() + nothing) == b"\1"
            for one in strangers:
                assert heard(one, b"") == b""
            assert heard(java, nothing) == b"\1", "who has proved itself may be silent for long"
    finally:
        for one in strangers:
            one.close()
        server.shutdown()


def test_a_server_that_listens_already_and_asks_nobody_is_refused() -> None:
    gateway: Any = ClientServer(
        java_parameters=JavaParameters(port=9, auth_token=SECRET),
        python_parameters=python_side(),
    )
    gateway.start_callback_server()
    try:
        with pytest.raises(RuntimeError, match="asks nobody who it is"):
            is_to_be_started(gateway)
    finally:
        gateway.shutdown_callback_server()
    with pytest.raises(RuntimeError, match="PYSPARK_PIN_THREAD"):
        is_to_be_started(SimpleNamespace(_callback_server=None))
