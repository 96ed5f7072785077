"""Read indexes: what a replica asks of a shard's leader, to answer a reader linearizably.

A read index is a record that the leader appended after the question. A replica that has applied that record may answer.
Many askers share one record: the batch that is sealed next, or a Tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from replicated_db.core.leading.leader import Effective

MAX_WAITING_TICKS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndex:
    """A leader's record, appended after a reader's question.

    A replica that has applied the record may answer the reader linearizably.
    """

    offset: int
    record_hash: bytes


class NotLeading(Exception):
    """The shard is not led here (any more). Ask another node."""


class _Asked(NamedTuple):
    """Askers that wait until the claim's record ``seq`` is effective."""

    seq: int
    futures: list[Future[ReadIndex]]


class ReadIndexes:
    """Askers of one shard. Call :meth:`ask` on any thread, the other methods on the shard's."""

    def __init__(self, shard: int, on_first: Callable[[], None] = lambda: None) -> None:
        """``on_first`` is called, on the asker's thread, when somebody asks and nobody else does."""
        self._shard = shard
        self._on_first = on_first
        self._lock = Lock()
        self._open = False
        self._asking: deque[Future[ReadIndex]] = deque()
        self._waiting: deque[_Asked] = deque()

    def ask(self) -> Future[ReadIndex]:
        """Ask for a read index. The future fails with NotLeading if this node does not lead, or stops leading."""
        future: Future[ReadIndex] = Future()
        # An asker that gives up must not cancel the future: settling a cancelled one raises on the shard's thread.
        future.set_running_or_notify_cancel()
        with self._lock:
            if not self._open or len(self._asking) >= MAX_WAITING_TICKS:
                future.set_exception(NotLeading(f"shard {self._shard} is not led here"))
                return future
            self._asking.append(future)
            is_first = len(self._asking) == 1
        if is_first:
            self._on_first()
        return future

    @property
    def are_asked(self) -> bool:
        """Whether anybody waits for a record that is still to be appended."""
        return bool(self._asking)

    def open(self) -> None:
        """Take questions from now on."""
        with self._lock:
            self._open = True

    def close(self) -> None:
        """Take no more questions, and fail the open ones with NotLeading."""
        with self._lock:
            self._open = False
            waiting = [*self._asking, *(future for asked in self._waiting for future in asked.futures)]
            self._asking.clear()
            self._waiting.clear()
        for future in waiting:
            future.set_exception(NotLeading(f"shard {self._shard} lost its leader"))

    def take(self) -> list[Future[ReadIndex]]:
        """Return those who ask. The caller lets them :meth:`wait_for` a record that is appended afterwards."""
        with self._lock:
            asked = list(self._asking)
            self._asking.clear()
        return asked

    def wait_for(self, seq: int, asked: list[Future[ReadIndex]]) -> None:
        """Answer these askers once the claim's record ``seq`` is effective."""
        self._waiting.append(_Asked(seq, asked))

    def on_effective(self, effective: Effective) -> None:
        """Answer the askers that waited for this record or for an earlier one."""
        seq = effective.record.seq
        while self._waiting and self._waiting[0].seq <= seq:
            index = ReadIndex(offset=effective.offset, record_hash=effective.record_hash)
            for future in self._waiting.popleft().futures:
                future.set_result(index)
