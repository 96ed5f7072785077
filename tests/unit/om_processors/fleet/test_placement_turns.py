"""Turns of the placement loop over datanodes that do what they are told: what is proposed, who is told, when again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from om_processors.fleet import placement_loop
from om_processors.fleet.core.fleet import Picture
from om_processors.fleet.datanode_client import FETCH_TIMEOUT_S
from om_processors.fleet.placement_loop import COPY_REMIND_MS, GROW_PARTITIONS, REMIND_MS, RETRY_MS, PlacementLoop
from replicated_db.core.tables.memory import ManualClock
from schemas.datanode_states import CLOSED, DECOMMISSIONED, DECOMMISSIONING
from schemas.records.datanode import CloseContainer, ClosePipeline, FetchContainer, OpenPipeline
from schemas.records.messages import CreatePipeline, RequestBody, RetirePipeline, SetDatanodeState
from schemas.sharding import MAX_PIPELINES
from schemas.topics import DN_AUDIT, DN_LOG
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker
from tests.support.om.fleets import TIMEOUT_MS, SmallCluster, container
from tests.support.om.om_world import World

CONTAINER_BYTES = 1000


class Case:
    """A node that leads shard 0. Proposals take effect at once; messages do, unless their datanode is ``deaf``."""

    def __init__(self, servers: str, names: tuple[str, ...] = ("dn1", "dn2", "dn3")) -> None:
        self.cluster = SmallCluster(racks=dict.fromkeys(names, "/r1"), now_ms=TIMEOUT_MS)
        self.clock = ManualClock(elapsed=0)
        self.deaf: set[str] = set()
        self.proposed: list[RequestBody] = []
        self.told: list[tuple[str, Any]] = []
        self.timeouts_s: list[float | None] = []
        self.notes: list[str] = []
        self.under_way: set[Hashable] = set()
        self.given_up: list[Hashable] = []
        self.busy = False
        self.creates = True
        """Whether pipelines may be proposed now."""
        config: Any = SimpleNamespace(
            bootstrap_servers=servers, datanodes=names, container_bytes=CONTAINER_BYTES, deleted_block_grace_ms=0
        )
        replica = SimpleNamespace(store=World().make().tables, position=SimpleNamespace(index=0))
        self.shard: Any = SimpleNamespace(leading=True, replica=replica, log_time_ms=lambda: 0)
        shards: dict[int, Any] = {0: self.shard}
        self.loop = PlacementLoop(
            config, self._as_any(), shards, self._as_any(), self._as_any(), self.clock, self._note, lambda _: None
        )  # fmt: skip

    def _as_any(self) -> Any:
        """Return the case as the loop's view, proposer and courier."""
        return self

    def _note(self, text: str, **_: Any) -> None:
        self.notes.append(text)

    def refresh(self) -> Picture:
        self.cluster.now_ms += TIMEOUT_MS // 10
        self.cluster.beat()
        return self.cluster.picture()

    def is_due(self, _: Hashable) -> bool:
        return self.creates and not self.busy

    def propose(self, _: Hashable, body: RequestBody) -> bool:
        if self.busy:
            return False
        self.proposed.append(body)
        rows = self.cluster.rows
        match body:
            case CreatePipeline():
                self.cluster.create(body)
            case RetirePipeline():
                rows[body.partition] = replace(rows[body.partition], state=CLOSED)
            case SetDatanodeState():
                self.cluster.states[body.datanode] = body.state
        return True

    def send(
        self, key: Hashable, address: str, request: Any, *, datanode: str, done: Callable[[Any], None],
        timeout_s: float | None = None,
    ) -> bool:  # fmt: skip
        assert address == f"{datanode}:1"
        assert isinstance(key, tuple)
        # Addresses and sources, which are told again whenever they change, are the subject of test_placement_loop.
        if key[0] not in {"addresses", "sources"}:
            self.told.append((datanode, request))
            self.timeouts_s.append(timeout_s)
        if datanode in self.deaf:
            return True
        follows = self.cluster.follows.setdefault(datanode, {})
        held = self.cluster.holds.setdefault(datanode, {})
        match request:
            case OpenPipeline():
                follows[request.partition] = request.generation
            case ClosePipeline():
                follows.pop(request.partition, None)
            case CloseContainer():
                for one in self.cluster.holds.values():
                    if request.container_id in one:
                        one[request.container_id] = replace(one[request.container_id], closed=True)
            case FetchContainer():
                if request.container_id not in held:
                    held[request.container_id] = container(request.container_id, partition=request.partition)
        done(None)
        return True

    def give_up(self, unwanted: Callable[[Hashable], bool]) -> None:
        self.given_up += [key for key in self.under_way if unwanted(key)]

    def turn(self, after_ms: int = 500) -> list[tuple[str, Any]]:
        """Take a turn; return who was told what."""
        self.clock.elapsed += after_ms
        self.told = []
        self.loop.turn()
        return self.told

    def kinds(self, kind: type) -> list[str]:
        """Return who was told something of a kind in the last turn."""
        return sorted(name for name, request in self.told if isinstance(request, kind))


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        broker.create(DN_LOG, DN_AUDIT)
        yield broker


@pytest.fixture
def case(broker: MemoryBroker) -> Case:
    return Case(broker.bootstrap_servers)


def opened(case: Case) -> Case:
    """Let a first pipeline be created and opened on all its members, and no other."""
    created(case)
    for _ in range(3):
        case.turn()
    return case


def created(case: Case) -> Case:
    """Let a first pipeline be created, and no other."""
    case.turn()
    case.creates = False
    return case


def test_a_pipeline_is_proposed_and_its_members_are_told_to_open_it(case: Case):
    assert case.turn() == []
    (created,) = case.proposed
    assert isinstance(created, CreatePipeline)
    assert case.notes == [f"pipeline-0 of {', '.join(one.datanode for one in created.members)} is proposed"]
    case.turn()
    assert case.kinds(OpenPipeline) == ["dn1", "dn2", "dn3"]
    request = case.told[0][1]
    assert (request.partition, request.generation) == (0, case.cluster.rows[0].generation)
    assert {one.datanode: one.address for one in request.members} == {f"dn{n}": f"dn{n}:1" for n in (1, 2, 3)}


def test_a_node_that_leads_nothing_does_nothing(case: Case):
    case.shard.leading = False
    assert case.turn() == []
    assert case.proposed == []


def test_a_message_without_an_answer_is_sent_again_after_a_while(case: Case):
    created(case).deaf = {"dn1"}
    case.turn()
    assert case.kinds(OpenPipeline) == ["dn1", "dn2", "dn3"]
    case.turn(RETRY_MS - 1)
    assert case.kinds(OpenPipeline) == []
    case.turn(1)
    assert case.kinds(OpenPipeline) == ["dn1"]


def test_an_accepted_message_without_an_effect_is_sent_again_later(case: Case):
    created(case).turn()
    case.cluster.follows["dn1"].clear()
    case.turn(REMIND_MS - 1)
    assert case.kinds(OpenPipeline) == []
    case.turn(1)
    assert case.kinds(OpenPipeline) == ["dn1"]


def test_what_it_remembers_is_bounded(case: Case, monkeypatch: pytest.MonkeyPatch):
    """Beyond the limit it forgets what is due first: a copy that was begun is not begun once more elsewhere."""
    monkeypatch.setattr(placement_loop, "MAX_REMEMBERED", 2)
    member = case.refresh().member("dn1")
    for key in (("fetch", 256, "dn1"), ("open", 0, 1, "dn1"), ("open", 1, 1, "dn1"), ("open", 2, 1, "dn1")):
        assert case.loop._tell(key, member, None)
    assert case.loop._fetching() == {(256, "dn1")}
    assert not case.loop._tell(("open", 2, 1, "dn1"), member, None), "it was told last"
    assert case.loop._tell(("open", 0, 1, "dn1"), member, None), "it was told first"


def test_a_message_that_the_courier_has_no_room_for_is_not_taken_for_sent(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such messages filled the memory, and copies under way were forgotten with it."""
    created(case)
    with monkeypatch.context() as patch:
        patch.setattr(case, "send", lambda *_, **__: False)
        case.turn()
    assert case.loop._not_before == {}
    case.turn()
    assert case.kinds(OpenPipeline) == ["dn1", "dn2", "dn3"]


def test_a_pipeline_of_a_dead_member_is_retired_and_closed_on_the_others(case: Case):
    opened(case)
    case.cluster.down.add("dn3")
    for _ in range(20):
        case.turn()
        if case.kinds(ClosePipeline):
            break
    assert case.kinds(ClosePipeline) == ["dn1", "dn2"]
    (retired,) = [body for body in case.proposed if isinstance(body, RetirePipeline)]
    assert retired.partition == 0
    assert any("pipeline-0 is retired: dn3 is dead" in note for note in case.notes)


def test_nothing_is_noted_that_was_not_proposed(case: Case):
    opened(case)
    case.notes.clear()
    case.cluster.down.add("dn3")
    case.busy = True
    for _ in range(20):
        case.turn()
    assert case.notes == []
    assert case.cluster.rows[0].state != CLOSED


def test_a_full_container_is_closed_by_its_leader(case: Case):
    opened(case)
    for name, used in (("dn1", CONTAINER_BYTES), ("dn2", CONTAINER_BYTES - 1), ("dn3", 0)):
        case.cluster.holds.setdefault(name, {})[256] = container(256, closed=False, used=used)
        case.cluster.holds[name][512] = container(512, closed=False, used=CONTAINER_BYTES - 1)
    case.turn()
    leader = case.cluster.rows[0].members[0].datanode
    assert case.told == [(leader, CloseContainer(partition=0, container_id=256))]
    assert {held[256].closed for held in case.cluster.holds.values()} == {True}
    case.turn()
    assert case.told == []


def test_a_container_that_has_lost_a_copy_gets_another(broker: MemoryBroker):
    """The one who fetches it may take hours, and is not told again while it may be busy; then holders are named."""
    case = opened(Case(broker.bootstrap_servers, ("dn1", "dn2", "dn3", "dn4")))
    members = sorted(one.datanode for one in case.cluster.rows[0].members)
    (spare,) = {"dn1", "dn2", "dn3", "dn4"} - set(members)
    for name in members[1:]:
        case.cluster.holds.setdefault(name, {})[256] = container(256)
    lacking = members[0]
    case.deaf = {lacking, spare}
    case.turn()
    ((name, request),) = case.told
    assert (request.container_id, case.timeouts_s[-1]) == (256, FETCH_TIMEOUT_S)
    assert name in {lacking, spare}
    spare = name
    assert sorted(request.sources) == [f"{one}:1" for one in members[1:]]
    case.turn(RETRY_MS - 1)
    assert case.kinds(FetchContainer) == []
    case.deaf.clear()
    case.turn(1)
    assert case.kinds(FetchContainer) == [spare]
    assert f"container 256 is copied to {spare}" in case.notes
    del case.cluster.holds[spare][256]
    case.turn(COPY_REMIND_MS - 1)
    assert case.kinds(FetchContainer) == []
    case.turn(1)
    assert case.kinds(FetchContainer) == [spare]


def test_a_decommissioned_datanode_is_told_of_when_nothing_needs_it(broker: MemoryBroker):
    case = opened(Case(broker.bootstrap_servers, ("dn1", "dn2", "dn3", "dn4")))
    leaving = case.cluster.rows[0].members[0].datanode
    case.cluster.states[leaving] = DECOMMISSIONING
    for _ in range(30):
        case.turn()
    assert case.cluster.states[leaving] == DECOMMISSIONED
    assert f"datanode {leaving} is {DECOMMISSIONED}" in case.notes


def test_a_copy_to_a_dead_datanode_is_given_up(case: Case):
    opened(case)
    case.under_way = {("fetch", 256, "dn3"), ("fetch", 256, "dn2"), ("open", 0, 1, "dn3"), "odd"}
    case.cluster.down.add("dn3")
    for _ in range(20):
        case.turn()
    assert set(case.given_up) == {("fetch", 256, "dn3")}


def test_a_pipeline_whose_partition_nobody_has_made_is_not_opened(case: Case, monkeypatch: pytest.MonkeyPatch):
    """The topics get more partitions first; this broker cannot give them any."""
    monkeypatch.setattr(placement_loop, "ADMIN_TIMEOUT_S", 0.2)
    opened(case)
    case.cluster.rows[PARTITIONS] = replace(case.cluster.rows[0], partition=PARTITIONS)
    case.turn()
    assert case.told == []
    assert any(f"no partition {PARTITIONS} of {DN_LOG} for now" in note for note in case.notes)
    case.cluster.rows[PARTITIONS - 1] = replace(case.cluster.rows[0], partition=PARTITIONS - 1)
    case.turn()
    assert {request.partition for _, request in case.told} == {PARTITIONS - 1}


def test_without_brokers_no_pipeline_is_proposed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(placement_loop, "ADMIN_TIMEOUT_S", 0.01)
    case = Case("127.0.0.1:1")
    case.turn()
    assert case.proposed == []
    assert [note.startswith(f"no partition 0 of {DN_LOG} for now: ") for note in case.notes] == [True]


class Admin:
    """Brokers that give topics more partitions, or say why not."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.asked: list[tuple[str, int]] = []
        self.error: Exception | None = None

    def __call__(self, _: Any) -> Admin:
        return self

    def list_topics(self, **_: Any) -> Any:
        return SimpleNamespace(
            topics={name: SimpleNamespace(partitions=range(count)) for name, count in self.counts.items()}
        )

    def create_partitions(self, wanted: list[Any]) -> Any:
        (one,) = wanted
        self.asked.append((one.topic, one.new_total_count))
        return {one.topic: self}

    def result(self, _: float) -> None:
        if self.error is not None:
            raise self.error


def test_topics_grow_before_a_pipeline_needs_their_partitions(case: Case, monkeypatch: pytest.MonkeyPatch):
    admin = Admin({DN_LOG: 4, DN_AUDIT: 2})
    monkeypatch.setattr(placement_loop, "AdminClient", admin)
    assert case.loop._ensure_partition(1)
    assert admin.asked == []
    assert case.loop._there == range(2), "a pipeline needs both topics"
    assert case.loop._ensure_partition(2)
    total = 4 + GROW_PARTITIONS
    assert admin.asked == [(DN_AUDIT, total), (DN_LOG, total)], "that of reports first"
    assert case.loop._there == range(total)
    assert case.notes == [f"{DN_AUDIT} has {total} partitions now", f"{DN_LOG} has {total} partitions now"]
    admin.counts = {DN_LOG: MAX_PIPELINES - 1, DN_AUDIT: MAX_PIPELINES}
    assert case.loop._ensure_partition(MAX_PIPELINES - 1)
    assert admin.asked[2:] == [(DN_LOG, MAX_PIPELINES)]
    admin.counts = {DN_LOG: 4, DN_AUDIT: 100}
    assert case.loop._ensure_partition(60)
    assert admin.asked[3:] == [(DN_LOG, 100)], "as many as the other one has"


def test_topics_that_do_not_grow_are_told_of(case: Case, monkeypatch: pytest.MonkeyPatch):
    admin = Admin({DN_LOG: 4, DN_AUDIT: 4})
    monkeypatch.setattr(placement_loop, "AdminClient", admin)
    for error in (KafkaException("no"), TimeoutError("slow"), KeyError(DN_LOG)):
        admin.error = error
        assert not case.loop._ensure_partition(4)
        assert case.notes[-1] == f"no partition 4 of {DN_LOG} for now: {error!r}"
    assert case.loop._there == range(4)
