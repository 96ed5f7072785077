"""What the log means, said a second time: the reading rule, the state, the answers, checked as each record lands.

Nothing of ``replicated_db`` decides here (a planted bug must not deceive the judge): the rule is written from the design, rows are a
dict, the requests are executed by the model of ``tests/support/om/om_model``. The codec and the row hash are shared. One exception: the
operations of logged requests (late validation) are in no log, so they are derived by the product's own code, from the judge's rows;
what they answer is checked against the model like everything else.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_128_digest, xxh64_intdigest

from om_processors.execution.late import OMExecutor
from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace.context import Contexts
from replicated_db.core.applying.late import derive_batch
from replicated_db.core.execution.retry import expiry_row, floors_row
from replicated_db.core.execution.shard_state import ShardState
from replicated_db.core.ports import Entry
from replicated_db.core.tables.column_families import RETRY_EXPIRY
from schemas.codecs.codec import decode
from schemas.column_families import DELETED_TABLE, INLINE_TABLE, KEY_TABLE, OM_COLUMN_FAMILIES, SNAPSHOT_TABLE
from schemas.records.datanode import PipelineRow
from schemas.records.log import (
    LATE_MODE,
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
    Prepared,
    Put,
    RequestBatch,
    Result,
)
from schemas.records.messages import (
    OWN_DIGESTS,
    SHARD_COMMANDS,
    AddNode,
    AllocatedBlock,
    CancelPrepare,
    Finalize,
    KeySession,
    LogDigestBase,
    Prepare,
    RemoveNode,
    Request,
    Response,
    SetRequestMode,
)
from schemas.records.rows import ACTIVE, DELETED, KeyInfo, SnapshotInfo
from tests.support.om.om_model import Model, Refusal

LIFETIME_MS = 300_000
BLOCK_BYTES = 256 * 1024 * 1024
RETRY = OM_COLUMN_FAMILIES[0]
FAMILIES = {name: number for number, name in enumerate(OM_COLUMN_FAMILIES)}
SEEDS = {name: xxh64_intdigest(name.encode(), 42) for name in OM_COLUMN_FAMILIES}
MASK = (1 << 64) - 1
SIGN = 1 << 63

HIGHEST_LEVEL = 12
OPERATORS_LEVEL = 2
"""From this level on operators have their commands; to restart digests and to raise the level they have at every one."""
REQUEST_LEVELS = {
    "CreatePipeline": 3, "RetirePipeline": 3, "SetDatanodeState": 3, "PurgeBlocks": 3, "ExpireOpenKeys": 4,
    "DeleteSnapshot": 7, "RenameSnapshot": 7, "SetSnapshotProperty": 7, "PurgeSnapshots": 7,
    "PutKey": 8,
    "CreateUser": 9, "RotateUser": 9, "RemoveUser": 9, "GetDelegationToken": 9, "RenewDelegationToken": 9, "CancelDelegationToken": 9, "ChangeAcl": 9,
    "ReserveBlocks": 10, "CommitReserved": 10, "ReleaseBlocks": 10,
    "RepairQuota": 12,
    "RemoveDatanode": 12,
}  # fmt: skip
"""Levels that requests, and their modes, belong to."""
SWITCHED_OFF = frozenset({"dn1"})
"""The datanodes that all nodes take to be switched off."""
CONTROL = (Members, FeatureLevel, Prepared, Mode)
Call = tuple[bytes, int]
Row = tuple[str, bytes]


def _gist(cf: str, row: Any) -> Any:
    """Return what the model knows of a row."""
    if isinstance(row, PipelineRow):
        return [member.datanode for member in row.members], row.state, row.generation
    if isinstance(row, SnapshotInfo):
        return row.snapshot, row.state, row.index, row.referenced_bytes, row.referenced_keys, row.properties
    if isinstance(row, KeyInfo):
        size = row.size, len(row.blocks)
        left = size[1], None if row.creation_time_ms else row.modification_time_ms
        return {"deletedTable": left, "openKeyTable": size}.get(cf, row.size)
    return row.state


class Violation(Exception):
    """Something that must always hold did not. The message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state right after a record that took effect."""

    offset: int
    term: int
    seq: int
    index: int
    chain: bytes
    total: int
    timestamp_ms: int


class Rows:
    """The judge's rows as a view for late validation; it is read while a record lands, so nothing changes meanwhile."""

    def __init__(self, rows: dict[Row, bytes]) -> None:
        self._rows = rows

    def get(self, cf: str, key: bytes) -> bytes | None:
        return self._rows.get((cf, key))

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        within = (key for family, key in self._rows if family == cf and key >= start and (stop is None or key < stop))
        for key in sorted(within):
            yield key, self._rows[cf, key]


class Truth:
    """Reads every record as it lands. ``requests`` holds every request ever sent, by the hash of its bytes."""

    def __init__(
        self, requests: dict[bytes, Request], seen: Counter[str], max_batch_requests: int, pipelines: tuple[str, ...]
    ) -> None:
        self.requests = requests
        self.pipelines = pipelines
        self.members: list[str] = []
        self.late: set[str] = set()
        self.prepared = False
        self.base: tuple[int, list[int], list[int]] | None = None
        """The last DigestBase: its index, slots and sums."""
        self.base_is_true = False
        """Whether it gives the sums of the rows as the log has them."""
        self.expiry: dict[Row, bytes] = {}
        self._executor = OMExecutor(Contexts(shard=0, shards=1, pipelines=pipelines))
        self.seen = seen
        self.max_batch_requests = max_batch_requests
        self.term = self.seq = self.index = self.total = self.timestamp_ms = 0
        self.nonce = bytes(16)
        self.leader = ""
        self.chain = bytes(32)
        self.halted: int | None = None
        self.reading = ""
        self.beyond: list[tuple[int, Any]] = []
        """The record that stopped every reader and what lies behind it, with their offsets."""
        self.moments: dict[int, Moment] = {}
        self.void: dict[int, bytes] = {}
        """By offset, the hash of each record that has no effect."""
        self._void_batches: list[tuple[int, Batch | RequestBatch]] = []
        self._claims: set[tuple[int, bytes]] = set()
        """The claims that took effect: term and nonce."""
        self.rows: dict[Row, bytes] = {}
        self.versions: dict[Row, list[tuple[int, bytes | None]]] = {}
        self.effects: dict[Call, Result] = {}
        self.answers: dict[tuple[Call, bytes], dict[bytes, int]] = {}
        self.model = Model(BLOCK_BYTES, on_datanodes=True)
        self.model.gone = SWITCHED_OFF
        self.checkpoints: dict[str, tuple[int, int]] = {}
        """By name: the index of the batch that took it, and the sum of the digests right before that batch."""
        self.purged: set[str] = set()
        """Checkpoints of snapshots whose rows are gone."""

    # -- the reading rule --------------------------------------------------------------------------------------------

    def read(self, entry: Entry) -> None:
        record = decode(entry.value)
        if self.halted is not None:
            self.beyond.append((entry.offset, record))
            return
        self.reading = reading = self._judge(record)
        self.seen[reading] += 1
        if reading.startswith("halt"):
            self.halted = entry.offset
            self.beyond.append((entry.offset, record))
            return
        record_hash = xxh3_128_digest(entry.value)
        if reading not in ("claim", "counts"):
            self.void[entry.offset] = record_hash
            if isinstance(record, Batch | RequestBatch):
                self._void_batches.append((entry.offset, record))
            return
        self.chain = hashlib.sha256(self.chain + entry.value).digest()
        if reading == "claim":
            self.term, self.nonce, self.seq, self.leader = record.term, record.nonce, 0, record.node
            self._claims.add((record.term, record.nonce))
        else:
            self.seq = record.seq
            if isinstance(record, Batch):
                self._check_modes(record, [r.request_type for r in record.results if r.request_type in self.late])
                self._batch(record, entry.offset)
            elif isinstance(record, RequestBatch):
                self._logged(record, entry.offset)
            else:
                self._control(record)
        self.moments[entry.offset] = Moment(
            offset=entry.offset, term=self.term, seq=self.seq, index=self.index, chain=self.chain,
            total=self.total, timestamp_ms=self.timestamp_ms,
        )  # fmt: skip

    def _judge(self, record: Any) -> str:
        if isinstance(record, LeaderClaim):
            if record.term == self.term + 1:
                return "claim"
            return "void: lost claim" if record.term <= self.term else "halt: claim missed"
        if record.term > self.term:
            return "halt: term missed"
        if record.term < self.term or self.term == 0:
            return "void: stale term"
        if record.nonce != self.nonce:
            return "void: twin"
        if record.seq <= self.seq:
            return "void: duplicate"
        if record.seq > self.seq + 1:
            return "void: gap"
        return "counts" if self._continues(record) else "halt: broken"

    def _continues(self, record: Any) -> bool:
        if record.prev_chain != self.chain:
            return False
        if isinstance(record, Batch | RequestBatch):
            return record.first_index == self.index + 1 and record.timestamp_ms >= self.timestamp_ms
        return not isinstance(record, (Barrier, DigestBase, *CONTROL)) or record.index == self.index

    def logs_without_effect(
        self, term: int, nonce: bytes, call: Call, request_hash: bytes, response: bytes, end: int
    ) -> bool:
        """Whether a claim that leads nobody (:meth:`leads_nobody`) has logged this answer up to offset ``end``.

        Of a logged request only the request is in the log, so it stands for any answer to it.
        """
        if not self.leads_nobody(term, nonce):
            return False
        logged: list[Result | LateRequest] = []
        for offset, record in (*self._void_batches, *self.beyond):
            if offset > end or (record.term, record.nonce) != (term, nonce):
                continue
            if isinstance(record, Batch):
                logged += [result for result in record.results if result.response == response]
            elif isinstance(record, RequestBatch):
                logged += record.requests
        asked = (*call, request_hash)
        return any((one.client_id, int.from_bytes(one.call_id, "big"), one.request_hash) == asked for one in logged)

    def leads_nobody(self, term: int, nonce: bytes) -> bool:
        """Whether the claim is void, or every reader stops at its first record, which contradicts what precedes it."""
        if (term, nonce) not in self._claims:
            return True
        return self.reading == "halt: broken" and (self.term, self.nonce, self.seq) == (term, nonce, 0)

    # -- how the shard is run ----------------------------------------------------------------------------------------

    def _control(self, record: Any) -> None:
        if isinstance(record, DigestBase):
            self.base = (record.index, record.slots, record.sums)
            self.base_is_true = self.slots() == (record.slots, record.sums)
        if isinstance(record, Genesis | Members):
            self.members = record.replicas
        if isinstance(record, Genesis):
            self.model.level = record.feature_level
        elif isinstance(record, FeatureLevel):
            self.model.level = record.level
        elif isinstance(record, Prepared):
            self.prepared = record.prepared
        elif isinstance(record, Mode) and record.mode == LATE_MODE:
            self.late.add(record.request_type)
        elif isinstance(record, Mode):
            self.late.discard(record.request_type)
        if isinstance(record, (*CONTROL, DigestBase)):
            self.seen[f"control: {type(record).__name__}"] += 1

    def _check_modes(self, record: Batch | RequestBatch, wrong: list[str]) -> None:
        if wrong:
            raise Violation(f"{wrong} in a {type(record).__name__}, but the modes are: late for {sorted(self.late)}")

    def _logged(self, record: RequestBatch, offset: int) -> None:
        """Take requests that every replica executes."""
        self._check_modes(record, [r.request_type for r in record.requests if r.request_type not in self.late])
        state = ShardState(feature_level=self.model.level)
        derived = derive_batch(OM_FAMILIES, Rows(self.rows | self.expiry), record, self._executor, state)
        self.seen["executed late"] += len(record.requests)
        self.seen.update(f"{logged.request_type}: late" for logged in record.requests)
        self._batch(derived.batch, offset)

    # -- the state ---------------------------------------------------------------------------------------------------

    def _batch(self, batch: Batch, offset: int) -> None:
        if len(batch.results) > self.max_batch_requests:
            raise Violation(f"a batch of {len(batch.results)} requests at {offset}, over {self.max_batch_requests}")
        if batch.operations and batch.last_index < batch.first_index:
            raise Violation(f"a batch without an index changes rows at {offset}")
        if batch.operations and isinstance(batch.operations[0], Checkpoint):
            self.checkpoints[batch.operations[0].name] = (batch.first_index, self.total)
        for operation in batch.operations:
            if isinstance(operation, Put):
                self._change((operation.cf, operation.key), operation.value, operation.prev, offset)
            elif isinstance(operation, Delete):
                self.seen["retry row removed"] += operation.cf == RETRY
                self._change((operation.cf, operation.key), None, operation.prev, offset)
            elif isinstance(operation, Merge):
                row = (operation.cf, operation.key)
                old = int.from_bytes(self.rows.get(row, b""), "big")
                new = ((old + int.from_bytes(operation.operand, "big")) & MASK).to_bytes(8, "big")
                if operation.next != self._hash(row, new):
                    raise Violation(f"a false `next` at {offset}: {row}")
                self._change(row, new, operation.prev, offset)
        self._settle_results(batch)
        self._check_snapshots(batch)
        keys = []
        for result in batch.results:
            if result.recorded:
                keys.append(result.client_id + result.call_id)
                self._change((RETRY, keys[-1]), result.request_hash + result.response, None, offset)
        floors = [one.key for one in batch.operations if isinstance(one, Put) and one.cf == RETRY]
        for expiry, listed in ((expiry_row, keys), (floors_row, floors)):
            if listed:
                key, value = expiry(batch, listed)
                self.expiry[RETRY_EXPIRY, key] = value
        self.index, self.timestamp_ms = batch.last_index, batch.timestamp_ms

    def _check_snapshots(self, batch: Batch) -> None:
        """A new snapshot's checkpoint is of its own index; and no snapshot loses a version that it could read when it was made."""
        for operation in batch.operations:
            if not isinstance(operation, Put | Delete) or operation.cf != SNAPSHOT_TABLE:
                continue
            if isinstance(operation, Put):
                info = decode(operation.value)
                taken = self.checkpoints.get(info.checkpoint)
                if taken is None or taken[0] != info.index:
                    raise Violation(f"snapshot {info.snapshot} of index {info.index} names {info.checkpoint}: {taken}")
                self.seen["snapshot row"] += 1
            elif b"/#" in operation.key:
                self.purged.add("snapshot-" + operation.key.rpartition(b"#")[2].decode())
        if any(isinstance(one, Delete) and one.cf == DELETED_TABLE for one in batch.operations):
            tables = (KEY_TABLE, DELETED_TABLE)
            there = {decode(value).object_id >> 8 for (cf, _), value in self.rows.items() if cf in tables}
            if lost := self.model.lost_versions(there):
                raise Violation(f"snapshots lose what they named: {lost}, by the batch to index {batch.last_index}")
            self.seen["versions kept for snapshots"] += sum(map(self.model.is_needed, self.model.deleted))

    @staticmethod
    def _hash(row: Row, value: bytes) -> int:
        return (xxh64_intdigest(value, xxh64_intdigest(row[1], SEEDS[row[0]])) ^ SIGN) - SIGN

    def _change(self, row: Row, value: bytes | None, claimed: int | None, offset: int) -> None:
        old = self.rows.get(row)
        found = None if old is None else self._hash(row, old)
        if found != claimed:
            raise Violation(f"a false `prev` at {offset}: {row} holds {old!r}")
        made = 0 if value is None else self._hash(row, value)
        self.total = (self.total + made - (found or 0)) & MASK
        self.versions.setdefault(row, []).append((offset, value))
        if value is None:
            self.rows.pop(row, None)
        else:
            self.rows[row] = value

    def slots(self) -> tuple[list[int], list[int]]:
        """Return the state's digest by slot, as a DigestBase has it: from the rows, whatever was added up before."""
        sums: Counter[int] = Counter()
        for (cf, key), value in self.rows.items():
            bucket = xxh64_intdigest(key, SEEDS[cf]) & 255
            sums[FAMILIES[cf] * 256 + bucket] += self._hash((cf, key), value)
        found = {slot: total & MASK for slot, total in sums.items() if total & MASK}
        return sorted(found), [(found[slot] ^ SIGN) - SIGN for slot in sorted(found)]

    def check_model(self) -> None:
        """Compare the rows with the model's objects: names, sizes, states, bytes, and what is left to be deleted."""
        inline = {key: value for (family, key), value in self.rows.items() if family == INLINE_TABLE}
        if inline != self.model.inline_rows():
            raise Violation(f"inlineTable holds {inline}, and should hold {self.model.inline_rows()}")
        self.seen["inline rows compared"] += len(inline)
        made: dict[str, Any] = {
            "keyTable": {}, "deletedTable": self.model.deleted_rows(), "pipelineTable": {},
            "snapshotTable": {
                key: (one.name, DELETED if one.deleted_ms else ACTIVE, one.index, one.size, len(one.keys), one.properties)
                for key, one in self.model.snapshot_rows().items()
            },
            "datanodeTable": {name.encode(): state for name, state in self.model.datanodes.items()},
        }  # fmt: skip
        made["openKeyTable"] = {key: (one.size, one.blocks) for key, one in self.model.open_rows().items()}
        self.seen["retirements compared"] += sum(one.at_ms is not None for one in self.model.retired.values())
        self.seen["reservations compared"] += sum(not one.name for one in self.model.sessions.values())
        for volume, its in self.model.volumes.items():
            for bucket, here in its.buckets.items():
                made["keyTable"] |= {f"/{volume}/{bucket}/{key}".encode(): one.size for key, one in here.keys.items()}
        for partition, found in self.model.pipelines.items():
            made["pipelineTable"][partition.to_bytes(4, "big")] = found
        for cf, expected in made.items():
            rows = {key: _gist(cf, decode(value)) for (family, key), value in self.rows.items() if family == cf}
            if rows != expected:
                raise Violation(f"{cf} holds {rows}, and should hold {expected}")

    def row_at(self, row: Row, offset: int) -> bytes | None:
        """Return the row as of the record at ``offset``."""
        versions = self.versions.get(row, [])
        found = bisect_right(versions, offset, key=lambda version: version[0])
        return versions[found - 1][1] if found else None

    def where_chain_is(self, chain: bytes) -> int | None:
        """Return the offset of the record after which the log has this chain, -1 before all, None if nowhere."""
        if chain == bytes(32):
            return -1
        return next((m.offset for m in self.moments.values() if m.chain == chain), None)

    def moment_of(self, offset: int, chain: bytes, index: int, total: int | None) -> Moment | None:
        """Return the moment of the record at ``offset`` with that chain, or else the last of a state's index and digest (unless None).

        A claim behind a lost tail is valid for who has read that tail, in a chain that is no log's: the state is still that of before.
        """
        exact = self.moments.get(offset)
        if exact is not None and exact.chain == chain:
            return exact
        same = (m for m in reversed(self.moments.values()) if m.index == index and total in (None, m.total))
        return next(same, None)

    # -- the answers -------------------------------------------------------------------------------------------------

    def _settle_results(self, batch: Batch) -> None:
        """Check that each request has one effect, the right one, and remember the answer."""
        index = batch.first_index - 1
        for result in batch.results:
            index += 1
            if result.index != index:
                raise Violation(f"index {result.index} where {index} follows")
            call = (result.client_id, int.from_bytes(result.call_id, "big"))
            request = self.requests[result.request_hash]
            self.answers.setdefault((call, result.request_hash), {}).setdefault(result.response, index)
            expired = abs(batch.timestamp_ms - result.first_sent_at_ms) >= LIFETIME_MS
            if result.recorded:
                self._check_effect(call, result, request, batch.timestamp_ms, expired=expired)
            else:
                self._check_refusal(call, result, expired=expired)
        if index != batch.last_index:
            raise Violation(f"a batch to index {batch.last_index} has results to {index}")

    def _check_effect(self, call: Call, result: Result, request: Request, now_ms: int, *, expired: bool) -> None:
        if call in self.effects:
            raise Violation(
                f"call {call[1]} of {call[0].hex()} has two effects: {self.effects[call].index}, {result.index}"
            )
        if expired or call[1] < self._floor(call[0]):
            raise Violation(f"call {call[1]} of {call[0].hex()} was executed though it had expired")
        self.effects[call] = result
        response: Response = decode(result.response)
        kind = type(request.body).__name__
        self.seen[f"{kind}: {'OK' if response.status == 'OK' else 'refused'}"] += 1
        if isinstance(request.body, SHARD_COMMANDS):
            self._check_command(request.body, response)
            return
        if self.prepared:
            raise Violation(f"call {call[1]} of {call[0].hex()} was executed though the shard is prepared")
        expected = self.expected(request, result.index, now_ms)
        if expected == "OK":
            self._name_blocks(request.body, response)
        if response.status != expected:
            raise Violation(f"{request.body} at index {result.index}: {response.status}, should be {expected}")
        self.seen["executed"] += 1
        self.seen["refused"] += expected != "OK"

    def expected(self, request: Request, index: int, now_ms: int) -> str:
        """Execute a request on the model; return the status that it must have."""
        try:
            self.model.do(request.body, request.caller, index, now_ms)
        except Refusal as refusal:
            return str(refusal)
        return "OK"

    def _name_blocks(self, body: Any, response: Response) -> None:
        """Remember which blocks an open key was given: after a loss of the log's tail its id may be another one's, with other blocks."""
        given = response.result
        if not isinstance(given, KeySession | AllocatedBlock):
            return
        session_id = given.session_id if isinstance(given, KeySession) else body.session_id
        blocks = given.blocks if isinstance(given, KeySession) else [given.block]
        session = self.model.sessions[body.volume, body.bucket, session_id]
        session.named |= {(block.container_id, block.local_id) for block in blocks}
        for block in blocks:
            # both without the lowest bits: the pipeline's number, and what lies below the window of an index (WINDOW_BITS)
            begun, now = block.container_id % 2**54 >> 8, block.local_id >> 10
            if block.pipeline != f"pipeline-{block.container_id % 256}" or begun > now:
                raise Violation(f"{block} is in another pipeline's container, or in one that is begun later")
            self.seen["block in an earlier container" if begun < now else "block in a container of its time"] += 1

    def _check_command(self, body: Any, response: Response) -> None:
        """An operator is told OK iff what was asked for is so: its control record, if it needed one, lies before the batch."""
        expected = self._refusal_of_command(body, response.index)
        holds = (
            expected != "OK"
            or {
                AddNode: lambda: body.node in self.members,
                RemoveNode: lambda: body.node not in self.members,
                Prepare: lambda: self.prepared,
                CancelPrepare: lambda: not self.prepared,
                SetRequestMode: lambda: (body.mode == LATE_MODE) == (body.request_type in self.late),
                Finalize: lambda: body.level == self.model.level,
                LogDigestBase: lambda: self._is_based(body, response.index),
            }[type(body)]()
        )
        if response.status != expected or not holds:
            raise Violation(f"{body}: answered {response.status}, should be {expected}; what was asked for is {holds}")
        self.seen["command"] += 1

    def _is_based(self, body: LogDigestBase, index: int) -> bool:
        if body.index == OWN_DIGESTS:
            return self.base is not None and self.base[0] == index - 1 and self.base_is_true
        return self.base == (body.index, body.slots, body.sums)

    def _refusal_of_command(self, body: Any, index: int) -> str:
        if isinstance(body, Finalize):
            return "OK" if self.model.level <= body.level <= HIGHEST_LEVEL else "INVALID_REQUEST"
        if isinstance(body, LogDigestBase) and body.index != OWN_DIGESTS:
            return "OK" if body.index == index - 1 else "INDEX_MOVED"
        needed = OPERATORS_LEVEL
        if isinstance(body, SetRequestMode):
            needed = REQUEST_LEVELS.get(body.request_type, OPERATORS_LEVEL)
        return "OK" if self.model.level >= needed else "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"

    def _check_refusal(self, call: Call, result: Result, *, expired: bool) -> None:
        status = decode(result.response).status
        self.seen[status] += 1
        if status == "REQUEST_EXPIRED":
            below = call[1] < self._floor(call[0])
            self.seen["below answered_below"] += below
            if not expired and not below:
                raise Violation(f"call {call[1]} of {call[0].hex()} was refused as expired and is not")
        elif status != "CALL_ID_REUSED" or self.effects[call].request_hash == result.request_hash:
            raise Violation(f"call {call[1]} of {call[0].hex()} was refused with {status}")

    def _floor(self, client_id: bytes) -> int:
        return int.from_bytes(self.rows.get((RETRY, client_id), b"")[:8], "big")
