"""A shard's log as a leader under load writes it, with true reports of its replicas; large, so sums are kept, not rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.codecs.codec import encode
from schemas.column_families import KEY_TABLE, OM_COLUMN_FAMILIES, OPEN_KEY_TABLE, RETRY_TABLE, USAGE_TABLE
from schemas.records.log import Delete, Merge, Operation, Put, Result
from schemas.records.messages import AuditReport, Response
from schemas.records.rows import BlockLocation, KeyInfo
from tests.support.logs.logbuilder import CLUSTER, REPLICAS, At, LogBuilder, counter, row_hash, signed, slot_of

MASK = (1 << 64) - 1
CLIENT = b"benchmark-client"


@dataclass
class LoadedLog(LogBuilder):
    """A LogBuilder of created and committed keys. ``operations``: of all batches; ``changes``: retry rows too."""

    sums: list[int] = field(default_factory=lambda: [0] * (256 * len(OM_COLUMN_FAMILIES)))
    operations: int = 0
    changes: int = 0
    keys: int = 0
    used: int = 0

    def write(self, keys: int) -> int:
        """Append a batch that creates and commits so many keys; return its offset.

        As a leader does, it folds the merges of a counter into one.
        """
        operations: list[Operation] = []
        results: list[Result] = []
        for _ in range(keys):
            operations += self._key()
            results += [self._result("CreateKey"), self._result("CommitKey")]
        operations.append(self._usage(keys))
        self.timestamp_ms += 1
        record = self.batch_of(operations, results, len(results))
        self.index += len(results)
        self.operations += len(operations)
        self.changes += len(operations) + len(results)
        return self.count(record)

    def _key(self) -> list[Operation]:
        self.keys += 1
        key, value = b"/vol1/bucket1/dir-%03d/file-%08d" % (self.keys % 1000, self.keys), _row(self.keys)
        session = key + b"/%d" % self.keys
        opened = self._changed(OPEN_KEY_TABLE, session, value)
        self._changed(OPEN_KEY_TABLE, session, value, sign=-1)
        self._changed(KEY_TABLE, key, value)
        return [
            Put(cf=OPEN_KEY_TABLE, key=session, value=value, prev=None),
            Put(cf=KEY_TABLE, key=key, value=value, prev=None),
            Delete(cf=OPEN_KEY_TABLE, key=session, prev=opened),
        ]

    def _usage(self, keys: int) -> Merge:
        key, before = b"/vol1/bucket1/#usedBytes", counter(self.used)
        prev = self._changed(USAGE_TABLE, key, before, sign=-1) if self.used else None
        self.used += keys << 20
        after = self._changed(USAGE_TABLE, key, counter(self.used))
        return Merge(
            cf=USAGE_TABLE, key=key, operator="add_int64", operand=counter(keys << 20), prev=prev, next=after
        )  # fmt: skip

    def _result(self, request_type: str) -> Result:
        self.calls += 1
        call_id = self.calls.to_bytes(8, "big")
        response = encode(
            Response(
                client_id=CLIENT, call_id=self.calls, shard=self.shard, index=self.calls, status="OK", message="",
                result=None,
            )
        )  # fmt: skip
        request_hash = hashlib.md5(call_id).digest()
        self._changed(RETRY_TABLE, CLIENT + call_id, request_hash + response)
        return Result(
            client_id=CLIENT, call_id=call_id, request_hash=request_hash, first_sent_at_ms=self.timestamp_ms - 5,
            request_type=request_type, index=self.calls, recorded=True, response=response,
        )  # fmt: skip

    def _changed(self, cf: str, key: bytes, value: bytes, *, sign: int = 1) -> int:
        found = row_hash(cf, key, value)
        slot = slot_of(cf, key)
        self.sums[slot] = (self.sums[slot] + sign * found) & MASK
        return found

    def reported_barrier(self, nodes: Sequence[str] = REPLICAS, **changed: Any) -> tuple[At, list[AuditReport]]:
        """Append a barrier; return it, and what the replicas report there."""
        at = self.barrier()
        slots = [slot for slot, total in enumerate(self.sums) if total]
        sums = [signed(self.sums[slot]) for slot in slots]
        fields: dict[str, Any] = {
            "cluster": CLUSTER, "shard": self.shard, "basis": "incremental", "barrier_offset": at.offset,
            "index": at.index, "chain": at.chain, "slots": slots, "sums": sums, "flagged": False, "evidence": None,
            "reported_at_ms": self.timestamp_ms,
        } | changed  # fmt: skip
        return at, [AuditReport(node=node, **fields) for node in nodes]


def _row(number: int) -> bytes:
    block = BlockLocation(container_id=number >> 10, local_id=number, offset=0, length=1 << 20, pipeline="pipeline-1")
    return encode(
        KeyInfo(
            volume="vol1", bucket="bucket1", key=f"dir-{number % 1000:03}/file-{number:08}", owner="benchmark",
            object_id=number, update_id=number, size=1 << 20, replication="RATIS/THREE", blocks=[block], metadata={},
            creation_time_ms=1_700_000_000_000 + number, modification_time_ms=1_700_000_000_000 + number,
        )
    )  # fmt: skip
