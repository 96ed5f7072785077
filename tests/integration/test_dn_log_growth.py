"""All partitions of dn.log are used up: the Object Manager adds some, and nodes and datanodes that run go on with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from om_processors.fleet.block_deletion import partition_of
from om_processors.fleet.placement_loop import GROW_PARTITIONS
from producers import Client, StreamOptions
from schemas.codecs.codec import decode
from schemas.records.datanode import Member
from schemas.records.messages import AuditReport, CreatePipeline, RetirePipeline
from schemas.topics import DN_AUDIT, DN_LOG
from stratolog.local import topics
from tests.support.faults.stack_faults import Tap
from tests.support.local.stack import HTTP_TIMEOUT_S, TestStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KIB = 1024
BLOCK_BYTES = 256 * KIB
OPTIONS = StreamOptions(flush_bytes=64 * KIB, client_buffer_bytes=BLOCK_BYTES, block_bytes=BLOCK_BYTES)
DATANODES = ("dn1", "dn2", "dn3")
FIRST, ADDED = {0, 1}, {2, 3}
"""The partitions that there are at first: as many as three datanodes have open pipelines. Any other pipeline needs an added one."""


@pytest.fixture(scope="module")
def stack(make_stack: Callable[..., TestStack]) -> TestStack:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "DN_LOG_PARTITIONS", len(FIRST))
        started = make_stack(nodes=2, datanodes=len(DATANODES), block_bytes=BLOCK_BYTES, barrier_interval_ms=100)
    wait_led(started, FIRST)
    return started


@pytest.fixture(scope="module")
def client(stack: TestStack) -> Iterator[Client]:
    with stack.client(streams=OPTIONS) as opened:
        opened.create_volume("growth")
        opened.create_bucket("growth", "bucket")
        yield opened


def write(client: Client, key: str) -> bytes:
    data = random.Random(key).randbytes(4 * BLOCK_BYTES + 17)
    with client.open(f"growth/bucket/{key}", "wb") as file:
        file.write(data)
    return data


def read(client: Client, key: str) -> bytes:
    with client.open(f"growth/bucket/{key}") as file:
        found: bytes = file.read()
    return found


def partitions_of(client: Client, key: str) -> set[int]:
    """Return the partitions whose pipelines have a key's blocks: all of them committed."""
    blocks = client.key_info("growth", "bucket", key).info.blocks
    assert all(block.bcs_id > 0 for block in blocks)
    return {partition_of(block) for block in blocks}


def wait_led(stack: TestStack, partitions: set[int]) -> None:
    """Wait until every node gives blocks to the pipelines on these partitions, and to no others."""

    def led() -> bool:
        rows = [stack.pipelines(name) for name in stack.nodes]
        taking = [{row["partition"] for row in found if row["usable"] and row["leader"]} for found in rows]
        return all(found == partitions for found in taking)

    stack.wait(f"pipelines with leaders on partitions {partitions}", led)


def partition_counts(stack: TestStack) -> dict[str, int]:
    found = stack.kafka.admin.list_topics(timeout=HTTP_TIMEOUT_S).topics
    return {name: len(found[name].partitions) for name in (DN_LOG, DN_AUDIT)}


def as_members_see_it(stack: TestStack, partition: int) -> list[dict[str, Any]]:
    """Return a pipeline as each datanode that has it open sees it."""
    found = [
        httpx.get(f"http://{node.http_address}/status", timeout=HTTP_TIMEOUT_S, trust_env=False).json()
        for node in stack.settings.datanodes
    ]
    return [pipeline for one in found for pipeline in one["pipelines"] if pipeline["shard"] == partition]


def wait_one_state(stack: TestStack, partition: int) -> None:
    """Wait until all members have applied the same, and one of them leads."""

    def agree() -> bool:
        found = as_members_see_it(stack, partition)
        states = {(one["applied_index"], one["digest"]) for one in found}
        leaders = [one for one in found if one["role"] == "leader"]
        return (len(found), len(states), len(leaders)) == (len(DATANODES), 1, 1)

    stack.wait(f"one state of pipeline-{partition} on all members", agree)


def wait_reported(stack: TestStack, client: Client, partitions: set[int]) -> None:
    """Wait until all members have reported a barrier of each pipeline that is behind the commit of a block.

    Keys are written meanwhile: an idle pipeline has no barriers.
    """
    with Tap(stack.settings.bootstrap_servers, DN_AUDIT, from_beginning=True) as tap:

        def reported() -> bool:
            write(client, "meanwhile")
            records = [decode(value) for value in tap.poll()]
            # Index 1 is that of PipelineOpened.
            found = {(one.shard, one.node) for one in records if isinstance(one, AuditReport) and one.index > 1}
            return found >= {(partition, name) for partition in partitions for name in DATANODES}

        stack.wait("reports of all members", reported)


@pytest.mark.slow
def test_new_pipelines_get_added_partitions_and_nothing_restarts(stack: TestStack, client: Client) -> None:
    assert partition_counts(stack) == {DN_LOG: len(FIRST), DN_AUDIT: len(FIRST)}
    processes = {**stack.nodes, **stack.datanodes}
    before = write(client, "before")
    assert partitions_of(client, "before") <= FIRST

    # More than the Object Manager would make of three datanodes: it finds the rows, and no partitions for them.
    members = [Member(**one) for one in stack.pipelines()[0]["members"]]
    for partition in sorted(ADDED):
        client.call(CreatePipeline(partition=partition, members=members))
    for partition in FIRST:
        client.call(RetirePipeline(partition=partition, reason="a test"))
    wait_led(stack, ADDED)
    more = len(FIRST) + GROW_PARTITIONS
    assert partition_counts(stack) == {DN_LOG: more, DN_AUDIT: more}

    after = write(client, "after")
    assert partitions_of(client, "after") <= ADDED
    assert read(client, "after") == after
    assert read(client, "before") == before

    wait_reported(stack, client, ADDED)
    for partition in ADDED:
        wait_one_state(stack, partition)
    assert {**stack.nodes, **stack.datanodes} == processes
    assert [name for name, process in processes.items() if not process.is_running()] == []
    assert (read(client, "before"), read(client, "after")) == (before, after)
