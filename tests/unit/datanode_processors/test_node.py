"""A datanode's parts wired together, on librdkafka's broker; a pipeline's log is in memory. Processes are integration's."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors import node as module
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.layout import DataFolder, open_folder
from datanode_processors.node import CannotStart, DatanodeProcess
from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.tables.memory import MemoryLog
from replicated_db.shell import process
from replicated_db.shell.database import host as host_module
from replicated_db.shell.startup import Topics, WrongSetting
from replicated_db.shell.system import SystemClock
from schemas import stream_errors as codes
from schemas.column_families import PIPELINE_TABLE
from schemas.records.datanode import Member, OpenPipeline, PutBlock
from schemas.security.certificates import PeerIdentity, Role
from schemas.sharding import MAX_PIPELINES
from schemas.topics import DN_AUDIT, DN_HEARTBEATS, DN_LOG
from tests.support.datanodes.checksums import checksums_of
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker
from tests.support.local.secret import SECRET
from tests.support.local.waiting import deadlines_by, eventually
from tests.support.security.certified import Certified

PARTITION, CONTAINER, CELL = 3, 256 + 3, 512
Make = Callable[..., DatanodeProcess]


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as running:
        running.create(DN_LOG, DN_AUDIT, DN_HEARTBEATS)
        yield running


def config_of(folder: Path, broker: str, **changes: Any) -> DatanodeConfig:
    given: dict[str, Any] = {
        "node": "dn1", "cluster": "test", "host": "127.0.0.1", "port": 0, "http_port": 1, "bootstrap_servers": broker,
        "data_dir": folder / "dn1", "pipeline_watchdog_ms": 200, "barrier_interval_ms": 0, "datanode_scrub_interval_ms": 0,
        "datanode_reserve_bytes": 0, "block_scrub_interval_ms": 0,
    }  # fmt: skip
    return DatanodeConfig(**{**given, **changes})


def topics_of(**partitions: int) -> Topics:
    found = {DN_LOG: PARTITIONS, DN_AUDIT: PARTITIONS, DN_HEARTBEATS: 1}
    names = {"log": DN_LOG, "audit": DN_AUDIT}
    found |= {names[name]: count for name, count in partitions.items()}
    return Topics(log_topic_id="t", partitions=found, min_session_timeout_ms=6_000)


def folder_of(config: DatanodeConfig) -> DataFolder:
    return open_folder(config.data_dir, datanode=config.node, cluster=config.cluster)


@pytest.fixture
def died(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What would have ended the process."""
    found: list[BaseException] = []
    monkeypatch.setattr(module, "fatal", found.append)
    monkeypatch.setattr(host_module, "closing", lambda: None)
    return found


@pytest.fixture
def make(
    tmp_path: Path, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, died: list[BaseException]
) -> Iterator[Make]:
    made: list[DatanodeProcess] = []
    clock: Any = SystemClock()
    log = MemoryLog(clock)
    monkeypatch.setattr(host_module, "KafkaLog", lambda *_: log)

    def begin(**changes: Any) -> DatanodeProcess:
        config = config_of(tmp_path, broker.bootstrap_servers, **changes)
        made.append(DatanodeProcess(config, topics_of(), folder_of(config)))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def opened(generation: int = 1) -> OpenPipeline:
    members = [Member(datanode="dn1", address="127.0.0.1:1", http_address="", rack="/r")]
    return OpenPipeline(pipeline="pipeline-3", partition=PARTITION, generation=generation, members=members)


def leading(node: DatanodeProcess) -> Any:
    """Open a pipeline of which this datanode is the only member, and wait until it leads."""
    node.pipelines.start(lambda _: None, lambda: None, lambda *_: None, lambda _: None)
    node.pipelines.handle(opened())
    pipeline = node.pipelines.table.member(PARTITION)
    eventually(lambda: pipeline.loop.leading and pipeline.generation == 1 and pipeline._thread is not None)
    return pipeline


def test_an_upgrade_is_prepared_by_closing_all_and_unprepared_by_a_new_pipeline(
    make: Make, monkeypatch: pytest.MonkeyPatch, died: list[BaseException]
) -> None:
    node = make()
    changes: list[None] = []
    monkeypatch.setattr(node.heartbeats, "changed", lambda: changes.append(None))
    pipeline = leading(node)
    with node.blocks.open_writer(CONTAINER, 1, 0, CELL) as writer:
        writer.write(0, bytes(CELL))
        writer.flush()
    put = PutBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=1, length=CELL, bytes_per_checksum=CELL,
        checksums=checksums_of(bytes(CELL), CELL), wait_effective=True,
    )  # fmt: skip
    pipeline.proposals.submit(put).result(30)
    assert node.prepare_upgrade() == {"prepared": True, "pipelines": ["pipeline-3"]}
    assert pipeline.is_closed()
    assert [one.closed for one in node.blocks.containers()] == [True]
    assert node._is_prepared()
    assert len(changes) == 1, "the next heartbeat says so at once"
    node._take_blocks_again()
    assert not node._is_prepared()
    node._take_blocks_again()
    assert not died


def test_containers_that_stay_open_are_named_and_nothing_is_marked(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    with node.blocks.open_writer(CONTAINER, 1, 0, CELL) as writer:
        writer.write(0, bytes(CELL))
    asked: list[int] = []
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(module, "POLL_S", 0.125)
    monkeypatch.setattr(module, "PREPARE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(module, "Deadline", deadlines_by(lambda: now[0]))
    monkeypatch.setattr(node.pipelines, "close_container", asked.append)
    with pytest.raises(BlockError, match=rf"open here: \[{CONTAINER}\]") as caught:
        node.prepare_upgrade()
    assert caught.value.code == codes.TIMED_OUT
    assert asked == [CONTAINER] * 4, "at once, and after each pause until the time is over"
    assert not node._is_prepared()


def test_a_later_generation_in_the_log_is_closed_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    pipeline = leading(node)
    closed: list[int] = []
    monkeypatch.setattr(node.pipelines, "close_pipeline", lambda request, _: closed.append(request.generation))
    monkeypatch.setattr(type(pipeline), "generation", 7)
    node.prepare_upgrade()
    pipeline.opened = opened(9)
    node.prepare_upgrade()
    assert closed == [7, 9]


def test_what_begins_with_the_node_ends_with_it(make: Make, died: list[BaseException]) -> None:
    node = make(block_scrub_interval_ms=1_000)
    node.start()
    assert node._scrubbing.is_alive()
    eventually(lambda: node.heartbeats.sent > 0)
    node.close()
    node._scrubbing.join(30)
    assert not node._scrubbing.is_alive()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", node.server.port), timeout=5):
        pass
    folder_of(node.config).close()  # its lock is free
    assert not died


SERVING = {
    "block-scrub", "block-reports", "elections", "fetch", "heartbeats", "verify", "log trimming", "dn1-accept",
    "rolling-scrub", "folder-watch",
}  # fmt: skip
"""Threads that a datanode has as long as it serves."""


def test_the_rows_of_its_pipelines_are_read_again_and_a_changed_one_is_told(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make(scrub_within_ms=100)
    pipeline = leading(node)
    told: list[tuple[int, dict[int, int]]] = []
    monkeypatch.setattr(
        node.outbox, "scanned", lambda replica, found: told.append((replica.identity.shard, dict(found)))
    )
    node.host.start()
    eventually(lambda: len(told) > 1)
    assert set(map(str, told)) == {str((PARTITION, {}))}
    pipeline.store.write([(PIPELINE_TABLE, b"behind its back", b"x")])
    eventually(lambda: len(told[-1][1]) == 1)
    last = node.host.rolling_scrub.last(PARTITION)
    assert last is not None
    assert last.rows > 0


def test_no_thread_of_a_node_outlives_it(make: Make) -> None:
    before = set(threading.enumerate())
    node = make(block_scrub_interval_ms=1_000, trim_log_after_ms=1_000)
    node.start()
    begun = {thread.name for thread in set(threading.enumerate()) - before}
    assert begun > SERVING
    assert all(thread.daemon for thread in threading.enumerate() if thread.name in SERVING), "none keeps a process"
    node.close()
    eventually(lambda: set(threading.enumerate()) <= before)


def test_before_a_node_ends_it_serves_no_more_but_answers_from_its_stores(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "end_soon", lambda _: None)
    node = make(block_scrub_interval_ms=1_000, trim_log_after_ms=1_000)
    pipeline = leading(node)
    assert pipeline._thread.daemon
    node.heartbeats.start()
    node.host.start()
    node._scrubbing.start()
    asyncio.run(node._hand_over())
    eventually(lambda: not SERVING & {thread.name for thread in threading.enumerate()})
    assert not pipeline.loop.leading
    assert pipeline.block(CONTAINER, 1) is None, "the follower still applies what is in flight"


def test_a_datanode_knows_which_pipelines_it_leads(make: Make) -> None:
    node = make()
    leading(node)
    assert node.host.leads(PARTITION)
    assert not node.host.leads(PARTITION + 1), "no pipeline of this datanode"


def test_a_log_is_held_from_where_a_transfer_still_needs_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    assert node.host.holds(PARTITION) == ()
    monkeypatch.setattr(node.host.transfers, "holds", {PARTITION: 0}.get)
    assert node.host.holds(PARTITION) == (0,), "from the very beginning"
    assert node.host.holds(PARTITION + 1) == ()


def test_an_upgrade_is_not_prepared_while_a_replica_is_installed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    waiting = [{"pipeline": "pipeline-3"}, {"pipeline": "pipeline-5"}]
    monkeypatch.setattr(node.pipelines.installs, "status", lambda: waiting)
    with pytest.raises(BlockError, match="cannot be closed yet: pipeline-3, pipeline-5") as caught:
        node.prepare_upgrade()
    assert caught.value.code == codes.FAILED
    assert not node._is_prepared()


def test_a_new_pipeline_takes_the_mark_of_an_upgrade_away(make: Make) -> None:
    node = make()
    node.folder.mark_prepared(True)
    leading(node)
    assert not node._is_prepared()


def test_the_interval_of_scrubbing_is_that_of_rounds_and_of_looks_at_copies(make: Make) -> None:
    node = make(block_scrub_interval_ms=90_000)
    assert node.scrubber._round_s == 90.0
    assert node.pipelines.upkeep._plan._interval_s == 90.0


def test_only_the_first_containers_that_stay_open_are_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    containers = [CONTAINER + 256 * number for number in range(11)]
    usage = [SimpleNamespace(container_id=container_id, closed=False) for container_id in containers]
    usage.append(SimpleNamespace(container_id=1, closed=True))
    monkeypatch.setattr(node.blocks, "containers", lambda: usage)
    monkeypatch.setattr(module, "PREPARE_TIMEOUT_S", -1.0)
    with pytest.raises(BlockError) as caught:
        node.prepare_upgrade()
    assert caught.value.message == f"containers are still open here: {containers[:10]}"


def test_the_group_of_a_process_begins_behind_what_its_replicas_have(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[Any] = []
    monkeypatch.setattr(host_module, "place_group", lambda servers, group, **given: placed.append((group, given)))
    node = make()
    topics = {"log_topic": DN_LOG, "audit_topic": DN_AUDIT, "partitions": PARTITIONS}
    assert placed == [(node.app.conf.id, {**topics, "replicas": {}})]
    leading(node)
    node.close()
    again = make()
    ((group, given),) = placed[1:]
    assert group == again.app.conf.id
    assert list(given["replicas"]) == [PARTITION]
    assert group != placed[0][0], "each process has a group of its own"


def test_a_node_has_pages_and_hands_over_before_its_worker_ends(make: Make) -> None:
    node = make()
    app: Any = node.app
    app.finalize()
    app.web.init_server()
    paths = {resource.canonical for resource in app.web.web_app.router.resources()}
    pages = {
        "/health", "/status", "/metrics", "/v1/prepare-upgrade", "/v1/shards/{shard}/digest", "/v1/shards/{shard}/rows",
        "/v1/shards/{shard}/row",
    }  # fmt: skip
    assert {path.rstrip("/") for path in paths} >= pages
    assert any("/transfers" in path for path in paths)
    assert any("trim" in path for path in paths)
    assert len(app.agents) > 0
    receivers = [str(receiver) for receiver in app.on_before_shutdown.iter_receivers(app)]
    assert any("_hand_over" in receiver for receiver in receivers)


def test_what_a_node_says_of_a_shard_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    node = make()
    with caplog.at_level(logging.INFO):
        node.host.note("as if", shard=PARTITION)
    assert "as if" in caplog.text


def test_stores_are_closed_when_nothing_serves_any_more(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    node.start()
    closed: list[str] = []
    parts: dict[str, Any] = {
        "transfers": node.host.transfers, "trimming": node.host.trimming, "blocks together": node.blocks_together,
        "outbox": node.outbox, "pipelines": node.pipelines, "folder": node.folder,
    }  # fmt: skip

    def told(name: str, do: Callable[[], None]) -> Callable[[], None]:
        def tell() -> None:
            closed.append(name)
            do()

        return tell

    for name, part in parts.items():
        monkeypatch.setattr(part, "close", told(name, part.close))
    monkeypatch.setattr(host_module, "closing", lambda: closed.append("closing"))
    monkeypatch.setattr(node.server, "stop", told("server", node.server.stop))
    pages = {type(end.__self__).__name__: end for end in node.host.end_pages}  # type: ignore[attr-defined]
    monkeypatch.setattr(node.host, "end_pages", [told(name, end) for name, end in pages.items()])
    node.close()
    assert closed[:2] == ["server", "closing"], "errors from here on are those of closing"
    assert closed[2:5] == ["TransferPages", "TrimPages", "DatanodeHttpApi"], "they ask the stores"
    assert sorted(closed[5:]) == sorted(parts)
    assert closed[-1] == "folder", "another process may take it from here on"


def test_without_an_interval_blocks_are_not_scrubbed(make: Make) -> None:
    node = make()
    node.start()
    assert not node._scrubbing.is_alive()


def test_a_scrubber_that_fails_ends_the_process(
    make: Make, died: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, failure = make(), ZeroDivisionError()

    def fail() -> None:
        raise failure

    monkeypatch.setattr(node.scrubber, "run", fail)
    node._scrub()
    assert died == [failure]


def test_a_shutdown_hands_over_and_then_the_process_ends_soon(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    node.start()
    ends: list[Any] = []
    timer = threading.Timer(600, lambda: None)

    def end_soon(close: Any) -> threading.Timer:
        ends.append(close)
        return timer

    monkeypatch.setattr(module, "end_soon", end_soon)
    asyncio.run(node._hand_over())
    assert ends == [node.close]
    assert node.pipelines._stopping.is_set()
    assert not timer.finished.is_set()
    node.close()
    assert timer.finished.is_set(), "it is called off"


def test_a_port_that_is_taken_is_named(tmp_path: Path, make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            make(port=port)


def test_a_folder_of_another_datanode_is_refused(tmp_path: Path, make: Make) -> None:
    config = make().config
    with pytest.raises(CannotStart, match="dn1"):
        module._folder(replace(config, node="dn2"))


@pytest.mark.parametrize(
    ("log", "audit", "wrong"),
    [
        (4, 4, ""), (4, 5, ""), (4, 3, f"topic {DN_AUDIT}: 3 partitions, but {DN_LOG} has 4"),
        (MAX_PIPELINES, MAX_PIPELINES, ""),
        (MAX_PIPELINES + 1, MAX_PIPELINES + 1, f"{MAX_PIPELINES + 1} partitions; container ids can name {MAX_PIPELINES}"),
    ],
)  # fmt: skip
def test_the_topics_must_have_fitting_numbers_of_partitions(log: int, audit: int, wrong: str) -> None:
    if not wrong:
        module._check_partitions(topics_of(log=log, audit=audit))
        return
    with pytest.raises(WrongSetting, match=wrong):
        module._check_partitions(topics_of(log=log, audit=audit))


def test_threads_that_are_still_busy_are_named(caplog: pytest.LogCaptureFixture) -> None:
    end = threading.Event()
    busy = threading.Thread(target=end.wait, name="busy-one", daemon=False)
    idle = threading.Thread(target=end.wait, name="a-daemon", daemon=True)
    with caplog.at_level(logging.INFO, "stratolog.node"):
        busy.start()
        idle.start()
        try:
            module._end_of_threads()
        finally:
            end.set()
            busy.join()
    # A consumer of another test may still end meanwhile, and say so.
    (record,) = [one for one in caplog.records if one.name == "stratolog.node"]
    assert "busy-one" in record.getMessage()
    assert "a-daemon" not in record.getMessage()
    assert "MainThread" not in record.getMessage()


def leave_this_process_alone(monkeypatch: pytest.MonkeyPatch, **partitions: int) -> list[tuple[Any, ...]]:
    """Have ``run`` change nothing that is the whole process's: its memory, logging, collector and event loop.

    Returns what it would have changed, in order.
    """
    changed: list[tuple[Any, ...]] = []
    for name in ("keep_freed_memory", "validate_schemas", "calm_collector"):
        monkeypatch.setattr(module, name, lambda name=name: changed.append((name,)))
    monkeypatch.setattr("replicated_db.shell.logs.configure", lambda *given: changed.append(("logs", *given)))
    monkeypatch.setattr("mode.loop.use", lambda loop: changed.append(("loop", loop)))
    monkeypatch.setattr(module, "check_topics", lambda *_: topics_of(**partitions))
    return changed


def test_a_datanode_at_other_brokers_than_before_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_this_process_alone(monkeypatch)
    config, ended = config_of(tmp_path, "127.0.0.1:1"), list[BaseException]()
    folder = folder_of(config)
    folder.check_brokers("blue")
    folder.close()
    monkeypatch.setattr(module, "check_topics", lambda *_: replace(topics_of(), brokers_id="red"))
    monkeypatch.setattr(module, "fatal", ended.append)
    module.run(config)
    (error,) = ended
    assert isinstance(error, CannotStart)
    assert "it belongs to the brokers of Kafka cluster 'blue'" in str(error)


def test_the_process_is_prepared_before_its_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = leave_this_process_alone(monkeypatch)
    before: list[tuple[Any, ...]] = []

    def refuse(_: Any) -> None:
        before.extend(changed)
        raise CannotStart("as if")

    monkeypatch.setattr(module, "_folder", refuse)
    monkeypatch.setattr(module, "fatal", lambda _: None)
    module.run(config_of(tmp_path, "127.0.0.1:1", log_level="DEBUG", log_format="json"))
    assert before == [
        ("keep_freed_memory",),
        ("logs", "dn1", "DEBUG", "json"),
        ("validate_schemas",),
        ("loop", "uvloop"),
    ]


def test_a_datanode_does_not_start_on_topics_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: list[BaseException]
) -> None:
    leave_this_process_alone(monkeypatch, audit=PARTITIONS - 1)
    made: list[Any] = []
    monkeypatch.setattr(module, "DatanodeProcess", lambda *given: made.append(given))
    module.run(config_of(tmp_path, "127.0.0.1:1"))
    assert [type(error) for error in died] == [WrongSetting]
    assert not made


@pytest.mark.parametrize(
    ("failure", "died_of"),
    [
        (LogUnavailable("no broker"), "no broker"), (WrongSetting("retention"), "retention"),
        (OSError(28, "No space left"), "No space left"), (ValueError("no registry"), "no registry"),
        (BlockError(codes.FAILED, "rows"), "rows"),
    ],
)  # fmt: skip
def test_a_datanode_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: list[BaseException], failure: Exception, died_of: str
) -> None:
    def fail(*_: Any) -> None:
        raise failure

    leave_this_process_alone(monkeypatch)
    monkeypatch.setattr(module, "DatanodeProcess", fail)
    module.run(config_of(tmp_path, "127.0.0.1:1"))
    (error,) = died
    assert died_of in str(error)
    assert (error is failure) == isinstance(failure, LogUnavailable | WrongSetting)


@pytest.mark.parametrize("ends_with", [SystemExit, KeyboardInterrupt])
def test_a_datanode_serves_while_its_worker_runs_and_is_closed_however_that_ends(
    tmp_path: Path, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, died: list[BaseException],
    caplog: pytest.LogCaptureFixture, ends_with: type[BaseException],
) -> None:  # fmt: skip
    changed = leave_this_process_alone(monkeypatch)
    nodes: list[DatanodeProcess] = []
    serving: list[bool] = []
    busy = threading.Thread(target=lambda: busy_until.wait(30), name="busy-one", daemon=False)
    busy_until = threading.Event()

    def accepts() -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", nodes[0].server.port)) == 0

    class Worker:
        """What runs the app until a signal comes: Faust's own takes over signals, and ends the process."""

        def __init__(self, app: Any, **options: Any) -> None:
            assert app is nodes[0].app
            # The process's own log stays as it was set up.
            assert options == {"loglevel": "INFO", "redirect_stdouts": False, "override_logging": False}

        def execute_from_commandline(self) -> None:
            serving.append(accepts())
            assert nodes[0].heartbeats._thread.is_alive()
            assert changed[-1] == ("calm_collector",), "everything that stays is made by now"
            busy.start()
            raise ends_with

    class Kept(DatanodeProcess):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            nodes.append(self)

    monkeypatch.setattr("datanode_processors.node.faust.Worker", Worker)
    monkeypatch.setattr(module, "DatanodeProcess", Kept)
    with caplog.at_level(logging.INFO, "stratolog.node"), pytest.raises(ends_with):
        module.run(config_of(tmp_path, broker.bootstrap_servers))
    busy_until.set()
    busy.join()
    assert "busy-one" in [one.getMessage() for one in caplog.records if one.name == "stratolog.node"][-1]
    assert serving == [True]
    assert not accepts()
    assert not died


def test_a_datanode_whose_folder_is_gone_ends_and_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no pipeline yet; before, its heartbeats came on, and it stayed HEALTHY."""
    monkeypatch.setattr(process, "FOLDER_LOOK_S", 0.01)
    node = make()
    died: SimpleQueue[BaseException] = SimpleQueue()
    monkeypatch.setattr(node.host.folders, "_fatal", died.put)
    node.start()
    node.config.data_dir.rename(node.config.data_dir.with_name("elsewhere"))
    error = died.get(timeout=30)
    assert isinstance(error, StopProcess)
    assert f"{node.config.data_dir} was removed, unmounted or replaced" in str(error)


def test_rows_of_a_datanode_are_not_for_clients(tmp_path: Path):
    """They hold chunks of small blocks: a peer without a token for a block would have its bytes."""
    tls = Certified(tmp_path / "authority").tls("dn1", Role.DATANODE)
    guard = module.guard_of(config_of(tmp_path, "127.0.0.1:1", tls=tls))
    headers = {"Host": "127.0.0.1:1"}

    def readers_of(target: str) -> set[Role]:
        peers = {role: PeerIdentity(name="x", role=role) for role in Role}
        return {role for role, peer in peers.items() if guard.refusal("GET", target, headers, peer) is None}

    assert readers_of("/status") == set(Role)
    for target in (
        "/v1/shards/0/row?cf=chunks&key=00",
        "/v1/shards/0/rows",
        "/v1/shards/0/digest",
        "/v1/transfers/1/2",
    ):
        own = {Role.AUDIT} if target.endswith("/rows") else set()
        assert readers_of(target) == {Role.OM, Role.DATANODE, Role.ADMIN, Role.DASHBOARD} | own
    proof = {"Host": "127.0.0.1:1", "Authorization": SECRET.authorization("GET", "127.0.0.1:1", "/v1/shards/0/row")}
    known = module.guard_of(config_of(tmp_path, "127.0.0.1:1", tls=tls, secret=SECRET))
    assert known.refusal("GET", "/v1/shards/0/row", proof, None, ("127.0.0.1", 1)) is None
    other = module.guard_of(config_of(tmp_path, "127.0.0.1:1", tls=tls, secret=SECRET, http_port=2))
    assert "this server is 127.0.0.1:2" in str(other.refusal("GET", "/v1/shards/0/row", proof, None, ("127.0.0.1", 2)))
