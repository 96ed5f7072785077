"""The client's files on real datanode processes and a real dn.log; only the Object Manager is its twin in memory.

Every test writes bytes, does something to the datanodes, and compares what is read, and what lies in the block files of
the replicas that live.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest

from producers.files.key_files import KeyInput, KeyOutput
from producers.files.key_reader import KeyReader
from schemas.records.packets import CELL_BYTES
from tests.support.datanodes.datanodes import Datanodes
from tests.support.local.stack import LocalKafka
from tests.support.sdk.key_world import KIB, MIB, KeyWorld, block_of
from tests.support.sdk.streaming import current_block
from tests.support.sdk.written import fresh_bytes

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def nodes(lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datanodes]:
    with Datanodes(tmp_path_factory.mktemp("client"), lease_kafka(), count=4) as started:
        started.open_pipeline(1, ["dn1", "dn2", "dn3"])
        started.open_pipeline(2, ["dn4", "dn3", "dn2"])
        yield started


@pytest.fixture(scope="module")
def shared(nodes: Datanodes) -> Iterator[KeyWorld]:
    made = KeyWorld(nodes)
    yield made
    made.close()


@pytest.fixture
def world(shared: KeyWorld) -> KeyWorld:
    """All datanodes run, and both pipelines are led."""
    for name in shared.nodes.names:
        if name not in shared.nodes.processes:
            shared.nodes.start(name)
    for partition in shared.nodes.pipelines:
        shared.nodes.wait_leader(partition)
    return shared


def write(file: KeyOutput, data: bytes) -> None:
    for at in range(0, len(data), 100 * KIB):
        file.write(data[at : at + 100 * KIB])


@pytest.mark.parametrize("way", [0, 1, 2, 3])
def test_round_trips(world: KeyWorld, way: int) -> None:
    for size in (0, 1, CELL_BYTES - 1, CELL_BYTES, CELL_BYTES + 1, 3 * MIB + 5, 17 * MIB):
        data = fresh_bytes(size)
        key = f"way{way}-{size}"
        with world.client.open(f"/v/b/{key}", "wb", options=world.options(commit_way=way)) as file:
            write(file, data)
        found = file.statistics()
        assert (found.failed_blocks, found.resumed_streams, found.watches_by_majority) == (0, 0, 0)
        world.check(key, data)


@pytest.mark.parametrize("topology", ["star", "chain", "tree"])
def test_topologies(world: KeyWorld, topology: str) -> None:
    data = fresh_bytes(5 * MIB + 1)
    with world.client.open(f"/v/b/{topology}", "wb", options=world.options(topology=topology)) as file:
        write(file, data)
    world.check(topology, data)


def test_hsync_then_a_reader_sees_exactly_the_committed_prefix(world: KeyWorld) -> None:
    data = fresh_bytes(3 * MIB)
    with world.client.open("/v/b/hsync", "wb") as file:
        for end in (1, CELL_BYTES + 7, MIB + 5, 2 * MIB):
            file.write(data[file.tell() : end])
            file.hsync()
            file.write(data[end : end + 100])
            file.flush()
            locations = file.locations()
            assert sum(block.length for block in locations) == end
            with KeyInput(KeyReader(world.client.streams, locations), "prefix") as reader:
                assert reader.read() == data[:end]
        file.write(data[file.tell() :])
    world.check("hsync", data)


def test_range_reads(world: KeyWorld) -> None:
    data = fresh_bytes(12 * MIB + 3)
    with world.client.open("/v/b/ranges", "wb") as file:
        file.write(data)
    chance = random.Random(3)
    with world.client.open("/v/b/ranges") as file:
        for _ in range(50):
            offset, size = chance.randrange(len(data)), chance.randrange(300 * KIB)
            assert file.pread(size, offset) == data[offset : offset + size]


def test_a_damaged_cell_is_skipped_over_to_another_replica(world: KeyWorld) -> None:
    data = fresh_bytes(2 * MIB)
    with world.client.open("/v/b/damaged", "wb") as file:
        file.write(data)
    found = world.blocks("damaged")[0]
    block = block_of(found)
    damaged = world.nodes.pipelines[block.partition][:2]
    for name in damaged:
        descriptor = os.open(world.nodes.block_file(name, block), os.O_WRONLY)
        os.pwrite(descriptor, b"damage", MIB + 10)
        os.close(descriptor)
    for _ in range(6):
        with world.client.open("/v/b/damaged") as file:
            assert file.read() == data


def streaming_primary(file: KeyOutput) -> str:
    """The datanode to which the file's current block is streamed."""
    block = current_block(file)
    assert block._recovery.primary
    return block._recovery.primary


# Every one in every way of committing: test_datanode_faults.py.
@pytest.mark.parametrize(("who", "way"), [("primary", 1), ("follower", 2), ("leader", 3)])
def test_one_dies_in_mid_stream(world: KeyWorld, who: str, way: int) -> None:
    world.only(1)
    data = fresh_bytes(6 * MIB + 11)
    half = 2 * MIB + MIB // 2
    leader = world.nodes.wait_leader(1)
    with world.client.open(f"/v/b/{who}-{way}", "wb", options=world.options(commit_way=way)) as file:
        write(file, data[:half])
        file.flush()
        primary = streaming_primary(file)
        others = [name for name in world.nodes.pipelines[1] if name not in {primary, leader}]
        victim = {"primary": primary, "leader": leader, "follower": others[0]}[who]
        world.nodes.kill(victim)
        write(file, data[half:])
    found = file.statistics()
    assert (found.blocks, found.failed_blocks) == (1, 0)
    assert found.watches_by_majority >= 1
    world.check(f"{who}-{way}", data)
    # The one that died fetches what it lacks when it comes back.
    world.nodes.start(victim)
    world.check(f"{who}-{way}", data)


@pytest.mark.parametrize(
    "who", ["leader", *(pytest.param(who, marks=pytest.mark.slow) for who in ("primary", "follower"))]
)
def test_one_hangs_in_mid_stream(world: KeyWorld, who: str) -> None:
    world.only(1)
    data = fresh_bytes(6 * MIB + 11)
    leader = world.nodes.wait_leader(1)
    with world.client.open(f"/v/b/hang-{who}", "wb") as file:
        write(file, data[: 2 * MIB])
        file.flush()
        primary = streaming_primary(file)
        others = [name for name in world.nodes.pipelines[1] if name not in {primary, leader}]
        victim = {"primary": primary, "leader": leader, "follower": others[0]}[who]
        world.nodes.pause(victim)
        try:
            write(file, data[2 * MIB :])
            file.hsync()
        finally:
            world.nodes.resume(victim)
    assert file.statistics().failed_blocks == 0
    world.check(f"hang-{who}", data)


@pytest.mark.slow
def test_two_die_in_mid_stream_and_the_rest_goes_to_another_pipeline(world: KeyWorld) -> None:
    world.only(1)
    data = fresh_bytes(6 * MIB + 11)
    with world.client.open("/v/b/two", "wb") as file:
        write(file, data[: 2 * MIB + 100])
        file.hsync()
        world.nodes.kill("dn1")
        world.nodes.kill("dn2")
        # Pipeline 2 lost dn2 as well: dn3 and dn4 are its majority.
        write(file, data[2 * MIB + 100 :])
    found = file.statistics()
    assert found.failed_blocks >= 1
    blocks = world.blocks("two")
    assert (blocks[0].pipeline, blocks[-1].pipeline) == ("pipeline-1", "pipeline-2")
    for name in ("dn1", "dn2"):
        world.nodes.start(name)
    world.check("two", data)


def test_an_abort_leaves_nothing(world: KeyWorld) -> None:
    def fail() -> None:
        with world.client.open("/v/b/aborted", "wb") as file:
            file.write(fresh_bytes(3 * MIB))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert ("v", "b", "aborted") not in world.cluster.keys


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_random_keys_while_one_after_another_is_killed(world: KeyWorld, seed: int) -> None:
    chance = random.Random(seed)
    victims = [chance.choice(world.nodes.names) for _ in range(3)]
    for number, victim in enumerate(victims):
        data = fresh_bytes(chance.randrange(4 * MIB, 10 * MIB))
        kill_at = chance.randrange(len(data))
        way = chance.choice([1, 2, 3])
        key = f"random{seed}-{number}"
        with world.client.open(f"/v/b/{key}", "wb", options=world.options(commit_way=way)) as file:
            while file.tell() < len(data):
                step = chance.randrange(1, 300 * KIB)
                file.write(data[file.tell() : file.tell() + step])
                if file.tell() >= kill_at and victim in world.nodes.processes:
                    world.nodes.kill(victim)
                if chance.random() < 0.02:
                    file.hsync()
        world.check(key, data)
        world.nodes.start(victim)
