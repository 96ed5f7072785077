"""How many requests wait for a shard's leader, and what it refuses when they are too many. Pure.

The queue is the request topic itself, so nothing ever blocks a client: without a bound it would grow until every request has expired
unread. A leader whose queue is over the limit therefore goes on executing, and refuses the surplus, oldest first, with
OVERLOADED: a retryable answer that depends on no state and costs a fraction of executing. It tells when the queue will have been
worked off at the present rate; the SDK waits as long before it sends the same request again.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_REFUSALS_PER_TURN = 2_000
"""Requests that are refused at one turn of the leader's loop; so many are refused in the time of one batch."""

MIN_RETRY_AFTER_MS = 100
MAX_RETRY_AFTER_MS = 10_000

RATE_WINDOW_MS = 1_000
"""The rate of executing is counted anew after this time."""


AVERAGED_RECORDS = 64
"""Over so many records the number of requests in one is averaged."""


@dataclass(slots=True)
class RecordSize:
    """How many requests a record of the queue holds, on average: what has not been read can only be estimated.

    One large envelope says little of what lies behind it. Taking the last one for all had requests refused that nothing kept waiting.
    """

    mean: float = 1.0

    def saw(self, requests: int) -> None:
        """Count a record that was read."""
        self.mean += (max(1, requests) - self.mean) / AVERAGED_RECORDS

    def requests_in(self, records: int) -> int:
        """Return about how many requests ``records`` unread records hold."""
        return round(records * self.mean)

    def records_for(self, requests: int) -> int:
        """Return how many records to read for about ``requests`` requests, one at least."""
        return max(1, int(requests / self.mean))


@dataclass(slots=True, kw_only=True)
class Backlog:
    """The queue of one shard, as its leader sees it; ``max_queued`` is the limit, in requests."""

    max_queued: int
    refused: int = 0
    _taken: int = 0
    _since_ms: int = 0
    _rate_per_s: float = 0.0

    def took(self, number: int, now_ms: int) -> None:
        """Count requests that were taken to be executed."""
        self._taken += number
        elapsed_ms = now_ms - self._since_ms
        if elapsed_ms >= RATE_WINDOW_MS:
            if (
                elapsed_ms < 2 * RATE_WINDOW_MS
            ):  # else there was nothing to do for a while: no measure of what is possible
                self._rate_per_s = self._taken * 1000 / elapsed_ms
            self._taken, self._since_ms = 0, now_ms

    def surplus(self, queued: int) -> int:
        """Return how many of ``queued`` requests are to be refused now."""
        return min(max(0, queued - self.max_queued), MAX_REFUSALS_PER_TURN)

    def retry_after_ms(self, queued: int) -> int:
        """Return when the queue will have been worked off."""
        if not self._rate_per_s:
            return MIN_RETRY_AFTER_MS
        return int(min(max(queued * 1000 / self._rate_per_s, MIN_RETRY_AFTER_MS), MAX_RETRY_AFTER_MS))
