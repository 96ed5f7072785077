"""Datanodes for the tests of the client: the real stream servers and sockets in this process, over pipelines in memory.

A :class:`World` is an Object Manager in memory, its HTTP node, and datanodes that can be stopped, damaged and slowed down.
"""

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

from crc32c import crc32c

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.blocks_together import BlocksTogether
from datanode_processors.blocks.containers import CONTAINERS, block_name
from datanode_processors.blocks.fsync import NEVER
from datanode_processors.errors import BlockError
from datanode_processors.tokens.guard import BlockTokenGuard
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.ports import Readable
from datanode_processors.wire.server import StreamServer
from datanode_processors.wire.wire import opening_of
from datanode_processors.wire.wire_tls import WireTls
from om_processors.errors import OMError
from producers.blocks.stream_options import StreamOptions
from producers.client import Client
from producers.reads.reads import Reads
from producers.requests.core.calls import Policy
from schemas import stream_errors
from schemas.records.datanode import (
    BlockCommitted,
    BlockOutcome,
    BlocksCommitted,
    BlocksWatched,
    BlockWatched,
    ChunkWritten,
    PutBlock,
    PutBlocks,
    SalvageBlock,
    WatchBlock,
    WatchBlocks,
    WriteBlocks,
    WriteChunk,
)
from schemas.records.messages import ReserveBlocks
from schemas.records.rows import BlockLocation
from schemas.result_codes import FAILED_TO_FIND_ACTIVE_PIPELINE
from schemas.security.certificates import Role
from tests.support.sdk.memory import MemoryCluster, pipeline_to
from tests.support.sdk.nodes import Node

KIB = 1024
CLUSTER = "twin"
WATCH_POLL_S = 0.005


class Log:
    """The log of one pipeline: every member applies an entry at once, unless it is stopped."""

    def __init__(self, partition, members):
        self.partition = partition
        self.members = members
        self.index = 0
        self.rows: dict[tuple[int, int], tuple[PutBlock, int]] = {}
        self.chunks = []
        self.puts = []
        self.lock = threading.Lock()
        self.leader = members[0]
        self.forwards = True
        self.lose = 0
        """So many PutBlocks are acknowledged early and then lost."""
        self.refuse = None
        """Called with each PutBlock; may raise."""
        self.closed = False

    def put(self, put: PutBlock) -> BlockCommitted:
        with self.lock:
            self.puts.append(put)
            if self.refuse is not None:
                self.refuse(put)
            self.index += 1
            if self.lose and not put.wait_effective:
                self.lose -= 1
                return self.committed(put, put.length, self.index)
            key = (put.container_id, put.local_id)
            old = self.rows.get(key)
            if old is None or old[0].length < put.length:
                self.rows[key] = (put, self.index)
            elif old[0].length == put.length and old[0].checksums != put.checksums:
                raise BlockError(stream_errors.CHECKSUM_MISMATCH, "equal length, other checksums")
            put, index = self.rows[key]
            return self.committed(put, put.length, index)

    @staticmethod
    def committed(put: PutBlock, length: int, index: int) -> BlockCommitted:
        return BlockCommitted(
            container_id=put.container_id, local_id=put.local_id, length=length, bcs_id=index, log_offset=index
        )


class Pipelines:
    """The pipeline port of one datanode."""

    def __init__(self, world, name, blocks):
        self.world = world
        self.name = name
        self.blocks = blocks
        self.corrupt = []
        self.unhealthy = set()
        """(container, local id) of blocks that are refused as a whole; nothing is ever repaired."""
        self.notices = False
        """Whether a block counts as unhealthy once a damaged cell of it was read, as with real datanodes."""
        self.reads = []
        """ReadBlock and SalvageBlock as they came."""
        self.watches = 0
        self.deaf = False
        """Whether watches are never satisfied here."""

    def log(self, partition) -> Log:
        log: Log | None = self.world.logs.get(partition)
        if log is None or self.name not in log.members:
            raise BlockError(stream_errors.NO_SUCH_PIPELINE, f"no member of pipeline-{partition}")
        return log

    def check_stream(self, partition, container_id, local_id):
        if self.log(partition).closed:
            raise BlockError(stream_errors.PIPELINE_CLOSED, f"pipeline-{partition} is closed")

    def members_for(self, request):
        inner = opening_of(request)[0] if isinstance(request, WriteBlocks) else request
        return inner.partition, self.log(inner.partition).members

    def address_of(self, partition, datanode):
        assert datanode in self.log(partition).members
        return self.world.nodes[datanode].address

    def handle(self, request):
        log = self.log(request.partition)
        if isinstance(request, PutBlock | WriteChunk):
            if log.leader != self.name and not log.forwards:
                raise BlockError(stream_errors.NOT_LEADER, "another leads", hint=log.leader)
            if not self.world.alive(log.leader):
                raise BlockError(stream_errors.TIMED_OUT, f"the leader {log.leader} does not answer")
        if isinstance(request, PutBlock):
            return log.put(request)
        if isinstance(request, WriteChunk):
            assert crc32c(request.data) == request.checksum
            with log.lock:
                log.index += 1
                log.chunks.append(request)
                for member in log.members:
                    if self.world.alive(member):
                        self.world.nodes[member].blocks.take_chunk(request)
                return ChunkWritten(bcs_id=log.index)
        if isinstance(request, WatchBlock):
            self.watches += 1
            deadline = time.monotonic() + request.timeout_ms / 1000
            while not (satisfied := self.holds(log, request)) and time.monotonic() < deadline:
                time.sleep(WATCH_POLL_S)
            return BlockWatched(datanode=self.name, bcs_id=log.index, length=request.length, satisfied=satisfied)
        if isinstance(request, PutBlocks):
            return self.put_all(log, request)
        if isinstance(request, WatchBlocks):
            return self.watch_all(request)
        raise BlockError(stream_errors.INVALID_REQUEST, type(request).__name__)

    def put_all(self, log, request):
        outcomes = []
        for block in request.blocks:
            put = PutBlock(
                partition=request.partition, container_id=block.container_id, local_id=block.local_id,
                length=block.length, bytes_per_checksum=request.bytes_per_checksum, checksums=block.checksums,
                wait_effective=True,
            )  # fmt: skip
            try:
                outcomes.append(BlockOutcome(code="", message="", bcs_id=self.handle(put).bcs_id))
            except BlockError as error:
                outcomes.append(BlockOutcome(code=error.code, message=error.message, bcs_id=0))
        return BlocksCommitted(leader=log.leader, outcomes=outcomes)

    def watch_all(self, request):
        watched = [
            self.handle(
                WatchBlock(
                    partition=request.partition, container_id=block.container_id, local_id=block.local_id,
                    length=block.length, bcs_id=0, timeout_ms=request.timeout_ms,
                )
            ).satisfied
            for block in request.blocks
        ]  # fmt: skip
        return BlocksWatched(datanode=self.name, bcs_id=request.bcs_id, satisfied=all(watched))

    def holds(self, log, watch):
        row = log.rows.get((watch.container_id, watch.local_id))
        if self.deaf or row is None or row[0].length < watch.length or row[1] < watch.bcs_id:
            return False
        put = row[0]
        store = self.blocks.store
        if store.written_length(watch.container_id, watch.local_id) < put.length:
            return False
        store.flush(watch.container_id, watch.local_id)
        return store.checksums(watch.container_id, watch.local_id, put.length) == put.checksums

    def readable(self, request):
        self.reads.append(request)
        log = self.log(request.partition)
        row = log.rows.get((request.container_id, request.local_id))
        if row is None or request.bcs_id > log.index:
            raise BlockError(stream_errors.NOT_COMMITTED, f"block {request.local_id} at {request.bcs_id}")
        put, written = row[0], self.blocks.store.written_length(request.container_id, request.local_id)
        unhealthy = (request.container_id, request.local_id) in self.unhealthy or written < put.length
        if unhealthy and not isinstance(request, SalvageBlock):
            raise BlockError(stream_errors.NOT_COMMITTED, f"block {request.local_id} is being repaired here")
        return Readable(
            length=put.length, bytes_per_checksum=put.bytes_per_checksum, checksums=put.checksums, stored=written
        )

    def on_corrupt_cell(self, container_id, local_id, offset):
        self.corrupt.append((local_id, offset))
        if self.notices:
            self.unhealthy.add((container_id, local_id))


class Blocks:
    """A datanode's real block store, and ways around it."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True)
        self.folder = folder
        self.store = BlockStore(folder, fsync=NEVER)
        self.early: dict[int, bytes] = {}
        """Chunks that lie beyond the end, by offset."""

    def path(self, block):
        return self.folder / CONTAINERS / str(block.container_id) / block_name(block.local_id)

    def bytes_of(self, block):
        return self.path(block).read_bytes()

    def damage(self, block, offset, data):
        descriptor = os.open(self.path(block), os.O_WRONLY)
        os.pwrite(descriptor, data, offset)
        os.close(descriptor)

    def take_chunk(self, chunk):
        self.early[chunk.offset] = chunk.data
        writer = None
        while (at := self.store.written_length(chunk.container_id, chunk.local_id)) in self.early:
            data = self.early.pop(at)
            writer = writer or self.store.open_writer(chunk.container_id, chunk.local_id, at, 64 * KIB)
            for start in range(0, len(data), 64 * KIB):
                part = memoryview(data)[start : start + 64 * KIB]
                writer.write(at + start, part, crc32c(part))
        if writer is not None:
            writer.close()


class Datanode:
    def __init__(self, world, name, folder, limits, *, small, certified=None):
        self.name = name
        self.blocks = Blocks(folder)
        self.pipelines = Pipelines(world, name, self.blocks)
        self.notes: list[str] = []
        self.running = True
        self.now_ms = int(time.time() * 1000)
        note = lambda message, **_: self.notes.append(message)  # noqa: E731
        tls = None if certified is None else WireTls(certified.tls(name, Role.DATANODE))
        self.tokens = None if certified is None else BlockTokenGuard(lambda: self.now_ms, note, wait_s=0.3)
        self._together = BlocksTogether(self.blocks.store)
        self.server = StreamServer(
            name=name, cluster=CLUSTER, host="127.0.0.1", port=0, blocks=self.blocks.store, pipelines=self.pipelines,
            note=note, limits=limits, small_blocks=self._together if small else None,
            tls=tls, block_tokens=self.tokens, brokers_id=world.brokers_id,
        )  # fmt: skip
        self.address = f"127.0.0.1:{self.server.port}"

    def stop(self):
        self.running = False
        self.server.stop()
        self._together.close()


class OmNode(Node):
    """The HTTP node of the Object Manager, with pipelines."""

    def __init__(self, cluster, world):
        super().__init__(cluster)
        self.world = world

    def respond(self, target):
        if target.startswith("/v1/pipelines"):
            return 200, json.dumps(self.world.pipelines_answer()).encode()
        if target.startswith("/v1/containers/"):  # nobody but the members holds any
            return 200, json.dumps({"replicas": []}).encode()
        return super().respond(target)


class BlockCluster(MemoryCluster):
    """An Object Manager that allocates blocks on the world's pipelines, in turn."""

    datanodes = True

    def __init__(self, world):
        super().__init__(1)
        self.world = world
        self.allocated = []

    @property
    def block_bytes(self):  # type: ignore[override]
        return self.world.block_bytes

    def pipelines(self):
        if self.world.without_pipelines > 0:
            return []
        return [f"pipeline-{partition}" for partition in self.world.logs]

    def apply(self, body):
        try:
            return super().apply(body)
        except OMError as error:
            if error.status == FAILED_TO_FIND_ACTIVE_PIPELINE:
                self.world.without_pipelines -= 1
            raise

    def place_all(self, blocks, body):
        if not isinstance(body, ReserveBlocks):
            return super().place_all(blocks, body)
        first = self.place(blocks[0], [])
        others = [name for name in self.pipelines() if name != first.pipeline]
        return [first, *(self.place(block, others) for block in blocks[1:])]

    def place(self, block, excluded):
        found = replace(self.allocate(excluded), offset=block.offset, length=block.length)
        self.allocated[-1] = found
        return found

    def allocate(self, excluded):
        usable = [partition for partition in self.world.logs if f"pipeline-{partition}" not in excluded]
        partition = usable[len(self.allocated) % len(usable)]
        block = BlockLocation(
            container_id=256 + partition, local_id=len(self.allocated) + 1, offset=0, length=self.world.block_bytes,
            pipeline=f"pipeline-{partition}",
        )  # fmt: skip
        self.allocated.append(block)
        return block


class World:
    """``pipelines`` of ``replicas`` datanodes each, and a client of them all.

    Blocks are streams, unless ``small`` ones may be written together. With ``certified`` they speak TLS, and datanodes
    demand block tokens.
    """

    def __init__(
        self,
        folder: Path,
        *,
        pipelines=1,
        replicas=3,
        block_bytes=1024 * KIB,
        limits=None,
        small=False,
        certified=None,
        policy=None,
        brokers_id="",
        **options,
    ):
        self.brokers_id = brokers_id
        self.block_bytes = block_bytes
        self.nodes: dict[str, Datanode] = {}
        self.logs: dict[int, Log] = {}
        limits = limits or WireLimits(stop_grace_s=0.0, linger_s=0.2)
        for partition in range(1, pipelines + 1):
            names = [f"dn{partition}{n}" for n in range(1, replicas + 1)]
            for name in names:
                self.nodes[name] = Datanode(self, name, folder / name, limits, small=small, certified=certified)
            self.logs[partition] = Log(partition, names)
        self.without_pipelines = 0
        """So many times no pipeline takes a block."""
        self.racks: dict[str, str] = {}
        self.cluster = BlockCluster(self)
        self.cluster.brokers_id = brokers_id
        self.om = OmNode(self.cluster, self)
        given = {
            "flush_bytes": 256 * KIB, "client_buffer_bytes": 512 * KIB, "window_bytes": 256 * KIB,
            "watch_timeout_ms": 300, "commit_timeout_ms": 3_000, "inline_bytes": 0,
            "small_block_bytes": 1024 * KIB if small else 0,
        }  # fmt: skip
        self.options = StreamOptions(**{**given, **options})
        pipeline, self.connection = pipeline_to(self.cluster, policy or Policy())
        if certified is not None:
            pipeline.tls = certified.tls("somebody", Role.CLIENT)
        self.client = Client.over(pipeline, Reads([self.om.address], deadline_ms=5_000), self.options)
        self.client.create_volume("v")
        self.client.create_bucket("v", "b")

    def with_options(self, **changes):
        return replace(self.options, **changes)

    def alive(self, name):
        return self.nodes[name].running

    def pipelines_answer(self):
        return {
            "cluster": CLUSTER,
            "pipelines": [
                {
                    "pipeline": f"pipeline-{log.partition}", "partition": log.partition, "state": "OPEN",
                    "members": [
                        {"datanode": name, "address": self.nodes[name].address, "http_address": "",
                         "rack": self.racks.get(name, "/r")}
                        for name in log.members
                    ],
                }
                for log in self.logs.values()
            ],
        }  # fmt: skip

    def members(self, partition=1):
        return [self.nodes[name] for name in self.logs[partition].members]

    def put(self, data, path="/v/b/k", *, piece=100 * KIB, **options):
        """Write a key in pieces and return the writer's statistics."""
        with self.client.open(path, "wb", options=self.with_options(**options)) as file:
            for at in range(0, len(data), piece):
                file.write(data[at : at + piece])
        return file.statistics()

    def get(self, path="/v/b/k"):
        with self.client.open(path) as file:
            return file.read()

    def key(self, key="k"):
        return self.cluster.keys["v", "b", key]

    def check_replicas(self, data, key="k", *, living=None):
        """Every committed block is, byte for byte, on every living member of its pipeline."""
        for block in self.key(key).blocks:
            expected = data[block.offset : block.offset + block.length]
            for node in self.members(block.container_id % 256):
                if node.running and (living is None or node.name in living):
                    assert node.blocks.bytes_of(block)[: block.length] == expected, node.name

    def close(self):
        for node in self.nodes.values():
            node.stop()
        self.client.close(timeout_ms=1_000)
        self.om.close()
