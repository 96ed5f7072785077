"""How fast bytes go, and how progress is told.

The caller gives the time, in seconds of a clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
BURST_S = 1.0
"""How many seconds' worth of bytes may go at once after a pause."""

UNITS = ((KIB**3, "GiB"), (KIB**2, "MiB"), (KIB, "KiB"))


class TokenBucket:
    """Bounds a rate. The bytes that are taken may run ahead of it; then the taker waits."""

    def __init__(self, bytes_per_s: int) -> None:
        """``bytes_per_s`` 0 means no bound."""
        self._rate = bytes_per_s
        self._paid_until_s = 0.0

    def take(self, count: int, now_s: float) -> float:
        """Take ``count`` bytes, and return for how many seconds to wait before sending them."""
        if self._rate <= 0:
            return 0.0
        self._paid_until_s = max(self._paid_until_s, now_s - BURST_S) + count / self._rate
        return max(0.0, self._paid_until_s - now_s)


@dataclass(slots=True)
class FetchProgress:
    """Bytes that have come, of those wanted, since ``begun_s``."""

    begun_s: float
    wanted_bytes: int = 0
    got_bytes: int = 0

    def words(self, now_s: float) -> str:
        """Return bytes, rate and time left.

        >>> FetchProgress(begun_s=10.0, wanted_bytes=3 * 1024 * 1024, got_bytes=1024 * 1024).words(12.0)
        '1.0 MiB of 3.0 MiB, 512.0 KiB/s, 4 s left'
        """
        elapsed_s = now_s - self.begun_s
        said = f"{size_words(self.got_bytes)} of {size_words(self.wanted_bytes)}"
        if self.got_bytes == 0 or elapsed_s <= 0:
            return said
        rate = self.got_bytes / elapsed_s
        left_s = max(0, self.wanted_bytes - self.got_bytes) / rate
        return f"{said}, {size_words(int(rate))}/s, {left_s:.0f} s left"


def size_words(count: int) -> str:
    """Return a number of bytes for people.

    >>> size_words(12), size_words(1536), size_words(5 * 1024**3)
    ('12 B', '1.5 KiB', '5.0 GiB')
    """
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
