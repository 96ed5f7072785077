"""Fixtures of the tests of the client with datanodes."""

import pytest

from tests.support.sdk.datanode_peer import Peer, greeted
from tests.support.sdk.datanodes import World


@pytest.fixture
def make(tmp_path):
    """Return a factory of worlds, each with a folder and datanodes of its own; all end with the test."""
    made: list[World] = []

    def begin(**settings):
        made.append(World(tmp_path / str(len(made)), **settings))
        return made[-1]

    yield begin
    for world in made:
        world.close()


@pytest.fixture
def listens():
    """Return a factory of peers that say what a test tells them to; they end with the test."""
    made: list[Peer] = []

    def begin(*greets):
        made.append(Peer(*greets))
        return made[-1]

    yield begin
    for peer in made:
        peer.close()


@pytest.fixture
def talks(listens):
    """Return a factory of (connection, peer) that have said HELLO."""
    made = []

    def begin(**settings):
        peer = listens()
        made.append(greeted(peer, **settings))
        return made[-1], peer

    yield begin
    for connection in made:
        connection.close()
