"""The block store on real files: writing, resuming, who may write, what counts as stored."""

from __future__ import annotations

import os
import random
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from datanode_processors.blocks.block_file import BlockFile
from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.containers import block_name
from datanode_processors.blocks.space import DiskSpace
from datanode_processors.errors import BlockError
from schemas import stream_errors as codes
from tests.support.datanodes.checksums import checksums_of

CELL = 4096
DATA = os.urandom(10 * CELL + 100)


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path, fsync="close")


def write(store: BlockStore, data: bytes, offset: int = 0, *, packet: int = CELL, local_id: int = 1) -> None:
    with store.open_writer(7, local_id, offset, CELL) as writer:
        for at in range(0, len(data), packet):
            piece = data[at : at + packet]
            writer.write(offset + at, memoryview(piece), crc32c(piece))
        writer.flush()


def read(store: BlockStore, local_id: int = 1) -> bytes:
    length = store.written_length(7, local_id)
    cells = list(store.read(7, local_id, 0, length))
    assert all(crc == crc32c(data) for _, data, crc in cells)
    return b"".join(data for _, data, _ in cells)


def refused(code: str):
    return pytest.raises(BlockError, check=lambda error: error.code == code)


@pytest.mark.parametrize("packet", [100, CELL - 1, CELL, CELL + 1, 3 * CELL, len(DATA)])
def test_what_is_written_is_read_with_its_checksums(store: BlockStore, packet: int):
    write(store, DATA, packet=packet)
    assert read(store) == DATA
    assert store.stored_length(7, 1) == len(DATA)
    for length in (0, 1, CELL, CELL + 1, 10 * CELL, len(DATA)):
        assert store.checksums(7, 1, length) == checksums_of(DATA[:length], CELL)
    assert store.checksums(7, 1, len(DATA) + 1) is None


def test_a_block_that_is_not_there_has_no_bytes(store: BlockStore):
    assert store.stored_length(7, 1) == store.written_length(7, 1) == 0
    assert store.checksums(7, 1, 0) == b""
    assert store.checksums(7, 1, 1) is None
    with refused(codes.NO_SUCH_BLOCK):
        store.read(7, 1, 0, 0)
    store.delete(7, 1)
    store.reclaim(7, 1, 0)


@pytest.mark.parametrize("offset", [0, 5, CELL, CELL + 7, len(DATA)])
def test_a_resume_overwrites_and_never_truncates(store: BlockStore, offset: int):
    write(store, DATA)
    write(store, DATA[offset : offset + 2 * CELL + 3], offset)
    assert read(store) == DATA
    assert store.checksums(7, 1, len(DATA)) == checksums_of(DATA, CELL)


def test_a_gap_is_refused(store: BlockStore):
    write(store, DATA[:CELL])
    with refused(codes.OUT_OF_ORDER) as caught:
        store.open_writer(7, 1, CELL + 1, CELL)
    assert caught.value.offset == CELL
    with store.open_writer(7, 1, 0, CELL) as writer, refused(codes.OUT_OF_ORDER):
        writer.write(1, b"x")


def test_after_a_restart_the_bytes_tell(store: BlockStore, tmp_path: Path):
    write(store, DATA)
    again = BlockStore(tmp_path, fsync="close")
    assert again.stored_length(7, 1) == len(DATA)
    assert again.checksums(7, 1, len(DATA), CELL) == checksums_of(DATA, CELL)
    assert again.used_bytes() == len(DATA)


# ------------------------------------------------------------------------------------------------ who may write


def test_a_second_writer_is_refused_while_the_first_lives(store: BlockStore):
    first = store.open_writer(7, 1, 0, CELL)
    with refused(codes.OVERLOADED):
        store.open_writer(7, 1, 0, CELL)
    store.open_writer(7, 2, 0, CELL).close()
    first.close()
    first.close()
    store.open_writer(7, 1, 0, CELL).close()


def test_a_dead_streams_block_is_taken_over_and_its_writer_can_do_no_more(store: BlockStore):
    alive = True
    first = store.open_writer(7, 1, 0, CELL, alive=lambda: alive)
    first.write(0, DATA[:CELL])
    alive = False
    second = store.open_writer(7, 1, CELL, CELL)
    for late in (lambda: first.write(CELL, b"late"), first.flush):
        with refused(codes.OUT_OF_ORDER):
            late()
    second.write(CELL, DATA[CELL : 2 * CELL])
    first.close()
    second.write(2 * CELL, DATA[2 * CELL : 3 * CELL])
    second.close()
    assert read(store) == DATA[: 3 * CELL]


def test_an_idle_stream_may_be_taken_over(store: BlockStore, monkeypatch: pytest.MonkeyPatch):
    first = store.open_writer(7, 1, 0, CELL)
    first.write(0, DATA[:CELL])
    monkeypatch.setattr("datanode_processors.blocks.block_writer.STALE_WRITER_S", -1.0)
    with store.open_writer(7, 1, CELL, CELL), refused(codes.OUT_OF_ORDER):
        first.write(CELL, b"late")


def test_writers_and_readers_are_limited(tmp_path: Path):
    store = BlockStore(tmp_path, fsync="never", max_writers=2, max_readers=1)
    first, second = (store.open_writer(7, local_id, 0, CELL) for local_id in (1, 2))
    with refused(codes.OVERLOADED):
        store.open_writer(7, 3, 0, CELL)
    first.write(0, DATA)
    first.close()
    store.open_writer(7, 3, 0, CELL).close()
    second.close()
    cells = store.read(7, 1, 0, len(DATA))
    next(cells)
    with refused(codes.OVERLOADED):
        next(store.read(7, 1, 0, len(DATA)))
    list(cells)
    assert len(list(store.read(7, 1, 0, len(DATA)))) == 11


@pytest.mark.parametrize("cell_bytes", [0, 1, 511, 1 << 40])
def test_cells_of_no_possible_size_are_refused(store: BlockStore, cell_bytes: int):
    with refused(codes.INVALID_REQUEST):
        store.open_writer(7, 1, 0, cell_bytes)
    with refused(codes.INVALID_REQUEST):
        store.open_writer(-7, 1, 0, CELL)
    for _ in range(3):
        store.open_writer(7, 1, 0, CELL).close()


# ------------------------------------------------------------------------------------------- what is committed


def test_committed_bytes_are_not_written_again_but_by_a_repair(store: BlockStore):
    write(store, DATA)
    store.committed(7, 1, 2 * CELL + 10)
    write(store, DATA)
    wrong = bytes(len(DATA))
    with store.open_writer(7, 1, 0, CELL) as writer:
        with refused(codes.CHECKSUM_MISMATCH):
            writer.write(0, wrong[:CELL])
        assert read(store) == DATA
    with store.open_writer(7, 1, 2 * CELL, CELL) as writer:
        with refused(codes.CHECKSUM_MISMATCH):
            writer.write(2 * CELL, wrong[:CELL])
        writer.write(2 * CELL, DATA[2 * CELL : 2 * CELL + 10] + wrong[: CELL - 10])
    changed = DATA[: 2 * CELL + 10] + wrong[: CELL - 10] + DATA[3 * CELL :]
    assert read(store) == changed
    assert store.checksums(7, 1, len(DATA)) == checksums_of(changed, CELL)
    with store.open_writer(7, 1, 0, CELL, repair=True) as writer:
        writer.write(CELL, wrong[:CELL])
    assert read(store)[CELL : 2 * CELL] == wrong[:CELL]


def test_a_commit_may_come_before_the_bytes(store: BlockStore):
    store.committed(7, 1, len(DATA))
    assert store.stored_length(7, 1) == 0
    write(store, DATA)
    assert read(store) == DATA


def test_reclaim_cuts_garbage_and_nothing_else(store: BlockStore):
    write(store, DATA)
    store.committed(7, 1, CELL + 10)
    with refused(codes.INVALID_REQUEST):
        store.reclaim(7, 1, CELL)
    for _ in range(2):
        store.reclaim(7, 1, CELL + 10)
        assert read(store) == DATA[: CELL + 10]
        assert store.checksums(7, 1, CELL + 10) == checksums_of(DATA[: CELL + 10], CELL)
        assert store.stored_length(7, 1) == store.used_bytes() == CELL + 10
    store.reclaim(7, 1, len(DATA))
    assert read(store) == DATA[: CELL + 10]


def test_reclaim_and_delete_end_a_stream(store: BlockStore):
    for local_id, code, act in (
        (1, codes.CONTAINER_CLOSED, lambda: store.reclaim(7, 1, 10)),
        (2, codes.BLOCK_DELETED, lambda: store.delete(7, 2)),
        (3, codes.CONTAINER_CLOSED, lambda: store.close_container(7)),
    ):
        writer = store.open_writer(7, local_id, 0, CELL)
        writer.write(0, DATA[:CELL])
        act()
        with refused(code):
            writer.write(CELL, DATA[:CELL])
        writer.close()
    assert store.written_length(7, 1) == 10
    assert store.written_length(7, 2) == 0


def test_what_a_stream_has_written_so_far_is_stored_when_the_store_is_asked_to(store: BlockStore):
    with store.open_writer(7, 1, 0, CELL) as writer:
        writer.write(0, DATA[:CELL])
        assert (store.written_length(7, 1), store.stored_length(7, 1)) == (CELL, 0)
        assert store.flush(7, 1) == store.stored_length(7, 1) == CELL
        writer.write(CELL, DATA[CELL:])
        assert store.stored_length(7, 1) == CELL


def test_a_closed_container_takes_no_more_bytes_and_says_which_it_is(store: BlockStore, tmp_path: Path):
    write(store, DATA)
    store.close_container(7)
    with pytest.raises(BlockError, match="container 7 takes no more bytes") as refusal:
        store.open_writer(7, 1, len(DATA), CELL)
    assert refusal.value.code == codes.CONTAINER_CLOSED
    assert read(store) == DATA
    other = BlockStore(tmp_path / "other")
    assert other.written_length(7, 1) == 0  # it is asked for before there is a container
    write(other, DATA, local_id=2)
    other.close_container(7)
    with refused(codes.CONTAINER_CLOSED):
        other.open_writer(7, 1, 0, CELL)


def test_a_deleted_block_does_not_come_back(store: BlockStore, tmp_path: Path):
    write(store, DATA)
    write(store, DATA, local_id=2)
    for _ in range(2):
        store.delete(7, 1)
        with refused(codes.BLOCK_DELETED):
            store.open_writer(7, 1, 0, CELL)
        assert store.stored_length(7, 1) == 0
    assert list(store.blocks(7)) == [(2, len(DATA))]
    store.delete(7, 2)
    assert os.listdir(tmp_path / "containers") == []
    assert store.containers() == []
    assert store.used_bytes() == 0


def test_a_reader_keeps_its_bytes_when_the_block_is_deleted(store: BlockStore):
    write(store, DATA)
    cells = store.read(7, 1, 0, len(DATA))
    first = next(cells)
    store.delete(7, 1)
    assert b"".join(data for _, data, _ in (first, *cells)) == DATA


# ------------------------------------------------------------------------------------------------------ reading


def test_a_range_comes_in_whole_cells(store: BlockStore):
    write(store, DATA)

    def cells(offset: int, length: int, **more: Any) -> list[tuple[int, int]]:
        return [(at, len(data)) for at, data, _ in store.read(7, 1, offset, length, **more)]

    end = len(DATA)
    assert cells(CELL + 1, 10, end=end) == [(CELL, CELL)]
    assert cells(CELL + 1, 10) == [(CELL, 11)]
    assert cells(CELL - 1, 2, end=end) == [(0, CELL), (CELL, CELL)]
    assert cells(end - 1, 1, end=end) == [(10 * CELL, 100)]
    assert cells(0, 10, end=CELL + 5) == [(0, CELL)]
    assert cells(CELL, 1, end=CELL + 5) == [(CELL, 5)]
    assert cells(0, 1, end=end, bytes_per_checksum=512) == [(0, 512)]
    assert cells(end, 0) == [(10 * CELL, 100)]
    with refused(codes.NOT_COMMITTED) as caught:
        cells(0, end + 1)
    assert caught.value.offset == end
    with refused(codes.INVALID_REQUEST):
        cells(0, 10, end=9)
    with refused(codes.INVALID_REQUEST):
        cells(-1, 10)


def test_checksums_come_in_the_cells_that_are_asked_for(store: BlockStore, tmp_path: Path):
    write(store, DATA)
    for again in (store, BlockStore(tmp_path)):
        for cell_bytes in (512, CELL, 3 * CELL):
            assert again.checksums(7, 1, len(DATA), cell_bytes) == checksums_of(DATA, cell_bytes)
    with store.open_writer(7, 1, 0, CELL):
        for cell_bytes in (512, CELL):
            assert store.checksums(7, 1, 1000, cell_bytes) == checksums_of(DATA[:1000], cell_bytes)
            assert store.checksums(7, 1, len(DATA) + 1, cell_bytes) is None


def test_what_is_found_shorter_on_disk_ends_there(store: BlockStore, tmp_path: Path):
    write(store, DATA)
    again = BlockStore(tmp_path)
    assert again.written_length(7, 1) == len(DATA)
    os.truncate(tmp_path / "containers" / "7" / "1.block", 2 * CELL + 5)
    assert again.checksums(7, 1, len(DATA), CELL) is None
    assert again.stored_length(7, 1) == 2 * CELL
    cells = store.read(7, 1, 0, len(DATA))
    assert [next(cells)[0], next(cells)[0]] == [0, CELL]
    with refused(codes.FAILED):
        next(cells)


def test_a_writer_keeps_its_block_whatever_became_of_the_file_until_it_ends(store: BlockStore):
    with store.open_writer(7, 1, 0, CELL) as writer:
        writer.write(0, DATA[: 3 * CELL])
        os.truncate(store.container_folder(7) / "1.block", CELL)
        store.forget_checksums(7, 1)
        assert store.written_length(7, 1) == 3 * CELL
    store.forget_checksums(7, 1)
    assert store.written_length(7, 1) == CELL


def test_there_is_nothing_to_forget_of_a_block_that_is_not_there(store: BlockStore):
    write(store, DATA[:10])
    assert store.checksums(7, 2, 0) == b""
    store.forget_checksums(7, 2)
    assert [(usage.blocks, usage.used_bytes) for usage in store.containers()] == [(1, 10)]


def test_a_read_that_the_kernel_cuts_short_goes_on(store: BlockStore, monkeypatch: pytest.MonkeyPatch):
    """A signal or the file system may end any read early; only nothing at all is the file's end."""
    write(store, DATA)
    pread = os.pread
    store.forget_checksums(7, 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", lambda descriptor, size, offset: pread(descriptor, min(size, 1000), offset))
        assert store.checksums(7, 1, len(DATA)) == checksums_of(DATA, CELL)
    assert read(store) == DATA


# ----------------------------------------------------------------------------------------------- fsync and space


@pytest.mark.parametrize("left", [0, 3 * CELL, 3 * CELL + 5, None])
def test_what_is_cut_or_removed_behind_its_back_is_known_once_it_is_said(store: BlockStore, left: int | None):
    write(store, DATA)
    path = store.container_folder(7) / "1.block"
    if left is None:
        path.unlink()
    else:
        os.truncate(path, left)
    assert store.written_length(7, 1) == len(DATA), "nobody has said so yet"
    store.forget_checksums(7, 1)
    assert store.written_length(7, 1) == (left or 0)
    with refused(codes.OUT_OF_ORDER):
        store.open_writer(7, 1, (left or 0) + 1, CELL)
    write(store, DATA[left or 0 :], left or 0)
    assert read(store) == DATA
    (usage,) = store.containers()
    assert (usage.blocks, usage.used_bytes) == (1, len(DATA))


def test_a_container_keeps_what_else_it_has_if_it_is_not_to_be_dropped(store: BlockStore):
    write(store, DATA)
    store.delete(7, 1, drop=False)
    assert store.container_folder(7).exists()
    store.drop_if_empty(7)
    assert not store.container_folder(7).exists()


def test_a_block_that_comes_while_its_container_is_dropped_stays(store: BlockStore):
    write(store, DATA)
    store.delete(7, 1, drop=False)
    came = store.container_folder(7) / block_name(2)
    came.write_bytes(DATA)
    store.drop_if_empty(7)
    assert came.read_bytes() == DATA


def test_a_container_that_holds_what_is_no_block_is_not_dropped_in_silence(store: BlockStore):
    write(store, DATA)
    store.delete(7, 1, drop=False)
    strange = store.container_folder(7) / "notes.txt"
    strange.touch()
    with refused(codes.FAILED):
        store.drop_if_empty(7)
    assert strange.exists()


def test_each_policy_counts_what_it_promises(tmp_path: Path):
    files: dict[str, list[int]] = {}
    for policy in ("close", "never", "packet"):
        store = BlockStore(tmp_path / policy, fsync=policy)
        before = store.fsyncs.directories
        writer = store.open_writer(7, 1, 0, CELL)
        seen = files.setdefault(policy, [])
        for at in (0, CELL):
            writer.write(at, DATA[at : at + CELL])
            seen += [store.stored_length(7, 1), store.fsyncs.files]
        writer.flush()
        writer.flush()
        seen += [store.stored_length(7, 1), store.fsyncs.files, store.fsyncs.directories - before]
        writer.close()
    assert files == {
        "close": [0, 0, 0, 0, 2 * CELL, 1, 2],
        "never": [CELL, 0, 2 * CELL, 0, 2 * CELL, 0, 0],
        "packet": [CELL, 1, 2 * CELL, 2, 2 * CELL, 2, 2],
    }


def test_an_unknown_policy_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="'sometimes'"):
        BlockStore(tmp_path, fsync="sometimes")


def test_what_an_fsync_failed_to_store_is_lost_and_said_so(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The kernel may drop the pages and report the next fsync as good."""
    writer = store.open_writer(7, 1, 0, CELL)
    writer.write(0, DATA[:CELL])
    writer.flush()
    writer.write(CELL, DATA[CELL : 3 * CELL])
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        with refused(codes.FAILED):
            writer.flush()
    with refused(codes.FAILED):
        writer.write(3 * CELL, b"more")
    writer.close()
    assert store.flush(7, 1) == store.written_length(7, 1) == CELL
    with refused(codes.OUT_OF_ORDER):
        store.open_writer(7, 1, 3 * CELL, CELL)
    write(store, DATA[CELL:], CELL)
    assert read(store) == DATA
    assert BlockStore(tmp_path).checksums(7, 1, len(DATA), CELL) == checksums_of(DATA, CELL)


def fails(_: int) -> None:
    raise OSError(5, "Input/output error")


def test_the_reserve_is_left_free(tmp_path: Path):
    free = BlockStore(tmp_path).free_bytes()
    store = BlockStore(tmp_path, fsync="never", reserve_bytes=free + (1 << 40))
    assert store.free_bytes() == 0
    with store.open_writer(7, 1, 0, CELL) as writer:
        with refused(codes.DISK_FULL):
            writer.write(0, DATA)
        writer.write(0, b"")
    assert store.written_length(7, 1) == 0


def test_the_file_system_is_asked_for_its_room_once_in_sixteen_mebibytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Path] = []
    statvfs = os.statvfs

    def ask(path: Path) -> os.statvfs_result:
        asked.append(path)
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", ask)
    space, mebibyte = DiskSpace(tmp_path, reserve_bytes=0), 1 << 20
    for _ in range(16):
        space.take(mebibyte, tmp_path)
    assert len(asked) == 1
    space.take(1, tmp_path)
    assert len(asked) == 2
    space.take(20 * mebibyte, tmp_path)
    assert len(asked) == 3, "more than is left of the answer"


def test_a_block_that_goes_while_its_container_is_listed_is_left_out(store: BlockStore):
    for local_id in (1, 2, 3):
        write(store, DATA[: 100 * local_id], local_id=local_id)
    listed = store.blocks(7)
    assert next(listed) == (1, 100)
    store.delete(7, 2)
    assert list(listed) == [(3, 300)]
    assert list(store.blocks(8)) == [], "no such container"


def test_a_write_over_the_limit_of_a_file_leaves_what_was_stored(store: BlockStore, tmp_path: Path):
    """RLIMIT_FSIZE, a stand-in for a full disk where none can be mounted: part of the packet is written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = store.open_writer(7, 1, 0, CELL)
    writer.write(0, DATA[: 2 * CELL])
    writer.flush()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * CELL + 100, limits[1]))
        with refused(codes.DISK_FULL):
            writer.write_packets(2 * CELL, [(DATA[2 * CELL : 3 * CELL], None), (DATA[3 * CELL : 4 * CELL], None)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.written_length(7, 1) == 2 * CELL
    assert read(store) == DATA[: 2 * CELL]
    assert store.checksums(7, 1, 2 * CELL) == checksums_of(DATA[: 2 * CELL], CELL)
    assert store.used_bytes() == (tmp_path / "containers" / "7" / "1.block").stat().st_size == 2 * CELL + 100
    writer.write(2 * CELL, DATA[2 * CELL :])
    writer.close()
    assert read(store) == DATA
    assert store.used_bytes() == len(DATA)


# -------------------------------------------------------------------------------------------------- many streams


def test_many_streams_at_once_while_others_look(tmp_path: Path):
    store = BlockStore(tmp_path, fsync="close", max_idle_cells=0)
    faults: list[BaseException] = []
    done = threading.Event()
    blocks = {number: random.Random(number).randbytes(40 * CELL + number) for number in range(8)}

    def stream(number: int) -> None:
        data, chance = blocks[number], random.Random(number)
        try:
            offset = 0
            while offset < len(data):
                offset = chance.randint(max(0, offset - 3 * CELL), offset)
                with store.open_writer(7, number, offset, CELL) as writer:
                    for _ in range(chance.randint(1, 10)):
                        piece = data[offset : offset + chance.randint(1, 2 * CELL)]
                        writer.write(offset, piece)
                        offset += len(piece)
                    writer.flush()
                store.committed(7, number, offset)
        except BaseException as error:
            faults.append(error)

    def look() -> None:
        try:
            while not done.is_set():
                for number, data in blocks.items():
                    length = store.stored_length(7, number)
                    assert store.checksums(7, number, length, CELL) == checksums_of(data[:length], CELL)
                    store.flush(7, number)
                    store.containers()
        except BaseException as error:
            faults.append(error)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    streams = [threading.Thread(target=stream, args=(number,)) for number in blocks]
    for thread in [*lookers, *streams]:
        thread.start()
    for thread in streams:
        thread.join()
    done.set()
    for thread in lookers:
        thread.join()
    assert faults == []
    for number, data in blocks.items():
        assert read(store, number) == data
        assert store.checksums(7, number, len(data), CELL) == checksums_of(data, CELL)
    assert store.used_bytes() == sum(len(data) for data in blocks.values())


def test_a_stream_does_not_wait_for_anothers_disk(store: BlockStore, monkeypatch: pytest.MonkeyPatch):
    """One block's fsync hangs; the others, and all questions but those of that block's bytes, go on."""
    hanging, release = threading.Event(), threading.Event()
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/1.block"):
            hanging.set()
            release.wait(60)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    stuck = threading.Thread(target=write, args=(store, DATA))
    stuck.start()
    try:
        assert hanging.wait(60)
        write(store, DATA, local_id=2)
        assert read(store, 2) == DATA
        assert store.written_length(7, 1) == len(DATA)
        assert store.stored_length(7, 1) == 0
        store.committed(7, 1, CELL)
        assert store.used_bytes() == 2 * len(DATA)
    finally:
        release.set()
        stuck.join()
    assert store.stored_length(7, 1) == len(DATA)


def test_a_directory_that_is_made_anew_beside_a_removal_is_stored(store: BlockStore, monkeypatch: pytest.MonkeyPatch):
    """The last block goes while the next one comes: the container is the same one, its directory is not."""
    write(store, DATA)
    removed, counted = threading.Event(), threading.Event()
    opened, rmdir = BlockFile._open_or_make, Path.rmdir

    def open_late(block: BlockFile) -> int:
        counted.set()
        assert removed.wait(10)
        return opened(block)

    def remove(path: Path) -> None:
        monkeypatch.setattr(BlockFile, "_open_or_make", open_late)
        writing.start()
        assert counted.wait(10)
        rmdir(path)
        removed.set()

    writing = threading.Thread(target=write, args=(store, DATA), kwargs={"local_id": 2})
    monkeypatch.setattr(Path, "rmdir", remove)
    stored: list[Path] = []
    directory = store.fsyncs.directory

    def store_directory(path: Path) -> None:
        stored.append(path)
        directory(path)

    monkeypatch.setattr(store.fsyncs, "directory", store_directory)
    store.delete(7, 1)
    writing.join(10)
    assert read(store, 2) == DATA
    assert stored == [store.container_folder(7), store.container_folder(7).parent]


@pytest.mark.parametrize("call", ["unlink", "truncate"])
def test_a_disk_that_refuses_a_change_is_said_with_the_blocks_path_and_nothing_is_changed(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write(store, DATA)

    def refuse(path: Any, *_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(BlockError, match=r"1\.block") as caught:
            store.delete(7, 1) if call == "unlink" else store.reclaim(7, 1, CELL)
    assert caught.value.code == codes.FAILED
    assert read(store) == DATA
    assert store.used_bytes() == len(DATA)


def test_a_file_that_is_gone_already_can_still_be_deleted(store: BlockStore, tmp_path: Path) -> None:
    write(store, DATA)
    next(tmp_path.rglob("1.block")).unlink()
    store.delete(7, 1)
    assert store.used_bytes() == 0
