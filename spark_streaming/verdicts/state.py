"""A shard's audit state on Spark's state store: the variables, and the bytes in them.

Four state variables for each partition of each log (key of the stateful operator):

* ``core``: the small part (:class:`AuditState`), read and written with every micro-batch: position and expectations as
  JSON, sums as little-endian unsigned 64-bit integers.
* ``barriers``: offset -> index, chain, sums of a kept barrier.
* ``reports``: (barrier offset, node, basis) -> a report that came before its barrier, as an encoded AuditReport.
* ``blocks``: (barrier offset, node) -> an encoded BlockReport whose scan still waits for other members.

A change of this layout, the column families included, needs a new name of the checkpoint directory
(``AuditConfig.checkpoint_dir``).
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from schemas.codecs.codec import decode_as, encode
from schemas.records.datanode import BlockReport
from schemas.records.messages import AuditReport
from spark_streaming.records.core.reading import AuditPosition, GenesisFacts
from spark_streaming.verdicts.core import digests
from spark_streaming.verdicts.core.inputs import ReplicaReport, ReportKey, ReportPlace
from spark_streaming.verdicts.core.shard_state import (
    AuditState,
    BaseChange,
    ChangedSlot,
    EarlyReport,
    HeldBack,
    KeptBarrier,
    LogStanding,
    Scan,
    Waiting,
)

CORE_SCHEMA = "json string, sums binary"
BARRIER_KEY = "offset long"
BARRIER_SCHEMA = "index long, chain binary, sums binary, blind boolean"
REPORT_KEY = "offset long, node string, basis string"
REPORT_SCHEMA = "offset long, value binary"
BLOCKS_KEY = "offset long, node string"
BLOCKS_SCHEMA = "value binary"


def state_row(state: AuditState) -> tuple[str, bytes]:
    """Return the small part of the state as a row of CORE_SCHEMA."""
    position = asdict(state.position)
    position |= {"nonce": state.position.nonce.hex(), "chain": state.position.chain.hex()}
    waiting = [
        [at, w.deadline_ms, w.index, sorted(w.missing), w.voters, sorted(w.held)] for at, w in state.waiting.items()
    ]
    document = {
        "position": position,
        "waiting": waiting,
        "early": [[*place, early.deadline_ms, early.offset, early.size] for place, early in state.early.items()],
        "held_back": state.held_back,
        "scans": [[at, s.deadline_ms, sorted(s.reported)] for at, s in state.scans.items()],
        "standing": state.standing.value,
        "broken_at": state.broken_at,
        "broken_reason": state.broken_reason,
        "base": None if state.base is None else asdict(state.base),
    }
    return json.dumps(document), digests.to_bytes(state.sums)


def state_from(row: tuple[str, bytes] | None, families: int) -> AuditState:
    """Restore the small part of the state; None gives the state of a new shard."""
    if row is None:
        return AuditState(position=AuditPosition(), sums=digests.zeros(families))
    document = json.loads(row[0])
    return AuditState(
        position=_position(document["position"]),
        sums=digests.from_bytes(row[1]),
        scans={at: Scan(deadline_ms=due, reported=set(nodes)) for at, due, nodes in document["scans"]},
        waiting={
            at: Waiting(deadline_ms=due, index=index, missing=_keys(missing), voters=voters, held=_keys(held))
            for at, due, index, missing, voters, held in document["waiting"]
        },
        early={
            ReportPlace(at, node, basis): EarlyReport(deadline_ms=due, offset=offset, size=size)
            for at, node, basis, due, offset, size in document["early"]
        },
        held_back=None if document["held_back"] is None else HeldBack(*document["held_back"]),
        standing=LogStanding(document["standing"]),
        broken_at=document["broken_at"],
        broken_reason=document["broken_reason"],
        base=None if document["base"] is None else _base(document["base"]),
    )


def _position(values: dict[str, Any]) -> AuditPosition:
    genesis = values["genesis"]
    if genesis is not None:
        lists = {name: tuple(genesis[name]) for name in ("replicas", "column_families")}
        genesis = GenesisFacts(**(genesis | lists))
    raw = {name: bytes.fromhex(values[name]) for name in ("nonce", "chain")}
    return AuditPosition(**(values | raw | {"genesis": genesis, "members": tuple(values["members"])}))


def _base(values: dict[str, Any]) -> BaseChange:
    return BaseChange(**(values | {"named": tuple(ChangedSlot(*one) for one in values["named"])}))


def _keys(pairs: list[list[str]]) -> set[ReportKey]:
    return {ReportKey(node, basis) for node, basis in pairs}


def report_value(report: ReplicaReport) -> bytes:
    """Encode a kept report."""
    return encode(
        AuditReport(
            cluster=report.cluster,
            node=report.node,
            shard=report.shard,
            basis=report.basis,
            barrier_offset=report.barrier_offset,
            index=report.index,
            chain=report.chain,
            slots=list(map(int, report.slots)),
            sums=list(map(int, report.sums)),
            flagged=report.flagged,
            evidence=report.evidence,
            reported_at_ms=0,
        )
    )


def report_from(partition: int, offset: int, value: bytes) -> ReplicaReport:
    """Restore a kept report."""
    return replica_report(partition, offset, decode_as(AuditReport, bytes(value)))


def replica_report(partition: int, offset: int, report: AuditReport) -> ReplicaReport:
    """Return a report as the matching takes it; ``partition`` and ``offset`` are those of its record."""
    wanted = {field.name: getattr(report, field.name) for field in fields(AuditReport)}
    del wanted["reported_at_ms"]
    return ReplicaReport(partition=partition, offset=offset, **wanted)


class SparkStore:
    """Kept barriers and reports in three of Spark's map states; ``BufferedStore`` stands before it."""

    def __init__(self, shard: int, barriers: Any, reports: Any, blocks: Any) -> None:
        self.shard = shard
        self._barriers = barriers
        self._reports = reports
        self._blocks = blocks

    def put_blocks(self, report: BlockReport) -> None:
        """Keep a member's report of blocks under (barrier offset, node)."""
        self._blocks.updateValue((report.log_offset, report.datanode), (encode(report),))

    def get_blocks(self, offset: int, node: str) -> BlockReport:
        """Return a kept report of blocks."""
        return decode_as(BlockReport, bytes(self._blocks.getValue((offset, node))[0]))

    def drop_blocks(self, offset: int, node: str) -> None:
        """Forget a kept report of blocks."""
        self._blocks.removeKey((offset, node))

    def put_barrier(self, barrier: KeptBarrier) -> None:
        """Keep a barrier under its offset."""
        value = (barrier.index, barrier.chain, digests.to_bytes(barrier.sums), barrier.blind)
        self._barriers.updateValue((barrier.offset,), value)

    def get_barrier(self, offset: int) -> KeptBarrier:
        """Return a kept barrier."""
        index, chain, sums, blind = self._barriers.getValue((offset,))
        own = digests.from_bytes(sums)
        return KeptBarrier(offset=offset, index=index, chain=bytes(chain), sums=own, blind=blind)

    def drop_barrier(self, offset: int) -> None:
        """Forget a kept barrier."""
        self._barriers.removeKey((offset,))

    def put_encoded(self, place: ReportPlace, offset: int, value: bytes) -> None:
        """Keep a report at its place, as :func:`report_value` encodes it; ``offset`` is that of its record."""
        self._reports.updateValue(tuple(place), (offset, value))

    def get_report(self, place: ReportPlace) -> ReplicaReport:
        """Return a kept report."""
        offset, value = self._reports.getValue(tuple(place))
        return report_from(self.shard, offset, value)

    def drop_report(self, place: ReportPlace) -> None:
        """Forget a kept report."""
        self._reports.removeKey(tuple(place))
