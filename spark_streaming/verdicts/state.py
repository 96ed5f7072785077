"""A shard's audit state on Spark's state store: one variable, and the bytes in its rows.

One map for each partition of each log (key of the stateful operator). Its rows are of four kinds (:class:`KeptKind`):

* CORE: the small part (:class:`AuditState`), read and written with every micro-batch. ``text`` is JSON, ``value`` the
  sums as little-endian unsigned 64-bit integers.
* BARRIER, by offset: a kept barrier. ``number`` is its index, ``text`` its chain in hexadecimal, ``value`` the sums.
* REPORT, by (barrier offset, node, basis): a report that came before its barrier. ``number`` is its offset in the topic
  of reports, ``value`` an encoded AuditReport.
* BLOCKS, by (barrier offset, node): an encoded BlockReport whose scan still waits for other members.

Each variable costs encoders, compiled anew for every task of every micro-batch, and most micro-batches are small: four
variables took a fifth of what Java does for one (decision 0086).

A change of this layout, the column families included, needs a new name of the checkpoint directory
(``AuditConfig.checkpoint_dir``).
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from enum import StrEnum
from typing import Any, Protocol

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

KEPT_KEY = "kind string, offset long, node string, basis string"
KEPT_SCHEMA = "number long, blind boolean, text string, value binary"

KeptKey = tuple[str, int, str, str]
KeptRow = tuple[int, bool, str, bytes]


class KeptKind(StrEnum):
    """What a row of the state is."""

    CORE = "core"
    BARRIER = "barrier"
    REPORT = "report"
    BLOCKS = "blocks"


class KeptRows(Protocol):
    """A map of Spark's state, from KEPT_KEY to KEPT_SCHEMA (PySpark's ``MapState``)."""

    def getValue(self, key: Any) -> Any:  # noqa: N802 - Spark's names
        """Return a row, None if there is none."""

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        """Set a row."""

    def removeKey(self, key: Any) -> None:  # noqa: N802
        """Remove a row; an absent one is no error."""


def state_row(state: AuditState) -> tuple[str, bytes]:
    """Return the small part of the state as text and value of its row."""
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
    """A shard's rows in Spark's state; ``BufferedStore`` stands before the kept barriers and reports."""

    def __init__(self, shard: int, rows: KeptRows) -> None:
        self.shard = shard
        self._rows = rows

    def load(self, families: int) -> AuditState:
        """Return the small part of the state; that of a new shard if there is none."""
        row = self._rows.getValue(_CORE)
        return state_from(None if row is None else (row[2], row[3]), families)

    def save(self, state: AuditState) -> None:
        """Keep the small part of the state."""
        self._put(_CORE, *state_row(state))

    def put_blocks(self, report: BlockReport) -> None:
        """Keep a member's report of blocks under (barrier offset, node)."""
        self._put(_blocks_key(report.log_offset, report.datanode), "", encode(report))

    def get_blocks(self, offset: int, node: str) -> BlockReport:
        """Return a kept report of blocks."""
        return decode_as(BlockReport, bytes(self._rows.getValue(_blocks_key(offset, node))[3]))

    def drop_blocks(self, offset: int, node: str) -> None:
        """Forget a kept report of blocks."""
        self._rows.removeKey(_blocks_key(offset, node))

    def put_barrier(self, barrier: KeptBarrier) -> None:
        """Keep a barrier under its offset."""
        sums = digests.to_bytes(barrier.sums)
        self._put(_barrier_key(barrier.offset), barrier.chain.hex(), sums, number=barrier.index, blind=barrier.blind)

    def get_barrier(self, offset: int) -> KeptBarrier:
        """Return a kept barrier."""
        index, blind, chain, sums = self._rows.getValue(_barrier_key(offset))
        own = digests.from_bytes(sums)
        return KeptBarrier(offset=offset, index=index, chain=bytes.fromhex(chain), sums=own, blind=blind)

    def drop_barrier(self, offset: int) -> None:
        """Forget a kept barrier."""
        self._rows.removeKey(_barrier_key(offset))

    def put_encoded(self, place: ReportPlace, offset: int, value: bytes) -> None:
        """Keep a report at its place, as :func:`report_value` encodes it; ``offset`` is that of its record."""
        self._put(_report_key(place), "", value, number=offset)

    def get_report(self, place: ReportPlace) -> ReplicaReport:
        """Return a kept report."""
        offset, _, _, value = self._rows.getValue(_report_key(place))
        return report_from(self.shard, offset, value)

    def drop_report(self, place: ReportPlace) -> None:
        """Forget a kept report."""
        self._rows.removeKey(_report_key(place))

    def _put(self, key: KeptKey, text: str, value: bytes, *, number: int = 0, blind: bool = False) -> None:
        row: KeptRow = number, blind, text, value
        self._rows.updateValue(key, row)


_CORE: KeptKey = (KeptKind.CORE.value, 0, "", "")


def _barrier_key(offset: int) -> KeptKey:
    return KeptKind.BARRIER.value, offset, "", ""


def _report_key(place: ReportPlace) -> KeptKey:
    return KeptKind.REPORT.value, *place


def _blocks_key(offset: int, node: str) -> KeptKey:
    return KeptKind.BLOCKS.value, offset, node, ""
