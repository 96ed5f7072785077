"""The audit's verdicts, read from ``om.verdicts``, and what they say together.

Rules:

0. Verdicts on the Object Manager's log and on the datanodes' log are kept apart; a question is about one of them.
1. A later verdict on the same shard, node, barrier and basis replaces the earlier one (``unknown``, then another).
2. The latest verdict on a shard, node and basis is the one at the highest barrier.
3. A missing verdict is ``unknown``, and so is a verdict about an older index than asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from schemas.codecs.codec import Undecodable, decode_as
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.records.messages import Verdict
from schemas.topics import OM_LOG, OM_VERDICTS
from spark_streaming.verdicts.core.words import DIVERGED, EQUAL, INCREMENTAL, SCRUBBED
from stratolog.errors import Unavailable

CONTACT_TIMEOUT_S = 10.0
READ_LIMIT = 500
MAX_LATEST = 4096
"""Entries of :class:`Latest`: far above shards times replicas times bases of one cluster."""


class VerdictReader:
    """Reads ``om.verdicts`` from its beginning or from a moment; close it, or use it in a ``with`` block."""

    def __init__(self, bootstrap_servers: Brokers, *, since_ms: int | None = None) -> None:
        self._consumer = Consumer(
            client_settings(
                bootstrap_servers,
                {
                    "group.id": "stratolog-verdicts",  # never committed to: partitions are assigned
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    # Otherwise a stranger's open transaction would hide later verdicts.
                    "isolation.level": "read_uncommitted",
                    "log_level": 0,
                },
            )
        )
        try:
            self._consumer.assign(self._beginnings(since_ms))
        except KafkaException as error:
            self._consumer.close()
            raise Unavailable(f"{bootstrap_servers}: {OM_VERDICTS} cannot be read: {error.args[0]}") from error

    def _beginnings(self, since_ms: int | None) -> list[TopicPartition]:
        topic = self._consumer.list_topics(OM_VERDICTS, timeout=CONTACT_TIMEOUT_S).topics[OM_VERDICTS]
        if topic.error is not None:
            raise KafkaException(topic.error)
        partitions = [TopicPartition(OM_VERDICTS, number, OFFSET_BEGINNING) for number in topic.partitions]
        if since_ms is None:
            return partitions
        asked = [TopicPartition(OM_VERDICTS, found.partition, since_ms) for found in partitions]
        found = self._consumer.offsets_for_times(asked, timeout=CONTACT_TIMEOUT_S)
        for partition in found:
            if partition.offset < 0:  # no verdict is that young
                partition.offset = OFFSET_END
        return list(found)

    def poll(self, timeout_s: float) -> list[Verdict]:
        """Return new verdicts, at most READ_LIMIT; wait ``timeout_s`` for the first."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(READ_LIMIT - 1, 0)]
        verdicts = []
        for message in messages:
            error = message.error()
            if error is None:
                # Anybody may write to the topic, so a record that is no verdict is skipped.
                with suppress(Undecodable):
                    verdicts.append(decode_as(Verdict, message.value() or b""))
            elif error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise Unavailable(f"{OM_VERDICTS} cannot be read: {error}")
        return verdicts

    def until(self, deadline_s: float) -> Iterator[list[Verdict]]:
        """Yield new verdicts (or an empty list) again and again until ``time.monotonic()`` reaches ``deadline_s``."""
        while (left_s := deadline_s - time.monotonic()) > 0:
            yield self.poll(min(left_s, 0.5))

    def close(self) -> None:
        """Let go of the connection."""
        self._consumer.close()

    def __enter__(self) -> Self:
        """Return the reader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class VerdictSubject(NamedTuple):
    """What a verdict is about: a replica of a shard, and the basis on which it is judged."""

    shard: int
    node: str
    basis: str


@dataclass(slots=True, kw_only=True)
class Latest:
    """The latest verdict on each (shard, node, basis) of one log, and the last one of each that was ``diverged``."""

    log: str = OM_LOG
    verdicts: dict[VerdictSubject, Verdict] = field(default_factory=dict)
    diverged: dict[VerdictSubject, Verdict] = field(default_factory=dict)

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Take verdicts in the order in which they came."""
        for verdict in verdicts:
            if verdict.log != self.log:
                continue
            key = VerdictSubject(verdict.shard, verdict.node, verdict.basis)
            known = self.verdicts.get(key)
            if known is None or verdict.barrier_offset >= known.barrier_offset:
                self.verdicts.pop(key, None)
                self.verdicts[key] = verdict
            if verdict.verdict == DIVERGED:
                self.diverged[key] = verdict
            for kept in (self.verdicts, self.diverged):
                while len(kept) > MAX_LATEST:
                    kept.pop(next(iter(kept)))

    def of(self, shard: int, node: str, basis: str) -> Verdict | None:
        """Return the latest verdict on a replica."""
        return self.verdicts.get(VerdictSubject(shard, node, basis))

    def is_equal(self, shard: int, node: str, index: int) -> bool:
        """Say whether a replica is ``equal`` at ``index``, by digest and by full scan, and never was ``diverged``."""
        found = [self.of(shard, node, basis) for basis in (INCREMENTAL, SCRUBBED)]
        return all(
            verdict is not None and verdict.verdict == EQUAL and verdict.index == index for verdict in found
        ) and not any(key.shard == shard and key.node in (node, "") for key in self.diverged)
