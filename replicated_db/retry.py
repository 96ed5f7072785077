"""Retry rows: how a request has one effect, however often it is sent (design, section 4, "Exactly once").

Layouts::

    retryTable        client_id (16) + call_id (8, big-endian)  ->  request_hash (16) + response
    retryExpiryTable  batch time ms (8) + last index (8)         ->  the keys of the retry rows of that batch, one after another

A retry row is derived from each recorded result of a batch, after its operations, with ``prev`` = none; it counts in the
digest. Rows live at least RETENTION_MS of batch time and go by replicated Deletes. The expiry family is local: it says in
which order rows age, so that a leader finds the oldest ones without decoding anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from replicated_db.column_families import RETRY, RETRY_EXPIRY
from replicated_db.ports import View
from schemas.log import Batch, Result

REQUEST_LIFETIME_MS = 5 * 60 * 1000
"""A request this far or further from the batch time, either way, is REQUEST_EXPIRED: outcome unknown."""

RETENTION_MS = 10 * 60 * 1000
"""Retry rows live at least this long of batch time: twice the lifetime, for requests stamped in the future."""

MAX_EXPIRIES_PER_BATCH = 2
"""How many old batches' rows a new batch removes at the most: removal keeps up with twice the rate of writing."""

KEY_BYTES = 24
HASH_BYTES = 16
_EXPIRY = struct.Struct(">QQ")


def retry_key(client_id: bytes, call_id: bytes) -> bytes:
    """Return the row's key."""
    return client_id + call_id


def retry_value(result: Result) -> bytes:
    """Return the row's value."""
    return result.request_hash + result.response


def rows_of(batch: Batch) -> list[tuple[bytes, bytes]]:
    """Return the retry rows (key, value) that a batch derives, in order."""
    return [(r.client_id + r.call_id, r.request_hash + r.response) for r in batch.results if r.recorded]


def expiry_row(batch: Batch, keys: list[bytes]) -> tuple[bytes, bytes]:
    """Return the local expiry row for the retry rows of a batch."""
    return _EXPIRY.pack(batch.timestamp_ms, batch.last_index), b"".join(keys)


def expired(view: View, after: bytes, before_ms: int) -> Iterator[tuple[bytes, list[bytes]]]:
    """Iterate over (expiry key, retry keys) of batches older than ``before_ms``, oldest first, after key ``after``."""
    for key, packed in view.iterate(RETRY_EXPIRY, after, _EXPIRY.pack(max(before_ms, 0), 0)):
        if key != after:
            yield key, [packed[i : i + KEY_BYTES] for i in range(0, len(packed), KEY_BYTES)]


def prunable(view: View, before_ms: int, after: bytes = b"") -> list[bytes]:
    """Return the oldest expiry keys behind ``after`` whose retry rows are gone, at most MAX_EXPIRIES_PER_BATCH.

    A leader removes the rows of one batch together, so the last one tells.
    """
    found: list[bytes] = []
    for key, retry_keys in expired(view, after, before_ms):
        if len(found) == MAX_EXPIRIES_PER_BATCH or view.get(RETRY, retry_keys[-1]) is not None:
            break
        found.append(key)
    return found


def is_expired(first_sent_at_ms: int, timestamp_ms: int) -> bool:
    """Whether a request of ``first_sent_at_ms`` may no longer be executed in a batch of ``timestamp_ms``."""
    return abs(timestamp_ms - first_sent_at_ms) >= REQUEST_LIFETIME_MS
