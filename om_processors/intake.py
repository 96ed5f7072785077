"""Reading ``om.requests`` for a leader: from its hint, by ``assign``, with immediate refusals sorted out on the way.

The hint (design, section 4) is the request position of the last effective batch. It is trusted only if the record before it is
the one that it names; otherwise reading resumes ten minutes back, and retry rows absorb the repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from xxhash import xxh3_128_digest

from om_processors.gateway import Gateway, Received
from om_processors.outbox import KafkaOutbox
from replicated_db.kafka_log import REQUEST_TIMEOUT_S, consumer_settings
from replicated_db.leader import Proposal, Reply
from replicated_db.ports import Clock, LogUnavailable
from schemas.log import RequestPosition
from schemas.topics import OM_REQUESTS

RESUME_BACK_MS = 10 * 60 * 1000
"""How far back reading resumes when the hint cannot be trusted; what is older has expired."""


class RequestIntake:
    """Takes proposals of one shard from Kafka."""

    def __init__(
        self, *, bootstrap_servers: str, shard: int, gateway: Gateway, outbox: KafkaOutbox, clock: Clock,
        hint: RequestPosition | None, log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._shard = shard
        self._gateway = gateway
        self._outbox = outbox
        self._clock = clock
        self._consumer = Consumer(consumer_settings(bootstrap_servers))
        self._log = log
        self._resume(hint)

    def take(self, limit: int, wait_s: float) -> Sequence[Proposal]:
        """Return up to ``limit`` proposals; refusals and rejections are sent from here."""
        messages = self._consumer.consume(1, wait_s) if wait_s else []
        if messages or not wait_s:
            messages += self._consumer.consume(limit - len(messages), 0)
        if not messages:
            return ()
        now_ms = self._clock.wall_ms()
        proposals: list[Proposal] = []
        for message in messages:
            if (error := message.error()) is not None:
                if self._recover(error):
                    break
                continue
            admitted = self._gateway.admit(_received(message), now_ms)
            if isinstance(admitted, Proposal):
                proposals.append(admitted)
            elif isinstance(admitted, Reply):
                self._outbox.reply([admitted])
            else:
                self._log(f"rejected offset {admitted.offset} of {OM_REQUESTS}/{self._shard}: {admitted.message}")
                self._outbox.reject(admitted)
        return proposals

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _resume(self, hint: RequestPosition | None) -> None:
        """Place the consumer at the hint if the record before it is the one named, else ten minutes back."""
        try:
            low, high = self._consumer.get_watermark_offsets(self._where(0), timeout=REQUEST_TIMEOUT_S)
            if hint is not None and low < hint.offset <= high and self._names(hint):
                self._consumer.assign([self._where(hint.offset)])
                return
            since = self._where(self._clock.wall_ms() - RESUME_BACK_MS)
            found = self._consumer.offsets_for_times([since], timeout=REQUEST_TIMEOUT_S)[0].offset
        except KafkaException as error:
            raise LogUnavailable(str(error)) from error
        # A negative offset means: no record that young.
        offset = max(low, min(found, high)) if found >= 0 else high
        self._log(f"resume {OM_REQUESTS}/{self._shard} at {offset} (hint: {hint.offset if hint else 'none'})")
        self._consumer.assign([self._where(offset)])

    def _names(self, hint: RequestPosition) -> bool:
        """Whether the record before the hint is the one that it was made from."""
        self._consumer.assign([self._where(hint.offset - 1)])
        messages = self._consumer.consume(1, REQUEST_TIMEOUT_S)
        return any(m.error() is None and xxh3_128_digest(m.value() or b"") == hint.hash for m in messages)

    def _recover(self, error: KafkaError) -> bool:
        """Resume after a truncated partition, and say whether that was it; anything else is librdkafka's to retry."""
        if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION):
            self._log(f"{OM_REQUESTS}/{self._shard}: {error.str()}")
            self._resume(None)
            return True
        return False

    def _where(self, offset: int) -> TopicPartition:
        return TopicPartition(OM_REQUESTS, self._shard, offset)


def _received(message: Message) -> Received:
    epoch = message.leader_epoch()
    return Received(
        offset=message.offset() or 0,
        leader_epoch=-1 if epoch is None else epoch,
        value=message.value() or b"",
    )
