"""A shard is taken into a repository and restored to another log: real RocksDB, real HTTP, logs in memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from replicated_db.core.applying.identity import Identity
from replicated_db.core.applying.replica import Replica
from replicated_db.core.backup.kept_log import NotKept, RestoreMoment, kept_range
from replicated_db.core.backup.manifest import BackupManifest, ShardBackup
from replicated_db.core.backup.new_log import INDEX_GAP
from replicated_db.core.bootstrap.listing import Content
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.log.position import FLAG_KEY, REQUEST_KEY
from replicated_db.core.ports import Entry
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.core.tables.memory import ManualClock, MemoryLog
from replicated_db.shell.backup import log_files
from replicated_db.shell.backup import repository as repository_module
from replicated_db.shell.backup.log_files import keep_entries, kept_entries
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, opened
from replicated_db.shell.backup.shard_backup import ShardSource, take_shard
from replicated_db.shell.backup.shard_restore import begin_log, move_to_log, put_in_place, restore_rows
from replicated_db.shell.bootstrap import peer_calls
from replicated_db.shell.bootstrap.install import finish
from replicated_db.shell.bootstrap.peer_calls import PeerCalls
from replicated_db.shell.bootstrap.telling import Telling
from replicated_db.shell.rocks import RocksStore
from replicated_db.shell.startup import check_beginning, check_replica
from tests.support.local.secret import SECRET
from tests.support.replicated.kit import CLUSTER, FAMILIES, START_MS, rows
from tests.support.replicated.transfers import Answer, Log, RocksNode, serving

ROWS = 200


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_calls, "RETRY_PAUSE_S", 0.01)


@pytest.fixture
def log() -> Log:
    made = Log()
    made.write(ROWS, checkpoint="snapshot-1")
    return made


@pytest.fixture
def source(log: Log, tmp_path: Path) -> Iterator[RocksNode]:
    node = RocksNode(tmp_path / "n1", log.log, "n1").catch_up()
    yield node
    node.close()


@pytest.fixture
def telling() -> Iterator[Telling]:
    with Telling(lambda _: None) as made:
        yield made


def taken(
    repository: BackupRepository, log: Log, telling: Telling, *peers: ServingPeer, time_ms: int = 0
) -> ShardBackup:
    identity = Identity(cluster=CLUSTER, shard=0, shards=1, node="backup")
    calls = PeerCalls(SECRET)
    try:
        given = ShardSource(identity=identity, families=FAMILIES, log=log.log, peers=peers)
        return take_shard(repository, given, calls, repository.backups(), telling, lambda: time_ms)
    finally:
        calls.close()


def back_up(
    folder: Path, source: RocksNode, log: Log, telling: Telling, name: str, created_at_ms: int
) -> BackupManifest:
    with opened(folder, cluster=CLUSTER, writes=True) as repository:
        with serving(source.desk(), "n1") as peer:
            part = taken(repository, log, telling, peer, time_ms=created_at_ms)
        made = BackupManifest(name=name, created_at_ms=created_at_ms, cluster=CLUSTER, shards=1, parts=(part,))
        repository.write_manifest(made)
        return made


def make(database: Path) -> Replica:
    store = RocksStore(database, FAMILIES.names, kept="snapshot-")
    return Replica(Identity(cluster=CLUSTER, shard=0, shards=1, node="restore"), FAMILIES, store)


def restored(
    folder: Path, name: str, database: Path, telling: Telling, moment: RestoreMoment | None = None
) -> Any:  # fmt: skip
    with opened(folder, cluster=CLUSTER, writes=False) as repository:
        part = repository.backup(name).part(0)
        kept = None if moment is None else kept_range([one.part(0) for one in repository.backups()], part)
        return restore_rows(repository, part, kept, moment or RestoreMoment(), database, make, telling)


def new_cluster_log() -> MemoryLog:
    return MemoryLog(ManualClock(now_ms=START_MS), identity="memory-topic-2")


# One backup, restored.


def test_a_restored_replica_goes_on_in_a_new_log(source: RocksNode, log: Log, telling: Telling, tmp_path: Path):
    made = back_up(tmp_path / "b", source, log, telling, "one", 1)
    own = source.replica.position
    database = tmp_path / "stage" / "shard-0"
    found = restored(tmp_path / "b", "one", database, telling)
    assert (found.index, found.digest) == (own.index, f"{source.replica.digests.total():016x}")
    new = new_cluster_log()
    begun = move_to_log(database, make, new.identity, ["m1", "m2"], "one", made.created_at_ms)
    assert begin_log("om.log/0", new, begun, new.trim)
    assert not begin_log("om.log/0", new, begun, new.trim), "a second time nothing is written"
    assert new.bounds() == (1, 3)
    put_in_place(database, tmp_path / "m1" / "shard-0", "{}", telling, 0)
    assert (tmp_path / "m1" / "shard-0.checkpoints" / "snapshot-1" / "CURRENT").is_file()
    node = RocksNode(tmp_path / "m1", new, "m1")
    check_replica(node.replica, new, lambda _: None)
    assert rows(node.replica) == rows(source.replica)
    assert node.replica.state.replicas == ("m1", "m2")
    assert (node.replica.position.term, node.replica.position.index) == (own.term + 1, own.index + INDEX_GAP)
    assert [base.offset for base in node.replica.bases] == [1]
    assert node.store.get(TRANSACTION_INFO, REQUEST_KEY) is None
    node.scanned()
    # The next leader goes on: a claim, a batch of the next index.
    author = Log()
    author.log, author.author = new, node.replica
    author.claim("m1")
    author.write(20)
    assert node.replica.position.index == own.index + INDEX_GAP + 2
    assert node.replica.evidence is None
    node.scanned()
    node.close()
    empty = RocksNode(tmp_path / "m2", new, "m2")
    with pytest.raises(Exception, match="needs a checkpoint from a peer"):
        check_beginning(empty.replica, new)
    empty.close()


def test_a_backup_says_what_it_is_at(source: RocksNode, log: Log, tmp_path: Path):
    said: list[str] = []
    with Telling(said.append) as telling:
        back_up(tmp_path / "b", source, log, telling, "one", 1)
    steps = (
        "asks the nodes where they stand",
        "waits for the checkpoint of n1",
        "scans the checkpoint",
        "keeps the log",
    )
    told = [next(number for number, text in enumerate(said) if step in text) for step in steps]
    assert told == sorted(told)
    assert all(text.startswith("shard 0: ") for text in said)


def test_a_second_backup_stores_only_what_is_new(source: RocksNode, log: Log, telling: Telling, tmp_path: Path):
    first = back_up(tmp_path / "b", source, log, telling, "one", 1).part(0)
    log.write(30)
    source.catch_up()
    second = back_up(tmp_path / "b", source, log, telling, "two", 2).part(0)
    assert first.saved_bytes == 0
    assert second.saved_bytes > second.fetched_bytes
    shared = {one.content for one in first.listing.files} & {one.content for one in second.listing.files}
    assert second.saved_bytes >= sum(content.size for content in shared)
    with opened(tmp_path / "b", cluster=CLUSTER, writes=False) as repository:
        assert [one.name for one in repository.backups()] == ["one", "two"]
        assert repository.problems(repository.backups(), lambda _: None) == []


def test_a_shard_that_is_taken_leaves_nothing_to_the_next_ones_work(
    source: RocksNode, log: Log, telling: Telling, tmp_path: Path
):
    with opened(tmp_path / "repository", cluster=CLUSTER, writes=True) as repository:
        with serving(source.desk(), "n1") as peer:
            taken(repository, log, telling, peer)
        assert list(repository.scratch.iterdir()) == []


@pytest.mark.parametrize("chosen", ["index", "time", "end"])
def test_the_kept_log_leads_to_a_moment_between_backups(
    chosen: str, source: RocksNode, log: Log, telling: Telling, tmp_path: Path
):
    back_up(tmp_path / "b", source, log, telling, "one", 1)
    begun = source.replica.position.index
    log.write(50)
    wanted, time_ms = log.author.position.index, log.author.position.timestamp_ms
    digest = f"{log.author.digests.total():016x}"
    log.claim("n2")  # of another leader, and the old one goes on: void
    if chosen != "end":
        log.write(50)
    source.catch_up()
    back_up(tmp_path / "b", source, log, telling, "two", 2)
    moment = {"index": RestoreMoment(index=wanted), "time": RestoreMoment(time_ms=time_ms + 5), "end": RestoreMoment()}[
        chosen
    ]
    found = restored(tmp_path / "b", "one", tmp_path / "s" / "shard-0", telling, moment)
    assert (found.index, found.digest) == (wanted, digest)
    assert found.applied >= wanted - begun
    with pytest.raises(NotKept, match="lies behind what the backups keep"):
        restored(tmp_path / "b", "one", tmp_path / "s" / "shard-0", telling, RestoreMoment(index=wanted + 1000))


def test_the_flag_of_a_stage_does_not_come_along(source: RocksNode, log: Log, telling: Telling, tmp_path: Path):
    made = back_up(tmp_path / "b", source, log, telling, "one", 1)
    database = tmp_path / "s" / "shard-0"
    restored(tmp_path / "b", "one", database, telling)
    move_to_log(database, make, "t", ["m1"], "one", made.created_at_ms)
    replica = make(database)
    assert replica.store.get(TRANSACTION_INFO, FLAG_KEY) is None
    replica.store.close()


# What is refused.


def test_a_log_with_other_records_is_left_alone(source: RocksNode, log: Log, telling: Telling, tmp_path: Path):
    back_up(tmp_path / "b", source, log, telling, "one", 1)
    database = tmp_path / "s" / "shard-0"
    restored(tmp_path / "b", "one", database, telling)
    new = new_cluster_log()
    begun = move_to_log(database, make, new.identity, ["m1"], "one", 1)
    new.append(b"something else")
    with pytest.raises(BackupFailed, match=r"om.log/0 has records already \(offsets 0 to 0\)"):
        begin_log("om.log/0", new, begun, new.trim)
    assert new.bounds() == (0, 1)


@pytest.mark.parametrize("written", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (0, 1, 3))])
def test_an_interrupted_beginning_goes_on(
    written: int, source: RocksNode, log: Log, telling: Telling, tmp_path: Path
):  # fmt: skip
    back_up(tmp_path / "b", source, log, telling, "one", 1)
    database = tmp_path / "s" / "shard-0"
    restored(tmp_path / "b", "one", database, telling)
    new = new_cluster_log()
    begun = move_to_log(database, make, new.identity, ["m1"], "one", 1)
    for value in begun.values[:written]:
        new.append(value)
    assert begin_log("om.log/0", new, begun, new.trim)
    assert [entry.value for entry in new.entries] == list(begun.values)
    assert new.bounds() == (1, 3)


def test_a_node_with_a_database_keeps_it(source: RocksNode, log: Log, telling: Telling, tmp_path: Path):
    back_up(tmp_path / "b", source, log, telling, "one", 1)
    restored(tmp_path / "b", "one", tmp_path / "s" / "shard-0", telling)
    with pytest.raises(BackupFailed, match="there is a database already"):
        put_in_place(tmp_path / "s" / "shard-0", source.database, "{}", telling, 0)


def test_damage_names_the_file(source: RocksNode, log: Log, telling: Telling, tmp_path: Path):
    made = back_up(tmp_path / "b", source, log, telling, "one", 1)
    victim = max(made.contents(), key=lambda content: content.size)
    with opened(tmp_path / "b", cluster=CLUSTER, writes=False) as repository:
        path = repository.path_of(victim)
    spoil(path)
    with opened(tmp_path / "b", cluster=CLUSTER, writes=False) as repository:
        assert repository.problems(repository.backups(), lambda _: None) == [f"{path}: damaged; backup one needs it"]
    with pytest.raises(BackupFailed, match=str(path)):
        restored(tmp_path / "b", "one", tmp_path / "s" / "shard-0", telling)
    path.unlink()
    with pytest.raises(BackupFailed, match=str(path)):
        restored(tmp_path / "b", "one", tmp_path / "s" / "shard-0", telling)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def test_a_damaged_log_file_names_itself(source: RocksNode, log: Log, telling: Telling, tmp_path: Path):
    back_up(tmp_path / "b", source, log, telling, "one", 1)
    log.write(20)
    source.catch_up()
    made = back_up(tmp_path / "b", source, log, telling, "two", 2)
    with opened(tmp_path / "b", cluster=CLUSTER, writes=False) as repository:
        path = repository.path_of(made.part(0).log[0].content)
    spoil(path)
    with pytest.raises(BackupFailed, match=str(path)):
        restored(tmp_path / "b", "one", tmp_path / "s" / "shard-0", telling, RestoreMoment())


def test_a_file_that_was_damaged_in_the_repository_is_fetched_anew(
    source: RocksNode, log: Log, telling: Telling, tmp_path: Path
):
    source.store.write_files()
    made = back_up(tmp_path / "b", source, log, telling, "one", 1)
    with opened(tmp_path / "b", cluster=CLUSTER, writes=False) as repository:
        table = max((one.content for one in made.part(0).listing.files if one.is_immutable), key=lambda one: one.size)
        path = repository.path_of(table)
    spoil(path)
    with pytest.raises(BackupFailed, match="damaged here"):
        back_up(tmp_path / "b", source, log, telling, "two", 2)
    back_up(tmp_path / "b", source, log, telling, "two", 2)
    with opened(tmp_path / "b", cluster=CLUSTER, writes=False) as repository:
        assert repository.problems(repository.backups(), lambda _: None) == []


def test_a_peer_that_fails_leaves_no_backup_and_what_it_sent(
    source: RocksNode, log: Log, telling: Telling, tmp_path: Path
):
    sent = 0

    async def twist(request: web.Request, answer: Answer) -> web.StreamResponse:
        nonlocal sent
        if request.path.startswith("/v1/transfers") and request.method == "GET":
            sent += 1
            if sent > 3:
                raise web.HTTPInternalServerError
        return await answer(request)

    with opened(tmp_path / "b", cluster=CLUSTER, writes=True) as repository:
        with serving(source.desk(), "n1", twist) as peer, pytest.raises(BackupFailed, match="n1 at .*500"):
            taken(repository, log, telling, peer)
        assert repository.backups() == []
        whole = [path for path in (tmp_path / "b" / "content").glob("??/*") if path.suffix != ".part"]
        assert len(whole) >= 3
    made = back_up(tmp_path / "b", source, log, telling, "one", 1)
    assert 0 < made.part(0).saved_bytes <= sum(path.stat().st_size for path in whole)


def test_nobody_serves(log: Log, telling: Telling, tmp_path: Path):
    with (
        opened(tmp_path / "b", cluster=CLUSTER, writes=True) as repository,
        pytest.raises(BackupFailed, match="no node gives a checkpoint: n1 at 127.0.0.1:1"),
    ):
        taken(repository, log, telling, ServingPeer("n1", "127.0.0.1:1"))


# Whatever ends it.


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_at(monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    """End at the ``turn``-th fsync: what comes before it is on the disk, what comes after it is not done."""
    left = turn

    def fsync(_: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    monkeypatch.setattr(os, "fsync", fsync)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("turn", [2, 11, *(pytest.param(turn, marks=SLOW) for turn in (1, 4, 7, 16, 22, 29))])
def test_a_killed_backup_harms_none_and_the_next_one_is_whole(
    turn: int, source: RocksNode, log: Log, telling: Telling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    back_up(tmp_path / "b", source, log, telling, "one", 1)
    log.write(50)
    source.catch_up()
    with monkeypatch.context() as patch:
        killed_at(patch, turn)
        with suppress(Killed):
            back_up(tmp_path / "b", source, log, telling, "two", 2)
    with opened(tmp_path / "b", cluster=CLUSTER, writes=False) as repository:
        found = repository.backups()
        assert [one.name for one in found] in (["one"], ["one", "two"])
        assert repository.problems(found, lambda _: None) == []
    back_up(tmp_path / "b", source, log, telling, "three", 3)
    found_rows = restored(tmp_path / "b", "three", tmp_path / "s" / "shard-0", telling)
    assert found_rows.index == source.replica.position.index


@pytest.mark.parametrize("turn", [3, *(pytest.param(turn, marks=SLOW) for turn in (1, 6, 10, 15))])
def test_a_killed_restore_is_done_again(
    turn: int, source: RocksNode, log: Log, telling: Telling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    back_up(tmp_path / "b", source, log, telling, "one", 1)
    stage, target, new = tmp_path / "s" / "shard-0", tmp_path / "m1" / "shard-0", new_cluster_log()

    def run() -> None:
        restored(tmp_path / "b", "one", stage, telling)
        begun = move_to_log(stage, make, new.identity, ["m1"], "one", 1)
        begin_log("om.log/0", new, begun, new.trim)
        if not target.exists():
            put_in_place(stage, target, "{}", telling, 0)

    with monkeypatch.context() as patch:
        killed_at(patch, turn * 5)
        with suppress(Killed):
            run()
    finish(target)
    run()
    node = RocksNode(tmp_path / "m1", new, "m1")
    check_replica(node.replica, new, lambda _: None)
    assert rows(node.replica) == rows(source.replica)
    assert new.bounds() == (1, 3)
    node.close()


# The repository.


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[BackupRepository]:
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True) as made:
        yield made


def stored(repository: BackupRepository, data: bytes) -> Content:
    path = repository.scratch / "x"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return repository.keep_file(path)


def test_one_process_writes_and_readers_keep_it_out(tmp_path: Path):
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True):
        for writes in (True, False):
            with pytest.raises(BackupFailed, match="another process uses these backups"):
                opened(tmp_path / "b", cluster=CLUSTER, writes=writes).__enter__()
    with (
        opened(tmp_path / "b", cluster=None, writes=False),
        opened(tmp_path / "b", cluster=None, writes=False),
        pytest.raises(BackupFailed, match="another process"),
    ):
        opened(tmp_path / "b", cluster=CLUSTER, writes=True).__enter__()


def test_another_clusters_folder_a_strangers_and_a_later_one(tmp_path: Path):
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True):
        pass
    with pytest.raises(BackupFailed, match=f"backups of cluster '{CLUSTER}', not of 'other'"):
        opened(tmp_path / "b", cluster="other", writes=True).__enter__()
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").touch()
    with pytest.raises(BackupFailed, match="not empty: thesis.txt"):
        opened(tmp_path / "s", cluster=CLUSTER, writes=True).__enter__()
    with pytest.raises(BackupFailed, match="it holds no backups"):
        opened(tmp_path / "s", cluster=None, writes=False).__enter__()
    (tmp_path / "b" / "repository.json").write_text(json.dumps({"version": 2, "cluster": CLUSTER}))
    with pytest.raises(BackupFailed, match="version 2: .* upgrade"):
        opened(tmp_path / "b", cluster=CLUSTER, writes=True).__enter__()


def test_a_repository_whose_making_was_interrupted_is_made(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "repository.json.tmp").write_text("{")
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True) as repository:
        assert repository.backups() == []


def test_manifests_of_bytes_that_are_none(
    source: RocksNode, log: Log, telling: Telling, tmp_path: Path
):  # fmt: skip
    made = back_up(tmp_path / "b", source, log, telling, "one", 1)
    path = tmp_path / "b" / "backups" / "one.json"
    whole = path.read_bytes()
    for damaged in (b"", b"x", whole[:-40], whole.replace(b'"n1"', b'"n9"', 1)):
        path.write_bytes(damaged)
        with opened(tmp_path / "b", cluster=CLUSTER, writes=False) as repository:
            with pytest.raises(BackupFailed, match=str(path)):
                repository.backups()
    path.write_bytes(whole)
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True) as repository:
        with pytest.raises(BackupFailed, match="there is a backup"):
            repository.write_manifest(made)
        with pytest.raises(BackupFailed, match="no name of a backup"):
            repository.backup("../one")
        with pytest.raises(BackupFailed, match="there is no backup 'two'; there are: one"):
            repository.backup("two")


def test_prune_removes_what_no_backup_needs(source: RocksNode, log: Log, telling: Telling, tmp_path: Path):
    for number in range(3):
        back_up(tmp_path / "b", source, log, telling, f"b{number}", number)
        log.write(100)
        source.catch_up()
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True) as repository:
        before = size_of(tmp_path / "b" / "content")
        names, freed = repository.prune(1)
        assert names == ["b0", "b1"]
        assert size_of(tmp_path / "b" / "content") == before - freed
        assert freed > 0
        assert repository.problems(repository.backups(), lambda _: None) == []
        assert repository.prune(1) == ([], 0)
    assert restored(tmp_path / "b", "b2", tmp_path / "s" / "shard-0", telling, RestoreMoment()).index > 0


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("??/*"))


def test_a_full_disk_is_said_before_anything_is_fetched(
    source: RocksNode, log: Log, telling: Telling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = shutil.disk_usage(tmp_path)
    full = usage._replace(free=repository_module.SPARE_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(BackupFailed, match="more bytes do not fit"):
        back_up(tmp_path / "b", source, log, telling, "one", 1)


def test_contents_are_what_their_names_say(repository: BackupRepository):
    content = stored(repository, b"abc")
    assert stored(repository, b"abc") == content
    assert repository.is_right(content)
    wrong = Content("0" * 32, 3)
    repository.part_of(wrong).write_bytes(b"xyz")
    assert not repository.accept(wrong)
    assert not repository.has(wrong)
    spoil(repository.path_of(content))
    assert repository.drop_damaged([content, wrong]) == [repository.path_of(content)]


# Files of a log.


def entries(first: int, count: int, size: int = 50) -> list[Entry]:
    return [Entry(offset=first + n, timestamp_ms=1000 + n, value=bytes([n % 256]) * size) for n in range(count)]


def test_records_come_back_from_any_offset(repository: BackupRepository, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_files, "PIECE_BYTES", 500)
    given = entries(10, 40)
    pieces = keep_entries(repository, given, 10, lambda _: None)
    assert len(pieces) > 3
    for first in (10, 11, 30, 49):
        chosen = [piece for piece in pieces if piece.end > first]
        assert list(kept_entries(repository, chosen, first)) == given[first - 10 :]
    assert keep_entries(repository, [], 50, lambda _: None) == ()


def test_a_record_that_is_missing_is_noticed(repository: BackupRepository):
    given = entries(10, 4)
    with pytest.raises(BackupFailed, match="offset 12, where 11 was expected"):
        keep_entries(repository, [given[0], *given[2:]], 10, lambda _: None)
    [piece] = keep_entries(repository, given, 10, lambda _: None)
    with pytest.raises(BackupFailed, match="end at offset 14, not at 15"):
        list(kept_entries(repository, [replace(piece, end=15)], 10))


@pytest.mark.parametrize("data", [b"", b"SLOG0002", b"SLOG0001abc", b"SLOG0001" + bytes(16) + b"\xff" * 4 + b"x"])
def test_bytes_that_are_no_log(data: bytes, repository: BackupRepository):
    content = stored(repository, data)
    [piece] = [replace(one, content=content) for one in keep_entries(repository, entries(0, 1), 0, lambda _: None)]
    with pytest.raises(BackupFailed, match=content.digest):
        list(kept_entries(repository, [piece], 0))


def test_a_new_name_is_one_that_no_backup_has_while_there_is_room(
    source: RocksNode, log: Log, telling: Telling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    back_up(tmp_path / "repository", source, log, telling, "monday", 1)
    with opened(tmp_path / "repository", cluster=CLUSTER, writes=True) as repository:
        repository.check_new_name("tuesday")
        with pytest.raises(BackupFailed, match="there is a backup 'monday' already"):
            repository.check_new_name("monday")
        with pytest.raises(BackupFailed, match="is no name of a backup"):
            repository.check_new_name("../monday")
        monkeypatch.setattr(repository_module, "MAX_BACKUPS", 1)
        with pytest.raises(BackupFailed, match="there are 1 backups, as many as may be: prune some"):
            repository.check_new_name("tuesday")


def test_what_the_disk_refuses_is_said_with_the_file(tmp_path: Path):
    with opened(tmp_path / "repository", cluster=CLUSTER, writes=True) as repository:
        place = repository.path_of(Content("ab" * 16, 1)).parent
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"a file where a folder belongs")
        with pytest.raises(BackupFailed, match=rf"{place}: (File exists|Not a directory)"):
            repository.part_of(Content("ab" * 16, 1))
