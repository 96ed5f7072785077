"""Applying logged requests into the table cache, and flushing it: a replica's half of late validation (design, section 6).

Rules:
    - What is applied is in the cache at once: position, index and digests in memory go on, and the leader may answer.
    - A group holds everything between two swaps and is written as one, position included. So the store is always at a record's
      end, and after a crash the log is applied again from there, to the same rows and answers.
    - Groups reach the store in order. Whoever needs the store to be up to date (any other record, a snapshot) waits for the group
      under way and writes the rest itself.
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
"""Rows in the cache; beyond them applying waits for a flush."""


def _nobody_waits() -> None:
    """The default of ``LateApply.on_filled``: nobody flushes behind."""


class LateApply:
    """Table cache, executor and counters of one replica.

    ``writing`` covers a group's write: it is taken under the replica's lock and may be kept longer; whoever has it never waits for
    the lock.
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
    def unwritten(self) -> bool:
        """Whether anything that is applied may not be in the store."""
        return self._filled or self.cache.writing

    # -- answers ---------------------------------------------------------------------------------------------------

    def answer_for(self, nonce: bytes) -> None:
        """Keep the answers of records of this claim from now on, until they are taken."""
        self._nonce = nonce
        self._answers.clear()

    def take_answers(self, offset: int) -> list[bytes]:
        """Return the answers of the record at ``offset``, one for each request; a second time there are none."""
        return self._answers.pop(offset)

    # -- applying --------------------------------------------------------------------------------------------------

    def plan(self, record: RequestBatch, offset: int, state: ShardState) -> tuple[Derived, Plan]:
        """Execute a counting record and plan what it writes, against cache and store. Changes nothing.

        ``state`` is how the shard is run at the record's place in the log.
        """
        if self.executor is None:
            raise BrokenLog(f"offset {offset}: a RequestBatch, but this service has no late validation")
        derived = derive_batch(self._families, self.cache, record, self.executor, state)
        return derived, plan_batch(self._families, self.cache, derived.batch)

    def apply(self, derived: Derived, plan: Plan, more: list[Write], offset: int) -> None:
        """Put what was planned into the cache, and ``more`` rows with it."""
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
        """Write all that is unwritten, and ``local`` rows (position, digests) with it. Under the lock."""
        with self._writing:
            group = self._swap(local)
            self.write(group)
        self.end_flush(group)

    def begin_flush(self, local: list[Write], writing: ExitStack) -> Group:
        """Close the current buffer, under the lock; ``writing`` is to be closed once the group is written."""
        writing.enter_context(self._writing)
        return self._swap(local)

    def write(self, group: Group) -> None:
        """Write a group. Raises StoreFailure; then nothing is ever written again, for the rows would be missing below it."""
        try:
            self._store.write(group.writes)
        except StoreFailure:
            self._failed = True
            raise

    def end_flush(self, group: Group) -> None:
        """Drop what has been written, under the lock."""
        self.cache.drop(group.number)

    def _swap(self, local: list[Write]) -> Group:
        if self._failed:
            raise StoreFailure("an earlier flush of the table cache failed")
        group = self.cache.swap()
        self._filled = False
        return Group(number=group.number, writes=[*group.writes, *local])
