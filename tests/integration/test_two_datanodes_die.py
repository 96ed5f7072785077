"""Two of a pipeline's three datanodes die in mid-stream, under a real Object Manager: another pipeline is made of those left."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from om_processors.fleet.block_deletion import partition_of
from producers import StreamOptions
from stratolog.nodes.answers import node_answer
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 1024 * 1024
BLOCK_BYTES = 4 * MIB
OPTIONS = StreamOptions(
    flush_bytes=MIB, client_buffer_bytes=BLOCK_BYTES, block_bytes=BLOCK_BYTES, watch_timeout_ms=3_000
)
SYNCED, REST = 2 * MIB + 100, 8 * MIB + 11


def writing(stack: TestStack) -> list[str]:
    """Return the datanodes that have a stream open."""
    answers = {node.name: node_answer(node.http_address, "/status") or {} for node in stack.settings.datanodes}
    return [name for name, found in answers.items() if found.get("streams", {}).get("active")]


def test_the_rest_goes_through_a_pipeline_of_those_left(make_stack: Callable[..., TestStack]) -> None:
    stack = make_stack(nodes=1, datanodes=5, block_bytes=BLOCK_BYTES, flush_bytes=MIB, client_buffer_bytes=BLOCK_BYTES)
    data = random.Random(1).randbytes(SYNCED + REST)
    with stack.client(streams=OPTIONS) as client:
        client.create_volume("two")
        client.create_bucket("two", "bucket")
        with client.open("two/bucket/key", "wb") as file:
            file.write(data[:SYNCED])
            file.hsync()
            members = stack.wait(
                "a stream through three datanodes", lambda: len(found := writing(stack)) == 3 and found
            )
            for name in members[:2]:
                stack.kill_datanode(name)
            file.write(data[SYNCED:])
        assert file.statistics().failed_blocks >= 1
        blocks = client.key_info("two", "bucket", "key").info.blocks
        partitions = [partition_of(block) for block in blocks]
        assert partitions[-1] != partitions[0]
        # The one that is left of the first pipeline has what was synced; the log has its length.
        assert client.open("two/bucket/key").read() == data
        for name in members[:2]:
            stack.start_datanode(name)
        stack.wait_pipeline()
        assert client.open("two/bucket/key").read() == data
