"""What the verifier does with a container that is closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.block_nodes import BLOCK, CONTAINER, DATA, Node, row_of


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node("dn1", tmp_path)
    yield made
    made.stop()


def close(node: Node) -> None:
    replica: Any = node.replica
    node.replica.close()
    node.pipelines.verifier._close(replica, CONTAINER)


def test_a_closed_container_whose_blocks_are_deleted_is_not_reported(node: Node):
    node.replica.put(row_of(deleted=True))
    node.replica.put(row_of(deleted=True), BLOCK + 1)
    for _ in range(2):
        close(node)
        assert node.store.containers() == []
        assert not node.path.parent.exists()
    node.write()  # a file that a deletion left behind
    close(node)
    assert node.store.containers() == []
    assert not node.path.parent.exists()


def test_what_is_emptied_is_not_made_again_at_a_start(node: Node, monkeypatch: pytest.MonkeyPatch):
    replica: Any = node.replica
    node.replica.put(row_of(deleted=True))
    node.replica.close()
    closed: list[int] = []
    monkeypatch.setattr(node.store, "close_container", closed.append)
    node.pipelines.verifier._look_through(replica)
    assert closed == []
    node.write(DATA, BLOCK + 1)
    node.pipelines.verifier._look_through(replica)
    assert closed == [CONTAINER]


def test_a_closed_container_that_has_a_block_stays(node: Node):
    node.write()
    node.write(DATA, BLOCK + 1)
    node.replica.put(row_of(deleted=True), BLOCK + 1)
    close(node)
    (usage,) = node.store.containers()
    assert (usage.container_id, usage.closed, usage.blocks) == (CONTAINER, True, 1)


def test_a_closed_container_that_lost_its_file_stays_closed(node: Node):
    close(node)
    (usage,) = node.store.containers()
    assert (usage.closed, usage.blocks) == (True, 0)
