"""Fixtures of the tests of the client with datanodes."""

import pytest

from producers.blocks.datanodes import WORDS
from tests.support.sdk.datanode_peer import OWN, listening, talking
from tests.support.sdk.datanodes import World
from transport.datanodes.connection import DatanodeCaller


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
    with listening() as begin:
        yield begin


@pytest.fixture
def talks(listens):
    """Return a factory of (connection, peer) that have said HELLO; the connection fails as the client's do."""
    with talking(listens, DatanodeCaller(OWN, words=WORDS)) as begin:
        yield begin
