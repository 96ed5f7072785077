"""A node whose replica the log no longer reaches installs a peer's checkpoint when it starts; real processes, real Kafka."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from schemas.topics import OM_LOG
from stratolog.cluster.installs import installing
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import Load
from stratolog.drills.kit.own_stack import trim_log
from tests.support.faults.stack_faults import assert_journal_holds, bystander, fresh_volume
from tests.support.local.stack import LocalKafka, TestStack

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
WRITES = 60


@pytest.fixture(scope="module")
def stack(make_kafka: Callable[..., LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestStack]:
    with TestStack(
        tmp_path_factory.mktemp("stack"), nodes=3, shards=1, barrier_interval_ms=200, kafka=make_kafka()
    ) as found:
        found.wait_led()
        yield found


def trim(stack: TestStack, *, paused: str = "") -> int:
    """Trim the log as an operator may, who forgets a node that is ``paused``; return its first offset."""
    return trim_log(Cluster(settings=stack.settings), [name for name in stack.nodes if name != paused])


def digests(stack: TestStack) -> set[Any]:
    stack.wait_converged()
    found = {name: stack.get(name, "/v1/shards/0/digest", scrub="true").json() for name in stack.names}
    for one in found.values():
        assert one["digest"] == one["incremental"]["digest"]
    assert len({one["index"] for one in found.values()}) == 1
    return {one["digest"] for one in found.values()}


def test_a_node_whose_disk_is_gone(stack: TestStack) -> None:
    with stack.client() as client:
        volume = fresh_volume(0, 1)
        with Load(client, [volume]) as load:
            load.wait_more(WRITES, volume)
            victim = bystander(stack)
            stack.kill_node(victim)
            shutil.rmtree(stack.settings.node_folder(victim))
            load.wait_more(WRITES, volume)
            first = trim(stack)
            assert first > WRITES
            stack.start_node(victim)
            stack.wait("the node serves again", lambda: stack.status(victim) is not None)
            load.wait_more(WRITES, volume)
        installed = stack.shard(victim, 0)["installed"]
        assert installed["offset"] >= first
        assert installed["fetched_bytes"] > 0
        assert len(digests(stack)) == 1
        assert_journal_holds(stack, load)
    assert not list(stack.settings.node_folder(victim).glob("*.candidate"))


@pytest.mark.slow
def test_a_node_that_was_away_while_the_log_was_trimmed(stack: TestStack) -> None:
    with stack.client() as client:
        volume = fresh_volume(0, 1)
        with Load(client, [volume]) as load:
            load.wait_more(WRITES, volume)
            victim = bystander(stack)
            stack.stop_node(victim)
            load.wait_more(WRITES, volume)
            trim(stack)
            stack.start_node(victim)
            stack.wait("the node serves again", lambda: stack.status(victim) is not None)
        assert stack.shard(victim, 0)["installed"]["peer"] in stack.names
        assert len(digests(stack)) == 1
        assert_journal_holds(stack, load)


@pytest.mark.slow  # the others show the install; this one that a fetch below the start ends the node
def test_a_node_that_stood_still_while_the_log_was_trimmed(stack: TestStack) -> None:
    """It runs, and finds what it wants next below the log's start: it ends, and its next start installs."""
    with stack.client() as client:
        volume = fresh_volume(0, 1)
        victim = bystander(stack)
        with Load(client, [volume]) as load:
            load.wait_more(WRITES, volume)
            stack.pause_node(victim)
            load.wait_more(WRITES, volume)
            first = trim(stack, paused=victim)
            process = stack.nodes[victim]
            stack.resume_node(victim)
            stack.wait("the node has ended", lambda: not process.is_running(), 120)
            stack.start_node(victim)
            stack.wait("the node serves again", lambda: stack.status(victim) is not None)
        assert stack.shard(victim, 0)["installed"]["offset"] >= first
        assert len(digests(stack)) == 1
        assert_journal_holds(stack, load)


@pytest.mark.slow  # tests/unit/replicated_db/shell/test_opening_web.py has it with real replicas in one process
def test_two_nodes_that_each_need_what_the_other_one_has(
    lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """om1 loses shard 0, om2 shard 1. The first one to start says what it waits for; both are whole in the end."""
    with TestStack(
        tmp_path_factory.mktemp("two"), nodes=2, shards=2, barrier_interval_ms=200, kafka=lease_kafka()
    ) as stack:
        stack.wait_led()
        with stack.client() as client:
            for shard in (0, 1):
                client.create_volume(fresh_volume(shard, 2))
        stack.wait_converged()
        places = [
            TopicPartition(OM_LOG, shard, int(stack.shard("om1", shard)["applied_offset"]) - 1) for shard in (0, 1)
        ]
        for name in stack.names:
            stack.stop_node(name)
        for asked in stack.kafka.admin.delete_records(places).values():
            asked.result()
        shutil.rmtree(stack.settings.node_folder("om1") / "shard-0")
        shutil.rmtree(stack.settings.node_folder("om2") / "shard-1")
        stack.start_node("om1")
        said = stack.wait("it says what it waits for", lambda: installing(stack.settings, "om1"))
        assert "shard 0" in said[0]
        assert stack.status("om1") is None
        assert stack.get("om1", "/health").status_code == 503
        stack.start_node("om2")
        stack.wait_led()
        assert [stack.shard("om1", shard)["installed"] is None for shard in (0, 1)] == [False, True]
        assert [stack.shard("om2", shard)["installed"] is None for shard in (0, 1)] == [True, False]
        stack.wait_converged()
