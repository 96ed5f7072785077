"""The client's way to Kafka and back: one producer for requests, one consumer for replies (design, section 4).

What belongs here: confluent-kafka, its settings with the reason for each, and nothing about calls. The consumer is
assigned one partition of ``om.responses``, or of its user's own topic of responses, at its end *before* anything is
sent, without a group, and passes on the values whose message key is the client's id. The producer has no delivery
reports: a response shows that the request arrived, and silence that it may not have.

The caller lingers: it decides how many requests :meth:`Transport.send` gets at once, and the producer adds no delay.
With one produce request in flight per broker, requests that arrive meanwhile are sent together in the next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from producers.errors import NOT_CONNECTED, NotConnected
from producers.requests.core.calls import Call
from producers.requests.listeners import check_listening
from producers.waiting import WORD_EACH_MS, SlowWait
from schemas.access.credentials import Credentials
from schemas.access.signatures import sealed_key
from schemas.codecs.envelopes import enveloped_requests
from schemas.kafka.brokers_id import brokers_id
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import USERNAME, BadKafkaSetting, Brokers, connection
from schemas.kafka.reply_keys import reply_key
from schemas.kafka.troubles import ClientError, ConnectionTroubles
from schemas.records.door import DoorRead
from schemas.topics import MAX_MESSAGE_BYTES, OM_LOG, OM_REQUESTS, OM_RESPONSES, SILENT_BROKER_MS, responses_topic
from transport.processes import begins_anew_in_forks, keep_for_ever
from transport.waiting.deadline import Deadline

logger = logging.getLogger("stratolog.client")

ASK_S = 2.0
"""Time limit of one question to the brokers while connecting; the question is repeated."""
PAUSE_S = 0.1
"""Between two questions to the brokers while connecting."""
GRACE_S = 2.0
"""How long a client tries on whom the brokers refuse: they may learn of a new user a little later."""
LOGIN_PAUSE_S = 1.0
"""The least time between two looks at the password's file, while brokers refuse the password."""
RECEIVE_MESSAGES = 2000
"""Replies that are taken at once, at most."""
PRODUCER_QUEUE_MESSAGES = 200_000
"""The size of librdkafka's queue of requests that no broker has yet; a request that does not fit is sent again when it
is due.
"""
PRODUCER_QUEUE_KBYTES = 256 * 1024
CONSUMER_QUEUE_KBYTES = 16 * 1024
"""The size of librdkafka's queue of replies that nobody has taken yet."""


class Transport:
    """A connection of one client; ``client_id`` is the client's 16 bytes.

    ``message_timeout_ms`` is how long a request may wait for a broker before librdkafka drops it. It should not exceed
    the time after which a silent call is sent again, so that copies of one call do not pile up.
    Raises NotConnected if no broker answers in ``connect_timeout_ms``, or a topic is missing.
    """

    def __init__(
        self, bootstrap_servers: Brokers, client_id: bytes, *, message_timeout_ms: int, connect_timeout_ms: int,
        credentials: Credentials | None = None,
    ) -> None:  # fmt: skip
        """With ``credentials`` every record of requests is signed, but those that the cluster's secret proves."""
        self._credentials = credentials
        self._client_id = client_id
        self._brokers = connection(bootstrap_servers)
        self._troubles = ConnectionTroubles(bootstrap_servers, _log_connection_error)
        self._logged_in_s = time.monotonic()
        self._grace = Deadline.after_s(GRACE_S)
        deadline = Deadline.after_ms(connect_timeout_ms)
        check_listening(self._brokers.servers, deadline)
        self._patience = SlowWait(f"connecting to {bootstrap_servers}")
        self._producer = Producer(_producer_settings(self._brokers, message_timeout_ms, self._troubles))
        self._consumer = Consumer(_consumer_settings(self._brokers, client_id, self._troubles))
        self.brokers_id = ""
        """The id of the brokers' Kafka cluster; empty if they tell none."""
        begins_anew_in_forks(self)
        try:
            self.shards = self._find_shards(deadline)
            self._reply_topic = self._find_reply_topic(deadline)
            partitions = self._partitions(self._reply_topic, deadline)
            self.reply_partition = int.from_bytes(client_id, "big") % partitions
            self._assign_replies(deadline)
        except BaseException:
            self._consumer.close()
            raise

    def _find_reply_topic(self, deadline: Deadline) -> str:
        """Return the topic of this user's own responses if the brokers have one, else the topic that all share."""
        own = responses_topic(self._brokers.get(USERNAME)) if self._brokers.has_sasl else None
        last: object = "no answer"
        while own is not None:
            try:
                topics = self._consumer.list_topics(timeout=_ask_s(deadline)).topics
            except KafkaException as error:
                last = error.args[0]
                self._give_up_if_refused()
            else:
                # A broker names the topics that this user may use. It may learn of the user's rights a little later.
                if found := [topic for topic in (own, OM_RESPONSES) if topic in topics]:
                    return found[0]
                last = f"{self._who()} may read neither {own} nor {OM_RESPONSES}"
                if OM_REQUESTS in topics and self._grace.has_passed:
                    raise self._not_connected(str(last))
            self._patience.still(last)
            if deadline.has_passed:
                raise self._not_connected(str(last))
            time.sleep(PAUSE_S)
        return OM_RESPONSES

    def _partitions(self, topic: str, deadline: Deadline) -> int:
        """Return the number of partitions of a topic that exists."""
        last: object = "no answer"
        while not deadline.has_passed:
            try:
                found = self._consumer.list_topics(topic, timeout=_ask_s(deadline))
            except KafkaException as error:
                last = error.args[0]
                self._troubles.note(error.args[0])
                self._give_up_if_refused()
                self._patience.still(last)
                time.sleep(PAUSE_S)
                continue
            metadata = found.topics[topic]
            self.brokers_id = brokers_id(found.cluster_id)
            if metadata.error is None and metadata.partitions:
                return len(metadata.partitions)
            # Some brokers may not know a topic yet that was made a moment ago.
            last = metadata.error
            is_forbidden = metadata.error is not None and metadata.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            if is_forbidden and self._grace.has_passed:
                raise self._not_connected(f"topic {topic}: {self._who()} may not use it: {last}")
            self._patience.still(f"topic {topic}: {last}")
            time.sleep(PAUSE_S)
        raise self._not_connected(f"topic {topic}: {last}")

    def _find_shards(self, deadline: Deadline) -> int:
        """Return the number of shards: of partitions of requests, or of the log if this client sees that it has fewer.

        Somebody may have added partitions to the topic of requests. They are no shards: nobody executes what is sent
        there, and if they counted, volumes would be looked for in other shards.
        """
        number = self._partitions(OM_REQUESTS, deadline)
        try:
            of_log = self._consumer.list_topics(OM_LOG, timeout=_ask_s(deadline)).topics[OM_LOG]
        except KafkaException:
            return number
        return number if of_log.error is not None else min(number, len(of_log.partitions) or number)

    def _assign_replies(self, deadline: Deadline) -> None:
        partition = TopicPartition(self._reply_topic, self.reply_partition)
        while True:
            try:
                _, end = self._consumer.get_watermark_offsets(partition, timeout=_ask_s(deadline))
                break
            except KafkaException as error:
                self._patience.still(error)
                # A leader of the partition is being elected.
                if deadline.has_passed:
                    raise self._not_connected(f"end of {partition.topic}-{partition.partition}: {error}") from error
                time.sleep(PAUSE_S)
        self._next_reply = end
        self._consumer.assign([TopicPartition(self._reply_topic, self.reply_partition, end)])

    def _who(self) -> str:
        user = self._brokers.get(USERNAME)
        return f"user {user!r}" if user else "this client"

    def _give_up_if_refused(self) -> None:
        """Raise NotConnected if waiting will not help: wrong credentials, or a certificate that is not trusted."""
        self._producer.poll(0)
        if self._troubles.is_refused and self._grace.has_passed:
            raise self._not_connected(f"{self._who()} was refused: {self._troubles}")

    def _not_connected(self, message: str) -> NotConnected:
        known = f" ({self._troubles})" if self._troubles and str(self._troubles) not in message else ""
        return NotConnected(NOT_CONNECTED, f"brokers {self._brokers}: {message}{known}")

    def _log_in_again(self) -> None:
        """Read the password again, which may have been changed since: brokers refuse the old one on new connections."""
        now_s = time.monotonic()
        if not self._troubles.is_refused or not self._brokers.has_sasl or now_s - self._logged_in_s < LOGIN_PAUSE_S:
            return
        self._logged_in_s = now_s
        self._troubles.clear()
        try:
            password = self._brokers.password()
        except BadKafkaSetting as error:
            logger.warning("%s", error)
            return
        logger.info("the brokers refuse %s: its password is read again", self._who())
        for kafka in (self._producer, self._consumer):
            kafka.set_sasl_credentials(self._brokers.get(USERNAME), password)

    def send(self, calls: Iterable[Call]) -> None:
        """Pass requests to the producer, in order.

        Requests beyond its queue's room are dropped, and are sent again when due.
        """
        by_shard: dict[int, list[bytes]] = {}
        for call in calls:
            key = call.proof or call.trace_key
            if key is None:
                by_shard.setdefault(call.shard, []).append(call.value)
                continue
            # The call has a record of its own, because the key is the record's; it follows what the client has sent
            # before.
            self._send_requests({call.shard: by_shard.pop(call.shard, [])})
            self._send_alone(call, key)
        self._send_requests(by_shard)

    def _send_alone(self, call: Call, key: bytes) -> None:
        whole = self._key_of(call.value, key, is_signed=call.proof is None)
        try:
            self._producer.produce(OM_REQUESTS, call.value, whole, call.shard)
        except (BufferError, KafkaException) as error:
            logger.warning("a request was not taken by the producer: %s", error)

    def _send_requests(self, by_shard: Mapping[int, list[bytes]]) -> None:
        for shard, requests in by_shard.items():
            values = self._records_of(requests)
            try:
                taken = self._producer.produce_batch(OM_REQUESTS, values, partition=shard)
            except (BufferError, KafkaException) as error:
                # librdkafka does not say how many it took; the others are sent again when they are due.
                logger.warning("of %d requests some were not taken by the producer: %s", len(requests), error)
                continue
            if taken != len(values):
                logger.warning(
                    "%d of %d records of requests were not taken by the producer", len(values) - taken, len(values)
                )

    def _records_of(self, requests: Sequence[bytes]) -> list[dict[str, bytes]]:
        records: list[dict[str, bytes]] = []
        for value in enveloped_requests(requests):
            key = self._key_of(value)
            records.append({"value": value} if key is None else {"value": value, "key": key})
        return records

    def _key_of(self, value: bytes, own: bytes | None = None, *, is_signed: bool = True) -> bytes | None:
        """Return the key of a record; ``own`` is what belongs to its request: a proof, or where its trace is."""
        if self._reply_topic != OM_RESPONSES:
            own = reply_key(self._reply_topic, own)
        if self._credentials is None or not is_signed:
            return own
        return sealed_key(self._credentials, value, own)

    def receive(self, wait_ms: float, *, gather: bool) -> list[bytes]:
        """Return the records of replies to this client; waits at most ``wait_ms`` for the first one.

        With ``gather`` it waits until ``wait_ms`` are over, to take more replies at once.
        """
        if gather:
            messages = self._consumer.consume(RECEIVE_MESSAGES, wait_ms / 1000)
        else:
            first = self._consumer.poll(wait_ms / 1000)
            if first is None:
                return []
            messages = [first, *self._consumer.consume(RECEIVE_MESSAGES, 0)]
        if messages and messages[-1].error() is None:
            self._next_reply = (messages[-1].offset() or 0) + 1
        client_id = self._client_id
        values = [m.value() for m in messages if m.key() == client_id and m.error() is None]
        if len(values) < len(messages):
            _log_errors(messages)
        return [value for value in values if value is not None]

    def renew(self) -> None:
        """Read replies through a newly chosen broker; for use when calls stay unanswered.

        A broker that is cut off from the others, but not from here, answers each fetch with nothing. librdkafka asks
        the broker that it used last for the partitions' leaders, so it would stay there.
        """
        with suppress(KafkaException):
            self._consumer.close()
        self._consumer = Consumer(_consumer_settings(self._brokers, self._client_id, self._troubles))
        self._consumer.assign([TopicPartition(self._reply_topic, self.reply_partition, self._next_reply)])

    def begin_anew(self) -> None:
        """Keep a forked process's copies of the clients of librdkafka, which it cannot close."""
        keep_for_ever((self._producer, self._consumer))

    def look_up(self, read: DoorRead, shard: int) -> None:
        """Return nothing: brokers have no rows."""

    def take_lost(self) -> set[int]:
        """Return nothing: the topic keeps requests for whichever node leads next."""
        return set()

    def serve(self) -> None:
        """Take failed deliveries off the producer's queue of events; must be called regularly."""
        self._producer.poll(0)
        self._log_in_again()

    def close(self) -> None:
        """Close both connections; requests that no broker has taken yet are dropped."""
        self._producer.purge()
        self._producer.flush(1)
        self._consumer.close()


def _ask_s(deadline: Deadline) -> float:
    """Return the time limit of one question to the brokers."""
    return max(deadline.sooner(ASK_S).left_s, 0.1)


def _log_errors(messages: list[Message]) -> None:
    for message in messages:
        if (error := message.error()) is not None:
            logger.warning("reading replies: %s", error)


def _log_failed_delivery(error: KafkaError | None, _message: Message) -> None:
    # The call is sent again when it is due, so this only tells a person.
    if error is not None:
        logger.debug("a request was not delivered: %s", error)


class _BrokersDown:
    """Logs that no broker can be reached, once in WORD_EACH_MS at most; librdkafka reports every attempt."""

    def __init__(self) -> None:
        self._told_s = float("-inf")

    def __call__(self, error: ClientError) -> None:
        # librdkafka reconnects by itself and reports each attempt. That no broker is left is worth a person's
        # attention.
        now_s = time.monotonic()
        if error.code() != KafkaError._ALL_BROKERS_DOWN or now_s - self._told_s < WORD_EACH_MS / 1000:
            logger.debug("connection: %s", error)
            return
        self._told_s = now_s
        logger.warning("no broker can be reached; trying on")


_log_connection_error = _BrokersDown()


def common_settings(bootstrap_servers: Brokers, troubles: ConnectionTroubles) -> dict[str, Any]:
    """Return librdkafka's settings for every connection of a client."""
    return client_settings(
        bootstrap_servers,
        {
            "error_cb": troubles,
            "socket.nagle.disable": True,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "socket.timeout.ms": SILENT_BROKER_MS,
            # Errors arrive by error_cb; librdkafka's own lines on stderr would spoil the output of the calling program.
            "log_level": 0,
        },
    )


def _producer_settings(
    brokers: Brokers, message_timeout_ms: int, troubles: ConnectionTroubles
) -> dict[str, Any]:  # fmt: skip
    return common_settings(brokers, troubles) | {
        # With fewer acknowledgements, a broker that is cut off from the others would take every request, and lose it.
        "acks": "all",
        "enable.idempotence": False,
        # One at a time: requests keep their order, and batches grow with the load.
        "max.in.flight.requests.per.connection": 1,
        "linger.ms": 0,
        "message.timeout.ms": message_timeout_ms,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "queue.buffering.max.messages": PRODUCER_QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": PRODUCER_QUEUE_KBYTES,
        "delivery.report.only.error": True,
        "on_delivery": _log_failed_delivery,
    }


def _consumer_settings(brokers: Brokers, client_id: bytes, troubles: ConnectionTroubles) -> dict[str, Any]:
    return common_settings(brokers, troubles) | {
        # librdkafka requires a name; the client joins no group and commits nothing.
        "group.id": f"stratolog-client-{client_id.hex()}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # If retention removed replies, their calls are sent again, so the consumer may go on at the end.
        "auto.offset.reset": "latest",
        "isolation.level": "read_uncommitted",
        # Off by default. A damaged answer is dropped; the call is sent again, and its retry row has the answer.
        "check.crcs": True,
        "allow.auto.create.topics": False,
        "queued.max.messages.kbytes": CONSUMER_QUEUE_KBYTES,
        "fetch.error.backoff.ms": 100,
        "fetch.queue.backoff.ms": 10,
    }
