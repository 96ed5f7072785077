"""A transaction: the operations of one proposal, executed against the overlay, kept or dropped as a whole.

Each operation carries the hash of the row that it replaces (``prev``); that row is the one left by the earlier
operations of the batch. A Merge also carries the hash of the row that it makes (``next``). With these hashes every
reader can check the leader, and the log's sum needs no state (design, section 3). A transaction writes nothing;
:meth:`commit` moves its rows into the overlay's newest layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from xxhash import xxh64_intdigest

from replicated_db.core.errors import DigestsDiffer, NotSettled, Refused
from replicated_db.core.execution.shard_state import ControlOperation, ShardState
from replicated_db.core.tables.column_families import Families
from replicated_db.core.tables.digests import SIGN, DigestSlots
from replicated_db.core.tables.overlay import Overlay, merge_ordered
from schemas.column_families import BUCKETS
from schemas.records.log import Checkpoint, ControlRecord, Delete, DigestBase, Members, Merge, Operation, Put

CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_KEY_BYTES = 16 * 1024
NO_STATE = ShardState()
OPERATION_OVERHEAD_BYTES = 48
"""Estimated size of an operation in a batch beyond its key and value."""

Settled = Callable[[], DigestSlots | None] | None
"""Returns the leader's digests at the batch's beginning, in a DigestBase's form; None while batches are in flight."""


class Transaction:
    """Reads see the batch so far; writes collect operations. An illegal operation raises Refused.

    ``state`` is how the shard is run as of this point, records in flight included.
    """

    __slots__ = (
        "_families", "_overlay", "_rows", "checkpoint_name", "control_operations", "feature_level", "index",
        "operations", "settled", "size_bytes", "state",
    )  # fmt: skip

    def __init__(
        self, families: Families, overlay: Overlay, index: int, state: ShardState = NO_STATE, settled: Settled = None
    ) -> None:  # fmt: skip
        self.index = index
        self.state = state
        self.feature_level = state.feature_level
        """The level that limits what may be written (``schemas.features``): the one before this transaction."""
        self.operations: list[Put | Delete | Merge] = []
        self.size_bytes = 0
        self.checkpoint_name: str | None = None
        self.control_operations: tuple[ControlOperation, ...] = ()
        self.settled = settled
        self._families = families
        self._overlay = overlay
        self._rows: dict[tuple[str, bytes], bytes | None] = {}

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value as of this point of the batch, or None."""
        row = (cf, key)
        rows = self._rows
        if row in rows:
            return rows[row]
        known = self._overlay.known
        return known[row] if row in known else self._overlay.get(cf, key)

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop) as of this point of the batch."""
        own = {
            key: value
            for (family, key), value in self._rows.items()
            if family == cf and key >= start and (stop is None or key < stop)
        }
        below = self._overlay.iterate(cf, start, stop)
        return merge_ordered(below, own) if own else below

    def put(self, cf: str, key: bytes, value: bytes) -> None:
        """Insert or replace a row."""
        if type(value) is not bytes:
            raise Refused(f"a {type(value).__name__} as a value in {cf}: it must be bytes")
        key_hash, old = self._begin(cf, key)
        prev = None if old is None else (xxh64_intdigest(old, key_hash) ^ SIGN) - SIGN
        self.operations.append(Put(cf=cf, key=key, value=value, prev=prev))
        self._rows[cf, key] = value
        self.size_bytes += len(value)

    def delete(self, cf: str, key: bytes) -> None:
        """Remove a row; removing an absent one is legal and logged with ``prev`` = none."""
        key_hash, old = self._begin(cf, key)
        prev = None if old is None else (xxh64_intdigest(old, key_hash) ^ SIGN) - SIGN
        self.operations.append(Delete(cf=cf, key=key, prev=prev))
        self._rows[cf, key] = None

    def merge(self, cf: str, key: bytes, operator: str, operand: bytes) -> None:
        """Combine a row with an operand by a registered operator."""
        operators = self._families.operators
        if operator not in operators:
            raise Refused(f"no merge operator {operator!r}; there are: {', '.join(operators) or 'none'}")
        registered = operators[operator]
        if type(operand) is not bytes:
            raise Refused(f"a {type(operand).__name__} as an operand of {operator}: it must be bytes")
        registered.check(operand)
        key_hash, old = self._begin(cf, key)
        new = registered.merge(old, operand)
        self.operations.append(
            Merge(
                cf=cf, key=key, operator=operator, operand=operand,
                prev=None if old is None else (xxh64_intdigest(old, key_hash) ^ SIGN) - SIGN,
                next=(xxh64_intdigest(new, key_hash) ^ SIGN) - SIGN,
            )
        )  # fmt: skip
        self._rows[cf, key] = new
        self.size_bytes += len(operand)

    def checkpoint(self, name: str) -> None:
        """Ask for a checkpoint of everything before this batch; it becomes the batch's first operation."""
        if not CHECKPOINT_NAME.fullmatch(name):
            raise Refused(f"illegal checkpoint name {name!r}")
        if self.checkpoint_name is not None:
            raise Refused(f"a second checkpoint {name!r} in one transaction")
        self.checkpoint_name = name

    def digest_base(self, slots: list[int], sums: list[int], basis: str, *, forced: bool = False) -> None:
        """Ask for a DigestBase right before this batch. This request must be the batch's first.

        A base that differs from the leader's digests would flag every replica that agrees with the leader, and no
        flagged replica may lead. So such a base raises DigestsDiffer unless it is ``forced``. Raises NotSettled while
        earlier batches are in flight.
        """
        if len(slots) != len(sums) or slots != sorted(set(slots)):
            raise Refused(f"{len(slots)} slots and {len(sums)} sums: slots must ascend, one sum each")
        own = self.settled() if self.settled is not None else None
        if own is None:
            raise NotSettled("requests before it are on their way")
        if own != (slots, sums) and not forced:
            raise DigestsDiffer(_difference(self._families, own, DigestSlots(slots, sums)))
        self._control(DigestBase, slots=slots, sums=sums, basis=basis)

    def base(self, basis: str) -> None:
        """Ask for a base of the log right before this batch (``core/trimming/bases.py``): the leader's own digests.

        This request must be the batch's first. Raises NotSettled while earlier batches are in flight.
        """
        own = self.settled() if self.settled is not None else None
        if own is None:
            raise NotSettled("requests before it are on their way")
        if not self.state.replicas:
            raise Refused("the log does not name the shard's members")
        self._control(DigestBase, slots=own.numbers, sums=own.sums, basis=basis)
        members = ControlOperation(record=Members, fields={"replicas": list(self.state.replicas)})
        self.control_operations = (*self.control_operations, members)

    def control(self, record: type[ControlRecord], **fields: Any) -> None:
        """Ask for a control record right before this batch; ``fields`` are the record's, after its index.

        This request must be the batch's first.
        """
        self._control(record, **fields)

    def _control(self, record: type[Any], **fields: Any) -> None:
        if self.control_operations:
            raise Refused(f"a second control record, {record.__name__}, in one transaction")
        self.control_operations = (ControlOperation(record=record, fields=fields),)

    def submit(self, operation: Operation) -> None:
        """Execute an operation given as a record. Its hashes are computed afresh, whatever the record claims."""
        if isinstance(operation, Put):
            self.put(operation.cf, operation.key, operation.value)
        elif isinstance(operation, Delete):
            self.delete(operation.cf, operation.key)
        elif isinstance(operation, Merge):
            self.merge(operation.cf, operation.key, operation.operator, operation.operand)
        elif isinstance(operation, Checkpoint):
            self.checkpoint(operation.name)
        else:
            raise Refused(f"a {type(operation).__name__} is no operation")

    def commit(self) -> list[Put | Delete | Merge]:
        """Move the rows into the overlay's newest layer and return the operations."""
        if self._rows:
            self._overlay.set_all(self._rows)
        return self.operations

    def _begin(self, cf: str, key: bytes) -> tuple[int, bytes | None]:
        """Check where a row is to be written, and count its key; return the hash of the key, and the row there is."""
        seeds = self._families.seeds
        if cf not in seeds:
            raise Refused(f"no column family {cf!r}; there are: {', '.join(self._families.names)}")
        if type(key) is not bytes:
            raise Refused(f"a {type(key).__name__} as a key in {cf}: it must be bytes")
        if (size_bytes := len(key)) > MAX_KEY_BYTES:
            raise Refused(f"a key of {size_bytes} bytes in {cf}; at most {MAX_KEY_BYTES}")
        self.size_bytes += OPERATION_OVERHEAD_BYTES + size_bytes
        row, rows, known = (cf, key), self._rows, self._overlay.known  # what ``get`` does, without a call
        old = rows[row] if row in rows else known[row] if row in known else self._overlay.get(cf, key)
        return xxh64_intdigest(key, seeds[cf]), old


def _difference(families: Families, own: DigestSlots, given: DigestSlots) -> str:
    mine, theirs = (dict(zip(*slots, strict=True)) for slots in (own, given))
    differing = sorted(slot for slot in mine.keys() | theirs.keys() if mine.get(slot, 0) != theirs.get(slot, 0))
    family, bucket = divmod(differing[0], BUCKETS)
    name = families.names[family] if 0 <= family < len(families.names) else f"family {family}"
    return (
        f"the leader's digests are others in {len(differing)} slots, the first being bucket {bucket} of {name}: "
        f"{mine.get(differing[0], 0)}, not {theirs.get(differing[0], 0)}"
    )
