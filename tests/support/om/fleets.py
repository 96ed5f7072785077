"""Pictures of datanodes for tests of placement: heartbeats, rows, and a small cluster that obeys what is decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from om_processors.execution.requests.fleet import HANDLERS, pipeline_name
from om_processors.fleet.core import pipeline_making, placement
from om_processors.fleet.core.fleet import Fleet, Picture
from om_processors.namespace import tables
from om_processors.namespace.context import RequestPreparation
from schemas.datanode_states import CLOSED, IN_SERVICE, OPEN
from schemas.records.datanode import ContainerReport, Heartbeat, Member, PipelineReport, PipelineRow
from schemas.records.messages import CreatePipeline
from schemas.records.rows import DatanodeRow
from tests.support.om.dict_transaction import DictTables, DictTransaction

TIMEOUT_MS = 10_000
MIN_FREE_BYTES = 100
CLUSTER = "test"


def heartbeat(name: str, rack: str = "/r1", **more: Any) -> Heartbeat:
    """A datanode that follows nothing and holds nothing, unless ``more`` says so."""
    fields: dict[str, Any] = {
        "cluster": CLUSTER, "datanode": name, "incarnation": bytes(16), "address": f"{name}:1", "http_address": f"{name}:2",
        "rack": rack, "capacity_bytes": 1 << 40, "free_bytes": 1 << 39, "active_streams": 0, "layout_version": 1,
        "upgrade_prepared": False, "pipelines": [], "containers": [], "sent_at_ms": 0,
    }  # fmt: skip
    return Heartbeat(**(fields | more))


def pipeline_row(partition: int, names: Iterable[str], state: str = OPEN, generation: int = 1) -> PipelineRow:
    members = [Member(datanode=name, address=f"{name}:1", http_address=f"{name}:2", rack="/r1") for name in names]
    return PipelineRow(
        pipeline=pipeline_name(partition),
        partition=partition,
        generation=generation,
        members=members,
        state=state,
        opened_at_ms=0,
    )


def report(partition: int, *, leading: bool = False, healthy: bool = True, generation: int = 1) -> PipelineReport:
    return PipelineReport(
        partition=partition, generation=generation, leading=leading, applied_index=0, healthy=healthy, fault=""
    )


def container(
    number: int, *, partition: int = 0, closed: bool = True, healthy: bool = True, used: int = 10, blocks: int = 1
) -> ContainerReport:
    return ContainerReport(
        container_id=number, partition=partition, closed=closed, blocks=blocks, used_bytes=used, healthy=healthy
    )


@dataclass
class SmallCluster:
    """Datanodes that carry out every decision at once; ``turn`` is one turn of the loop, and time goes on by it."""

    racks: dict[str, str]
    replicas: int = 3
    down: set[str] = field(default_factory=set)
    states: dict[str, str] = field(default_factory=dict)
    rows: dict[int, PipelineRow] = field(default_factory=dict)
    holds: dict[str, dict[int, ContainerReport]] = field(default_factory=dict)
    follows: dict[str, dict[int, int]] = field(default_factory=dict)
    """By datanode: the generations of the pipelines that it follows."""
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=MIN_FREE_BYTES, since_ms=0)

    def beat(self) -> None:
        for name, rack in self.racks.items():
            if name not in self.down:
                follows = sorted(self.follows.get(name, {}).items())
                reports = [
                    report(number, leading=self._leads(name, number), generation=generation)
                    for number, generation in follows
                ]
                held = list(self.holds.get(name, {}).values())
                self.fleet.on_heartbeat(heartbeat(name, rack, pipelines=reports, containers=held), self.now_ms)

    def _leads(self, name: str, partition: int) -> bool:
        living = [one.datanode for one in self.rows[partition].members if one.datanode not in self.down]
        return bool(living) and living[0] == name

    def picture(self) -> Picture:
        rows = [DatanodeRow(datanode=name, state=state, changed_at_ms=0) for name, state in self.states.items()]
        return self.fleet.picture(self.rows.values(), rows, self.now_ms)

    def turn(self) -> Picture:
        self.now_ms += TIMEOUT_MS // 10
        self.beat()
        picture = self.picture()
        for retired in pipeline_making.retirements(picture):
            self.rows[retired.partition] = replace(self.rows[retired.partition], state=CLOSED)
        for reached in placement.reached(picture):
            self.states[reached.datanode] = reached.state
        created = pipeline_making.new_pipeline(picture, self.replicas)
        if created is not None:
            self.create(created)
        for row, node in placement.to_open(picture):
            self.follows.setdefault(node.name, {})[row.partition] = row.generation
        for found, members in placement.full_containers(picture, 1 << 30):
            assert members
            for member in members:
                held = self.holds.get(member.name, {})
                if found.container_id in held:
                    held[found.container_id] = replace(held[found.container_id], closed=True)
        for copy in placement.copies(picture):
            assert copy.target not in self.down
            assert copy.target not in picture.containers[copy.container_id].held_by
            self.holds.setdefault(copy.target, {})[copy.container_id] = container(
                copy.container_id, partition=copy.partition
            )
        return picture

    def create(self, created: CreatePipeline) -> None:
        """Carry out a CreatePipeline as the Object Manager does, which refuses what breaks its rules."""
        tx = DictTransaction(DictTables(), 1)
        for row in self.rows.values():
            tables.put_pipeline(tx, row)
        prepared = RequestPreparation(
            body=created, caller="", index=1, now_ms=self.now_ms, object_id=1, session_id=1, blocks=[]
        )  # fmt: skip
        handler = next(one for one in HANDLERS if one.body is CreatePipeline)
        handler.check(created)
        handler.apply(created, prepared, tx)
        made = tables.get_pipeline(tx, created.partition)
        assert made is not None
        self.rows[created.partition] = made

    def settle(self, turns: int = 40) -> Picture:
        for _ in range(turns):
            picture = self.turn()
        return picture

    def write(self, number: int, partition: int) -> None:
        """Put an open container on a pipeline's members."""
        for one in self.rows[partition].members:
            held = container(number, partition=partition, closed=False)
            self.holds.setdefault(one.datanode, {})[number] = held

    def in_service(self) -> set[str]:
        return {
            name for name in self.racks if name not in self.down and self.states.get(name, IN_SERVICE) == IN_SERVICE
        }
