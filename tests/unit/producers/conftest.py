"""Fixtures of the tests of the client with datanodes."""

import pytest

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
