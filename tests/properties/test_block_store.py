"""The block store on real files against a dict of bytes: writing, resuming, restarting, reclaiming, deleting, in any order."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.block_writer import BlockFileWriter
from datanode_processors.blocks.core.checksums import MIN_CELL_BYTES
from datanode_processors.errors import BlockError
from schemas.stream_errors import BLOCK_DELETED, CHECKSUM_MISMATCH, CONTAINER_CLOSED, OUT_OF_ORDER
from tests.properties.examples import examples
from tests.support.datanodes.checksums import checksums_of

CELL = MIN_CELL_BYTES
IDS = st.sampled_from([(1, 1), (1, 2), (2, 1)])
SIZES = st.one_of(st.integers(1, 3 * CELL), st.sampled_from([CELL - 1, CELL, CELL + 1, 2 * CELL]))
PLACES = st.floats(0, 1)


@dataclass
class Block:
    """What a block must be: its bytes, how many are durable, how many are committed."""

    stored: bytearray
    durable: int = 0
    committed: int = 0


class BlockStoreMachine(RuleBasedStateMachine):
    fsync = "close"
    max_idle_cells = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="block-store-"))
        self.blocks: dict[tuple[int, int], Block] = {}
        self.deleted: set[tuple[int, int]] = set()
        self.closed: set[int] = set()
        self.writers: dict[tuple[int, int], BlockFileWriter] = {}
        self.positions: dict[tuple[int, int], int] = {}
        self.chance = Random(0)
        self.open()

    def open(self) -> None:
        self.store = BlockStore(self.folder, fsync=self.fsync, max_idle_cells=self.max_idle_cells)

    def refuses(self, code: str):
        return pytest.raises(BlockError, check=lambda error: error.code == code)

    @rule(key=IDS, place=PLACES)
    def open_writer(self, key: tuple[int, int], place: float):
        if key in self.writers:
            self.writers.pop(key).close()
        if key in self.deleted or key[0] in self.closed:
            with self.refuses(BLOCK_DELETED if key in self.deleted else CONTAINER_CLOSED):
                self.store.open_writer(*key, 0, CELL)
            return
        length = len(self.blocks[key].stored) if key in self.blocks else 0
        offset = round(place * length)
        self.writers[key] = self.store.open_writer(*key, offset, CELL)
        self.blocks.setdefault(key, Block(bytearray()))
        self.positions[key] = offset

    @rule(key=IDS, size=SIZES, back=PLACES, with_crc=st.booleans(), vectors=st.integers(1, 3), same=st.booleans())
    def write(self, key: tuple[int, int], size: int, back: float, with_crc: bool, vectors: int, same: bool):
        if key not in self.writers:
            return
        block = self.blocks[key]
        offset = self.positions[key] if back > 0.3 else round(back * self.positions[key])
        data = self.chance.randbytes(size)
        if same:
            data = bytes(block.stored[offset : offset + size]) + data[: max(0, offset + size - len(block.stored))]
            data = data[:size]
        step = -(-size // vectors)
        packets = [data[at : at + step] for at in range(0, size, step)]
        writer = self.writers[key]
        both = slice(offset, min(block.committed, offset + size, len(block.stored)))
        if offset < block.committed and block.stored[both] != data[: both.stop - both.start]:
            with self.refuses(CHECKSUM_MISMATCH):
                writer.write_packets(offset, [(piece, None) for piece in packets])
            return
        writer.write_packets(offset, [(piece, crc32c(piece) if with_crc else None) for piece in packets])
        block.stored[offset : offset + size] = data
        touched = max(offset, min(block.committed, offset + size))
        if touched < offset + size:
            block.durable = min(block.durable, touched)
        if self.fsync == "packet":
            block.durable = len(block.stored)
        self.positions[key] = max(self.positions[key], offset + size)

    @rule(key=IDS)
    def write_beyond(self, key: tuple[int, int]):
        if key in self.writers:
            with self.refuses(OUT_OF_ORDER):
                self.writers[key].write(self.positions[key] + 1, b"x")

    @rule(key=IDS, by_writer=st.booleans())
    def flush(self, key: tuple[int, int], by_writer: bool):
        if key not in self.blocks:
            return
        if by_writer and key in self.writers:
            self.writers[key].flush()
        else:
            self.store.flush(*key)
        self.blocks[key].durable = len(self.blocks[key].stored)

    @rule(key=IDS)
    def close_writer(self, key: tuple[int, int]):
        if key in self.writers:
            self.writers.pop(key).close()

    @rule(key=IDS, place=PLACES)
    @precondition(lambda self: self.max_idle_cells > 1000)  # else the store forgets what it was told, sooner or later
    def commit(self, key: tuple[int, int], place: float):
        if key in self.blocks:
            block = self.blocks[key]
            length = round(place * len(block.stored))
            self.store.committed(*key, length)
            block.committed = max(block.committed, length)

    @rule(key=IDS, place=PLACES)
    def reclaim(self, key: tuple[int, int], place: float):
        if key not in self.blocks:
            return
        block = self.blocks[key]
        length = max(round(place * len(block.stored)), block.committed)
        self.store.reclaim(*key, length)
        del block.stored[length:]
        block.durable = len(block.stored)
        if key in self.writers:
            with self.refuses(CONTAINER_CLOSED):
                self.writers[key].write(0, b"x")
            self.writers.pop(key).close()

    @rule(key=IDS)
    def delete(self, key: tuple[int, int]):
        self.store.delete(*key)
        self.store.delete(*key)
        self.blocks.pop(key, None)
        self.deleted.add(key)
        if all(other[0] != key[0] for other in self.blocks):
            self.closed.discard(key[0])
        if key in self.writers:
            with self.refuses(BLOCK_DELETED):
                self.writers[key].write(0, b"x")
            self.writers.pop(key).close()

    @rule(container=st.just(2))
    @precondition(lambda self: any(key[0] == 2 for key in self.blocks))
    def close_container(self, container: int):
        self.store.close_container(container)
        self.closed.add(container)
        for key in [key for key in self.writers if key[0] == container]:
            with self.refuses(CONTAINER_CLOSED):
                self.writers[key].write(self.positions[key], b"x")
            self.writers.pop(key).close()

    @rule()
    def restart(self):
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()
        self.deleted.clear()
        self.open()
        for block in self.blocks.values():
            block.durable, block.committed = len(block.stored), 0

    @rule(key=IDS, place=PLACES)
    def checksums(self, key: tuple[int, int], place: float):
        stored = self.blocks[key].stored if key in self.blocks else b""
        length = round(place * len(stored))
        assert self.store.checksums(*key, length, CELL) == checksums_of(stored[:length], CELL)
        assert self.store.checksums(*key, len(stored), CELL) == checksums_of(stored, CELL)
        assert self.store.checksums(*key, len(stored) + 1, CELL) is None

    @rule(key=IDS, place=PLACES, extent=PLACES)
    def read(self, key: tuple[int, int], place: float, extent: float):
        if key not in self.blocks:
            return
        stored = self.blocks[key].stored
        offset = round(place * len(stored))
        length = round(extent * (len(stored) - offset))
        expected = offset - offset % CELL
        for at, data, crc in self.store.read(*key, offset, length, bytes_per_checksum=CELL, end=len(stored)):
            assert at == expected
            assert data == stored[at : at + CELL]
            assert crc == crc32c(data)
            expected += len(data)
        assert not length or expected >= offset + length

    @invariant()
    def lengths_agree(self):
        for key, block in self.blocks.items():
            assert self.store.written_length(*key) == len(block.stored)
            stored = self.store.stored_length(*key)
            if self.fsync == "never":
                assert stored == len(block.stored)
            elif self.max_idle_cells > 1000:
                assert stored == block.durable
            else:  # forgotten and found again, it has been fsynced
                assert block.durable <= stored <= len(block.stored)

    @invariant()
    def what_is_counted_is_there(self):
        usage = {found.container_id: found for found in self.store.containers()}
        for container in (1, 2):
            sizes = [len(block.stored) for key, block in self.blocks.items() if key[0] == container]
            found = usage.get(container)
            assert (found.blocks, found.used_bytes) == (len(sizes), sum(sizes)) if found else not sizes
            assert self.store.is_closed(container) == (container in self.closed)
            assert (self.folder / "containers" / str(container)).exists() == (bool(sizes))

    def teardown(self) -> None:
        for writer in self.writers.values():
            writer.close()
        shutil.rmtree(self.folder)


class NeverMachine(BlockStoreMachine):
    fsync = "never"


class PacketMachine(BlockStoreMachine):
    fsync = "packet"


class ForgetfulMachine(BlockStoreMachine):
    """Checksums of idle blocks are thrown away and read again all the time."""

    max_idle_cells = 0


for _machine in (BlockStoreMachine, NeverMachine, PacketMachine, ForgetfulMachine):
    _machine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)

TestClose = BlockStoreMachine.TestCase
TestNever = NeverMachine.TestCase
TestPacket = PacketMachine.TestCase
TestForgetful = ForgetfulMachine.TestCase
