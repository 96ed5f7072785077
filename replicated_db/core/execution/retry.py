"""Retry rows: how a request has one effect, however often it is sent (design, section 4, "Exactly once").

Layouts::

    retryTable        client_id (16) + call_id (8, big-endian)  ->  request_hash (16) + response
                      client_id (16)  ->  floor (8) + batch time of its last change, ms (8)
    retryExpiryTable  batch time ms (8) + last index (8)         ->  keys of that batch's retry rows, concatenated
                      batch time ms (8) + last index (8) + "F"   ->  clients whose floor that batch changed

A retry row is derived from each recorded result of a batch, after the batch's operations, with ``prev`` = none. It
counts in the digest. Retry rows live at least RETENTION_MS of batch time and are removed by replicated Deletes. The
expiry family is local: it holds the order in which rows age, so a leader finds the oldest ones without decoding
anything.

A *floor* lets a retry row be removed earlier: calls of its client below the floor are never executed (any more). The
floor rises to what the client says has been answered (``answered_below``), in the batch that removes the rows below it.
A floor is removed RETENTION_MS after its last change: every call that had been executed by then has expired.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from replicated_db.core.ports import StoreView
from replicated_db.core.tables.column_families import RETRY, RETRY_EXPIRY
from schemas.records.log import Batch, Result

REQUEST_LIFETIME_MS = 5 * 60 * 1000
"""A request whose time is this far or further from the batch time, either way, is REQUEST_EXPIRED: outcome unknown."""

RETENTION_MS = 10 * 60 * 1000
"""Retry rows live at least this long of batch time: twice the lifetime, for requests stamped in the future."""

MAX_EXPIRIES_PER_BATCH = 2
"""Most old batches whose rows one new batch removes. So removal keeps up with twice the rate of writing."""

BELOW_FLOOR = "its client said that it has been answered"
"""Why a call below its client's floor is refused."""

KEY_BYTES = 24
CLIENT_BYTES = 16
HASH_BYTES = 16
_EXPIRY = struct.Struct(">QQ")
_FLOOR = struct.Struct(">QQ")
_OF_FLOORS = b"F"

Get = Callable[[str, bytes], bytes | None]


def retry_key(client_id: bytes, call_id: bytes) -> bytes:
    """Return a retry row's key."""
    return client_id + call_id


def retry_value(result: Result) -> bytes:
    """Return a retry row's value."""
    return result.request_hash + result.response


def rows_of(batch: Batch) -> list[tuple[bytes, bytes]]:
    """Return the retry rows (key, value) that a batch derives, in order."""
    return [(r.client_id + r.call_id, r.request_hash + r.response) for r in batch.results if r.recorded]


def expiry_row(batch: Batch, keys: list[bytes]) -> tuple[bytes, bytes]:
    """Return the local expiry row for the retry rows of a batch."""
    return _EXPIRY.pack(batch.timestamp_ms, batch.last_index), b"".join(keys)


def floors_row(batch: Batch, clients: list[bytes]) -> tuple[bytes, bytes]:
    """Return the local expiry row for the floors that a batch changed."""
    return _EXPIRY.pack(batch.timestamp_ms, batch.last_index) + _OF_FLOORS, b"".join(clients)


def floor_value(answered_below: int, timestamp_ms: int) -> bytes:
    """Return the value of a floor's row."""
    return _FLOOR.pack(answered_below, timestamp_ms)


def floor_of(get: Get, client_id: bytes) -> int:
    """Return a client's floor, 0 if it has none."""
    row = get(RETRY, client_id)
    return 0 if row is None else int.from_bytes(row[:8], "big")


def is_below_floor(get: Get, client_id: bytes, call_id: bytes) -> bool:
    """Whether a call may never be executed, because its retry row may be gone."""
    row = get(RETRY, client_id)
    return row is not None and call_id < row[:8]


class ExpiryRow(NamedTuple):
    """A row of the expiry family: its key, and the keys of the retry rows or floors that it lists."""

    key: bytes
    listed: list[bytes]


def expired(view: StoreView, after: bytes, before_ms: int) -> Iterator[ExpiryRow]:
    """Iterate over the expiry rows of batches older than ``before_ms``, oldest first, after key ``after``."""
    for key, packed in view.iterate(RETRY_EXPIRY, after, _EXPIRY.pack(max(before_ms, 0), 0)):
        if key != after:
            size = CLIENT_BYTES if _lists_floors(key) else KEY_BYTES
            yield ExpiryRow(key, [packed[i : i + size] for i in range(0, len(packed), size)])


def _lists_floors(expiry_key: bytes) -> bool:
    return len(expiry_key) > _EXPIRY.size


def removable(get: Get, expiry_key: bytes, keys: list[bytes]) -> list[bytes]:
    """Return the keys of an expiry row that are to be removed: rows that exist, floors that have not changed since."""
    if _lists_floors(expiry_key):
        return [key for key in keys if (row := get(RETRY, key)) is not None and row[8:] <= expiry_key[:8]]
    return [key for key in keys if get(RETRY, key) is not None]


def is_dead(get: Get, expiry_key: bytes, keys: list[bytes]) -> bool:
    """Whether nothing that an expiry row lists is left to remove.

    A client's retry rows are removed in order, so its last one decides.
    """
    if not _lists_floors(expiry_key):
        last: dict[bytes, bytes] = {}
        for key in keys:
            last[key[:CLIENT_BYTES]] = max(key, last.get(key[:CLIENT_BYTES], key))
        keys = list(last.values())
    return not removable(get, expiry_key, keys)


def prunable(view: StoreView, before_ms: int, after: bytes = b"") -> list[bytes]:
    """Return the oldest expiry keys after ``after`` whose rows are gone, at most MAX_EXPIRIES_PER_BATCH."""
    found: list[bytes] = []
    for key, retry_keys in expired(view, after, before_ms):
        if len(found) == MAX_EXPIRIES_PER_BATCH or not is_dead(view.get, key, retry_keys):
            break
        found.append(key)
    return found


def is_expired(first_sent_at_ms: int, timestamp_ms: int) -> bool:
    """Whether a request first sent at ``first_sent_at_ms`` may no longer be executed in a batch of ``timestamp_ms``."""
    return not -REQUEST_LIFETIME_MS < timestamp_ms - first_sent_at_ms < REQUEST_LIFETIME_MS
