"""What a shard's log does to its buckets: their rows, their counters, and how much they grow in each hour. Pure.

The counters are those that the Object Manager keeps for quotas (usageTable): the log has every change of them as an
operand, so they need no row of any key. That makes them a check of the table of keys, which is made of other rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.codecs.codec import decode_as
from schemas.column_families import ADD_INT64, BUCKET_TABLE, USAGE_TABLE
from schemas.records.log import Batch, Delete, Merge, Put
from schemas.records.rows import BucketInfo

HOUR_MS = 3_600_000
BYTES_COUNTER = "#usedBytes"
KEYS_COUNTER = "#usedNamespace"

Place = tuple[str, str]
"""Volume and bucket."""


@dataclass(slots=True)
class BucketChange:
    """What became of one bucket since a fold began.

    ``info``: its row if it was written. ``removed``: it is gone. ``afresh``: it was made in this time, so ``keys`` and
    ``bytes`` are its counters; else they are what was added to them. ``index``: of the last batch that changed it.
    """

    info: BucketInfo | None = None
    removed: bool = False
    afresh: bool = False
    keys: int = 0
    bytes: int = 0
    index: int = 0
    time_ms: int = 0


@dataclass(slots=True)
class HourGrowth:
    """What was added to a bucket's counters in an hour; less than 0 if more was deleted."""

    keys: int = 0
    bytes: int = 0


@dataclass(slots=True)
class UsageChanges:
    """Adds batches up; memory grows with the buckets that are touched, not with keys."""

    buckets: dict[Place, BucketChange] = field(default_factory=dict)
    hours: dict[tuple[int, str, str], HourGrowth] = field(default_factory=dict)

    def take(self, batch: Batch, *, buckets: bool, growth: bool) -> None:
        """Add a batch to the buckets' counters, to their growth, or to both."""
        for operation in batch.operations:
            if isinstance(operation, Put | Delete) and operation.cf == BUCKET_TABLE and buckets:
                self._row(operation, batch)
            elif isinstance(operation, Put | Merge) and operation.cf == USAGE_TABLE:
                self._counter(operation, batch, buckets=buckets, growth=growth)

    def _change(self, place: Place, batch: Batch) -> BucketChange:
        found = self.buckets.setdefault(place, BucketChange())
        found.index, found.time_ms = batch.last_index, batch.timestamp_ms
        return found

    def _row(self, operation: Put | Delete, batch: Batch) -> None:
        if isinstance(operation, Put):
            info = decode_as(BucketInfo, operation.value)
            change = self._change((info.volume, info.bucket), batch)
            change.info, change.removed = info, False
            return
        place = place_of(operation.key)
        change = self._change(place, batch)
        change.info, change.removed, change.afresh, change.keys, change.bytes = None, True, True, 0, 0

    def _counter(self, operation: Put | Merge, batch: Batch, *, buckets: bool, growth: bool) -> None:
        path, _, name = operation.key.decode(errors="replace").rpartition("/")
        if name not in (BYTES_COUNTER, KEYS_COUNTER) or path.count("/") != 2:
            return  # a volume's
        attribute = "bytes" if name == BYTES_COUNTER else "keys"
        place = place_of(path.encode())
        if isinstance(operation, Put):
            if buckets:
                change = self._change(place, batch)
                change.afresh = True
                setattr(change, attribute, number(operation.value))
            return
        if operation.operator != ADD_INT64:
            return
        added = number(operation.operand)
        if buckets:
            change = self._change(place, batch)
            setattr(change, attribute, getattr(change, attribute) + added)
        if growth:
            hour = self.hours.setdefault((batch.timestamp_ms // HOUR_MS * HOUR_MS, *place), HourGrowth())
            setattr(hour, attribute, getattr(hour, attribute) + added)


def place_of(key: bytes) -> Place:
    """Return volume and bucket of a row's key.

    >>> place_of(b"/v/b"), place_of(b"/v/b/deep/key")
    (('v', 'b'), ('v', 'b'))
    """
    _, volume, bucket, *_ = [*key.decode(errors="replace").split("/", 3), "", ""]
    return volume, bucket


def number(value: bytes) -> int:
    """Return a counter's number: 8 bytes big-endian, two's complement."""
    return int.from_bytes(value[:8], "big", signed=True)
