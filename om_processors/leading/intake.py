"""Reading ``om.requests`` for a leader: from its hint, by ``assign``, with immediate refusals sorted out on the way.

A record may be an envelope of many requests (``schemas/codecs/envelopes.py``). Requests beyond the limit of one
``take`` wait for the next, at most MAX_ENVELOPE_MESSAGES for each record read.

When more requests wait than the limit allows, the intake refuses the surplus (``backlog``).

The hint (design, section 4) is the request position of the last effective batch. It is trusted only if the record
before it is the one that the hint names. Otherwise reading resumes ten minutes back, and retry rows absorb the repeats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from xxhash import xxh3_128_digest

from om_processors.execution.service import refusal_response
from om_processors.leading.core.backlog import Backlog, RecordSize
from om_processors.leading.core.preparation import RETRY_AFTER_MS
from om_processors.leading.gateway import Gateway, Received, resume_offset
from om_processors.leading.outbox import KafkaOutbox
from replicated_db.core.leading.leader import Proposal, Reply
from replicated_db.core.ports import Clock, LogUnavailable
from replicated_db.shell.kafka.fresh_consumer import FreshConsumer
from replicated_db.shell.kafka.kafka_log import REQUEST_TIMEOUT_S, consumer_settings
from schemas.codecs.codec import Undecodable
from schemas.codecs.envelopes import requests_in
from schemas.records.log import RequestPosition
from schemas.records.messages import CreateSnapshot, Rejected
from schemas.result_codes import OVERLOADED, with_retry_after
from schemas.topics import OM_REQUESTS

if TYPE_CHECKING:
    from replicated_db.shell.tracing.leader_spans import LeaderSpans

RESUME_BACK_MS = 10 * 60 * 1000
"""How far back reading resumes when the hint cannot be trusted; older requests have expired."""

MAX_OUT_OF_RANGE = 4
"""Reading resumes further back only after so many brokers, chosen at random, say that the partition does not have the
position.
"""


class RequestIntake:
    """Takes proposals of one shard from Kafka."""

    def __init__(
        self, *, bootstrap_servers: str, shard: int, gateway: Gateway, outbox: KafkaOutbox, clock: Clock,
        hint: RequestPosition | None, log: Callable[[str], None], backlog: Backlog,
        beat: Callable[[float], None] = lambda _: None, may_take_snapshot: Callable[[], bool] = lambda: True,
        spans: LeaderSpans | None = None,
    ) -> None:  # fmt: skip
        """Place the consumer.

        ``beat`` is called with how long, in seconds, a question to the brokers may keep the caller's thread.
        ``may_take_snapshot`` is asked at each CreateSnapshot; if it says no, the client is to ask again soon.
        """
        self._may_take_snapshot = may_take_snapshot
        self._spans = spans
        self._beat = beat
        self._shard = shard
        self._gateway = gateway
        self._outbox = outbox
        self._clock = clock
        self._reader = FreshConsumer(consumer_settings(bootstrap_servers))
        self._log = log
        self._left_over: deque[Received] = deque()
        self._record_size = RecordSize()
        self._next_offset = 0
        self._out_of_range = 0
        self._backlog = backlog
        self._resume(hint)

    def take(self, limit: int, wait_s: float) -> Sequence[Proposal]:
        """Return up to ``limit`` proposals; the intake sends refusals and rejections itself."""
        left_over = self._left_over
        if len(left_over) < limit:
            self._fetch(limit - len(left_over), 0 if left_over else wait_s)
        if not left_over:
            return ()
        now_ms = self._clock.wall_ms()
        proposals: list[Proposal] = []
        while left_over and len(proposals) < limit:
            received = left_over.popleft()
            admitted = self._gateway.admit(received, now_ms)
            if isinstance(admitted, Proposal) and self._is_early(admitted):
                self._outbox.reply([self._later(admitted)])
            elif isinstance(admitted, Proposal):
                proposals.append(admitted)
                if self._spans is not None and received.key is not None:
                    self._spans.begin(admitted, received.key)
            elif isinstance(admitted, Reply):
                self._outbox.reply([admitted])
            else:
                self._reject(admitted)
        self._backlog.on_taken(len(proposals), now_ms)
        if surplus := self._backlog.surplus(queued := self._queued()):
            self._refuse(surplus, queued, now_ms)
        return proposals

    def _is_early(self, proposal: Proposal) -> bool:
        """Whether a request asks for a snapshot that would hold up all others (``core/preparation``)."""
        return proposal.request_type == CreateSnapshot.__name__ and not self._may_take_snapshot()

    def _later(self, proposal: Proposal) -> Reply:
        message = with_retry_after(
            f"shard {self._shard} writes its newest rows to the disk, and takes the snapshot then", RETRY_AFTER_MS
        )
        return Reply(proposal=proposal, response=refusal_response(proposal.body, self._shard, OVERLOADED, message))

    def _queued(self) -> int:
        """Return about how many requests wait.

        The last fetch tells the topic's end, so this costs no call to the broker.
        """
        end = self._reader.consumer.get_watermark_offsets(self._where(0), cached=True)[1]
        return len(self._left_over) + self._record_size.requests_in(max(0, end - self._next_offset))

    def _refuse(self, number: int, queued: int, now_ms: int) -> None:
        """Answer the next requests with OVERLOADED."""
        if len(self._left_over) < number:
            self._fetch(number - len(self._left_over), 0)
        what = f"{queued} requests wait for the leader of shard {self._shard}, more than {self._backlog.max_queued}"
        message = with_retry_after(what, self._backlog.retry_after_ms(queued))
        replies: list[Reply] = []
        while self._left_over and number > 0:
            number -= 1
            admitted = self._gateway.admit(self._left_over.popleft(), now_ms)
            if isinstance(admitted, Proposal):
                response = refusal_response(admitted.body, self._shard, OVERLOADED, message)
                replies.append(Reply(proposal=admitted, response=response))
            elif isinstance(admitted, Reply):
                replies.append(admitted)
            else:
                self._reject(admitted)
        self._backlog.refused += len(replies)
        self._outbox.reply(replies)

    def _fetch(self, limit: int, wait_s: float) -> None:
        """Read about ``limit`` requests; an envelope with more leaves some over for the next time."""
        messages = self._reader.consume(1, wait_s) if wait_s else []
        if messages or not wait_s:
            messages += self._reader.consume(self._record_size.records_for(limit) - len(messages), 0)
        for message in messages:
            if (error := message.error()) is not None:
                if self._recover(error):
                    break
                continue
            self._next_offset = (message.offset() or 0) + 1
            self._out_of_range = 0
            self._unpack(message.offset() or 0, message.leader_epoch(), message.value() or b"", message.key())

    def _unpack(self, offset: int, leader_epoch: int | None, value: bytes, key: bytes | None) -> None:
        """Take the requests out of a record.

        Only the last one tells where to resume: a repeat is harmless, a gap is not.
        """
        try:
            requests = requests_in(value)
        except Undecodable as error:
            self._reject(self._gateway.reject(Received(offset=offset, value=value), error, self._clock.wall_ms()))
            return
        self._record_size.on_record(len(requests))
        if not requests:
            return
        self._left_over.extend(Received(offset=offset, value=request) for request in requests[:-1])
        position = RequestPosition(
            offset=offset + 1,
            leader_epoch=-1 if leader_epoch is None else leader_epoch,
            hash=xxh3_128_digest(value),
        )
        # A key speaks for a request that is a record of its own.
        own = key if requests[-1] is value else None
        self._left_over.append(Received(offset=offset, value=requests[-1], position=position, key=own))

    def _reject(self, rejected: Rejected) -> None:
        self._log(f"rejected offset {rejected.offset} of {OM_REQUESTS}/{self._shard}: {rejected.message}")
        self._outbox.reject(rejected)

    def close(self) -> None:
        """Close the consumer."""
        self._reader.close()

    def _resume(self, hint: RequestPosition | None) -> None:
        """Forget what is left over, and place the consumer: at the hint if it can be trusted, else ten minutes back."""
        self._left_over.clear()
        try:
            self._beat(REQUEST_TIMEOUT_S)
            low, high = self._reader.consumer.get_watermark_offsets(self._where(0), timeout=REQUEST_TIMEOUT_S)
            offset = resume_offset(hint, low, high, self._value_at, self._ten_minutes_back)
        except KafkaException as error:
            raise LogUnavailable(str(error)) from error
        self._beat(0)
        if hint is None or offset != hint.offset:
            self._log(f"resume {OM_REQUESTS}/{self._shard} at {offset} (hint: {hint.offset if hint else 'none'})")
        self._next_offset = offset
        self._reader.assign(self._where(offset))

    def _value_at(self, offset: int) -> bytes | None:
        self._beat(REQUEST_TIMEOUT_S)
        self._reader.assign(self._where(offset))
        for message in self._reader.consume(1, REQUEST_TIMEOUT_S):
            if message.error() is None:
                return message.value() or b""
        return None

    def _ten_minutes_back(self) -> int:
        """Return the first offset of the last ten minutes, negative if no record is that young."""
        self._beat(REQUEST_TIMEOUT_S)
        since = self._where(self._clock.wall_ms() - RESUME_BACK_MS)
        return self._reader.consumer.offsets_for_times([since], timeout=REQUEST_TIMEOUT_S)[0].offset

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
