"""Removal of retry rows by age: a new batch removes the oldest batches' rows (design, section 4, "Exactly once").

Rules:
    - A batch removes the rows of at most MAX_EXPIRIES_PER_BATCH old batches.
    - A leader goes on from where it was. Once nothing is left to remove, it looks again an interval later.
    - A replica that derives a batch from logged requests (``late``) begins at the oldest expiry row each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from replicated_db.core.execution.retry import MAX_EXPIRIES_PER_BATCH, RETENTION_MS, ExpiryRow, expired, removable
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.ports import StoreView
from replicated_db.core.tables.column_families import RETRY


def remove_rows(transaction: Transaction, rows: Iterable[ExpiryRow]) -> list[bytes]:
    """Delete the retry rows listed by the first of these expiry rows; return the keys of those expiry rows."""
    removed: list[bytes] = []
    for expiry_key, retry_keys in islice(rows, MAX_EXPIRIES_PER_BATCH):
        for key in removable(transaction.get, expiry_key, retry_keys):
            transaction.delete(RETRY, key)
        removed.append(expiry_key)
    return removed


class Expiry:
    """How far one claim has removed rows. Once nothing is left, it looks again after ``interval_ms`` of batch time."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._after = b""
        self.due_ms = 0
        """Batch time from which on there may be rows to remove."""

    def remove(self, transaction: Transaction, view: StoreView, timestamp_ms: int) -> None:
        """Delete, in a batch of ``timestamp_ms``, rows that are past their retention."""
        removed = remove_rows(transaction, expired(view, self._after, timestamp_ms - RETENTION_MS))
        if removed:
            self._after = removed[-1]
        if len(removed) < MAX_EXPIRIES_PER_BATCH:
            self.due_ms = timestamp_ms + self._interval_ms
