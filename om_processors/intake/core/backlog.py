"""How many requests wait for a shard's leader, and what it refuses when they are too many. Pure.

The queue is the request topic itself, so a full queue never blocks a client. Without a bound it would grow until every
request has expired unread. So a leader whose queue is over the limit refuses the surplus, oldest first, with
OVERLOADED, and goes on executing. OVERLOADED may be retried, depends on no state, and costs a fraction of executing. It
says when the queue will have been worked off at the present rate; the SDK waits that long before it sends the same
request again.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_REFUSALS_PER_TURN = 2_000
"""Requests refused in one turn of the leader's loop; refusing so many takes about as long as one batch."""

MIN_RETRY_AFTER_MS = 100
MAX_RETRY_AFTER_MS = 10_000

RATE_WINDOW_MS = 1_000
"""Interval at which the rate of executing is counted anew."""


AVERAGED_RECORDS = 64
"""The number of requests in a record is averaged over so many records."""


@dataclass(slots=True)
class RecordSize:
    """How many requests a record of the queue holds, on average: the number in unread records can only be estimated.

    One large envelope says little of the records behind it. With the size of the last record alone, requests were
    refused although the queue was short.
    """

    mean: float = 1.0

    def on_record(self, requests: int) -> None:
        """Count the requests of a record that was read."""
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

    def on_taken(self, number: int, now_ms: int) -> None:
        """Count requests that were taken for execution."""
        self._taken += number
        elapsed_ms = now_ms - self._since_ms
        if elapsed_ms >= RATE_WINDOW_MS:
            if elapsed_ms < 2 * RATE_WINDOW_MS:  # otherwise the leader was idle for a while: no measure of its speed
                self._rate_per_s = self._taken * 1000 / elapsed_ms
            self._taken, self._since_ms = 0, now_ms

    def surplus(self, queued: int) -> int:
        """Return how many of ``queued`` requests are to be refused now."""
        return min(max(0, queued - self.max_queued), MAX_REFUSALS_PER_TURN)

    def retry_after_ms(self, queued: int) -> int:
        """Return the time until the queue will have been worked off, in ms."""
        if not self._rate_per_s:
            return MIN_RETRY_AFTER_MS
        return int(min(max(queued * 1000 / self._rate_per_s, MIN_RETRY_AFTER_MS), MAX_RETRY_AFTER_MS))
