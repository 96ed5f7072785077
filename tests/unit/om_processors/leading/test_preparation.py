"""Snapshots wait until the newest rows are in files: the decisions, and the thread that writes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.execution.service import OM_FAMILIES
from om_processors.leading.core.preparation import (
    MAX_WRITING_MS,
    PREPARED_ROWS,
    READY_MS,
    Admission,
    PreparationState,
    SnapshotPreparation,
)
from om_processors.leading.snapshot_preparer import SnapshotPreparer
from replicated_db.core.errors import StoreFailure
from replicated_db.core.tables.memory import ManualClock
from replicated_db.shell.rocks import RocksStore
from schemas.column_families import KEY_TABLE, VOLUME_TABLE

MANY = PREPARED_ROWS + 1


def test_few_rows_in_memory_delay_nobody():
    found = SnapshotPreparation()
    assert [found.on_asked(rows, 0) for rows in (0, PREPARED_ROWS)] == [Admission.ADMIT] * 2
    assert found.state is PreparationState.IDLE


def test_many_rows_are_written_once_and_then_the_snapshot_is_taken():
    found = SnapshotPreparation()
    assert found.on_asked(MANY, 1_000) is Admission.WRITE
    assert [found.on_asked(rows, 1_050) for rows in (MANY, 0)] == [Admission.REFUSE] * 2
    found.on_written(1_300)
    # What came meanwhile may be many rows again, under load; nobody is refused a second time for them.
    assert [found.on_asked(MANY, at) for at in (1_300, 1_300 + READY_MS)] == [Admission.ADMIT] * 2
    assert found.on_asked(MANY, 1_301 + READY_MS) is Admission.WRITE


def test_a_slow_disk_delays_a_snapshot_for_a_bounded_time():
    found = SnapshotPreparation()
    assert found.on_asked(MANY, 0) is Admission.WRITE
    assert found.on_asked(MANY, MAX_WRITING_MS - 1) is Admission.REFUSE
    assert found.on_asked(MANY, MAX_WRITING_MS) is Admission.ADMIT
    found.on_written(MAX_WRITING_MS + 500)
    assert found.on_asked(MANY, MAX_WRITING_MS + 500) is Admission.ADMIT
    assert found.state is PreparationState.READY


class SlowStore:
    """A store with many rows in memory; writing them lasts until ``go`` is set."""

    def __init__(self) -> None:
        self.rows = MANY
        self.go = threading.Event()
        self.error: StoreFailure | None = None
        self.written = 0

    def rows_in_memory(self) -> int:
        return self.rows

    def write_files(self) -> None:
        self.go.wait(10)
        if self.error is not None:
            raise self.error
        self.rows, self.written = 0, self.written + 1


class PreparerCase:
    """A preparer of two shards, and what ended the process."""

    def __init__(self) -> None:
        self.stores = [SlowStore(), SlowStore()]
        self.fatal: list[BaseException] = []
        self.noted: list[str] = []
        self.clock = ManualClock(now_ms=0)
        replicas: Any = {shard: SimpleNamespace(store=store) for shard, store in enumerate(self.stores)}
        self.preparer = SnapshotPreparer(replicas, self.clock, self.noted.append, self.fatal.append)


@pytest.fixture
def case():
    case = PreparerCase()
    yield case
    for store in case.stores:
        store.go.set()
    case.preparer.close()


def wait_for(condition) -> None:
    done = threading.Event()
    for _ in range(500):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("not in time")


def test_a_shard_that_writes_delays_its_own_snapshots_alone(case):
    case.stores[1].rows = 0
    assert [case.preparer.may_take(shard) for shard in (0, 0, 1)] == [False, False, True]
    case.stores[0].go.set()
    wait_for(lambda: case.preparer.may_take(0))
    assert [store.written for store in case.stores] == [1, 0]
    assert case.noted == [f"shard 0: {MANY} new rows are written to files before a snapshot is taken"]


def test_closing_waits_for_what_is_written_and_delays_nobody_afterwards(case):
    assert not case.preparer.may_take(0)
    threading.Timer(0.05, case.stores[0].go.set).start()
    case.preparer.close()
    assert case.stores[0].written == 1
    assert case.preparer.may_take(1)
    assert case.stores[1].written == 0


def test_a_disk_that_fails_ends_the_process(case):
    case.stores[0].error = StoreFailure("disk full")
    case.stores[0].go.set()
    assert not case.preparer.may_take(0)
    wait_for(lambda: case.fatal)
    assert str(case.fatal[0]) == "disk full"


def test_rocksdb_counts_what_is_in_no_file(tmp_path):
    store = RocksStore(tmp_path / "db", OM_FAMILIES.names)
    try:
        assert store.rows_in_memory() == 0
        store.write([(KEY_TABLE, b"%05d" % number, b"value") for number in range(1_000)])
        store.write([(VOLUME_TABLE, b"vol1", b"value"), (KEY_TABLE, b"00000", None)])
        assert store.rows_in_memory() == 1_002
        store.write_files()
        assert store.rows_in_memory() == 0
    finally:
        store.close()
    with pytest.raises(StoreFailure, match="closed"):
        store.rows_in_memory()
