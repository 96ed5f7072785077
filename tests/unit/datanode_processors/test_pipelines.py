"""The pipelines of one datanode together: real stores, rows and leaders' loops; the logs are in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipelines import LOOK_INTERVAL_S, LOOKS_PER_SIZE, Pipelines
from replicated_db.core.tables.memory import MemoryLog
from replicated_db.shell.system import SystemClock
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key
from schemas.codecs.codec import decode, encode
from schemas.records.datanode import (
    Accepted,
    BlockId,
    CloseContainer,
    ClosePipeline,
    DeleteBlocks,
    FetchContainer,
    Forwarded,
    GetBlock,
    ListContainer,
    Member,
    OpenBlocks,
    OpenPipeline,
    OpenStream,
    PutBlock,
    WatchBlock,
    WatchBlocks,
    WriteBlocks,
)
from schemas.records.log import Barrier
from tests.support.datanodes.checksums import checksums_of
from tests.support.datanodes.hosts import LocalHost, NoReports
from tests.support.local.waiting import eventually

PARTITION, CONTAINER, CELL = 3, 256 + 3, 512
KEY = block_key(CONTAINER, 1)
MODULE = "datanode_processors.pipelines"
WAIT_S = 30.0
LOOKS = 6


class World(NoReports):
    """One datanode, the only member of its pipelines, which learns of all records when they are appended."""

    def __init__(self, folder: Path, log: MemoryLog, container_bytes: int = 1 << 30) -> None:
        self.told: list[Any] = []
        self.fatal: list[BaseException] = []
        self.store = BlockStore(folder)
        self.config = DatanodeConfig(
            node="dn1", cluster="test", host="127.0.0.1", port=7, http_port=0, bootstrap_servers="", data_dir=folder,
            pipeline_watchdog_ms=200, barrier_interval_ms=0, datanode_scrub_interval_ms=0, container_bytes=container_bytes,
            block_scrub_interval_ms=0,
        )  # fmt: skip
        self.host = LocalHost(self.config, log, reports=self, fatal=self.fatal.append)
        self.pipelines = Pipelines(self.config, self.store, self.host, opened=lambda: self.told.append("opened"))
        self.pipelines.open_known()

    def publish(self, replica: Any, outcome: Any) -> None:
        """What is applied, as the outbox of a process is told."""
        self.pipelines.on_record(replica, outcome)
        super().publish(replica, outcome)

    def start(self) -> None:
        self.pipelines.start(
            self.told.append, lambda: self.told.append("changed"),
            lambda pipeline, _: self.told.append(("scanned", pipeline.partition)), lambda _: None,
        )  # fmt: skip

    def leading(self) -> Any:
        self.start()
        self.pipelines.handle(opening())
        pipeline = self.pipelines.table.member(PARTITION)
        eventually(lambda: pipeline.loop.leading and pipeline.generation == 1)
        return pipeline

    def write(self, local_id: int = 1, cells: int = 1) -> None:
        """Have bytes, which are committed."""
        with self.store.open_writer(CONTAINER, local_id, 0, CELL) as writer:
            writer.write(0, bytes(cells * CELL))
            writer.flush()
        self.pipelines.handle(
            PutBlock(
                partition=PARTITION, container_id=CONTAINER, local_id=local_id, length=cells * CELL,
                bytes_per_checksum=CELL, checksums=checksums_of(bytes(cells * CELL), CELL), wait_effective=True,
            )
        )  # fmt: skip

    def closed(self) -> list[bool]:
        return [one.closed for one in self.store.containers()]

    def end(self) -> None:
        self.pipelines.stop()
        self.pipelines.close()
        self.host.close_databases()


def opening(generation: int = 1) -> OpenPipeline:
    members = [Member(datanode="dn1", address="127.0.0.1:7", http_address="", rack="/r")]
    return OpenPipeline(pipeline="pipeline-3", partition=PARTITION, generation=generation, members=members)


@pytest.fixture
def log() -> MemoryLog:
    clock: Any = SystemClock()
    return MemoryLog(clock)


@pytest.fixture
def world(tmp_path: Path, log: MemoryLog) -> Iterator[World]:
    made = World(tmp_path, log)
    yield made
    made.end()


def test_a_pipeline_that_is_opened_is_followed_led_and_reported(world: World) -> None:
    pipeline = world.leading()
    assert world.told[:2] == ["opened", PARTITION]
    assert "changed" in world.told
    assert world.pipelines.all() == [pipeline]
    assert list(world.host.replicas) == list(world.host.loops) == list(world.host.databases) == [3]
    assert pipeline._missing_row() is None, "the leader has brought it to the log"
    length = pipeline.replica.position.index
    assert "is followed" in world.pipelines.handle(opening()).detail
    assert pipeline.replica.position.index == length + 1, "a leader brings every request for an open one to the log"
    world.told.clear()
    world.pipelines.handle(opening(2))
    eventually(lambda: pipeline.generation == 2)
    assert world.told[0] == "opened"


def test_where_members_are_is_what_the_object_manager_said_last(world: World) -> None:
    with pytest.raises(BlockError, match="NO_SUCH_PIPELINE"):
        world.pipelines.address_of(PARTITION, "dn1")
    world.pipelines.handle(opening())
    assert world.pipelines.address_of(PARTITION, "dn1") == "127.0.0.1:7"
    moved = [Member(datanode="dn1", address="127.0.0.1:8", http_address="", rack="/r")]
    world.pipelines.handle(OpenPipeline(pipeline="pipeline-3", partition=PARTITION, generation=1, members=moved))
    assert world.pipelines.address_of(PARTITION, "dn1") == "127.0.0.1:8"
    with pytest.raises(BlockError, match="datanode dn2 is no member of pipeline-3: dn1 are") as caught:
        world.pipelines.address_of(PARTITION, "dn2")
    assert caught.value.code == "INVALID_REQUEST"


def test_a_change_of_leadership_is_said_at_once(world: World) -> None:
    pipeline = world.leading()
    time.sleep(LOOKS * LOOK_INTERVAL_S)  # it has been seen leading
    world.told.clear()
    pipeline.stop()
    eventually(lambda: "changed" in world.told)
    assert not pipeline.loop.leading
    assert not world.fatal


def test_what_is_committed_is_verified_and_what_is_closed_is_closed_in_the_store(world: World) -> None:
    pipeline = world.leading()
    world.write()
    eventually(lambda: pipeline._verified.get(KEY) == CELL)
    found = world.pipelines.handle(GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=1))
    assert (found.length, found.stored_length) == (CELL, CELL)
    watched = world.pipelines.handle(
        WatchBlock(partition=PARTITION, container_id=CONTAINER, local_id=1, length=CELL, bcs_id=0, timeout_ms=0)
    )
    assert watched.satisfied
    listed = world.pipelines.handle(ListContainer(partition=PARTITION, container_id=CONTAINER))
    assert (len(listed.blocks), listed.closed, world.closed()) == (1, False, [False])
    assert [found[:3] for found in world.pipelines.committed_blocks(None)] == [(PARTITION, CONTAINER, 1)]
    world.pipelines.handle(CloseContainer(partition=PARTITION, container_id=CONTAINER))
    eventually(lambda: world.closed() == [True])


@pytest.mark.parametrize(("container_bytes", "closed"), [(2 * CELL, True), (2 * CELL + 1, False)])
def test_the_leader_closes_containers_that_hold_enough(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, container_bytes: int, closed: bool
) -> None:
    monkeypatch.setattr(f"{MODULE}.LOOKS_PER_SIZE", 10**9)
    world = World(tmp_path, log, container_bytes)
    pipeline = world.leading()
    world.write(cells=2)
    asked: list[Any] = []
    real = pipeline.proposals.submit

    def submit(request: Any) -> Any:
        asked.append(request)
        return real(request)

    pipeline.proposals.submit = submit
    world.pipelines._close_full_containers()
    wanted = CloseContainer(partition=PARTITION, container_id=CONTAINER)
    assert asked == ([wanted] if closed else [])
    if closed:
        eventually(lambda: world.closed() == [True])
        world.pipelines._close_full_containers()
        assert len(asked) == 1, "it is closed"
    world.end()


def test_who_does_not_lead_or_is_refused_leaves_full_containers_to_the_next_look(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.LOOKS_PER_SIZE", 10**9)
    world = World(tmp_path, log, container_bytes=1)
    pipeline = world.leading()
    world.write()
    asked: list[Any] = []

    def refuse(request: Any) -> Any:
        asked.append(request)
        raise BlockError(codes.OVERLOADED, "as if")

    pipeline.proposals.submit = refuse
    world.pipelines._close_full_containers()
    assert len(asked) == 1
    with world.store.open_writer(CONTAINER + 256 + 1, 1, 0, CELL) as writer:
        writer.write(0, bytes(CELL))
        world.pipelines._close_full_containers()
    assert len(asked) == 2, "a container of no pipeline here is nobody's"
    pipeline.stop()
    eventually(lambda: not pipeline.loop.leading)
    world.pipelines._close_full_containers()
    assert len(asked) == 2
    world.end()


def test_sizes_are_looked_at_from_time_to_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[None] = []
    pauses = threading.Semaphore(0)
    monkeypatch.setattr(world.pipelines, "_close_full_containers", lambda: looked.append(None))

    def wait(_: float) -> bool:
        pauses.release()
        return pauses._value > 2 * LOOKS_PER_SIZE

    monkeypatch.setattr(world.pipelines._stopping, "wait", wait)
    world.pipelines._watch()
    assert len(looked) == 2


def test_a_look_that_fails_ends_the_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = ZeroDivisionError()

    def fail() -> None:
        raise failure

    monkeypatch.setattr(world.pipelines.table, "all", fail)
    world.pipelines._watch()
    monkeypatch.undo()
    assert world.fatal == [failure]


def test_a_datanode_that_stops_opens_nothing_more(world: World) -> None:
    world.leading()
    world.pipelines.stop()
    assert not world.pipelines._watching.is_alive() or world.pipelines._stopping.is_set()
    with pytest.raises(BlockError, match="dn1 is stopping") as caught:
        world.pipelines.handle(opening())
    assert caught.value.code == codes.STOPPING


def test_a_member_needs_no_copy_and_what_is_no_request_is_refused(world: World) -> None:
    pipeline = world.leading()
    request = FetchContainer(partition=PARTITION, container_id=CONTAINER, sources=["127.0.0.1:1"])
    assert "its own replica repairs" in world.pipelines.handle(request).detail
    assert not world.pipelines.copies.is_here(CONTAINER)
    for wrong in (Forwarded(by="dn2", request=b"?"), object(), opening().members[0]):
        with pytest.raises(BlockError) as caught:
            world.pipelines.handle(wrong)
        assert caught.value.code == codes.INVALID_REQUEST
    assert world.pipelines.forwarded == 0
    world.pipelines.close_pipeline(ClosePipeline(partition=PARTITION, generation=1), WAIT_S)
    assert pipeline.is_closed()


@pytest.mark.parametrize("known", [True, False])
def test_a_container_is_closed_in_the_store_whatever_its_pipeline_says(world: World, known: bool) -> None:
    world.leading()
    container_id = CONTAINER if known else CONTAINER + 1
    with world.store.open_writer(container_id, 1, 0, CELL) as writer:
        writer.write(0, bytes(CELL))
        writer.flush()
    world.pipelines.close_container(container_id)
    eventually(lambda: all(world.closed()))


# ------------------------------------------------------------------------------------------------ whose request it is

STREAM = OpenStream(
    container_id=CONTAINER, local_id=1, partition=PARTITION, offset=0, bytes_per_checksum=CELL, window_bytes=1, routes=[],
)  # fmt: skip
TOGETHER = OpenBlocks(partition=PARTITION, bytes_per_checksum=CELL, watch_timeout_ms=0, blocks=[], routes=[])
CLOSING = CloseContainer(partition=PARTITION, container_id=CONTAINER)
OF_THE_PIPELINE = {
    "a stream": STREAM,
    "blocks together": WriteBlocks(opening=encode(TOGETHER), data=b""),
    "sent on": Forwarded(by="dn2", request=encode(CLOSING)),
    "for a member": WatchBlocks(partition=PARTITION, bcs_id=0, timeout_ms=0, blocks=[]),
}


@pytest.mark.parametrize("request_", OF_THE_PIPELINE.values(), ids=OF_THE_PIPELINE)
def test_what_datanodes_send_to_each_other_is_of_the_pipeline_that_it_names(world: World, request_: Any) -> None:
    world.start()
    with pytest.raises(BlockError) as caught:
        world.pipelines.members_for(request_)
    assert caught.value.code == codes.NO_SUCH_PIPELINE
    world.pipelines.handle(opening())
    assert world.pipelines.members_for(request_) == (PARTITION, ["dn1"])


@pytest.mark.parametrize(
    "request_", [Accepted(detail=""), Forwarded(by="dn2", request=encode(Accepted(detail="")))], ids=["", "sent on"]
)
def test_what_names_no_pipeline_is_of_none(world: World, request_: Any) -> None:
    with pytest.raises(BlockError, match="Accepted") as caught:
        world.pipelines.members_for(request_)
    assert caught.value.code == codes.INVALID_REQUEST


ELSEWHERE = CONTAINER + 1
"""A container that cannot lie on the partition."""
IMPOSSIBLE = {
    "watch of no block": WatchBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=0, length=0, bcs_id=0, timeout_ms=0
    ),
    "watch of nothing": WatchBlocks(partition=PARTITION, bcs_id=0, timeout_ms=0, blocks=[]),
    "no block": GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=0),
    "list of a container elsewhere": ListContainer(partition=PARTITION, container_id=ELSEWHERE),
    "copy of a container elsewhere": FetchContainer(partition=PARTITION, container_id=ELSEWHERE, sources=["h:1"]),
    "deletion of a block elsewhere": DeleteBlocks(
        partition=PARTITION + 2, blocks=[BlockId(container_id=CONTAINER, local_id=1)]
    ),
}


@pytest.mark.parametrize("request_", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_request_that_no_block_or_container_can_answer_is_refused(world: World, request_: Any) -> None:
    world.leading()
    with pytest.raises(BlockError) as caught:
        world.pipelines.handle(request_)
    assert caught.value.code == codes.INVALID_REQUEST


# -------------------------------------------------------------------------------------------- what is applied or found


def test_a_scrub_barrier_alone_has_the_blocks_read(world: World, log: MemoryLog) -> None:
    pipeline = world.leading()
    world.pipelines.stop()
    barriers = [record for entry in log.entries if isinstance(record := decode(entry.value), Barrier)]
    assert world.told.count(("scanned", PARTITION)) == sum(barrier.scrub for barrier in barriers) > 0
    world.told.clear()
    outcome: Any = SimpleNamespace(record=replace(barriers[0], scrub=False), position=pipeline.replica.position)
    world.pipelines.on_record(pipeline.replica, outcome)
    assert not world.told
    outcome.record = replace(barriers[0], scrub=True)
    world.pipelines.on_record(pipeline.replica, outcome)
    assert world.told == [("scanned", PARTITION)]


def test_who_waits_for_a_record_is_told_when_it_is_applied(world: World) -> None:
    pipeline = world.leading()
    began, seen = threading.Event(), threading.Event()

    def wait() -> None:
        with pipeline.changed:
            began.set()
            if pipeline.changed.wait(20):
                seen.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    began.wait(20)
    world.pipelines.handle(CLOSING)
    waiting.join()
    assert seen.is_set()


def test_bad_cells_of_a_member_are_fetched_and_those_of_a_copy_are_damage(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = world.leading()
    fetched: list[Any] = []
    damaged: list[Any] = []
    monkeypatch.setattr(world.pipelines.verifier, "repair", lambda *given: fetched.append(given))
    monkeypatch.setattr(world.pipelines.upkeep, "damaged", lambda *given: damaged.append(given))
    world.pipelines.repair(PARTITION, CONTAINER, 1, [0, 2])
    assert fetched == [(pipeline, KEY, 0), (pipeline, KEY, 2)]
    world.pipelines.table.expect(PARTITION + 1)
    world.pipelines.repair(PARTITION + 1, CONTAINER + 1, 1, [0])
    assert not damaged, "its rows are being installed"
    world.pipelines.repair(PARTITION + 2, CONTAINER + 2, 1, [0, 2])
    assert damaged == [(CONTAINER + 2, 1, f"the copy of block {CONTAINER + 2}/1 here is damaged in 2 cells")]
    assert len(fetched) == 2


def test_a_pipeline_that_is_installed_is_reported_beside_the_others(world: World) -> None:
    world.leading()
    waiting: Any = SimpleNamespace(partition=PARTITION + 1, wants=SimpleNamespace(why="its log is trimmed"))
    world.pipelines.installs.add(waiting)
    assert [(one.partition, one.healthy) for one in world.pipelines.reports()] == [(PARTITION, True), (4, False)]


def test_bytes_that_were_fetched_are_those_of_members_and_of_copies(world: World) -> None:
    assert world.pipelines.fetched_bytes == 0
    world.pipelines.verifier.fetched_bytes = 5
    world.pipelines.upkeep._actions.fetched_bytes = 2
    assert world.pipelines.fetched_bytes == 7


def test_after_a_restart_the_known_pipelines_are_followed_again(tmp_path: Path, log: MemoryLog) -> None:
    first = World(tmp_path, log)
    first.leading()
    first.write()
    first.end()
    again = World(tmp_path, log)
    assert not again.told, "nothing is followed before the start"
    again.start()
    assert again.told[0] == PARTITION
    pipeline = again.pipelines.table.member(PARTITION)
    eventually(lambda: pipeline.loop.leading)
    found = again.pipelines.handle(GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=1))
    assert found.stored_length == CELL
    again.end()


def test_a_datanode_that_stops_waits_for_its_leaders(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = world.leading()
    thread = pipeline._thread
    world.pipelines.stop()
    assert not thread.is_alive()


def test_a_stream_is_checked_as_the_pipeline_is(world: World) -> None:
    world.leading()
    world.pipelines.check_stream(PARTITION, CONTAINER, 1)
    world.pipelines.handle(CLOSING)
    with pytest.raises(BlockError) as caught:
        world.pipelines.check_stream(PARTITION, CONTAINER, 1)
    assert caught.value.code == codes.CONTAINER_CLOSED


def test_a_container_that_need_not_be_closed_hides_no_other(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.LOOKS_PER_SIZE", 10**9)
    world = World(tmp_path, log, container_bytes=2 * CELL)
    pipeline = world.leading()
    for number, cells in enumerate((1, 2, 1, 2)):
        with world.store.open_writer(CONTAINER + 256 * number, 1, 0, CELL) as writer:
            writer.write(0, bytes(cells * CELL))
            writer.flush()
    asked: list[int] = []
    pipeline.proposals.submit = lambda request: asked.append(request.container_id)
    world.pipelines._close_full_containers()
    assert asked == [CONTAINER + 256, CONTAINER + 3 * 256]
    world.end()
