"""The thread that writes table caches behind late validation: the second half of the double buffer (design, section 6).

The thread sleeps until a replica has applied something into its cache, waits a moment so that a group gathers, and
writes the group while applying goes on. Without late validation it never wakes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from replicated_db.core.applying.replica import Replica


class Flusher:
    """Flushes the caches of all replicas of a node.

    A failure ends the process, as earlier rows would be missing below later ones.
    """

    def __init__(self, replicas: Iterable[Replica], interval_ms: int, fatal: Callable[[BaseException], None]) -> None:
        self._replicas = list(replicas)
        self._interval_s = interval_ms / 1000
        self._fatal = fatal
        self._filled = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        for replica in self._replicas:
            replica.late.on_filled = self._filled.set

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End after the group that is being written; closing the store flushes the rest."""
        self._stop.set()
        self._filled.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._filled.wait()
                self._stop.wait(self._interval_s)
                self._filled.clear()
                for replica in self._replicas:
                    replica.flush_behind()
        except BaseException as error:
            self._fatal(error)
