from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from datanode_processors.limits import Limits
from tests.support.streams import Datanode, put_block, routes_of, write_block

MIB = 1024 * 1024

Start = Callable[..., list[Datanode]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Datanode] = []

    def begin(count: int, limits: Limits | None = None) -> list[Datanode]:
        first = len(nodes) + 1
        nodes.extend(Datanode(f"dn{first + number}", tmp_path, limits) for number in range(count))
        return nodes[-count:]

    yield begin
    for node in nodes:
        node.server.stop()


def some_bytes(length: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(length)


def trees(count: int) -> dict[str, list[list[int]]]:
    """Return spanning trees of ``count`` nodes: who the children of each are."""
    star: list[list[int]] = [list(range(1, count)), *([] for _ in range(count - 1))]
    chain = [[number + 1] if number + 1 < count else [] for number in range(count)]
    binary = [[child for child in (2 * number + 1, 2 * number + 2) if child < count] for number in range(count)]
    return {"star": star, "chain": chain, "two children": binary}


SHAPES = [(count, name, tree) for count in range(1, 8) for name, tree in trees(count).items()]


@pytest.mark.parametrize(("count", "name", "tree"), SHAPES, ids=[f"{name}-{count}" for count, name, _ in SHAPES])
def test_bytes_arrive_on_every_replica_of_every_tree(
    start: Start, count: int, name: str, tree: Sequence[Sequence[int]]
) -> None:
    nodes = start(count)
    data = some_bytes(MIB + 12345)
    committed = write_block(nodes[0].address, routes_of(nodes, tree), data, put=True)
    assert committed.length == len(data)
    assert [node.blocks.bytes_of(1) == data for node in nodes] == [True] * count
    assert nodes[0].pipelines.committed[1] == put_block(data, 1)
    assert [node.pipelines.committed for node in nodes[1:]] == [{}] * (count - 1), "only the primary commits"
    assert [node.blocks.flushes for node in nodes] == [1] * count
    assert [node.blocks.writers for node in nodes] == [0] * count
