"""Fixtures of the tests of connections to datanodes."""

import pytest

from tests.support.sdk.datanode_peer import listening, talking


@pytest.fixture
def listens():
    """Return a factory of peers that say what a test tells them to; they end with the test."""
    with listening() as begin:
        yield begin


@pytest.fixture
def talks(listens):
    """Return a factory of (connection, peer) that have said HELLO."""
    with talking(listens) as begin:
        yield begin
