"""Apply: what a counting batch does to a replica, planned against the rows actually found (design, sections 3 and 5).

Rules:
    - Bytes are applied as they are; nothing is decoded, except by merges. Leader, follower and recovery run this same
      code.
    - An operation sees the earlier operations of its batch; retry rows follow the operations.
    - The digest subtracts the row actually found and adds the row actually written, never what the batch claims.
    - A claim (``prev``, ``next``) that differs from the row found is evidence; the plan goes on all the same.

The plan is pure; ``replica`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xxhash import xxh64_intdigest

from replicated_db.core.errors import BrokenLog
from replicated_db.core.execution.retry import CLIENT_BYTES, expiry_row, floors_row, rows_of
from replicated_db.core.execution.transaction import CHECKPOINT_NAME
from replicated_db.core.ports import StoreView, Write
from replicated_db.core.tables.column_families import RETRY, RETRY_EXPIRY, Families
from replicated_db.core.tables.digests import SIGN
from schemas.column_families import BUCKETS
from schemas.records.log import Batch, Checkpoint, Delete, Merge, Operation, Put
from schemas.records.record import record


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseClaim:
    """A claim of a batch that this replica's rows contradict. Hashes are signed; None = absent row.

    ``operation`` is the operation's number in the batch; derived retry rows are numbered after the operations.
    """

    operation: int
    cf: str
    key: bytes
    claim: str
    claimed: int | None
    own: int | None


@record
class Plan:
    """What to write: final rows by (family, key), the change of each slot's digest, and the false claims found."""

    checkpoint: str | None
    rows: dict[tuple[str, bytes], bytes | None]
    deltas: dict[int, int]
    retry_keys: list[bytes]
    floor_keys: list[bytes]
    false_claims: list[FalseClaim]

    def writes(self, batch: Batch) -> list[Write]:
        """Return the rows to write, and the local rows that list when retry rows and floors expire."""
        writes: list[Write] = [(cf, key, value) for (cf, key), value in self.rows.items()]
        if self.retry_keys:
            writes.append((RETRY_EXPIRY, *expiry_row(batch, self.retry_keys)))
        if self.floor_keys:
            writes.append((RETRY_EXPIRY, *floors_row(batch, self.floor_keys)))
        return writes


_LAST_BUCKET = BUCKETS - 1
"""BUCKETS is a power of two: the bits of a hash that say its bucket, without a division."""

Replacement = tuple[str, bytes, bytes | None, int | None]
"""Column family, key, new value (None = remove the row), and the hash of the row that the batch claims to replace."""


class _Planner:
    """Working state of one plan. ``rows`` doubles as the view of the batch's earlier operations."""

    __slots__ = ("deltas", "false_claims", "families", "rows", "view")

    def __init__(self, families: Families, view: StoreView) -> None:
        self.families = families
        self.view = view
        self.rows: dict[tuple[str, bytes], bytes | None] = {}
        self.deltas: dict[int, int] = {}
        self.false_claims: list[FalseClaim] = []

    def replace_all(self, first: int, replacements: Iterable[Replacement]) -> None:
        """Write rows in order. The first one is that of the operation numbered ``first``."""
        rows, deltas, seeds, positions = self.rows, self.deltas, self.families.seeds, self.families.positions
        get, sign = self.view.get, SIGN
        for number, (cf, key, value, claimed) in enumerate(replacements, first):
            key_hash = xxh64_intdigest(key, seeds[cf])
            row = (cf, key)
            old = rows[row] if row in rows else get(cf, key)
            delta, own = 0, None
            if old is not None:
                delta = -(old_hash := xxh64_intdigest(old, key_hash))
                own = (old_hash ^ sign) - sign
            if own != claimed:
                self._contradict(number, row, "prev", claimed, own)
            if value is not None:
                delta += xxh64_intdigest(value, key_hash)
            rows[row] = value
            slot = positions[cf] * BUCKETS + (key_hash & _LAST_BUCKET)
            deltas[slot] = deltas[slot] + delta if slot in deltas else delta

    def add_retry_rows(self, first: int, retry_rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Write the retry rows of a batch, each of which is claimed to be new: half of a large batch's rows."""
        rows, deltas, seed, get = self.rows, self.deltas, self.families.seeds[RETRY], self.view.get
        first_slot = self.families.positions[RETRY] * BUCKETS
        for number, (key, value) in enumerate(retry_rows, first):
            row = (RETRY, key)
            if row in rows or get(RETRY, key) is not None:
                self.replace_all(number, [(RETRY, key, value, None)])
                continue
            key_hash = xxh64_intdigest(key, seed)
            rows[row] = value
            slot = first_slot + (key_hash & _LAST_BUCKET)
            delta = xxh64_intdigest(value, key_hash)
            deltas[slot] = deltas[slot] + delta if slot in deltas else delta

    def merge(self, number: int, merge: Merge) -> None:
        """Combine the row that this replica really holds with the operand."""
        operator = self.families.operators.get(merge.operator)
        if operator is None:
            raise BrokenLog(f"operation {number}: unknown merge operator {merge.operator!r}: upgrade this node")
        key_hash = xxh64_intdigest(merge.key, self.families.seeds[merge.cf])
        row = (merge.cf, merge.key)
        old = self.rows[row] if row in self.rows else self.view.get(merge.cf, merge.key)
        new = operator.merge(old, merge.operand)
        known = len(self.false_claims)
        self.replace_all(number, [(merge.cf, merge.key, new, merge.prev)])
        own = (xxh64_intdigest(new, key_hash) ^ SIGN) - SIGN
        if own != merge.next and len(self.false_claims) == known:
            self._contradict(number, row, "next", merge.next, own)

    def _contradict(
        self, number: int, row: tuple[str, bytes], claim: str, claimed: int | None, own: int | None
    ) -> None:
        self.false_claims.append(
            FalseClaim(operation=number, cf=row[0], key=row[1], claim=claim, claimed=claimed, own=own)
        )


def plan_batch(families: Families, view: StoreView, batch: Batch) -> Plan:
    """Plan a counting batch against ``view``.

    Raises BrokenLog for an unknown column family or operator, and for a Checkpoint that is not the first operation or
    has an illegal name (the name becomes that of a directory).
    """
    planner = _Planner(families, view)
    checkpoint, operations = _split_checkpoint(batch.operations)
    first = 0 if checkpoint is None else 1
    run: list[Replacement] = []
    try:
        for number, operation in enumerate(operations, first):
            if type(operation) is Put:
                run.append((operation.cf, operation.key, operation.value, operation.prev))
            elif type(operation) is Delete:
                run.append((operation.cf, operation.key, None, operation.prev))
            elif type(operation) is Merge:
                planner.replace_all(number - len(run), run)
                run = []
                planner.merge(number, operation)
            else:
                raise BrokenLog(f"operation {number}: a Checkpoint may only come first")
        planner.replace_all(len(batch.operations) - len(run), run)
    except KeyError as error:
        raise BrokenLog(f"unknown column family {error}: upgrade this node") from error
    retry_rows = rows_of(batch)
    planner.add_retry_rows(len(batch.operations), retry_rows)
    return Plan(
        checkpoint=checkpoint, rows=planner.rows, deltas=planner.deltas,
        retry_keys=[key for key, _ in retry_rows], floor_keys=_floors(operations), false_claims=planner.false_claims,
    )  # fmt: skip


def _floors(operations: Sequence[Operation]) -> list[bytes]:
    """Return the clients whose floor the batch changes.

    A leader's housekeeping precedes the requests' operations, so only the leading operations are looked at.
    """
    clients: list[bytes] = []
    for operation in operations:
        if isinstance(operation, Checkpoint) or operation.cf != RETRY:
            break
        if isinstance(operation, Put) and len(operation.key) == CLIENT_BYTES:
            clients.append(operation.key)
    return clients


def _split_checkpoint(operations: list[Operation]) -> tuple[str | None, Sequence[Operation]]:
    if operations and isinstance(operations[0], Checkpoint):
        name = operations[0].name
        if not CHECKPOINT_NAME.fullmatch(name):
            raise BrokenLog(f"operation 0: illegal checkpoint name {name!r}")
        return name, operations[1:]
    return None, operations
