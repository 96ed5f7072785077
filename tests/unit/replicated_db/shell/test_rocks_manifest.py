"""A database whose MANIFEST was cut is in doubt if it lost rows; one that crashed, at whatever moment, is not."""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from replicated_db.core.errors import StoreFailure
from replicated_db.core.tables.rocks_manifest import BLOCK_BYTES, UnreadableManifest, _edit, doubt_about
from replicated_db.shell import rocks
from replicated_db.shell.rocks import DOUBT_FILE, RocksStore

FAMILIES = ("a", "b", "c")
HEADER_BYTES = 7
Rows = dict[str, dict[bytes, bytes]]


def rows_of(store: RocksStore) -> Rows:
    return {family: dict(store.iterate(family, b"")) for family in FAMILIES}


def manifest_of(database: Path) -> Path:
    return database / (database / "CURRENT").read_text().strip()


def boundaries(manifest: bytes) -> Iterator[int]:
    """The ends of all records but the last: where a MANIFEST may be cut without RocksDB's noticing."""
    assert len(manifest) < BLOCK_BYTES
    end = 0
    while (end := end + HEADER_BYTES + int.from_bytes(manifest[end + 4 : end + 6], "little")) < len(manifest):
        yield end


def with_record(manifest: bytes, record: bytes) -> bytes:
    """A MANIFEST with one more record, in fragments where it does not fit into the last block."""
    begun = False
    while True:
        left = BLOCK_BYTES - len(manifest) % BLOCK_BYTES
        if left < HEADER_BYTES:
            manifest += bytes(left)
            continue
        part, record = record[: left - HEADER_BYTES], record[left - HEADER_BYTES :]
        kind = (3 if record else 4) if begun else (2 if record else 1)
        manifest += struct.pack("<IHB", 0, len(part), kind) + part
        begun = True
        if not record:
            return manifest


def flush(store: Any, family: str) -> None:
    if (table := store._tables[family]) is not None:
        table.flush()


class History:
    """A database that is written, flushed, compacted, closed and killed at random; ``rows`` are those it should have."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.database = folder / "database"
        self.store = RocksStore(self.database, FAMILIES)
        self.rows: Rows = {family: {} for family in FAMILIES}

    def write(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            family, key = self.random.choice(FAMILIES), b"%d" % self.random.randrange(30)
            value = None if self.random.random() < 0.2 else self.random.randbytes(20)
            self.store.write([(family, key, value)])
            self.rows[family].pop(key, None)
            if value is not None:
                self.rows[family][key] = value

    def compact(self) -> None:
        if (table := self.store._tables[self.random.choice(FAMILIES)]) is not None:
            table.compact_range(None, None)

    def image(self, name: str) -> Path:
        """The disk as a kill at this moment leaves it."""
        copy = self.folder / name
        while True:
            before = self.files()
            with suppress(shutil.Error):  # a compaction has removed a file
                shutil.copytree(self.database, copy)
                if self.files() == before:
                    return copy
            shutil.rmtree(copy)

    def files(self) -> list[tuple[str, int]]:
        return sorted((one.name, one.stat().st_size) for one in self.database.glob("[0-9M]*"))

    def restart(self) -> None:
        killed = self.image("killed") if self.random.random() < 0.5 else None
        self.store.close()
        if killed is not None:
            shutil.rmtree(self.database)
            killed.rename(self.database)
        self.store = RocksStore(self.database, FAMILIES)

    def step(self) -> None:
        drawn = self.random.random()
        if drawn < 0.6:
            self.write()
        elif drawn < 0.72:
            flush(self.store, self.random.choice(FAMILIES))
        elif drawn < 0.78:
            self.store.write_files()
        elif drawn < 0.83:
            self.compact()
        elif drawn < 0.88:
            self.store.checkpoint("checkpoint")
        else:
            self.restart()


def judged_cuts(image: Path, rows: Rows) -> tuple[int, int]:
    """Cut an image at each record of its MANIFEST; return how often rows were lost, and how often it opened."""
    whole = manifest_of(image).read_bytes()
    lost = opened = 0
    for end in boundaries(whole):
        cut = image.with_name("cut")
        shutil.copytree(image, cut)
        os.truncate(manifest_of(cut), end)
        try:
            store = RocksStore(cut, FAMILIES)
            found = rows_of(store)
        except StoreFailure:
            pass  # it says so itself
        else:
            opened += 1
            lost += found != rows
            # A family that is empty and should not be is found without a doubt (Replica.lost_families).
            seen = store.doubt or any(rows[family] and not found[family] for family in FAMILIES)
            assert found == rows or seen, f"rows are lost, and not in doubt: cut at {end} of {len(whole)}"
            store.close()
        shutil.rmtree(cut)
    return lost, opened


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 60), marks=pytest.mark.slow)], ids=["few", "many"])
def test_each_cut_that_loses_rows_is_in_doubt_and_no_kill_is(tmp_path: Path, seeds: range) -> None:
    lost = 0
    for seed in seeds:
        history = History(tmp_path / f"{seed}", seed)
        for _ in range(history.random.randrange(4, 16)):
            history.step()
            assert not history.store.doubt
        history.store.write_files()
        history.write()
        image = history.image("image")
        history.store.close()
        assert not rocks._doubt_about(image)
        lost += judged_cuts(image, history.rows)[0]
        assert not rocks._doubt_about(history.database)
        shutil.rmtree(history.folder)
    assert lost >= len(seeds)


WRITER = """
import sys
from pathlib import Path
from replicated_db.shell import rocks
rocks.WRITE_BUFFERS_BYTES = 256 * 1024
rocks.MAX_WAL_BYTES = 512 * 1024
store = rocks.RocksStore(Path(sys.argv[1]), ("a", "b", "c"))
assert not store.doubt, store.doubt
print("open", flush=True)
for number in range(1_000_000):
    name = "abc"[number % 3 if number % 7 else 0]
    store.write([(name, b"%d" % (number * 7919 % 5000), b"%d" % number * 100), ("a", b"last", b"%d" % number)])
    if number % 2000 == 1999:
        store.checkpoint("one")
"""


@pytest.mark.slow
def test_no_kill_in_the_middle_of_flushes_and_compactions_is_in_doubt(tmp_path: Path) -> None:
    draws = random.Random(7)
    for _ in range(25):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "db")], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            if draws.random() < 0.8:
                assert process.stdout.readline() == "open\n"
            time.sleep(draws.random() * 0.8)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert not rocks._doubt_about(tmp_path / "db")


def cut_database(tmp_path: Path) -> tuple[Path, bytes]:
    """A database whose last flush is cut off its MANIFEST; the MANIFEST as it was."""
    history = History(tmp_path, 1)
    history.write()
    end = manifest_of(history.database).stat().st_size
    history.store.write_files()
    history.write()
    image = history.image("image")
    history.store.close()
    whole = manifest_of(image).read_bytes()
    os.truncate(manifest_of(image), end)
    return image, whole


def test_a_doubt_stays_until_all_rows_were_scanned(tmp_path: Path) -> None:
    """Opening removes the files that gave rise to it, so it is kept: also if the process ends before it has scanned."""
    image, _ = cut_database(tmp_path)
    doubts = []
    for _ in range(2):
        store = RocksStore(image, FAMILIES)
        doubts.append(store.doubt)
        store.close()
    assert doubts[0] == doubts[1]
    assert "write-ahead log" in doubts[0]
    store = RocksStore(image, FAMILIES)
    store.trust()
    store.trust()
    assert store.doubt == ""
    store.close()
    assert not (image / DOUBT_FILE).exists()
    store = RocksStore(image, FAMILIES)
    assert store.doubt == ""
    store.close()
    with pytest.raises(StoreFailure, match="closed"):
        store.trust()


def test_a_doubt_that_cannot_be_kept_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What gave rise to it would be gone at the next start."""
    image, _ = cut_database(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(rocks, "write_durably", full)
        with pytest.raises(StoreFailure, match="leave it where it is"):
            RocksStore(image, FAMILIES)
    store = RocksStore(image, FAMILIES)
    assert store.doubt
    store.close()


def test_the_end_of_a_long_manifest_is_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any block on: what began before is passed over, and what the end does not say is sought in the whole."""
    image, whole = cut_database(tmp_path)
    flushed = bytes([3, 12, 10, 11])  # next file number 12, least log 11
    for number in range(400):
        whole = with_record(whole, flushed + bytes([103]) + bytes(number))
    for block in range(len(whole) // BLOCK_BYTES + 1):
        for logs, doubtful in (([11], False), ([4], True)):
            assert bool(doubt_about(5, whole[block * BLOCK_BYTES :], logs, whole=block == 0)) is doubtful
    assert doubt_about(5, b"", [4], whole=False) is None
    manifest_of(image).write_bytes(whole)
    read: list[int] = []
    monkeypatch.setattr(rocks, "MANIFEST_END_BYTES", BLOCK_BYTES)

    def told(_number: int, end: bytes, _logs: Any, *, whole: bool) -> str | None:
        read.append(len(end))
        return "so" if whole else None

    monkeypatch.setattr(rocks, "doubt_about", told)
    assert rocks._doubt_about(image) == "so"
    assert read == [len(whole) - (len(whole) // BLOCK_BYTES - 1) * BLOCK_BYTES, len(whole)]


def test_any_bytes_are_a_doubt_or_none(tmp_path: Path) -> None:
    """A format that is not known costs a scan; it ends nothing."""
    _, whole = cut_database(tmp_path)
    draws = random.Random(5)
    said = set()
    for _ in range(3_000):
        changed = bytearray(whole[: draws.randrange(len(whole) + 1)])
        for _ in range(draws.randrange(4)):
            at = draws.randrange(len(changed) + 1)
            changed[at : at + draws.randrange(9)] = draws.randbytes(draws.randrange(9))
        said.add(doubt_about(5, bytes(changed), [4], whole=True))
    assert None not in said
    assert any("not known" in one for one in said if one)
    with pytest.raises(IndexError):
        _edit(b"\x02\x80")
    assert "within a field" in str(doubt_about(5, b"\0\0\0\0\2\0\1\2\x80", [4], whole=True))
    assert issubclass(UnreadableManifest, Exception)


def test_no_write_ahead_log_at_all_is_a_doubt(tmp_path: Path) -> None:
    """A closed database has one, be it empty; families may have been written to files at different moments."""
    history = History(tmp_path, 1)
    history.write()
    history.store.close()
    assert not rocks._doubt_about(history.database)
    for log in history.database.glob("*.log"):
        log.unlink()
    assert "none is there" in rocks._doubt_about(history.database) or "is not there" in rocks._doubt_about(
        history.database
    )


def test_a_checkpoint_is_in_no_doubt(tmp_path: Path) -> None:
    history = History(tmp_path, 1)
    history.write()
    for _ in range(2):
        history.write()
        history.store.checkpoint("one")
        assert not rocks._doubt_about(history.store.checkpoint_folder("one"))
        history.store.copy_to(tmp_path / "copy")
        assert not rocks._doubt_about(tmp_path / "copy")
        shutil.rmtree(tmp_path / "copy")
        history.restart()
    history.store.close()
