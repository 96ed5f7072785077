"""What hosts the databases of a process: how it opens them, what it attaches, and in which order it ends."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from replicated_db.core.applying.replica import SCAN_STEP_ROWS
from replicated_db.core.errors import StoreFailure, WrongCluster
from replicated_db.core.leading.leader import LeaderLimits
from replicated_db.core.ports import Log
from replicated_db.core.tables.memory import ManualClock, MemoryLog
from replicated_db.shell import process, startup
from replicated_db.shell.bootstrap.opening import ReplicaToOpen
from replicated_db.shell.database import host as module
from replicated_db.shell.database.database import DatabaseService
from replicated_db.shell.database.host import DatabaseHost, HostSettings
from replicated_db.shell.reports import AuditReports
from replicated_db.shell.rocks import DOUBT_FILE, RocksStore
from stratolog.local.ports import free_ports
from tests.support.local.memory_broker import memory_broker
from tests.support.local.secret import SECRET
from tests.support.replicated import transfers
from tests.support.replicated.kit import FAMILIES, START_MS, Kit
from transport.web.http_guard import HttpGuard

SHARD = 3


class Reports:
    """What is published, and when it was closed."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def publish(self, replica: Any, outcome: Any) -> None: ...

    def scanned(self, replica: Any, differences: Any) -> None: ...

    def judge_rows(self, replica: Any, differences: Any, standing: Any) -> None:
        assert not differences

    def close(self) -> None:
        self.ended.append("reports")


class LocalLogs(DatabaseHost):
    """All shards are of one log in memory."""

    local_log: MemoryLog

    def log(self, shard: int, headers: Any = None) -> Log:
        return self.local_log


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLogs]:
    reports: Any = Reports()
    monkeypatch.setattr(module, "closing", lambda: reports.ended.append("closing"))
    clock = ManualClock(now_ms=START_MS)
    settings = HostSettings(
        node="n1", cluster="test", bootstrap_servers="127.0.0.1:1", log_topic="log", audit_topic="audit",
        topic_id="topic", shards=8, secret=SECRET, tls=None, bootstrap_records=10, bootstrap_bytes_per_s=0,
        scrub_within_ms=1_000, trim_log_after_ms=1_000,
    )  # fmt: skip
    made = LocalLogs(settings, reports, clock=clock, fatal=pytest.fail, note=lambda *_, **__: None)  # type: ignore[arg-type]
    made.local_log = MemoryLog(clock)
    yield made
    made.close()


def service() -> DatabaseService:
    nothing: Any = None
    return DatabaseService(
        executes=Kit(), intake=nothing, outbox=nothing, reports=nothing, limits=LeaderLimits(), address="n1:1",
        replicas=["n1"],
    )  # fmt: skip


def place(host: DatabaseHost, folder: Path, shard: int = SHARD) -> ReplicaToOpen:
    database = folder / f"shard-{shard}"
    return host.place(shard, database, FAMILIES, lambda: RocksStore(database, FAMILIES.names))


def opened(host: DatabaseHost, folder: Path, shard: int = SHARD) -> Any:
    return host.open(place(host, folder, shard), host.policy(list), lambda _: None, service())


def test_a_database_that_is_opened_is_hosted(host: LocalLogs, tmp_path: Path) -> None:
    database = opened(host, tmp_path)
    identity = database.replica.identity
    assert (identity.cluster, identity.shard, identity.shards, identity.node) == ("test", SHARD, 8, "n1")
    assert host.databases == {SHARD: database}
    assert host.replicas == {SHARD: database.replica}
    assert host.loops == {SHARD: database.loop}
    assert not host.leads(SHARD)
    assert not host.leads(SHARD + 1), "no shard of this process"
    database.loop.leading = True
    assert host.leads(SHARD)


@pytest.mark.parametrize("kept", [0, 100], ids=["all rows", "some rows"])
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_a_database_whose_manifest_was_cut_is_flagged_before_it_serves(
    host: LocalLogs, tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: int, cut: bool
) -> None:
    """RocksDB opens it with the newest position and digests, without its table files, and says nothing."""
    source = transfers.Log(cluster="test", shard=SHARD, shards=8)
    node = place(host, tmp_path / "before").make()
    node.adopt_topic(source.log.topic_id(), None)

    def catch_up() -> None:
        for entry in source.log.read(node.read_offset + 1, 1_000, 0):
            node.offer(entry.offset, entry.value)

    store: Any = node.store
    source.write(kept)
    catch_up()
    store.write_files()
    source.write(300)
    catch_up()
    manifest = next((tmp_path / "before" / f"shard-{SHARD}").glob("MANIFEST-*"))
    whole = manifest.stat().st_size
    store.write_files()
    source.write(10)
    source.remove_newest(10)
    catch_up()
    # As after a crash: nothing is closed.
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    position, digests = node.position, node.digests.copy()
    node.store.close()
    if cut:
        os.truncate(tmp_path / "after" / f"shard-{SHARD}" / manifest.name, whole)
    host.local_log = source.log
    with memory_broker() as broker:
        broker.create("audit")
        failed: list[Any] = []
        reports = AuditReports(broker.bootstrap_servers, "audit", host.clock, failed.append, failed.append)
        host.reports, before = reports, host.reports
        said: list[str] = []
        after = host.open(place(host, tmp_path / "after"), host.policy(list), said.append, service())
        replica = after.replica
        reports.close()
        host.reports = before
    assert not failed
    assert (replica.position, replica.digests) == (position, digests)
    assert (replica.scan(replica.store) != digests) is cut
    assert (replica.evidence is not None) is cut
    assert bool(list(replica.store.iterate("things", b""))) is (kept > 0 or not cut)
    assert [text.partition(",")[0] for text in said] == (
        [f"shard {SHARD}: all rows are scanned before it serves"] if cut else []
    )
    assert replica.store.doubt == ""
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [text.partition(":")[2].partition(":")[0] for text in errors] == (
        [" this replica's rows are not those of its digest"] if cut else []
    )
    with suppress(Exception):  # RocksDB has lost count of its files
        replica.store.close()


def test_a_doubt_about_rows_that_are_all_there_costs_a_scan(host: LocalLogs, tmp_path: Path) -> None:
    """Also one that a former process has left: killed in its scan, for instance. The next start scans no more."""
    opened(host, tmp_path).close()
    kept = tmp_path / f"shard-{SHARD}" / DOUBT_FILE
    kept.write_text("a former process was killed")
    said: list[str] = []
    for _ in range(2):
        database = host.open(place(host, tmp_path), host.policy(list), said.append, service())
        assert database.replica.evidence is None
        assert not kept.exists()
        database.close()
    assert said == [
        f"shard {SHARD}: all rows are scanned before it serves, for some may be missing: a former process was killed"
    ]


def test_a_scan_of_many_rows_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = transfers.Log()
    node = transfers.RocksNode(tmp_path, source.log)
    source.write(500)
    node.catch_up()
    node.store._doubt = "a reason"
    monkeypatch.setattr(startup, "NOTED_ROWS", 2 * SCAN_STEP_ROWS)
    said: list[str] = []
    assert startup.rows_off(node.replica, said.append) == {}
    assert said[1:] == ["shard 0: all rows are scanned before it serves: 400 by now"]
    node.close()


def test_a_policy_has_the_processs_secret_and_bound(host: LocalLogs) -> None:
    policy = host.policy(list, searches=1)
    assert (policy.secret, policy.records, policy.searches) == (SECRET, 10, 1)


def test_the_rows_of_another_shard_are_refused_and_let_go(host: LocalLogs, tmp_path: Path) -> None:
    closed: list[None] = []

    def of_another() -> Any:
        raise WrongCluster("another's")

    fake: Any = SimpleNamespace(get=lambda *_: of_another(), close=lambda: closed.append(None))
    with pytest.raises(WrongCluster):
        host.place(SHARD, tmp_path / "db", FAMILIES, lambda: fake).make()
    assert closed == [None]


def test_a_log_is_held_from_where_a_transfer_still_needs_it(host: LocalLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.holds(SHARD) == ()
    monkeypatch.setattr(host.transfers, "holds", {SHARD: 0}.get)
    assert host.holds(SHARD) == (0,), "from the very beginning"
    assert host.holds(SHARD + 1) == ()


def test_a_shard_is_followed_on_its_log_and_its_members_reports_and_rests_while_it_is_led(
    host: LocalLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="make_app comes first"):
        host.follow(SHARD)
    placed: list[Any] = []
    monkeypatch.setattr(module, "place_group", lambda servers, group, **given: placed.append((group, given)))
    removed: list[str] = []
    monkeypatch.setattr(module, "remove_former_groups", lambda servers, group, note: removed.append(group))
    database = opened(host, tmp_path)
    [port] = free_ports(1)
    app = host.make_app(
        "follower", host="127.0.0.1", port=port, data_dir=tmp_path, guard=HttpGuard(None), partitions=8, follows=()
    )
    topics = {"log_topic": "log", "audit_topic": "audit", "partitions": 8}
    assert placed == [(app.conf.id, {**topics, "replicas": {SHARD: database.replica}})]
    assert re.fullmatch("follower-n1-[0-9a-f]{8}", app.conf.id)
    assert removed == [app.conf.id]
    told: list[tuple[str, str, int]] = []
    for what in ("follow", "rest", "wake"):
        monkeypatch.setattr(
            app.transport, what, lambda topic, shard, what=what: told.append((what, topic, shard)), raising=False
        )
    host.follow(SHARD)
    assert told == [("follow", "log", SHARD), ("follow", "audit", SHARD)]
    told.clear()
    database.loop.on_rest(True)
    database.loop.on_rest(False)
    assert told == [("rest", "log", SHARD), ("wake", "log", SHARD)]


def test_nobody_trims_before_it_is_said_how(host: LocalLogs) -> None:
    with pytest.raises(RuntimeError, match="trim_with comes first"):
        _ = host.trimming
    trimming = host.trim_with(lambda *_: "no base", lambda _: {})
    assert host.trimming is trimming
    assert trimming.led() == []


def test_what_begins_with_a_process_ends_before_its_stores(host: LocalLogs, tmp_path: Path) -> None:
    reports: Any = host.reports
    ended = reports.ended
    database = opened(host, tmp_path)
    trimming = host.trim_with(lambda *_: "no base", lambda _: {})
    host.start()
    running = {"rolling-scrub", "log trimming", "folder-watch"}
    assert running <= {thread.name for thread in threading.enumerate()}
    host.stop()
    assert not running & {thread.name for thread in threading.enumerate()}
    assert database.get("things", b"k") is None, "readers are answered until the end"
    host.end_pages = [lambda: ended.append("pages")]
    for name, part in {"transfers": host.transfers, "trimming": trimming, "store": database}.items():
        close = part.close
        part.close = lambda name=name, close=close: (ended.append(name), close())
    host.close(lambda: ended.append("service"))
    assert ended == ["closing", "pages", "transfers", "trimming", "service", "reports", "store"]
    with pytest.raises(StoreFailure):
        database.get("things", b"k")
    RocksStore(tmp_path / f"shard-{SHARD}", FAMILIES.names).close()


@pytest.mark.parametrize("how", ["removed", "emptied", "replaced"])
def test_a_process_whose_database_is_gone_ends_and_says_so(
    host: LocalLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(process, "FOLDER_LOOK_S", 0.01)
    died: SimpleQueue[BaseException] = SimpleQueue()
    monkeypatch.setattr(host.folders, "_fatal", died.put)
    folder = tmp_path / "data"
    opened(host, folder)
    host.folders.start()
    if how == "emptied":
        for one in folder.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    else:
        folder.rename(tmp_path / "elsewhere")
    if how == "replaced":
        shutil.copytree(tmp_path / "elsewhere", folder)
    error = died.get(timeout=30)
    assert isinstance(error, StoreFailure)
    assert f"{folder} was removed, unmounted or replaced" in str(error)


def test_a_database_that_is_where_it_was_ends_nothing(
    host: LocalLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An install replaces the database, not the file that keeps others away; a disk that does not answer is no loss."""
    monkeypatch.setattr(process, "FOLDER_LOOK_S", 0.01)
    looked = SimpleQueue[Path]()
    is_elsewhere = process._is_elsewhere

    def looks(path: Path, number: tuple[int, int]) -> bool:
        looked.put(path)
        return is_elsewhere(path, number)

    monkeypatch.setattr(process, "_is_elsewhere", looks)
    opened(host, tmp_path)
    host.folders.start()
    (tmp_path / f"shard-{SHARD}").rename(tmp_path / "replaced")
    assert {looked.get(timeout=30) for _ in range(3)} == {tmp_path / f"shard-{SHARD}.lock"}
    assert not is_elsewhere(tmp_path / ("x" * 300), (1, 1)), "another error than that it is not there"
