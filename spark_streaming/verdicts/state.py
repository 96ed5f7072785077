"""A shard's audit state on Spark's state store: what is stored under which name, and in which bytes.

Four state variables for each partition of each log (key of the stateful operator):

* ``core``: the small part, read and written with every micro-batch: position and expectations as JSON, sums as
  little-endian unsigned 64-bit integers.
* ``barriers``: offset -> index, chain, sums of a kept barrier.
* ``reports``: (barrier offset, node, basis) -> a report that came before its barrier, as an encoded AuditReport.
* ``blocks``: (barrier offset, node) -> an encoded BlockReport whose scan still waits for other members.

A later version must read the state of an earlier one, or be started with a new checkpoint directory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from schemas.codecs.codec import decode_as, encode
from schemas.records.datanode import BlockReport
from schemas.records.messages import AuditReport
from spark_streaming.records.core.reading import AuditPosition, GenesisFacts
from spark_streaming.verdicts.core.digests import Sums, grown, zeros
from spark_streaming.verdicts.core.matching import Core, KeptBarrier, Key, ReplicaReport, Scan, Waiting

CORE_SCHEMA = "json string, sums binary"
BARRIER_KEY = "offset long"
BARRIER_SCHEMA = "index long, chain binary, sums binary, blind boolean"
REPORT_KEY = "offset long, node string, basis string"
REPORT_SCHEMA = "offset long, value binary"
BLOCKS_KEY = "offset long, node string"
BLOCKS_SCHEMA = "value binary"


def sums_bytes(sums: Sums) -> bytes:
    """Return sums as little-endian unsigned 64-bit integers."""
    return sums.astype("<u8").tobytes()


def sums_from(data: bytes) -> Sums:
    """Restore sums; the array may be written to."""
    return np.frombuffer(bytes(data), dtype="<u8").astype(np.uint64)


def core_row(core: Core) -> tuple[str, bytes]:
    """Return the core as a row of CORE_SCHEMA."""
    position = asdict(core.position)
    position |= {"nonce": core.position.nonce.hex(), "chain": core.position.chain.hex()}
    waiting = [
        [at, w.deadline_ms, w.index, sorted(w.missing), w.voters, sorted(w.held)] for at, w in core.waiting.items()
    ]
    early = [[*at, deadline_ms] for at, deadline_ms in core.early.items()]
    document = {
        "position": position,
        "waiting": waiting,
        "early": early,
        "scans": [[at, s.deadline_ms, sorted(s.reported)] for at, s in core.scans.items()],
        "blind": core.blind,
        "broken_at": core.broken_at,
        "broken_reason": core.broken_reason,
    }
    return json.dumps(document), sums_bytes(core.sums)


def core_from(row: tuple[str, bytes] | None, families: int) -> Core:
    """Restore the core; None gives that of a shard never seen."""
    if row is None:
        return Core(position=AuditPosition(), sums=zeros(families))
    document = json.loads(row[0])
    position = document["position"]
    position |= {"nonce": bytes.fromhex(position["nonce"]), "chain": bytes.fromhex(position["chain"])}
    if position["genesis"] is not None:
        genesis = position["genesis"]
        lists = {name: tuple(genesis[name]) for name in ("replicas", "column_families")}
        position["genesis"] = GenesisFacts(**(genesis | lists))
    # State of before Members records existed has none.
    named = position["genesis"].replicas if position["genesis"] is not None else ()
    position["members"] = tuple(position.get("members", named))
    return Core(
        position=AuditPosition(**position),
        sums=grown(sums_from(row[1]), families),
        scans={at: Scan(deadline_ms=due, reported=set(nodes)) for at, due, nodes in document.get("scans", ())},
        waiting={
            at: _waiting(deadline_ms, index, missing, *alone)
            for at, deadline_ms, index, missing, *alone in document["waiting"]
        },
        blind=document.get("blind", False),
        early={(at, node, basis): deadline_ms for at, node, basis, deadline_ms in document["early"]},
        broken_at=document["broken_at"],
        broken_reason=document["broken_reason"],
    )


def _waiting(
    deadline_ms: int | None,
    index: int,
    missing: list[list[str]],
    voters: int | None = None,
    held: Sequence[list[str]] = (),
) -> Waiting:
    """Restore what a barrier waits for; the state of before late validation has neither voters nor held reports."""
    keys = [{(node, basis) for node, basis in pairs} for pairs in (missing, held)]
    return Waiting(deadline_ms=deadline_ms, index=index, missing=keys[0], voters=voters, held=keys[1])


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
    report = decode_as(AuditReport, bytes(value))
    wanted = {field.name: getattr(report, field.name) for field in fields(AuditReport)}
    del wanted["reported_at_ms"]
    return ReplicaReport(partition=partition, offset=offset, **wanted)


class SparkStore:
    """:class:`matching.Store` on three of Spark's map states."""

    def __init__(self, shard: int, barriers: Any, reports: Any, blocks: Any) -> None:
        self._shard = shard
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
        value = (barrier.index, barrier.chain, sums_bytes(barrier.sums), barrier.blind)
        self._barriers.updateValue((barrier.offset,), value)

    def get_barrier(self, offset: int) -> KeptBarrier:
        """Return a kept barrier."""
        index, chain, sums, blind = self._barriers.getValue((offset,))
        return KeptBarrier(offset=offset, index=index, chain=bytes(chain), sums=sums_from(sums), blind=bool(blind))

    def drop_barrier(self, offset: int) -> None:
        """Forget a kept barrier."""
        self._barriers.removeKey((offset,))

    def put_report(self, report: ReplicaReport) -> None:
        """Keep a report under (barrier offset, node, basis)."""
        self._reports.updateValue((report.barrier_offset, *report.key), (report.offset, report_value(report)))

    def get_report(self, barrier_offset: int, key: Key) -> ReplicaReport:
        """Return a kept report."""
        offset, value = self._reports.getValue((barrier_offset, *key))
        return report_from(self._shard, offset, value)

    def drop_report(self, barrier_offset: int, key: Key) -> None:
        """Forget a kept report."""
        self._reports.removeKey((barrier_offset, *key))


class MatchingState:
    """:class:`matching.Store` on dicts, going through the same bytes: for the batch job's and the tests' use."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self.barriers: dict[int, KeptBarrier] = {}
        self.reports: dict[tuple[int, str, str], tuple[int, bytes]] = {}
        self.blocks: dict[tuple[int, str], bytes] = {}

    def put_blocks(self, report: BlockReport) -> None:
        """Keep a member's report of blocks under (barrier offset, node)."""
        self.blocks[report.log_offset, report.datanode] = encode(report)

    def get_blocks(self, offset: int, node: str) -> BlockReport:
        """Return a kept report of blocks."""
        return decode_as(BlockReport, self.blocks[offset, node])

    def drop_blocks(self, offset: int, node: str) -> None:
        """Forget a kept report of blocks."""
        del self.blocks[offset, node]

    def put_barrier(self, barrier: KeptBarrier) -> None:
        """Keep a barrier under its offset."""
        self.barriers[barrier.offset] = barrier

    def get_barrier(self, offset: int) -> KeptBarrier:
        """Return a kept barrier."""
        return self.barriers[offset]

    def drop_barrier(self, offset: int) -> None:
        """Forget a kept barrier."""
        del self.barriers[offset]

    def put_report(self, report: ReplicaReport) -> None:
        """Keep a report under (barrier offset, node, basis)."""
        self.reports[report.barrier_offset, *report.key] = (report.offset, report_value(report))

    def get_report(self, barrier_offset: int, key: Key) -> ReplicaReport:
        """Return a kept report."""
        offset, value = self.reports[barrier_offset, *key]
        return report_from(self._shard, offset, value)

    def drop_report(self, barrier_offset: int, key: Key) -> None:
        """Forget a kept report."""
        del self.reports[barrier_offset, *key]
