"""The tail of a topic: all its partitions from a place near the end on, and what comes behind it.

Rules:

1. Partitions are assigned. No group is joined and nothing is committed: each reader sees everything.
2. A partition whose position has been deleted goes on at the first record that is left.
3. Every LOOK_EVERY_S it is looked whether the topic is what it was. Partitions that are new are read from their first
   record. So is one that ends before the position: it was made anew. (One that has grown past the old position
   meanwhile looks like the old one: what it has before that position is not read.) A topic may be gone for GONE_S.
4. Brokers that are away are tried again for ever, and :meth:`TopicTail.poll` returns nothing meanwhile.
   :meth:`TopicTail.to_end` ends with its caller's deadline.
5. Anybody may write to a topic: :func:`records_of` leaves out what is no record of the kind that is asked for.

Example::

    with TopicTail(servers, OM_VERDICTS, TailStart(last_records=100)) as tail:
        for messages in tail.until(Deadline.after_s(10)):
            for verdict in records_of(Verdict, messages):
                ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.codecs.codec import Undecodable, decode_as
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.topics import SILENT_BROKER_MS
from transport.waiting.core.backoff import Backoff
from transport.waiting.deadline import Deadline

CONTACT_S = 10.0
"""How long the brokers may take to say where a topic begins and ends, unless the caller says otherwise."""

GONE_S = 30.0
"""How long a topic may be gone while it is followed: somebody makes it anew."""

LOOK_EVERY_S = 10.0
"""How often it is looked whether the topic has new partitions, was made anew, or is gone."""

LOOK_S = 1.0
"""How long one such look may take."""

READ_LIMIT = 500
"""Records that are handed out at once."""

FETCH_WAIT_MS = 100
"""How long brokers keep a fetch waiting for a record. A question on the same connection waits behind it."""

MAX_QUEUED_KIB = 8 * 1024
"""What a tail keeps in memory of records that were not asked for yet."""

STEP_S = 0.5
"""How long one look for new records waits, where the caller says only when to end."""

_RETRY = Backoff(first_s=0.05, last_s=1.0)
_NOT_LED = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
"""What brokers answer about a partition that was made a moment ago."""
_FOR_GOOD = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._BAD_MSG)
"""librdkafka goes on after these, and after a wrong checksum anywhere: with the first record of the topic, too."""
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

T = TypeVar("T")


class TopicUnavailable(Exception):
    """A topic cannot be read: it does not exist, it may not be read, or the brokers do not serve it in time."""

    def __init__(self, topic: str, why: str, *, is_missing: bool = False) -> None:
        super().__init__(f"{topic} cannot be read: {why}")
        self.why = why
        self.is_missing = is_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class TailStart:
    """Where a tail begins: with the first record, or with the later one of what is given."""

    #: So many records before the end of each partition; 0: with what comes from now on.
    last_records: int | None = None
    #: With the first record that is as young as this, in ms since the epoch.
    since_ms: int | None = None


FIRST_RECORD = TailStart()


class TopicTail:
    """Follows a topic, for one thread; close it, or use it in a ``with`` block.

    Raises TopicUnavailable if there is no such topic, or the brokers do not answer before ``deadline``.
    """

    def __init__(
        self, bootstrap_servers: Brokers, topic: str, start: TailStart = FIRST_RECORD, deadline: Deadline | None = None
    ) -> None:  # fmt: skip
        self.topic = topic
        self._next: dict[int, int] = {}
        """By partition: the next offset to read."""
        self._gone_until: Deadline | None = None
        self._next_look = Deadline.after_s(LOOK_EVERY_S)
        self._consumer = Consumer(
            client_settings(
                bootstrap_servers,
                {
                    "group.id": "stratolog-tail",  # never committed to: partitions are assigned
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_uncommitted",  # a stranger's open transaction would hide all later records
                    "enable.partition.eof": True,  # the end may be a transaction's mark, which is no record
                    "check.crcs": True,
                    "allow.auto.create.topics": False,
                    "fetch.wait.max.ms": FETCH_WAIT_MS,
                    "queued.max.messages.kbytes": MAX_QUEUED_KIB,
                    "reconnect.backoff.max.ms": 1000,
                    "socket.timeout.ms": SILENT_BROKER_MS,
                    "log_level": 0,
                },
            )
        )
        try:
            self._begin(start, deadline or Deadline.after_s(CONTACT_S))
        except BaseException:
            self._consumer.close()
            raise

    # -- where to read -------------------------------------------------------------------------------------------------

    def _begin(self, start: TailStart, deadline: Deadline) -> None:
        numbers = self._partitions(deadline)
        firsts, ends = self._firsts(numbers, deadline), self._ends(numbers, deadline)
        timed = firsts if start.since_ms is None else self._offsets_at(numbers, start.since_ms, deadline)
        for number in numbers:
            first, end, young = firsts[number], ends[number], timed[number]
            recent = first if start.last_records is None else end - start.last_records
            self._next[number] = max(first, recent, end if young < 0 else min(young, end))
        self._consumer.assign([TopicPartition(self.topic, *place) for place in self._next.items()])

    def _find_again(self, deadline: Deadline) -> dict[int, int]:
        """Take in partitions that are new, were made anew, or have lost records; return all ends."""
        numbers = self._partitions(deadline)
        firsts, ends = self._firsts(numbers, deadline), self._ends(numbers, deadline)
        known = {number: self._next.get(number, firsts[number]) for number in numbers}
        places = {n: known[n] if firsts[n] <= known[n] <= ends[n] else firsts[n] for n in numbers}
        if places != self._next:
            self._next = places
            self._consumer.assign([TopicPartition(self.topic, *place) for place in places.items()])
        return ends

    def _look(self) -> None:
        """Look whether the topic is what it was; raises TopicUnavailable once it has been gone for too long."""
        self._next_look = Deadline.after_s(LOOK_EVERY_S)
        try:
            self._find_again(Deadline.after_s(LOOK_S))
            self._gone_until = None
        except TopicUnavailable as error:
            if error.is_missing:
                self._gone_until = self._gone_until or Deadline.after_s(GONE_S)
                self._next_look = Deadline.after_s(LOOK_S)
                if self._gone_until.has_passed:
                    raise

    def _partitions(self, deadline: Deadline) -> list[int]:
        def ask(wait_s: float) -> list[int]:
            found = self._consumer.list_topics(self.topic, timeout=wait_s).topics[self.topic]
            if found.error is not None:
                raise KafkaException(found.error)
            return list(found.partitions)

        return self._ask(ask, deadline)

    def _firsts(self, numbers: Iterable[int], deadline: Deadline) -> dict[int, int]:
        return self._offsets_at(numbers, OFFSET_BEGINNING, deadline)

    def _ends(self, numbers: Iterable[int], deadline: Deadline) -> dict[int, int]:
        return self._offsets_at(numbers, OFFSET_END, deadline)

    def _offsets_at(self, numbers: Iterable[int], at_ms: int, deadline: Deadline) -> dict[int, int]:
        """Return, by partition, the offset of the first record that is as young as ``at_ms``; below 0: none is.

        OFFSET_BEGINNING and OFFSET_END, for a time, give the first offset and the end: one request for all partitions.
        """
        asked = [TopicPartition(self.topic, number, at_ms) for number in numbers]

        def ask(wait_s: float) -> dict[int, int]:
            found = self._consumer.offsets_for_times(asked, timeout=wait_s)
            for one in found:
                if one.error is not None:
                    raise KafkaException(one.error)
            return {one.partition: one.offset for one in found}

        return self._ask(ask, deadline)

    def _ask(self, ask: Callable[[float], T], deadline: Deadline) -> T:
        """Ask the brokers; again, until the deadline, where nobody leads a partition yet. Raises TopicUnavailable."""
        failures = 0
        while True:
            try:
                return ask(deadline.sooner(CONTACT_S).left_s)
            except KafkaException as error:
                failures += 1
                pause_s = _RETRY.pause_s(failures)
                if error.args[0].code() not in _NOT_LED or not deadline.has_room_for(pause_s):
                    raise TopicUnavailable(
                        self.topic, error.args[0].str(), is_missing=error.args[0].code() in _GONE
                    ) from error
                time.sleep(pause_s)

    # -- reading -------------------------------------------------------------------------------------------------------

    def poll(self, wait_s: float) -> list[Message]:
        """Return new records, at most READ_LIMIT; wait ``wait_s`` for the first. Raises TopicUnavailable."""
        deadline = Deadline.after_s(wait_s)
        while True:
            if self._next_look.has_passed:
                self._look()
            first = self._consumer.poll(deadline.left_ms / 1000)
            if first is None:
                return []
            found = self._taken([first, *self._consumer.consume(READ_LIMIT - 1, 0)])
            if found or deadline.has_passed:
                return found

    def until(self, deadline: Deadline) -> Iterator[list[Message]]:
        """Yield new records, or an empty list every STEP_S, until the deadline. Raises TopicUnavailable."""
        while not deadline.has_passed:
            yield self.poll(deadline.sooner(STEP_S).left_s)

    def to_end(self, deadline: Deadline) -> Iterator[list[Message]]:
        """Yield what lies before the ends that all partitions have now, those that are new among them.

        Raises TopicUnavailable if it cannot be read whole before the deadline: nothing is left out in silence.
        """
        ends = self._find_again(deadline)
        while any(self._next.get(number, end) < end for number, end in ends.items()):
            if deadline.has_passed:
                raise TopicUnavailable(self.topic, "it is not served to its end in time")
            messages = self._consumer.consume(READ_LIMIT, deadline.sooner(STEP_S).left_s)
            if found := self._taken(messages, is_strict=True):
                yield found

    def skip_behind(self, most: int, kept: int) -> dict[int, int]:
        """Go on ``kept`` records before the end where the tail is more than ``most`` behind it.

        Returns, by partition, how many records that leaves out. Raises TopicUnavailable.
        """
        left_out = {}
        for number, place in self._next.items():
            _, end = self._consumer.get_watermark_offsets(TopicPartition(self.topic, number), cached=True)
            if end - place > most:
                left_out[number] = end - kept - place
                self._next[number] = end - kept
        for number in left_out:
            try:
                self._consumer.seek(TopicPartition(self.topic, number, self._next[number]))
            except KafkaException as error:
                raise TopicUnavailable(self.topic, error.args[0].str()) from error
        return left_out

    def _taken(self, messages: Iterable[Message], *, is_strict: bool = False) -> list[Message]:
        """Return the records among messages; raises TopicUnavailable.

        librdkafka recovers by itself from most errors, which are left out; ``is_strict``: none is.
        """
        found = []
        for message in messages:
            number, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            if error is None:
                self._next[number] = offset + 1
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._next[number] = offset
            elif is_strict or error.fatal() or error.code() in _FOR_GOOD:
                raise TopicUnavailable(self.topic, error.str())
            elif error.code() in _GONE:
                self._next_look = Deadline.after_s(0)
        return found

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def __enter__(self) -> Self:
        """Return the tail itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def records_of(kind: type[T], messages: Iterable[Message]) -> Iterator[T]:
    """Yield the records of one kind that messages hold, and leave out all others."""
    for message in messages:
        with suppress(Undecodable):
            yield decode_as(kind, message.value() or b"")
