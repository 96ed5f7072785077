"""What a reader asks of which replica, and what it does with the connection: over real stream servers."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from datanode_processors.blocks.core.checksums import MAX_CELL_BYTES, MIN_CELL_BYTES, CellChecksums
from datanode_processors.wire import reading
from producers.errors import DatanodeError, RequestFailed
from producers.files import key_reader
from producers.files.key_files import KeyInput
from producers.files.key_reader import DRAIN_BYTES, FIRST_READ_BYTES, MAX_ROUNDS, KeyReader
from schemas.records.datanode import ReadBlock, SalvageBlock
from schemas.records.packets import CELL_BYTES
from schemas.records.rows import NEVER_WRITTEN, BlockLocation
from schemas.result_codes import INTERNAL_ERROR
from schemas.stream_errors import BAD_FRAME, BLOCK_TOKEN_MISSING, CHECKSUM_MISMATCH, NOT_COMMITTED
from tests.support.sdk.datanodes import KIB, World
from transport.waiting.core.backoff import Backoff

DATA = random.Random(5).randbytes(20 * CELL_BYTES + 100)
Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(key_reader, "PAUSES", Backoff(first_s=1e-9, last_s=1e-9))
    made: list[World] = []

    def begin(racks: dict[str, str] | None = None, **settings: Any) -> World:
        world: Any = World
        made.append(world(tmp_path / str(len(made)), block_bytes=4096 * KIB, **settings))
        made[-1].racks = racks or {}
        made[-1].put(DATA)
        return made[-1]

    yield begin
    for world in made:
        world.close()


def reader_of(world: World, **changes: Any) -> KeyReader:
    replica = changes.pop("replica", None)
    return KeyReader(world.client.streams, world.key().blocks, options=world.with_options(**changes), replica=replica)


def asked(world: World, name: str = "dn11") -> list[tuple[int, int]]:
    """Return (offset, length) of what a replica was asked for."""
    return [(request.offset, request.length) for request in world.nodes[name].pipelines.reads]


def kept(world: World) -> list[Any]:
    """Return the connections that wait for the next request."""
    return world.client.streams.datanodes.kept.connections()


def read(reader: KeyReader, offset: int, length: int) -> bytes:
    buffer = bytearray(length)
    count = reader.read_into(memoryview(buffer), offset)
    return bytes(buffer[:count])


def test_fewer_bytes_come_only_at_the_end(make: Make) -> None:
    reader = reader_of(make(replicas=1))
    assert reader.size == len(DATA)
    assert read(reader, 7, 100) == DATA[7:107]
    assert read(reader, len(DATA) - 5, 100) == DATA[-5:]
    assert read(reader, len(DATA), 1) == b""
    assert read(reader, len(DATA) + 9, 1) == b""
    assert read(reader, 0, 0) == b""
    assert read(reader, CELL_BYTES - 1, 2) == DATA[CELL_BYTES - 1 : CELL_BYTES + 1]


def test_a_reader_that_reads_on_asks_for_twice_as_much_each_time_up_to_a_limit(make: Make) -> None:
    world = make(replicas=1)
    reader = reader_of(world, read_ahead_bytes=10 * CELL_BYTES)
    for cell in range(21):
        assert read(reader, cell * CELL_BYTES, 10) == DATA[cell * CELL_BYTES :][:10]
    assert FIRST_READ_BYTES == 4 * CELL_BYTES
    assert asked(world) == [
        (0, 4 * CELL_BYTES), (4 * CELL_BYTES, 8 * CELL_BYTES), (12 * CELL_BYTES, len(DATA) - 12 * CELL_BYTES),
    ]  # fmt: skip
    assert reader.failovers == 0
    read(reader, 3 * CELL_BYTES + 5, 1)
    assert asked(world)[3:] == [(3 * CELL_BYTES, 4 * CELL_BYTES)], "whoever jumps begins anew"


def test_the_limit_bounds_what_is_asked_for_ahead(make: Make) -> None:
    world = make(replicas=1)
    reader = reader_of(world, read_ahead_bytes=6 * CELL_BYTES)
    for cell in range(12):
        read(reader, cell * CELL_BYTES, 1)
    assert asked(world) == [(0, 4 * CELL_BYTES), (4 * CELL_BYTES, 6 * CELL_BYTES), (10 * CELL_BYTES, 6 * CELL_BYTES)]


def test_whoever_wants_more_asks_for_all_of_it_at_once(make: Make) -> None:
    world = make(replicas=1)
    reader = reader_of(world)
    assert read(reader, CELL_BYTES + 1, 9 * CELL_BYTES) == DATA[CELL_BYTES + 1 : 10 * CELL_BYTES + 1]
    assert asked(world) == [(CELL_BYTES, 9 * CELL_BYTES + 1)]


def test_bytes_that_are_there_are_not_asked_for_again(make: Make) -> None:
    world = make(replicas=1)
    reader = reader_of(world)
    for offset in (CELL_BYTES, CELL_BYTES + 5, 2 * CELL_BYTES - 1, CELL_BYTES):
        assert read(reader, offset, 1) == DATA[offset : offset + 1]
    assert len(asked(world)) == 1
    read(reader, CELL_BYTES - 1, 1)
    assert len(asked(world)) == 2
    reader.close()
    assert read(reader, CELL_BYTES - 1, 1) == DATA[CELL_BYTES - 1 : CELL_BYTES]
    assert len(asked(world)) == 3


def test_a_connection_is_kept_when_its_answer_was_read_or_little_of_it_is_left(make: Make) -> None:
    world = make(replicas=1)
    for connection in kept(world):
        world.client.streams.datanodes.kept.drop(connection.address)
    reader = reader_of(world)
    read(reader, 0, 4 * CELL_BYTES)
    (first,) = kept(world)
    read(reader, 10 * CELL_BYTES, 1)
    assert kept(world) == [], "it is in use again"
    reader.close()
    assert kept(world) == [first], "the three cells that were left were read"
    reader.close()
    assert kept(world) == [first]
    read(reader, 0, 12 * CELL_BYTES)
    assert kept(world) == [first]
    part = reader.next_bytes(12 * CELL_BYTES, 8 * CELL_BYTES)
    assert len(part) == CELL_BYTES
    reader.close()
    assert DRAIN_BYTES < 7 * CELL_BYTES
    assert kept(world) == [], "as much as was left is not worth reading"


def test_who_answered_last_is_asked_first(make: Make) -> None:
    world = make()
    reader = reader_of(world)
    for cell in (0, 9, 3, 15, 6):
        read(reader, cell * CELL_BYTES, 1)
    counts = sorted(len(asked(world, name)) for name in world.nodes)
    assert counts == [0, 0, 5]
    name = next(name for name in world.nodes if asked(world, name))
    world.nodes[name].stop()
    for cell in (18, 1, 11):
        assert read(reader, cell * CELL_BYTES, 1) == DATA[cell * CELL_BYTES :][:1]
    assert sorted(len(asked(world, other)) for other in world.nodes if other != name) == [0, 3]
    assert reader.failovers == 1


def test_the_nearest_is_asked_first(make: Make) -> None:
    world = make({"dn11": "/far/1", "dn12": "/near/2", "dn13": "/far/3"})
    for _ in range(4):
        reader = reader_of(world, rack="/near/2")
        read(reader, 0, 1)
        reader.close()
    assert [len(asked(world, name)) for name in ("dn11", "dn12", "dn13")] == [0, 4, 0]


@pytest.mark.parametrize("replica", [0, 1, 2])
def test_one_replica_alone_is_read(make: Make, replica: int) -> None:
    world = make()
    assert read(reader_of(world, replica=replica), 0, len(DATA)) == DATA
    assert [bool(asked(world, name)) for name in ("dn11", "dn12", "dn13")] == [at == replica for at in range(3)]


def test_another_replica_goes_on_in_the_middle_of_an_answer(make: Make) -> None:
    world = make({"dn11": "/near/1", "dn12": "/far/2"}, replicas=2)
    damaged = world.nodes["dn11"]
    damaged.blocks.damage(world.key().blocks[0], 2 * CELL_BYTES + 3, b"xx")
    reader = reader_of(world, rack="/near/1")
    assert read(reader, 0, len(DATA)) == DATA
    assert asked(world, "dn11")[0] == (0, len(DATA))
    assert asked(world, "dn12")[0][0] == 2 * CELL_BYTES
    assert reader.failovers >= 1


def test_all_replicas_are_asked_in_rounds_and_the_last_error_is_raised(make: Make) -> None:
    world = make(replicas=2)
    (block,) = world.key().blocks
    for node in world.members():
        node.pipelines.unhealthy.add((block.container_id, block.local_id))
        node.blocks.damage(block, 0, b"no")
    reader = reader_of(world)
    with pytest.raises(DatanodeError) as caught:
        read(reader, 0, 1)
    assert caught.value.status == CHECKSUM_MISMATCH
    for node in world.members():
        kinds = [type(request) for request in node.pipelines.reads]
        assert kinds == [ReadBlock, SalvageBlock] * MAX_ROUNDS
    assert reader._block is not None
    assert reader._block.take_failovers() == 2 * 2 * MAX_ROUNDS
    assert reader._block.take_failovers() == 0


def test_one_replica_that_is_read_alone_is_not_salvaged(make: Make) -> None:
    world = make(replicas=2)
    (block,) = world.key().blocks
    node = world.nodes["dn12"]
    node.pipelines.unhealthy.add((block.container_id, block.local_id))
    with pytest.raises(DatanodeError):
        read(reader_of(world, replica=1), 0, 1)
    assert {type(request) for request in node.pipelines.reads} == {ReadBlock}
    assert asked(world, "dn11") == []


def test_what_is_right_is_salvaged_where_all_refuse(make: Make) -> None:
    world = make(replicas=2)
    (block,) = world.key().blocks
    for number, node in enumerate(world.members()):
        node.blocks.damage(block, number * 5 * CELL_BYTES, b"no")
        node.pipelines.unhealthy.add((block.container_id, block.local_id))
    reader = reader_of(world)
    assert read(reader, 0, len(DATA)) == DATA
    for node in world.members():
        salvages = [request for request in node.pipelines.reads if isinstance(request, SalvageBlock)]
        assert salvages
        assert {(one.partition, one.container_id, one.local_id, one.bcs_id) for one in salvages} == {
            (1, block.container_id, block.local_id, block.bcs_id)
        }


def test_a_read_says_which_block_at_which_index(make: Make) -> None:
    world = make(replicas=1)
    (block,) = world.key().blocks
    read(reader_of(world), 0, 1)
    (request,) = world.nodes["dn11"].pipelines.reads
    assert (request.partition, request.container_id, request.local_id) == (1, block.container_id, block.local_id)
    assert (request.bcs_id, request.committed_only) == (block.bcs_id, True)


def test_blocks_lie_one_after_the_other(make: Make) -> None:
    world = make(replicas=1)
    world.put(DATA[::-1], "/v/b/k2")
    (block,), (other,) = world.key().blocks, world.key("k2").blocks
    half = 7 * CELL_BYTES + 11
    both = [replace(block, length=half), replace(other, offset=half, length=50)]
    reader = KeyReader(world.client.streams, both)
    assert reader.size == half + 50
    assert read(reader, half - 10, 100) == DATA[half - 10 : half] + DATA[::-1][:50]
    assert read(reader, half, 1) == DATA[-1:]
    assert read(reader, half - 1, 1) == DATA[half - 1 : half]
    assert read(reader, 0, 1) == DATA[:1]


# -- a peer that is not as it should be


def with_cells_of(world: World, cell_bytes: int) -> None:
    """Have the key's block be one that was written with other cells than the client's."""
    (block,) = world.key().blocks
    log, cells = world.logs[1], CellChecksums(cell_bytes)
    cells.write(0, memoryview(DATA))
    put, index = log.rows[(block.container_id, block.local_id)]
    log.rows[(block.container_id, block.local_id)] = (
        replace(put, bytes_per_checksum=cell_bytes, checksums=cells.packed(len(DATA))), index
    )  # fmt: skip


@pytest.mark.parametrize("cell_bytes", [MIN_CELL_BYTES, 1000, 9000, CELL_BYTES - 1, 100_000, MAX_CELL_BYTES])
def test_cells_of_all_sizes_are_read(make: Make, cell_bytes: int) -> None:
    """Datanodes take cells of 512 bytes to 4 MiB; a reader does not know which they are."""
    world = make(replicas=1)
    with_cells_of(world, cell_bytes)
    reader = reader_of(world)
    assert read(reader, 0, len(DATA)) == DATA
    chance = random.Random(cell_bytes)
    for _ in range(30):
        offset, length = chance.randrange(len(DATA)), chance.randrange(2 * CELL_BYTES)
        assert read(reader, offset, length) == DATA[offset : offset + length]
    assert reader.failovers == 0
    before, reached = len(asked(world)), 0
    reader = reader_of(world, read_ahead_bytes=16 * CELL_BYTES)
    while reached < len(DATA):
        part = reader.next_bytes(reached, 1)
        assert part == DATA[reached : reached + len(part)]
        reached += len(part)
    assert len(asked(world)) - before <= 4, "whoever reads on asks for more each time, whatever the cells are"


@pytest.mark.parametrize("part", [0, 1, 100, CELL_BYTES - 1])
def test_cells_that_come_in_part_are_an_error(make: Make, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """A read neither ends before its size nor asks for ever."""
    world = make(replicas=2)
    whole = reading._cells

    def cut(*arguments: Any) -> Iterator[tuple[int, memoryview, int]]:
        for offset, data, _ in whole(*arguments):
            yield offset, data[:part], crc32c(data[:part])

    monkeypatch.setattr(reading, "_cells", cut)
    monkeypatch.setattr(reading, "_check", lambda *_: None)
    ways: list[Callable[[KeyReader], object]] = [
        lambda reader: read(reader, 0, len(DATA)),
        lambda reader: read(reader, part, 1),
        lambda reader: read(reader, 3 * CELL_BYTES + part, 10),
        lambda reader: io.TextIOWrapper(KeyInput(reader, "/v/b/k"), "latin-1").read(),
        lambda reader: list(KeyInput(reader, "/v/b/k")),
    ]
    for way in ways:
        before = sum(len(asked(world, name)) for name in world.nodes)
        with pytest.raises(DatanodeError, match="came where the one at .* was expected") as caught:
            way(reader_of(world))
        assert caught.value.status == BAD_FRAME
        assert sum(len(asked(world, name)) for name in world.nodes) - before <= 1 + 2 * MAX_ROUNDS


def test_an_answer_without_an_end_is_left(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes a file does not wait for a datanode that always sends more."""
    monkeypatch.setattr(key_reader, "END_MS", 100)
    world = make(replicas=1)

    def endless(*_: Any) -> Iterator[tuple[int, memoryview, int]]:
        data = memoryview(DATA)[:CELL_BYTES]
        while True:
            yield 0, data, crc32c(data)

    monkeypatch.setattr(reading, "_cells", endless)
    monkeypatch.setattr(reading, "_check", lambda *_: None)
    reader = reader_of(world)
    assert read(reader, 0, 1) == DATA[:1]
    before = kept(world)
    reader.close()
    assert kept(world) == before, "it is not kept"


ROWS: list[tuple[str, Callable[[list[BlockLocation]], list[BlockLocation]]]] = [
    (r"says 204800 bytes, and its blocks hold 196608", lambda blocks: blocks[:-1]),
    (r"says 204800 bytes, and its blocks hold 0", lambda _: []),
    (r"has 65536 bytes at 65536 in block 257/2, where 0 follows", lambda blocks: blocks[1:]),
    (r"names block 257/1 twice", lambda blocks: blocks[:1] * 4),
    (r"names block 257/1 twice", lambda blocks: [blocks[0], replace(blocks[0], offset=blocks[0].length), *blocks[2:]]),
    (r"has 0 bytes at 0 in block 257/1", lambda blocks: [replace(blocks[0], length=0), *blocks[1:]]),
    (r"has -1 bytes at 0 in block 257/1", lambda blocks: [replace(blocks[0], length=-1), *blocks[1:]]),
    (r"has 65536 bytes at 131072 in block 257/3", lambda blocks: [blocks[0], *blocks[2:]]),
]


@pytest.mark.parametrize(("words", "change"), ROWS, ids=[words for words, _ in ROWS])
def test_a_row_that_does_not_add_up_is_refused_before_its_first_byte(
    tmp_path: Path, words: str, change: Callable[[list[BlockLocation]], list[BlockLocation]]
) -> None:
    world: Any = World(tmp_path / "world", replicas=1, block_bytes=64 * KIB)
    world.put(DATA[: 200 * KIB])
    world.cluster.put(replace(row := world.key(), blocks=change(row.blocks)))
    with pytest.raises(RequestFailed, match=f"the row of /v/b/k does not add up: it {words}") as caught:
        world.client.open("/v/b/k")
    assert caught.value.status == INTERNAL_ERROR
    world.close()


def test_a_key_of_metadata_alone_has_no_bytes(make: Make) -> None:
    world = make(replicas=1)
    (block,) = world.key().blocks
    reader = KeyReader(world.client.streams, [replace(block, bcs_id=NEVER_WRITTEN)])
    with pytest.raises(RequestFailed, match="was never written") as caught:
        read(reader, 0, 1)
    assert caught.value.status == NOT_COMMITTED
    assert asked(world) == []


def test_a_kept_connection_that_has_died_is_no_failover(make: Make) -> None:
    world = make(replicas=1)
    reader = reader_of(world)
    read(reader, 0, 4 * CELL_BYTES)
    (connection,) = kept(world)
    connection._socket.shutdown(2)
    assert read(reader, 8 * CELL_BYTES, 1) == DATA[8 * CELL_BYTES :][:1]
    assert reader.failovers == 0


def refuse_all(world: World) -> list[str]:
    """Have all replicas refuse and be damaged; return the list of whom was asked, which grows."""
    (block,) = world.key().blocks
    order: list[str] = []
    for node in world.members():
        node.pipelines.unhealthy.add((block.container_id, block.local_id))
        for at in range(20):
            node.blocks.damage(block, at * CELL_BYTES, b"no")
        node.pipelines.reads = Named(node.name, order)
    return order


class Named(list[Any]):
    """What a datanode was asked; it also notes that it was asked, among the others."""

    def __init__(self, name: str, order: list[str]) -> None:
        super().__init__()
        self._name, self._order = name, order

    def append(self, request: Any) -> None:
        super().append(request)
        if isinstance(request, ReadBlock):
            self._order.append(self._name)


def test_who_answered_last_and_failed_then_has_no_precedence_any_more(make: Make) -> None:
    world = make({"dn11": "/near/1", "dn12": "/far/2"}, replicas=2)
    (block,) = world.key().blocks
    near = world.nodes["dn11"].pipelines
    near.unhealthy.add((block.container_id, block.local_id))
    reader = reader_of(world, rack="/near/1")
    read(reader, 0, 1)
    assert len(asked(world, "dn12")) == 1
    order = refuse_all(world)
    with pytest.raises(DatanodeError):
        read(reader, 12 * CELL_BYTES, 1)
    assert order == ["dn12", "dn11"] + ["dn11", "dn12"] * (MAX_ROUNDS - 1)


def test_rounds_are_further_apart_each_time_and_the_object_manager_is_asked_between_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(replicas=1)
    reader = reader_of(world)
    read(reader, 0, 1)
    refuse_all(world)
    pauses: list[float] = []
    monkeypatch.setattr(key_reader, "PAUSES", Backoff(first_s=0.007, last_s=0.014))
    monkeypatch.setattr(key_reader, "time", SimpleNamespace(sleep=pauses.append))
    refreshed: list[int] = []
    monkeypatch.setattr(world.client.streams.directory, "try_refresh", lambda: refreshed.append(len(pauses)))
    with pytest.raises(DatanodeError):
        read(reader, 12 * CELL_BYTES, 1)
    assert pauses == [0.007, 0.014]
    assert refreshed == [1, 2]


def test_the_other_holders_of_a_container_are_asked_when_no_member_answers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(replicas=2)
    gone, holder = world.members()
    directory = world.client.streams.directory
    view = directory.pipeline("pipeline-1")
    members = {member.datanode: member for member in view.members}
    monkeypatch.setattr(directory, "pipeline", lambda _: replace(view, members=(members[gone.name],)))
    asked_for: list[int] = []

    def holders(container_id: int) -> list[Any]:
        asked_for.append(container_id)
        return list(members.values())

    monkeypatch.setattr(directory, "holders", holders)
    reader = reader_of(world)
    assert read(reader, 0, 1) == DATA[:1]
    assert asked_for == [], "the member answers"
    gone.stop()
    assert read(reader, 9 * CELL_BYTES, 1) == DATA[9 * CELL_BYTES :][:1]
    assert asked_for == [world.key().blocks[0].container_id]
    assert len(asked(world, holder.name)) == 1


class NoTokens:
    """Where no token is to be had."""

    def of(self, _: object) -> bytes:
        raise DatanodeError(BLOCK_TOKEN_MISSING, "no token for this block is to be had")

    def refused(self, *_: object) -> bool:
        return False


def test_without_a_token_nobody_is_asked_and_the_reason_is_told(make: Make) -> None:
    world = make(replicas=2)
    tokens: Any = NoTokens()
    reader = KeyReader(world.client.streams, world.key().blocks, options=world.with_options(), tokens=tokens)
    with pytest.raises(DatanodeError, match="no token for this block is to be had"):
        read(reader, 0, 10)
    assert asked(world) == []


def test_a_kept_connection_that_has_ended_costs_no_replica(make: Make) -> None:
    """The same datanode is asked once more, on a new connection."""
    world = make(replicas=1)
    reader = reader_of(world)
    assert read(reader, 0, len(DATA)) == DATA
    (before,) = kept(world)
    before.interrupt()
    assert read(reader_of(world), 0, 100) == DATA[:100]
    assert before.fileno() < 0, "it was closed"
    assert reader.failovers == 0
