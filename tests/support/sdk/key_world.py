"""A client of files on real datanode processes and a real dn.log; only the Object Manager is its twin in memory.

A :class:`KeyWorld` is cheap: a test makes one of its own when its client is to see other addresses (a proxy in front of a datanode) or
racks (so that a certain datanode is the primary). Blocks have numbers of their own in each, so that many may share the datanodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from producers.blocks.stream_options import StreamOptions
from producers.client import Client
from producers.reads.reads import Reads
from producers.requests.core.calls import Policy
from schemas.records.rows import BlockLocation
from tests.support.datanodes.datanodes import CLUSTER, Block, Datanodes
from tests.support.sdk.datanodes import BlockCluster, OmNode
from tests.support.sdk.memory import pipeline_to

KIB, MIB = 1024, 1024 * 1024
OPTIONS = StreamOptions(flush_bytes=MIB, client_buffer_bytes=4 * MIB, watch_timeout_ms=2_000, inline_bytes=0)
BLOCKS_PER_WORLD = 100_000
_worlds = count(1)


class _Cluster(BlockCluster):
    """Numbers blocks from ``first`` on."""

    def __init__(self, world: KeyWorld, first: int) -> None:
        super().__init__(world)
        self._first = first

    def allocate(self, excluded: list[str]) -> BlockLocation:
        found = super().allocate(excluded)
        self.allocated[-1] = replace(found, local_id=self._first + found.local_id)
        numbered: BlockLocation = self.allocated[-1]
        return numbered


class KeyWorld:
    """The Object Manager's twin over real datanodes, with all pipelines that they have, and a client of it."""

    def __init__(
        self, nodes: Datanodes, *, addresses: Mapping[str, str] | None = None, racks: Mapping[str, str] | None = None,
        number: int | None = None, **changes: Any,
    ) -> None:  # fmt: skip
        """``addresses`` and ``racks`` are what the client is told of some datanodes; ``changes`` are to OPTIONS.

        ``number`` tells this one's blocks from others' where worlds of several processes share datanodes.
        """
        self.nodes = nodes
        self.addresses = dict(addresses or {})
        self.racks = dict(racks or {})
        self.block_bytes = 8 * MIB
        self.logs = nodes.pipelines
        self.without_pipelines = 0
        """AllocateBlock requests that are still answered with NO_PIPELINE."""
        self.cluster: Any = _Cluster(self, (number or next(_worlds)) * BLOCKS_PER_WORLD)
        self.om = OmNode(self.cluster, self)
        pipeline, _ = pipeline_to(self.cluster, Policy())
        self.client = Client.over(pipeline, Reads([self.om.address], deadline_ms=10_000), self.options(**changes))
        self.client.create_volume("v")
        self.client.create_bucket("v", "b")

    def pipelines_answer(self) -> dict[str, object]:
        found = []
        for partition, names in self.nodes.pipelines.items():
            members = [
                {
                    "datanode": member.datanode, "address": self.addresses.get(member.datanode, member.address),
                    "http_address": member.http_address, "rack": self.racks.get(member.datanode, member.rack),
                }
                for member in self.nodes.members(names)
            ]  # fmt: skip
            found.append(
                {"pipeline": f"pipeline-{partition}", "partition": partition, "state": "OPEN", "members": members}
            )
        return {"cluster": CLUSTER, "pipelines": found}

    def only(self, partition: int) -> None:
        """Allocate blocks on this pipeline first."""
        self.logs = {partition: self.nodes.pipelines[partition]} | self.nodes.pipelines
        while len(self.cluster.allocated) % len(self.logs):
            self.cluster.allocate([])

    def options(self, **changes: Any) -> StreamOptions:
        return replace(OPTIONS, **changes)

    def blocks(self, key: str) -> list[BlockLocation]:
        return list(self.cluster.keys["v", "b", key].blocks)

    def check(self, key: str, data: bytes) -> None:
        """The key is read right, and lies right on every replica that lives, once that has all of it."""
        with self.client.open(f"/v/b/{key}") as file:
            assert file.read() == data
        for found in self.blocks(key):
            expected = data[found.offset : found.offset + found.length]
            block = block_of(found)
            for name in self.nodes.pipelines[block.partition]:
                if name in self.nodes.processes:
                    watched = self.nodes.watch(block, found.length, bcs_id=found.bcs_id, names=[name])
                    assert watched[0].satisfied, (key, watched[0])
                    assert self.nodes.read(name, block, found.length, bcs_id=found.bcs_id) == expected, name
                    assert self.nodes.block_file(name, block).read_bytes()[: found.length] == expected, name

    def close(self) -> None:
        self.client.close(timeout_ms=1_000)
        self.om.close()


def block_of(location: BlockLocation) -> Block:
    return Block(location.container_id % 256, location.container_id, location.local_id)
