"""What a node refuses to start with, and the settings that it names: topics, brokers, a log that is not the one it has read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from producers import Client
from replicated_db.shell.process import EXIT_FATAL
from schemas.topics import LOG_SETTINGS, OM_LOG, OM_REQUESTS, REQUEST_SETTINGS
from stratolog.errors import EXIT_USAGE
from stratolog.local.processes import wait_until
from stratolog.local.stack import topic_plan
from stratolog.local.topics import ensure_topics
from tests.support.faults.stack_faults import PATIENCE_S, run_to_its_end
from tests.support.local.stack import LocalKafka, TestStack, make_topics

pytestmark = [pytest.mark.integration, pytest.mark.chaos]


@pytest.fixture(scope="module")
def stack(make_kafka: Callable[..., LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestStack]:
    """Brokers, topics and settings; no node runs yet."""
    found = TestStack(tmp_path_factory.mktemp("stack"), nodes=1, shards=1, kafka=make_kafka())
    ensure_topics(found.settings.bootstrap_servers, topic_plan(found.settings))
    found.settings_file.write_text(found.settings.to_toml())
    yield found
    found.close()


def alter(kafka: LocalKafka, topic: str, setting: str, value: str) -> None:
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    kafka.admin.incremental_alter_configs([resource])[resource].result()


@pytest.mark.parametrize(
    ("topic", "setting", "wrong", "right"),
    [
        (OM_LOG, "retention.ms", "86400000", LOG_SETTINGS["retention.ms"]),
        (OM_LOG, "cleanup.policy", "compact", LOG_SETTINGS["cleanup.policy"]),
        pytest.param(
            OM_REQUESTS,
            "message.timestamp.type",
            "CreateTime",
            REQUEST_SETTINGS["message.timestamp.type"],
            marks=pytest.mark.slow,
        ),
        pytest.param(OM_REQUESTS, "compression.type", "producer", "uncompressed", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_topic_setting(stack: TestStack, topic: str, setting: str, wrong: str, right: str) -> None:
    alter(stack.kafka, topic, setting, wrong)
    try:
        status, output = run_to_its_end(stack, "om1")
    finally:
        alter(stack.kafka, topic, setting, right)
    assert status == EXIT_FATAL
    assert f"topic {topic}: {setting} must be {right}, not {wrong}" in output
    assert "Traceback" not in output


def test_no_secret(stack: TestStack) -> None:
    path = stack.settings.secret_file
    aside = path.rename(path.with_name("aside"))
    try:
        status, output = run_to_its_end(stack, "om1")
    finally:
        aside.rename(path)
    assert status == EXIT_USAGE
    assert f"setting 'cluster_secret_file': {path} does not exist: 'stratolog up' makes one" in output
    assert "Traceback" not in output


def test_another_number_of_shards(stack: TestStack) -> None:
    text = stack.settings_file.read_text()
    stack.settings_file.write_text(text.replace("shards = 1", "shards = 2"))
    try:
        status, output = run_to_its_end(stack, "om1")
    finally:
        stack.settings_file.write_text(text)
    assert status == EXIT_FATAL
    assert "2 shards" in output
    assert "Traceback" not in output


def test_a_log_made_anew_under_a_replica(stack: TestStack) -> None:
    stack.start_node("om1")
    stack.wait_led()
    with Client(stack.settings.bootstrap_servers, caller="tester") as client:
        client.create_volume("volume")
    stack.stop_nodes()
    # The new log is as long as the old one and holds other records: only its identity tells.
    stack.kafka.admin.delete_topics([OM_LOG])[OM_LOG].result()
    assert wait_until(lambda: OM_LOG not in stack.kafka.admin.list_topics(timeout=5).topics, PATIENCE_S)
    make_topics(stack)
    status, output = run_to_its_end(stack, "om1")
    assert status == EXIT_FATAL
    assert "AHEAD_OF_LOG" in output
    assert "shard 0" in output
    assert "Traceback" not in output


def test_a_missing_topic(stack: TestStack) -> None:
    stack.kafka.admin.delete_topics([OM_LOG])[OM_LOG].result()
    assert wait_until(lambda: OM_LOG not in stack.kafka.admin.list_topics(timeout=5).topics, PATIENCE_S)
    status, output = run_to_its_end(stack, "om1")
    assert status == EXIT_FATAL
    assert OM_LOG in output
    assert "Traceback" not in output
    make_topics(stack)


@pytest.mark.slow
def test_brokers_that_make_topics_by_themselves(stack: TestStack) -> None:
    properties = stack.kafka.cluster.folder / "broker-1" / "server.properties"
    before = properties.read_text()
    assert "auto.create.topics.enable=false" in before
    stack.kafka.kill_broker(1)
    properties.write_text(before.replace("auto.create.topics.enable=false", "auto.create.topics.enable=true"))
    stack.kafka.start_broker(1)
    status, output = run_to_its_end(stack, "om1")
    assert status == EXIT_FATAL
    assert "auto.create.topics.enable must be false" in output
    assert "Traceback" not in output
