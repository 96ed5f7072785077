"""A stream server's counters, on real connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from datanode_processors.errors import BlockError, shown
from datanode_processors.wire import counters as module
from datanode_processors.wire.counters import OTHERS, Counters
from datanode_processors.wire.wire import Wire
from schemas.stream_errors import OVERLOADED


@pytest.fixture
def wires() -> Iterator[list[Wire]]:
    pairs = [_connected() for _ in range(4)]
    yield [Wire(near) for near, _ in pairs]
    for near, far in pairs:
        near.close()
        far.close()


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


def used(wire: Wire, into: int, out: int, packets: int) -> None:
    wire.bytes_in, wire.bytes_out, wire.packets = into, out, packets


def test_bytes_are_counted_by_peer_while_a_connection_lives_and_once_it_has_gone(wires: list[Wire]) -> None:
    counters = Counters()
    first, second, third, unknown = wires
    for wire, peer in ((first, "a"), (second, "?"), (third, "a")):
        counters.attach(wire, peer)
    counters.name(second, "b")
    counters.name(unknown, "c")
    used(first, 10, 1, 2)
    used(second, 20, 2, 3)
    used(third, 30, 3, 4)
    used(unknown, 99, 99, 99)
    for _ in range(2):
        found = counters.snapshot(3)
        assert (found.bytes_in, found.bytes_out, found.packets) == ({"a": 40, "b": 20}, {"a": 4, "b": 2}, 9)
        assert found.connections == 3
    counters.detach(first)
    counters.detach(first)
    counters.detach(unknown)
    used(first, 99, 99, 99)
    found = counters.snapshot(2)
    assert (found.bytes_in, found.bytes_out, found.packets) == ({"a": 40, "b": 20}, {"a": 4, "b": 2}, 9)


def test_so_many_peers_are_counted_by_name(wires: list[Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PEERS", 2)
    counters = Counters()
    for number, wire in enumerate(wires):
        counters.attach(wire, f"p{min(number, 2)}")
        used(wire, 1, 1, 0)
        counters.detach(wire)
    assert counters.snapshot(0).bytes_in == {"p0": 1, "p1": 1, OTHERS: 2}


def test_streams_are_counted_by_how_they_end() -> None:
    counters = Counters()
    with counters.stream(2) as first:
        with counters.stream(2) as second:
            assert counters.streams == counters.snapshot(0).streams == 2
            with pytest.raises(BlockError, match="2 streams are open here") as caught, counters.stream(2):
                pass
            assert caught.value.code == OVERLOADED
            second.reclaimed = True
        first.completed = True
    with pytest.raises(ZeroDivisionError), counters.stream(1):
        raise ZeroDivisionError
    found = counters.snapshot(0)
    assert (found.streams, found.streams_opened) == (0, 3)
    assert (found.streams_completed, found.streams_reclaimed, found.streams_failed) == (1, 1, 1)
    counters.request()
    counters.request()
    assert counters.snapshot(0).requests == 2


@pytest.mark.parametrize(
    ("text", "expected"), [("four", "four"), ("fives", "five… (5 characters)"), ("a\n", "a\\n"), ("\x1b[", "\\x1b[")]
)
def test_a_peers_text_is_cut_behind_its_limit_and_made_visible(text: str, expected: str) -> None:
    assert shown(text, 4) == expected
