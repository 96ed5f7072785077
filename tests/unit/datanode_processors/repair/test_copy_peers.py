"""Whom a copy's holder asks, and whom it leaves alone for a while: real datanodes, and a clock that is set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.repair import copy_peers as module
from datanode_processors.repair.copy_peers import CopyPeers
from datanode_processors.repair.core import away
from schemas import stream_errors as codes
from tests.support.datanodes.streams import CLUSTER, Datanode

NOWHERE = "127.0.0.1:1"


class World:
    """A datanode that may be asked, and the time."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1_000.0
        self.other = Datanode("dn2", folder)
        self.peers = CopyPeers(node="dn1", cluster=CLUSTER)

    def refused(self, address: str) -> str:
        with pytest.raises(BlockError) as caught, self.peers.connect(address):
            raise AssertionError("it is connected")
        return caught.value.message

    def is_left_alone(self, address: str) -> bool:
        return self.refused(address) == "it did not answer a moment ago"

    def errand(self, code: str | None = None) -> None:
        """Ask the other datanode for something, of which this comes."""
        with suppress(BlockError) if code else nullcontext(), self.peers.connect(self.other.address) as peer:
            assert peer.name == "dn2"
            if code is not None:
                raise BlockError(code, "as if")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    yield made
    made.other.stop()


def test_a_datanode_that_is_not_there_is_left_alone_for_a_while(world: World) -> None:
    assert not world.is_left_alone(NOWHERE), "the first time it is asked"
    assert world.is_left_alone(NOWHERE)
    world.now_s += away.FIRST_PAUSE_S - 0.1
    assert world.is_left_alone(NOWHERE)
    world.now_s += 0.1
    assert not world.is_left_alone(NOWHERE)
    world.now_s += away.FIRST_PAUSE_S
    assert world.is_left_alone(NOWHERE), "the pause has grown"


def test_who_was_named_is_asked_again_at_once(world: World) -> None:
    world.refused(NOWHERE)
    world.peers.named(["127.0.0.1:2"])
    assert world.is_left_alone(NOWHERE)
    world.peers.named(["127.0.0.1:2", NOWHERE])
    assert not world.is_left_alone(NOWHERE)


def test_a_datanode_does_not_ask_itself(tmp_path: Path, world: World) -> None:
    own = Datanode("dn1", tmp_path)
    for _ in range(2):
        assert world.refused(own.address) == "that is this datanode"
    own.stop()


@pytest.mark.parametrize(
    ("code", "is_away"), [(None, False), (codes.TIMED_OUT, True), (codes.FAILED, False), (codes.OVERLOADED, False)]
)
def test_only_one_that_says_nothing_is_left_alone(world: World, code: str | None, is_away: bool) -> None:
    world.errand(code)
    if is_away:
        assert world.is_left_alone(world.other.address)
    else:
        world.errand()


def test_who_answers_again_begins_anew(world: World) -> None:
    world.errand(codes.TIMED_OUT)
    world.now_s += away.FIRST_PAUSE_S
    world.errand(codes.TIMED_OUT)
    world.now_s += away.FIRST_PAUSE_S
    assert world.is_left_alone(world.other.address)
    world.now_s += away.FIRST_PAUSE_S
    world.errand()
    world.errand(codes.TIMED_OUT)
    world.now_s += away.FIRST_PAUSE_S
    world.errand()
