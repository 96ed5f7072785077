"""What a disk refuses is an error of the protocol that says what was done to which file, and nothing is counted that is not there.

The failures are the kernel's own: a file stands where a directory should be, a directory or a loop of links where a file should.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from datanode_processors.blocks import block_table, block_writer
from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.blocks_together import BlocksTogether
from datanode_processors.blocks.core.checksums import CellChecksums
from datanode_processors.errors import BlockError
from datanode_processors.repair.transfer import import_container, replace_rows
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, encode_block_row
from tests.support.datanodes.block_nodes import row_of
from tests.support.datanodes.checksums import checksums_of

CONTAINER, BLOCK, CELL = 1, 7, 512
DATA = bytes(range(256)) * 5
"""Two whole cells and a half."""


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path)


def write(store: BlockStore, local_id: int = BLOCK, data: bytes = DATA) -> None:
    with store.open_writer(CONTAINER, local_id, 0, CELL) as writer:
        writer.write(0, data)
        writer.flush()


def file_of(store: BlockStore, local_id: int = BLOCK) -> Path:
    return store.container_folder(CONTAINER) / f"{local_id}.block"


def refused(do: Callable[[], Any], code: str = codes.FAILED) -> str:
    with pytest.raises(BlockError) as caught:
        do()
    assert caught.value.code == code
    return caught.value.message


def put_a_file_for_the_container(store: BlockStore) -> None:
    folder = store.container_folder(CONTAINER)
    if folder.exists():
        folder.rename(folder.with_name("aside"))
    folder.touch()


def put_a_directory_for_the_block(store: BlockStore) -> None:
    path = file_of(store)
    path.unlink(missing_ok=True)
    (path / "something").mkdir(parents=True)


def put_a_loop_for_the_block(store: BlockStore) -> None:
    path = file_of(store)
    path.unlink()
    path.symlink_to(path)


# --------------------------------------------------------------------------------------------------------- blocks


def test_a_block_that_cannot_be_looked_at_is_not_taken_for_one_that_is_not_there(store: BlockStore) -> None:
    put_a_file_for_the_container(store)
    for ask in (store.written_length, store.stored_length):
        assert refused(partial(ask, CONTAINER, BLOCK)) == f"look at {file_of(store)}: Not a directory"
    refused(lambda: store.open_writer(CONTAINER, BLOCK, 0, CELL))
    store.container_folder(CONTAINER).unlink()
    assert store.written_length(CONTAINER, BLOCK) == 0, "it is looked at again"


def test_a_file_that_cannot_be_made_is_not_counted(store: BlockStore) -> None:
    store.committed(CONTAINER, BLOCK, 10)
    assert store.written_length(CONTAINER, BLOCK) == 0
    put_a_directory_for_the_block(store)
    assert refused(lambda: store.open_writer(CONTAINER, BLOCK, 0, CELL)) == f"open {file_of(store)}: Is a directory"
    assert store.containers() == []


def test_a_file_that_cannot_be_opened_again_is_counted_as_before(store: BlockStore) -> None:
    write(store)
    put_a_loop_for_the_block(store)
    assert "levels of symbolic links" in refused(lambda: store.open_writer(CONTAINER, BLOCK, 0, CELL))
    (usage,) = store.containers()
    assert (usage.blocks, usage.used_bytes) == (1, len(DATA))


def test_a_file_that_cannot_be_opened_is_not_read(store: BlockStore) -> None:
    write(store)
    put_a_loop_for_the_block(store)
    said = refused(lambda: list(store.read(CONTAINER, BLOCK, 0, len(DATA))))
    assert said.startswith(f"open {file_of(store)}: ")


def test_a_file_that_cannot_be_read_says_which_bytes(store: BlockStore) -> None:
    write(store)
    put_a_directory_for_the_block(store)
    said = refused(lambda: list(store.read(CONTAINER, BLOCK, CELL, CELL)))
    assert said == f"read {CELL} bytes at {CELL} of {file_of(store)}: Is a directory"


def test_bytes_that_cannot_be_read_after_a_start_do_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put_a_directory_for_the_block(BlockStore(tmp_path))
    store = BlockStore(tmp_path)
    size = store.written_length(CONTAINER, BLOCK)
    assert size > 0
    assert store.checksums(CONTAINER, BLOCK, size) is None
    assert store.written_length(CONTAINER, BLOCK) == 0
    assert "failed: Is a directory" in caplog.text


def test_a_block_of_which_a_part_of_a_cell_is_gone_ends_before_the_cell(store: BlockStore) -> None:
    write(store)
    os.truncate(file_of(store), CELL + 99)
    assert store.checksums(CONTAINER, BLOCK, CELL + 99) == checksums_of(DATA[: CELL + 99], CELL)
    assert store.checksums(CONTAINER, BLOCK, CELL + 100) is None
    assert store.written_length(CONTAINER, BLOCK) == CELL
    assert store.checksums(CONTAINER, BLOCK, CELL) == checksums_of(DATA[:CELL], CELL)


def test_what_cannot_be_looked_at_is_not_forgotten(store: BlockStore) -> None:
    write(store)
    put_a_file_for_the_container(store)
    assert refused(lambda: store.forget_checksums(CONTAINER, BLOCK)) == f"look at {file_of(store)}: Not a directory"
    (usage,) = store.containers()
    assert (usage.blocks, usage.used_bytes) == (1, len(DATA))


def test_committed_bytes_that_cannot_be_compared_are_not_written_again(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store)
    store.committed(CONTAINER, BLOCK, len(DATA))

    def fail(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(block_writer, "read_fully", fail)
    with store.open_writer(CONTAINER, BLOCK, 0, CELL) as writer:
        said = refused(lambda: writer.write(0, DATA), codes.CHECKSUM_MISMATCH)
    assert said.endswith("are committed and not written again: Input/output error")
    assert file_of(store).read_bytes() == DATA


def test_a_disk_without_room_says_so(store: BlockStore) -> None:
    store.container_folder(CONTAINER).mkdir()
    file_of(store).symlink_to("/dev/full")
    with store.open_writer(CONTAINER, BLOCK, 0, CELL) as writer:
        said = refused(lambda: writer.write(0, DATA), codes.DISK_FULL)
        assert said == f"write {len(DATA)} bytes at 0 of {file_of(store)}: No space left on device"
    assert store.written_length(CONTAINER, BLOCK) == 0


def test_only_so_many_deletions_are_remembered(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_table, "MAX_REMEMBERED_DELETIONS", 2)
    for local_id in (1, 2, 3):
        store.delete(CONTAINER, local_id)
    for local_id in (2, 3):
        refused(partial(store.open_writer, CONTAINER, local_id, 0, CELL), codes.BLOCK_DELETED)
    write(store, 1)


def test_the_store_is_not_opened_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refused(lambda: BlockStore(tmp_path / "file"))
    assert said == f"open the blocks in {tmp_path / 'file' / 'containers'}: Not a directory"


def test_a_blocks_file_is_for_its_owner_and_group_alone(store: BlockStore) -> None:
    before = os.umask(0)
    try:
        write(store)
    finally:
        os.umask(before)
    assert file_of(store).stat().st_mode & 0o777 == 0o640


# ----------------------------------------------------------------------------------------------------- containers


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda store: store.recount(CONTAINER), "count"), (lambda store: store.close_container(CONTAINER), "close"),
        (lambda store: list(store.blocks(CONTAINER)), "list"),
    ],
    ids=["count", "close", "list"],
)  # fmt: skip
def test_a_container_that_is_no_directory(store: BlockStore, act: Callable[[BlockStore], Any], said: str) -> None:
    write(store)
    put_a_file_for_the_container(store)
    assert refused(lambda: act(store)).startswith(f"{said} {store.container_folder(CONTAINER)}: ")
    (usage,) = store.containers()
    assert (usage.closed, usage.blocks, usage.used_bytes) == (False, 1, len(DATA))


def test_a_container_whose_directory_is_gone_lists_no_block(store: BlockStore) -> None:
    write(store)
    folder = store.container_folder(CONTAINER)
    folder.rename(folder.with_name("aside"))
    assert list(store.blocks(CONTAINER)) == []
    store.recount(CONTAINER)
    (usage,) = store.containers()
    assert usage.blocks == 1, "what is not there cannot be counted"


def test_a_copy_is_adopted_whole_or_not_at_all(store: BlockStore, tmp_path: Path) -> None:
    assert "rename" in refused(lambda: store.adopt_container(CONTAINER, tmp_path / "missing"))
    write(store)
    (tmp_path / "copy").mkdir()
    said = refused(lambda: store.adopt_container(CONTAINER, tmp_path / "copy"), codes.INVALID_REQUEST)
    assert said == f"container {CONTAINER} is stored here already"
    assert file_of(store).read_bytes() == DATA


def test_a_copy_that_cannot_be_put_together_leaves_nothing(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    aside = store.import_folder(CONTAINER)

    def pieces() -> Iterator[bytes]:
        raise OSError(errno.EIO, "Input/output error")
        yield b""

    row = encode_block_row(row_of(DATA))
    blocks = [(block_key(CONTAINER, BLOCK), row, pieces())]
    assert refused(lambda: import_container(store, CONTAINER, blocks)) == f"import into {aside}: Input/output error"
    assert not aside.exists()
    assert store.containers() == []
    aside.parent.rename(aside.parent.with_name("aside"))
    assert refused(lambda: import_container(store, CONTAINER, [])).startswith(f"make {aside}: ")


def test_rows_that_cannot_be_replaced_stay_as_they_are(store: BlockStore) -> None:
    row = encode_block_row(row_of(b""))
    import_container(store, CONTAINER, [(block_key(CONTAINER, BLOCK), row, [])])
    folder = store.container_folder(CONTAINER)
    before = (folder / "rows").read_bytes()

    def rows() -> Iterator[tuple[bytes, bytes]]:
        yield block_key(CONTAINER, BLOCK), row
        raise OSError(errno.ENOSPC, "No space left on device")

    said = refused(lambda: replace_rows(store, CONTAINER, rows()), codes.DISK_FULL)
    assert said == f"replace the rows of {folder}: No space left on device"
    assert (folder / "rows").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == [f"{BLOCK}.block", "closed", "rows"]
    (folder / "rows.new").mkdir()  # not even that can be removed
    assert "Is a directory" in refused(lambda: replace_rows(store, CONTAINER, []))


# ------------------------------------------------------------------------------------------------ blocks together


def cells(data: bytes = DATA) -> list[tuple[memoryview, int]]:
    pieces = [memoryview(data)[at : at + CELL] for at in range(0, len(data), CELL)]
    return [(piece, crc32c(piece)) for piece in pieces]


class Deleting(list[tuple[memoryview, int]]):
    """Cells during whose writing another block is deleted."""

    def __init__(self, store: BlockStore, other: int) -> None:
        super().__init__(cells())
        self._store, self._other = store, other

    def __iter__(self) -> Iterator[tuple[memoryview, int]]:
        self._store.delete(CONTAINER, self._other, drop=False)
        return super().__iter__()


def test_a_block_that_is_deleted_before_it_is_stored_is_no_other_blocks_fault(store: BlockStore) -> None:
    together = BlocksTogether(store)
    blocks = [(CONTAINER, 1, cells()), (CONTAINER, 2, Deleting(store, 1)), (CONTAINER, 3, cells())]
    first, *others = together.write(blocks, CELL, lambda: True)
    assert first is not None
    assert first.code == codes.BLOCK_DELETED
    assert others == [None, None]
    assert [store.stored_length(CONTAINER, local_id) for local_id in (1, 2, 3)] == [0, len(DATA), len(DATA)]
    together.close()


@pytest.mark.parametrize("number", [1, 2])
def test_blocks_whose_directory_cannot_be_stored_are_not_stored(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    together = BlocksTogether(store)
    blocks = [(CONTAINER, local_id, cells()) for local_id in range(1, number + 1)]

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(store.fsyncs, "directory", fail)
        outcomes = together.write(blocks, CELL, lambda: True)
    for local_id, error in enumerate(outcomes, 1):
        assert error is not None
        assert (error.code, error.message) == (
            codes.FAILED, f"fsync {file_of(store, local_id)}: Input/output error",
        )  # fmt: skip
        assert store.written_length(CONTAINER, local_id) == 0, "it has to be written again"
    assert together.write(blocks, CELL, lambda: True) == [None] * number
    assert {store.stored_length(CONTAINER, local_id) for local_id in range(1, number + 1)} == {len(DATA)}
    together.close()


# ------------------------------------------------------------------------------------------------------ checksums


def test_checksums_that_are_not_known_are_not_given() -> None:
    found = CellChecksums(CELL, 3 * CELL)
    found.learn(0, 1)
    assert found.packed(CELL) == (1).to_bytes(4, "big")
    with pytest.raises(ValueError, match="2 cells are unknown, the first is 1"):
        found.packed(3 * CELL)
