"""A line of the log that strangers can cause: it is written seldom, with how many were left out."""

from __future__ import annotations

from collections.abc import Callable

NOTE_MS = 10_000
"""How often such a line is written."""


class SeldomNote:
    """Writes the first line, and then one every NOTE_MS at most: whoever floods does not fill the disk."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._noted_ms: int | None = None
        self._left_out = 0

    def note(self, text: str, now_ms: int) -> None:
        """Write a line, or count it; ``now_ms`` never runs backwards."""
        if self._noted_ms is not None and now_ms - self._noted_ms < NOTE_MS:
            self._left_out += 1
            return
        more = f" (and {self._left_out} more before)" if self._left_out else ""
        self._noted_ms, self._left_out = now_ms, 0
        self._log(text + more)
