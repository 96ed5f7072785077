"""What a node's pages answer: reads of shards, and the fleet as its heartbeats say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import faust
import httpx
import pytest

from om_processors.fleet.core.fleet import Fleet
from om_processors.serving.consistency import NotReadable
from om_processors.serving.fleet_api import MAX_CONTAINER_ID, FleetApi
from om_processors.serving.http_api import Answer, OMHttpApi, answered
from om_processors.serving.leadership_api import LeadershipApi
from om_processors.serving.node_status import NodeStatus
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.follower import make_app
from replicated_db.shell.web.scan_threads import ScansBusy
from schemas.records.messages import CommitKey, CreateBucket, CreateKey, CreateVolume
from schemas.records.rows import DatanodeRow
from schemas.sharding import shard_of
from stratolog.local.ports import free_ports
from tests.support.local.secret import SECRET
from tests.support.om.dict_transaction import DictTables
from tests.support.om.fleets import CLUSTER, TIMEOUT_MS, SmallCluster, container, heartbeat
from tests.support.om.om_world import World
from transport.waiting.deadline import Deadline
from transport.web.http_guard import HttpGuard

SHARDS = 2
LARGE = [f"large{number}" for number in range(5)]


class Snapshot(DictTables):
    """Rows that must be closed once."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


class Case:
    """A node of two shards; ``flagged`` and ``late`` are the shards that may not be read, before and after a snapshot."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.asked: list[tuple[int, str, dict[int, int]]] = []
        self.flagged: set[int] = set()
        self.failures: list[BaseException] = []
        self.worlds = [World(shard=shard, shards=SHARDS) for shard in range(SHARDS)]
        for volume in ("vol1", "vol2", "vol3", *LARGE):
            self.worlds[shard_of(volume, SHARDS)].do(CreateVolume(volume=volume))
        world = self.worlds[shard_of("vol1", SHARDS)]
        for bucket in ("bucket1", "bucket2"):
            world.do(CreateBucket(volume="vol1", bucket=bucket))
        for key in ("a", "b", "c"):
            session = world.session(CreateKey(volume="vol1", bucket="bucket1", key=key, size=1))
            world.do(CommitKey(volume="vol1", bucket="bucket1", key=key, session_id=session.session_id, size=1))
        self.replicas: Any = {shard: self._replica(shard) for shard in range(SHARDS)}
        consistency: Any = self
        status: Any = SimpleNamespace(health=lambda: (503, {"status": "flagged"}), status=lambda: {"node": "om1"})
        snapshots: Any = None
        self.api = OMHttpApi(self.replicas, consistency, status, snapshots, self.failures.append)
        self.cluster = SmallCluster(racks={f"dn{n}": "/r1" for n in (1, 2, 3, 4)}, now_ms=2 * TIMEOUT_MS)
        self.cluster.settle(10)
        view: Any = SimpleNamespace(picture=self.cluster.picture(), refresh=self.cluster.picture)
        config: Any = SimpleNamespace(datanodes=("dn1", "dn9"))
        self.fleet = FleetApi(config, self.replicas[0], consistency, view)
        self.without_fleet = FleetApi(config, self.replicas[0], consistency, None)

    def _replica(self, shard: int) -> Any:
        def snapshot() -> tuple[Any, Any, Snapshot]:
            found = Snapshot()
            found.tables = self.worlds[shard].tables.tables
            self.snapshots.append(found)
            return SimpleNamespace(index=100 + shard), None, found

        return SimpleNamespace(snapshot=snapshot, identity=SimpleNamespace(shard=shard))

    # The node's consistency.

    async def ready(self, shard: int, consistency: str, session: dict[int, int]) -> None:
        self.asked.append((shard, consistency, session))

    def refuse_flagged(self, shard: int) -> None:
        if shard in self.flagged:
            raise NotReadable("REPLICA_FLAGGED", f"shard {shard}")

    async def own_read_index(self, shard: int, _: Deadline) -> tuple[int, str]:
        return 40 + shard, "hash"

    def get(self, page: Callable[..., Awaitable[Answer]], query: dict[str, str] | None = None, **parts: str) -> Answer:
        """Ask a page as the server does; every snapshot that it took is closed once."""
        self.snapshots.clear()
        found = asyncio.run(answered(lambda: page(query or {}, **parts)))
        assert [one.closed for one in self.snapshots] == [1] * len(self.snapshots)
        return found


@pytest.fixture(scope="module")
def made() -> Iterator[Case]:
    case = Case()
    yield case
    case.api.close()


@pytest.fixture
def case(made: Case) -> Case:
    made.asked.clear()
    made.flagged.clear()
    made.failures.clear()
    return made


def names(body: Any, field: str) -> list[str]:
    return [entry[field] for entry in body["entries"]]


def test_volumes_of_all_shards_are_listed(case: Case):
    assert {shard_of(volume, SHARDS) for volume in ("vol1", "vol2", "vol3", *LARGE)} == {0, 1}
    status, body = case.get(case.api.volumes)
    assert status == 200
    assert names(body, "volume") == sorted(["vol1", "vol2", "vol3", *LARGE])
    assert body["positions"] == {"0": 100, "1": 101}
    assert case.asked == [(0, "linearizable", {}), (1, "linearizable", {})]


def test_a_listing_has_a_prefix_a_beginning_and_a_limit(case: Case):
    _, body = case.get(case.api.volumes, {"prefix": "vol", "start_after": "vol1", "limit": "1"})
    assert names(body, "volume") == ["vol2"]
    place = {"volume": "vol1", "bucket": "bucket1"}
    assert names(case.get(case.api.keys, {"limit": "2"}, **place)[1], "key") == ["a", "b"]
    assert names(case.get(case.api.keys, {"start_after": "b"}, **place)[1], "key") == ["c"]
    assert names(case.get(case.api.buckets, {"prefix": "bucket2"}, volume="vol1")[1], "bucket") == ["bucket2"]


def test_one_thing_is_read_from_its_shard(case: Case):
    shard = shard_of("vol1", SHARDS)
    pages: list[tuple[Any, dict[str, str], dict[str, str]]] = [
        (case.api.volume, {}, {"volume": "vol1"}),
        (case.api.bucket, {}, {"volume": "vol1", "bucket": "bucket1"}),
        (case.api.key, {"name": "a"}, {"volume": "vol1", "bucket": "bucket1"}),
    ]
    for page, query, parts in pages:
        status, body = case.get(page, {**query, "consistency": "session", "session": f"{shard}:7"}, **parts)
        assert status == 200
        assert body["volume"] == "vol1"
        assert body["positions"] == {str(shard): 100 + shard}
    assert case.asked == [(shard, "session", {shard: 7})] * 3


def test_keys_are_counted_beside_the_counters(case: Case):
    shard = shard_of("vol1", SHARDS)
    status, body = case.get(case.api.usage, {"volume": "vol1", "bucket": "bucket1"})
    assert (status, body.pop("update_id") > 0, body.pop("positions")) == (200, True, {str(shard): 100 + shard})
    assert body == {"kept_bytes": 3, "counted_bytes": 3, "kept_names": 3, "counted_names": 3}
    status, body = case.get(case.api.usage, {"volume": "vol1"})
    assert (status, body["kept_names"], body["counted_names"], body["counted_bytes"]) == (200, 2, 2, 0)
    assert case.asked == [(shard, "linearizable", {})] * 2


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({}, 400, "INVALID_VOLUME_NAME"),
        ({"volume": "vol1", "bucket": "b_"}, 400, "INVALID_BUCKET_NAME"),
        ({"volume": "vol1", "bucket": "none"}, 404, "BUCKET_NOT_FOUND"),
        ({"volume": "vol9", "bucket": ""}, 404, "VOLUME_NOT_FOUND"),
    ],
)
def test_what_cannot_be_counted_is_refused(case: Case, query: dict[str, str], status: int, code: str):
    found, body = case.get(case.api.usage, query)
    assert (found, body["error"]) == (status, code)


@pytest.mark.parametrize(
    ("query", "parts", "status", "code"),
    [
        ({}, {"volume": "vol9"}, 404, "VOLUME_NOT_FOUND"),
        ({}, {"volume": "NO"}, 400, "INVALID_VOLUME_NAME"),
        ({"consistency": "hopeful"}, {"volume": "vol1"}, 400, "INVALID_REQUEST"),
        ({"consistency": "session", "session": "x"}, {"volume": "vol1"}, 400, "INVALID_REQUEST"),
    ],
)
def test_a_read_that_is_wrong_is_refused(case: Case, query: dict[str, str], parts: Any, status: int, code: str):
    found, body = case.get(case.api.volume, query, **parts)
    assert (found, body["error"]) == (status, code)
    assert body["message"]


@pytest.mark.parametrize("limit", ["0", "x", "1000000"])
def test_a_limit_is_a_number_in_its_bounds(case: Case, limit: str):
    status, body = case.get(case.api.volumes, {"limit": limit})
    assert (status, body["error"]) == (400, "INVALID_REQUEST")


def test_a_shard_that_is_found_to_diverge_meanwhile_is_not_read(case: Case):
    """The snapshot is taken and closed, and nothing of it is told."""
    case.flagged = {0, 1}
    for status, body in (case.get(case.api.volumes), case.get(case.api.volume, volume="vol1")):
        assert (status, body) == (503, {"error": "REPLICA_FLAGGED", "message": body["message"]})


def test_scans_that_are_too_many_are_refused_for_now():
    async def ask() -> Answer:
        raise ScansBusy("256 scans wait")

    assert asyncio.run(answered(ask)) == (503, {"error": "OVERLOADED", "message": "256 scans wait"})


def test_a_read_index_is_the_leaders(case: Case):
    assert asyncio.run(answered(lambda: case.api.read_index("1"))) == (200, {"offset": 41, "hash": "hash"})
    status, body = asyncio.run(answered(lambda: case.api.read_index("2")))
    assert (status, body["message"]) == (400, "there is no shard '2' here; there is: 0, 1")


# The fleet.


def test_pipelines_are_listed_with_the_present_addresses_of_their_members(case: Case):
    status, body = case.get(case.fleet.pipelines)
    assert (status, body["positions"]) == (200, {"0": 100})
    assert case.asked == [(0, "linearizable", {})]
    assert body["pipelines"] == [], "shard 0 has no rows of pipelines here"


@pytest.mark.parametrize("page", ["pipelines", "datanodes"])
def test_pages_of_the_fleet_take_a_consistency(case: Case, page: str):
    status, body = case.get(getattr(case.fleet, page), {"consistency": "hopeful"})
    assert (status, body["error"]) == (400, "INVALID_REQUEST")
    case.flagged = {0}
    assert case.get(getattr(case.fleet, page), {"consistency": "stale"})[0] == 503


def test_datanodes_are_listed_those_too_that_are_silent(case: Case):
    status, body = case.get(case.fleet.datanodes, {"consistency": "stale"})
    assert status == 200
    found = {one["datanode"]: one for one in body["datanodes"]}
    assert list(found) == ["dn1", "dn2", "dn3", "dn4", "dn9"]
    assert (found["dn1"]["address"], found["dn1"]["capacity_bytes"], found["dn1"]["free_bytes"]) == (
        "dn1:1", 1 << 40, 1 << 39,
    )  # fmt: skip
    assert found["dn1"]["silent_ms"] is not None
    assert found["dn1"]["pipelines"] == sorted(case.cluster.follows["dn1"])
    silent = found["dn9"]
    assert (silent["address"], silent["silent_ms"], silent["capacity_bytes"], silent["free_bytes"]) == ("", None, 0, 0)
    assert (silent["containers"], silent["pipelines"], silent["faults"], silent["active_streams"]) == (0, [], [], 0)


def test_who_is_decommissioned_and_switched_off_is_listed_apart(case: Case):
    fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
    for name in ("dn1", "dn4"):
        fleet.on_heartbeat(heartbeat(name), 0)
    rows = [DatanodeRow(datanode="dn4", state="DECOMMISSIONED", changed_at_ms=1)]
    view: Any = SimpleNamespace(refresh=lambda: fleet.picture((), rows, TIMEOUT_MS + 1))
    config: Any = SimpleNamespace(datanodes=("dn1", "dn4"))
    api = FleetApi(config, case.replicas[0], case.fleet._consistency, view)
    body = case.get(api.datanodes, {"consistency": "stale"})[1]
    assert ([one["datanode"] for one in body["datanodes"]], body["switched_off"]) == (["dn1"], ["dn4"])


def test_without_datanodes_the_lists_are_empty(case: Case):
    assert case.get(case.without_fleet.datanodes)[1]["switched_off"] == []
    assert case.get(case.without_fleet.datanodes)[1]["datanodes"] == []
    assert case.get(case.without_fleet.pipelines)[1]["pipelines"] == []
    assert case.get(case.without_fleet.container, container="5")[0] == 404


def test_a_container_is_on_those_who_report_it(case: Case):
    case.cluster.holds = {"dn1": {256: container(256)}, "dn3": {256: container(256, closed=False, healthy=False)}}
    case.cluster.beat()
    view: Any = SimpleNamespace(picture=case.cluster.picture())
    api = FleetApi(None, case.replicas[0], None, view)  # type: ignore[arg-type]
    status, body = case.get(api.container, container="256")
    assert (status, body["container"], body["partition"], body["used_bytes"]) == (200, 256, 0, 10)
    assert [(one["datanode"], one["closed"], one["healthy"]) for one in body["replicas"]] == [
        ("dn1", True, True), ("dn3", False, False),
    ]  # fmt: skip
    status, body = case.get(api.container, container="7")
    assert (status, body["error"]) == (404, "CONTAINER_NOT_FOUND")


@pytest.mark.parametrize(
    ("number", "status"), [("x", 400), (str(MAX_CONTAINER_ID), 404), (str(MAX_CONTAINER_ID + 1), 400)]
)
def test_a_container_has_a_number(case: Case, number: str, status: int):
    assert case.get(case.fleet.container, container=number)[0] == status


# On a server.


def ask(app: faust.App, port: int, *calls: tuple[str, str]) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        web: Any = app.web
        web.init_server()
        await web.start_server()
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
                return [await http.request(method, url, auth=SECRET.sign) for method, url in calls]
        finally:
            await web.stop_server()

    return asyncio.run(run())


def test_every_page_has_its_path(case: Case, tmp_path: Any):
    (port,) = free_ports(1)
    app = make_app(
        "pages",
        bootstrap_servers="127.0.0.1:1",
        host="127.0.0.1",
        port=port,
        data_dir=tmp_path,
        fatal=lambda _: None,
        guard=HttpGuard(SECRET),
    )
    calls: list[tuple[Any, ...]] = []

    def call(*given: Any) -> dict[str, Any]:
        calls.append(given)
        return {"term": 7}

    leadership: Any = SimpleNamespace(transfer=call, borrow=call, renew=call, give_back=call, fitness=call)
    case.api.attach(app)
    case.fleet.attach(app)
    LeadershipApi(leadership, case.replicas).attach(app)
    found = ask(
        app, port, ("GET", "/health"), ("GET", "/status"), ("GET", "/v1/volumes/vol1/buckets/bucket1/key?name=a"),
        ("GET", "/v1/datanodes?consistency=stale"), ("POST", "/v1/shards/1/read-index"), ("GET", "/v1/volumes/vol9"),
        ("GET", "/v1/shards/0/fitness"), ("POST", "/v1/shards/1/transfer?node=om2&address=here:1"),
        ("POST", "/v1/shards/1/borrow?owner=om2"), ("POST", "/v1/shards/1/borrow"), ("POST", "/v1/shards/2/renew?owner=om2"),
    )  # fmt: skip
    bodies = [one.json() for one in found]
    assert [one.status_code for one in found] == [503, 200, 200, 200, 200, 404, 200, 200, 200, 400, 400]
    assert (bodies[0], bodies[1]) == ({"status": "flagged"}, {"node": "om1"})
    assert (bodies[2]["key"], bodies[4]) == ("a", {"offset": 41, "hash": "hash"})
    assert bodies[7] == {"term": 7}
    assert calls == [(), (1, "om2", "here:1"), (1, "om2")]
    assert bodies[9]["message"] == "the parameter 'owner' is missing"
    assert bodies[10]["message"] == "there is no shard '2'; there are 0..1"


def test_a_store_that_cannot_be_read_ends_the_process(case: Case, tmp_path: Any):
    (port,) = free_ports(1)
    failure = StoreFailure("disk")

    def snapshot() -> Any:
        raise failure

    replica: Any = SimpleNamespace(snapshot=snapshot)
    nothing: Any = SimpleNamespace()
    consistency: Any = case
    api = OMHttpApi({0: replica}, consistency, nothing, nothing, case.failures.append)
    app = make_app(
        "broken", bootstrap_servers="127.0.0.1:1", host="127.0.0.1", port=port, data_dir=tmp_path, fatal=lambda _: None
    )
    api.attach(app)
    assert ask(app, port, ("GET", "/v1/volumes/vol1"))[0].status_code == 500
    assert case.failures == [failure]


def test_health_is_that_of_the_worst_replica():
    good, bad = SimpleNamespace(evidence=None), SimpleNamespace(evidence="row")
    for replicas, wanted in [
        ({0: good, 1: good}, (200, {"status": "ok"})),
        ({0: good, 1: bad}, (503, {"status": "flagged", "shards": [1]})),
    ]:
        status: Any = NodeStatus(None, replicas, {}, None, {}, {})  # type: ignore[arg-type]
        assert status.health() == wanted
