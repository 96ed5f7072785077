"""Which nodes the brokers know: calls go straight to no other leader, for it may be one of another cluster.

Two clusters may have as many shards, and even the same name. The nodes of the brokers' cluster are members of the
leaders' group, at the addresses with which they claim shards. The rules:

1. The brokers are asked on a thread, beside the calls. Until they have answered, no leader passes.
2. A leader that they do not name does not pass, also if they name nobody. They are asked again about it, as it may have
   joined since.
3. If the brokers have never answered (they are silent, or the client may not ask), every leader passes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from producers.errors import RetryableError

logger = logging.getLogger("stratolog.client")

FIND_S = 5.0
"""Time limit of one question to the brokers."""
AGAIN_S = 5.0
"""How long after a question the next one may be asked, about a leader that the brokers did not name."""
SILENT_AGAIN_S = 60.0
"""The same while the brokers have never answered."""


class BrokersWord:
    """What the brokers say of the nodes. ``find`` asks them within so many seconds; it raises RetryableError."""

    def __init__(self, find: Callable[[float], Iterable[str]]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._known: frozenset[str] | None = None
        """The addresses that the brokers named last; None: they have never answered."""
        self._answered = self._asking = False
        self._again_s = float("-inf")
        self._doubted: set[str] = set()
        """Leaders that did not pass; one that the next answer does not name either is told."""
        self._told: set[str] = set()
        self._ask()

    def passes(self, leader: str) -> bool:
        """Whether calls may go straight to the leader at an address; for any thread, which never waits here."""
        known = self._known
        if known is not None and leader in known:
            return True
        if self._answered and known is None:
            self._ask()
            return True
        if leader:
            with self._lock:
                self._doubted.add(leader)
            self._ask()
        return False

    def _ask(self) -> None:
        """Ask the brokers, unless somebody does, or did a moment ago."""
        with self._lock:
            if self._asking or time.monotonic() < self._again_s:
                return
            self._asking = True
        threading.Thread(target=self._hear, name="stratolog-nodes", daemon=True).start()

    def _hear(self) -> None:
        known = self._known
        try:
            known = frozenset(self._find(FIND_S))
        except (RetryableError, RuntimeError) as error:  # RuntimeError: Python ends, and begins no more threads
            logger.debug("the brokers do not say which nodes are theirs: %s", error)
        finally:
            with self._lock:
                strange = sorted(self._doubted - known - self._told) if known is not None else []
                self._doubted.clear()
                self._told.update(strange)
                self._known, self._answered, self._asking = known, True, False
                self._again_s = time.monotonic() + (SILENT_AGAIN_S if known is None else AGAIN_S)
        if strange and known is not None:
            logger.warning(
                "calls go through the brokers: they know %s, and not the leader at %s, which may be one of another "
                "cluster", f"the nodes {', '.join(sorted(known))}" if known else "no node", ", ".join(strange),
            )  # fmt: skip
