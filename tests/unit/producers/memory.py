"""In-memory twins for the tests of the client: a cluster that answers, and a connection that leads to it."""

import threading
from collections import deque

from producers.calls import Call, Policy
from producers.client import Client
from producers.pipeline import Pipeline, Settings
from producers.reads import Reads
from schemas import codec
from schemas.messages import (
    AllocateBlock,
    AllocatedBlock,
    CommitKey,
    CreateBucket,
    CreateKey,
    CreateVolume,
    KeySession,
    Request,
    Response,
)
from schemas.result_codes import (
    BUCKET_ALREADY_EXISTS,
    BUCKET_NOT_FOUND,
    KEY_NOT_FOUND,
    OK,
    VOLUME_ALREADY_EXISTS,
    VOLUME_NOT_FOUND,
)
from schemas.rows import BlockLocation, BucketInfo, KeyInfo, VolumeInfo
from tests.support.secret import SECRET

BLOCK_BYTES = 1 << 20


class MemoryCluster:
    """Executes requests over dicts, exactly once for each call, and remembers every request value that it saw."""

    def __init__(self, shards=2):
        self.shards = shards
        self.volumes: dict[str, VolumeInfo] = {}
        self.buckets: dict[tuple[str, str], BucketInfo] = {}
        self.keys: dict[tuple[str, str, str], KeyInfo] = {}
        self.open: dict[int, CreateKey] = {}
        self.answers: dict[tuple[bytes, int], Response] = {}
        self.seen: list[bytes] = []
        self.index = 0

    def execute(self, value: bytes, shard: int) -> Response:
        self.seen.append(value)
        request = codec.decode_as(Request, value)
        identity = (request.client_id, request.call_id)
        if identity not in self.answers:
            self.index += 1
            status, result = self.apply(request.body)
            self.answers[identity] = Response(
                client_id=request.client_id,
                call_id=request.call_id,
                shard=shard,
                index=self.index,
                status=status,
                message="" if status == OK else f"refused by the twin: {status}",
                result=result,
            )
        return self.answers[identity]

    def apply(self, body):
        if isinstance(body, CreateVolume):
            if body.volume in self.volumes:
                return VOLUME_ALREADY_EXISTS, None
            self.volumes[body.volume] = volume_row(body.volume)
        elif isinstance(body, CreateBucket):
            if body.volume not in self.volumes:
                return VOLUME_NOT_FOUND, None
            if (body.volume, body.bucket) in self.buckets:
                return BUCKET_ALREADY_EXISTS, None
            self.buckets[body.volume, body.bucket] = bucket_row(body.volume, body.bucket)
        elif isinstance(body, CreateKey):
            if (body.volume, body.bucket) not in self.buckets:
                return BUCKET_NOT_FOUND, None
            self.open[self.index] = body
            blocks = [self.block() for _ in range(-(-body.size // BLOCK_BYTES))]
            return OK, KeySession(session_id=self.index, object_id=self.index, blocks=blocks)
        elif isinstance(body, AllocateBlock):
            return OK, AllocatedBlock(block=self.block())
        elif isinstance(body, CommitKey):
            opened = self.open.pop(body.session_id, None)
            if opened is None:
                return KEY_NOT_FOUND, None
            assert sum(block.length for block in body.blocks) == body.size
            self.keys[body.volume, body.bucket, body.key] = key_row(body, opened.metadata)
        return OK, None

    def block(self) -> BlockLocation:
        return BlockLocation(container_id=1, local_id=self.index, offset=0, length=BLOCK_BYTES, pipeline="p1")


def volume_row(volume) -> VolumeInfo:
    return VolumeInfo(
        volume=volume, owner="o", creator="o", object_id=1, update_id=1, quota_in_bytes=-1, quota_in_namespace=-1,
        creation_time_ms=1, modification_time_ms=1,
    )  # fmt: skip


def bucket_row(volume, bucket) -> BucketInfo:
    return BucketInfo(
        volume=volume, bucket=bucket, owner="o", layout="OBJECT_STORE", object_id=1, update_id=1, quota_in_bytes=-1,
        quota_in_namespace=-1, creation_time_ms=1, modification_time_ms=1,
    )  # fmt: skip


def key_row(commit: CommitKey, metadata) -> KeyInfo:
    return KeyInfo(
        volume=commit.volume, bucket=commit.bucket, key=commit.key, owner="o", object_id=1, update_id=1,
        size=commit.size, replication="RATIS/THREE", blocks=commit.blocks, metadata=metadata, creation_time_ms=1,
        modification_time_ms=1,
    )  # fmt: skip


class MemoryConnection:
    """A connection to a :class:`MemoryCluster`; ``lost`` says which sent calls never arrive.

    With ``held`` set, replies wait until it is cleared.
    """

    def __init__(self, cluster: MemoryCluster):
        self.cluster = cluster
        self.shards = cluster.shards
        self.reply_partition = 1
        self.lost = lambda _call: False
        self.held = False
        self.failure: Exception | None = None
        self.closed = False
        self.sent: list[Call] = []
        self.largest_send = 0
        self.renewals = 0
        self._replies: deque[bytes] = deque()
        self._changed = threading.Condition()

    def send(self, calls):
        calls = list(calls)
        with self._changed:
            self.sent.extend(calls)
            self.largest_send = max(self.largest_send, len(calls))
            for call in calls:
                if not self.lost(call):
                    self._replies.append(codec.encode(self.cluster.execute(call.value, call.shard)))
            self._changed.notify_all()

    def reply(self, *values: bytes):
        with self._changed:
            self._replies.extend(values)
            self._changed.notify_all()

    def release(self):
        with self._changed:
            self.held = False
            self._changed.notify_all()

    def fail(self, error: Exception):
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def receive(self, wait_ms, *, gather):
        with self._changed:
            self._changed.wait_for(lambda: self.failure or (self._replies and not self.held), wait_ms / 1000)
            if self.failure is not None:
                raise self.failure
            values = [] if self.held else list(self._replies)
            if not self.held:
                self._replies.clear()
            return values

    def serve(self):
        assert not self.closed

    def renew(self):
        self.renewals += 1

    def close(self):
        self.closed = True


def pipeline_to(cluster: MemoryCluster, policy, *, max_linger_ms=10.0) -> tuple[Pipeline, MemoryConnection]:
    settings = Settings(
        bootstrap_servers="memory:0", caller="alice", policy=policy, max_linger_ms=max_linger_ms, secret=SECRET
    )
    connection = MemoryConnection(cluster)
    return Pipeline(settings, connect=lambda _settings, _client_id: connection), connection


def client_to(cluster: MemoryCluster, policy=None, *, read_from=()) -> tuple[Client, MemoryConnection]:
    """A client of the twin, with everything but Kafka real."""
    pipeline, connection = pipeline_to(cluster, policy or Policy())
    return Client.over(pipeline, Reads(read_from, deadline_ms=10_000)), connection
