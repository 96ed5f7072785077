"""How far this node's replicas are behind the ends of their logs, as the brokers say; asked a few times a second.

All logs are one question, which each broker is asked for the partitions that it leads: an idle cluster of many shards
asks no more often than one of few. One partition that does not answer keeps the others' answers away, so after such a
round each is asked for itself, until all have answered again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from replicated_db.core.applying.replica import Replica
from schemas.topics import OM_LOG
from transport.waiting.deadline import Deadline

ASK_TIMEOUT_S = 1.0
"""How long one round may take; partitions that are asked after that get no answer this time. The same thread renews
loans, so a round must be well within a session time-out.
"""

ONE_TIMEOUT_S = ASK_TIMEOUT_S / 2
"""How long one question may take, about all partitions or one."""

LEAST_WAIT_S = 0.1


class LogEnds:
    """Asks for the end of each shard's log.

    Where it asks one by one, those that did not answer come last, so that they delay no others.
    """

    def __init__(self, replicas: Mapping[int, Replica]) -> None:
        self._replicas = replicas
        self._order = list(replicas)
        self._all_answer = True
        self.lags: Mapping[int, int | None] = dict.fromkeys(replicas)
        """Records behind the end, by shard; None if the brokers do not say."""
        self.leaderless: frozenset[int] = frozenset()
        """Shards whose partition has no leader, so that no node can read or write its log."""

    def ask(self, consumer: Consumer, seen: Callable[[Replica, int], None]) -> None:
        """Ask about all shards; ``seen`` is called with each replica and its log's end."""
        deadline = Deadline.after_s(ASK_TIMEOUT_S)
        lags: dict[int, int | None] = dict(self.lags)  # shards that get no turn keep what was known before
        answered: list[int] = []
        failed: list[int] = []
        together = self._ends_of_all(consumer) if self._all_answer else None
        for shard in self._order:
            end: int | None
            if together is not None:
                end = together[shard]
            elif (left_s := deadline.sooner(ONE_TIMEOUT_S).left_s) < LEAST_WAIT_S:
                break
            else:
                end = self._end_of_one(consumer, shard, left_s)
            if end is None:
                lags[shard] = None  # unknown: no reason to leave the group, and none to join it
                failed.append(shard)
                continue
            lags[shard] = max(0, end - 1 - self._replicas[shard].read_offset)
            answered.append(shard)
            seen(self._replicas[shard], end)
        # Next time, shards that had no turn come first, and shards that did not answer last.
        waiting = [shard for shard in self._order if shard not in answered and shard not in failed]
        self._order = [*waiting, *answered, *failed]
        self._all_answer = len(answered) == len(self._order)
        self.leaderless = self._without_leader(consumer, lags) if None in lags.values() else frozenset()
        self.lags = lags

    def _ends_of_all(self, consumer: Consumer) -> Mapping[int, int] | None:
        """Return the ends of all logs; None if any is not told."""
        asked = [TopicPartition(OM_LOG, shard, OFFSET_END) for shard in self._order]
        try:
            told: Sequence[TopicPartition] = consumer.offsets_for_times(asked, timeout=ONE_TIMEOUT_S)
        except KafkaException:
            return None
        ends = {place.partition: place.offset for place in told if place.error is None and place.offset >= 0}
        return ends if ends.keys() == self._replicas.keys() else None

    @staticmethod
    def _end_of_one(consumer: Consumer, shard: int, timeout_s: float) -> int | None:
        """Return the end of one log; None if it is not told."""
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(OM_LOG, shard), timeout=timeout_s)[1])
        except KafkaException:
            return None

    def _without_leader(self, consumer: Consumer, lags: Mapping[int, int | None]) -> frozenset[int]:
        try:
            partitions = consumer.list_topics(OM_LOG, timeout=LEAST_WAIT_S).topics[OM_LOG].partitions
        except (KafkaException, KeyError):
            return self.leaderless
        return frozenset(
            shard for shard, lag in lags.items() if lag is None and shard in partitions and partitions[shard].leader < 0
        )
