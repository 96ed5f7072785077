"""A member whose replica wants a checkpoint: real RocksDB, real HTTP to another member, one log in memory."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from xxhash import xxh3_128_digest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline import installs as installs_module
from datanode_processors.pipeline.core.member_registry import PipelineState
from datanode_processors.pipeline.opening import PipelineOpening
from datanode_processors.pipeline.pipeline import Pipeline, folder_of
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.pipeline.registry import REGISTRY, read_registry
from datanode_processors.trimming import pipeline_trimming
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import LogBounds, LogUnavailable
from replicated_db.core.tables.memory import ManualClock, MemoryLog
from replicated_db.core.trimming.trim_rule import TrimWish
from replicated_db.shell.bootstrap.candidate import candidate_folder
from replicated_db.shell.bootstrap.opening import catch_up as really_catch_up
from replicated_db.shell.bootstrap.transfer_desk import TransferDesk
from replicated_db.shell.trimming import log_trimmer
from replicated_db.shell.trimming.log_trimming import LogTrimming
from replicated_db.shell.trimming.member_calls import MemberCalls
from replicated_db.shell.trimming.verdict_tail import VerdictTail
from schemas import stream_errors as codes
from schemas.codecs.codec import decode
from schemas.column_families import CHUNK_TABLE
from schemas.records.datanode import Member, OpenPipeline, PutBlock, WriteChunk
from schemas.records.log import DigestBase
from tests.support.datanodes.checksums import checksums_of
from tests.support.datanodes.hosts import LocalHost
from tests.support.local.secret import SECRET
from tests.support.local.waiting import eventually
from tests.support.replicated.kit import START_MS
from tests.support.replicated.transfers import serving

PARTITION, CONTAINER = 3, 256 + 3
CELL = 512
WAIT_S = 30.0


class Datanode:
    """The pipelines of one datanode, on a log that all share."""

    def __init__(self, folder: Path, name: str, log: MemoryLog, clock: ManualClock) -> None:
        self.name = name
        self.folder = folder / name
        self.config = DatanodeConfig(
            node=name, cluster="test", host="127.0.0.1", port=1, http_port=2, bootstrap_servers="", secret=SECRET,
            data_dir=self.folder, barrier_interval_ms=0, datanode_scrub_interval_ms=0, bootstrap_records=10**6,
        )  # fmt: skip
        self.blocks = BlockStore(self.folder)
        self.table = PipelineTable(name)
        self.notes: list[str] = []
        self.fatal: list[BaseException] = []
        self.followed: list[int] = []
        self.host = LocalHost(self.config, log, clock=clock, note=self.notes.append, fatal=self.fatal.append)
        self.opening = PipelineOpening(
            self.config, self.blocks, self.host, self.table, opened=lambda: None, wanted=lambda *_: None,
            added=lambda _: None,
        )  # fmt: skip
        self.opening.follow = self.followed.append
        self.opening.open_known()

    @property
    def pipeline(self) -> Pipeline:
        return self.table.member(PARTITION)

    @property
    def database(self) -> Path:
        return folder_of(self.folder, PARTITION)

    def feed(self, log: MemoryLog) -> None:
        replica = self.pipeline.replica
        for entry in log.read(replica.read_offset + 1, 1000, 0):
            replica.offer(entry.offset, entry.value)

    def stop(self) -> None:
        self.opening.installs.close()
        for pipeline in self.table.all():
            pipeline.stop()
            pipeline.join(WAIT_S)
        self.host.close_databases()


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(now_ms=START_MS)
        self.log = MemoryLog(self.clock)
        self.running: list[Datanode] = []

    def datanode(self, name: str) -> Datanode:
        made = Datanode(self.folder, name, self.log, self.clock)
        self.running.append(made)
        return made

    def leader(self) -> Datanode:
        """Return dn1, which leads with two blocks, one of them as chunks."""
        found = self.datanode("dn1")
        found.opening.open(asked("", generation=1))
        found.pipeline.look()
        eventually(lambda: found.pipeline.loop.leading and found.pipeline.generation == 1, timeout_s=WAIT_S)
        write(found, 1)
        data = bytes(CELL)
        chunk = WriteChunk(
            partition=PARTITION, container_id=CONTAINER, local_id=2, offset=0, data=data, checksum=crc32c(data)
        )
        found.pipeline.proposals.submit(chunk).result(WAIT_S)
        return found

    def trim(self) -> None:
        self.log.trim(len(self.log.entries) - 1)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr("datanode_processors.pipeline.installs.PAUSE_S", 0.02)
    monkeypatch.setattr("replicated_db.shell.bootstrap.bootstrap.SEARCH_PAUSE_S", 0.01)
    yield made
    for datanode in made.running:
        datanode.stop()


def asked(address: str, *, generation: int = 1) -> OpenPipeline:
    members = [
        Member(datanode="dn1", address="127.0.0.1:1", http_address=address, rack="/r"),
        Member(datanode="dn2", address="127.0.0.1:2", http_address="", rack="/r"),
    ]
    return OpenPipeline(pipeline="pipeline-3", partition=PARTITION, generation=generation, members=members)


def write(datanode: Datanode, local_id: int) -> None:
    request = PutBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=local_id, length=1000, bytes_per_checksum=CELL,
        checksums=checksums_of(bytes(1000), CELL), wait_effective=True,
    )  # fmt: skip
    datanode.pipeline.proposals.submit(request).result(WAIT_S)


def desk_of(datanode: Datanode) -> TransferDesk:
    return TransferDesk(datanode.name, datanode.host.replicas, lambda _: True, note=datanode.notes.append)


def waits(datanode: Datanode) -> list[dict[str, Any]]:
    return datanode.opening.installs.status()


def assert_same(one: Datanode, other: Datanode) -> None:
    assert one.pipeline.replica.digests == other.pipeline.replica.digests
    assert one.pipeline.replica.position.index == other.pipeline.replica.position.index
    rows = [list(each.pipeline.store.iterate(CHUNK_TABLE, b"")) for each in (one, other)]
    assert rows[0] == rows[1] != []


def test_a_new_disk_gets_rows_and_chunks_of_a_member_and_follows(world: World) -> None:
    leader = world.leader()
    world.trim()
    member = world.datanode("dn2")
    assert member.opening.open(asked("")) is None
    assert [one.pipeline for one in read_registry(member.folder / REGISTRY)] == ["pipeline-3"]
    [report] = member.opening.installs.reports()
    assert (report.partition, report.generation, report.healthy) == (PARTITION, 0, False)
    with pytest.raises(BlockError) as refused:
        _ = member.pipeline
    assert refused.value.code == codes.NOT_COMMITTED
    assert PARTITION in member.table
    assert member.table.all() == []
    with serving(desk_of(leader), "dn1") as peer:
        assert member.opening.open(asked(peer.address)) is None  # the Object Manager tells where the member is
        member.opening.installs.start()
        eventually(lambda: waits(member) == [], timeout_s=WAIT_S)
        eventually(lambda: member.followed == [PARTITION])
    member.feed(world.log)
    assert_same(member, leader)
    write(leader, 5)
    member.feed(world.log)
    assert_same(member, leader)
    assert member.pipeline.status()["installed"]["peer"] == "dn1"
    assert member.host.loops[PARTITION] is member.pipeline.loop
    assert not candidate_folder(member.database).exists()
    assert (member.fatal, leader.fatal) == ([], [])


def test_a_database_that_is_gone_is_installed_at_the_next_start(world: World) -> None:
    leader = world.leader()
    first = world.datanode("dn2")
    with serving(desk_of(leader), "dn1") as peer:
        first.opening.open(asked(peer.address))
        first.feed(world.log)
        first.stop()
        world.running.remove(first)
        shutil.rmtree(first.database)
        world.trim()
        member = world.datanode("dn2")
        [waiting] = waits(member)
        assert (waiting["own_offset"], waiting["shard"]) == (-1, PARTITION)
        member.opening.installs.start()
        eventually(lambda: waits(member) == [], timeout_s=WAIT_S)
        eventually(lambda: member.followed == [PARTITION])
    member.feed(world.log)
    assert_same(member, leader)


def test_nobody_serves_and_a_later_generation_is_asked_for_meanwhile(world: World) -> None:
    leader = world.leader()
    world.trim()
    member = world.datanode("dn2")
    member.opening.open(asked("127.0.0.1:9"))
    member.opening.installs.start()
    eventually(lambda: "asks again" in waits(member)[0]["progress"], timeout_s=WAIT_S)
    told = [note for note in member.notes if "asks again" in note]
    assert len(told) == len(set(told))
    assert member.opening.open(asked("127.0.0.1:9", generation=2)) is None
    with pytest.raises(BlockError, match="generation 2"):
        member.opening.open(asked("127.0.0.1:9"))
    with serving(desk_of(leader), "dn1") as peer:
        member.opening.open(asked(peer.address, generation=2))
        eventually(lambda: waits(member) == [], timeout_s=WAIT_S)
        eventually(lambda: member.followed == [PARTITION])
    assert member.opening._registry.state_of(PARTITION) is PipelineState.REOPENING
    assert member.pipeline.opened.generation == 2


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_datanode_that_stops_while_it_installs_goes_on_at_its_next_start(world: World, after: int) -> None:
    leader = world.leader()
    for number in range(10, 40):
        write(leader, number)
    world.trim()
    member = world.datanode("dn2")
    reached, served = threading.Event(), 0

    async def slow(request: Any, answer: Callable[[Any], Any]) -> Any:
        nonlocal served
        served += "/transfers/" in request.path
        if served >= after:
            reached.set()
        return await answer(request)

    with serving(desk_of(leader), "dn1", slow) as peer:
        member.opening.open(asked(peer.address))
        member.opening.installs.start()
        assert reached.wait(WAIT_S)
        member.stop()
        world.running.remove(member)
        member.opening.installs._thread.join(WAIT_S)
        member.host.close_databases()
        again = world.datanode("dn2")
        again.opening.installs.start()
        eventually(lambda: waits(again) == [], timeout_s=WAIT_S)
        eventually(lambda: PARTITION in again.table and bool(again.table.all()))
    again.feed(world.log)
    assert_same(again, leader)


# Trimmed by the rule.


class Records:
    """What trimming asks of the brokers, of the log in memory."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def bounds(self) -> LogBounds:
        return self._log.bounds()

    def base_logged_at_ms(self, offset: int) -> int | None:
        return START_MS if isinstance(decode(self._log.entries[offset].value), DigestBase) else None

    def hash_at(self, offset: int) -> str:
        return xxh3_128_digest(self._log.entries[offset].value).hex()

    def delete_before(self, offset: int) -> int:
        self._log.trim(offset)
        return offset


def trimming_of(datanode: Datanode) -> LogTrimming:
    return pipeline_trimming(datanode.host, datanode.table)


def test_a_leader_trims_its_pipelines_log_and_a_member_that_comes_back_installs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, member = world.leader(), world.datanode("dn2")
    trimmings = {one.name: trimming_of(one) for one in (leader, member)}
    monkeypatch.setattr(MemberCalls, "ask", lambda _, shard, node, __: trimmings[node].place(shard))
    monkeypatch.setattr(log_trimmer, "KafkaRecords", lambda *_: Records(world.log))
    monkeypatch.setattr(VerdictTail, "place", lambda *_: None)
    with serving(desk_of(leader), "dn1") as peer:
        member.opening.open(asked(peer.address))
        eventually(lambda: leader.pipeline.replica.read_offset + 1 == len(world.log.entries), timeout_s=WAIT_S)
        member.feed(world.log)
        assert trimmings["dn1"].led() == [PARTITION]
        assert trimmings["dn1"].log_base(PARTITION, {}).asked
        eventually(lambda: len(leader.pipeline.replica.bases) == 1, timeout_s=WAIT_S)
        held = trimmings["dn1"].trim(PARTITION, TrimWish(), {})
        assert (held.records, held.held_by.rule) == (0, "base")  # a majority has not read it
        member.feed(world.log)
        done = trimmings["dn1"].trim(PARTITION, TrimWish(), {})
        assert done.records > 0
        assert world.log.bounds().first == done.offset == leader.pipeline.replica.bases[0].offset
        member.stop()
        world.running.remove(member)
        shutil.rmtree(member.database)
        again = world.datanode("dn2")
        again.opening.installs.start()
        eventually(lambda: waits(again) == [] and bool(again.followed), timeout_s=WAIT_S)
    again.feed(world.log)
    assert_same(again, leader)
    assert again.pipeline.replica.bases == leader.pipeline.replica.bases


def test_a_replica_that_is_installed_when_the_datanode_stops_is_let_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = world.leader()
    world.trim()
    member = world.datanode("dn2")
    opened: list[Any] = []

    def catch_up(*given: Any) -> Any:
        replica = really_catch_up(*given)
        opened.append(replica)
        member.opening.installs._stop.set()
        return replica

    monkeypatch.setattr(installs_module, "catch_up", catch_up)
    with serving(desk_of(leader), "dn1") as peer:
        member.opening.open(asked(peer.address))
        [waiting] = member.opening.installs._all()
        member.opening.installs._install(waiting)
    assert len(opened) == 1
    assert member.table.all() == []
    with pytest.raises(StoreFailure):
        opened[0].store.get(CHUNK_TABLE, b"")
    assert len(waits(member)) == 1, "the next start goes on"


def test_what_is_said_of_an_install_is_cut_and_logged_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.leader()
    world.trim()
    member = world.datanode("dn2")
    member.opening.open(asked("127.0.0.1:9"))
    long = "x" * installs_module.MAX_SHOWN_CHARACTERS

    def catch_up(_: Any, __: Any, ___: Any, note: Callable[[str], None]) -> Any:
        note(long + "y")
        note(long + "y")
        raise LogUnavailable("no broker")

    monkeypatch.setattr(installs_module, "catch_up", catch_up)
    [waiting] = member.opening.installs._all()
    before = len(member.notes)
    member.opening.installs._install(waiting)
    assert member.notes[before:] == [
        long + "y", "pipeline-3 waits for a checkpoint, and asks again: no broker",
    ]  # fmt: skip
    assert waits(member)[0]["progress"] == "pipeline-3 waits for a checkpoint, and asks again: no broker"
    member.opening.installs.add(replace(waiting, wants=replace(waiting.wants, why=long + "y")))
    assert waits(member)[0]["progress"] == long


def test_the_other_members_are_asked_once_at_each_turn_where_they_were_last_said_to_be(world: World) -> None:
    world.leader()
    world.trim()
    member = world.datanode("dn2")
    member.opening.open(asked(""))
    policy = member.opening._policy(PARTITION)
    assert policy.peers() == [], "it is not known where the other member is"
    assert (policy.searches, policy.records, policy.secret) == (1, member.config.bootstrap_records, SECRET)
    member.opening.open(asked("127.0.0.1:9"))
    assert [(peer.node, peer.address) for peer in member.opening._policy(PARTITION).peers()] == [("dn1", "127.0.0.1:9")]
    assert not policy.stopping()
    member.opening.installs._stop.set()
    assert policy.stopping()
    [report] = member.opening.installs.reports()
    assert (report.leading, report.applied_index, report.fault) == (
        False, 0, "its replica is being installed from a member",
    )  # fmt: skip
