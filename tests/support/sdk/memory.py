"""In-memory twins for the tests of the client: a cluster that answers, and a connection that leads to it."""

import threading
from collections import deque
from dataclasses import replace

from om_processors.errors import OMError
from om_processors.execution.execute import apply_request, pre_execute
from om_processors.namespace import tables
from om_processors.namespace.context import ALLOW_ALL, Allocation, Authorizer, Contexts
from om_processors.namespace.names import MIN_NAME_CHARACTERS
from producers.client import Client
from producers.reads.reads import Reads
from producers.requests.core.calls import Call, Policy
from producers.requests.engine import RequestEngine, RequestSettings
from schemas.codecs import codec
from schemas.column_families import BUCKET_TABLE, KEY_TABLE, VOLUME_TABLE
from schemas.features import LATEST
from schemas.records.identity import ProvenCaller
from schemas.records.messages import AllocateBlock, CommitKey, Request, Response
from schemas.records.rows import BucketInfo, KeyInfo, VolumeInfo
from schemas.result_codes import OK
from schemas.small_objects import DEFAULT_INLINE_BYTES
from tests.support.local.secret import SECRET
from tests.support.om.dict_transaction import DictTables, DictTransaction
from tests.support.om.om_world import request_of

BLOCK_BYTES = 1 << 20


class MemoryCluster:
    """An Object Manager over dicts: the real execution of requests, exactly once for each call; it remembers every request value that it saw.

    Nothing is refused that a real one takes, and nothing taken that it refuses, but for one thing: names of fewer than three characters, which
    the tests use, are made longer before they are executed.
    """

    datanodes = False
    block_bytes = BLOCK_BYTES
    inline_bytes = DEFAULT_INLINE_BYTES
    level = LATEST
    brokers_id = ""
    """The id of its brokers, as clients and nodes tell it; empty: older ones, which tell none."""
    authorizer: Authorizer = ALLOW_ALL
    standing: ProvenCaller | None = None
    """What is known of whoever calls; None: requests are not signed, and everything is allowed."""

    def __init__(self, shards=2):
        self.shards = shards
        self.tables = DictTables()
        self.answers: dict[tuple[bytes, int], Response] = {}
        self.seen: list[bytes] = []
        self.index = 0

    def execute(self, value: bytes, shard: int) -> Response:
        self.seen.append(value)
        request = codec.decode_as(Request, value)
        identity = (request.client_id, request.call_id)
        if identity not in self.answers:
            self.index += 1
            status, message, result = OK, "", None
            try:
                result = self.apply(request.body)
            except OMError as error:
                status, message = error.status, error.message
            self.answers[identity] = Response(
                client_id=request.client_id,
                call_id=request.call_id,
                shard=shard,
                index=self.index,
                status=status,
                message=message,
                result=result,
            )
        return self.answers[identity]

    def apply(self, body):
        """Execute a request and return its result; raises OMError. All shards are one."""
        given = Allocation(pipelines=tuple(enumerate(self.pipelines())), closed_containers=frozenset(), generations={})
        contexts = Contexts(
            shard=0, shards=1, pipelines=tuple(name for _, name in given.pipelines), block_bytes=self.block_bytes,
            choose=(lambda: given) if self.datanodes else None, inline_bytes=self.inline_bytes,
        )  # fmt: skip
        request = request_of(lengthened(body))
        prepared = pre_execute(request, contexts.at(self.index, self.index), self.standing)
        if prepared.blocks:
            prepared = replace(prepared, blocks=self.place_all(prepared.blocks, body))
        transaction = DictTransaction(self.tables, self.index)
        transaction.feature_level = self.level
        result = apply_request(prepared, transaction, self.authorizer)
        transaction.commit()
        return result

    def put(self, row):
        """Have a row of a volume, bucket or key, however it came about."""
        row = lengthened(row)
        where = {
            VolumeInfo: lambda: (VOLUME_TABLE, tables.volume_key(row.volume)),
            BucketInfo: lambda: (BUCKET_TABLE, tables.bucket_key(row.volume, row.bucket)),
            KeyInfo: lambda: (KEY_TABLE, tables.key_key(row.volume, row.bucket, row.key)),
        }
        cf, key = where[type(row)]()
        self.tables.tables[cf][key] = codec.encode(row)

    def pipelines(self) -> list[str]:
        return ["p1"]

    def place_all(self, blocks, body):
        """Say where the blocks go that a request was given."""
        excluded = body.excluded_pipelines if isinstance(body, AllocateBlock) else []
        return [self.place(block, excluded) for block in blocks]

    def place(self, block, excluded):
        """Say where a block goes that was allocated."""
        del excluded
        return block

    def rows(self, cf):
        """Return a table's rows, under the names that the tests use."""
        decoded = [codec.decode(value) for value in self.tables.tables[cf].values()]
        return [
            replace(row, **{field: shortened(getattr(row, field)) for field in NAMES if hasattr(row, field)})
            for row in decoded
        ]

    @property
    def volumes(self) -> dict[str, VolumeInfo]:
        return {row.volume: row for row in self.rows(VOLUME_TABLE)}

    @property
    def buckets(self) -> dict[tuple[str, str], BucketInfo]:
        return {(row.volume, row.bucket): row for row in self.rows(BUCKET_TABLE)}

    @property
    def keys(self) -> dict[tuple[str, str, str], KeyInfo]:
        return {(row.volume, row.bucket, row.key): row for row in self.rows(KEY_TABLE)}


NAMES = ("volume", "bucket")
LONGER = "-00"


def lengthened(body):
    short = {field: name for field in NAMES if 0 < len(name := getattr(body, field, "")) < MIN_NAME_CHARACTERS}
    return replace(body, **{field: name + LONGER for field, name in short.items()})


def shortened(name):
    return name.removesuffix(LONGER)


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
        self.lost_shards: set[int] = set()
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

    def look_up(self, _read, _shard):
        return None

    def take_lost(self):
        lost, self.lost_shards = self.lost_shards, set()
        return lost

    def renew(self):
        self.renewals += 1

    def close(self):
        self.closed = True


def pipeline_to(cluster: MemoryCluster, policy, *, max_linger_ms=10.0) -> tuple[RequestEngine, MemoryConnection]:
    settings = RequestSettings(
        bootstrap_servers="memory:0", caller="alice", policy=policy, max_linger_ms=max_linger_ms, secret=SECRET
    )
    connection = MemoryConnection(cluster)
    connections = iter([connection])
    """A forked process makes one of its own."""

    def connect(settings, _client_id):
        assert settings.cluster.fault_of("", "brokers memory:0", cluster.brokers_id) is None
        return next(connections, None) or MemoryConnection(cluster)

    return RequestEngine(settings, connect=connect), connection


def client_to(cluster: MemoryCluster, policy=None, *, read_from=()) -> tuple[Client, MemoryConnection]:
    """A client of the twin, with everything but Kafka real."""
    pipeline, connection = pipeline_to(cluster, policy or Policy())
    return Client.over(pipeline, Reads(read_from, deadline_ms=10_000)), connection
