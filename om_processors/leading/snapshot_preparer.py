"""Writes a shard's newest rows to files before a snapshot is taken, beside the leaders (``core/preparation``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, cast

from om_processors.leading.core.preparation import Admission, SnapshotPreparation
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import Clock


class WritingStore(Protocol):
    """What is needed of a replica's store."""

    def rows_in_memory(self) -> int:
        """Return how many entries are in no file."""

    def write_files(self) -> None:
        """Write to files what is in memory."""


class SnapshotPreparer:
    """The preparations of all shards of a node; usable from any thread. Rows are written for one shard at a time."""

    def __init__(
        self, replicas: Mapping[int, Replica], clock: Clock, note: Callable[[str], None],
        fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._replicas = replicas
        self._clock = clock
        self._note = note
        self._fatal = fatal
        self._lock = threading.Lock()
        self._preparations = {shard: SnapshotPreparation() for shard in replicas}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="snapshot-preparer")
        self._closed = False

    def may_take(self, shard: int) -> bool:
        """Whether a shard takes a snapshot now; if not, its rows are being written. Raises StoreFailure."""
        with self._lock:
            if self._closed:
                return True  # the leaders have stopped, or do so; a checkpoint writes its rows itself
            rows = self._store(shard).rows_in_memory()
            answer = self._preparations[shard].on_asked(rows, self._clock.elapsed_ms())
            if answer is Admission.WRITE:
                self._note(f"shard {shard}: {rows} new rows are written to files before a snapshot is taken")
                self._writer.submit(self._write, shard)
        return answer is Admission.ADMIT

    def _write(self, shard: int) -> None:
        try:
            self._store(shard).write_files()
        except StopProcess as error:
            self._fatal(error)
        with self._lock:
            self._preparations[shard].on_written(self._clock.elapsed_ms())

    def close(self) -> None:
        """Begin no more, and wait until what was begun has ended: the stores may be closed afterwards."""
        with self._lock:
            self._closed = True
        self._writer.shutdown(wait=True, cancel_futures=True)

    def _store(self, shard: int) -> WritingStore:
        return cast(WritingStore, self._replicas[shard].store)
