"""A stack at rest appends next to nothing: each topic's end moves by no more than this list says, in half a minute without a request.

===================  ==================================================================================================
topic                what it may get at rest, and why
===================  ==================================================================================================
om.log               nothing. A leader appends a barrier when something was written since the last one, or when a scrub
                     is due, and no scrub is due here. It appends a Tick only when somebody waits for a linearizable read.
dn.log               in each pipeline's partition a Tick each quarter of ``pipeline_watchdog_ms``: by these its members know that
                     the leader lives. A partition without a pipeline gets nothing.
dn.heartbeats        one record of each datanode each ``datanode_heartbeat_interval_ms``: by these the Object Managers know that it
                     lives. Nothing changes at rest, so none comes earlier.
om.audit, dn.audit   nothing. Replicas report at barriers, and there is none.
all others           nothing. Nobody asks, so there is no request, response or rejected record. No audit runs, so there is
                     no verdict and no window. Brokers note in ``__consumer_offsets`` what a group reads and who is in it:
                     followers commit no offsets, and no member comes or goes.
===================  ==================================================================================================

The bounds come from the settings alone. The test asks nobody anything during the rest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import ceil

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from datanode_processors.pipeline.core.election import tick_interval_ms
from schemas.topics import DN_HEARTBEATS, DN_LOG
from stratolog.configuration.node_configs import datanode_config
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

STACK = {"nodes": 3, "datanodes": 3, "scrub_interval_ms": 0, "datanode_scrub_interval_ms": 0}
"""Scrubs are made at start alone: else one that is due in this half minute would be a barrier with cause."""
REST_S = 30.0
QUIET_S = 5.0
"""The stack has settled when for so long only dn.log and dn.heartbeats have grown."""
SETTLE_S = 90.0
ASK_S = 10.0
LATEST = OffsetSpec.latest()

Place = tuple[str, int]
"""A topic's partition."""


def ends(stack: TestStack) -> dict[Place, int]:
    """Return where each partition of each topic ends; topics of the brokers' own are among them."""
    topics = stack.kafka.admin.list_topics(timeout=ASK_S).topics
    places = {TopicPartition(name, number): LATEST for name, topic in topics.items() for number in topic.partitions}
    found = stack.kafka.admin.list_offsets(places)
    return {(place.topic, place.partition): end.result(ASK_S).offset for place, end in found.items()}


def growth(before: Mapping[Place, int], after: Mapping[Place, int]) -> dict[Place, int]:
    """Return by how much each partition has grown, without those that have not."""
    grown = {place: end - before.get(place, 0) for place, end in after.items()}
    return {place: records for place, records in grown.items() if records}


def settle(stack: TestStack) -> None:
    """Wait until nothing grows any more but what always does."""

    def is_quiet() -> bool:
        before = ends(stack)
        time.sleep(QUIET_S)
        return {topic for topic, _ in growth(before, ends(stack))} <= {DN_LOG, DN_HEARTBEATS}

    stack.wait(f"only {DN_LOG} and {DN_HEARTBEATS} grow", is_quiet, SETTLE_S)


def at_most(stack: TestStack, lasted_ms: float) -> dict[Place, int]:
    """Return what partitions may get in so many milliseconds of rest; those that are not named may get nothing."""
    names = [datanode.name for datanode in stack.settings.datanodes]
    config = datanode_config(stack.settings, names[0])
    # At both ends of the time one more may just fall into it.
    ticks = ceil(lasted_ms / tick_interval_ms(config.pipeline_watchdog_ms)) + 1
    heartbeats = ceil(lasted_ms / config.datanode_heartbeat_interval_ms) + 1
    pipelines = {pipeline["partition"] for pipeline in stack.pipelines()}
    return {(DN_LOG, partition): ticks for partition in pipelines} | {(DN_HEARTBEATS, 0): heartbeats * len(names)}


def test_a_stack_at_rest_appends_signs_of_life_alone(stack: TestStack) -> None:
    settle(stack)
    begun_s, before = time.monotonic(), ends(stack)
    time.sleep(REST_S)
    after, ended_s = ends(stack), time.monotonic()
    found, allowed = growth(before, after), at_most(stack, (ended_s - begun_s) * 1000)
    print({f"{topic}/{partition}": records for (topic, partition), records in sorted(found.items())})
    more = {place: records for place, records in found.items() if records > allowed.get(place, 0)}
    assert not more, f"{more} were appended at rest, where {allowed} are allowed"
    # The time is one in which all lived: each pipeline's leader, and each datanode.
    assert set(found) == set(allowed)
