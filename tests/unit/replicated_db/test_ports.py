"""The suites on the in-memory twins and on RocksDB; clocks and ids. (Kafka: ``tests/integration/test_ports_kafka.py``.)"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replicated_db.errors import StoreFailure
from replicated_db.memory import ManualClock, MemoryLog, MemoryStore, SequenceIds
from replicated_db.ports import Clock, Ids
from replicated_db.rocks import RocksStore
from replicated_db.system import SystemClock, SystemIds
from tests.unit.replicated_db.kit import FAMILIES
from tests.unit.replicated_db.port_suites import ROWS, LogSuite, StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(FAMILIES.names)

    @pytest.fixture
    def read_checkpoint(self, store: MemoryStore) -> Callable[[str], dict[bytes, bytes]]:
        return lambda name: dict(store.checkpoints[name].iterate("things", b""))


class TestRocksStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[RocksStore]:
        store = RocksStore(tmp_path / "db", FAMILIES.names)
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
