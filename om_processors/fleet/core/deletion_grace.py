"""The grace of deleted blocks: a key that was replaced or deleted can still be read by a reader that has it open.

Rules:
    - The blocks of a committed key stay for ``deleted_block_grace_ms`` after the key was replaced or deleted. Time is
      the shard's log's. Blocks that were never a committed key's need no grace: nobody has them open to read.
    - A row of deletedTable says when it was put there, from the feature level DELETION_GRACE on (``tables.retired``).
      What was put there at a lower level waits for one grace from when this leader has first stood behind it: its
      update id is the index at which it was put there.
    - So nothing is remembered of any row, however many there are. What is remembered are marks, of where the shard
      stood at which time, MARKS for each grace.
    - A leader that goes on before a grace is over leaves such rows to the next one, which begins anew. Stamped rows
      lose nothing by that.
    - The blocks that a deleted snapshot needs are kept by its row. That one is purged after the grace too
      (``om_processors/fleet/snapshot_cleanup.py``).
"""

from __future__ import annotations

from collections import deque

from om_processors.namespace import tables
from schemas.records.rows import KeyInfo

MARKS = 16
"""Marks that are made during one grace; a row without a stamp waits for up to one sixteenth of a grace longer."""


class DeletionGrace:
    """Says which rows of one shard's deletedTable have waited for long enough."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._now_ms = 0
        self._marks: deque[tuple[int, int]] = deque()
        """Times of the log, ascending, and the index at which the shard stood then; the last grace's."""
        self._waited_for = -1
        """Rows without a stamp that were put there up to this index have waited."""

    def stands_at(self, index: int, now_ms: int) -> None:
        """Take note that the shard has applied ``index`` at the time ``now_ms`` of its log."""
        self._now_ms = now_ms
        while self._marks and self._marks[0][0] + self._grace_ms <= now_ms:
            self._waited_for = self._marks.popleft()[1]
        if not self._marks or self._marks[-1][0] + self._grace_ms / MARKS <= now_ms:
            self._marks.append((now_ms, index))

    def is_over(self, info: KeyInfo) -> bool:
        """Say whether the blocks of a row of deletedTable may be deleted now."""
        if not self._grace_ms or not info.size:  # a committed key with blocks has a size
            return True
        since_ms = tables.retired_ms(info)
        if since_ms is None:
            return info.update_id <= self._waited_for
        return since_ms + self._grace_ms <= self._now_ms
