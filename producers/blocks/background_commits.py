"""The commits of one block, each with its watch: one at a time, on a thread of the block's own (design, section 8).

A commit that does not end delays no other block, because each block has its own thread, nor the end of the process.
That thread and the caller's share the block's window, under a lock. All methods are for the caller's thread. A commit
that failed fails the block: the next method that looks raises :class:`BlockFailed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from producers.blocks.block_commit import BlockCommitter
from producers.blocks.core.stream_window import StreamWindow
from producers.blocks.stream_options import StreamOptions
from producers.errors import DatanodeError
from schemas.records.datanode import BlockCommitted
from schemas.stream_errors import TIMED_OUT
from transport.waiting.daemon_threads import DaemonThreads
from transport.waiting.deadline import Deadline

STILL_S = 0.25
"""Interval at which a wait for a commit checks whether it should go on."""


class BlockFailed(Exception):
    """The block takes no more bytes; ``BlockWriter.salvage`` returns the part of it that stays."""

    def __init__(self, error: DatanodeError) -> None:
        super().__init__(str(error))
        self.error = error


class BackgroundCommits:
    """The commits of one block. Methods raise BlockFailed unless they say otherwise."""

    def __init__(
        self, window: StreamWindow, lock: threading.Lock, committer: BlockCommitter, options: StreamOptions,
        *, block: str, pipeline: str, still: Callable[[object], None],
    ) -> None:  # fmt: skip
        """``lock`` guards the ``window``; ``block`` and ``pipeline`` name them in messages; ``still`` is called with
        what is waited for, and may raise to end the wait.
        """
        self.stuck = False
        """Whether a commit does not end, and keeps the thread busy."""
        self._window = window
        self._lock = lock
        self._committer = committer
        self._options = options
        self._block, self._pipeline = block, pipeline
        self._still = still
        self._ignored = False
        """Whether the block is salvaged: results of later commits change nothing."""
        self._thread: DaemonThreads | None = None
        """The thread; None before the first commit."""
        self._under_way: Future[None] | None = None
        """The last commit that was begun, until its end has been looked at."""

    @property
    def is_under_way(self) -> bool:
        """Whether a commit has begun whose end :meth:`check` has not looked at."""
        return self._under_way is not None

    def begin_due(self) -> bool:
        """Begin the commit that is due, unless one is under way; return whether one is under way now."""
        if self._under_way is not None and not self._under_way.done():
            return True
        self.check()
        with self._lock:
            length = self._window.due()
        if length is None:
            return False
        self.begin(length)
        return True

    def begin(self, length: int) -> None:
        """Begin to commit and watch ``length`` bytes; no commit may be under way."""
        with self._lock:
            checksums = self._window.begin_commit(length)
        self._submit(length, checksums, None)

    def finish(self, length: int, committed: BlockCommitted | None) -> None:
        """Commit the whole block here and now, unless its stream has (``committed``); its watch begins."""
        with self._lock:
            checksums = self._window.begin_commit(length)
        try:
            if committed is None:
                deadline = Deadline.after_ms(self._options.commit_timeout_ms)
                waits = self._options.path.waits_effective
                committed = self._committer.put(length, checksums, deadline, wait_effective=waits)
        except DatanodeError as error:
            with self._lock:
                self._window.on_commit_failed()
            raise BlockFailed(error) from error
        self._submit(length, checksums, committed)

    def check(self) -> None:
        """Return at once; raise the failure of a commit that has ended."""
        if self._under_way is not None and self._under_way.done():
            ended, self._under_way = self._under_way, None
            error = ended.exception()
            if isinstance(error, DatanodeError):
                raise BlockFailed(error) from error
            if error is not None:
                raise error

    def wait(self) -> None:
        """Wait until no commit is under way; a commit that does not end makes the block ``stuck``."""
        if self._under_way is None:
            return
        # Longer than a commit may take: a put and a watch may begin just before the deadline.
        deadline = Deadline.after_ms(3 * self._options.commit_timeout_ms)
        while not wait([self._under_way], deadline.sooner(STILL_S).left_s).done:
            self._still(f"block {self._block} is being committed on {self._pipeline}")
            if deadline.has_passed:
                self.stuck = True
                raise BlockFailed(DatanodeError(TIMED_OUT, f"the commit of block {self._block} does not end"))
        self.check()

    def end(self) -> None:
        """Have the thread end, at once or after its present commit; raises nothing, and may be called again."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def salvage(self) -> None:
        """Commit and watch here and now what is acknowledged, if it is not watched; raises nothing if that fails."""
        window = self._window
        if window.acknowledged <= window.watched:
            return
        try:
            with self._lock:
                length = window.acknowledged
                checksums = window.begin_commit(length)
            timeout_ms = min(2 * self._options.watch_timeout_ms, self._options.commit_timeout_ms)
            committed = self._committer.make_durable(length, checksums, timeout_ms=timeout_ms)
            with self._lock:
                window.on_committed(length, committed.bcs_id)
                window.on_watched(length)
        except DatanodeError:
            with self._lock:
                window.on_commit_failed()

    def ignore_later(self) -> None:
        """From now on, a commit that ends changes nothing: the block is salvaged. Raises nothing."""
        with self._lock:
            self._ignored = True

    def _submit(self, length: int, checksums: bytes, committed: BlockCommitted | None) -> None:
        if self._thread is None:
            self._thread = DaemonThreads(1, "stratolog-commit")
        self._under_way = self._thread.submit(self._make_durable, length, checksums, committed)

    def _make_durable(self, length: int, checksums: bytes, committed: BlockCommitted | None) -> None:
        """Commit and watch, on the block's own thread."""
        if committed is not None:
            with self._lock:
                if not self._ignored:
                    self._window.on_committed(length, committed.bcs_id)
        try:
            committed = self._committer.make_durable(
                length, checksums, timeout_ms=self._options.commit_timeout_ms, committed=committed
            )
        except BaseException:
            with self._lock:
                if not self._ignored:
                    self._window.on_commit_failed()
            raise
        with self._lock:
            if not self._ignored:
                self._window.on_committed(length, committed.bcs_id)
                self._window.on_watched(length)
