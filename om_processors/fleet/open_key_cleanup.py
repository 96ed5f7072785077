"""Open keys of clients that have vanished: the leader of each shard walks through openKeyTable and has old rows expire.

Ozone's OpenKeyCleanupService, with ``ozone.om.open.key.expire.threshold`` as the setting
``open_key_expire_threshold_ms``. Rules:
    - A row is removed only by ExpireOpenKeys, through the log. The request names the time before which a row must have
      been modified, and its handler checks the row again: a row that was committed meanwhile, or got a block, is left
      alone.
    - CreateKey and AllocateBlock modify a row. A client loses its session if it needs longer than the threshold for the
      blocks that it got at once (up to PREALLOCATED_BLOCKS).
    - Time is the log's: the time of the last batch, plus what has passed on this node since. The wall clock is never
      used.
    - Nothing is proposed before the shard's feature level is OPEN_KEY_EXPIRY.
    - Where the walk stopped is remembered here, not in the log: the next leader begins at the first row, which changes
      nothing.
    - Bounds: MAX_ROWS rows of MAX_BYTES a turn (a single row may be larger), so one request a turn; a turn each TURN_S.
      After the table's end the walk rests for REST_MS, or for the threshold if that is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from om_processors.execution.requests.key import MAX_EXPIRED_ROWS
from om_processors.fleet.proposer import Proposer
from om_processors.fleet.row_cursor import RowCursor, StoredRow
from om_processors.namespace import tables
from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import Clock
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from schemas.column_families import OPEN_KEY_TABLE
from schemas.features import OPEN_KEY_EXPIRY
from schemas.records.messages import ExpireOpenKeys

TURN_S = 1.0
MAX_ROWS = MAX_EXPIRED_ROWS
MAX_BYTES = 512 * 1024
"""Bytes of the rows in a turn, their keys counted twice, so that the request and its operations stay below their limits
even if all rows expire.
"""
REST_MS = 600_000
"""Pause between two walks through the table."""


class OpenKeyCleanup:
    """Walks through the open keys of one shard, while this node leads it."""

    def __init__(
        self, shard: int, replica: Replica, proposer: Proposer, expire_threshold_ms: int, clock: Clock, note: Note,
        log_time_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """``log_time_ms`` returns the present time of the shard's log."""
        self._shard = shard
        self._replica = replica
        self._proposer = proposer
        self._expire_threshold_ms = expire_threshold_ms
        self._clock = clock
        self._note = note
        self._cursor = RowCursor(replica.store, OPEN_KEY_TABLE)
        self._rest_until_ms = 0
        self._log_time_ms = log_time_ms

    def turn(self) -> None:
        """Look at the next rows, and propose to expire those that are older than the threshold."""
        now_ms = self._clock.elapsed_ms()
        if now_ms < self._rest_until_ms or self._replica.state.feature_level < OPEN_KEY_EXPIRY:
            return
        found = self._cursor.next_rows(MAX_ROWS, fitting)
        if self._cursor.at_end:
            self._rest_until_ms = now_ms + min(REST_MS, self._expire_threshold_ms)
        before_ms = self._log_time_ms() - self._expire_threshold_ms
        rows = [key for key, value in found if tables.decode_key(value).modification_time_ms < before_ms]
        if rows:
            self._expire(rows, before_ms)

    def _expire(self, rows: list[bytes], before_ms: int) -> None:
        body = ExpireOpenKeys(shard=self._shard, modified_before_ms=before_ms, rows=rows)
        # If the proposal is not sent, or is lost on its way, the next walk finds the rows again.
        if self._proposer.propose(("expire", self._shard, rows[0], len(rows)), body):
            self._note(f"{len(rows)} rows of {OPEN_KEY_TABLE} are to expire", shard=self._shard)


def fitting(rows: Sequence[StoredRow]) -> Sequence[StoredRow]:
    """Return the first rows of up to MAX_BYTES, at least one if there are any."""
    sizes = accumulate(2 * len(key) + len(value) for key, value in rows)
    return rows[: max(1, sum(size <= MAX_BYTES for size in sizes))]


class OpenKeyCleanupLoop(Background):
    """Takes turns for the shards that this node leads, on a thread of its own."""

    def __init__(
        self, loops: Mapping[int, LeaderLoop], proposer: Proposer, expire_threshold_ms: int, clock: Clock, note: Note,
        fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        super().__init__("open key cleanup", fatal)
        self._loops = loops
        self._cleanups = {
            shard: OpenKeyCleanup(shard, loop.replica, proposer, expire_threshold_ms, clock, note, loop.log_time_ms)
            for shard, loop in loops.items()
        }

    def run(self) -> None:
        """Take turns."""
        while not self._stop.wait(TURN_S):
            self.turn()

    def turn(self) -> None:
        """Look at the next rows of each shard that this node leads."""
        for shard, cleanup in self._cleanups.items():
            if self._loops[shard].leading:
                cleanup.turn()
