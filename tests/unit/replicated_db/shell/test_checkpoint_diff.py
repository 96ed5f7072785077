"""Two checkpoints on the disk: what is read, and what happens when a file is odd."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import cramjam
import pytest

from replicated_db.core.diffing.file_plan import KeyRange
from replicated_db.core.diffing.sweep import RowChange
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.diffing import checkpoint_diff
from replicated_db.shell.diffing import scratch as scratch_module
from replicated_db.shell.diffing.checkpoint_diff import LZ4, CheckpointDiff, _decompressed, _files
from replicated_db.shell.diffing.scratch import DiskScratch, ScratchFull
from replicated_db.shell.rocks import RocksReader, RocksStore

FAMILIES = ["things", "others"]
ALL = KeyRange(b"", b"\xff")
CHANGED = [17, 2500, 4999]


class Pair:
    """Two checkpoints of 5,000 rows; between them one row is removed, one changed and one added."""

    def __init__(self, folder: Path) -> None:
        self.older, self.newer = folder / "older", folder / "newer"
        store = RocksStore(folder / "store", FAMILIES)
        store.write([("things", b"%06d" % number, b"value" * 20) for number in range(5000)])
        store.write([("others", b"%06d" % number, b"other") for number in range(5000)])
        store.copy_to(self.older)
        store.write([("things", b"000017", None), ("things", b"002500", b"new"), ("things", b"004999x", b"new")])
        store.write([("others", b"000001", None)])
        store.copy_to(self.newer)
        store.close()

    def diff(self, cf: str = "things", wanted: KeyRange = ALL) -> CheckpointDiff:
        return CheckpointDiff(self.older, self.newer, FAMILIES, cf, wanted)

    def rows(self, wanted: KeyRange = ALL) -> tuple[list[RowChange], int]:
        """Return the rows that differ, and how many were read."""
        read: list[int] = []
        diff = self.diff(wanted=wanted)
        try:
            return list(diff.rows(read.append)), sum(read)
        finally:
            diff.close()

    def newest(self) -> Path:
        """Return the file that the newer checkpoint alone has, of the family that is compared."""
        diff = self.diff()
        diff.close()
        return Path(diff.plan.listed[0].file.path)


DIFFERING = [
    RowChange(b"000017", b"value" * 20, None),
    RowChange(b"002500", b"value" * 20, b"new"),
    RowChange(b"004999x", None, b"new"),
]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_only_the_changed_keys_are_read(pair: Pair):
    assert pair.rows() == (DIFFERING, 3)


def test_only_what_is_wanted_is_read(pair: Pair):
    assert pair.rows(KeyRange(b"000018", b"004999x")) == (DIFFERING[1:2], 1)
    assert pair.rows(KeyRange(b"000018", b"000018")) == ([], 0)


def test_a_change_in_a_part_of_a_file_whose_keys_are_unevenly_spread_is_listed(tmp_path: Path):
    """Keys of two prefixes lie in one file: what lies between two keys cannot be told from their bytes."""
    store = RocksStore(tmp_path / "store", FAMILIES)
    for prefix in (b"/v/bucket1/", b"/v/bucket2/"):
        store.write([("things", prefix + b"dir-%05d/file" % number, b"value" * 40) for number in range(20_000)])
    store.copy_to(tmp_path / "older")
    for number in range(0, 20_000, 1000):
        store.write([("things", b"/v/bucket1/dir-%05d/file" % number, b"new")])
    store.copy_to(tmp_path / "newer")
    store.close()
    read: list[int] = []
    wanted = KeyRange(b"/v/bucket1/", b"/v/bucket10")
    diff = CheckpointDiff(tmp_path / "older", tmp_path / "newer", FAMILIES, "things", wanted)
    assert len(list(diff.rows(read.append))) == sum(read) == 20
    assert not diff.plan.swept
    diff.close()


def test_the_same_checkpoint_twice_needs_no_reading(pair: Pair):
    pair.newer = pair.older
    assert pair.rows() == ([], 0)


def test_a_family_without_rows(pair: Pair):
    diff = CheckpointDiff(pair.older, pair.newer, [*FAMILIES, "absent"], "absent", ALL)
    assert list(diff.rows(lambda _: None)) == []
    diff.close()
    diff.close()


def test_a_copy_of_a_file_is_another_file(pair: Pair):
    """A checkpoint that was copied without its links differs in all files: everything is swept, with the same result."""
    shutil.copytree(pair.newer, pair.newer.with_name("copy"))
    pair.newer = pair.newer.with_name("copy")
    found, read = pair.rows()
    assert found == DIFFERING
    assert read > 5000


def linked(folder: Path, target: Path) -> Path:
    """Copy a database; its table files are links, as in a checkpoint."""
    target.mkdir()
    for file in folder.iterdir():
        (os.link if file.suffix == ".sst" else shutil.copy)(file, target / file.name)
    return target


def test_rows_in_the_write_ahead_log_alone_are_found(pair: Pair, tmp_path: Path):
    # A checkpoint looks so that was made while others wrote. Its table files tell nothing of the row.
    working = linked(pair.older, tmp_path / "working")
    store = RocksStore(working, FAMILIES)
    store.write([("things", b"000018", b"unflushed")])
    store.sync()
    pair.newer = linked(working, tmp_path / "unflushed")
    store.close()
    reader = RocksReader(pair.newer, FAMILIES)
    assert reader.rows_outside_files("things") == 1
    reader.close()
    found, _ = pair.rows()
    assert found == [RowChange(b"000018", b"value" * 20, b"unflushed")]


def replaced(path: Path, content: bytes) -> None:
    """Write other content to a name, leaving other names of the same file alone."""
    path.unlink()
    path.write_bytes(content)


def test_a_file_that_cannot_be_read_key_by_key_is_swept(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("replicated_db.core.diffing.table_file.FORMAT_VERSION", 99)
    found, read = pair.rows()
    assert found == DIFFERING
    assert read > 4900  # the range of the file's keys


def test_a_block_of_an_unknown_kind_is_swept(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    diff = pair.diff()
    monkeypatch.setattr("replicated_db.shell.diffing.checkpoint_diff.TableFileKeys.keys", _unreadable)
    assert list(diff.rows(lambda _: None)) == DIFFERING
    diff.close()


def _unreadable(*_: object) -> list[bytes]:
    from replicated_db.core.diffing.table_file import UnreadableTable

    raise UnreadableTable("a block of the future")


def test_a_damaged_file_is_an_error_and_never_a_wrong_answer(pair: Pair):
    path = pair.newest()
    damaged = bytearray(path.read_bytes())
    damaged[10] ^= 1
    replaced(path, bytes(damaged))
    with pytest.raises(StoreFailure):
        pair.rows()


def test_a_directory_that_is_removed_meanwhile(pair: Pair):
    diff = pair.diff()
    shutil.rmtree(pair.newer)
    with pytest.raises(StoreFailure, match="cannot be read"):
        list(diff.rows(lambda _: None))
    diff.close()


def test_a_directory_that_is_not_there(pair: Pair):
    shutil.rmtree(pair.older)
    with pytest.raises(StoreFailure, match="older does not open"):
        pair.diff()


def test_whoever_stops_the_reading_is_heard(pair: Pair):
    class StopNow(Exception):
        pass

    def stop(_: int) -> None:
        raise StopNow

    diff = CheckpointDiff(pair.older, pair.newer, FAMILIES, "things", ALL, use_files=False)
    with pytest.raises(StopNow):
        list(diff.rows(stop))
    diff.close()


class TestScratch:
    """Rows on the disk for one piece of work."""

    def test_rows_come_in_the_order_of_their_keys(self, tmp_path: Path):
        scratch = DiskScratch(tmp_path / "rows", 10**6)
        for number in (3, 1, 2):
            scratch.put(b"%d" % number, b"")
        scratch.put(b"2", b"again")
        assert list(scratch.iterate(b"1", b"3")) == [(b"1", b""), (b"2", b"again")]
        scratch.close()
        scratch.close()
        assert not (tmp_path / "rows").exists()

    def test_an_iteration_does_not_see_what_is_put_after_its_first_step(self, tmp_path: Path):
        scratch = DiskScratch(tmp_path / "rows", 10**6)
        scratch.put(b"a", b"")
        found = scratch.iterate(b"", b"\xff")
        assert next(found) == (b"a", b"")
        scratch.put(b"b", b"")
        assert [key for key, _ in scratch.iterate(b"", b"\xff")] == [b"a", b"b"]
        assert list(found) == []
        scratch.close()

    def test_it_takes_no_more_than_it_may(self, tmp_path: Path):
        scratch = DiskScratch(tmp_path / "rows", 10)
        scratch.put(b"12345", b"67890")
        with pytest.raises(ScratchFull, match="more than 10 bytes"):
            scratch.put(b"", b"1")
        scratch.close()

    def test_many_rows_are_written_in_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(scratch_module, "SCRATCH_BATCH_ROWS", 3)
        scratch = DiskScratch(tmp_path / "rows", 10**6)
        sizes = []
        for number in range(7):
            scratch.put(b"%d" % number, b"v")
            sizes.append(len(scratch._waiting))
        assert sizes == [1, 2, 0, 1, 2, 0, 1]
        assert scratch.bytes_taken == 14
        assert len(list(scratch.iterate(b"", b"\xff"))) == 7
        scratch.close()

    def test_a_disk_that_fails_is_an_error(self, tmp_path: Path):
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StoreFailure, match="does not open"):
            DiskScratch(tmp_path / "file" / "rows", 10)
        scratch = DiskScratch(tmp_path / "rows", 10)
        scratch.put(b"a", b"")
        scratch._db.close()
        with pytest.raises(StoreFailure, match="rows: write: "):
            list(scratch.iterate(b"", b"b"))
        with pytest.raises(StoreFailure, match="rows: iterate: "):
            list(scratch.iterate(b"", b"b"))
        scratch.close()
        assert not (tmp_path / "rows").exists()


def test_reading_is_told_now_and_then(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    """Whoever waits may stop it at any of these moments."""
    monkeypatch.setattr(checkpoint_diff, "CHECKED_ROWS", 2)
    read: list[int] = []
    diff = pair.diff()
    assert list(diff.rows(read.append)) == DIFFERING
    assert read == [2, 1]
    assert diff.steps_done == diff.plan.steps == 1
    diff.close()


def test_a_file_that_is_not_there_any_more_is_an_error(pair: Pair):
    diff = pair.diff()
    with pytest.raises(StoreFailure, match="cannot be read"):
        list(_files(diff._new, pair.newer.with_name("elsewhere"), "things", {}, ALL))
    diff.close()


def test_a_block_that_is_longer_than_it_says_is_refused():
    content = bytes(cramjam.lz4.compress_block(b"x" * 100, store_size=False))
    assert _decompressed(LZ4, bytes([100]) + content) == b"x" * 100
    with pytest.raises(ValueError, match="not LZ4"):
        _decompressed(LZ4, bytes([99]) + content)
