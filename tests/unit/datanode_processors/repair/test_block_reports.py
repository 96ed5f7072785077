"""Block reports: what a scrub barrier has a datanode say of every committed byte, read from the disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors.blocks.core.digests import container_digest
from datanode_processors.repair import block_reports as module
from datanode_processors.repair.block_reports import BlockReports
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.system import SystemClock
from schemas.codecs.block_rows import block_key, encode_block_row
from schemas.codecs.codec import decode_as
from schemas.column_families import BLOCK_TABLE
from schemas.records.datanode import BlockReport, BlockRow
from schemas.topics import DN_AUDIT
from tests.support.datanodes.block_nodes import BCS_ID, BLOCK, CONTAINER, DATA, KEY, PARTITION, Node, row_of
from tests.support.local.waiting import eventually

WAIT_S = 30.0
AT = SimpleNamespace(index=BCS_ID, offset=900)


class Snapshot:
    """The rows of a replica as they are now, which a closed snapshot no longer tells."""

    def __init__(self, node: Node) -> None:
        self._tables = node.replica.store
        self.closed = False

    def get(self, cf: str, key: bytes) -> bytes | None:
        assert not self.closed
        return self._tables.get(cf, key)

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        assert not self.closed
        return self._tables.iterate(cf, start, stop)

    def close(self) -> None:
        self.closed = True


class World:
    """A datanode with its committed blocks and its reports."""

    def __init__(self, folder: Path) -> None:
        self.node = Node("dn1", folder)
        self.node.write()
        self.snapshots: list[Snapshot] = []
        self.node.replica.replica.snapshot = self._snapshot
        self.sent: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self.notes: list[str] = []
        self.fatal: list[BaseException] = []
        self.reports = BlockReports(
            self.node.store, node="dn1", cluster="test", clock=SystemClock(), send=lambda *sent: self.sent.put(sent),
            note=lambda text, **_: self.notes.append(text), fatal=self.fatal.append,
        )  # fmt: skip

    def _snapshot(self) -> tuple[Any, int, Snapshot]:
        self.snapshots.append(Snapshot(self.node))
        return AT, 0, self.snapshots[-1]

    def barrier(self, at: Any = AT) -> None:
        replica: Any = self.node.replica
        self.reports.barrier(replica, at)

    def report(self) -> BlockReport:
        """Pass barriers until one is reported (the scan before it may be about to end), and return what is said."""

        def sent() -> bool:
            if self.sent.empty():
                self.barrier()
            return not self.sent.empty()

        eventually(sent, timeout_s=WAIT_S)
        topic, value, key, partition, _ = self.sent.get(timeout=WAIT_S)
        assert (topic, key, partition) == (DN_AUDIT, f"{PARTITION}/dn1".encode(), PARTITION)
        eventually(lambda: all(snapshot.closed for snapshot in self.snapshots), timeout_s=WAIT_S)
        while not self.sent.empty():  # of a barrier that was passed meanwhile
            self.sent.get()
        return decode_as(BlockReport, value)

    def stop(self) -> None:
        self.reports.close()
        self.node.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.stop()


def digest(*rows: tuple[int, BlockRow]) -> int:
    return container_digest(CONTAINER, [(local_id, row.length, row.checksums) for local_id, row in rows])


def test_a_report_tells_each_containers_bytes_as_of_the_barrier(world: World) -> None:
    small = row_of(DATA[:9])
    world.node.write(DATA[:9], BLOCK + 1)
    world.node.replica.put(small, BLOCK + 1)
    world.node.replica.put(row_of(b"", deleted=True), BLOCK + 2)
    found = world.report()
    assert (found.datanode, found.cluster, found.partition) == ("dn1", "test", PARTITION)
    assert (found.index, found.log_offset, found.complete) == (BCS_ID, 900, True)
    (container,) = found.containers
    assert (container.container_id, container.blocks, container.used_bytes) == (CONTAINER, 2, len(DATA) + 9)
    assert container.digest == digest((BLOCK, row_of()), (BLOCK + 1, small))
    assert container.unreadable == []


def test_a_block_that_is_damaged_or_missing_is_named_and_changes_the_digest(world: World) -> None:
    whole = world.report().containers[0]
    world.node.damage(3)
    damaged = world.report().containers[0]
    assert damaged.unreadable == [KEY]
    assert (damaged.blocks, damaged.digest == whole.digest) == (1, False)
    world.node.path.unlink()
    missing = world.report().containers[0]
    assert (missing.unreadable, missing.blocks, missing.digest == whole.digest) == ([KEY], 1, False)


def test_a_block_that_is_deleted_while_it_is_read_counts_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes go with the deletion; the barrier was before."""
    whole = world.report().containers[0]
    old = dict(world.node.replica.store.tables[BLOCK_TABLE])
    world.node.replica.put(row_of(deleted=True))
    world.node.path.unlink()
    monkeypatch.setattr(Snapshot, "iterate", lambda _, cf, *__: iter(sorted(old.items()) if cf == BLOCK_TABLE else []))
    assert world.report().containers[0] == whole


def test_a_barrier_that_was_passed_already_is_left_out(world: World) -> None:
    world.barrier(SimpleNamespace(index=BCS_ID - 1, offset=899))
    assert world.notes == [f"pipeline-3: block report at {BCS_ID - 1} left out"]
    assert world.snapshots[0].closed
    assert world.report().containers, "the next one is reported"


def test_a_report_that_fails_is_noted_and_the_next_one_is_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Snapshot, "iterate", lambda *_: 1 // 0)
        world.barrier()
        eventually(lambda: len(world.notes) == 1 and world.snapshots[0].closed, timeout_s=WAIT_S)
    assert "no block report: ZeroDivisionError" in world.notes[0]
    assert world.report().complete
    assert not world.fatal


def test_a_store_that_fails_ends_the_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = StoreFailure("as if")

    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(Snapshot, "iterate", fail)
    world.barrier()
    eventually(lambda: world.fatal == [failure], timeout_s=WAIT_S)


def test_after_the_end_nothing_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(world.reports._thread, "join", waited.append)
    world.reports.close()
    assert len(waited) == 1, "what is under way is waited for"
    world.barrier()
    assert world.snapshots[0].closed
    assert world.sent.empty()


def test_a_report_names_only_so_many_containers_and_damaged_blocks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = CONTAINER + 256
    rows = world.node.replica.store.tables[BLOCK_TABLE]
    for local_id in (1, 2, 3):
        rows[block_key(other, local_id)] = encode_block_row(row_of())
    world.node.replica.put(row_of(), BLOCK + 1)
    monkeypatch.setattr(module, "MAX_UNREADABLE", 3)
    monkeypatch.setattr(module, "MAX_CONTAINERS_IN_REPORT", 2)
    found = world.report()
    assert found.complete
    lost = [block_key(CONTAINER, BLOCK + 1), block_key(other, 1), block_key(other, 2)]
    assert [key for container in found.containers for key in container.unreadable] == lost
    assert [container.blocks for container in found.containers] == [2, 3], "those not named are counted all the same"
    monkeypatch.setattr(module, "MAX_CONTAINERS_IN_REPORT", 1)
    found = world.report()
    assert (found.complete, [container.container_id for container in found.containers]) == (False, [CONTAINER])


def test_a_block_that_cannot_be_read_now_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.node.store._reader, "_max_readers", 0)
    (container,) = world.report().containers
    assert (container.unreadable, container.blocks, container.used_bytes) == ([KEY], 1, 0)


class Scans:
    """The scans of several pipelines, of which the first waits until it may go on."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.begun: list[int] = []
        self.go_on = threading.Event()
        real = world.reports._scan

        def scan(pipeline: Any, *given: Any) -> Any:
            self.begun.append(pipeline.partition)
            assert self.go_on.wait(WAIT_S)
            return real(pipeline, *given)

        monkeypatch.setattr(world.reports, "_scan", scan)

    def barrier(self, partition: int) -> None:
        replica: Any = self.world.node.replica
        pipeline: Any = SimpleNamespace(
            partition=partition, replica=replica.replica, store=replica.store,
            opened=SimpleNamespace(pipeline=f"pipeline-{partition}"),
        )  # fmt: skip
        at: Any = AT
        self.world.reports.barrier(pipeline, at)

    def left_out(self, partition: int) -> int:
        return self.world.notes.count(f"pipeline-{partition}: block report at {BCS_ID} left out")


@pytest.fixture
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scans]:
    """With room for one scan that waits."""
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    world = World(tmp_path)
    made = Scans(world, monkeypatch)
    yield made
    made.go_on.set()
    world.stop()


def test_a_scan_that_finds_no_room_is_left_out_and_the_next_one_is_not(scans: Scans) -> None:
    scans.barrier(1)
    eventually(lambda: scans.begun == [1])
    scans.barrier(2)
    scans.barrier(3)
    assert (scans.left_out(2), scans.left_out(3)) == (0, 1)
    scans.go_on.set()
    eventually(lambda: scans.begun == [1, 2])
    eventually(scans.world.reports._queue.empty)
    scans.barrier(3)
    eventually(lambda: scans.begun == [1, 2, 3])
    eventually(lambda: all(snapshot.closed for snapshot in scans.world.snapshots))


def test_a_pipeline_is_scanned_once_at_a_time(scans: Scans) -> None:
    scans.barrier(1)
    eventually(lambda: scans.begun == [1])
    scans.barrier(1)
    assert scans.left_out(1) == 1
    scans.go_on.set()
    eventually(lambda: not scans.world.reports._scanning)
    scans.barrier(1)
    eventually(lambda: scans.begun == [1, 1])


def test_the_end_waits_for_no_scan_that_has_not_begun(scans: Scans) -> None:
    scans.barrier(1)
    eventually(lambda: scans.begun == [1])
    scans.barrier(2)
    scans.world.reports.close()
    scans.go_on.set()
    scans.world.reports._thread.join(WAIT_S)
    assert scans.begun == [1]
    assert scans.world.sent.empty(), "what is read when the end comes is not sent"


def test_a_store_that_was_closed_by_the_end_is_no_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        world.reports._stop.set()
        raise StoreFailure("as if")

    monkeypatch.setattr(Snapshot, "iterate", fail)
    world.barrier()
    eventually(lambda: world.snapshots[0].closed)
    assert (world.fatal, world.notes) == ([], [])


def test_a_tombstone_hides_no_block_behind_it(world: World) -> None:
    world.node.replica.put(row_of(b"", deleted=True), BLOCK - 1)
    (container,) = world.report().containers
    assert (container.blocks, container.used_bytes) == (1, len(DATA))
