"""What a reader does while a replica is silent: whom it leaves, when, and whom it waits for. Over real stream servers."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from producers import waiting
from producers.blocks import datanodes as datanodes_module
from producers.blocks.silent_members import SilentMembers
from producers.errors import DatanodeError
from producers.files import key_reader
from producers.files.key_reader import KeyReader
from schemas.records.datanode import Member
from schemas.records.packets import CELL_BYTES
from schemas.stream_errors import TIMED_OUT
from tests.support.sdk.datanodes import KIB, World
from transport.waiting.core.backoff import Backoff

DATA = random.Random(7).randbytes(20 * CELL_BYTES + 100)
RACKS = {"dn11": "/near/1", "dn12": "/far/2", "dn13": "/far/3"}
LONG_MS = 60_000
"""Longer than a test may take."""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    monkeypatch.setattr(key_reader, "PAUSES", Backoff(first_s=1e-9, last_s=1e-9))
    monkeypatch.setattr(key_reader, "LOOK_MS", 20)
    made: list[World] = []

    def begin(**settings: Any) -> World:
        world: Any = World
        made.append(world(tmp_path / str(len(made)), block_bytes=4096 * KIB, **settings))
        made[-1].racks = RACKS
        made[-1].put(DATA)
        return made[-1]

    yield begin
    for world in made:
        world.close()


def reader_of(world: World, **changes: Any) -> KeyReader:
    """Return a reader whose nearest replica is dn11's."""
    return KeyReader(world.client.streams, world.key().blocks, options=world.with_options(rack="/near/1"), **changes)


def read(reader: KeyReader, offset: int = 0, length: int = len(DATA)) -> bytes:
    buffer = bytearray(length)
    count = reader.read_into(memoryview(buffer), offset)
    return bytes(buffer[:count])


def remembered(world: World) -> set[str]:
    """Return which datanodes the client takes for silent."""
    streams = world.client.streams
    return streams.datanodes.silent.among(streams.directory.pipeline(world.key().blocks[0].pipeline).members)


def stalled(world: World, monkeypatch: pytest.MonkeyPatch, name: str = "dn11") -> threading.Event:
    """Have a datanode say HELLO and answer no read until the event is set."""
    goes_on = threading.Event()
    pipelines = world.nodes[name].pipelines
    real = pipelines.readable

    def readable(request: Any) -> Any:
        goes_on.wait(LONG_MS / 1000)
        return real(request)

    monkeypatch.setattr(pipelines, "readable", readable)
    return goes_on


def found_silent_by(world: World, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Have probes find the named datanodes silent; return the list of those that were probed, which grows."""
    probed: list[str] = []

    def probe(member: Member) -> None:
        probed.append(member.datanode)
        tell = silent.on_silent if member.datanode in names else silent.on_answered
        tell(member)

    silent = SilentMembers(probe)
    monkeypatch.setattr(world.client.streams.datanodes, "silent", silent)
    return probed


def test_who_takes_connections_and_says_nothing_is_left_and_asked_last_by_the_next_readers(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (key_reader, datanodes_module):
        monkeypatch.setattr(module, "PROBE_TIMEOUT_MS", 100)
    world = make()
    node = world.nodes["dn11"]
    node.stop()
    # The kernel takes connections, as for a process that hangs.
    with closing(socket.create_server(("127.0.0.1", int(node.address.rpartition(":")[2])))):
        first = reader_of(world)  # the kept connection has the last words of the former process
        assert read(first) == DATA
        assert first.failovers == 1
        assert remembered(world) == {"dn11"}
        for _ in range(5):
            later = reader_of(world)
            assert read(later) == DATA
            assert later.failovers == 0


def test_who_refuses_is_not_remembered(make: Callable[..., World]) -> None:
    world = make()
    world.nodes["dn11"].stop()
    for _ in range(2):
        reader = reader_of(world)
        assert read(reader) == DATA
        assert reader.failovers == 1
    assert remembered(world) == set()


def test_a_kept_connection_that_is_silent_is_left_once_a_probe_says_so(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_reader, "LEAVE_MS", LONG_MS)
    world = make()
    goes_on = stalled(world, monkeypatch)
    probed = found_silent_by(world, monkeypatch, "dn11")
    reader = reader_of(world)
    assert read(reader) == DATA
    assert reader.failovers == 1
    assert set(probed) == {"dn11"}
    assert not goes_on.is_set()
    goes_on.set()


def test_who_says_hello_and_sends_nothing_is_left_after_a_while_and_not_remembered(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_reader, "LEAVE_MS", 200)
    world = make()
    goes_on = stalled(world, monkeypatch)
    reader = reader_of(world)
    assert read(reader) == DATA
    assert reader.failovers == 1
    assert remembered(world) == set()
    goes_on.set()


def test_who_falls_silent_in_the_middle_of_an_answer_is_asked_last_from_then_on(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    reader = reader_of(world)
    part = reader.next_bytes(0, len(DATA))
    assert part == DATA[: len(part)]
    assert len(part) < len(DATA) // 2
    block = reader._block
    assert block is not None
    assert block._connection is not None

    def silence(*_: Any, **__: Any) -> None:
        raise DatanodeError(TIMED_OUT, "it is silent")

    monkeypatch.setattr(block._connection, "receive_patiently", silence)
    for cell in (len(part) // CELL_BYTES, 9, 3, 15):
        assert read(reader, cell * CELL_BYTES, 1) == DATA[cell * CELL_BYTES :][:1]
    assert reader.failovers == 1
    assert len(world.nodes["dn11"].pipelines.reads) == 1


@pytest.mark.parametrize("alone", ["the only member", "the replica that is checked", "the others have failed"])
def test_the_last_one_to_be_asked_is_waited_for_with_a_word(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, alone: str
) -> None:
    monkeypatch.setattr(key_reader, "LEAVE_MS", 40)
    monkeypatch.setattr(waiting, "WORD_AFTER_MS", 0)
    monkeypatch.setattr(waiting, "WORD_EACH_MS", 0)
    world = make(replicas=1) if alone == "the only member" else make()
    name = "dn11"
    if alone == "the others have failed":
        name = "dn13"
        for other in ("dn11", "dn12"):
            world.nodes[other].stop()
    goes_on = stalled(world, monkeypatch, name)
    found_silent_by(world, monkeypatch, name)
    threading.Timer(0.5, goes_on.set).start()
    with caplog.at_level(logging.WARNING, "stratolog.client"):
        reader = reader_of(world, replica=0) if alone == "the replica that is checked" else reader_of(world)
        assert read(reader, 0, 1) == DATA[:1]
    assert any(f"{name} at" in message and "is silent" in message for message in caplog.messages)
    reader.close()
