"""A real cluster whose pipelines' logs are trimmed, by the command and by the setting: datanodes catch up, keys are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from typer.testing import CliRunner

from producers import Client
from schemas.topics import DN_LOG, OM_LOG
from stratolog.cli import build_app
from stratolog.cluster import trimming
from stratolog.cluster.trimming import PipelineLog, Wish
from stratolog.nodes.answers import node_status
from tests.support.local.stack import LocalKafka, TestStack
from tests.support.sdk.written import fresh_bytes

pytestmark = [pytest.mark.integration, pytest.mark.slow]
"""The quick tests trim a pipeline's log in ``tests/unit/datanode_processors/pipeline/test_installs.py``."""
NO_AUDIT = Wish(without_audit=True)
VOLUME, BUCKET = "volume", "bucket"
PIPELINE = PipelineLog(0)
REGULAR_TIMEOUT_S = 240.0
"""Regular trimming logs a base after a minute, and looks three times a minute."""


def started(kafka: LocalKafka, folder: Path, **settings: Any) -> TestStack:
    return TestStack(
        folder,
        nodes=1,
        datanodes=3,
        kafka=kafka,
        shards=1,
        barrier_interval_ms=200,
        block_bytes=1024 * 1024,
        **settings,
    )


@pytest.fixture(scope="module")
def stack(lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestStack]:
    with started(lease_kafka(), tmp_path_factory.mktemp("stack")) as found:
        yield found


@pytest.fixture(scope="module")
def written(client: Client) -> dict[str, bytes]:
    client.create_volume(VOLUME)
    client.create_bucket(VOLUME, BUCKET)
    return {}


def write(client: Client, written: dict[str, bytes], number: int) -> None:
    for _ in range(number):
        name, data = f"key-{len(written)}", fresh_bytes(100_000)
        with client.open(f"/{VOLUME}/{BUCKET}/{name}", "wb") as file:
            file.write(data)
        written[name] = data


def check(client: Client, written: dict[str, bytes]) -> None:
    for name, data in written.items():
        with client.open(f"/{VOLUME}/{BUCKET}/{name}") as file:
            assert file.read() == data, name


def first_offset(stack: TestStack, topic: str, partition: int = 0) -> int:
    place = TopicPartition(topic, partition)
    return int(stack.kafka.admin.list_offsets({place: OffsetSpec.earliest()})[place].result().offset)


def status(stack: TestStack, name: str) -> dict[str, Any]:
    return node_status(f"127.0.0.1:{stack.settings.datanode(name).http_port}") or {}


def pipeline(stack: TestStack, name: str) -> dict[str, Any]:
    return next((one for one in status(stack, name).get("pipelines", ()) if one["shard"] == PIPELINE.number), {})


def trimmed(stack: TestStack, wish: Wish = NO_AUDIT, wait_s: float = 30) -> dict[str, Any]:
    return trimming.trim(stack.settings, PIPELINE, wish, wait_s=wait_s, has_audit=False, report=print)


def command(stack: TestStack, *words: str) -> dict[str, Any]:
    done = CliRunner(env={"STRATOLOG_CONFIG": str(stack.settings_file)}).invoke(build_app(), [*words, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def are_equal(stack: TestStack) -> bool:
    path = f"/v1/shards/{PIPELINE.number}/digest?scrub=true"
    addresses = [f"127.0.0.1:{one.http_port}" for one in stack.settings.datanodes]
    found = [httpx.get(f"http://{address}{path}", trust_env=False).json() for address in addresses]
    return len({(one.get("index"), one.get("digest")) for one in found}) == 1


def test_a_pipelines_log_is_trimmed_by_the_command(stack: TestStack, client: Client, written: dict[str, bytes]) -> None:
    write(client, written, 5)
    explained = command(stack, "admin", "trim", "--explain", "--without-audit")
    assert [one["shard"] for one in explained["shards"]] == [0]
    assert "pipeline-0" in [one["pipeline"] for one in explained["pipelines"]]
    assert first_offset(stack, DN_LOG) == 0
    done = command(stack, "admin", "trim", "--pipeline", "pipeline-0", "--without-audit")
    [one] = done["pipelines"]
    assert done["shards"] == []
    assert one["records"] > 0
    assert first_offset(stack, DN_LOG) == one["offset"]
    write(client, written, 2)
    check(client, written)


def test_a_datanode_that_is_away_holds_the_log_and_installs_if_it_is_left_behind(
    stack: TestStack, client: Client, written: dict[str, bytes]
) -> None:
    away = "dn3"
    stack.stop_datanode(away)
    held = trimmed(stack, wait_s=2)
    assert (held["records"], held["held_by"]) == (0, "members")
    assert trimmed(stack, Wish(without_audit=True, leave_behind=(away,)))["records"] > 0
    stack.start_datanode(away)
    found = stack.wait("it follows again", lambda: pipeline(stack, away))
    assert found["installed"]["offset"] >= first_offset(stack, DN_LOG)
    stack.wait_pipeline()
    write(client, written, 2)
    check(client, written)
    stack.wait("all members are equal", lambda: are_equal(stack))

    def is_trimmed_again() -> bool:
        write(client, written, 1)  # into one of two pipelines: without a write there is no new base
        return bool(trimmed(stack)["records"])

    stack.wait("the log is trimmed with all members", is_trimmed_again)


def test_strangers_learn_and_change_nothing(stack: TestStack) -> None:
    for one in stack.settings.datanodes:
        url = f"http://127.0.0.1:{one.http_port}/v1/shards/0"
        for path in ("durable-position", "trim?do=trim", "trim?do=base", "checkpoint"):
            assert httpx.post(f"{url}/{path}", trust_env=False).status_code == 403


def test_both_logs_are_trimmed_regularly(
    lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with started(lease_kafka(), tmp_path_factory.mktemp("regular"), trim_log_after_ms=2_000) as stack:
        with stack.client() as client:
            written: dict[str, bytes] = {}
            client.create_volume(VOLUME)
            client.create_bucket(VOLUME, BUCKET)

            def both_are_trimmed() -> bool:
                write(client, written, 1)
                return first_offset(stack, OM_LOG) > 0 and first_offset(stack, DN_LOG) > 0

            stack.wait("both logs are trimmed", both_are_trimmed, REGULAR_TIMEOUT_S)
            check(client, written)
        for name in stack.names:
            stack.kill_node(name)
            stack.start_node(name)
        for one in stack.settings.datanodes:
            stack.kill_datanode(one.name)
            stack.start_datanode(one.name)
        stack.wait_led()
        stack.wait_pipeline()
        with stack.client() as client:
            write(client, written, 2)
            check(client, written)
