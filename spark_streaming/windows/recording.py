"""Windows on their way out: the book that micro-batches add to, and its changed windows as records of om.stats."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from schemas.codecs.codec import encode
from schemas.records.messages import WindowRow, WindowStats
from spark_streaming.records.sender import Sender
from spark_streaming.windows import book_file
from spark_streaming.windows.core.window_book import ChangedWindow, Sample, WindowBook, WindowStream


class WindowRecorder:
    """Adds micro-batches of samples to the book, and sends the windows that have changed every ``send_every_s``.

    The book is stored with each micro-batch. A start sends all windows that are open in it once more, for the last ones
    may not have been sent; a window that closes is sent first. Thread-safe.
    """

    def __init__(self, *, sender: Sender, state: Path, seconds: int, cluster: str, send_every_s: float) -> None:
        self._sender = sender
        self._state = state
        self._seconds = seconds
        self._cluster = cluster
        self._send_every_s = send_every_s
        self._lock = threading.Lock()
        self._book: WindowBook | None = None
        self._changed: dict[tuple[WindowStream, int], ChangedWindow] = {}
        self._sent_at_s = float("-inf")

    def take(self, batch_id: int, samples: Iterable[Sample]) -> None:
        """Add one micro-batch. Raises KafkaException if the brokers do not take what is to be sent now."""
        with self._lock:
            book = self._book or self._opened()
            changed = book.take(batch_id, samples)
            self._changed |= {(one.stream, one.start_ms): one for one in changed}
            if not all(book.holds(*place) for place in self._changed):  # the book forgets them now
                self._sent_at_s = float("-inf")
            self._send_if_due()
            book_file.save(book, self._state)

    def _opened(self) -> WindowBook:
        book = self._book = book_file.load(self._state, self._seconds * 1000)
        self._changed |= {(one.stream, one.start_ms): one for one in book.open_windows()}
        return book

    def send_now(self) -> None:
        """Send what has changed; raises KafkaException."""
        with self._lock:
            self._sent_at_s = float("-inf")
            self._send_if_due()

    def send_if_due(self) -> None:
        """Send what has changed, if it was some time ago that anything was sent; raises KafkaException."""
        with self._lock:
            self._send_if_due()

    def _send_if_due(self) -> None:
        now_s = time.monotonic()
        if not self._changed or now_s - self._sent_at_s < self._send_every_s:
            return
        now_ms = time.time_ns() // 1_000_000
        self._sender.send([(key_of(one), encode(self._stats(one, now_ms))) for one in self._changed.values()])
        self._changed.clear()
        self._sent_at_s = now_s

    def _stats(self, changed: ChangedWindow, now_ms: int) -> WindowStats:
        rows = [
            WindowRow(
                metric=row.metric, kind=row.kind, status=row.status, count=one.count, total=one.total, greatest=one.greatest or 0, p50=one.percentile(0.5),
                p99=one.percentile(0.99),
            )
            for row, one in sorted(changed.rows.items())
        ]  # fmt: skip
        return WindowStats(
            cluster=self._cluster, log=changed.stream.log, shard=changed.stream.shard, source=changed.stream.source,
            start_ms=changed.start_ms, seconds=self._seconds, rows=rows, late=changed.late, counted_at_ms=now_ms,
        )  # fmt: skip


def key_of(changed: ChangedWindow) -> bytes:
    """Return the key of a window's records: its partition's."""
    return f"{changed.stream.log}/{changed.stream.shard}".encode()
