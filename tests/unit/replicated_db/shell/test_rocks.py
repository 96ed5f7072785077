"""What a database promises of memory, durability and filters, read from the options that RocksDB writes down."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from rocksdict import Cache

from replicated_db.core.errors import StoreFailure
from replicated_db.shell import rocks
from replicated_db.shell.rocks import (
    BLOB_BYTES,
    BLOCK_CACHE_BYTES,
    MAX_OPEN_FILES,
    MAX_WAL_BYTES,
    MEMTABLE_BLOOM_SHARE,
    WRITE_BUFFERS_BYTES,
    RocksReader,
    RocksStore,
    _compact,
)

FAMILIES = ("one", "two")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with rows in one of its families."""
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.write([("one", b"k", b"v")])
    store.close()
    return tmp_path / "shard-0"


@pytest.fixture
def options(path: Path) -> ConfigParser:
    """What RocksDB has written down when it opened the database again."""
    store = RocksStore(path, FAMILIES)
    newest = max(path.glob("OPTIONS-*"))
    found = ConfigParser(interpolation=None, strict=False)
    found.read_string(newest.read_text())
    store.close()
    return found


def test_a_torn_end_of_the_write_ahead_log_is_left_out_and_no_damage_before_it_is_passed_over(options: ConfigParser):
    assert options["DBOptions"]["wal_recovery_mode"] == "kPointInTimeRecovery"


def test_memory_and_files_are_bounded(options: ConfigParser):
    database = options["DBOptions"]
    assert int(database["db_write_buffer_size"]) == WRITE_BUFFERS_BYTES
    assert int(database["max_total_wal_size"]) == MAX_WAL_BYTES
    assert int(database["max_open_files"]) == MAX_OPEN_FILES
    assert int(database["keep_log_file_num"]) == 2
    for family in ("default", "one"):
        assert 4 * int(options[f'CFOptions "{family}"']["write_buffer_size"]) == WRITE_BUFFERS_BYTES


def test_reads_of_rows_that_do_not_exist_are_answered_by_filters(options: ConfigParser):
    """In memory and in files; the filters are parts of the cache, and in pieces that fit into it."""
    memory, files = options['CFOptions "one"'], options['TableOptions/BlockBasedTable "one"']
    assert float(memory["memtable_prefix_bloom_size_ratio"]) == MEMTABLE_BLOOM_SHARE
    assert memory["memtable_whole_key_filtering"] == "true"
    assert memory["compression"] == "kLZ4Compression"
    assert files["filter_policy"].startswith("bloomfilter")
    assert files["index_type"] == "kTwoLevelIndexSearch"
    assert [files[name] for name in ("cache_index_and_filter_blocks", "partition_filters")] == ["true", "true"]
    assert files["pin_top_level_index_and_filter"] == "true"


def test_files_of_removals_are_compacted_soon(options: ConfigParser):
    """Half of a file's rows are enough, however they lie."""
    assert options['CFOptions "one"']["table_properties_collectors"] == (
        "{{id=CompactOnDeletionCollector;deletion_trigger=0;deletion_ratio=0.500000;window_size=0;}}"
    )


def test_only_families_that_are_named_have_blob_files_and_those_are_cleaned_up(tmp_path: Path):
    store = RocksStore(tmp_path / "shard-0", FAMILIES, blobs=("two",))
    store.write([(family, b"k", b"v") for family in FAMILIES])
    found = ConfigParser(interpolation=None, strict=False)
    found.read_string(max((tmp_path / "shard-0").glob("OPTIONS-*")).read_text())
    store.close()
    names = ("enable_blob_files", "min_blob_size", "enable_blob_garbage_collection")
    assert [found['CFOptions "one"'][name] for name in names] == ["false", "0", "false"]
    assert [found['CFOptions "two"'][name] for name in names] == ["true", str(BLOB_BYTES), "true"]
    assert BLOB_BYTES == 4096


def test_blocks_are_cached_within_a_bound(tmp_path: Path, path: Path):
    """One cache for all families of a database; readers may share one."""
    capacity = "rocksdb.block-cache-capacity"
    store = RocksStore(tmp_path / "other", FAMILIES)
    store.write([("one", b"k", b"v")])
    assert store._tables["one"].property_int_value(capacity) == BLOCK_CACHE_BYTES == 32 * 1024 * 1024
    store.close()
    for cache, expected in ((None, BLOCK_CACHE_BYTES), (Cache(1 << 20), 1 << 20)):
        reader = RocksReader(path, FAMILIES, cache)
        assert reader._tables["one"].property_int_value(capacity) == expected
        reader.close()


def test_rows_that_are_in_no_file_take_a_reader_little_memory(tmp_path: Path):
    """A store has a filter beside each family's rows, of a share of its write buffer; who only reads has none."""
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.write([("one", b"k", b"v")])
    shutil.copytree(tmp_path / "shard-0", tmp_path / "crashed")
    reader = RocksReader(tmp_path / "crashed", FAMILIES)
    own, read = (one._tables["one"].property_int_value("rocksdb.cur-size-all-mem-tables") for one in (store, reader))
    store.close()
    reader.close()
    assert own > MEMTABLE_BLOOM_SHARE * WRITE_BUFFERS_BYTES / 4
    assert read < 64 * 1024


def test_what_a_killed_process_left_half_made_or_half_removed_goes_when_it_is_opened(tmp_path: Path):
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.checkpoint("whole")
    store.close()
    half = tmp_path / "shard-0.checkpoints" / ".work" / "half"
    half.mkdir(parents=True)
    (half / "000007.sst").touch()
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    assert not half.parent.exists()
    assert store.checkpoint_names() == ["whole"]
    store.close()


def test_a_checkpoint_has_its_name_once_it_is_whole_and_replaces_another(tmp_path: Path):
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    for value in (b"1", b"2"):
        store.write([("one", b"k", value)])
        store.checkpoint("c")
    assert store.checkpoint_folder("c") == tmp_path / "shard-0.checkpoints" / "c"
    reader = RocksReader(store.checkpoint_folder("c"), FAMILIES)
    assert reader.get("one", b"k") == b"2"
    reader.close()
    assert list((tmp_path / "shard-0.checkpoints" / ".work").iterdir()) == []
    store.close()


def test_a_copy_is_a_whole_database_in_a_new_folder(tmp_path: Path):
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.write([("one", b"k", b"v")])
    store.copy_to(tmp_path / "deep" / "copy")
    with pytest.raises(StoreFailure, match="checkpoint in"):
        store.copy_to(tmp_path / "deep" / "copy")
    store.close()
    reader = RocksReader(tmp_path / "deep" / "copy", FAMILIES)
    assert reader.get("one", b"k") == b"v"
    reader.close()


def test_a_snapshot_ends_with_its_store(tmp_path: Path):
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.write([("one", b"k", b"v")])
    snapshot = store.snapshot()
    only = store.snapshot(["two"])
    assert snapshot.get("one", b"k") == b"v"
    with pytest.raises(StoreFailure, match="iterate over one in a snapshot"):
        only.get("one", b"k")
    store.close()
    with pytest.raises(StoreFailure, match="in a snapshot"):
        snapshot.get("one", b"k")
    again = RocksStore(tmp_path / "shard-0", FAMILIES)  # its lock was given back
    assert again.get("one", b"k") == b"v"
    again.close()


def test_closing_waits_for_a_compaction_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A database that is in use cannot be closed: it is left as after a crash, and nothing is lost."""
    monkeypatch.setattr(rocks, "COMPACTION_WAIT_S", 0.01)
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.write([("one", b"k", b"v")])
    go_on = Event()
    store._compaction = Thread(target=go_on.wait, daemon=True)
    store._compaction.start()
    store.close()
    with pytest.raises(StoreFailure, match="the store is closed"):
        store.snapshot()
    shutil.copytree(tmp_path / "shard-0", tmp_path / "crashed")
    go_on.set()
    again = RocksStore(tmp_path / "crashed", FAMILIES)
    assert again.get("one", b"k") == b"v"
    again.close()


def test_who_reads_a_database_makes_nothing(path: Path):
    before = sorted(path.parent.rglob("*"))
    for missing in (path.parent / "nowhere", path.parent):
        with pytest.raises(StoreFailure, match="does not open: there is no database"):
            RocksReader(missing, FAMILIES)
    reader = RocksReader(path, FAMILIES)
    assert (reader.get("one", b"k"), reader.get("two", b"k")) == (b"v", None)
    reader.close()
    reader.close()
    with pytest.raises(StoreFailure):
        reader.get("one", b"k")
    made = set(path.parent.rglob("*")) - set(before)
    assert {one.name for one in made} <= {"LOG", "LOCK"}


def test_a_reader_knows_which_rows_are_in_no_file_yet(tmp_path: Path):
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.write([("one", bytes([number]), b"v") for number in range(3)])
    assert store.rows_in_memory() == 3
    shutil.copytree(tmp_path / "shard-0", tmp_path / "crashed")
    assert outside_and_in_files(tmp_path / "crashed") == (3, 0)
    store.write_files()
    assert store.rows_in_memory() == 0
    store.close()
    assert outside_and_in_files(tmp_path / "shard-0") == (0, 1)


def outside_and_in_files(path: Path) -> tuple[int, int]:
    """Return how many rows are in the write-ahead log alone, and how many table files there are."""
    reader = RocksReader(path, FAMILIES)
    assert reader.rows_outside_files("two") == 0
    found = reader.rows_outside_files("one"), len(reader.live_files())
    reader.close()
    return found


@pytest.mark.parametrize("act", ["rows_in_memory", "checkpoint_names", "snapshot"])
def test_a_store_that_is_closed_says_so(tmp_path: Path, act: str):
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.close()
    store.close()
    with pytest.raises(StoreFailure, match="the store is closed"):
        getattr(store, act)()
    with pytest.raises(StoreFailure, match="the store is closed"):
        store.drop_checkpoint("none")


def test_a_checkpoint_whose_files_cannot_be_removed_is_gone_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nobody waits for a disk to take files away; the next removal of that name tries again."""
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    for name in ("one", "two"):
        store.checkpoint(name)

    def refuse(path: object, **_: object) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        for name in ("one", "two"):
            store.drop_checkpoint(name)
    assert store.checkpoint_names() == []
    store.drop_checkpoint("one")
    store.checkpoint("one")
    assert store.checkpoint_names() == ["one"]
    store.close()


# Blob files.


def blobs_of(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.blob"))


def test_large_values_of_named_families_lie_in_blob_files(tmp_path: Path):
    path = tmp_path / "shard-0"
    store = RocksStore(path, FAMILIES, blobs=("two",))
    large, small = {b"%d" % n: os.urandom(BLOB_BYTES) for n in range(50)}, {b"s%d" % n: b"x" * 99 for n in range(50)}
    store.write([("one", key, value) for key, value in large.items()])
    store.write_files()
    assert blobs_of(path) == [], "this family has none"
    store.write([("two", key, value) for key, value in (large | small).items()])
    store.write_files()
    assert len(blobs_of(path)) == 1
    blob = path / blobs_of(path)[0]
    assert 50 * BLOB_BYTES < blob.stat().st_size < 51 * BLOB_BYTES, "small values are not there"
    store.checkpoint("kept")
    snapshot = store.snapshot()
    assert dict(store.iterate("two", b"")) == dict(snapshot.iterate("two", b"")) == large | small
    assert store.get("two", b"7") == snapshot.get("two", b"7") == large[b"7"]
    snapshot.close()
    store.write([("two", key, None) for key in large])
    store.write_files()
    _compact(store._tables["two"])
    assert blobs_of(path) == [], "what nobody refers to is removed"
    assert dict(store.iterate("two", b"")) == small
    store.close()
    reader = RocksReader(tmp_path / "shard-0.checkpoints" / "kept", FAMILIES)
    assert dict(reader.iterate("two", b"")) == large | small
    reader.close()


def test_a_database_with_blob_files_opens_without_that_option(tmp_path: Path):
    path = tmp_path / "shard-0"
    store = RocksStore(path, FAMILIES, blobs=("two",))
    store.write([("two", b"in a file", bytes(BLOB_BYTES))])
    store.write_files()
    store.write([("two", b"in the write-ahead log", bytes(BLOB_BYTES))])
    store.close()
    again = RocksStore(path, FAMILIES)
    again.write([("two", b"new", bytes(BLOB_BYTES))])
    again.write_files()
    assert [key for key, value in again.iterate("two", b"") if value == bytes(BLOB_BYTES)] == [
        b"in a file", b"in the write-ahead log", b"new",
    ]  # fmt: skip
    again.close()


# What the disk, or RocksDB, refuses.


class Broken:
    """A table, or a database, on which nothing works."""

    def __getattr__(self, name: str) -> object:
        def fail(*_: object) -> None:
            raise OSError(5, f"Input/output error: {name}")

        return fail


def test_whatever_rocksdb_refuses_is_a_failure_of_the_store(tmp_path: Path):
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.write([("one", b"k", b"v")])
    tables, database = store._tables, store._db
    broken: Any = Broken()
    store._tables, store._db = {"one": broken, "two": None}, broken
    acts: list[tuple[str, Callable[[], object]]] = [
        ("flush: ", store.write_files), ("count rows in memory: ", store.rows_in_memory), ("sync: ", store.sync),
        ("get from one: ", lambda: store.get("one", b"k")), ("page of one: ", lambda: store.page("one", b"", 1)),
        ("iterate over one: ", lambda: list(store.iterate("one", b""))), ("snapshot: ", store.snapshot),
        ("write: ", lambda: store.write([("one", b"k", b"w")])), ("checkpoint c: ", lambda: store.checkpoint("c")),
        ("checkpoint in ", lambda: store.copy_to(tmp_path / "copy")),
    ]  # fmt: skip
    for said, act in acts:
        with pytest.raises(StoreFailure, match=f"^RocksDB: {said}"):
            act()
    store._tables, store._db = tables, database
    assert store.get("one", b"k") == b"v"
    store.close()


def test_what_the_disk_refuses_of_checkpoints_is_a_failure_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = RocksStore(tmp_path / "shard-0", FAMILIES)
    store.checkpoint("c")

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", fail)
        with pytest.raises(StoreFailure, match="^RocksDB: checkpoints: PermissionError"):
            store.checkpoint_names()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        with pytest.raises(StoreFailure, match="^RocksDB: drop checkpoint c: PermissionError"):
            store.drop_checkpoint("c")
    assert store.checkpoint_names() == ["c"]
    store.close()


def test_a_reader_says_what_rocksdb_refuses(path: Path):
    reader = RocksReader(path, FAMILIES)
    tables, database = reader._tables, reader._db
    broken: Any = Broken()
    reader._tables, reader._db = {"one": broken, "two": None}, broken
    with pytest.raises(StoreFailure, match="^RocksDB: list table files: "):
        reader.live_files()
    with pytest.raises(StoreFailure, match="^RocksDB: count entries of one: "):
        reader.rows_outside_files("one")
    assert reader.rows_outside_files("two") == 0
    reader._tables, reader._db = tables, database
    reader.close()


def test_a_database_that_goes_while_it_is_opened_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch):
    """rocksdict makes the folder again, with a file of its own."""

    def removed(*_: object) -> None:
        shutil.rmtree(path)
        path.mkdir()
        (path / "rocksdict-config.json").write_text("{}")
        raise OSError("no such file")

    monkeypatch.setattr(rocks, "_families_in", removed)
    with pytest.raises(StoreFailure, match="does not open: no such file"):
        RocksReader(path, FAMILIES)
    assert not path.exists()


def test_a_database_that_does_not_open_stays_as_it_is(path: Path):
    (path / "CURRENT").write_text("MANIFEST-999999\n")
    (path / "rocksdict-config.json").touch()
    before = {one.name for one in path.iterdir()}
    with pytest.raises(StoreFailure, match="does not open"):
        RocksReader(path, FAMILIES)
    assert {one.name for one in path.iterdir()} >= before


def test_a_folder_with_other_files_is_left_where_it_is(tmp_path: Path):
    (tmp_path / "mine").touch()
    (tmp_path / "rocksdict-config.json").touch()
    rocks._clear_remains(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]
    rocks._clear_remains(tmp_path / "none")


MOVE = "Move it away"
LEAVE = "leave it where it is"


def _why_closed(path: Path) -> str:
    with pytest.raises(StoreFailure) as caught:
        RocksStore(path, FAMILIES)
    return str(caught.value)


def _without(path: Path, pattern: str) -> None:
    for one in path.glob(pattern):
        one.unlink()


DAMAGES: tuple[Callable[[Path], object], ...] = (
    lambda path: _without(path, "*.sst"),
    lambda path: _without(path, "MANIFEST-*"),
    lambda path: (path / "CURRENT").unlink(),
    lambda path: [one.write_bytes(one.read_bytes()[:10]) for one in path.glob("*.sst")],
    lambda path: [one.write_bytes(b"damaged" * 100) for one in path.glob("MANIFEST-*")],
)


@pytest.mark.parametrize("damage", DAMAGES, ids=["no tables", "no manifest", "no CURRENT", "cut", "manifest"])
def test_a_database_whose_files_are_wrong_may_be_moved_away(path: Path, damage: Callable[[Path], object]):
    RocksStore(path, FAMILIES).close()  # which writes the rows of the write-ahead log into a table
    assert list(path.glob("*.sst"))
    damage(path)
    assert MOVE in _why_closed(path)


def test_a_database_that_another_has_open_is_left_where_it_is(path: Path):
    store = RocksStore(path, FAMILIES)
    said = _why_closed(path)
    store.close()
    assert LEAVE in said
    assert MOVE not in said


def test_a_database_is_left_where_it_is_if_the_process_may_open_no_more_files(path: Path):
    """At each number of free descriptors below enough; it opens afterwards, with its rows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said: list[str] = []
    for number in range(8):
        # The limit is on their numbers: those that other tests hold may lie above ones that are free.
        held = set(os.listdir("/proc/self/fd"))
        free = [one for one in range(len(held) + 9) if str(one) not in held]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free[number], hard))
            RocksStore(path, FAMILIES).close()
            break
        except StoreFailure as error:
            said.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(said) > 3
    assert [one for one in said if LEAVE not in one or MOVE in one] == []
    store = RocksStore(path, FAMILIES)
    assert store.get("one", b"k") == b"v"
    store.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOMEM])
def test_no_fault_of_the_machine_is_taken_for_damage(path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    def refused(*_: object) -> None:
        raise OSError(f"Corruption: Can't access /000011.sst: IO error: {os.strerror(number)}")

    monkeypatch.setattr(rocks, "_families_in", refused)
    said = _why_closed(path)
    assert LEAVE in said
    assert MOVE not in said
