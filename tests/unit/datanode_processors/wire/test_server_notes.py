"""What a stream server says of connections that it cannot take: each peer is told, the log hears of many at once."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire import server as module
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors
from schemas.security.certificates import Role
from tests.support.datanodes.streams import Client, Datanode, routes_of, write_block
from tests.support.local.waiting import eventually
from tests.support.security.certified import Certified

NO_THREAD = "a connection could not be served: can't start new thread"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Datanode]:
    made = Datanode("dn1", tmp_path)
    yield made
    made.stop()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets no thread for a connection start until it is called, as when the system has no more of them."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.endswith("-connection"):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return lambda: monkeypatch.setattr(threading.Thread, "start", real)


def refusal_of(node: Datanode) -> str:
    with pytest.raises(BlockError) as caught:
        Client(node.address)
    assert caught.value.code == stream_errors.OVERLOADED
    return str(caught.value)


def test_each_that_cannot_be_served_is_told_and_the_log_hears_of_many_at_once(
    node: Datanode, no_threads: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert "no thread can be started here" in refusal_of(node)
    eventually(lambda: node.server._untold == 2)
    assert node.notes == [NO_THREAD], "the others are told of with the next"
    monkeypatch.setattr(module, "NOTE_S", 0.0)
    refusal_of(node)
    refusal_of(node)
    eventually(lambda: len(node.notes) == 3)
    assert node.notes == [NO_THREAD, f"{NO_THREAD} (and 2 more)", NO_THREAD]
    assert node.server.snapshot().connections == 0
    no_threads()
    write_block(node.address, routes_of([node], [[]]), b"x")
    assert node.bytes_of() == b"x"


class Failing:
    """The server's socket, of which ``accept`` fails with one error after another, and then does not."""

    def __init__(self, real: socket.socket, *errors: OSError) -> None:
        self._real = real
        self.errors = list(errors)

    def accept(self) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def failing(node: Datanode, *codes: int) -> Failing:
    found = Failing(node.server._socket, *(OSError(code, errno.errorcode[code]) for code in codes))
    node.server._socket = found  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_a_peer_is_refused_on_the_one_kept_for_that(node: Datanode, code: int) -> None:
    failing(node, code)
    assert "no descriptor is free here" in refusal_of(node)
    assert node.notes == [f"a connection could not be accepted: {errno.errorcode[code]}"]
    eventually(lambda: node.server._reserve is not None)
    write_block(node.address, routes_of([node], [[]]), b"x")


@pytest.mark.parametrize("codes", [(errno.ECONNABORTED,), (errno.EMFILE, errno.EMFILE), (errno.ENOBUFS, errno.ENOMEM)])
def test_a_failure_to_accept_is_noted_and_the_peer_is_served_once_it_is_over(
    node: Datanode, codes: tuple[int, ...]
) -> None:
    """Also when the reserve is of no use, because another error comes where it would be used."""
    sock = failing(node, *codes)
    write_block(node.address, routes_of([node], [[]]), b"x")
    assert node.bytes_of() == b"x"
    assert sock.errors == []
    assert node.notes == [f"a connection could not be accepted: {errno.errorcode[codes[0]]}"]


def test_a_peer_that_hung_up_before_it_was_accepted_is_nobodys_failure(node: Datanode) -> None:
    failing(node, errno.EAGAIN)
    write_block(node.address, routes_of([node], [[]]), b"x")
    assert node.notes == []


def test_a_server_without_a_descriptor_in_reserve_takes_one_when_there_is_one_again(
    node: Datanode, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = node.server

    def fail(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("os.open", fail)
        assert server._hold_reserve() is None
    assert server._reserve is not None
    os.close(server._reserve)
    server._reserve = None
    assert not server._refuse_on_reserve(), "nobody could be refused"
    assert server._reserve is not None
    assert not server._refuse_on_reserve(), "nobody waits to be accepted"
    assert server._reserve is not None


def test_a_peer_that_goes_while_its_connection_is_tuned_is_nobodys_failure(
    node: Datanode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr(module, "Wire", fail)
        with socket.create_connection(("127.0.0.1", node.server.port)) as sock:
            sock.settimeout(30)
            assert sock.recv(1) == b"", "it is closed"
    assert node.notes == []
    assert node.server.snapshot().connections == 0
    write_block(node.address, routes_of([node], [[]]), b"x")


def test_a_peer_that_speaks_tls_is_closed_without_a_word(tmp_path: Path) -> None:
    certified = Certified(tmp_path / "authority")
    tls = WireTls(certified.tls("dn2", Role.DATANODE))
    secured = Datanode("dn2", tmp_path, WireLimits(max_connections=0), tls=tls)
    with socket.create_connection(("127.0.0.1", secured.server.port)) as sock:
        sock.settimeout(30)
        assert sock.recv(1) == b""
    secured.stop()


def test_an_end_frees_the_port_and_all_that_was_open_and_may_be_asked_for_twice(node: Datanode) -> None:
    client = Client(node.address)
    server = node.server
    server.stop()
    server.stop()
    assert server._socket.fileno() == server._wake_read.fileno() == server._wake_write.fileno() == -1
    assert server._reserve is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(server._reserve)
    assert server.snapshot().connections == 0
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    client.close()
