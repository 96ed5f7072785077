"""The topics: created as the log contract demands, verified if they exist, refused by name if they differ."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from schemas.topics import BOUNDED_SIZES, LOG_SETTINGS, MAX_MESSAGE_BYTES, OM_AUDIT, OM_LOG, OM_REQUESTS, OM_RESPONSES
from stratolog.errors import Unavailable
from stratolog.local.processes import wait_until
from stratolog.local.topics import FSYNC, REPLICATED, TopicMismatch, TopicPlan, ensure_topics
from tests.support.local.stack import LocalKafka

pytestmark = pytest.mark.integration
PLAN = TopicPlan(shards=2, response_partitions=4, replication_factor=1, durability=REPLICATED)


@pytest.fixture(scope="module")
def kafka(make_kafka: Callable[..., LocalKafka]) -> LocalKafka:
    kafka = make_kafka()
    ensure_topics(kafka.bootstrap_servers, PLAN)
    return kafka


def settings_of(kafka: LocalKafka, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    found: dict[str, ConfigEntry] = kafka.admin.describe_configs([resource])[resource].result()
    return found


def change(kafka: LocalKafka, topic: str, name: str, value: str | None) -> None:
    """Set one setting of a topic; None gives it the broker's default again."""
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=kind)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    kafka.admin.incremental_alter_configs([resource])[resource].result()
    # The controller has it; the broker, which is asked, hears of it a little later.
    assert wait_until(lambda: value in (None, settings_of(kafka, topic)[name].value), 30)


def test_every_setting_of_the_log_is_explicit(kafka: LocalKafka) -> None:
    found = settings_of(kafka, OM_LOG)
    assert {name: found[name].value for name in LOG_SETTINGS} == dict(LOG_SETTINGS)
    assert {ConfigSource(found[name].source) for name in LOG_SETTINGS} == {ConfigSource.DYNAMIC_TOPIC_CONFIG}


def test_the_partitions(kafka: LocalKafka) -> None:
    topics = kafka.admin.list_topics(timeout=30).topics
    counts = {name: len(topic.partitions) for name, topic in topics.items()}
    assert {name: counts[name] for name in (OM_LOG, OM_REQUESTS, OM_AUDIT, OM_RESPONSES)} == {
        OM_LOG: 2,
        OM_REQUESTS: 2,
        OM_AUDIT: 2,
        OM_RESPONSES: 4,
    }


def test_a_second_time_nothing_is_created(kafka: LocalKafka) -> None:
    assert ensure_topics(kafka.bootstrap_servers, PLAN) == []


@pytest.mark.parametrize(
    ("topic", "name", "value"),
    [
        (OM_LOG, "retention.ms", "1000"),
        (OM_LOG, "cleanup.policy", "compact"),
        (OM_LOG, "unclean.leader.election.enable", "true"),
        (OM_REQUESTS, "message.timestamp.type", "CreateTime"),
    ],
)
def test_a_topic_with_another_setting_is_refused_by_name(topic: str, name: str, value: str, kafka: LocalKafka) -> None:
    right = settings_of(kafka, topic)[name].value
    change(kafka, topic, name, value)
    try:
        with pytest.raises(TopicMismatch, match=f"{topic} has {name}={value}, not {right}"):
            ensure_topics(kafka.bootstrap_servers, PLAN)
    finally:
        change(kafka, topic, name, right)
    assert ensure_topics(kafka.bootstrap_servers, PLAN) == []


def test_topics_of_an_older_version_are_given_what_was_added(kafka: LocalKafka) -> None:
    for topic in (OM_REQUESTS, OM_LOG):
        change(kafka, topic, "compression.type", None)
    assert wait_until(lambda: settings_of(kafka, OM_LOG)["compression.type"].value == "producer", 30)
    assert ensure_topics(kafka.bootstrap_servers, PLAN) == []
    for topic in PLAN.topics():
        assert settings_of(kafka, topic)["compression.type"].value == "uncompressed"


def test_bounded_topics_are_bounded_and_the_log_is_not(kafka: LocalKafka) -> None:
    """Kafka's defaults let the segment that is written to grow to 1 GiB, and keep it for seven days."""
    for topic in (OM_REQUESTS, OM_RESPONSES, OM_AUDIT):
        found = settings_of(kafka, topic)
        assert {name: found[name].value for name in BOUNDED_SIZES} == dict(BOUNDED_SIZES)
    assert settings_of(kafka, OM_LOG)["retention.bytes"].value == "-1"


def test_sizes_that_an_operator_has_chosen_stay(kafka: LocalKafka) -> None:
    change(kafka, OM_RESPONSES, "retention.bytes", "5000000000")
    change(kafka, OM_REQUESTS, "retention.bytes", None)
    assert ensure_topics(kafka.bootstrap_servers, PLAN) == []
    assert settings_of(kafka, OM_RESPONSES)["retention.bytes"].value == "5000000000"
    assert settings_of(kafka, OM_REQUESTS)["retention.bytes"].value == BOUNDED_SIZES["retention.bytes"]
    change(kafka, OM_RESPONSES, "retention.bytes", None)


@pytest.mark.parametrize("topic", PLAN.topics())
@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4", "snappy"])
def test_a_record_is_as_large_as_what_is_in_it(kafka: LocalKafka, topic: str, compression: str) -> None:
    """32 MiB of zeros are 32 KB on their way, and would be 32 MiB in the memory of each reader."""
    settings = {"compression.type": compression, "message.max.bytes": 1_000_000_000, "message.timeout.ms": 60_000}
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    errors: list[KafkaError | None] = []
    producer.produce(
        topic, bytes(4 * MAX_MESSAGE_BYTES), partition=0, on_delivery=lambda error, _: errors.append(error)
    )
    assert producer.flush(120) == 0
    assert [error and error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    producer.produce(topic, bytes(1000), partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(120) == 0
    assert errors[1:] == [None], "what is small is taken, compressed as it may be"


def test_another_durability_is_refused_by_name(kafka: LocalKafka) -> None:
    with pytest.raises(TopicMismatch, match=r"om\.log has flush\.messages="):
        ensure_topics(kafka.bootstrap_servers, replace(PLAN, durability=FSYNC))


def test_another_number_of_shards_is_refused_by_name(kafka: LocalKafka) -> None:
    with pytest.raises(TopicMismatch, match=r"om\.log has 2 partitions, not 3; om\.requests has 2 partitions, not 3"):
        ensure_topics(kafka.bootstrap_servers, replace(PLAN, shards=3))


def test_two_at_once_and_three_copies_on_disk(make_kafka: Callable[..., LocalKafka]) -> None:
    kafka = make_kafka(brokers=3)
    plan = replace(PLAN, replication_factor=3, durability=FSYNC)
    with ThreadPoolExecutor(2) as both:
        created = list(both.map(lambda _: ensure_topics(kafka.bootstrap_servers, plan), range(2)))
    assert sorted(created[0] + created[1]) == sorted(plan.topics())
    found = settings_of(kafka, OM_LOG)
    assert (found["min.insync.replicas"].value, found["flush.messages"].value) == ("2", "1")
    # The broker that is asked may hear of the topic a moment after it was made.
    assert wait_until(lambda: OM_LOG in kafka.admin.list_topics(timeout=30).topics, 30, interval_s=0.1)
    partitions = kafka.admin.list_topics(timeout=30).topics[OM_LOG].partitions
    assert all(len(partition.replicas) == 3 for partition in partitions.values())


def test_no_broker() -> None:
    with pytest.raises(Unavailable, match=r"Kafka at 127\.0\.0\.1:1: "):
        ensure_topics("127.0.0.1:1", PLAN, contact_timeout_s=1.0)
