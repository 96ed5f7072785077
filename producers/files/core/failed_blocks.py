"""When one of a key's blocks has failed: whether another is tried, where, and after which pause. Pure.

=====================================================  ==========================================================
blocks that failed in a row                            what is done with the bytes that are still held
=====================================================  ==========================================================
fewer than MIN_FAILED_BLOCKS                           a new block takes them, on another pipeline if there is one
fewer than MAX_FAILED_BLOCKS, and the first of them    the same
failed less than two commit time-outs ago
any others                                             the key gives up, with the last block's error
=====================================================  ==========================================================

A block that ends well resets the count. A failed block that kept some of its bytes begins the count anew: the key gets
on, and ends. The pause grows from the second failure on: it may take a moment until others know the cause, such as a
container that was just closed, or a dead node.
"""

from __future__ import annotations

from dataclasses import dataclass

from transport.waiting.core.backoff import Backoff

MAX_FAILED_BLOCKS = 10
MIN_FAILED_BLOCKS = 3
"""This many blocks are tried even if they take long; more are tried only within two commit time-outs in all."""
PAUSES = Backoff(first_s=0.2, last_s=2.0)
"""Before the second block in a row that is tried after a failure, and later ones."""


@dataclass(frozen=True, slots=True)
class KeyGivesUp:
    """Try no other block."""


@dataclass(frozen=True, slots=True)
class TryAnotherBlock:
    """Write the bytes to a new block, after a pause."""

    pause_s: float


class FailedBlocks:
    """The failed blocks of one key."""

    def __init__(self, commit_timeout_ms: int) -> None:
        self.total = 0
        """All failed blocks so far."""
        self.excluded: list[str] = []
        """Pipelines that the next blocks of the key avoid."""
        self._commit_timeout_ms = commit_timeout_ms
        self._in_a_row = 0
        self._since_s = 0.0

    def on_failed(self, now_s: float) -> None:
        """Note that a block has failed, at ``now_s`` (seconds of any clock that does not go back)."""
        self.total += 1
        self._in_a_row += 1
        if self._in_a_row == 1:
            self._since_s = now_s

    def on_salvaged(self, now_s: float, pipeline: str, *, kept: bool) -> KeyGivesUp | TryAnotherBlock:
        """Return what to do after the block that failed on ``pipeline`` has been salvaged as far as possible.

        ``kept`` says whether some of its bytes are durable, so that fewer are left to write.
        """
        if kept:
            self._in_a_row, self._since_s = 1, now_s
        failing_ms = (now_s - self._since_s) * 1000
        patient = self._in_a_row < MIN_FAILED_BLOCKS or failing_ms < 2 * self._commit_timeout_ms
        if self._in_a_row >= MAX_FAILED_BLOCKS or not patient:
            return KeyGivesUp()
        if pipeline not in self.excluded:
            self.excluded.append(pipeline)
        return TryAnotherBlock(PAUSES.pause_s(self._in_a_row - 1))

    def on_ended_well(self) -> None:
        """Note that a block was committed and watched to its end."""
        self._in_a_row = 0

    def on_nothing_else(self) -> None:
        """Note that only excluded pipelines are left, which may have recovered."""
        self.excluded.clear()
