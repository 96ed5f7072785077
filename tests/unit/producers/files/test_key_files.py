"""Keys as files, over real stream servers: round trips, commit ways, hsync, limits, failures of every kind."""

import asyncio
import io
import os
import random
import threading
import time
from dataclasses import replace

import pytest

from datanode_processors.errors import BlockError
from producers.async_client import AsyncClient
from producers.errors import DatanodeError, RequestFailed, StratologError
from producers.files.key_files import KeyInput, KeyOutput
from producers.files.key_reader import KeyReader
from producers.requests.keys import fit_blocks
from schemas.records.datanode import SalvageBlock
from schemas.records.packets import CELL_BYTES
from tests.support.sdk.datanodes import KIB
from tests.support.sdk.written import some_bytes

SIZES = [0, 1, CELL_BYTES - 1, CELL_BYTES, CELL_BYTES + 1, 300 * KIB + 17, 1024 * KIB, 2500 * KIB + 3]


@pytest.mark.parametrize("way", [0, 1, 2, 3])
def test_what_is_written_is_read(make, way):
    world = make(pipelines=2, commit_way=way)
    for number, size in enumerate(SIZES):
        data = some_bytes(size, number)
        world.put(data, f"/v/b/k{number}")
        key = world.key(f"k{number}")
        assert key.size == size
        assert sum(block.length for block in key.blocks) == size
        assert all(block.bcs_id > 0 for block in key.blocks)
        assert world.get(f"/v/b/k{number}") == data
        world.check_replicas(data, f"k{number}")


@pytest.mark.parametrize("topology", ["star", "chain", "tree"])
@pytest.mark.parametrize("packet", [4, 64, 1024])
def test_topologies_and_packets_of_all_sizes(make, topology, packet):
    world = make(replicas=5, topology=topology)
    data = some_bytes(700 * KIB + 5)
    options = {"packet_bytes": packet * KIB, "window_bytes": max(256, packet) * KIB}
    world.put(data, flush_bytes=1024 * KIB, client_buffer_bytes=1024 * KIB, **options)
    assert world.get() == data
    world.check_replicas(data)


def test_a_size_that_is_known_takes_the_blocks_that_came_with_the_key(make):
    world = make()
    data = some_bytes(2500 * KIB)
    with world.client.open("/v/b/k", "wb", size=len(data)) as file:
        file.write(data)
    assert len(world.cluster.allocated) == 3
    assert world.get() == data


def test_small_writes_of_a_buffer_that_is_reused(make):
    world = make()
    data = some_bytes(200 * KIB)
    buffer = bytearray(777)
    with world.client.open("/v/b/k", "wb") as file:
        for at in range(0, len(data), len(buffer)):
            part = data[at : at + len(buffer)]
            buffer[: len(part)] = part
            assert file.write(memoryview(buffer)[: len(part)]) == len(part)
    assert world.get() == data


def test_hsync_commits_exactly_what_was_written(make):
    world = make()
    data = some_bytes(400 * KIB)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data[: 100 * KIB + 1])
        file.hsync()
        file.write(data[100 * KIB + 1 : 150 * KIB])
        file.flush()
        locations = file.locations()
        assert [block.length for block in locations] == [100 * KIB + 1]
        with KeyInput(KeyReader(world.client.streams, locations), "k") as reader:
            assert reader.read() == data[: 100 * KIB + 1]
        file.hsync()
        with KeyInput(KeyReader(world.client.streams, file.locations()), "k") as reader:
            assert reader.read() == data[: 150 * KIB]
        file.write(data[150 * KIB :])
        assert file.tell() == len(data)
    assert world.get() == data


def test_reads_of_ranges(make):
    world = make()
    data = some_bytes(2200 * KIB)
    world.put(data)
    chance = random.Random(7)
    with world.client.open("/v/b/k") as file:
        assert file.size == len(data)
        for _ in range(60):
            offset, size = chance.randrange(len(data) + 10), chance.randrange(200 * KIB)
            assert file.pread(size, offset) == data[offset : offset + size]
            assert file.seek(offset) == offset
            assert file.read(size) == data[offset : offset + size]
        assert file.seek(0) == 0
        assert file.read(5) == data[:5]
        assert file.seek(-5, io.SEEK_END) == len(data) - 5
        assert file.read() == data[-5:]
        assert file.read() == b""
        assert file.read1(10) == b""
        file.seek(CELL_BYTES - 3)
        assert file.read1(10) == data[CELL_BYTES - 3 : CELL_BYTES]
        file.seek(-5, io.SEEK_END)
        assert file.read1() == data[-5:]
        with pytest.raises(ValueError, match="offset -1 lies before the key"):
            file.seek(-1)
        with pytest.raises(ValueError, match="offset -3 lies before the key"):
            file.seek(-3 - len(data), io.SEEK_END)


def test_files_are_what_pythons_io_expects(make):
    world = make()
    with world.client.open("/v/b/k", "wb") as file, io.TextIOWrapper(file, "utf-8") as text:
        for number in range(5000):
            text.write(f"line {number} ü\n")
    with world.client.open("/v/b/k") as file, io.TextIOWrapper(file, "utf-8") as text:
        assert [line.rstrip("\n") for line in text] == [f"line {number} ü" for number in range(5000)]
    with world.client.open("/v/b/k") as file:
        assert file.readline() == "line 0 ü\n".encode()
        assert (file.readable(), file.writable(), file.seekable()) == (True, False, True)
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"")
    with pytest.raises(ValueError, match="is closed"):
        file.read()


def test_an_exception_leaves_nothing(make):
    world = make()
    files: list[KeyOutput] = []

    def fail():
        with world.client.open("/v/b/k", "wb") as file:
            files.append(file)
            file.write(some_bytes(500 * KIB))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    file = files[0]
    assert file.closed
    with pytest.raises(RequestFailed, match="KEY_NOT_FOUND"):
        world.client.open("/v/b/k")
    with pytest.raises(ValueError, match="is closed"):
        file.write(b"")
    with pytest.raises(ValueError, match="is closed"), file:
        pytest.fail("a closed file was entered")
    forgotten = world.client.open("/v/b/k", "wb")
    forgotten.write(b"x")
    del forgotten
    with pytest.raises(RequestFailed, match="KEY_NOT_FOUND"):
        world.client.open("/v/b/k")


def test_what_is_wrong_is_named(make):
    world = make()
    with pytest.raises(RequestFailed, match="path must be that of a key, /volume/bucket/key, not '/v/b'"):
        world.client.open("/v/b")
    with pytest.raises(RequestFailed, match="mode must be one of 'rb', 'wb', not 'r'"):
        world.client.open("/v/b/k", "r")
    with pytest.raises(RequestFailed, match="BUCKET_NOT_FOUND"):
        world.client.open("/v/other/k", "wb")


def test_a_key_of_metadata_alone_says_so_at_once(make):
    world = make()
    session = world.client.create_key("v", "b", "k", size=1000)
    with pytest.raises(RequestFailed, match="has no committed index"):
        world.client.commit_key(
            "v", "b", "k", session.session_id, size=1000, blocks=[replace(session.blocks[0], length=1000)]
        )
    with pytest.raises(RequestFailed, match="names no blocks"):
        world.client.commit_key("v", "b", "k", session.session_id, size=1000, blocks=[])
    world.client.commit_key("v", "b", "k", session.session_id, size=1000, blocks=fit_blocks(session.blocks, 1000))
    with world.client.open("/v/b/k") as file:
        assert file.size == 1000
        with pytest.raises(RequestFailed, match="was never written: the key was committed with metadata alone"):
            file.read()


# -- failures


def test_a_follower_that_dies_is_left_out(make):
    world = make(topology="chain")
    data = some_bytes(900 * KIB)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data[: 300 * KIB])
        file.flush()
        primary = primary_of(world)
        world.logs[1].leader = primary.name
        follower_of(world).stop()
        file.write(data[300 * KIB :])
    found = file.statistics()
    assert (found.blocks, found.failed_blocks) == (1, 0)
    assert found.resumed_streams >= 1
    assert found.watches_by_majority >= 1
    assert primary.running
    assert world.get() == data
    world.check_replicas(data)


def follower_of(world):
    """A datanode that is not the primary of the stream that is open."""
    return next(node for node in world.members() if node is not primary_of(world))


def primary_of(world):
    for node in world.members():
        for connection in list(node.server._connections):
            if connection.streaming and connection.peer == "client":
                return node
    raise AssertionError("no stream is open")


@pytest.mark.parametrize("way", [0, 1, 2, 3])
def test_the_primary_dies(make, way):
    world = make(commit_way=way)
    data = some_bytes(900 * KIB)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data[: 300 * KIB])
        file.flush()
        if way:
            victim = primary_of(world)
            if victim.name == world.logs[1].leader:
                world.logs[1].leader = next(node.name for node in world.members() if node is not victim)
            victim.stop()
        file.write(data[300 * KIB :])
    assert file.statistics().failed_blocks == 0
    assert world.get() == data
    world.check_replicas(data)


@pytest.mark.parametrize("flushed", [0, 300])
def test_two_die_and_the_rest_goes_to_another_pipeline(make, flushed):
    world = make(pipelines=2)
    data = some_bytes(900 * KIB)
    with world.client.open("/v/b/k", "wb") as file:
        if flushed:
            file.write(data[: flushed * KIB])
            file.hsync()
        file.write(data[flushed * KIB : 400 * KIB])
        file.flush()
        primary = primary_of(world)
        for victim in [primary, follower_of(world)]:
            victim.stop()
        file.write(data[400 * KIB :])
    found = file.statistics()
    assert found.failed_blocks == 1
    key = world.key()
    assert [block.pipeline for block in key.blocks][-1] == "pipeline-2"
    if flushed:
        # What was committed and watched stays as a block of its own.
        assert (key.blocks[0].pipeline, key.blocks[0].length >= flushed * KIB) == ("pipeline-1", True)
    assert world.get() == data


def test_a_stream_that_cannot_be_resumed_is_committed_where_it_stands(make, monkeypatch):
    world = make(pipelines=2)
    data = some_bytes(700 * KIB)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data[: 128 * KIB])
        file.flush()
        for node in world.members():
            monkeypatch.setattr(node.pipelines, "check_stream", overloaded)
        for node in world.members():
            for connection in list(node.server._connections):
                if connection.streaming:
                    connection.stop()
        file.write(data[128 * KIB :])
    assert world.key().blocks[0].length >= 128 * KIB
    assert world.key().blocks[0].pipeline == "pipeline-1"
    assert file.statistics().failed_blocks == 1
    assert world.get() == data
    world.check_replicas(data)


def test_another_leader_is_asked_and_nothing_is_sent_again(make):
    world = make()
    world.logs[1].forwards = False
    data = some_bytes(700 * KIB)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data[: 300 * KIB])
        file.hsync()
        world.logs[1].leader = world.logs[1].members[2]
        file.write(data[300 * KIB :])
    assert file.statistics().resumed_streams == 0
    assert world.get() == data


def test_an_early_close_that_was_lost_is_refused_by_the_watch_and_sent_again(make):
    world = make(commit_way=3)
    world.logs[1].lose = 1
    data = some_bytes(200 * KIB)
    world.put(data)
    assert [put.wait_effective for put in world.logs[1].puts] == [False, True]
    assert world.get() == data


def test_a_member_that_does_not_satisfy_the_watch_makes_it_fall_to_a_majority(make):
    world = make()
    world.members()[1].pipelines.deaf = True
    data = some_bytes(600 * KIB)
    found = world.put(data)
    assert found.watches_by_majority >= 1
    assert found.failed_blocks == 0
    assert world.get() == data


def test_a_pipeline_that_closes_is_followed_by_another(make):
    world = make(pipelines=2)
    data = some_bytes(1500 * KIB)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data[: 600 * KIB])
        world.logs[1].closed = True
        world.logs[1].refuse = closed
        file.write(data[600 * KIB :])
    assert {block.pipeline for block in world.key().blocks} == {"pipeline-1", "pipeline-2"}
    assert world.get() == data
    world.check_replicas(data)


def overloaded(*_):
    raise BlockError("OVERLOADED", "no more streams")


@pytest.mark.parametrize("known", [False, True], ids=["AllocateBlock", "CreateKey"])
def test_a_writer_waits_while_no_pipeline_takes_blocks(make, known):
    world = make()
    world.without_pipelines = 3
    data = some_bytes(100 * KIB)
    with world.client.open("/v/b/k", "wb", size=len(data) if known else 0) as file:
        file.write(data)
    assert world.without_pipelines == 0
    assert world.get() == data


def test_a_writer_waits_for_a_pipeline_that_is_in_the_making(make):
    """Asking again without a pause would use the patience up at once."""
    world = make(commit_timeout_ms=2_000)
    world.without_pipelines = 1_000_000
    opened = threading.Timer(0.2, setattr, (world, "without_pipelines", 0))
    data = some_bytes(100 * KIB)
    with world.client.open("/v/b/k", "wb") as file:
        opened.start()
        file.write(data)
    opened.join()
    assert world.get() == data


def closed(_put):
    raise BlockError("PIPELINE_CLOSED", "closed")


def test_with_nobody_left_the_writer_says_so(make):
    world = make(commit_timeout_ms=300)

    def write():
        with world.client.open("/v/b/k", "wb") as file:
            file.write(some_bytes(100 * KIB))
            file.flush()
            for node in world.members():
                node.stop()
            file.write(some_bytes(900 * KIB))

    with pytest.raises(StratologError):
        write()
    assert ("v", "b", "k") not in world.cluster.keys


@pytest.mark.parametrize(
    ("block_bytes", "flush_bytes"), [(1024 * KIB, 256 * KIB), (400 * KIB, 512 * KIB)], ids=["within a block", "over its end"]
)  # fmt: skip
def test_a_slow_datanode_bounds_the_writers_memory(make, block_bytes, flush_bytes):
    """The bytes of a block that has ended and is not watched yet count, too."""
    world = make(topology="chain", block_bytes=block_bytes, flush_bytes=flush_bytes)
    data = some_bytes(1000 * KIB)
    slow = world.members()[2]
    slow.pipelines.deaf = world.members()[1].pipelines.deaf = True
    done = threading.Event()
    most = []

    def write():
        with world.client.open("/v/b/k", "wb", options=world.with_options(commit_timeout_ms=30_000)) as file:
            files.append(file)
            file.write(data)
        done.set()

    files: list[KeyOutput] = []
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and not done.is_set():
        if files:
            most.append(files[0]._writer.held_bytes)
        time.sleep(0.01)
    assert not done.is_set(), "the writer did not wait for the watch"
    slow.pipelines.deaf = world.members()[1].pipelines.deaf = False
    assert done.wait(60)
    writer.join()
    assert max(most) <= world.options.client_buffer_bytes
    assert world.get() == data


# -- reads that fail over


def test_a_damaged_cell_is_read_from_another_replica(make):
    world = make()
    data = some_bytes(900 * KIB)
    world.put(data)
    block = world.key().blocks[0]
    for node in world.members()[:2]:
        node.blocks.damage(block, 400 * KIB, b"damage")
    for _ in range(5):
        with world.client.open("/v/b/k") as file:
            assert file.read() == data
    assert any(node.pipelines.corrupt for node in world.members()[:2])


def test_a_replica_that_dies_in_the_middle_of_a_read(make):
    world = make()
    data = some_bytes(1000 * KIB)
    world.put(data)
    with world.client.open("/v/b/k") as file:
        got = file.read(100 * KIB)
        for node in world.members():
            for connection in list(node.server._connections):
                connection.stop()
        world.members()[0].stop()
        world.members()[1].stop()
        assert got + file.read() == data


def test_with_every_replica_damaged_the_error_names_the_block(make):
    world = make(replicas=1)
    data = some_bytes(100 * KIB)
    world.put(data)
    world.members()[0].blocks.damage(world.key().blocks[0], 0, b"damage")
    with (
        world.client.open("/v/b/k") as file,
        pytest.raises(
            DatanodeError,
            match=r"CHECKSUM_MISMATCH: dn11: SalvageBlock of 257/1: block 257/1: 65536 bytes at offset 0 ",
        ),
    ):
        file.read()


def damage(world, cells, key="k"):
    """Damage these cells of a key's only block on its members, one list for each; all of them know that theirs is unhealthy."""
    (block,) = world.key(key).blocks
    for node, damaged in zip(world.members(), cells, strict=True):
        for cell in damaged:
            node.blocks.damage(block, cell * CELL_BYTES + 5, b"damage")
        if damaged:
            node.pipelines.unhealthy.add((block.container_id, block.local_id))
    return block


def salvages(world):
    return [
        request for node in world.members() for request in node.pipelines.reads if isinstance(request, SalvageBlock)
    ]


DIFFERENT = [
    ([2, 9], [5, 12], [7]),
    ([0, 1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]),
    ([0, 2, 4, 6, 8, 10, 12, 14], [1, 5, 9, 13], [3, 7, 11]),
    ([3, 4], [4, 5], [3, 5]),
]


@pytest.mark.parametrize("cells", DIFFERENT)
@pytest.mark.parametrize("known", [True, False])
def test_replicas_that_are_damaged_in_different_cells_are_read_as_one(make, cells, known):
    """15 cells; each is right on one replica at least."""
    world = make()
    data = some_bytes(900 * KIB)
    world.put(data)
    damage(world, cells)
    for round_number in range(4):
        if not known:
            for node in world.members():
                node.pipelines.notices = True
                node.pipelines.unhealthy.clear()
        with world.client.open("/v/b/k") as file:
            assert file.read() == data
        chance = random.Random(round_number)
        with world.client.open("/v/b/k") as file:
            for _ in range(10):
                offset, size = chance.randrange(len(data)), chance.randrange(300 * KIB)
                assert file.pread(size, offset) == data[offset : offset + size]
    assert salvages(world)


def test_replicas_without_their_ends_give_what_they_have(make):
    world = make()
    data = some_bytes(900 * KIB)
    world.put(data)
    block = damage(world, ([11], [], [3, 8]))
    first, second, third = world.members()
    for node, left in ((first, 12 * CELL_BYTES + 7), (second, 9 * CELL_BYTES)):
        os.truncate(node.blocks.path(block), left)
        with node.blocks.store._table.held(block.container_id, block.local_id) as file:
            file._end_at(left)
    for _ in range(4):
        with world.client.open("/v/b/k") as file:
            assert file.read() == data
    assert third.pipelines.reads


def test_a_healthy_replica_is_read_though_a_damaged_one_is_nearer(make):
    world = make(rack="/near")
    data = some_bytes(900 * KIB)
    world.put(data)
    damage(world, ([14], [], [3]))
    near, healthy, _ = world.members()
    world.racks[near.name] = "/near"
    for node in world.members():
        node.pipelines.reads.clear()
    for offset in (0, 5 * CELL_BYTES, 14 * CELL_BYTES):
        with world.client.open("/v/b/k") as file:
            assert file.pread(3 * CELL_BYTES, offset) == data[offset : offset + 3 * CELL_BYTES]
    assert salvages(world) == []
    assert healthy.pipelines.reads


def test_a_cell_that_is_damaged_everywhere_is_named_and_all_others_are_read(make):
    world = make()
    data = some_bytes(900 * KIB)
    world.put(data)
    block = damage(world, ([4, 6], [4, 9], [4]))
    named = rf"CHECKSUM_MISMATCH: dn1\d: SalvageBlock of {block.container_id}/{block.local_id}: .* at offset {4 * CELL_BYTES} "
    with world.client.open("/v/b/k") as file:
        assert file.read(4 * CELL_BYTES) == data[: 4 * CELL_BYTES]
        for size, offset in ((1, 4 * CELL_BYTES), (2, 5 * CELL_BYTES - 1), (2 * CELL_BYTES, 3 * CELL_BYTES)):
            with pytest.raises(DatanodeError, match=named):
                file.pread(size, offset)
        assert file.pread(len(data), 5 * CELL_BYTES) == data[5 * CELL_BYTES :]
        assert file.pread(4 * CELL_BYTES, 0) == data[: 4 * CELL_BYTES]
        file.seek(0)
        with pytest.raises(DatanodeError, match=named):
            file.read()


def test_who_reads_one_replica_sees_that_it_is_damaged(make):
    world = make()
    data = some_bytes(900 * KIB)
    world.put(data)
    damage(world, ([4], [5], [6]))
    for replica in range(3):
        reader = KeyReader(world.client.streams, world.key().blocks, replica=replica)
        with pytest.raises(DatanodeError, match="NOT_COMMITTED"):
            reader.read_into(memoryview(bytearray(10)), 0)
        reader.close()
    assert salvages(world) == []


def test_members_that_are_gone_are_not_asked_to_salvage(make):
    world = make()
    data = some_bytes(900 * KIB)
    world.put(data)
    damage(world, ([], [5], [6]))
    world.members()[0].stop()
    assert world.get() == data
    for node in world.members()[1:]:
        node.stop()
    with world.client.open("/v/b/k") as file, pytest.raises(DatanodeError, match=r"UNREACHABLE: dn1\d"):
        file.read()


# -- asyncio


def test_the_same_awaited(make):
    world = make()
    data = some_bytes(700 * KIB)

    async def run():
        client = AsyncClient("memory:0", read_from=[world.om.address], open_pipeline=lambda _: world.client.pipeline,
                             streams=world.options)  # fmt: skip
        await client.connect()
        async with client.open("/v/b/k", "wb") as file:
            for at in range(0, len(data), 100 * KIB):
                await file.write(data[at : at + 100 * KIB])
            await file.hsync()
            assert file.tell() == len(data)
        async with client.open("/v/b/k") as file:
            assert await file.read(0) == b""
            assert await file.read(10) == data[:10]
            assert await file.pread(5, 1000) == data[1000:1005]
            file.seek(0)
            assert await file.read() == data
            with pytest.raises(io.UnsupportedOperation):
                await file.write(b"")

        async def fail():
            async with client.open("/v/b/none", "wb") as file:
                await file.write(b"x")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            await fail()
        many = [client.open(f"/v/b/many{n}", "wb") for n in range(20)]

        async def write(number, file):
            async with file:
                await file.write(data[: number * KIB])

        await asyncio.gather(*(write(number, file) for number, file in enumerate(many)))
        client._file_client()[0].streams.close()
        client._file_client()[1].shutdown()
        client.reads.close()

    asyncio.run(run())
    assert ("v", "b", "none") not in world.cluster.keys
    for number in range(20):
        assert world.get(f"/v/b/many{number}") == data[: number * KIB]


def test_neither_closing_an_asyncio_client_nor_its_loop_waits_for_a_file_beyond_the_deadline(make):
    """The end of a file that hangs was waited for by the loop, and by the exit, after the client was closed."""
    world = make(commit_timeout_ms=600_000, watch_timeout_ms=600_000)
    for node in world.nodes.values():
        node.pipelines.deaf = True

    async def run():
        client = AsyncClient("memory:0", read_from=[world.om.address], open_pipeline=lambda _: world.client.pipeline,
                             streams=world.options)  # fmt: skip
        await client.connect()
        file = await client.open("/v/b/k", "wb")
        await file.write(some_bytes(100 * KIB))
        closing = asyncio.create_task(file.close())
        await asyncio.sleep(0.1)
        await client.close(timeout_ms=100)
        return closing

    closing = asyncio.run(run())
    assert closing.cancelled(), "the file's close had not ended"
    for node in world.nodes.values():
        node.pipelines.deaf = False
