"""Reading ``om.requests`` for a leader: from its hint, by ``assign``, on a thread of its own.

A record may be an envelope of many requests (``schemas/codecs/envelopes.py``). The thread reads a little ahead of the
leader: at most READ_AHEAD_REQUESTS, and at most MAX_ENVELOPE_MESSAGES for each record read at once.

The hint (design, section 4) is the request position of the last effective batch. It is trusted only if the record
before it is the one that the hint names. Otherwise reading resumes ten minutes back, and retry rows absorb the repeats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from xxhash import xxh3_128_digest

from om_processors.intake.core.backlog import RecordSize
from om_processors.intake.gateway import Received, resume_offset
from replicated_db.core.ports import Clock, LogUnavailable
from replicated_db.shell.kafka.fresh_consumer import FreshConsumer
from replicated_db.shell.kafka.kafka_log import REQUEST_TIMEOUT_S, consumer_settings
from schemas.access.signatures import seal_of
from schemas.codecs.codec import Undecodable
from schemas.codecs.envelopes import requests_in
from schemas.kafka.connection import Brokers
from schemas.kafka.reply_keys import reply_in
from schemas.records.log import RequestPosition
from schemas.topics import OM_REQUESTS

RESUME_BACK_MS = 10 * 60 * 1000
"""How far back reading resumes when the hint cannot be trusted; older requests have expired."""

MAX_OUT_OF_RANGE = 4
"""Reading resumes further back only after so many brokers, chosen at random, say that the partition does not have the
position.
"""

READ_AHEAD_REQUESTS = 1000
"""Requests that are read and that the leader has not taken yet; the thread reads on when there are fewer."""

POLL_S = 0.5
"""How long one question for records lasts; bounds how long the thread goes on after it was told to end."""

FETCH_WAIT_MS = 500
"""How long a broker may hold a question for records while there are none; the first record is answered at once."""

Arrived = Callable[[Sequence[Received]], None]


class RequestReader:
    """Reads the requests of one shard, and passes them on with ``arrived`` on its own thread.

    ``unreadable`` gets (offset, value, error) of a record that cannot be decoded; ``failed`` gets the exception that
    ends the thread. ``beat`` is called with how long, in seconds, a question to the brokers may keep the caller of the
    constructor.
    """

    def __init__(
        self, *, bootstrap_servers: Brokers, shard: int, clock: Clock, hint: RequestPosition | None,
        log: Callable[[str], None], arrived: Arrived, unreadable: Callable[[Received, Undecodable], None],
        failed: Callable[[BaseException], None], beat: Callable[[float], None],
    ) -> None:  # fmt: skip
        """Place the consumer; raises LogUnavailable. :meth:`start` begins to read."""
        self._shard = shard
        self._clock = clock
        self._log = log
        self._arrived = arrived
        self._unreadable = unreadable
        self._failed = failed
        self._reader = FreshConsumer(consumer_settings(bootstrap_servers, **{"fetch.wait.max.ms": FETCH_WAIT_MS}))
        self._record_size = RecordSize()
        self._next_offset = 0
        self._end = 0
        self._out_of_range = 0
        self._damaged_before = -1
        """The offset behind the last one that was passed over."""
        self._placed_at: int | None = None
        """The offset that the consumer reads next, if that is certain."""
        self._passed_on = 0
        self._taken = 0
        self._stop = False
        self._room = threading.Event()
        try:
            self._resume(hint, beat)
        except BaseException:
            self._reader.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"requests-{shard}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end and close the consumer, within POLL_S if the brokers are quiet. Does not wait for it."""
        self._stop = True
        self._room.set()

    def took(self, number: int) -> None:
        """Note that the leader has taken so many of the requests that were passed on."""
        self._taken += number
        self._room.set()

    @property
    def ahead(self) -> int:
        """How many requests were passed on and not taken yet."""
        return self._passed_on - self._taken

    @property
    def unread(self) -> int:
        """About how many requests wait in the topic; the last fetch tells its end, so this asks nobody."""
        return self._record_size.requests_in(max(0, self._end - self._next_offset))

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop:
                self._room.clear()
                if (room := READ_AHEAD_REQUESTS - self.ahead) <= 0:
                    self._room.wait(POLL_S)
                    continue
                self.read(room, POLL_S)
        except BaseException as error:
            self._failed(error)
        finally:
            self._reader.close()

    def read(self, limit: int, wait_s: float) -> None:
        """Read about ``limit`` requests; wait for the first record."""
        messages = self._reader.consume(1, wait_s)
        if messages:
            messages += self._reader.consume(self._record_size.records_for(limit) - 1, 0)
        self._end = self._reader.consumer.get_watermark_offsets(self._where(0), cached=True)[1]
        if found := self._requests_of(messages):
            self._passed_on += len(found)
            self._arrived(found)

    def _requests_of(self, messages: Sequence[Message]) -> list[Received]:
        found: list[Received] = []
        for message in messages:
            if (error := message.error()) is not None:
                if self._pass_over(error) or self._recover(error):
                    break
                continue
            self._next_offset = (message.offset() or 0) + 1
            self._out_of_range = 0
            self._unpack(message, found)
        return found

    def _unpack(self, message: Message, found: list[Received]) -> None:
        """Take the requests out of a record.

        Only the last one tells where to resume: a repeat is harmless, a gap is not.
        """
        offset, leader_epoch, value = message.offset() or 0, message.leader_epoch(), message.value() or b""
        try:
            requests = requests_in(value)
        except Undecodable as error:
            self._unreadable(Received(offset=offset, value=value), error)
            return
        self._record_size.on_record(len(requests))
        if not requests:
            return
        key = message.key()
        seal = seal_of(key, value)
        place, plain = reply_in(key if seal is None else seal.rest or None)
        found.extend(Received(offset=offset, value=one, reply_topic=place, seal=seal) for one in requests[:-1])
        position = RequestPosition(
            offset=offset + 1,
            leader_epoch=-1 if leader_epoch is None else leader_epoch,
            hash=xxh3_128_digest(value),
        )
        # A key speaks for a request that is a record of its own; a signature, for all that its record holds.
        alone = requests[-1] is value
        own = plain if alone else None
        found.append(
            Received(offset=offset, value=requests[-1], position=position, key=own, reply_topic=place, seal=seal)
        )

    # -- where to read ---------------------------------------------------------------------------------------------

    def _resume(self, hint: RequestPosition | None, beat: Callable[[float], None] = lambda _: None) -> None:
        """Place the consumer: at the hint if it can be trusted, else ten minutes back; raises LogUnavailable."""
        try:
            beat(REQUEST_TIMEOUT_S)
            low, high = self._reader.consumer.get_watermark_offsets(self._where(0), timeout=REQUEST_TIMEOUT_S)

            def value_at(offset: int) -> bytes | None:
                beat(REQUEST_TIMEOUT_S)
                return self._value_at(offset)

            def ten_minutes_back() -> int:
                beat(REQUEST_TIMEOUT_S)
                return self._ten_minutes_back()

            offset = resume_offset(hint, low, high, value_at, ten_minutes_back)
        except KafkaException as error:
            raise LogUnavailable(str(error)) from error
        beat(0)
        if hint is None or offset != hint.offset:
            self._log(f"resume {OM_REQUESTS}/{self._shard} at {offset} (hint: {hint.offset if hint else 'none'})")
        self._next_offset = offset
        if self._placed_at != offset:  # a broker would answer a new question only after the last one, FETCH_WAIT_MS
            self._reader.assign(self._where(offset))
        self._placed_at = None

    def _value_at(self, offset: int) -> bytes | None:
        self._reader.assign(self._where(offset))
        for message in self._reader.consume(1, REQUEST_TIMEOUT_S):
            if message.error() is None:
                self._placed_at = offset + 1
                return message.value() or b""
        return None

    def _ten_minutes_back(self) -> int:
        """Return the first offset of the last ten minutes, negative if no record is that young."""
        since = self._where(self._clock.wall_ms() - RESUME_BACK_MS)
        return self._reader.consumer.offsets_for_times([since], timeout=REQUEST_TIMEOUT_S)[0].offset

    def _pass_over(self, error: KafkaError) -> bool:
        """Read on behind a record that fails its checksum, and return whether the error was that.

        librdkafka would go on anywhere. The next offset may be of the same damaged batch, which is passed over one by
        one. Nobody answers its requests: their clients send them again.
        """
        if error.code() != KafkaError._BAD_MSG:
            return False
        if self._damaged_before != self._next_offset:
            self._log(
                f"{OM_REQUESTS}/{self._shard}: offset {self._next_offset} is passed over, and sent again by the clients "
                f"that wait for answers: {error.str()}"
            )
        self._next_offset += 1
        self._damaged_before = self._next_offset
        self._reader.assign(self._where(self._next_offset))
        return True

    def _recover(self, error: KafkaError) -> bool:
        """Resume after a truncated partition, and return whether the error was that; librdkafka retries after any other
        error.

        A broker that is cut off from the others knows a shorter partition, so other brokers are asked first.
        """
        if error.code() not in (
            KafkaError.OFFSET_OUT_OF_RANGE,
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError._LOG_TRUNCATION,
        ):
            return False
        self._log(f"{OM_REQUESTS}/{self._shard}: {error.str()}")
        self._out_of_range += 1
        if self._out_of_range < MAX_OUT_OF_RANGE:
            self._reader.assign(self._where(self._next_offset))
            self._reader.renew()
        else:
            self._out_of_range = 0
            self._resume(None)
        return True

    def _where(self, offset: int) -> TopicPartition:
        return TopicPartition(OM_REQUESTS, self._shard, offset)
