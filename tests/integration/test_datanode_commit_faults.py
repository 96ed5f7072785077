"""What the log and the bytes may do to each other: PutBlocks out of order, void or lost; replicas without bytes or without room.

Real processes, sockets, files and a real broker, which is killed too. After every case all that was acknowledged is compared on every
replica (:class:`tests.support.faults.datanode_faults.Ledger`).
"""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from datanode_processors.blocks.space import GRANT_BYTES
from producers.files.key_files import KeyOutput
from schemas import stream_errors as codes
from schemas.records.datanode import BlockCommitted, BlockId, CloseContainer, DeleteBlocks
from schemas.records.packets import CELL_BYTES
from tests.support.datanodes.datanodes import Block, Datanodes
from tests.support.datanodes.refusals import refused
from tests.support.faults.datanode_faults import Ledger, paused, settle, unhealthy, until
from tests.support.local.stack import LocalKafka
from tests.support.sdk.key_world import MIB, KeyWorld
from tests.support.sdk.streaming import current_block
from tests.support.sdk.written import fresh_bytes

pytestmark = pytest.mark.integration

PARTITION = 1
SMALL = "dn3"
"""The datanode whose disk is a small one."""
DISK_BYTES = 1024 * MIB
RESERVE_BYTES = 32 * MIB
"""What blocks leave to the databases."""
numbers = count(1)
containers = count(20)


def small_disk(folder: Path) -> bool:
    """Put a file system of its own at ``folder``; False where that is not allowed."""
    folder.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def resize(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


@pytest.fixture(scope="module")
def kafka(make_kafka: Callable[..., LocalKafka]) -> LocalKafka:
    return make_kafka()


@pytest.fixture(scope="module")
def nodes(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datanodes]:
    """Three datanodes with a pipeline on partition 1; dn3's blocks lie on a file system of their own, if that is allowed."""
    made = Datanodes(tmp_path_factory.mktemp("datanodes"), kafka, count=3, datanode_reserve_bytes=RESERVE_BYTES)
    disk = made.data_dir(SMALL)
    mounted = small_disk(disk)
    try:
        with made as started:
            started.open_pipeline(PARTITION)
            yield started
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
        shutil.rmtree(made.folder / "data", ignore_errors=True)


@pytest.fixture
def world(nodes: Datanodes) -> Iterator[KeyWorld]:
    made = KeyWorld(nodes, commit_way=3, flush_bytes=64 * MIB, client_buffer_bytes=64 * MIB, commit_timeout_ms=120_000)
    yield made
    made.close()


@pytest.fixture
def block(nodes: Datanodes) -> Block:
    return nodes.block(PARTITION, next(numbers))


def committer_of(file: KeyOutput) -> Callable[[], int]:
    """How many PutBlocks of the file's present block were answered."""
    found = current_block(file)
    return lambda: found._committer.puts


def test_putblocks_out_of_order_never_truncate(nodes: Datanodes, ledger: Ledger, fault_round: int) -> None:
    container = next(containers)
    blocks = [nodes.block(PARTITION, next(numbers), container=container) for _ in range(3)]
    data = [fresh_bytes(10 * CELL_BYTES + 77) for _ in blocks]
    long, short, garbage = 10 * CELL_BYTES + 77, 4 * CELL_BYTES + 5, 6 * CELL_BYTES + 100
    for block, content in zip(blocks, data, strict=True):
        nodes.send(block, content)
    first = nodes.commit(blocks[0], data[0], length=long)
    late = nodes.commit(blocks[0], data[0], length=short)
    assert (late.length, late.bcs_id) == (long, first.bcs_id), "the shorter one changes nothing"
    assert nodes.commit(blocks[1], data[1], length=short).length == short
    assert nodes.commit(blocks[1], data[1], length=long).length == long
    nodes.wait_converged(PARTITION)  # by now everybody knows whom to forward to
    # All at once, in random order, at whichever member: the longest wins.
    lengths = [CELL_BYTES * n + 3 for n in range(1, 6)] + [garbage]
    random.Random(fault_round).shuffle(lengths)
    threads = [
        threading.Thread(
            target=lambda place=place, length=length: nodes.commit(
                blocks[2], data[2], to=nodes.names[place % 3], length=length
            )
        )
        for place, length in enumerate(lengths)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for block, content, length in zip(blocks, data, (long, long, garbage), strict=True):
        assert all(one.satisfied and one.length == length for one in nodes.watch(block, length))
        ledger.add(block, content[:length])
    # What lies beyond the committed length is reclaimed when the container is closed.
    for name in nodes.names:
        assert nodes.block_file(name, blocks[2]).stat().st_size == long
    nodes.ask("dn2", CloseContainer(partition=PARTITION, container_id=blocks[2].container_id))
    for name in nodes.names:
        for block, length in zip(blocks, (long, long, garbage), strict=True):
            file = nodes.block_file(name, block)
            nodes.wait(f"{file} has {length} bytes", lambda: file.stat().st_size == length)  # noqa: B023 - waited for here


def test_a_putblock_after_the_deletion_is_void(
    nodes: Datanodes, ledger: Ledger, block: Block, fault_round: int
) -> None:
    data = fresh_bytes(3 * MIB)
    nodes.send(block, data)
    nodes.commit(block, data, length=MIB)
    ask_delete = DeleteBlocks(
        partition=PARTITION, blocks=[BlockId(container_id=block.container_id, local_id=block.local_id)]
    )
    nodes.ask("dn2", ask_delete)
    assert refused(lambda: nodes.commit(block, data)).code == codes.BLOCK_DELETED
    assert refused(lambda: nodes.commit(block, data, wait_effective=False)).code == codes.BLOCK_DELETED
    nodes.kill(leader := nodes.wait_leader(PARTITION))
    nodes.wait_leader(PARTITION, other_than=leader)
    assert refused(lambda: nodes.commit(block, data)).code == codes.BLOCK_DELETED, "the tombstone outlives its leader"
    settle(nodes)
    for name in nodes.names:
        file = nodes.block_file(name, block)
        nodes.wait(f"{file} is gone", lambda file=file: not file.exists())  # type: ignore[misc]
        assert refused(partial(nodes.watch, block, MIB, names=[name])).code == codes.BLOCK_DELETED
        found = nodes.info(name, block)
        assert found is not None
        assert found.deleted
    # A block that was deleted before anything of it was committed.
    never = nodes.block(PARTITION, next(numbers))
    nodes.send(never, data)
    nodes.ask(
        nodes.wait_leader(PARTITION),
        DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=never.container_id, local_id=never.local_id)]),
    )
    assert refused(lambda: nodes.commit(never, data)).code == codes.BLOCK_DELETED


def test_a_datanode_that_comes_back_without_the_bytes(
    nodes: Datanodes, ledger: Ledger, block: Block, fault_round: int
) -> None:
    data = fresh_bytes(3 * MIB + 9)
    nodes.write(block, data)
    nodes.watch(block, len(data))
    ledger.add(block, data)
    victim = nodes.names[fault_round % 2]
    others = [name for name in nodes.names if name != victim]
    nodes.kill(victim)
    nodes.block_file(victim, block).unlink()
    with paused(nodes, *others):  # nobody to fetch from
        nodes.start(victim)
        nodes.wait(f"{victim} knows what it lacks", lambda: unhealthy(nodes, victim, PARTITION) >= 1)
        assert nodes.get(victim, "/health")["status"] == "unhealthy"
        assert refused(lambda: nodes.read(victim, block, len(data))).code == codes.NOT_COMMITTED
    nodes.wait(f"{victim} is healthy", lambda: unhealthy(nodes, victim, PARTITION) == 0)
    assert nodes.get(victim, "/status")["store"]["fetched_bytes"] >= len(data)
    assert nodes.block_file(victim, block).read_bytes() == data


def test_a_datanode_that_comes_back_with_a_part_of_the_bytes(
    nodes: Datanodes, ledger: Ledger, block: Block, fault_round: int
) -> None:
    """Its file was cut, as by a disk that lost what it had promised; only the rest is fetched."""
    data = fresh_bytes(4 * MIB + 9)
    nodes.write(block, data)
    nodes.watch(block, len(data))
    ledger.add(block, data)
    victim = nodes.names[fault_round % 2]
    nodes.kill(victim)
    with nodes.block_file(victim, block).open("r+b") as file:
        file.truncate(3 * MIB + 100)
    nodes.start(victim)
    (watched,) = nodes.watch(block, len(data), names=[victim])
    assert watched.satisfied
    assert 0 < nodes.get(victim, "/status")["store"]["fetched_bytes"] < 2 * MIB
    assert nodes.block_file(victim, block).read_bytes() == data


def test_a_full_disk_on_one_replica(nodes: Datanodes, ledger: Ledger, world: KeyWorld, fault_round: int) -> None:
    disk = nodes.data_dir(SMALL)
    if not disk.is_mount():
        pytest.skip("a file system of its own cannot be mounted here (root is needed)")
    # More than the datanode writes until it asks for the free space again.
    key, data = f"full-{fault_round}", fresh_bytes(2 * GRANT_BYTES)
    world.block_bytes = 4 * GRANT_BYTES
    try:
        with world.client.open(f"/v/b/{key}", "wb", options=world.options(commit_way=1)) as file:
            file.write(data[:MIB])
            file.flush()
            resize(disk, shutil.disk_usage(disk).used + 3 * MIB + RESERVE_BYTES)
            for at in range(MIB, len(data), MIB):
                file.write(data[at : at + MIB])
        found = file.statistics()
        assert (found.blocks, found.failed_blocks) == (1, 0)
        assert found.resumed_streams >= 1
        assert found.watches_by_majority >= 1
        nodes.wait(f"{SMALL} says so", lambda: unhealthy(nodes, SMALL, PARTITION) >= 1)
    finally:
        resize(disk, DISK_BYTES)
    # There is room again: it fetches what it lacks by itself.
    nodes.wait(f"{SMALL} is healthy", lambda: unhealthy(nodes, SMALL, PARTITION) == 0)
    ledger.add_key(world, key, data)


def test_an_entry_lost_with_its_broker_is_refused_by_the_watch(
    nodes: Datanodes, ledger: Ledger, kafka: LocalKafka, block: Block, fault_round: int
) -> None:
    """An early answer: what the leader had appended never reached the log."""
    data = fresh_bytes(2 * MIB)
    other = nodes.block(PARTITION, next(numbers))
    nodes.send(block, data)
    nodes.send(other, data)
    leader = nodes.wait_leader(PARTITION)
    request = nodes.put_block(block, data, wait_effective=False)
    kafka.kill_broker(1)
    early = nodes.ask(leader, request)
    assert isinstance(early, BlockCommitted)
    nodes.kill(leader)
    kafka.start_broker(1)
    alive = [name for name in nodes.names if name != leader]
    nodes.wait_leader(PARTITION, other_than=leader)
    refusals = nodes.watch(block, len(data), bcs_id=early.bcs_id, names=alive, timeout_ms=500)
    assert not any(one.satisfied for one in refusals), "it stands nowhere"
    # Another entry takes its index: the watch is refused at once, however long it would have waited.
    taken = nodes.commit(other, data)
    assert taken.bcs_id >= early.bcs_id
    refusals = nodes.watch(block, len(data), bcs_id=early.bcs_id, names=alive, timeout_ms=60_000)
    assert not any(one.satisfied for one in refusals)
    again = nodes.commit(block, data)
    assert again.bcs_id > early.bcs_id
    assert all(one.satisfied for one in nodes.watch(block, len(data), bcs_id=again.bcs_id, names=alive))
    ledger.add(block, data)
    ledger.add(other, data)


@pytest.mark.slow
def test_an_early_close_survives_the_loss_of_its_entry(
    nodes: Datanodes, ledger: Ledger, kafka: LocalKafka, world: KeyWorld, fault_round: int
) -> None:
    """The client of way 3: the watch says no, PutBlock is sent again, and only then the key is committed."""
    key, data = f"early-{fault_round}", fresh_bytes(5 * MIB + 1)
    leader = nodes.wait_leader(PARTITION)
    file = world.client.open(f"/v/b/{key}", "wb")
    file.write(data)
    file.flush()
    puts = committer_of(file)
    kafka.kill_broker(1)
    closing = threading.Thread(target=file.close)
    closing.start()
    until(lambda: puts() == 1)
    nodes.kill(leader)
    assert ("v", "b", key) not in world.cluster.keys, "nothing is acknowledged before the watch"
    kafka.start_broker(1)
    closing.join(180)
    assert not closing.is_alive()
    assert puts() >= 2
    ledger.add_key(world, key, data)
