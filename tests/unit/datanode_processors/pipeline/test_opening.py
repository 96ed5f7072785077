"""Opening pipelines on a member: real rows, stores and registry, on a log in memory that may not answer."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.member_registry import PipelineState
from datanode_processors.pipeline.opening import PipelineOpening
from datanode_processors.pipeline.pipeline import Pipeline, folder_of
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.pipeline.registry import REGISTRY, read_registry, write_registry
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import BrokenLog, StopProcess
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.tables.memory import ManualClock, MemoryLog
from replicated_db.shell.bootstrap.opening import ReplicaToOpen, WantsCheckpoint, look_at
from schemas import stream_errors as codes
from schemas.records.datanode import Member, OpenPipeline, PipelineRow
from tests.support.datanodes.hosts import LocalHost

PARTITION = 3
PIPELINE = "datanode_processors.pipeline"
OPENING = f"{PIPELINE}.opening"


class World:
    """One datanode; ``failing`` is raised when a replica is held against its log."""

    def __init__(self, folder: Path) -> None:
        self.log = MemoryLog(ManualClock())
        self.folder = folder
        self.failing: BaseException | None = None
        self.told: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Have the process begin anew."""
        self.config = DatanodeConfig(
            node="dn1", cluster="test", host="127.0.0.1", port=1, http_port=0, bootstrap_servers="",
            data_dir=self.folder,
        )  # fmt: skip
        self.table = PipelineTable("dn1")
        self.host = LocalHost(self.config, self.log, clock=ManualClock())
        self.opening = PipelineOpening(
            self.config, BlockStore(self.folder), self.host, self.table,
            opened=lambda: self.told.append("opened"), wanted=lambda *_: None,
            added=lambda pipeline: self.told.append(f"added {pipeline.partition}"),
        )  # fmt: skip
        self.opening.follow = lambda partition: self.told.append(f"follow {partition}")

    def look_at(self, place: ReplicaToOpen, records: int, note: Any) -> Replica | WantsCheckpoint:
        if self.failing is not None:
            raise self.failing
        return look_at(place, records, note)

    def open(self, request: OpenPipeline) -> Pipeline:
        pipeline = self.opening.open(request)
        assert pipeline is not None
        return pipeline

    def listed(self) -> list[OpenPipeline]:
        return read_registry(self.folder / REGISTRY)

    def end(self) -> None:
        self.host.close_databases()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path / "dn1")
    monkeypatch.setattr(f"{OPENING}.look_at", made.look_at)
    made.opening.open_known()
    yield made
    made.end()


def request(generation: int = 1, members: tuple[str, ...] = ("dn1", "dn2"), port: int = 1) -> OpenPipeline:
    return OpenPipeline(
        pipeline="pipeline-3", partition=PARTITION, generation=generation,
        members=[Member(datanode=one, address=f"127.0.0.1:{port}", http_address="", rack="/r") for one in members],
    )  # fmt: skip


def row(generation: int, state: str) -> PipelineRow:
    return PipelineRow(
        pipeline="pipeline-3", partition=PARTITION, generation=generation, state=state, members=[], opened_at_ms=0
    )


def test_a_pipeline_is_announced_opened_followed_and_in_the_registry(world: World) -> None:
    pipeline = world.open(request())
    assert world.told == ["opened", "added 3", "follow 3"]
    assert world.table.all() == [pipeline]
    assert (pipeline.partition, pipeline.opened) == (PARTITION, request())
    assert world.host.replicas == {PARTITION: pipeline.replica}
    assert world.host.loops == {PARTITION: pipeline.loop}
    assert world.host.databases == {PARTITION: pipeline.database}
    assert world.listed() == [request()]
    assert folder_of(world.folder, PARTITION).is_dir()
    assert world.opening.open(request()) is pipeline
    assert world.told == ["opened", "added 3", "follow 3"], "nothing is to be done again"


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        (LogUnavailable("no broker"), "pipeline-3: no broker"),
        (BrokenLog("another record"), "pipeline-3 is not opened here: .*another record"),
    ],
)
def test_an_opening_that_fails_leaves_nothing_and_the_next_request_begins_anew(
    world: World, failing: Exception, words: str
) -> None:
    world.failing = failing
    with pytest.raises(BlockError, match=words) as caught:
        world.opening.open(request())
    assert caught.value.code == codes.FAILED
    assert world.opening._registry.state_of(PARTITION) is PipelineState.ABSENT
    assert (world.table.all(), world.listed(), world.host.replicas) == ([], [], {})
    world.failing = None
    other = request(members=("dn1", "dn3"))
    assert world.open(other).members == ["dn1", "dn3"], "what failed binds nobody"
    assert world.listed() == [other]
    assert world.told == ["opened", "opened", "added 3", "follow 3"]


def test_what_is_no_failure_of_the_log_goes_through_and_is_given_up_too(world: World) -> None:
    world.failing = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        world.opening.open(request())
    assert world.opening._registry.state_of(PARTITION) is PipelineState.ABSENT


def test_a_registry_that_cannot_be_written_is_written_by_the_next_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(f"{OPENING}.write_registry", full)
        with pytest.raises(OSError, match="No space"):
            world.opening.open(request())
    assert world.listed() == []
    assert world.opening._registry.state_of(PARTITION) is PipelineState.FOLLOWED
    world.opening.open(request())
    assert world.listed() == [request()]
    assert world.told == ["opened", "added 3", "follow 3"], "it is open already"


def test_addresses_and_later_generations_are_taken_over(world: World) -> None:
    pipeline = world.open(request())
    world.opening.on_row(row(1, "OPEN"))
    world.told.clear()
    assert world.open(request(port=2)) is pipeline
    assert world.told == []
    assert pipeline.opened == request(port=2)
    assert world.listed() == [request(port=2)]
    world.opening.open(request(generation=2))
    assert world.told == ["opened"]
    assert world.opening._registry.state_of(PARTITION) is PipelineState.REOPENING
    assert world.listed() == [request(generation=2)]


def test_a_closed_generation_is_not_for_the_log(world: World) -> None:
    pipeline = world.open(request())
    assert world.opening.is_for_the_log(pipeline, request())
    world.opening.on_row(row(1, "OPEN"))
    assert world.opening.is_for_the_log(pipeline, request())
    world.opening.on_row(row(1, "CLOSED"))
    assert world.opening._registry.state_of(PARTITION) is PipelineState.CLOSED
    assert not world.opening.is_for_the_log(pipeline, request())


@pytest.mark.parametrize("members", [("dn2", "dn3"), ("dn1", "dn1"), ()])
def test_a_request_that_is_not_for_this_datanode_or_illegal_is_refused(world: World, members: tuple[str, ...]) -> None:
    with pytest.raises(BlockError) as caught:
        world.opening.open(request(members=members))
    assert caught.value.code == codes.INVALID_REQUEST
    assert (world.told, world.listed()) == ([], [])


def test_a_restart_opens_what_the_registry_has(world: World) -> None:
    world.opening.open(request())
    world.end()
    world.told.clear()
    world.begin()
    world.opening.open_known()
    assert world.told == ["added 3"]
    assert world.table.member(PARTITION).opened == request()
    assert world.opening._registry.state_of(PARTITION) is PipelineState.FOLLOWED
    world.opening.open(request())
    assert world.told == ["added 3"], "it is in the registry"
    with pytest.raises(BlockError, match="here"):
        world.opening.open(replace(request(), pipeline="another"))


def test_a_registered_pipeline_that_cannot_be_opened_ends_the_start(world: World) -> None:
    world.opening.open(request())
    world.end()
    world.begin()
    world.failing = BrokenLog("another record")
    with pytest.raises(StopProcess, match="another record"):
        world.opening.open_known()
    assert world.table.all() == []


def test_a_registry_is_whole_on_the_disk_before_it_takes_the_place_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sizes = tmp_path / REGISTRY, list[int]()
    write_registry(path, [])
    real = os.fsync

    def fsync(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size if stat.S_ISREG(os.fstat(descriptor).st_mode) else -1)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    opened = os.listdir("/proc/self/fd")
    write_registry(path, [request()])
    assert len(os.listdir("/proc/self/fd")) == len(opened), "neither is kept open"
    assert sizes == [path.stat().st_size, -1], "the file, and then its folder"
    assert read_registry(path) == [request()]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"pipelines": 3}', '{"pipelines": [{}]}', '{"pipelines": [{"opened": "?"}]}'],
)  # fmt: skip
def test_what_is_no_registry_is_refused_by_its_name(world: World, text: str) -> None:
    path = world.folder / REGISTRY
    assert read_registry(path) == [], "there is none yet"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path} is no registry of pipelines"):
        read_registry(path)
