"""Which member of a pipeline claims its leadership, and when. Pure.

Rules (decision 0023):

1. Before the first claim the members take turns in the order of the list: the first claims at once, each further one
   after one more time-out of silence.
2. After a leader's claim the next member in the list (round the end) claims after one time-out of silence, the one
   behind it after two. A leader that lives is never silent: an idle one appends a Tick every :func:`tick_interval_ms`.
3. The last leader itself claims at once, if it does not lead any more and nobody else has claimed.
4. A member that has not read the log to its end counts no silence, however long it has waited. A restarted member
   begins like this.
5. A member counts only the silence that it has waited through itself. A look that comes late (the process was paused,
   the machine slept) counts as one step, so that a member that comes back does not take the leadership from a leader
   that lives.
6. The log alone decides who claims first. All these rules only keep members from disturbing each other.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_STEP_MS = 500
"""How much silence one look may add."""

TICKS_PER_TIMEOUT = 4
"""How many Ticks an idle leader appends within a time-out."""


class Silence:
    """How long a member has seen no record take effect in the log while it looked."""

    def __init__(self, now_ms: int, applied: int) -> None:
        self._looked_ms = now_ms
        self._applied = applied
        self.ms = 0

    def look(self, now_ms: int, applied: int) -> int:
        """Return the silence, given how many records have taken effect here so far."""
        if applied != self._applied:
            self.ms = 0
        else:
            self.ms += min(max(0, now_ms - self._looked_ms), MAX_STEP_MS)
        self._looked_ms, self._applied = now_ms, applied
        return self.ms

    def broken(self) -> None:
        """Begin anew: the log has something that this member has not read."""
        self.ms = 0


def claim_after_ms(members: Sequence[str], me: str, leader: str, timeout_ms: int) -> int | None:
    """Return after how much silence ``me`` claims, in ms; None if it is no member.

    ``leader`` is the node of the last valid claim; empty before the first one.

    >>> [claim_after_ms(["a", "b", "c"], me, "", 1000) for me in "abc"]
    [0, 1000, 2000]
    >>> [claim_after_ms(["a", "b", "c"], me, "b", 1000) for me in "abcd"]
    [2000, 0, 1000, None]
    """
    if me not in members:
        return None
    place = list(members).index(me)
    if leader in members:
        return (place - list(members).index(leader)) % len(members) * timeout_ms
    # A leader that is no longer a member has no place in the list, so all members come after it.
    return (place + (1 if leader else 0)) * timeout_ms


def tick_interval_ms(timeout_ms: int) -> int:
    """Return how often an idle leader appends a Tick."""
    return max(1, timeout_ms // TICKS_PER_TIMEOUT)
