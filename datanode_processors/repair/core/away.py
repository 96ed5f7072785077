"""Datanodes that did not answer, and until when asking them is useless. Pure: the caller says what time it is.

A silent datanode must not delay what others can give. It is left alone for a while, twice as long each time it is
silent again. For one thread at a time. Times are seconds of one clock.
"""

from __future__ import annotations

from transport.waiting.core.backoff import Backoff

FIRST_PAUSE_S = 15.0
LAST_PAUSE_S = 600.0
PAUSES = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
MAX_AWAY = 256
"""Datanodes that may be known as away; if there are more, the one whose pause ends first is asked again."""


class Away:
    """The silent datanodes, by address."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, int]] = {}
        """Until when each is left alone, and how often in a row it was silent."""

    def __contains__(self, address: str) -> bool:
        """Whether a datanode was silent when last asked, however long ago."""
        return address in self._until

    def is_away(self, address: str, now_s: float) -> bool:
        """Whether a datanode is not to be asked now."""
        return address in self._until and self._until[address][0] > now_s

    def silent(self, address: str, now_s: float) -> None:
        """A datanode did not answer."""
        if address not in self._until and len(self._until) >= MAX_AWAY:
            del self._until[min(self._until, key=self._until.__getitem__)]
        failures = self._until[address][1] + 1 if address in self._until else 1
        self._until[address] = now_s + PAUSES.pause_s(failures), failures

    def answered(self, address: str) -> None:
        """A datanode answered, or was named anew: it may be asked."""
        self._until.pop(address, None)
