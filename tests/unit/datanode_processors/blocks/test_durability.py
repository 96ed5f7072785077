"""What a datanode has the kernel store, in which order, and that nothing stays open behind it."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from datanode_processors.blocks import block_writer
from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.block_writer import STALE_WRITER_S
from datanode_processors.blocks.blocks_together import BlocksTogether
from datanode_processors.blocks.cell_reader import READ_BYTES
from datanode_processors.blocks.fsync import CLOSE, NEVER, PACKET
from datanode_processors.errors import BlockError
from datanode_processors.layout import VERSION_FILE, Layout, LayoutRefused, open_folder, read_layout, write_layout
from datanode_processors.repair.copy_sources import CopySources
from datanode_processors.repair.transfer import import_container, replace_rows
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, encode_block_row
from tests.support.datanodes.block_nodes import row_of
from tests.support.datanodes.checksums import checksums_of

CONTAINER, CELL = 1, 512
DATA = bytes(range(256)) * 5


def write(store: BlockStore, local_id: int, container_id: int = CONTAINER, data: bytes = DATA) -> None:
    with store.open_writer(container_id, local_id, 0, CELL) as writer:
        writer.write(0, data)
        writer.flush()


def rows_of(*local_ids: int, container_id: int = CONTAINER) -> list[tuple[bytes, bytes]]:
    return [(block_key(container_id, local_id), encode_block_row(row_of(DATA))) for local_id in local_ids]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was fsynced since this list was cleared; a file with the bytes that it had by then."""
    found: list[str] = []
    for name in ("fsync", "fdatasync"):
        real: Callable[[int], None] = getattr(os, name)

        def store(descriptor: int, real: Callable[[int], None] = real) -> None:
            real(descriptor)
            path, what = Path(os.readlink(f"/proc/self/fd/{descriptor}")), os.fstat(descriptor)
            if path.is_relative_to(tmp_path):  # threads of other tests may still be at work
                found.append(path.name if stat.S_ISDIR(what.st_mode) else f"{path.name} {what.st_size}")

        monkeypatch.setattr(os, name, store)
    return found


def test_each_entry_of_a_directory_is_stored_once_before_a_block_counts(tmp_path: Path, stored: list[str]) -> None:
    store = BlockStore(tmp_path)
    assert stored == [tmp_path.name, "containers"], "the store's own directories may be new"
    for local_id, expected in ((7, ["7.block 1280", "1", "containers"]), (8, ["8.block 1280", "1"])):
        stored.clear()
        write(store, local_id)
        assert stored == expected
    stored.clear()
    store.flush(CONTAINER, 7)
    assert stored == [], "nothing is new"
    again = BlockStore(tmp_path)
    stored.clear()
    assert again.stored_length(CONTAINER, 7) == len(DATA)
    assert stored == ["7.block 1280", "1"], "the container's own entry was stored at the start"


def test_a_container_is_closed_once_its_mark_is_stored(tmp_path: Path, stored: list[str]) -> None:
    store = BlockStore(tmp_path)
    stored.clear()
    store.close_container(CONTAINER)
    assert stored == ["1", "containers"]
    stored.clear()
    store.close_container(CONTAINER)
    assert stored == []
    assert BlockStore(tmp_path).is_closed(CONTAINER)


@pytest.mark.parametrize(("fsync", "files"), [(NEVER, []), (CLOSE, ["7.block 1280"]), (PACKET, ["7.block 1280"])])
def test_bytes_are_stored_as_the_policy_says(tmp_path: Path, stored: list[str], fsync: str, files: list[str]) -> None:
    store = BlockStore(tmp_path, fsync=fsync)
    stored.clear()
    with store.open_writer(CONTAINER, 7, 0, CELL) as writer:
        writer.write(0, DATA)
        assert [name for name in stored if "block" in name] == (files if fsync == PACKET else [])
        writer.flush()
    assert [name for name in stored if "block" in name] == files


def test_bytes_of_a_new_block_count_as_stored_once_they_are(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, fsync=CLOSE)
    with store.open_writer(CONTAINER, 7, 0, CELL) as writer:
        assert store.stored_length(CONTAINER, 7) == 0
        writer.write(0, DATA)
        assert (store.written_length(CONTAINER, 7), store.stored_length(CONTAINER, 7)) == (len(DATA), 0)
        writer.flush()
        writer.write(len(DATA), DATA)
        assert store.stored_length(CONTAINER, 7) == len(DATA), "up to where it was flushed"


def test_what_was_found_on_the_disk_and_cannot_be_stored_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(BlockStore(tmp_path), 7)
    store = BlockStore(tmp_path)
    assert store.written_length(CONTAINER, 7) == len(DATA)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(store.fsyncs, "file", fail)
        refused(lambda: store.stored_length(CONTAINER, 7))
    assert (store.written_length(CONTAINER, 7), store.stored_length(CONTAINER, 7)) == (0, 0)
    write(store, 7)
    assert store.stored_length(CONTAINER, 7) == len(DATA)


def test_files_of_blocks_that_come_together_are_stored_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlockStore(tmp_path)
    together = BlocksTogether(store)
    met = threading.Barrier(3)
    threads: list[threading.Thread] = []

    def meet(_: int) -> None:
        threads.append(threading.current_thread())
        met.wait(30)

    monkeypatch.setattr(store.fsyncs, "file", meet)
    cells = [(memoryview(b"data"), crc32c(b"data"))]
    outcomes = together.write([(CONTAINER, local_id, cells) for local_id in (1, 2, 3)], CELL, lambda: True)
    assert outcomes == [None] * 3
    assert threads.count(threading.current_thread()) == 1, "the exchange's own thread does its part"
    threads.clear()
    monkeypatch.setattr(store.fsyncs, "file", lambda _: threads.append(threading.current_thread()))
    assert together.write([(CONTAINER, 4, cells)], CELL, lambda: True) == [None]
    assert threads == [threading.current_thread()], "one alone waits for no other thread"
    together.close()


@pytest.mark.parametrize(
    ("cell", "sizes"),
    [(CELL, [READ_BYTES, READ_BYTES, 2 * CELL + 7]), (2 * READ_BYTES, [2 * READ_BYTES, 2 * CELL + 7])],
)
def test_bytes_are_read_in_steps_of_whole_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: int, sizes: list[int]
) -> None:
    store = BlockStore(tmp_path)
    data = bytes(2 * READ_BYTES + 2 * CELL + 7)
    with store.open_writer(CONTAINER, 7, 0, CELL) as writer:
        writer.write(0, data)
    real = os.pread
    read: list[int] = []

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        read.append(size)
        return real(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    found = [bytes(piece) for _, piece, _ in store.read(CONTAINER, 7, 0, len(data), bytes_per_checksum=cell)]
    assert b"".join(found) == data
    assert {len(piece) for piece in found[:-1]} == {cell}
    assert read == sizes


def test_a_copy_appears_when_all_of_it_is_stored(tmp_path: Path, stored: list[str]) -> None:
    store = BlockStore(tmp_path)
    stored.clear()
    blocks = [(key, row, [DATA[:700], DATA[700:]]) for key, row in rows_of(7, 8)]
    assert import_container(store, CONTAINER, blocks).bytes == 2 * len(DATA)
    rows = store.container_folder(CONTAINER) / "rows"
    size = rows.stat().st_size
    assert stored == ["7.block 1280", "8.block 1280", f"rows {size}", ".import-1", "containers"]
    stored.clear()
    replace_rows(store, CONTAINER, rows_of(7))
    assert rows.stat().st_size < size
    assert stored == [f"rows.new {rows.stat().st_size}", "1"]


def test_a_folders_version_is_whole_on_the_disk_before_it_takes_the_place_of_the_last(
    tmp_path: Path, stored: list[str]
) -> None:
    layout = Layout(layout_version=1, datanode="dn1", cluster="test", upgrade_prepared=True)
    write_layout(tmp_path, layout)
    assert stored == [f".VERSION.new {(tmp_path / VERSION_FILE).stat().st_size}", tmp_path.name]
    assert read_layout(tmp_path) == layout


def test_the_sources_of_copies_are_whole_on_the_disk_before_they_take_the_place_of_the_last(
    tmp_path: Path, stored: list[str]
) -> None:
    path = tmp_path / "sources.json"
    sources = CopySources(path)
    sources.add(CONTAINER, ["127.0.0.1:1"])
    sources.save(lambda _: True)
    assert stored == [f"sources.new {path.stat().st_size}", tmp_path.name]


def test_bytes_that_were_written_again_are_not_stored_until_they_are_flushed(tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    write(store, 7)
    with store.open_writer(CONTAINER, 7, CELL, CELL) as writer:
        writer.write(CELL, DATA[CELL:])
        assert store.written_length(CONTAINER, 7) == len(DATA)
        with store._table.held(CONTAINER, 7) as block:
            assert block.durable == CELL, "what lies behind may be old or new after a loss of power"
        writer.flush()
    assert store.stored_length(CONTAINER, 7) == len(DATA)


def test_bytes_from_the_disk_are_not_those_of_the_page_cache_and_leave_it_as_small_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlockStore(tmp_path)
    write(store, 7)
    dropped: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *given: dropped.append(given))
    cells = store.read(CONTAINER, 7, CELL, CELL, bytes_per_checksum=CELL, end=len(DATA), from_disk=True)
    assert dropped == []
    next(cells)
    assert dropped == [(CELL, CELL, os.POSIX_FADV_DONTNEED)]
    assert list(cells) == []
    assert dropped == [(CELL, CELL, os.POSIX_FADV_DONTNEED)] * 2
    list(store.read(CONTAINER, 7, 0, CELL))
    assert len(dropped) == 2


# ------------------------------------------------------------------------------------------------------ descriptors


def open_files(folder: Path) -> int:
    """Return how many descriptors this process has of what is in a folder: others may come and go meanwhile."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(folder)
    return found


def refused(do: Callable[[], Any]) -> None:
    with pytest.raises((BlockError, LayoutRefused)):
        do()


def test_whatever_is_done_with_blocks_no_file_stays_open(tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    together = BlocksTogether(store)
    write(store, 7)
    assert open_files(tmp_path) == 0
    write(store, 8)
    store.flush(CONTAINER, 8)
    again = BlockStore(tmp_path)
    assert again.stored_length(CONTAINER, 7) == len(DATA)
    assert again.checksums(CONTAINER, 8, 700, CELL) == checksums_of(DATA[:700], CELL)
    list(again.read(CONTAINER, 8, 0, len(DATA)))
    half_read = again.read(CONTAINER, 8, 0, len(DATA))
    next(half_read)
    half_read.close()  # type: ignore[attr-defined]
    refused(lambda: again.open_writer(CONTAINER, 8, 5_000, CELL))
    together.write([(CONTAINER, 9, [])], CELL, lambda: True)
    writer = again.open_writer(CONTAINER, 8, 0, CELL)
    again.delete(CONTAINER, 8)
    writer.close()
    writer.close()
    refused(lambda: import_container(store, 2, [(key, row, [b"x"]) for key, row in rows_of(7, container_id=2)]))
    again.close_container(CONTAINER)
    assert open_files(tmp_path) == 0
    together.close()


def test_whatever_becomes_of_a_folder_no_file_stays_open(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, datanode="dn1", cluster="test")
    assert open_files(tmp_path) == 1, "its lock"
    refused(lambda: open_folder(tmp_path, datanode="dn1", cluster="test"))
    folder.mark_prepared(True)
    assert open_files(tmp_path) == 1
    folder.close()
    folder.close()
    assert open_files(tmp_path) == 0
    refused(lambda: open_folder(tmp_path, datanode="dn2", cluster="test"))
    assert open_files(tmp_path) == 0


def test_committed_bytes_are_known_to_the_store_once_it_was_told(tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    write(store, 7)
    store.committed(CONTAINER, 7, CELL)
    store.committed(CONTAINER, 7, 10)
    with store.open_writer(CONTAINER, 7, 0, CELL) as writer:
        writer.write(0, DATA[:CELL])
        with pytest.raises(BlockError) as caught:
            writer.write(CELL - 1, b"??")
        assert caught.value.code == codes.CHECKSUM_MISMATCH
        writer.write(CELL, b"??")
    assert (store.container_folder(CONTAINER) / "7.block").read_bytes()[: CELL + 2] == DATA[:CELL] + b"??"


def test_a_block_that_comes_behind_the_stores_back_is_stored_as_any_other(tmp_path: Path, stored: list[str]) -> None:
    store = BlockStore(tmp_path)
    folder = store.container_folder(CONTAINER)
    folder.mkdir()
    (folder / "7.block").write_bytes(DATA)
    stored.clear()
    assert store.stored_length(CONTAINER, 7) == len(DATA)
    assert stored == ["7.block 1280", "1", "containers"]


@pytest.mark.parametrize(("idle_s", "taken_over"), [(STALE_WRITER_S, False), (STALE_WRITER_S + 0.5, True)])
def test_a_stream_may_be_idle_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_s: float, taken_over: bool
) -> None:
    now = [100.0]
    monkeypatch.setattr(block_writer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    store = BlockStore(tmp_path)
    writer = store.open_writer(CONTAINER, 7, 0, CELL)
    now[0] += 50.0
    writer.write(0, DATA)
    now[0] += idle_s
    assert writer.is_dead() == taken_over
    if taken_over:
        store.open_writer(CONTAINER, 7, 0, CELL).close()
    with pytest.raises(BlockError) if taken_over else nullcontext():
        writer.write(len(DATA), b"more")
    writer.close()


def test_a_file_that_was_cut_is_stored_at_its_length(tmp_path: Path, stored: list[str]) -> None:
    store = BlockStore(tmp_path)
    write(store, 7)
    stored.clear()
    store.reclaim(CONTAINER, 7, CELL)
    assert stored == [f"7.block {CELL}"]
    assert store.stored_length(CONTAINER, 7) == CELL
    stored.clear()
    store.reclaim(CONTAINER, 7, CELL)
    store.reclaim(CONTAINER, 7, 2 * CELL)
    store.reclaim(CONTAINER, 8, 0)
    assert stored == [], "there is nothing to cut"
    assert store.written_length(CONTAINER, 7) == CELL
