"""Blocks whose bytes are damaged on the disks of all their replicas: what is right somewhere is read, what is right nowhere is named.
Copies on a datanode outside the pipeline are damaged, repaired, and rid of what was deleted while their datanode was dead.

Real processes, sockets, files and a real broker. A block is damaged by writing to its files. Datanodes repair themselves from each other
within moments, so where that must not happen they are told wrong addresses of each other (:func:`strangers`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.repair.copy_sources import SOURCES_FILE
from datanode_processors.wire.peer import Peer
from producers.errors import DatanodeError
from schemas import stream_errors as codes
from schemas.records.datanode import (
    BlockId,
    CloseContainer,
    DeleteBlocks,
    FetchContainer,
    ListContainer,
    OpenPipeline,
    SalvageBlock,
)
from schemas.records.packets import CELL_BYTES
from tests.support.datanodes.datanodes import CLUSTER, REQUEST_TIMEOUT_S, Block, Datanodes
from tests.support.datanodes.refusals import refused
from tests.support.faults.datanode_faults import Ledger, settle, unhealthy
from tests.support.local.stack import LocalKafka
from tests.support.sdk.key_world import KIB, MIB, KeyWorld, block_of
from tests.support.sdk.written import fresh_bytes

pytestmark = pytest.mark.integration

PARTITION = 1
MEMBERS = ["dn1", "dn2", "dn3"]
CELLS = 40
LENGTH = CELLS * CELL_BYTES - 1000
"""The last cell is a partial one."""
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def nodes(lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datanodes]:
    """Four datanodes; pipeline 1 is dn1 to dn3."""
    with Datanodes(tmp_path_factory.mktemp("damage"), lease_kafka(), count=4) as started:
        started.open_pipeline(PARTITION, MEMBERS)
        yield started


@pytest.fixture
def world(nodes: Datanodes) -> Iterator[KeyWorld]:
    made = KeyWorld(nodes)
    yield made
    made.close()


def put(world: KeyWorld, key: str, data: bytes) -> Block:
    """Write a key that has one block, which every member has whole."""
    with world.client.open(f"/v/b/{key}", "wb") as file:
        file.write(data)
    (location,) = world.blocks(key)
    block = block_of(location)
    assert all(one.satisfied for one in world.nodes.watch(block, len(data)))
    return block


def damage(nodes: Datanodes, name: str, block: Block, cells: Sequence[int]) -> None:
    """Turn a byte of each cell over in a datanode's block file."""
    descriptor = os.open(nodes.block_file(name, block), os.O_RDWR)
    for cell in cells:
        at = cell * CELL_BYTES + 99
        os.pwrite(descriptor, bytes([os.pread(descriptor, 1, at)[0] ^ 0xFF]), at)
    os.fsync(descriptor)
    os.close(descriptor)


def open_again(nodes: Datanodes, *, right: bool) -> None:
    members = nodes.members(MEMBERS)
    for name in MEMBERS:
        told = [one if right or one.datanode == name else replace(one, address=NOBODY) for one in members]
        nodes.ask(name, OpenPipeline(pipeline=f"pipeline-{PARTITION}", partition=PARTITION, generation=1, members=told))


@contextmanager
def strangers(nodes: Datanodes) -> Iterator[None]:
    """The members do not find each other for the time of the block: nothing is repaired."""
    open_again(nodes, right=False)
    try:
        yield
    finally:
        open_again(nodes, right=True)


def salvage(nodes: Datanodes, name: str, block: Block, offset: int, length: int) -> bytes:
    """Read whole cells from a datanode's unhealthy block; raises BlockError."""
    request = SalvageBlock(
        partition=block.partition, container_id=block.container_id, local_id=block.local_id, offset=offset,
        length=length, bcs_id=0,
    )  # fmt: skip
    with Peer(nodes.address(name), own="test", cluster=CLUSTER, timeout_s=REQUEST_TIMEOUT_S) as peer:
        return b"".join(bytes(data) for _, data, _ in peer.read_block(request))


def find_damage(nodes: Datanodes, block: Block, length: int = LENGTH) -> None:
    """Have every member find out that its block is unhealthy."""
    for name in MEMBERS:
        refused(lambda name=name: nodes.read(name, block, length))  # type: ignore[misc]
        assert unhealthy(nodes, name, PARTITION) >= 1
        assert refused(lambda name=name: nodes.read(name, block, 1)).code == codes.NOT_COMMITTED  # type: ignore[misc]


DAMAGED = {"dn1": [0, 5, 17, 30], "dn2": [3, 18, 31], "dn3": [4, 6, 19]}
GOOD = {"dn1": (18, 30), "dn2": (4, 18), "dn3": (7, 19)}
"""Cells in a row (the last one excluded) that are right there."""
CUT_AT = 37 * CELL_BYTES + 77
"""Where dn3's file ends."""


@pytest.mark.slow
def test_replicas_damaged_in_different_cells_are_read_as_one(
    nodes: Datanodes, ledger: Ledger, world: KeyWorld, fault_round: int
) -> None:
    key, data = f"different-{fault_round}", fresh_bytes(LENGTH)
    block = put(world, key, data)
    with strangers(nodes):
        for name, cells in DAMAGED.items():
            damage(nodes, name, block, cells)
        os.truncate(nodes.block_file("dn3", block), CUT_AT)
        find_damage(nodes, block)
        for _ in range(3):
            with world.client.open(f"/v/b/{key}") as file:
                assert file.read() == data
        chance = random.Random(fault_round)
        with world.client.open(f"/v/b/{key}") as file:
            for _ in range(30):
                offset, size = chance.randrange(len(data)), chance.randrange(300 * KIB)
                assert file.pread(size, offset) == data[offset : offset + size]
        # Each by itself: what is right comes, what is not is refused where it lies.
        for name, cells in DAMAGED.items():
            start, end = (cell * CELL_BYTES for cell in GOOD[name])
            assert salvage(nodes, name, block, start, end - start) == data[start:end]
            for cell in cells:
                error = refused(lambda name=name, cell=cell: salvage(nodes, name, block, cell * CELL_BYTES, 1))  # type: ignore[misc]
                assert (error.code, error.offset) == (codes.CHECKSUM_MISMATCH, cell * CELL_BYTES)
        error = refused(lambda: salvage(nodes, "dn3", block, 36 * CELL_BYTES, LENGTH))
        assert (error.code, f"ends here at {37 * CELL_BYTES}" in error.message) == (codes.NOT_COMMITTED, True)
        assert all(unhealthy(nodes, name, PARTITION) >= 1 for name in MEMBERS), "it was read all the same"
    # They find each other again, and each has what another lacks.
    for name in MEMBERS:
        nodes.wait(f"{name} is healthy", lambda name=name: unhealthy(nodes, name, PARTITION) == 0)  # type: ignore[misc]
        assert nodes.block_file(name, block).read_bytes() == data
    ledger.add_key(world, key, data)


@pytest.mark.slow
def test_a_cell_damaged_everywhere_is_named_and_all_others_are_read_and_repaired(
    nodes: Datanodes, ledger: Ledger, world: KeyWorld, fault_round: int
) -> None:
    """Nobody keeps them from repairing themselves: they have no right bytes of that cell."""
    key, data = f"same-{fault_round}", fresh_bytes(LENGTH)
    block = put(world, key, data)
    lost = 7
    others = {"dn1": [2, 20], "dn2": [8, 21], "dn3": [6, 22]}
    for name, cells in others.items():
        damage(nodes, name, block, [lost, *cells])
    start, end = lost * CELL_BYTES, (lost + 1) * CELL_BYTES
    named = rf"SalvageBlock of {block.container_id}/{block.local_id}: .* at offset {start} do not have their checksum"
    with world.client.open(f"/v/b/{key}") as file:
        for size, offset in ((1, start), (2, start - 1), (10, end - 5)):
            with pytest.raises(DatanodeError, match=named) as caught:
                file.pread(size, offset)
            assert caught.value.status == codes.CHECKSUM_MISMATCH
        assert file.pread(start, 0) == data[:start]
        assert file.pread(LENGTH, end) == data[end:]
        chance = random.Random(fault_round)
        for _ in range(20):
            offset = chance.choice([chance.randrange(start), chance.randrange(end, LENGTH)])
            size = min(chance.randrange(MIB), (start if offset < start else LENGTH) - offset)
            assert file.pread(size, offset) == data[offset : offset + size]
    expected = bytearray(data)
    expected[start + 99] ^= 0xFF
    for name in MEMBERS:
        for offset, length in ((0, start), (end, LENGTH - end)):
            with suppress(BlockError):  # so that it knows of all that is damaged there
                nodes.read(name, block, length, offset=offset)
        file_on_disk = nodes.block_file(name, block)
        nodes.wait(
            f"{name} repairs what it can",
            lambda file_on_disk=file_on_disk: file_on_disk.read_bytes() == expected,  # type: ignore[misc]
        )
        assert unhealthy(nodes, name, PARTITION) >= 1
    # Somebody finds the bytes in a drawer: one replica is enough.
    damage(nodes, "dn2", block, [lost])
    assert nodes.block_file("dn2", block).read_bytes() == data
    for name in MEMBERS:
        nodes.wait(f"{name} is healthy", lambda name=name: unhealthy(nodes, name, PARTITION) == 0)  # type: ignore[misc]
    ledger.add_key(world, key, data)


def copied(nodes: Datanodes, container: int) -> tuple[dict[Block, bytes], int]:
    """Write two blocks, have their container closed and dn4, which is no member, copy it; return them and the index of the first."""
    settle(nodes)
    blocks = {nodes.block(PARTITION, number, container=container): fresh_bytes(LENGTH) for number in (1, 2)}
    indexes = [nodes.write(block, data).bcs_id for block, data in blocks.items()]
    number = next(iter(blocks)).container_id
    nodes.ask(nodes.wait_leader(PARTITION), CloseContainer(partition=PARTITION, container_id=number))
    listed = ListContainer(partition=PARTITION, container_id=number)
    for name in MEMBERS:
        nodes.wait(f"{name} closes it", lambda name=name: nodes.ask(name, listed).closed)  # type: ignore[misc]
    fetch(nodes, number, "dn1")
    return blocks, indexes[0]


def fetch(nodes: Datanodes, container: int, *sources: str) -> None:
    """Have dn4 fetch a container, or if it has it, tell it whom to ask."""
    addresses = [nodes.address(name) for name in sources]
    nodes.ask("dn4", FetchContainer(partition=PARTITION, container_id=container, sources=addresses))


def copies(nodes: Datanodes) -> dict[str, Any]:
    """Return what dn4 says of its copies."""
    return dict((nodes.status("dn4") or {}).get("copies", {}))


def is_mended(nodes: Datanodes, block: Block, data: bytes) -> bool:
    path = nodes.block_file("dn4", block)
    return path.exists() and path.read_bytes() == data and copies(nodes)["unhealthy_blocks"] == 0


def test_a_copy_answers_with_verified_cells_of_its_committed_length_or_not_at_all(
    nodes: Datanodes, fault_round: int
) -> None:
    """dn4 is no member; its copy is damaged and cut while it is down, so that nothing but the rows can tell. Its source is down, too."""
    blocks, index = copied(nodes, 30 + fault_round)
    block, data = next(iter(blocks.items()))
    assert nodes.read("dn4", block, LENGTH, bcs_id=index) == data
    assert refused(lambda: nodes.read("dn4", block, 1, bcs_id=index + 1)).code == codes.NOT_COMMITTED
    nodes.kill("dn1")
    damage(nodes, "dn4", block, [3])
    error = refused(lambda: nodes.read("dn4", block, LENGTH))
    assert (error.code, error.offset) == (codes.CHECKSUM_MISMATCH, 3 * CELL_BYTES)
    assert nodes.read("dn4", block, LENGTH, offset=4 * CELL_BYTES) == data[4 * CELL_BYTES :]
    (named,) = copies(nodes)["unhealthy"]
    assert (named["container"], named["block"]) == (block.container_id, block.local_id)
    # Not the reason: it is another one once a repair has failed.
    told = nodes.get("dn4", "/health")["copies"]
    assert [(one["container"], one["block"]) for one in told] == [(block.container_id, block.local_id)]
    nodes.kill("dn4")
    os.truncate(nodes.block_file("dn4", block), 10 * CELL_BYTES + 5)
    nodes.start("dn4")
    nodes.wait("it sees that at once", lambda: copies(nodes).get("unhealthy_blocks") == 1)
    assert refused(lambda: nodes.read("dn4", block, LENGTH)).code == codes.NOT_COMMITTED
    assert refused(lambda: nodes.read("dn4", block, 1)).code == codes.NOT_COMMITTED
    assert refused(lambda: salvage(nodes, "dn4", block, 0, LENGTH)).code == codes.CHECKSUM_MISMATCH
    assert salvage(nodes, "dn4", block, 4 * CELL_BYTES, 6 * CELL_BYTES) == data[4 * CELL_BYTES : 10 * CELL_BYTES]
    assert refused(lambda: salvage(nodes, "dn4", block, 10 * CELL_BYTES, 1)).code == codes.NOT_COMMITTED
    # The Object Manager names another: what is wrong and what is missing comes from there.
    fetch(nodes, block.container_id, "dn2")
    nodes.wait("dn4 repairs its copy", lambda: is_mended(nodes, block, data))
    assert nodes.read("dn4", block, LENGTH) == data
    nodes.kill("dn4")
    with nodes.block_file("dn4", block).open("wb") as file:
        file.write(data + b"more than was committed")
    nodes.start("dn4")
    assert nodes.read("dn4", block, LENGTH + 1000) == data
    assert refused(lambda: nodes.read("dn4", block, 1, offset=LENGTH + 1)).code == codes.INVALID_REQUEST


def test_the_scrubber_finds_damage_in_a_copy_and_has_it_repaired(
    nodes: Datanodes, monkeypatch: pytest.MonkeyPatch, fault_round: int
) -> None:
    """A bit turned over and a file removed, under a running datanode; nobody reads them."""
    blocks, _ = copied(nodes, 60 + fault_round)
    with monkeypatch.context() as scrubbing:
        scrubbing.setitem(nodes.options, "block_scrub_interval_ms", 300)
        nodes.kill("dn4")
        nodes.start("dn4")
    first, second = blocks
    nodes.wait("a look", lambda: copies(nodes).get("unconfirmed") == 0)
    damage(nodes, "dn4", first, [0, 17])
    nodes.wait("the bits are turned back", lambda: is_mended(nodes, first, blocks[first]))
    nodes.block_file("dn4", second).unlink()
    nodes.wait("the file is back", lambda: is_mended(nodes, second, blocks[second]))
    for block, data in blocks.items():
        assert nodes.read("dn4", block, LENGTH) == data
    # Where all have lost a cell, it says so, and goes on to.
    for name in [*MEMBERS, "dn4"]:
        damage(nodes, name, first, [9])
    damage(nodes, "dn4", second, [9])
    expected = bytearray(blocks[first])
    expected[9 * CELL_BYTES + 99] ^= 0xFF
    nodes.wait("one is named", lambda: [one["block"] for one in copies(nodes)["unhealthy"]] == [first.local_id])
    nodes.wait("the other is mended", lambda: nodes.block_file("dn4", second).read_bytes() == blocks[second])
    assert nodes.block_file("dn4", first).read_bytes() == expected
    damage(nodes, "dn2", first, [9])
    fetch(nodes, first.container_id, "dn1", "dn2")
    nodes.wait("all is right again", lambda: is_mended(nodes, first, blocks[first]))
    nodes.kill("dn4")
    nodes.start("dn4")


def test_a_holder_of_a_copy_that_was_dead_while_a_block_was_deleted_deletes_it_when_it_is_back(
    nodes: Datanodes, fault_round: int
) -> None:
    blocks, _ = copied(nodes, 90 + fault_round)
    gone, kept = blocks
    nodes.wait("it knows its source", lambda: copies(nodes).get("unconfirmed") == 0)
    hint = nodes.data_dir("dn4") / SOURCES_FILE
    nodes.wait("it has written that down", lambda: hint.exists() and f'"{gone.container_id}"' in hint.read_text())
    nodes.kill("dn4")
    deletion = DeleteBlocks(
        partition=PARTITION, blocks=[BlockId(container_id=gone.container_id, local_id=gone.local_id)]
    )
    nodes.ask(nodes.wait_leader(PARTITION), deletion)
    assert nodes.block_file("dn4", gone).exists()
    nodes.start("dn4")
    nodes.wait("its bytes are gone", lambda: not nodes.block_file("dn4", gone).exists())
    assert refused(lambda: nodes.read("dn4", gone, 1)).code == codes.BLOCK_DELETED
    assert nodes.read("dn4", kept, LENGTH) == blocks[kept]
