"""Removal of old retry rows, batch by batch: how many a batch removes, from where it goes on, when it looks again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicated_db.core.execution.expiry import Expiry
from replicated_db.core.execution.retry import MAX_EXPIRIES_PER_BATCH, RETENTION_MS, expiry_row
from replicated_db.core.tables.column_families import RETRY, RETRY_EXPIRY
from replicated_db.core.tables.memory import MemoryStore
from tests.support.replicated.kit import FAMILIES, START_MS, batch

INTERVAL_MS = 700
KEY_BYTES = 24


class Case:
    """A store with old batches of two retry rows each, one a millisecond, and what one claim removes of them."""

    def __init__(self, batches: int) -> None:
        self.store = MemoryStore(FAMILIES.names)
        self.expiry = Expiry(INTERVAL_MS)
        for number in range(batches):
            self.add(number)

    def add(self, number: int) -> None:
        keys = [bytes([number, row]) + bytes(KEY_BYTES - 2) for row in range(2)]
        old = batch(first_index=number + 1, timestamp_ms=START_MS + number)
        writes = [(RETRY, key, b"answer") for key in keys]
        self.store.write([*writes, (RETRY_EXPIRY, *expiry_row(old, keys))])

    @property
    def get(self) -> Callable[[str, bytes], bytes | None]:
        return self.store.get

    def delete(self, cf: str, key: bytes) -> None:
        self.store.write([(cf, key, None)])

    def remove(self, after_ms: int) -> list[int]:
        """Remove in a batch so long after the rows' retention; return the numbers of the batches that have rows."""
        transaction: Any = self
        self.expiry.remove(transaction, self.store, START_MS + RETENTION_MS + after_ms)
        return sorted({key[0] for key, _ in self.store.iterate(RETRY, b"")})


def test_a_batch_removes_the_oldest_and_the_next_one_goes_on():
    case = Case(2 * MAX_EXPIRIES_PER_BATCH + 1)
    assert case.remove(1_000) == [2, 3, 4]
    assert case.expiry.due_ms == 0, "there may be more, so the next batch looks at once"
    assert case.remove(1_000) == [4]
    assert case.expiry.due_ms == 0
    assert case.remove(1_001) == []
    assert case.expiry.due_ms == START_MS + RETENTION_MS + 1_001 + INTERVAL_MS


def test_what_was_removed_is_not_looked_at_again():
    """Their expiry rows stay until they are pruned; a claim remembers how far it was."""
    case = Case(3)
    case.remove(1_000)
    case.remove(1_000)
    case.add(1)
    assert case.remove(1_000) == [1]


def test_rows_are_kept_for_their_retention():
    case = Case(3)
    assert case.remove(0) == [0, 1, 2]
    assert case.expiry.due_ms == START_MS + RETENTION_MS + INTERVAL_MS
    assert case.remove(2) == [2]
    assert case.expiry.due_ms == START_MS + RETENTION_MS + INTERVAL_MS, "as many as a batch may: more may follow"
