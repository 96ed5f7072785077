"""Messages about long waits: after two seconds the user is told what the client waits for.

What belongs here: when to log such a message. It goes to the client's logger (``stratolog.client``), which Python
prints on standard error if no logging is set up.
"""

from __future__ import annotations

import logging
import time

logger = logging.getLogger("stratolog.client")

WORD_AFTER_MS = 2_000
"""How long a wait may last without a message."""
WORD_EACH_MS = 10_000
"""Interval between later messages."""


class SlowWait:
    """One wait that may be long; for one thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.begin()

    def begin(self) -> None:
        """Begin the wait now."""
        self._begun_s = time.monotonic()
        self._due_s = self._begun_s + WORD_AFTER_MS / 1000

    def still(self, why: object) -> None:
        """Note that the wait goes on because of ``why``; log it if the last message, or the start, is long ago."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + WORD_EACH_MS / 1000
            logger.warning("%s takes %.0f s so far: %s", self._what, now_s - self._begun_s, why)
