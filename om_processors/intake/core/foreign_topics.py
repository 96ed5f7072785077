"""Who may have responses written to which user's topic, where requests are signed. Pure.

Kafka does not tell who wrote a record, and a record may name any user's topic. So:

1. Responses go to a topic of the proven caller's own, or of a user of the brokers who has the name of one of the
   caller's groups (an account that several share); an administrator may name any.
2. Whoever names another topic, or does not prove who he is, has refusals written there and nothing else: a program that
   is set up wrongly is told why. Those are MAX_REFUSALS_PER_S a topic. What is beyond is told to nobody: its client
   asks again.
"""

from __future__ import annotations

from collections import Counter

from schemas.records.identity import ProvenCaller
from schemas.topics import responses_topic

MAX_REFUSALS_PER_S = 100
"""Refusals in a second that a shard's leader writes to one user's topic for others than that user."""
MAX_TOPICS = 1_024
"""Topics that are counted in a second; refusals to further ones are not written."""
SECOND_MS = 1_000


def may_name(topic: str, user: str, standing: ProvenCaller) -> bool:
    """Say whether a proven caller's responses may go to a topic.

    >>> alice = ProvenCaller(administrator=False, groups=["etl"], generation=1, token=0)
    >>> [may_name(f"om.responses.{name}", "alice", alice) for name in ("alice", "etl", "bob")]
    [True, True, False]
    """
    return standing.administrator or topic in map(responses_topic, (user, *standing.groups))


class ForeignRefusals:
    """Counts, for one shard, refusals to topics of others than the proven caller; for one thread."""

    def __init__(self) -> None:
        self._second = 0
        self._written: Counter[str] = Counter()

    def may_write(self, topic: str, now_ms: int) -> bool:
        """Count a refusal, and say whether it may be written."""
        if now_ms // SECOND_MS != self._second:
            self._second = now_ms // SECOND_MS
            self._written.clear()
        if topic not in self._written and len(self._written) >= MAX_TOPICS:
            return False
        self._written[topic] += 1
        return self._written[topic] <= MAX_REFUSALS_PER_S
