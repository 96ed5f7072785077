"""Parquet files by micro-batch: each appears whole, few and young ones stay, and a crash leaves nothing twice."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_streaming.verdicts import batch_files
from spark_streaming.verdicts.batch_files import BatchFiles

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def row(number: int) -> dict[str, Any]:
    return {"n": number, "text": str(number)}


def numbers(folder: Path) -> list[int]:
    """The rows of all files that a reader of Parquet takes."""
    files = [path for path in folder.iterdir() if not path.name.startswith("_")]
    return sorted(n for path in files for n in pq.read_table(path)["n"].to_pylist())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_repeated_micro_batch_replaces_its_file(tmp_path: Path):
    files = BatchFiles(tmp_path / "t", SCHEMA)
    files.write(7, [row(1), row(2)])
    files.write(7, [row(2)])
    files.write(8, [])
    assert names(tmp_path / "t") == ["batch-000000000007.parquet"]
    assert numbers(tmp_path / "t") == [2]
    BatchFiles(tmp_path / "t", SCHEMA).write(7, [])
    assert names(tmp_path / "t") == []


def test_many_files_are_put_together_and_the_newest_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """345,000 files a day were never put together."""
    monkeypatch.setattr(batch_files, "COMPACT_FILES", 4)
    files = BatchFiles(tmp_path, SCHEMA)
    for number in range(5):
        files.write(number * 2, [row(number)])
    assert names(tmp_path) == ["batch-000000000008.parquet", "batches-000000000000-000000000006.parquet"]
    files.write(8, [row(4)])
    for number in range(5, 40):
        files.write(number * 2, [row(number)])
        assert len(names(tmp_path)) <= 5 + number // 4
    assert numbers(tmp_path) == list(range(40))


@pytest.mark.parametrize("left", ["_new-batches-000000000000-000000000002.parquet", "_new-batch-000000000009.parquet"])
def test_what_a_crash_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str):
    """Half a file; and single files that had been put together and not yet deleted."""
    monkeypatch.setattr(batch_files, "COMPACT_FILES", 3)
    files = BatchFiles(tmp_path / "t", SCHEMA)
    for number in range(3):
        files.write(number, [row(number)])
    singles = tmp_path / "singles"
    shutil.copytree(tmp_path / "t", singles)
    files.write(3, [row(3)])
    for path in singles.iterdir():
        shutil.copy(path, tmp_path / "t" / path.name)
    (tmp_path / "t" / left).write_bytes(b"half")
    again = BatchFiles(tmp_path / "t", SCHEMA)
    again.write(4, [row(4)])
    assert numbers(tmp_path / "t") == list(range(5))
    assert left not in names(tmp_path / "t")


def test_what_is_too_old_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_files, "COMPACT_FILES", 2)
    files = BatchFiles(tmp_path, SCHEMA)
    for number in range(6):
        files.write(number, [row(number)])
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    for number in range(6, 9):
        files.write(number, [row(number)])
    assert min(numbers(tmp_path)) >= 4
    assert set(numbers(tmp_path)) >= {6, 7, 8}


def test_what_is_too_much_goes_the_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_files, "COMPACT_FILES", 2)
    monkeypatch.setattr(batch_files, "RETENTION_BYTES", 3_000)
    files = BatchFiles(tmp_path, SCHEMA)
    for number in range(40):
        files.write(number, [row(number)])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6_000
    assert 0 not in numbers(tmp_path)
    assert numbers(tmp_path)[-1] == 39


def test_bytes_are_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_files, "COMPACT_FILES", 1)
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, path.is_file() and pq.read_metadata(path).num_rows > 0))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    files = BatchFiles(tmp_path, SCHEMA)
    for number in range(2):
        files.write(number, [row(number)])
    names_of_files = ["batch-000000000000", "batch-000000000001", "batches-000000000000-000000000000"]
    expected = [((f"_new-{name}.parquet", True), (tmp_path.name, False)) for name in names_of_files]
    assert synced == [one for pair in expected for one in pair]


@pytest.mark.parametrize("damage", [b"", b"PAR1 and no end", None])
def test_files_that_a_loss_of_power_left_empty_do_not_end_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
):
    """It stopped when they were to be put together, at every start."""
    monkeypatch.setattr(batch_files, "COMPACT_FILES", 5)
    files = BatchFiles(tmp_path, SCHEMA)
    for number in range(5):
        files.write(number, [row(number)])
    newest = tmp_path / "batch-000000000004.parquet"
    data = newest.read_bytes()
    newest.write_bytes(data[:4] + bytes(len(data) // 3) + data[4 + len(data) // 3 :] if damage is None else damage)
    again = BatchFiles(tmp_path, SCHEMA)
    for number in range(5, 12):
        again.write(number, [row(number)])
    assert numbers(tmp_path) == [number for number in range(12) if number != 4]


def test_a_disk_that_fails_takes_no_file_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    BatchFiles(tmp_path, SCHEMA).write(1, [row(1)])
    with monkeypatch.context() as patched:
        patched.setattr(pq, "read_metadata", broken)
        with pytest.raises(OSError, match="Too many open files"):
            BatchFiles(tmp_path, SCHEMA).write(2, [row(2)])
    assert numbers(tmp_path) == [1]
