"""The local brokers: they start, keep what they acknowledged, and stop, one or three of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import NewTopic, PartitionMetadata

from schemas.topics import MAX_MESSAGE_BYTES
from stratolog.errors import Unavailable, UsageError
from stratolog.local.jars import kafka_jars
from stratolog.local.kafka import (
    MIN_SESSION_TIMEOUT_MS,
    KafkaCluster,
    allocate_listeners,
    make_class_archive,
    stop_brokers,
)
from stratolog.local.processes import Process, wait_until
from tests.support.local.stack import LocalKafka

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
RECORD_OVERHEAD_BYTES = 512


def create(kafka: LocalKafka, name: str, **settings: Any) -> None:
    copies = len(kafka.processes)
    kafka.admin.create_topics([NewTopic(name, 1, copies, config=settings)])[name].result()


def produce(kafka: LocalKafka, topic: str, value: bytes, **settings: Any) -> Message:
    """Produce one record and return it as reported; raises what the broker said."""
    reports: list[tuple[KafkaError | None, Message]] = []
    config = {"bootstrap.servers": kafka.bootstrap_servers, "acks": "all", "message.timeout.ms": 60_000, "log_level": 0}
    producer = Producer(config | settings)
    producer.produce(topic, value, on_delivery=lambda error, message: reports.append((error, message)))
    producer.flush(PATIENCE_S)
    error, message = reports[0]
    if error is not None:
        raise KafkaException(error)
    return message


def partition_of(kafka: LocalKafka, topic: str) -> PartitionMetadata:
    return kafka.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[0]


def consume_first(kafka: LocalKafka, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "none", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(PATIENCE_S)
        return None if message is None else message.value()
    finally:
        consumer.close()


def test_a_record_goes_in_and_comes_out(kafka_broker: LocalKafka) -> None:
    create(kafka_broker, "in-and-out")
    assert produce(kafka_broker, "in-and-out", b"hello").offset() == 0
    assert consume_first(kafka_broker, "in-and-out") == b"hello"


def test_the_largest_record_passes_and_a_larger_one_does_not(kafka_broker: LocalKafka) -> None:
    create(kafka_broker, "large", **{"max.message.bytes": str(MAX_MESSAGE_BYTES)})
    client = {"message.max.bytes": 2 * MAX_MESSAGE_BYTES}
    produce(kafka_broker, "large", bytes(MAX_MESSAGE_BYTES - RECORD_OVERHEAD_BYTES), **client)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        produce(kafka_broker, "large", bytes(MAX_MESSAGE_BYTES + 1), **client)


def test_a_typing_error_creates_no_topic(kafka_broker: LocalKafka) -> None:
    with pytest.raises(KafkaException):
        produce(kafka_broker, "no-such-topic", b"x", **{"message.timeout.ms": 3_000})
    assert "no-such-topic" not in kafka_broker.admin.list_topics(timeout=PATIENCE_S).topics


def test_a_group_may_ask_for_a_short_session(kafka_broker: LocalKafka) -> None:
    create(kafka_broker, "group")
    assigned: list[int] = []
    consumer = Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap_servers,
            "group.id": "short",
            "session.timeout.ms": MIN_SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": MIN_SESSION_TIMEOUT_MS // 3,
        }
    )
    try:
        consumer.subscribe(["group"], on_assign=lambda _, partitions: assigned.extend(p.partition for p in partitions))
        assert wait_until(lambda: consumer.poll(0.1) is None and bool(assigned), PATIENCE_S)
    finally:
        consumer.close()


@pytest.mark.slow
def test_three_brokers_lose_one_and_go_on_lose_two_and_acknowledge_nothing(
    make_kafka: Callable[..., LocalKafka],
) -> None:
    kafka = make_kafka(brokers=3)
    create(kafka, "log", **{"min.insync.replicas": "2"})
    produce(kafka, "log", b"first")
    first = partition_of(kafka, "log").leader
    kafka.kill_broker(first)
    assert produce(kafka, "log", b"second").offset() == 1
    kafka.start_broker(first)
    assert wait_until(lambda: len(partition_of(kafka, "log").isrs) == 3, PATIENCE_S)
    assert consume_first(kafka, "log") == b"first"
    for number in (1, 2):
        kafka.kill_broker(number)
    with pytest.raises(KafkaException):
        produce(kafka, "log", b"third", **{"message.timeout.ms": 3_000})


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_restart(tmp_path: Path) -> None:
    with LocalKafka(tmp_path / "kafka") as kafka:
        create(kafka, "log")
        produce(kafka, "log", b"kept")
        kafka.kill_broker(1)
        kafka.start_broker(1)
        assert consume_first(kafka, "log") == b"kept"
        # The other way: gracefully, and on other ports.
        stop_brokers(list(kafka.processes.values()))
        kafka.cluster = replace(kafka.cluster, listeners=allocate_listeners(1))
        kafka.start()
        assert consume_first(kafka, "log") == b"kept"


def test_two_clusters_at_once_do_not_meet(kafka_broker: LocalKafka, lease_kafka: Callable[[], LocalKafka]) -> None:
    other = lease_kafka()
    create(other, "theirs")
    assert "theirs" not in kafka_broker.admin.list_topics(timeout=PATIENCE_S).topics


def test_a_port_in_use_is_reported_with_the_brokers_own_words(kafka_broker: LocalKafka, tmp_path: Path) -> None:
    taken = kafka_broker.cluster.listeners
    cluster = KafkaCluster(folder=tmp_path, jars=kafka_jars(), listeners=taken)
    processes = cluster.start(detached=False)
    try:
        with pytest.raises(Unavailable, match=r"(?s)Kafka broker 1 ended at its start:.*in use"):
            cluster.wait_ready(processes)
    finally:
        stop_brokers(processes, gracefully=False)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_other_numbers_of_brokers_are_refused(count: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"brokers must be 1 or 3, not {count}"):
        KafkaCluster(folder=tmp_path, jars=tmp_path, listeners=allocate_listeners(count))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tether")
def test_brokers_of_a_killed_test_run_do_not_stay(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from tests.support.local.stack import LocalKafka
kafka = LocalKafka(Path({str(tmp_path / "kafka")!r})).start()
print(kafka.processes[1].pid, flush=True)
time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    broker = Process.of(int(run.stdout.readline()))
    run.kill()
    run.wait()
    assert broker is None or broker.wait(PATIENCE_S)


def test_a_broker_takes_its_classes_from_the_archive(kafka_broker: LocalKafka) -> None:
    assert str(make_class_archive(kafka_jars())) in memory_map(kafka_broker), "install has made it"


@pytest.mark.slow
def test_the_archive_is_made_once_and_used_from_then_on(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.symlink_to(kafka_jars())
    archive = make_class_archive(jars)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["jars", archive.name])
    with LocalKafka(tmp_path / "kafka") as kafka:
        assert str(archive) not in memory_map(kafka), "the one of the jars' own directory is used"
        kafka.kill_broker(1)
        kafka.cluster = replace(kafka.cluster, jars=jars)
        kafka.start_broker(1)
        assert str(archive) in memory_map(kafka)


def memory_map(kafka: LocalKafka) -> str:
    return Path(f"/proc/{kafka.processes[1].pid}/maps").read_text()
