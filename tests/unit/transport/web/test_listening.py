"""Where a server listens: on every address of a host that this machine has, at a port that is named if it is taken."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from stratolog.local.ports import free_ports
from transport.web.listening import CannotListen, listen, port_of


def found(*addresses: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_port_0_is_a_free_one(host: str) -> None:
    (one,) = listen(host, 0)
    with closing(one):
        assert port_of([one]) > 0
        socket.create_connection(one.getsockname()[:2], 10).close()


def test_an_address_that_is_taken_is_named_with_who_wanted_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            CannotListen, match=f"^the dashboard cannot listen on 127.0.0.1:{port}: Address already in use$"
        ):
            listen("127.0.0.1", port, "the dashboard")


@pytest.mark.parametrize("host", ["192.0.2.1", "nobody.invalid"])
def test_an_address_that_is_not_here_is_named(host: str) -> None:
    with pytest.raises(CannotListen, match=f"the HTTP server cannot listen on {host}:9: "):
        listen(host, 9)


def test_an_address_that_a_name_has_twice_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    addresses = found("127.0.0.1", "127.0.0.1", "127.0.0.2", port=port)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    listening = listen("here", port)
    assert [one.getsockname() for one in listening] == [("127.0.0.1", port), ("127.0.0.2", port)]
    for one in listening:
        one.close()


def test_what_listens_already_is_closed_if_a_further_address_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        addresses = found("127.0.0.1", "127.0.0.2", port=port)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        with pytest.raises(CannotListen, match="here"):
            listen("here", port)
        socket.create_server(("127.0.0.1", port)).close()
