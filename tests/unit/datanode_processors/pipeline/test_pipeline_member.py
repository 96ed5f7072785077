"""A pipeline on one of its members: real rows and a real leader's loop on a log in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.chunk_store import ChunkStore
from datanode_processors.pipeline.core.block_service import LogPipelineBase
from datanode_processors.pipeline.core.block_tables import DN_FAMILIES
from datanode_processors.pipeline.core.request_checks import MAX_CHUNK_BYTES
from datanode_processors.pipeline.pipeline import Pipeline, folder_of
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import StoreFailure, WrongCluster
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.tables.memory import ManualClock, MemoryLog
from replicated_db.shell.database.host import DatabaseHost
from replicated_db.shell.leader_loop import QUIET_MS
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key
from schemas.codecs.codec import decode
from schemas.records.datanode import (
    BlockId,
    BlockLength,
    ClosePipeline,
    DeleteBlocks,
    Member,
    OpenPipeline,
    PutBlock,
    PutBlocks,
    WatchBlock,
    WatchBlocks,
    WholeBlock,
    WriteChunk,
)
from schemas.records.log import DigestBase, Members, Tick
from tests.support.datanodes.checksums import checksums_of
from tests.support.datanodes.hosts import LocalHost
from tests.support.local.waiting import deadlines_by, eventually
from tests.support.replicated.kit import START_MS

PARTITION, CONTAINER, LOCAL = 3, 256 + 3, 7
CELL = 512
KEY = block_key(CONTAINER, LOCAL)
WATCHDOG_MS = 3_000
LOOK_MS = 500
WAIT_S = 30.0
MODULE = "datanode_processors.pipeline.pipeline"


def member_replica(host: DatabaseHost, config: DatanodeConfig, blocks: BlockStore) -> Replica:
    folder = folder_of(config.data_dir, PARTITION)
    store = partial(ChunkStore, folder, DN_FAMILIES.names, blocks)
    return host.place(PARTITION, folder, DN_FAMILIES, store).make()


class World:
    """Members of one pipeline on one log, each with its own rows."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(now_ms=START_MS)
        self.log = MemoryLog(self.clock)
        self.folder = folder
        self.notes: list[str] = []
        self.fatal: list[BaseException] = []
        self.wanted: list[bytes] = []
        self.made: list[Pipeline] = []

    def member(self, name: str, *, generation: int = 1) -> Pipeline:
        config = DatanodeConfig(
            node=name, cluster="test", host="127.0.0.1", port=int(name[2:]), http_port=0, bootstrap_servers="",
            data_dir=self.folder / name, pipeline_watchdog_ms=WATCHDOG_MS, barrier_interval_ms=0, datanode_scrub_interval_ms=0,
        )  # fmt: skip
        members = [
            Member(datanode=one, address=f"127.0.0.1:{one[2:]}", http_address="", rack="/r") for one in ("dn1", "dn2")
        ]
        opened = OpenPipeline(
            pipeline="pipeline-3", partition=PARTITION, generation=generation, members=members
        )  # fmt: skip
        blocks = BlockStore(config.data_dir)
        host = LocalHost(config, self.log, clock=self.clock, note=self.notes.append, fatal=self.fatal.append)
        made = Pipeline(
            opened, member_replica(host, config, blocks), self.log, config, blocks, host,
            lambda _, key: self.wanted.append(key),
        )  # fmt: skip
        self.made.append(made)
        return made

    def leader(self) -> Pipeline:
        made = self.member("dn1")
        made.look()
        eventually(lambda: made.loop.leading and made.generation == 1, timeout_s=WAIT_S)
        return made

    def look(self, pipeline: Pipeline, ms: int) -> None:
        """Have it look some times a second for so long."""
        for _ in range(ms // LOOK_MS):
            self.clock.advance(LOOK_MS)
            pipeline.look()

    def feed(self, pipeline: Pipeline) -> None:
        """Have a member read the log to its end."""
        for entry in self.log.entries[pipeline.replica.read_offset + 1 :]:
            pipeline.replica.offer(entry.offset, entry.value)
        pipeline.on_applied()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(f"{MODULE}.RETRY_S", 0.0)
    monkeypatch.setattr(f"{MODULE}.BEHIND_WAIT_S", 0.0)
    yield made
    for pipeline in made.made:
        pipeline.stop()
        pipeline.join(WAIT_S)
        pipeline.database.close()


def put(length: int) -> PutBlock:
    return PutBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=LOCAL, length=length, bytes_per_checksum=CELL,
        checksums=checksums_of(bytes(length), CELL), wait_effective=True,
    )  # fmt: skip


def watch(length: int, *, bcs_id: int = 0, timeout_ms: int = 0) -> WatchBlock:
    return WatchBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=LOCAL, length=length, bcs_id=bcs_id, timeout_ms=timeout_ms
    )


def test_a_member_that_has_read_nothing(world: World) -> None:
    pipeline = world.member("dn2")
    report, status = pipeline.report(), pipeline.status()
    assert (report.partition, report.generation, report.leading, report.applied_index) == (PARTITION, 0, False, 0)
    assert (report.healthy, report.fault) == (True, "")
    assert (status["state"], status["role"], status["leader"], status["flagged"]) == ("OPENING", "follower", "", False)
    assert (status["unhealthy_blocks"], status["silence_ms"], status["records_applied"]) == (0, 0, 0)
    assert (status["pipeline"], status["shard"], status["members"]) == ("pipeline-3", PARTITION, ["dn1", "dn2"])
    assert pipeline.leader_address() == ""
    assert pipeline.address_of("dn1") == "127.0.0.1:1"
    assert pipeline.address_of("dn9") == ""
    assert not pipeline.is_closed()
    assert folder_of(world.folder / "dn2", PARTITION).is_dir()


def test_the_first_member_leads_at_once_and_opens_the_pipeline(world: World) -> None:
    pipeline = world.leader()
    assert pipeline.leader_address() == "127.0.0.1:1"
    report, status = pipeline.report(), pipeline.status()
    assert (report.generation, report.leading, report.healthy) == (1, True, True)
    assert report.applied_index == pipeline.replica.position.index > 0
    assert (status["state"], status["role"], status["leader"]) == ("OPEN", "leader", "dn1")
    answer = pipeline.proposals.submit(put(1000)).result(WAIT_S)
    assert answer.length == 1000
    row = pipeline.block(CONTAINER, LOCAL)
    assert row is not None
    assert (row.length, row.bcs_id) == (1000, answer.bcs_id)
    assert not pipeline.is_closed()
    pipeline.proposals.submit(ClosePipeline(partition=PARTITION, generation=1)).result(WAIT_S)
    assert pipeline.is_closed()


def test_a_chunk_of_the_largest_size_goes_through_the_log(world: World) -> None:
    data = bytes(MAX_CHUNK_BYTES)
    chunk = WriteChunk(
        partition=PARTITION, container_id=CONTAINER, local_id=LOCAL, offset=0, data=data, checksum=crc32c(data)
    )
    pipeline = world.leader()
    assert pipeline.proposals.submit(chunk).result(WAIT_S).bcs_id == pipeline.replica.position.index


def test_a_look_has_the_follower_go_on_where_the_leaders_thread_stands_still(world: World) -> None:
    pipeline = world.member("dn2")
    said: list[bool] = []
    pipeline.loop.on_rest = said.append
    pipeline.loop._let_rest(True)
    world.clock.advance(QUIET_MS + 1)
    pipeline.look()
    assert said == [True, False]


def test_a_pipeline_is_opened_once_and_again_as_a_later_generation(world: World) -> None:
    first = world.leader()
    first.stop()
    first.join(WAIT_S)
    assert any("leadership ended" in note for note in world.notes)
    length = len(world.log.entries)
    again = world.member("dn2")
    world.feed(again)
    assert again._missing_row() is None
    later = world.member("dn3", generation=2)
    world.feed(later)
    assert later._missing_row() is later.opened
    assert len(world.log.entries) == length


def test_an_idle_leader_shows_that_it_lives(world: World) -> None:
    pipeline = world.leader()

    def ticks() -> int:
        return sum(isinstance(decode(entry.value), Tick) for entry in world.log.entries)

    def at_rest() -> bool:
        """Whether the loop has written and applied all that it had to."""
        pipeline.look()
        applied = pipeline.replica.read_offset + 1 == len(world.log.entries)
        return applied and pipeline.status()["silence_ms"] == 0

    eventually(at_rest)
    world.clock.advance(LOOK_MS)
    pipeline.look()
    time.sleep(0.05)
    assert ticks() == 0, "it has been silent for less than a quarter of the time-out"
    world.clock.advance(LOOK_MS // 2)
    pipeline.look()
    pipeline.look()
    eventually(lambda: ticks() == 1)
    pipeline.proposals.submit(put(10)).result(WAIT_S)
    assert ticks() == 1, "no second one at the same time"
    eventually(at_rest)
    world.look(pipeline, 2 * LOOK_MS)
    eventually(lambda: ticks() == 2)


def test_another_member_claims_after_a_time_out_of_silence(world: World) -> None:
    pipeline = world.member("dn2")
    world.look(pipeline, WATCHDOG_MS - LOOK_MS)
    assert pipeline._thread is None
    world.look(pipeline, LOOK_MS)
    eventually(lambda: pipeline.loop.leading, timeout_s=WAIT_S)
    thread = pipeline._thread
    assert thread is not None
    pipeline.look()
    assert pipeline._thread is thread


def test_a_member_claims_again_once_its_thread_has_ended(world: World) -> None:
    pipeline = world.member("dn1")
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    pipeline._thread = thread
    pipeline.look()
    eventually(lambda: pipeline.loop.leading, timeout_s=WAIT_S)


def test_nobody_claims_who_was_stopped_or_is_flagged_or_leads_already(world: World) -> None:
    stopped = world.member("dn1")
    stopped.stop()
    stopped.look()
    assert stopped._thread is None
    flagged = world.member("dn2")
    evidence: Any = SimpleNamespace(index=5)
    flagged.replica.evidence = evidence
    world.look(flagged, 3 * WATCHDOG_MS)
    assert flagged._thread is None
    report = flagged.report()
    assert (report.healthy, report.fault) == (False, "divergence at index 5")
    assert flagged.status()["flagged"]


def test_a_member_that_has_not_read_all_hears_no_silence(world: World) -> None:
    world.log.append(b"not read yet")
    pipeline = world.member("dn2")
    assert not pipeline._has_read_all()
    world.look(pipeline, WATCHDOG_MS)
    thread = pipeline._thread
    assert thread is not None
    thread.join(WAIT_S)
    assert pipeline.status()["silence_ms"] == 0
    assert len(world.log.entries) == 1
    assert not world.fatal
    world.look(pipeline, WATCHDOG_MS - LOOK_MS)
    assert pipeline._thread is thread, "as much silence again"


@pytest.mark.parametrize(("error", "fatal"), [(LogUnavailable("no broker"), False), (StoreFailure("disk"), True)])
def test_a_log_that_does_not_answer_is_tried_again_and_a_broken_store_is_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, fatal: bool
) -> None:
    pipeline = world.member("dn1")

    def bounds(_: Any) -> tuple[int, int]:
        raise error

    monkeypatch.setattr(MemoryLog, "bounds", bounds)
    pipeline._lead()
    assert world.fatal == ([error] if fatal else [])
    assert world.notes == ([] if fatal else ["pipeline-3: no broker; trying again"])


def test_a_leader_pauses_before_it_tries_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = world.member("dn1")
    pauses: list[float] = []
    monkeypatch.setattr(f"{MODULE}.RETRY_S", 7.0)
    monkeypatch.setattr(f"{MODULE}.BEHIND_WAIT_S", 3.0)
    monkeypatch.setattr(pipeline._stop, "wait", pauses.append)
    monkeypatch.setattr(pipeline.loop, "lead", lambda _: "deposed")
    pipeline._lead()
    assert pauses == [7.0]
    assert world.notes == ["pipeline-3: leadership ended: deposed"]
    world.log.append(b"not read yet")
    pipeline._lead()
    assert pauses == [7.0, 3.0]


def test_a_thread_that_cannot_be_started_is_noted_and_tried_again_after_as_much_silence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = world.member("dn2")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        world.look(pipeline, WATCHDOG_MS)
    assert world.notes == ["pipeline-3: not led here now: can't start new thread"]
    assert pipeline.status()["silence_ms"] == 0
    world.look(pipeline, WATCHDOG_MS)
    eventually(lambda: pipeline.loop.leading, timeout_s=WAIT_S)


def test_rows_of_another_cluster_are_refused_and_let_go_again(tmp_path: Path, world: World) -> None:
    pipeline = world.leader()
    pipeline.stop()
    pipeline.join(WAIT_S)
    pipeline.database.close()
    config, blocks = pipeline._config, BlockStore(tmp_path / "blocks")
    with pytest.raises(WrongCluster):
        member_replica(LocalHost(replace(config, cluster="other"), world.log), config, blocks)
    member_replica(LocalHost(config, world.log), config, blocks).store.close()


def test_a_closed_store_gives_no_rows(tmp_path: Path, world: World) -> None:
    pipeline = world.member("dn1")
    pipeline.database.close()
    with pytest.raises(StoreFailure):
        pipeline.block(CONTAINER, LOCAL)


def test_a_base_is_logged_in_the_midst_of_writes_and_a_member_knows_it(world: World) -> None:
    pipeline = world.leader()
    answers = [pipeline.proposals.submit(put(length)) for length in (1000, 2000)]
    base = pipeline.proposals.submit(LogPipelineBase(PARTITION))
    answers.append(pipeline.proposals.submit(put(3000)))
    assert base.result(WAIT_S).detail == "a base is logged"
    assert [answer.result(WAIT_S).length for answer in answers] == [1000, 2000, 3000]
    records = [decode(entry.value) for entry in world.log.entries]
    [number] = [number for number, record in enumerate(records) if isinstance(record, DigestBase)]
    assert isinstance(records[number + 1], Members)
    assert records[number + 1].replicas == ["dn1", "dn2"]
    other = world.member("dn2")
    world.feed(other)
    assert other.replica.bases == pipeline.replica.bases
    assert [one.offset for one in other.replica.bases] == [number]
    assert other.replica.evidence is None


# ------------------------------------------------------------------------------------------- verified and watched


def committed(world: World, length: int = 1000) -> tuple[Pipeline, int]:
    """Return a leader with a block, and the block's index."""
    pipeline = world.leader()
    index: int = pipeline.proposals.submit(put(length)).result(WAIT_S).bcs_id
    return pipeline, index


def test_a_watch_is_satisfied_by_what_is_applied_committed_and_verified(world: World) -> None:
    pipeline, index = committed(world)
    assert not pipeline.watch(watch(1000, bcs_id=index)).satisfied
    pipeline.on_verified(KEY, 999)
    assert not pipeline.watch(watch(1000, bcs_id=index)).satisfied
    assert pipeline.watch(watch(999, bcs_id=index)).satisfied
    pipeline.on_verified(KEY, 1000)
    found = pipeline.watch(watch(1000, bcs_id=index))
    assert (found.datanode, found.bcs_id, found.length, found.satisfied) == ("dn1", index, 1000, True)
    assert not pipeline.watch(watch(1000, bcs_id=index + 1)).satisfied
    assert not pipeline.watch(watch(1001)).satisfied
    pipeline.on_verified(KEY, 500)
    assert pipeline.watch(watch(1000)).satisfied, "an older length takes nothing back"
    pipeline.on_failed(KEY, "damaged")
    assert not pipeline.watch(watch(1)).satisfied


def test_a_watch_waits_for_what_may_still_come_and_has_it_verified(world: World) -> None:
    pipeline, index = committed(world)
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(pipeline.watch(watch(1000, timeout_ms=60_000))))
    waiting.start()
    eventually(lambda: world.wanted == [KEY])
    pipeline.on_verified(KEY, 1000)
    waiting.join(WAIT_S / 2)
    assert answers
    assert answers[0].satisfied
    ahead = threading.Thread(
        target=lambda: answers.append(pipeline.watch(watch(1000, bcs_id=index + 1, timeout_ms=60_000)))
    )
    ahead.start()
    pipeline.proposals.submit(put(2000)).result(WAIT_S)
    pipeline.on_applied()
    ahead.join(WAIT_S / 2)
    assert answers[1].satisfied
    assert answers[1].length == 2000


@pytest.mark.parametrize("by_index", [False, True])
def test_a_watch_has_what_is_committed_verified_as_long_as_there_is_time(
    world: World, monkeypatch: pytest.MonkeyPatch, by_index: bool
) -> None:
    pipeline, index = committed(world)
    pipeline._wanted = lambda _, key: pipeline.on_verified(key, 1000)
    monkeypatch.setattr(f"{MODULE}.Deadline", deadlines_by(lambda: 5.0))
    assert not pipeline.watch(watch(1000, bcs_id=index, timeout_ms=0)).satisfied
    assert pipeline.watch(watch(1000, bcs_id=index if by_index else 0, timeout_ms=1)).satisfied


def test_a_divergence_is_reported_before_a_damaged_block(world: World) -> None:
    pipeline = world.member("dn2")
    evidence: Any = SimpleNamespace(index=5)
    pipeline.replica.evidence = evidence
    pipeline.on_failed(KEY, "bytes are missing")
    assert pipeline.report().fault == "divergence at index 5"


def watch_all(*blocks: tuple[int, int], bcs_id: int = 0, timeout_ms: int = 0) -> WatchBlocks:
    lengths = [BlockLength(container_id=CONTAINER, local_id=local, length=length) for local, length in blocks]
    return WatchBlocks(partition=PARTITION, bcs_id=bcs_id, timeout_ms=timeout_ms, blocks=lengths)


def put_all(*blocks: tuple[int, int]) -> PutBlocks:
    return PutBlocks(
        partition=PARTITION, bytes_per_checksum=CELL,
        blocks=[
            WholeBlock(
                container_id=CONTAINER, local_id=local, length=length, checksums=checksums_of(bytes(length), CELL)
            )
            for local, length in blocks
        ],
    )  # fmt: skip


def test_a_watch_of_several_blocks_is_satisfied_once_all_are(world: World) -> None:
    pipeline = world.leader()
    answer = pipeline.proposals.submit(put_all((1, 100), (2, 700))).result(WAIT_S)
    index = answer.outcomes[0].bcs_id
    assert [(one.code, one.bcs_id) for one in answer.outcomes] == [("", index)] * 2
    both = watch_all((1, 100), (2, 700), bcs_id=index)
    assert not pipeline.watch_all(both).satisfied
    pipeline.on_verified(block_key(CONTAINER, 1), 100)
    pipeline.on_verified(block_key(CONTAINER, 2), 699)
    assert not pipeline.watch_all(both).satisfied
    assert not pipeline.watch_all(watch_all((1, 100), bcs_id=index + 1)).satisfied
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(pipeline.watch_all(replace(both, timeout_ms=60_000))))
    waiting.start()
    pipeline.on_verified(block_key(CONTAINER, 2), 700)
    waiting.join(WAIT_S)
    assert (answers[0].satisfied, answers[0].datanode) == (True, "dn1")


def test_a_watch_of_several_blocks_looks_whether_it_makes_sense_to_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.WATCH_STEP_S", 0.05)
    pipeline = world.leader()
    index = pipeline.proposals.submit(put_all((1, 100), (2, 700))).result(WAIT_S).outcomes[0].bcs_id
    # Longer than what is committed: it will not come by waiting for that entry.
    assert not pipeline.watch_all(watch_all((1, 101), bcs_id=index, timeout_ms=600_000)).satisfied
    world.wanted.clear()
    assert not pipeline.watch_all(watch_all((1, 100), (2, 700), bcs_id=index, timeout_ms=300)).satisfied
    assert {block_key(CONTAINER, 1), block_key(CONTAINER, 2)} <= set(world.wanted)
    pipeline.proposals.submit(
        DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=1)])
    ).result(WAIT_S)
    with pytest.raises(BlockError) as caught:
        pipeline.watch_all(watch_all((1, 100), bcs_id=index, timeout_ms=600_000))
    assert caught.value.code == codes.BLOCK_DELETED


def no_wait(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a watch fail that waits, and time stand still."""

    def wait(_: Any) -> bool:
        raise AssertionError("it waits")

    monkeypatch.setattr(pipeline.changed, "wait", wait)
    monkeypatch.setattr(f"{MODULE}.Deadline", deadlines_by(lambda: 5.0))


@pytest.mark.parametrize("timeout_ms", [0, -1, -600_000])
def test_a_watch_without_time_waits_for_nothing(world: World, monkeypatch: pytest.MonkeyPatch, timeout_ms: int) -> None:
    pipeline = world.member("dn2")
    no_wait(pipeline, monkeypatch)
    watched = pipeline.watch(watch(1, timeout_ms=timeout_ms))
    assert (watched.datanode, watched.bcs_id, watched.length, watched.satisfied) == ("dn2", 0, 0, False)
    found = pipeline.watch_all(watch_all((1, 100), timeout_ms=timeout_ms))
    assert (found.datanode, found.bcs_id, found.satisfied) == ("dn2", 0, False)


def test_a_watch_waits_no_longer_than_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = world.member("dn2")
    monkeypatch.setattr(f"{MODULE}.MAX_WATCH_MS", 0)
    no_wait(pipeline, monkeypatch)
    assert not pipeline.watch(watch(1, timeout_ms=600_000)).satisfied
    assert not pipeline.watch_all(watch_all((1, 100), timeout_ms=600_000)).satisfied


def test_a_watch_waits_as_long_as_it_was_asked_to(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = world.member("dn2")
    now = [5.0]
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        now[0] += seconds
        return False

    monkeypatch.setattr(pipeline.changed, "wait", wait)
    monkeypatch.setattr(f"{MODULE}.Deadline", deadlines_by(lambda: now[0]))
    pipeline.watch(watch(1, timeout_ms=2_500))
    assert waits == [1.0, 1.0, 0.5]
    waits.clear()
    pipeline.watch_all(watch_all((1, 100), bcs_id=9, timeout_ms=2_500))
    assert waits == [1.0, 1.0, 0.5]


def test_a_watch_of_several_blocks_waits_for_an_entry_that_is_not_applied_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.WATCH_STEP_S", 0.005)
    pipeline = world.leader()
    index = pipeline.replica.position.index
    looks: list[bool] = []
    real = pipeline._may_come

    def may_come(bcs_id: int, wanted: dict[bytes, int]) -> bool:
        looks.append(real(bcs_id, wanted))
        return looks[-1]

    monkeypatch.setattr(pipeline, "_may_come", may_come)
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(pipeline.watch_all(watch_all((1, 100), bcs_id=index + 1, timeout_ms=60_000)))
    )
    asking.start()
    eventually(lambda: looks)
    assert set(looks) == {True}, "the block may come with that entry"
    assert not world.wanted, "there is nothing to verify yet"
    pipeline.proposals.submit(put_all((1, 100))).result(WAIT_S)
    eventually(lambda: world.wanted)
    pipeline.on_verified(block_key(CONTAINER, 1), 100)
    asking.join(WAIT_S)
    assert answers[0].satisfied


def test_a_watch_of_several_blocks_ends_with_its_member(world: World) -> None:
    pipeline, index = committed(world)
    found: list[Any] = []
    asking = threading.Thread(
        target=lambda: found.append(pipeline.watch_all(watch_all((LOCAL, 1000), bcs_id=index, timeout_ms=600_000)))
    )
    asking.start()
    pipeline.stop()
    pipeline.on_applied()
    asking.join(WAIT_S / 2)
    assert [one.satisfied for one in found] == [False]


def test_a_watch_ends_at_once_when_the_entry_is_not_the_one_that_was_promised(world: World) -> None:
    pipeline, index = committed(world)
    found: list[Any] = []
    asking = threading.Thread(
        target=lambda: found.append(pipeline.watch(watch(1001, bcs_id=index, timeout_ms=600_000)))
    )
    asking.start()
    asking.join(WAIT_S / 2)
    assert found
    assert (found[0].satisfied, found[0].length) == (False, 1000)


def test_a_watch_ends_with_its_member(world: World) -> None:
    pipeline, _ = committed(world)
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(pipeline.watch(watch(1001, timeout_ms=600_000))))
    asking.start()
    pipeline.stop()
    pipeline.on_applied()
    asking.join(WAIT_S / 2)
    assert found
    assert not found[0].satisfied


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("what", ["verified", "applied", "deleted"])
def test_who_watches_is_told_at_once(world: World, monkeypatch: pytest.MonkeyPatch, what: str, several: bool) -> None:
    pipeline, index = committed(world)
    monkeypatch.setattr(f"{MODULE}.WATCH_STEP_S", 600.0)
    pipeline._wanted = lambda *_: None
    ahead = index + (what == "applied")
    if what == "applied":
        pipeline.on_verified(KEY, 1000)
    heard: list[Any] = []

    def ask() -> None:
        try:
            if several:
                heard.append(pipeline.watch_all(watch_all((LOCAL, 1000), bcs_id=ahead, timeout_ms=600_000)))
            else:
                heard.append(pipeline.watch(watch(1000, bcs_id=ahead, timeout_ms=600_000)))
        except BlockError as error:
            heard.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    eventually(lambda: pipeline.changed._waiters)  # type: ignore[attr-defined]
    if what == "verified":
        pipeline.on_verified(KEY, 1000)
    elif what == "applied":
        pipeline.proposals.submit(put_all((LOCAL + 1, 10))).result(WAIT_S)
        pipeline.on_applied()
    else:
        deletion = DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=LOCAL)])
        pipeline.proposals.submit(deletion).result(WAIT_S)
        pipeline.forget(KEY)
        if several:  # it looks whether it makes sense to wait once a second
            pipeline.stop()
            pipeline.on_applied()
    asking.join(WAIT_S / 2)
    assert len(heard) == 1
    if what != "deleted":
        assert heard[0].satisfied
    elif not several:
        assert heard[0].code == codes.BLOCK_DELETED


def test_a_watch_of_a_deleted_block_is_refused(world: World) -> None:
    pipeline, _ = committed(world)
    pipeline.proposals.submit(
        DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=LOCAL)])
    ).result(WAIT_S)
    with pytest.raises(BlockError) as caught:
        pipeline.watch(watch(1))
    assert caught.value.code == codes.BLOCK_DELETED


def test_what_is_unhealthy_is_reported_until_it_is_verified_or_deleted(world: World) -> None:
    pipeline = world.member("dn1")
    pipeline.on_failed(KEY, "bytes are missing")
    report = pipeline.report()
    assert (report.healthy, report.fault) == (False, "bytes are missing")
    assert pipeline.status()["unhealthy_blocks"] == 1
    pipeline.on_verified(KEY, 10)
    assert pipeline.report().healthy
    pipeline.on_failed(KEY, "again")
    pipeline.forget(KEY)
    assert pipeline.report().healthy
    pipeline.on_verified(KEY, 10)
    pipeline.forget(KEY)
    assert KEY not in pipeline._verified


def test_the_blocks_verified_last_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.MAX_VERIFIED", 2)
    pipeline = world.member("dn1")
    for key in (b"a", b"b", b"a", b"c"):
        pipeline.on_verified(key, 1)
    assert list(pipeline._verified) == [b"a", b"c"]
