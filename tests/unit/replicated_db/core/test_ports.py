"""The suites on the in-memory twins and on RocksDB; clocks and ids. (Kafka: ``tests/integration/test_ports_kafka.py``.)"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import MAX_CHECKPOINTS, Clock, Ids, RowPage
from replicated_db.core.tables.column_families import LOCAL_FAMILIES
from replicated_db.core.tables.memory import ManualClock, MemoryLog, MemoryStore, SequenceIds
from replicated_db.shell.rocks import MAX_SKIPPED_KEYS, WORK_FOLDER, RocksReader, RocksStore
from replicated_db.shell.system import SystemClock, SystemIds
from stratolog.local.processes import wait_until
from tests.support.replicated.kit import FAMILIES
from tests.support.replicated.port_suites import ROWS, LogSuite, StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(FAMILIES.names, kept="keep-")

    @pytest.fixture
    def read_checkpoint(self, store: MemoryStore) -> Callable[[str], dict[bytes, bytes]]:
        return lambda name: dict(store.checkpoints[name].iterate("things", b""))


class TestRocksStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[RocksStore]:
        store = RocksStore(tmp_path / "db", FAMILIES.names, kept="keep-")
        yield store
        store.close()

    @pytest.fixture
    def read_checkpoint(self, store: RocksStore) -> Callable[[str], dict[bytes, bytes]]:
        def read(name: str) -> dict[bytes, bytes]:
            opened = RocksStore(store.path.with_name("db.checkpoints") / name, FAMILIES.names)
            rows = dict(opened.iterate("things", b""))
            opened.close()
            return rows

        return read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


def test_rocks_keeps_its_rows_over_a_restart(path: Path):
    store = RocksStore(path, FAMILIES.names)
    store.write([("things", key, value) for key, value in ROWS])
    store.close()
    store = RocksStore(path, FAMILIES.names)
    assert list(store.iterate("things", b"")) == ROWS
    store.close()


def test_rocks_closes_with_a_snapshot_open(path: Path):
    store = RocksStore(path, FAMILIES.names)
    store.write([("things", b"a", b"1")])
    snapshot = store.snapshot()
    store.close()
    with pytest.raises(StoreFailure):
        snapshot.get("things", b"a")
    RocksStore(path, FAMILIES.names).close()


def test_rocks_snapshots_are_read_on_another_thread(path: Path):
    store = RocksStore(path, FAMILIES.names)
    store.write([("things", b"%04d" % number, b"old") for number in range(2000)])
    snapshot = store.snapshot()
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.extend(value for _, value in snapshot.iterate("things", b"")))
    thread.start()
    for number in range(2000):
        store.write([("things", b"%04d" % number, b"new")])
    thread.join()
    assert found == [b"old"] * 2000
    snapshot.close()
    store.close()


def test_rocks_opened_twice(path: Path):
    store = RocksStore(path, FAMILIES.names)
    with pytest.raises(StoreFailure, match="does not open"):
        RocksStore(path, FAMILIES.names)
    store.close()


def test_rocks_that_is_damaged_refuses_to_open(path: Path):
    store = RocksStore(path, FAMILIES.names)
    store.write([("things", b"a", b"1")])
    store.close()
    for file in path.glob("MANIFEST-*"):
        file.write_bytes(b"damaged" * 100)
    with pytest.raises(StoreFailure, match="rebuilt from the log"):
        RocksStore(path, FAMILIES.names)


def test_rocks_where_there_is_a_file(path: Path):
    path.write_text("no directory")
    with pytest.raises(StoreFailure, match=str(path)):
        RocksStore(path, FAMILIES.names)


class TestMemoryLog(LogSuite):
    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog(ManualClock())


def test_memory_appends_lie_in_flight_until_settled():
    log = MemoryLog(ManualClock(), auto=False)
    appender = log.appender()
    for token in range(3):
        appender.append(token, b"%d" % token)
    assert log.bounds() == (0, 0)
    appender.deliver()
    appender.fail(appended=True)
    appender.fail(appended=False)
    assert [entry.value for entry in log.entries] == [b"0", b"1"]
    assert [(report.offset, report.error) for report in appender.poll(0)] == [
        (0, None),
        (-1, "timed out"),
        (-1, "timed out"),
    ]
    appender.append(9, b"given up")
    appender.close()
    assert appender.in_flight == []
    assert len(log.entries) == 2


CLOCKS: list[Clock] = [SystemClock(), ManualClock()]
IDS: list[Ids] = [SystemIds(), SequenceIds(seed=3)]


@pytest.mark.parametrize("clock", CLOCKS, ids=["system", "manual"])
def test_clocks(clock: Clock):
    elapsed = [clock.elapsed_ms() for _ in range(100)]
    assert elapsed == sorted(elapsed)
    assert all(isinstance(value, int) for value in (*elapsed, clock.wall_ms()))


def test_the_manual_clock_moves_when_told():
    clock = ManualClock(now_ms=100, elapsed=5)
    clock.advance(7)
    assert (clock.wall_ms(), clock.elapsed_ms()) == (107, 12)
    clock.now_ms -= 50
    assert (clock.wall_ms(), clock.elapsed_ms()) == (57, 12)


@pytest.mark.parametrize("ids", IDS, ids=["system", "sequence"])
def test_ids(ids: Ids):
    nonces = [ids.nonce() for _ in range(1000)]
    assert len(set(nonces)) == 1000
    assert {len(nonce) for nonce in nonces} == {16}


def test_sequences_are_reproducible_and_apart():
    assert [SequenceIds(seed=1).nonce() for _ in range(3)] == [SequenceIds(seed=1).nonce() for _ in range(3)]
    assert SequenceIds(seed=1).nonce() != SequenceIds(seed=2).nonce()


def test_a_page_does_not_go_past_many_removed_rows_and_has_them_compacted(path: Path):
    """The walk to the first row behind 600,000 purged ones held the interpreter's lock for a second, each time."""
    store = RocksStore(path, FAMILIES.names)
    keys = [b"%07d" % number for number in range(2 * MAX_SKIPPED_KEYS)]
    for value in (b"v" * 100, None):
        for at in range(0, len(keys), 1000):
            store.write([("things", key, value) for key in keys[at : at + 1000]])
    store.write([("things", b"z", b"1")])
    assert store.page("things", b"", 10) == RowPage(rows=[], more=True)
    found = RowPage(rows=[(b"z", b"1")], more=False)
    assert wait_until(lambda: store.page("things", b"", 10) == found, 60, interval_s=0.05)
    store.close()


def test_only_the_youngest_checkpoints_are_kept(path: Path):
    store = RocksStore(path, FAMILIES.names)
    for number in range(MAX_CHECKPOINTS + 3):
        store.write([("things", b"n", b"%d" % number)])
        store.checkpoint(f"c{9 - number}")
    store.checkpoint("c4")
    kept = set(store.checkpoint_names())
    assert kept == {f"c{9 - number}" for number in range(3, MAX_CHECKPOINTS + 3)}
    store.close()


def checkpoint_rows(path: Path, name: str) -> dict[bytes, bytes]:
    reader = RocksReader(path.with_name("db.checkpoints") / name, FAMILIES.names)
    rows = dict(reader.iterate("things", b""))
    reader.close()
    return rows


def test_what_a_killed_process_leaves_of_a_checkpoint_is_no_checkpoint_and_goes(path: Path):
    """Killed anywhere between the first file and the last: whatever has a checkpoint's name is whole."""
    work = path.with_name("db.checkpoints") / WORK_FOLDER
    store = RocksStore(path, FAMILIES.names, kept="keep-")
    store.write([("things", key, value) for key, value in ROWS])
    store.checkpoint("keep-1")
    store.close()
    for left in ("keep-1", "keep-2", "keep-2.tmp"):  # being removed, whole but not moved, half made
        (work / left).mkdir(parents=True)
        (work / left / "000009.sst").write_bytes(b"half")
    store = RocksStore(path, FAMILIES.names, kept="keep-")
    assert not work.exists()
    assert store.checkpoint_names() == ["keep-1"]
    assert checkpoint_rows(path, "keep-1") == dict(ROWS)
    (work / "keep-2.tmp").mkdir(parents=True)
    store.checkpoint("keep-2")
    assert checkpoint_rows(path, "keep-2") == dict(ROWS)
    store.close()


CHECKPOINTING = """
import os, sys
from pathlib import Path
from replicated_db.shell.rocks import RocksStore
store = RocksStore(Path(sys.argv[1]), ("retryTable", "things"), kept="keep-")
for number in range(400):
    store.write([("things", b"%06d" % number, os.urandom(2000))])
print("made", flush=True)
for number in range(1000):
    store.checkpoint(f"keep-{number % 5}")
    print(number, flush=True)
"""


@pytest.mark.parametrize("checkpoints", [0, 1, 3, 6, 7])
def test_a_process_that_is_killed_while_it_makes_checkpoints(path: Path, checkpoints: int):
    """kill -9, at no chosen moment of the next checkpoint; each that has its name afterwards can be read and has all rows."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHECKPOINTING, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]
    )
    assert process.stdout is not None
    for _ in range(checkpoints + 1):
        process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    store = RocksStore(path, ("retryTable", "things"), kept="keep-")
    rows = dict(store.iterate("things", b""))
    names = store.checkpoint_names()
    assert len(names) >= min(checkpoints, 5) - 1, "the one that is being replaced may be away"
    for name in [*names]:
        assert checkpoint_rows(path, name) == rows
    store.checkpoint("keep-0")
    assert checkpoint_rows(path, "keep-0") == rows
    store.close()


# What older and newer software find in each other's databases.

OLDER = ("retryTable", "things")
NEWER = (*OLDER, "counters")


def open_as_older_software(path: Path) -> None:
    """Open a database as software before this rule did: the families that it knows, all of them and no other."""
    families = {name: Options(raw_mode=True) for name in (*OLDER, *LOCAL_FAMILIES)}
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    database = Rdict(str(path), options, families)
    assert database.get_column_family("things").get(b"k") == b"v"
    for table in [database.get_column_family(name) for name in families]:
        table.close()
    database.close()


def test_a_family_is_made_for_its_first_row_so_older_software_opens_what_newer_left(path: Path):
    store = RocksStore(path, NEWER)
    store.write([("things", b"k", b"v")])
    assert list(store.iterate("counters", b"")) == []
    store.close()
    open_as_older_software(path)
    store = RocksStore(path, NEWER)
    store.write([("counters", b"n", b"1")])
    store.close()
    with pytest.raises(Exception, match="counters"):
        open_as_older_software(path)


def test_a_database_with_families_that_are_not_known_here_opens(path: Path):
    store = RocksStore(path, NEWER)
    store.write([("things", b"k", b"v"), ("counters", b"n", b"1")])
    store.close()
    older = RocksStore(path, OLDER)
    assert older.get("things", b"k") == b"v"
    older.write([("things", b"k", b"w")])
    older.checkpoint("c")
    with pytest.raises(StoreFailure):
        older.write([("counters", b"n", b"2")])
    older.close()
    reader = RocksReader(path, NEWER)
    assert (reader.get("things", b"k"), reader.get("counters", b"n")) == (b"w", b"1")
    reader.close()
    reader = RocksReader(path, OLDER)
    assert reader.get("things", b"k") == b"w"
    reader.close()


def test_a_database_that_lacks_a_family_is_read_as_without_its_rows(path: Path):
    store = RocksStore(path, OLDER)
    store.write([("things", b"k", b"v")])
    store.close()
    reader = RocksReader(path, NEWER)
    assert list(reader.iterate("counters", b"")) == []
    reader.close()
