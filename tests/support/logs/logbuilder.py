"""Builds real logs, encoded as leaders encode them, beside an independent model of the state that they lead to.

The model is a plain dict of rows: nothing of it comes from the audited packages or from the audit. Tests make the log
lie (``false_prev``), stale leaders write (``stale``), replicas differ (``report(..., rows=...)``).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from xxhash import xxh64_intdigest

from schemas.codecs.codec import encode
from schemas.column_families import BLOCK_TABLE, OM_COLUMN_FAMILIES, RETRY_TABLE, USAGE_TABLE
from schemas.features import LATEST
from schemas.records.log import (
    Barrier,
    Batch,
    Checkpoint,
    Delete,
    DigestBase,
    FeatureLevel,
    Genesis,
    LateRequest,
    LeaderClaim,
    Members,
    Merge,
    Mode,
    Operation,
    Prepared,
    Put,
    RequestBatch,
    Result,
    Tick,
)
from schemas.records.messages import AuditReport, Evidence, Response

CLUSTER = "test-cluster"
REPLICAS = ("om1", "om2", "om3")
START_MS = 1_750_000_000_000
Row = tuple[str, bytes]
Rows = dict[Row, bytes]
MASK = (1 << 64) - 1


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def row_hash(cf: str, key: bytes, value: bytes) -> int:
    return signed(xxh64_intdigest(value, xxh64_intdigest(key, xxh64_intdigest(cf.encode(), 42))))


def slot_of(cf: str, key: bytes, families: Sequence[str] = OM_COLUMN_FAMILIES) -> int:
    return families.index(cf) * 256 + (xxh64_intdigest(key, xxh64_intdigest(cf.encode(), 42)) & 255)


def digest(rows: Rows, families: Sequence[str] = OM_COLUMN_FAMILIES) -> dict[int, int]:
    """Slot -> unsigned sum, of the slots whose sum is not 0."""
    sums: dict[int, int] = defaultdict(int)
    for (cf, key), value in rows.items():
        sums[slot_of(cf, key, families)] += row_hash(cf, key, value)
    return {slot: total & MASK for slot, total in sorted(sums.items()) if total & MASK}


def total_hex(rows: Rows, families: Sequence[str] = OM_COLUMN_FAMILIES) -> str:
    return f"{sum(digest(rows, families).values()) & MASK:016x}"


def counter(value: int) -> bytes:
    return (value & MASK).to_bytes(8, "big")


def merged_max(base: bytes | None, operand: bytes) -> bytes:
    return operand if base is None or operand > base else base


def merged(base: bytes | None, operand: bytes) -> bytes:
    return counter(int.from_bytes(base or b"", "big") + int.from_bytes(operand, "big"))


@dataclass
class At:
    """The log's truth at a barrier."""

    offset: int
    index: int
    chain: bytes
    rows: Rows
    scrub: bool


@dataclass
class LogBuilder:
    """One shard's log. ``values`` are its Kafka values; the offset of a record is its position in them."""

    shard: int = 0
    shards: int = 1
    values: list[bytes] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    term: int = 0
    nonce: bytes = bytes(16)
    seq: int = 0
    chain: bytes = bytes(32)
    index: int = 0
    timestamp_ms: int = START_MS
    calls: int = 0
    barriers: list[At] = field(default_factory=list)
    families: tuple[str, ...] = OM_COLUMN_FAMILIES
    replicas: tuple[str, ...] = REPLICAS

    # Records.

    def start(self) -> Self:
        self.claim()
        self.genesis()
        return self

    def header(self) -> dict[str, Any]:
        return {"term": self.term, "nonce": self.nonce, "seq": self.seq + 1, "prev_chain": self.chain}

    def append(self, record: object) -> int:
        """Append whatever it is, effective or not; return its offset."""
        return self.append_value(encode(record))

    def append_value(self, value: bytes) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def count(self, record: object) -> int:
        """Append a record that counts."""
        value = encode(record)
        self.seq += 1
        self.chain = hashlib.sha256(self.chain + value).digest()
        return self.append_value(value)

    def claim(self, node: str = "om1") -> int:
        self.term += 1
        self.seq = 0
        self.nonce = hashlib.md5(f"{self.shard}/{self.term}/{node}".encode()).digest()
        claim = LeaderClaim(
            term=self.term, nonce=self.nonce, node=node, address="127.0.0.1:1", claimed_at_ms=self.timestamp_ms
        )
        value = encode(claim)
        self.chain = hashlib.sha256(self.chain + value).digest()
        return self.append_value(value)

    def genesis(self, **changed: Any) -> int:
        fields: dict[str, Any] = {
            **self.header(),
            "cluster": CLUSTER,
            "shard": self.shard,
            "shards": self.shards,
            "replicas": list(self.replicas),
            "column_families": list(self.families),
        } | changed
        return self.count(Genesis(**fields))

    def tick(self) -> int:
        return self.count(Tick(**self.header()))

    def barrier(self, *, scrub: bool = False) -> At:
        offset = self.count(Barrier(**self.header(), index=self.index, scrub=scrub))
        at = At(offset=offset, index=self.index, chain=self.chain, rows=dict(self.rows), scrub=scrub)
        self.barriers.append(at)
        return at

    def digest_base(self, rows: Rows | None = None) -> int:
        slots = digest(self.rows if rows is None else rows, self.families)
        return self.count(
            DigestBase(
                **self.header(),
                index=self.index,
                slots=list(slots),
                sums=[signed(s) for s in slots.values()],
                basis="oracle",
            )
        )

    def members(self, *names: str) -> int:
        return self.count(Members(**self.header(), index=self.index, replicas=list(names)))

    def feature_level(self, level: int) -> int:
        return self.count(FeatureLevel(**self.header(), index=self.index, level=level))

    def prepared(self, checkpoint: str) -> int:
        prepared = bool(checkpoint)
        return self.count(Prepared(**self.header(), index=self.index, prepared=prepared, checkpoint=checkpoint))

    # Operations on the model: each returns the operation with a true prev.

    def put(self, cf: str, key: bytes, value: bytes) -> Put:
        prev = self.hash_of(cf, key)
        self.rows[cf, key] = value
        return Put(cf=cf, key=key, value=value, prev=prev)

    def delete(self, cf: str, key: bytes) -> Delete:
        prev = self.hash_of(cf, key)
        self.rows.pop((cf, key), None)
        return Delete(cf=cf, key=key, prev=prev)

    def merge(self, key: bytes, amount: int, cf: str = USAGE_TABLE) -> Merge:
        prev = self.hash_of(cf, key)
        operand = counter(amount)
        value = self.rows[cf, key] = merged(self.rows.get((cf, key)), operand)
        return Merge(cf=cf, key=key, operator="add_int64", operand=operand, prev=prev, next=row_hash(cf, key, value))

    def merge_max(self, key: bytes, operand: bytes, cf: str = BLOCK_TABLE) -> Merge:
        prev = self.hash_of(cf, key)
        value = self.rows[cf, key] = merged_max(self.rows.get((cf, key)), operand)
        return Merge(cf=cf, key=key, operator="max_bytes", operand=operand, prev=prev, next=row_hash(cf, key, value))

    def hash_of(self, cf: str, key: bytes) -> int | None:
        value = self.rows.get((cf, key))
        return None if value is None else row_hash(cf, key, value)

    def result(self, *, recorded: bool = True, request_type: str = "CreateKey", status: str = "OK") -> Result:
        self.calls += 1
        client_id, call_id = b"client-%09d" % self.shard, self.calls.to_bytes(8, "big")
        response = encode(
            Response(
                client_id=client_id,
                call_id=self.calls,
                shard=self.shard,
                index=self.index + 1,
                status=status,
                message="",
                result=None,
            )
        )
        request_hash = hashlib.md5(call_id).digest()
        if recorded:
            self.rows[RETRY_TABLE, client_id + call_id] = request_hash + response
        return Result(
            client_id=client_id,
            call_id=call_id,
            request_hash=request_hash,
            first_sent_at_ms=self.timestamp_ms - 5,
            request_type=request_type,
            index=self.index + 1,
            recorded=recorded,
            response=response,
        )

    def batch_of(self, operations: list[Operation], results: list[Result], indexes: int) -> Batch:
        return Batch(
            **self.header(),
            first_index=self.index + 1,
            last_index=self.index + indexes,
            timestamp_ms=self.timestamp_ms,
            request_position=None,
            operations=operations,
            results=results,
        )

    def batch(self, *operations: Operation, results: int = 1, recorded: bool = True) -> int:
        self.timestamp_ms += 10
        derived = [self.result(recorded=recorded) for _ in range(results)]
        offset = self.count(self.batch_of(list(operations), derived, results))
        self.index += results
        return offset

    def request_batch(self, *operations: Operation, requests: int = 1) -> int:
        """Requests under late validation: the log holds them alone, the model what every replica makes of them."""
        del operations  # they have changed the model, and are in no record
        self.timestamp_ms += 10
        found = [self.result() for _ in range(requests)]
        offset = self.count(
            RequestBatch(
                **self.header(),
                first_index=self.index + 1,
                last_index=self.index + requests,
                timestamp_ms=self.timestamp_ms,
                request_position=None,
                requests=[
                    LateRequest(
                        client_id=result.client_id,
                        call_id=result.call_id,
                        request_hash=result.request_hash,
                        first_sent_at_ms=result.first_sent_at_ms,
                        request_type=result.request_type,
                        index=self.index + 1 + number,
                        prepared=b"request",
                    )
                    for number, result in enumerate(found)
                ],
            )
        )
        self.index += requests
        return offset

    def mode(self, request_type: str = "CreateKey", mode: str = "late") -> int:
        return self.count(Mode(**self.header(), index=self.index, request_type=request_type, mode=mode))

    # Records that have no effect.

    def stale(self, term: int, nonce: bytes = b"s" * 16) -> int:
        """A deposed leader's batch: as if it went on at its own seq."""
        batch = self.batch_of([Put(cf="keyTable", key=b"/v/b/stale", value=b"x", prev=None)], [], 1)
        return self.append(replace(batch, term=term, nonce=nonce))

    def lost_claim(self) -> int:
        """A twin's claim of a term that is taken."""
        return self.append(
            LeaderClaim(term=self.term, nonce=b"t" * 16, node="om9", address="x:1", claimed_at_ms=self.timestamp_ms)
        )

    def gap(self) -> int:
        batch = self.batch_of([Put(cf="keyTable", key=b"/v/b/gap", value=b"x", prev=None)], [], 1)
        return self.append(replace(batch, seq=self.seq + 2))

    def duplicate(self) -> int:
        return self.append_value(self.values[-1])

    # Replicas.

    def report(self, at: At, node: str = "om1", *, rows: Rows | None = None, **changed: Any) -> AuditReport:
        slots = digest(at.rows if rows is None else rows, self.families)
        fields: dict[str, Any] = {
            "cluster": CLUSTER,
            "node": node,
            "shard": self.shard,
            "basis": "incremental",
            "barrier_offset": at.offset,
            "index": at.index,
            "chain": at.chain,
            "slots": list(slots),
            "sums": [signed(s) for s in slots.values()],
            "flagged": False,
            "evidence": None,
            "reported_at_ms": self.timestamp_ms,
        } | changed
        return AuditReport(**fields)

    def evidence_report(self, node: str, cf: str, key: bytes, own: int | None = 7) -> AuditReport:
        evidence = Evidence(
            index=self.index,
            offset=len(self.values) - 1,
            term=self.term,
            leader="om1",
            operation=0,
            cf=cf,
            key=key,
            claim="prev",
            claimed=None,
            own=own,
        )
        return AuditReport(
            cluster=CLUSTER,
            node=node,
            shard=self.shard,
            basis="evidence",
            barrier_offset=-1,
            index=self.index,
            chain=self.chain,
            slots=[],
            sums=[],
            flagged=True,
            evidence=evidence,
            reported_at_ms=self.timestamp_ms,
        )

    def all_reports(self, nodes: tuple[str, ...] = ()) -> list[AuditReport]:
        """True reports of all nodes at all barriers."""
        nodes = nodes or self.replicas
        bases = {False: ("incremental",), True: ("incremental", "scrubbed")}
        return [
            self.report(at, node, basis=basis) for at in self.barriers for node in nodes for basis in bases[at.scrub]
        ]


def checkpoint(name: str = "c1") -> Checkpoint:
    return Checkpoint(name=name)


def ordinary_log(shard: int = 0, batches: int = 20, shards: int = 1) -> LogBuilder:
    """A log with all kinds of operations, a change of leader and void records, with barriers and a scrub at its end."""
    log = LogBuilder(shard=shard, shards=shards).start()
    for n in range(batches):
        key = b"/vol/b/k%d" % (n % 7)
        operations: list[Operation] = [checkpoint(f"c{n}")] if n % 5 == 4 else []
        operations.append(log.put("keyTable", key, b"value %d" % n))
        operations.append(log.put("openKeyTable", key + b"/%d" % n, b"o" * (n + 1)))
        operations.append(log.merge(b"/vol/b/#usedBytes", 100 * n - 500))
        operations.append(log.merge(b"/vol/b/#usedBytes", 1))
        if n % 3 == 2:
            operations.append(log.delete("keyTable", key))
            operations.append(log.delete("openKeyTable", b"/nothing"))
        log.batch(*operations, results=3, recorded=n % 4 != 3)
        if n % 4 == 1:
            log.barrier()
        if n == batches // 4:
            log.prepared("upgrade")
            log.feature_level(LATEST)
            log.prepared("")
            log.members(*REPLICAS, "om4")
            log.members(*REPLICAS)
        if n == batches // 2:
            old = log.nonce
            log.lost_claim()
            log.claim("om2")
            log.stale(log.term - 1, old)
            log.gap()
    log.tick()
    log.duplicate()
    log.barrier(scrub=True)
    return log
