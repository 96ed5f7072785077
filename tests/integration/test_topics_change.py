"""Somebody changes the brokers' topics under a running cluster: it goes on, says what is odd, and can be set right."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka.admin import NewPartitions

from replicated_db.shell.kafka.faust_transport import BEYOND_END_WAIT_S
from schemas.topics import OM_AUDIT, OM_LOG, OM_REQUESTS
from stratolog.local.processes import wait_until
from stratolog.local.stack import topic_plan
from stratolog.local.topics import ensure_topics
from tests.support.faults.stack_faults import PATIENCE_S
from tests.support.local.stack import TestStack, make_topics
from transport.waiting.deadline import Deadline

GROUPS_S = 150.0

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
SHARDS = 2
LOOK_S = 15.0
"""Longer than any process's refresh of metadata."""


@pytest.fixture(scope="module")
def stack(make_stack: Callable[..., TestStack]) -> TestStack:
    return make_stack(nodes=2, shards=SHARDS)


def write(stack: TestStack, name: str) -> None:
    """Make volumes of all shards by a new client."""
    with stack.client(caller="tester") as client:
        assert client.shards == SHARDS
        for number in range(8):
            client.create_volume(f"{name}{number}")


def partitions(stack: TestStack, topic: str) -> int:
    return len(stack.kafka.admin.list_topics(timeout=30).topics[topic].partitions)


def make_anew(stack: TestStack, topic: str) -> None:
    stack.kafka.admin.delete_topics([topic])[topic].result()
    assert wait_until(lambda: topic not in stack.kafka.admin.list_topics(timeout=5).topics, PATIENCE_S)
    time.sleep(LOOK_S)  # the nodes see that it is gone
    make_topics(stack)


def running(stack: TestStack) -> list[str]:
    return [name for name, process in stack.nodes.items() if process.is_running()]


def test_partitions_are_added(stack: TestStack) -> None:
    write(stack, "before")
    before = stack.client(caller="tester")
    added = [NewPartitions(topic, SHARDS + 1) for topic in (OM_REQUESTS, OM_AUDIT)]
    for future in stack.kafka.admin.create_partitions(added).values():
        future.result()
    time.sleep(LOOK_S)
    assert running(stack) == list(stack.names)
    write(stack, "after")
    before.create_volume("of-a-client-that-was-there")
    before.close()
    log = "".join(stack.log_file(name).read_text() for name in stack.names)
    assert "om.requests has partitions [2], which are no shards" in log
    ensure_topics(stack.settings.bootstrap_servers, topic_plan(stack.settings))
    for name in stack.names:
        stack.stop_node(name)
        stack.start_node(name)
    stack.wait_led()
    write(stack, "again")


def test_the_topic_of_reports_is_made_anew(stack: TestStack) -> None:
    write(stack, "reported")
    make_anew(stack, OM_AUDIT)
    time.sleep(BEYOND_END_WAIT_S + LOOK_S)
    assert running(stack) == list(stack.names)
    write(stack, "reported-anew")
    stack.wait_converged()


def test_the_topic_of_requests_is_made_anew_and_has_the_shards_again(stack: TestStack) -> None:
    assert partitions(stack, OM_REQUESTS) == SHARDS + 1
    make_anew(stack, OM_REQUESTS)
    assert partitions(stack, OM_REQUESTS) == SHARDS
    stack.wait_led()
    write(stack, "anew")
    assert running(stack) == list(stack.names)


@pytest.mark.slow
def test_each_process_has_one_group(stack: TestStack) -> None:
    """Each start left an empty one, which the brokers kept for a week."""

    def start_again(name: str) -> None:
        stack.stop_node(name)
        stack.start_node(name)
        stack.wait_led()

    def groups() -> list[str]:
        listed = stack.kafka.admin.list_consumer_groups(request_timeout=30).result().valid
        return sorted(one.group_id for one in listed if one.group_id.startswith("om-follower-"))

    start_again("om2")
    start_again("om2")
    deadline = Deadline.after_s(GROUPS_S)
    while len(groups()) > len(
        stack.names
    ):  # one that had its former member when a process started goes with a later start
        assert not deadline.has_passed, groups()
        for name in stack.names:
            if sum(group.startswith(f"om-follower-{name}-") for group in groups()) > 1:
                start_again(name)
    assert [group[:15] for group in groups()] == [f"om-follower-{name}" for name in stack.names]


@pytest.mark.slow
def test_a_partition_is_added_to_the_log(stack: TestStack) -> None:
    """It cannot be taken away: nodes that run go on, and a start says the way out."""
    stack.kafka.admin.create_partitions([NewPartitions(OM_LOG, SHARDS + 1)])[OM_LOG].result()
    time.sleep(LOOK_S)
    assert running(stack) == list(stack.names)
    write(stack, "grown")
