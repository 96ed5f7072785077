"""A replica's half of late validation (design, section 6): apply logged requests into the table cache, and flush it.

Rules:
    - What is applied is in the cache at once: position, index and digests in memory advance, and the leader may answer.
    - A group holds everything between two swaps and is written as one, position included. So the store is always at a
      record's end. After a crash the log is applied again from there, to the same rows and answers.
    - Groups reach the store in order. A caller that needs an up-to-date store (for any other record, for a snapshot)
      waits for the group that is being written, and writes the rest itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from replicated_db.core.applying.apply import Plan, plan_batch
from replicated_db.core.applying.late import Derived, Executor, derive_batch
from replicated_db.core.errors import BrokenLog, StoreFailure
from replicated_db.core.execution.retry import expiry_row
from replicated_db.core.execution.shard_state import ShardState
from replicated_db.core.ports import Store, Write
from replicated_db.core.tables.column_families import RETRY_EXPIRY, Families
from replicated_db.core.tables.table_cache import Group, TableCache
from schemas.records.log import RequestBatch

MAX_CACHED_ROWS = 50_000
"""Rows in the cache. With more, applying waits for a flush."""
MAX_CACHED_BYTES = 128 * 1024 * 1024
"""Bytes of these rows, likewise: the row of a small key has up to a quarter of a mebibyte."""


def _nobody_waits() -> None:
    """Do nothing. The default of ``LateApply.on_filled``, for a replica without a flusher."""


class LateApply:
    """Table cache, executor and counters of one replica.

    ``writing`` is the lock that covers a group's write. It is taken under the replica's lock and may be kept after that
    one is released. A thread that holds ``writing`` must never wait for the replica's lock.
    """

    def __init__(
        self, families: Families, store: Store, executor: Executor | None,
        writing: AbstractContextManager[Any],
    ) -> None:  # fmt: skip
        self.cache = TableCache(store)
        self.executor = executor
        self.on_filled: Callable[[], None] = _nobody_waits
        """Called when something has been applied into an empty buffer."""
        self.requests = 0
        self.invalid = 0
        self._families = families
        self._store = store
        self._writing = writing
        self._filled = False
        self._failed = False
        self._nonce = b""
        self._answers: dict[int, list[bytes]] = {}

    @property
    def is_full(self) -> bool:
        """Whether the cache holds so much that applying is to wait for a flush."""
        return len(self.cache) > MAX_CACHED_ROWS or self.cache.size_bytes > MAX_CACHED_BYTES

    @property
    def unwritten(self) -> bool:
        """Whether anything applied may be missing in the store."""
        return self._filled or self.cache.writing

    # -- answers ---------------------------------------------------------------------------------------------------

    def answer_for(self, nonce: bytes) -> None:
        """From now on, keep the answers of this claim's records until they are taken."""
        self._nonce = nonce
        self._answers.clear()

    def take_answers(self, offset: int) -> list[bytes]:
        """Return the answers of the record at ``offset``, one for each request. They can be taken once only."""
        return self._answers.pop(offset)

    # -- applying --------------------------------------------------------------------------------------------------

    def plan(self, record: RequestBatch, offset: int, state: ShardState) -> tuple[Derived, Plan]:
        """Execute a counting record against cache and store, and plan what it writes. Changes nothing.

        ``state`` is how the shard is run at the record's place in the log.
        """
        if self.executor is None:
            raise BrokenLog(f"offset {offset}: a RequestBatch, but this service has no late validation")
        derived = derive_batch(self._families, self.cache, record, self.executor, state)
        return derived, plan_batch(self._families, self.cache, derived.batch)

    def apply(self, derived: Derived, plan: Plan, more: list[Write], offset: int) -> None:
        """Put the planned rows into the cache, and ``more`` rows with them."""
        self.cache.put(plan.rows)
        if plan.retry_keys:
            more = [*more, (RETRY_EXPIRY, *expiry_row(derived.batch, plan.retry_keys))]
        self.cache.put({(cf, key): value for cf, key, value in more})
        if not self._filled:
            self._filled = True
            self.on_filled()
        results = derived.batch.results
        self.requests += len(results)
        self.invalid += derived.invalid
        if derived.batch.nonce == self._nonce:
            self._answers[offset] = [result.response for result in results]

    # -- flushing --------------------------------------------------------------------------------------------------

    def flush(self, local: list[Write]) -> None:
        """Write all that is unwritten, and ``local`` rows (position, digests) with it. Call it under the lock."""
        with self._writing:
            group = self._swap(local)
            self.write(group)
        self.end_flush(group)

    def begin_flush(self, local: list[Write], writing: ExitStack) -> Group:
        """Close the current buffer. Call it under the lock, and close ``writing`` once the group is written."""
        writing.enter_context(self._writing)
        return self._swap(local)

    def write(self, group: Group) -> None:
        """Write a group.

        Raises StoreFailure. After a failure nothing is ever written again, because later groups would lie above
        missing rows.
        """
        try:
            self._store.write(group.writes)
        except StoreFailure:
            self._failed = True
            raise

    def end_flush(self, group: Group) -> None:
        """Drop a group that has been written. Call it under the lock."""
        self.cache.drop(group.number)

    def _swap(self, local: list[Write]) -> Group:
        if self._failed:
            raise StoreFailure("an earlier flush of the table cache failed")
        group = self.cache.swap()
        self._filled = False
        return Group(number=group.number, writes=[*group.writes, *local])
