"""A whole node, wired over a broker in this process and real databases; what it hosts is looked at without its worker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from om_processors import node as node_module
from om_processors.config import NodeConfig
from om_processors.errors import OMError
from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace.snapshots import CHECKPOINT_PREFIX
from om_processors.node import OMNode
from om_processors.serving.http_api import OMHttpApi
from om_processors.serving.node_status import NodeStatus
from om_processors.serving.write_audit import FILE_NAME
from om_processors.snapshots.checkpoints import CheckpointName
from replicated_db.core.applying.replica import Offered
from replicated_db.core.leading.leader import Effective, Proposal, Reply
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell import process
from replicated_db.shell.rocks import RocksStore
from replicated_db.shell.startup import Topics, WrongSetting
from schemas.codecs.codec import encode
from schemas.door.frames import DOOR_PATH
from schemas.records.log import LateRequest, Result, Tick
from schemas.records.messages import CreateVolume, Evidence, Response
from schemas.security.certificates import READERS, PeerIdentity, Role
from schemas.topics import OM_AUDIT, OM_LOG, OM_REJECTED, OM_REQUESTS, OM_RESPONSES
from stratolog.local.ports import free_ports
from stratolog.local.processes import wait_until
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.local.secret import SECRET
from tests.support.om.om_world import request_of
from tests.support.replicated.kit import batch, request_batch
from tests.support.security.certified import Certified

SHARDS = 2
DEADLINE_S = 30.0
CLIENT = bytes(range(16))
ONE = Counter({("CreateVolume", "OK"): 1})
EVIDENCE = Evidence(
    index=1, offset=1, term=1, leader="om2", operation=0, cf="volumeTable", key=b"k", claim="prev", claimed=1, own=None
)


def config_of(broker: MemoryBroker, folder: Path, **more: Any) -> NodeConfig:
    fields: dict[str, Any] = {
        "node": "om1", "cluster": "test", "address_host": "127.0.0.1", "address_port": free_ports(1)[0],
        "bootstrap_servers": broker.bootstrap_servers, "shards": SHARDS, "replicas": ("om1", "om2"), "data_dir": folder,
        "pipelines": ("p1", "p2"), "datanodes": (), "datanode_timeout_ms": 10_000, "deleted_block_grace_ms": 5,
        "open_key_expire_threshold_ms": 60_000, "block_bytes": 65_536, "container_bytes": 1 << 20,
        "session_timeout_ms": 6_000, "max_queued_requests": 100, "leader_watchdog_ms": 5_000, "barrier_interval_ms": 1_000,
        "scrub_interval_ms": 0, "late_flush_interval_ms": 50, "secret": SECRET, "http_hosts": frozenset(),
        "log_level": "INFO", "log_format": "plain", "write_audit": True,
    }  # fmt: skip
    return NodeConfig(**(fields | more))


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        broker.create(OM_LOG, OM_AUDIT, OM_REQUESTS, OM_RESPONSES, OM_REJECTED)
        yield broker


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What would end the process; closing is forgotten afterwards, for it is the process's."""
    found: list[BaseException] = []
    monkeypatch.setattr(node_module, "fatal", found.append)
    monkeypatch.setattr(process, "_closing", threading.Event())
    return found


def close_logs(node: OMNode) -> None:
    for database in node.host.databases.values():
        for log in (database._log, database._follower_log):
            log.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def shared(broker: MemoryBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OMNode]:
    """A node that tests look at and do not close."""
    with pytest.MonkeyPatch.context() as patched:
        errors: list[BaseException] = []
        patched.setattr(node_module, "fatal", errors.append)
        patched.setattr(process, "_closing", threading.Event())
        node = OMNode(config_of(broker, tmp_path_factory.mktemp("shared")), "topic", brokers_id="blue")
        yield node
        node.close()
        close_logs(node)
        assert errors == []


def test_every_api_of_the_node_is_served(shared: OMNode):
    app: Any = shared.app()
    served = {(route.method, route.resource.canonical) for route in app.web.web_app.router.routes()}
    assert served >= {
        ("GET", "/metrics"), ("GET", "/v1/volumes/{volume}/buckets/{bucket}/keys"), ("POST", "/v1/shards/{shard}/borrow"),
        ("POST", "/v1/volumes/{volume}/buckets/{bucket}/snapshot-diffs"), ("GET", "/v1/pipelines"),
        ("POST", "/v1/shards/{shard}/checkpoint"), ("GET", "/v1/transfers/{transfer}/{digest}"),
        ("POST", "/v1/shards/{shard}/trim"), ("GET", "/status"),
    }  # fmt: skip
    assert {agent.name.rpartition(".")[2] for agent in app.agents.values()} == {"apply", "hear"}
    rested: list[tuple[str, str, int]] = []
    for what in ("rest", "wake"):
        setattr(app.transport, what, lambda topic, shard, what=what: rested.append((what, topic, shard)))
    shared.loops[1].on_rest(True)
    shared.loops[1].on_rest(False)
    assert rested == [("rest", OM_LOG, 1), ("wake", OM_LOG, 1)]
    (adds,) = app.web.web_app.on_response_prepare
    asyncio.run(adds(None, answer := web.Response()))
    assert answer.headers["X-Stratolog-Brokers"] == "blue"


def test_the_brokers_are_told_at_every_door(shared: OMNode):
    assert b"\r\nX-Stratolog-Brokers: blue\r\n" in shared.door._switching
    assert shared.duties._courier._brokers_id == "blue"
    assert shared.host.settings.brokers_id == "blue"


def test_blocks_are_allocated_on_the_settings_pipelines_or_on_the_datanodes_heard(shared: OMNode):
    found = shared._contexts_of(1).at(now_ms=5, index=6)
    assert (found.shard, found.shards, found.datanodes, found.block_size_bytes) == (1, SHARDS, False, 65_536)
    assert [name for _, name in found.allocation.pipelines] == ["p1", "p2"]
    assert shared.fleet is None
    config = shared.config
    shared.config = replace(config, datanodes=("dn1",))
    try:
        heard = shared._contexts_of(1).at(now_ms=5, index=6)
    finally:
        shared.config = config
    assert heard.datanodes
    assert heard.allocation == shared.allocation.choose()
    assert not heard.allocation.pipelines


def test_the_log_is_kept_from_where_a_transfer_needs_it(shared: OMNode, monkeypatch: pytest.MonkeyPatch):
    assert shared.host.holds(0) == ()
    monkeypatch.setattr(shared.host.transfers, "holds", lambda shard: 40 + shard)
    assert shared.host.holds(1) == (41,)


def test_a_checkpoint_that_is_removed_is_closed(shared: OMNode):
    name = f"{CHECKPOINT_PREFIX}7"
    shared.replicas[1].store.checkpoint(name)
    opened = shared.open_snapshots
    with opened.reading(CheckpointName(1, name)):
        pass
    assert opened.names() == [CheckpointName(1, name)]
    shared._checkpoint_removed(1, name)
    assert opened.names() == []


class Counted:
    """Records of one request, and what it is answered; ``mine`` is the nonce of a claim of this node's."""

    mine, others = bytes([1] * 16), bytes([2] * 16)

    def __init__(self, now_ms: int) -> None:
        who: dict[str, Any] = {
            "client_id": CLIENT, "call_id": (1).to_bytes(8, "big"), "request_hash": bytes(16),
            "first_sent_at_ms": now_ms, "request_type": "CreateVolume",
        }  # fmt: skip
        answer = encode(Response(client_id=CLIENT, call_id=1, shard=1, index=1, status="OK", message="", result=None))
        self.results = [Result(**who, index=1, recorded=True, response=answer)]
        self.late = request_batch(LateRequest(**who, index=1, prepared=b""), nonce=self.mine)
        body = replace(request_of(CreateVolume(volume="vol1")), client_id=CLIENT)
        self.replies = [Reply(proposal=Proposal(**who, body=body, reply_to=0), response=answer)]

    def batch(self, nonce: bytes) -> Any:
        return batch(results=self.results, nonce=nonce)

    def effective(self, record: Any) -> Effective:
        outcome: Any = None
        return Effective(offset=1, record=record, record_hash=bytes(16), replies=self.replies, outcome=outcome)


@pytest.fixture
def counted(shared: OMNode) -> Iterator[Counted]:
    yield Counted(shared.clock.wall_ms())
    for metrics in shared.metrics.values():
        metrics.counts.clear()
        metrics.slower[:] = [0] * len(metrics.slower)


def test_a_batch_counts_on_the_node_that_wrote_it(shared: OMNode, counted: Counted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared.loops[1], "has_claimed", lambda nonce: nonce == counted.mine)
    replica = shared.replicas[1]
    tick = Tick(term=1, nonce=counted.mine, seq=1, prev_chain=bytes(32))
    for record in (counted.batch(counted.mine), counted.batch(counted.others), tick):
        shared._applied(replica, Offered(reading=Reading.COUNTS, record=record, position=replica.position))
    assert shared.metrics[1].counts == ONE
    assert not shared.metrics[0].counts


def test_requests_that_the_log_has_without_results_count_when_they_are_answered(shared: OMNode, counted: Counted):
    """Those of a Batch count when it is applied, so they do not count again; each gets its line in any case."""
    shared._on_settled(1, counted.effective(counted.batch(counted.mine)))
    assert not shared.metrics[1].counts
    shared._on_settled(1, counted.effective(counted.late))
    assert shared.metrics[1].counts == ONE
    lines = (shared.config.data_dir / FILE_NAME).read_text().splitlines()
    assert [(line["shard"], line["type"], line["result"]) for line in map(json.loads, lines)] == [
        (1, "CreateVolume", "OK")
    ] * 2
    shared.write_audit, kept = None, shared.write_audit
    shared._on_settled(0, counted.effective(counted.late))
    shared.write_audit = kept
    assert shared.metrics[0].counts == ONE


def test_what_a_node_says_of_itself(shared: OMNode, counted: Counted, monkeypatch: pytest.MonkeyPatch):
    roles = {"owner": True, "lent_to": None, "borrowed_from": None, "lag_records": 7}
    status = NodeStatus(shared.config, shared.replicas, shared.loops, lambda _: roles, shared.metrics, shared.backlogs)
    replica = shared.replicas[1]
    monkeypatch.setattr(shared.loops[1], "leading", True)
    monkeypatch.setattr(shared.loops[1], "requests", 11)
    monkeypatch.setattr(shared.backlogs[1], "refused", 5)
    monkeypatch.setattr(replica, "evidence", EVIDENCE)
    said = status.status()
    address = f"127.0.0.1:{shared.config.address_port}"
    assert (said["node"], said["cluster"], said["address"]) == ("om1", "test", address)
    follower, leader = said["shards"]
    assert (follower["shard"], follower["role"], leader["shard"], leader["role"]) == (0, "follower", 1, "leader")
    assert follower["digest"] == "0" * 16
    assert (follower["flagged"], follower["evidence"], follower["installed"]) == (False, None, None)
    assert (leader["flagged"], leader["evidence"]["key"], leader["evidence"]["leader"]) == (True, "6b", "om2")
    assert leader["chain"] == replica.position.chain.hex()
    assert all(leader[name] == value for name, value in roles.items())
    assert status.health() == (503, {"status": "flagged", "shards": [1]})
    shared._on_settled(1, counted.effective(counted.late))
    found = {
        (sample.name, sample.labels["shard"], sample.labels.get("type")): sample.value
        for family in text_string_to_metric_families(status.metrics())
        for sample in family.samples
        if sample.labels.get("node") == "om1"
    }
    for name, values in {
        "stratolog_leading": (0, 1), "stratolog_leader_requests_total": (0, 11), "stratolog_flagged": (0, 1),
        "stratolog_refused_overloaded_total": (0, 5), "stratolog_applied_offset": (-1, -1), "stratolog_term": (0, 0),
        "stratolog_request_seconds_count": (0, 1), "stratolog_leader_batches_total": (0, 0),
    }.items():  # fmt: skip
        assert tuple(found[name, shard, None] for shard in ("0", "1")) == values
    assert found["stratolog_requests_total", "1", "CreateVolume"] == 1


def test_rows_of_a_replica_are_shown_to_whoever_compares_them(shared: OMNode):
    anything: Any = None
    api = OMHttpApi(shared.replicas, anything, anything, anything, pytest.fail)  # type: ignore[arg-type]
    shared.replicas[0].store.write([("volumeTable", b"key", b"value")])
    query = {"cf": "volumeTable", "key": b"key".hex()}
    status, row = asyncio.run(api.row(query, shard="0"))
    assert (status, bytes.fromhex(row["value"])) == (200, b"value")
    status, rows = asyncio.run(api.rows({"cf": "volumeTable", "bucket": "7"}, shard="0"))
    assert (status, rows["truncated"]) == (200, False)
    status, digest = asyncio.run(api.digest({}, shard="0"))
    assert (status, digest["digest"]) == (200, "0" * 16)
    api.close()
    shared.replicas[0].store.write([("volumeTable", b"key", None)])


# The life of a node.


class Worker:
    """Faust's worker, which is not run here: notes what runs while it would."""

    def __init__(self, app: Any, **_: Any) -> None:
        self.app = app
        self.names: set[str] = set()
        Worker.last = self

    last: Worker
    looked: Callable[[], bool]

    def execute_from_commandline(self) -> None:
        self.names = {thread.name for thread in threading.enumerate()}
        assert wait_until(self.looked, DEADLINE_S, interval_s=0.005)


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a process has once is not touched: its loop, its collector, its log."""
    done: list[str] = []
    monkeypatch.setattr("om_processors.node.mode.loop.use", done.append)
    monkeypatch.setattr(node_module, "calm_collector", lambda: done.append("calm"))
    monkeypatch.setattr("om_processors.node.logs.configure", lambda node, *_: done.append(node))
    monkeypatch.setattr(node_module, "validate_schemas", lambda: done.append("schemas"))
    monkeypatch.setattr("om_processors.node.faust.Worker", Worker)
    return done


def test_a_node_runs_with_its_threads_and_ends_with_its_databases_closed(
    broker: MemoryBroker,
    tmp_path: Path,
    errors: list[BaseException],
    around: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    topics = Topics(log_topic_id="topic", partitions={}, min_session_timeout_ms=7_000)
    monkeypatch.setattr(node_module, "check_topics", lambda *_: topics)
    made: list[OMNode] = []

    class Watched(OMNode):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)

    monkeypatch.setattr(node_module, "OMNode", Watched)
    asked: list[int | None] = []

    def looked() -> bool:
        asked.append(made[0].leadership.roles(1)["lag_records"])
        return asked[-1] == 0

    monkeypatch.setattr(Worker, "looked", staticmethod(looked), raising=False)
    node_module.run(config_of(broker, tmp_path))
    (node,) = made
    assert around == ["om1", "schemas", "uvloop", "calm"]
    running = {"flusher", "leadership", "watchdog", "snapshot cleanup", "log trimming", "open key cleanup"}
    assert running - {"log trimming"} <= Worker.last.names, "without a time to keep, trimming has ended already"
    assert node.config.session_timeout_ms == 7_000, "the brokers allow no shorter one"
    assert process._closing.is_set()
    left = {thread.name for thread in threading.enumerate()}
    assert not left & {"flusher", "leadership", "watchdog", "snapshot cleanup", "log trimming", "open key cleanup"}
    assert node.host.transfers._closed
    ended = {type(end.__self__).__name__ for end in node.host.end_pages}  # type: ignore[attr-defined]
    assert ended == {"TransferPages", "OMHttpApi", "SnapshotDiffApi", "TrimPages"}
    with pytest.raises(RuntimeError, match="after shutdown"):
        node.host.transfer_pages._reading.submit(int)
    assert not node.duties._courier.send("late", "127.0.0.1:1", None, datanode="dn1"), "datanodes are told nothing more"
    assert node.open_snapshots._ended
    with pytest.raises(OMError, match="it stops"):
        node.leadership.borrow(0, "om2")
    for shard in range(SHARDS):
        RocksStore(tmp_path / f"shard-{shard}", OM_FAMILIES.names).close()
    assert errors == []
    close_logs(node)


@pytest.mark.parametrize("error", [WrongSetting("topic om.log: wrong"), LogUnavailable("nobody answers")])
def test_a_node_that_may_not_start_ends_its_process(
    broker: MemoryBroker, tmp_path: Path, errors: list[BaseException], around: list[str], monkeypatch: pytest.MonkeyPatch,
    error: Exception,
):  # fmt: skip
    def check(*_: Any) -> Topics:
        raise error

    monkeypatch.setattr(process, "BROKER_WAIT_S", -1.0)
    monkeypatch.setattr(node_module, "check_topics", check)
    node_module.run(config_of(broker, tmp_path))
    assert errors == [error]
    assert "calm" not in around


def test_a_node_hands_over_before_its_worker_stops(
    broker: MemoryBroker, tmp_path: Path, errors: list[BaseException], monkeypatch: pytest.MonkeyPatch
):
    """If the worker does not stop, the process ends without it; whoever closes the node calls that off."""
    ending = threading.Timer(1_000, lambda: None)
    ends: list[Any] = []

    def end_soon(close: Any) -> threading.Timer:
        ends.append(close)
        return ending

    monkeypatch.setattr(node_module, "end_soon", end_soon)
    node = OMNode(config_of(broker, tmp_path, shards=1, write_audit=False), "topic")
    asyncio.run(node._hand_over())
    with pytest.raises(OMError, match="it stops"):
        node.leadership.borrow(0, "om2")
    assert ends == [node.close]
    assert not ending.finished.is_set()
    node.close()
    assert ending.finished.is_set()
    assert not (tmp_path / FILE_NAME).exists()
    assert errors == []
    close_logs(node)


def test_replicas_rows_are_not_for_clients_of_a_node_that_believes_anybody(tmp_path: Path):
    """With TLS, and without signatures, a certificate is all that is known of who reads."""
    with memory_broker() as broker:
        config = config_of(broker, tmp_path, tls=Certified(tmp_path / "authority").tls("om1", Role.OM))
    guard = node_module.guard_of(config)
    headers = {"Host": config.address}

    def readers_of(target: str, method: str = "GET") -> set[Role]:
        peers = {role: PeerIdentity(name="x", role=role) for role in Role}
        return {role for role, peer in peers.items() if guard.refusal(method, target, headers, peer) is None}

    for target in ("/status", "/v1/volumes", "/v1/volumes/a/buckets/b/key?name=%2e%2e", "/v1/pipelines", DOOR_PATH):
        assert readers_of(target) == set(Role), target
    assert readers_of("/v1/volumes/a/buckets/b/snapshot-diffs?from=s", "POST") == set(Role)
    for target in (
        "/v1/shards/0/rows",
        "/v1/shards/0/row",
        "/v1/shards/0/checkpoint",
        "/v1/transfers/1/2",
        "/v1/users",
    ):
        assert readers_of(target) == READERS | ({Role.AUDIT} if target.endswith("/rows") else set()), target
