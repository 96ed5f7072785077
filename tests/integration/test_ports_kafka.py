"""The log's port on a real broker: the same suite as its in-memory twin, and what only Kafka can do."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.leading.leader import Leader, LeaderLimits, claim_for
from replicated_db.core.ports import Appender, AppendRefused, LogUnavailable, OffsetOutOfRange
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.shell.kafka.fresh_consumer import FreshConsumer
from replicated_db.shell.kafka.kafka_log import QUEUE_MAX_MESSAGES, KafkaLog, consumer_settings
from schemas.codecs.codec import encode
from schemas.topics import LOG_SETTINGS
from tests.support.local.stack import LocalKafka
from tests.support.replicated.kit import CLUSTER, FAMILIES, NODES, Kit, propose, put, rows
from tests.support.replicated.port_suites import LogSuite, read_all, read_until_refused, settle

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]

TIMEOUT_S = 30.0
_numbers = itertools.count(1)


def create_topic(admin: AdminClient, name: str, partitions: int = 1) -> str:
    """Create a topic as the log contract wants it; return its identity."""
    topic = NewTopic(name, partitions, 1, config=dict(LOG_SETTINGS))
    admin.create_topics([topic], operation_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return str(admin.describe_topics(TopicCollection([name]))[name].result(TIMEOUT_S).topic_id)
        except KafkaException as error:  # the controller has made it; the broker may not have heard of it yet
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.fixture
def topic(kafka_broker: LocalKafka) -> str:
    return f"ports-{next(_numbers)}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def log(kafka_broker: LocalKafka, topic: str) -> Iterator[KafkaLog]:
    log = KafkaLog(kafka_broker.bootstrap_servers, topic, 0, create_topic(kafka_broker.admin, topic))
    yield log
    log.close()


def append_many(appender: Appender, count: int) -> None:
    for token in range(count):
        appender.append(token, b"x")


class TestKafkaLog(LogSuite):
    """The suite."""


def test_another_partition_is_another_log(kafka_broker: LocalKafka, topic: str):
    identity = create_topic(kafka_broker.admin, topic, partitions=2)
    logs = [KafkaLog(kafka_broker.bootstrap_servers, topic, number, identity) for number in (0, 1)]
    for number, log in enumerate(logs):
        appender = log.appender()
        appender.append(1, b"partition %d" % number)
        assert settle(appender, 1)[0].offset == 0
        appender.close()
    assert [read_all(log, 0, 1)[0].value for log in logs] == [b"partition 0", b"partition 1"]
    for log in logs:
        log.close()


def test_what_a_stranger_appends_is_seen(kafka_broker: LocalKafka, topic: str, log: KafkaLog):
    stranger = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    stranger.produce(topic, b"stranger", partition=0)
    stranger.produce(topic, None, partition=0)
    assert stranger.flush(TIMEOUT_S) == 0
    assert [entry.value for entry in read_all(log, 0, 2)] == [b"stranger", b""]


def test_a_reader_that_hears_nothing_is_made_anew_and_goes_on_where_it_was(
    kafka_broker: LocalKafka, topic: str, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("replicated_db.shell.kafka.fresh_consumer.SILENT_BROKER_MS", 500)
    reader = FreshConsumer(consumer_settings(kafka_broker.bootstrap_servers))
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    reader.assign(TopicPartition(topic, 0, 0))

    def read(count: int) -> list[bytes | None]:
        producer.produce(topic, b"%d" % count, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        found: list[bytes | None] = []
        deadline = time.monotonic() + TIMEOUT_S
        while not found and time.monotonic() < deadline:
            found += [message.value() for message in reader.consume(10, 0.2)]
        return found

    seen = []
    for number in range(3):
        assert read(number) == [b"%d" % number]
        seen.append(reader.consumer)
        for _ in range(4):
            assert reader.consume(1, 0.2) == []
    assert len(set(map(id, seen))) == 3
    reader.close()


def test_below_the_first_kept_offset(kafka_broker: LocalKafka, topic: str, log: KafkaLog):
    appender = log.appender()
    for token in range(5):
        appender.append(token, b"%d" % token)
    settle(appender, 5)
    appender.close()
    kafka_broker.admin.delete_records([TopicPartition(topic, 0, 3)])[TopicPartition(topic, 0)].result(TIMEOUT_S)
    assert log.bounds() == (3, 5)
    with pytest.raises(OffsetOutOfRange):
        read_until_refused(log, 0)
    assert read_all(log, 3, 2)[0].value == b"3"


def test_a_closed_appender_sends_nothing_later(kafka_broker: LocalKafka, log: KafkaLog):
    """What was queued when the claim was abandoned must not go out later under its nonce."""
    appender = log.appender()
    appender.append(1, b"first")
    settle(appender, 1)
    kafka_broker.pause_broker(1)
    try:
        for token in range(2, 20):
            appender.append(token, b"queued")
        appender.close()
        reports = list(appender.poll(1))
    finally:
        kafka_broker.resume_broker(1)
    assert all(report.error is not None and report.offset == -1 for report in reports)
    later = log.appender()
    later.append(1, b"second")
    [report] = settle(later, 1)
    later.close()
    entries = read_all(log, 0, report.offset + 1)
    assert entries[0].value == b"first"
    assert entries[-1].value == b"second"
    # What was on the wire already may have arrived, in order; nothing may come after the second appender's record.
    assert {entry.value for entry in entries[1:-1]} <= {b"queued"}
    assert log.bounds()[1] == report.offset + 1


def test_a_full_queue_is_refused_and_never_blocks(kafka_broker: LocalKafka, log: KafkaLog):
    appender = log.appender()
    kafka_broker.pause_broker(1)
    try:
        with pytest.raises(AppendRefused, match=f"{QUEUE_MAX_MESSAGES} records wait"):
            append_many(appender, QUEUE_MAX_MESSAGES * 3)
        appender.close()
    finally:
        kafka_broker.resume_broker(1)


def test_an_oversize_record_is_refused(log: KafkaLog):
    appender = log.appender()
    with pytest.raises(AppendRefused):
        appender.append(1, bytes(64 * 1024 * 1024))
    appender.append(2, b"fits")
    assert settle(appender, 1)[0].token == 2
    appender.close()


def test_no_broker():
    log = KafkaLog("127.0.0.1:1", "nothing", 0, "id")
    with pytest.raises(LogUnavailable):
        log.bounds()
    log.close()


def test_a_batch_at_the_leaders_limits_fits_the_topic(log: KafkaLog):
    limits = LeaderLimits()
    appender = log.appender()
    # The last request of a batch may overshoot its limit by its own; values and keys are at most doubled by overhead.
    appender.append(1, bytes(2 * (limits.max_batch_bytes + limits.max_request_bytes)))
    assert settle(appender, 1)[0].error is None
    appender.close()


def test_a_replica_reads_a_real_log(kafka_broker: LocalKafka, log: KafkaLog):
    """A leader's claim and batches over Kafka, read by another replica."""
    leaders, follower = (
        Replica(Identity(cluster=CLUSTER, shard=0, shards=1, node=name), FAMILIES, MemoryStore(FAMILIES.names))
        for name in ("n1", "n2")
    )
    for replica in (leaders, follower):
        replica.adopt_topic(log.topic_id(), None)
    appender = log.appender()
    appender.append(0, encode(claim_for(leaders, b"n" * 16, "here", 0)))
    [claim] = settle(appender, 1)
    for entry in read_all(log, 0, 1):
        leaders.offer(entry.offset, entry.value)
    leader = Leader(
        leaders, Kit(), LeaderLimits(), claim_offset=claim.offset, claim_time_ms=claim.timestamp_ms, elapsed_ms=0
    )
    appends = [leader.genesis(CLUSTER, NODES)]
    for number in range(3):
        leader.take(propose(put(b"k%d" % number, b"v"), sent_ms=claim.timestamp_ms), 0)
        appends += leader.seal()
    for append in appends:
        assert append is not None
        appender.append(append.token, append.value)
    replies = [reply for report in settle(appender, 4) for one in leader.on_report(report) for reply in one.replies]
    appender.close()
    assert [reply.response for reply in replies] == [b"done 1", b"done 2", b"done 3"]
    for entry in read_all(log, 0, 5):
        follower.offer(entry.offset, entry.value)
    assert rows(follower) == rows(leaders)
    assert follower.position == leaders.position
    assert follower.digests == leaders.digests


def test_the_example_of_a_second_service_runs(kafka_broker: LocalKafka) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "inside" / "ledger.py", kafka_broker.bootstrap_servers],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    # Its standard error is librdkafka's: a broker that has just begun makes it try again.
    assert (done.stdout.splitlines(), done.returncode) == (
        [
            "north leads: the transfer has index 3",
            "south leads: the transfer has index 4",
            "Ada 5000, Bert 15000",
            "the replicas are equal",
        ],
        0,
    ), done.stderr
