"""Words about waits: who waits for more than two seconds is told what for.

What belongs here: when to say it. It goes to the log of the client (``stratolog.client``), which Python prints on standard error where nobody has
set up logging.
"""

from __future__ import annotations

import logging
import time

logger = logging.getLogger("stratolog.client")

WORD_AFTER_MS = 2_000
"""How long may be waited without a word."""
WORD_EACH_MS = 10_000
"""How often it is said from then on."""


class SlowWait:
    """One thing that may take long; for one thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._due_s = 0.0
        self._begun_s = 0.0
        self.begin()

    def begin(self) -> None:
        """It begins now."""
        self._begun_s = time.monotonic()
        self._due_s = self._begun_s + WORD_AFTER_MS / 1000

    def still(self, why: object) -> None:
        """It is not done yet, because of ``why``; says so if the last word, or the beginning, is long enough ago."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + WORD_EACH_MS / 1000
            logger.warning("%s takes %.0f s so far: %s", self._what, now_s - self._begun_s, why)
