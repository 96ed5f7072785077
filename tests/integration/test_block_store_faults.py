"""The block store through kills, losses of power and full disks, with real processes and file systems.

A loss of power is a copy of the device below a mounted ext4, taken while the writing process is stopped: what the kernel has in its page
cache is not in it. Needs root, as does a full tmpfs; without it these tests are skipped.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from crc32c import crc32c

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.repair.copies import Copies
from datanode_processors.repair.transfer import import_container
from schemas.codecs.block_rows import block_key, encode_block_row
from schemas.records.datanode import BlockId, BlockRow, DeleteBlocks
from schemas.stream_errors import DISK_FULL
from tests.support.datanodes.block_writing import BLOCKS, CELL, CONTAINER, content
from tests.support.datanodes.checksums import checksums_of
from tests.support.local.pausing import pause

pytestmark = [pytest.mark.integration, pytest.mark.chaos]

KILLS = 8
IMAGE_MIB = 64
ROOT = Path(__file__).parents[2]


class Writing:
    """The process that writes."""

    def __init__(self, folder: Path, fsync: str, seed: int) -> None:
        command = [sys.executable, "-m", "tests.support.datanodes.block_writing", str(folder), fsync, str(seed)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        self._output = self.process.stdout
        self._first = self._output.readline()  # from now on it writes

    def said(self) -> dict[int, int]:
        """Return the lengths that it was told are stored; call when it is dead."""
        lines = (self._first + self._output.read()).split("\n")[:-1]  # the last one may be half
        return {int(local_id): int(length) for local_id, length in (line.split() for line in lines)}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def agrees(store: BlockStore, said: dict[int, int]) -> int:
    """Check every block: what was said to be stored is, and what is stored is right. Returns the bytes stored."""
    total = 0
    for local_id in range(BLOCKS):
        data = content(local_id)
        stored = store.stored_length(CONTAINER, local_id)
        sure = said.get(local_id, 0)
        assert stored >= sure
        if stored:
            found = b"".join(piece for _, piece, _ in store.read(CONTAINER, local_id, 0, stored))
            assert found[:sure] == data[:sure]
            assert store.checksums(CONTAINER, local_id, stored, CELL) == checksums_of(found, CELL)
        total += stored
    return total


@pytest.mark.parametrize("fsync", ["close", "packet", "never"])
def test_killed_while_writing_again_and_again(tmp_path: Path, fsync: str, fault_round: int):
    """Stored bytes are right after each kill, all of them, and writing goes on from there."""
    chance = random.Random(fault_round)
    for kill in range(KILLS):
        writing = Writing(tmp_path, fsync, chance.randrange(1 << 30))
        time.sleep(chance.uniform(0, 0.2))
        writing.kill()
        said = writing.said()
        store = BlockStore(tmp_path, fsync=fsync)
        agrees(store, said)
        for local_id in range(BLOCKS):
            stored = store.stored_length(CONTAINER, local_id)
            assert store.checksums(CONTAINER, local_id, stored, CELL) == checksums_of(content(local_id)[:stored], CELL)
        if kill == KILLS - 1:
            finish(store)


def finish(store: BlockStore) -> None:
    """Write what is left of all blocks, from where each one stands."""
    for local_id in range(BLOCKS):
        data = content(local_id)
        offset = store.written_length(CONTAINER, local_id)
        with store.open_writer(CONTAINER, local_id, offset, CELL) as writer:
            writer.write(offset, data[offset:])
            writer.flush()
        assert store.stored_length(CONTAINER, local_id) == len(data)
        assert store.checksums(CONTAINER, local_id, len(data)) == checksums_of(data, CELL)


# ------------------------------------------------------------------------------------------------ loss of power


@contextmanager
def mounted(what: str, where: Path, *options: str) -> Iterator[Path]:
    where.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, what, str(where)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is refused here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


@pytest.fixture
def disk_image(tmp_path: Path) -> Path:
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4")
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(IMAGE_MIB << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    return image


@pytest.mark.parametrize("fsync", ["close", "packet", "never"])
def test_a_loss_of_power_takes_only_what_was_not_said_to_be_stored(
    tmp_path: Path, disk_image: Path, fsync: str, fault_round: int
):
    """Under ``never`` nothing was promised; there it shows that this test does lose what is in the page cache."""
    chance = random.Random(fault_round)
    copy = tmp_path / "disk-after"
    with mounted(str(disk_image), tmp_path / "before", "-o", "loop,commit=300") as folder:
        writing = Writing(folder / "data", fsync, fault_round)
        time.sleep(chance.uniform(0, 0.5))
        pause(writing.process.pid)  # whatever system call it was in has ended
        shutil.copyfile(disk_image, copy)
        writing.kill()
        said = writing.said()
        in_cache = BlockStore(folder / "data", fsync="never").used_bytes()
    with mounted(str(copy), tmp_path / "after", "-o", "loop") as folder:
        total = agrees(BlockStore(folder / "data", fsync=fsync), {} if fsync == "never" else said)
        if fsync == "never":
            assert total < in_cache
        else:
            assert sum(said.values()) <= total <= in_cache


# --------------------------------------------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("needs root")
    with mounted("tmpfs", tmp_path / "small", "-t", "tmpfs", "-o", "size=4m") as folder:
        yield folder


def fill(store: BlockStore, local_id: int, packet_bytes: int) -> int:
    """Write a block until the disk is full, and return how much was taken."""
    data, offset = content(local_id) * 8, 0
    with store.open_writer(CONTAINER, local_id, 0, CELL) as writer:
        try:
            while piece := data[offset : offset + packet_bytes]:
                writer.write(offset, piece, crc32c(piece))
                offset += len(piece)
        except BlockError as error:
            assert error.code == DISK_FULL  # noqa: PT017 - which packet it is, is what we want to know
            writer.flush()
            return offset
    raise AssertionError("the disk did not fill up")


@pytest.mark.parametrize("reserve_bytes", [0, 1 << 20])
@pytest.mark.parametrize("packet_bytes", [1000, 65536])
def test_a_full_disk_keeps_what_it_has_and_takes_more_when_there_is_room(
    small_disk: Path, reserve_bytes: int, packet_bytes: int
):
    store = BlockStore(small_disk, fsync="close", reserve_bytes=reserve_bytes)
    with store.open_writer(CONTAINER, 1, 0, CELL) as writer:
        writer.write(0, content(1))
        writer.flush()
    length = fill(store, 2, packet_bytes)
    free = os.statvfs(small_disk)
    assert (free.f_bavail + 2) * free.f_frsize >= reserve_bytes  # files end within a block of the file system
    assert store.free_bytes() < packet_bytes + 2 * 4096
    for again in (store, BlockStore(small_disk, reserve_bytes=reserve_bytes)):
        for local_id, size in ((1, len(content(1))), (2, length)):
            data = (content(local_id) * 8)[:size]
            assert again.stored_length(CONTAINER, local_id) >= size
            assert again.checksums(CONTAINER, local_id, size, CELL) == checksums_of(data, CELL)
            assert b"".join(piece for _, piece, _ in again.read(CONTAINER, local_id, 0, size)) == data
    assert fill(store, 3, packet_bytes) <= packet_bytes + 2 * 4096
    store.delete(CONTAINER, 1)
    with store.open_writer(CONTAINER, 2, length, CELL) as writer:
        more = (content(2) * 8)[length : length + 500_000]
        writer.write(length, more)
        writer.flush()
    assert store.checksums(CONTAINER, 2, length + len(more)) == checksums_of(
        (content(2) * 8)[: length + len(more)], CELL
    )


def test_blocks_of_a_copy_are_deleted_from_a_disk_without_a_byte_left(small_disk: Path) -> None:
    """The rows that say so cannot be written: the bytes go first, and make room for them."""
    store = BlockStore(small_disk)
    data = {number: content(number)[: 300 * 1024] for number in (1, 2)}
    rows = {
        number: BlockRow(
            bcs_id=1, length=len(one), bytes_per_checksum=CELL, checksums=checksums_of(one, CELL), deleted=False
        )
        for number, one in data.items()
    }
    import_container(
        store, CONTAINER, [(block_key(CONTAINER, number), encode_block_row(rows[number]), [data[number]]) for number in rows]
    )  # fmt: skip
    with suppress(OSError), (small_disk / "others").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(small_disk).f_bavail == 0
    copies = Copies(store, node="dn1", cluster="test", note=lambda *_, **__: None)
    for number, left in ((1, [2]), (2, [])):
        named = BlockId(container_id=CONTAINER, local_id=number)
        copies.delete(DeleteBlocks(partition=CONTAINER % 256, blocks=[named]))
        assert [local_id for local_id, _ in store.blocks(CONTAINER)] == left
        if left:
            assert copies.stored(CONTAINER)[1].deleted
            assert copies.stored(CONTAINER)[2] == rows[2]
    assert not store.container_folder(CONTAINER).exists()
