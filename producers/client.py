"""The synchronous client: typed methods, futures and reads (design, sections 4 and 5).

What belongs here: the methods that a user calls. Each method blocks until its request is answered, and raises one of
``producers.errors``. :meth:`Client.submit` sends the same requests without waiting, thousands at a time. The request
engine does retries, deadlines and lingering; :class:`producers.reads.reads.Reads` reads over HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, overload

from producers.blocks.stream_options import StreamOptions
from producers.connecting import open_engine
from producers.errors import StratologError, closed_unanswered
from producers.files.block_reservations import is_own, without_own
from producers.files.key_files import KeyInput, KeyOutput, check_open, create_file, open_file
from producers.files.key_streams import KeyStreams
from producers.reads.leaders_group import find_nodes
from producers.reads.read_views import (
    PAGE_ENTRIES,
    AclView,
    BucketView,
    KeyView,
    ListedBucket,
    ListedVolume,
    SnapshotDiffEntry,
    SnapshotView,
    UsageView,
    VolumeView,
)
from producers.reads.reads import DEFAULT_CONSISTENCY, Consistency, Reads
from producers.reads.snapshot_diffs import OnProgress, SnapshotDiffProgress
from producers.requests import arguments, bodies
from producers.requests.core.calls import MAX_IN_FLIGHT, Done, Outcome
from producers.requests.engine import RequestEngine, make_settings
from producers.requests.keys import block_of, session_of, snapshot_of
from producers.requests.response_future import ResponseFuture
from schemas.access.credentials import Credentials
from schemas.kafka.connection import Brokers
from schemas.privilege import ClusterSecret
from schemas.records.messages import UNLIMITED, CreatedSnapshot, KeySession, RequestBody, Response
from schemas.records.rows import BlockLocation, KeyInfo, SnapshotInfo
from schemas.security.tls import TlsFiles
from schemas.settings.table import CommandSettings
from transport.waiting.deadline import Deadline

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

logger = logging.getLogger("stratolog.client")

MODES = ("rb", "wb")
"""The modes in which a key may be opened."""
CLOSE_TIMEOUT_MS = 30_000
"""How long closing waits for calls in flight, unless the caller says otherwise."""


class Client:
    """A connection to a Stratolog cluster; safe to share between threads, and by forked processes.

    A process that is forked (``multiprocessing``, a server's workers) may use its copy: with the first request there,
    the copy connects anew, under a client id of its own. Keys that are open for reading go on there; one that is open
    for writing, and a response that is awaited, stay the first process's.

    ``bootstrap_servers`` are Kafka's: requests go through the brokers. ``kafka`` are settings of that connection, for
    brokers that want TLS or a login, by librdkafka's names; passwords are in files::

        kafka={"security.protocol": "SASL_SSL", "ssl.ca.location": "ca.pem", "sasl.username": "alice",
               "sasl.password.file": "alice.password"}

    With ``nodes`` (``host:port``) they go straight
    to the shard's leader, and through the brokers, if any are given, only where no leader is reached. Reads ask
    ``nodes``, or else the nodes that the brokers know; if ``read_from`` is given, they ask the nodes at its HTTP
    addresses, in order of preference. ``caller`` is the user on whose behalf requests are made. A call ends within
    ``deadline_ms`` (at most five minutes). ``max_in_flight`` bounds the calls in flight: the next one waits.
    ``max_linger_ms`` bounds how long requests gather under load; with few in flight they never gather. ``streams`` are
    the options of keys that are opened as files. Operators' commands need the cluster's secret, ``cluster_secret``, or
    an administrator's ``credentials``. With credentials every request and every read is signed by their user. With
    ``tls``, nodes and datanodes are spoken with in TLS alone, and must prove who they are: the files name the authority
    that is trusted, and the client's own certificate.
    With a ``tracer``, each call, and each key that is written, is a span of OpenTelemetry, and so is what the nodes do
    for it.

    Raises NotConnected if nobody listens at any broker's address, after a second, or if no broker answers in
    ``connect_timeout_ms``; ValueError or TypeError for wrong settings, naming them, also for nodes at other
    brokers than ``bootstrap_servers``. Waits of more than two seconds are logged by the logger ``stratolog.client``.

    >>> from producers import Client
    >>> with Client("127.0.0.1:9092") as client:  # doctest: +SKIP
    ...     client.create_volume("vol1")
    ...     client.create_bucket("vol1", "bucket1")
    ...     session = client.create_key("vol1", "bucket1", "a/b.txt", size=0)
    ...     client.commit_key("vol1", "bucket1", "a/b.txt", session.session_id, size=0, blocks=[])
    ...     print(client.key_info("vol1", "bucket1", "a/b.txt").info.size)
    0
    """

    def __init__(
        self,
        bootstrap_servers: Brokers = "",
        *,
        kafka: Mapping[str, object] | None = None,
        nodes: Sequence[str] = (),
        caller: str | None = None,
        deadline_ms: int = CommandSettings.request_timeout_ms,
        max_in_flight: int = MAX_IN_FLIGHT,
        read_from: Sequence[str] = (),
        max_linger_ms: float = 10.0,
        connect_timeout_ms: int = 15_000,
        cluster_secret: ClusterSecret | None = None,
        credentials: Credentials | None = None,
        streams: StreamOptions | None = None,
        tracer: Tracer | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        settings = make_settings(
            bootstrap_servers,
            kafka=kafka,
            caller=caller,
            deadline_ms=deadline_ms,
            max_in_flight=max_in_flight,
            max_linger_ms=max_linger_ms,
            connect_timeout_ms=connect_timeout_ms,
            cluster_secret=cluster_secret,
            credentials=credentials,
            nodes=nodes,
            tracer=tracer,
            tls=tls,
        )
        options = arguments.optional("streams", streams, StreamOptions)
        reads = Reads(
            nodes if read_from == () else read_from,
            deadline_ms=deadline_ms,
            find=partial(find_nodes, settings.bootstrap_servers),
            tls=settings.tls,
            credentials=credentials,
        )
        try:
            pipeline = open_engine(settings)
        except BaseException:
            reads.close()
            raise
        self._join(pipeline, reads, options)

    @classmethod
    def over(cls, pipeline: RequestEngine, reads: Reads, streams: StreamOptions | None = None) -> Self:
        """Return a client over an open request engine and reads; the client closes both when it is closed."""
        client = cls.__new__(cls)
        client._join(pipeline, reads, streams)
        return client

    def _join(self, pipeline: RequestEngine, reads: Reads, streams: StreamOptions | None) -> None:
        self.pipeline = pipeline
        self.reads = reads
        self.streams = KeyStreams(reads, streams, pipeline.spans, pipeline.tls, together=pipeline.together)
        """Access to the datanodes, shared by all keys that are opened as files."""
        self.close_timeout_ms = CLOSE_TIMEOUT_MS
        """How long the end of a ``with`` block waits for calls in flight."""
        try:
            reads.follow(pipeline.positions, pipeline.look_up, pipeline.cluster)
        except BaseException:
            self.close(timeout_ms=0)
            raise

    @property
    def client_id(self) -> bytes:
        """The 16 random bytes that name this client."""
        return self.pipeline.client_id

    @property
    def shards(self) -> int:
        """The number of shards of the cluster."""
        return self.pipeline.shards

    @property
    def in_flight(self) -> int:
        """The number of requests without an outcome."""
        return self.pipeline.in_flight

    @property
    def positions(self) -> Mapping[int, int]:
        """The highest index that an answer carried, by shard: where session-consistent reads start."""
        return self.pipeline.positions()

    # Sending

    def submit(self, body: RequestBody) -> Future[Response]:
        """Send a request and return the future of its response; many may be in flight.

        The future's exception is one of ``producers.errors``; it cannot be cancelled. Requests of one volume are
        executed in the order of their submission unless one of them has to be sent again. Raises as
        :meth:`producers.requests.engine.RequestEngine.submit` does.

        >>> from schemas.records.messages import CreateVolume
        >>> futures = [client.submit(CreateVolume(volume=f"vol{n}")) for n in range(9)]  # doctest: +SKIP
        >>> [future.result().status for future in futures]  # doctest: +SKIP
        """
        bodies.request(body)
        future = ResponseFuture()
        future.set_running_or_notify_cancel()

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, StratologError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.pipeline.submit(body, done)
        return future

    def together(self) -> AbstractContextManager[None]:
        """Have the requests that this thread submits in the block leave together, at its end.

        They then reach a leader as one message if they are of one shard, and usually become one entry of its log. Do
        not wait for an answer in the block. If ``max_in_flight`` requests are in flight, the next one is refused at
        once: TooManyInFlight.

        >>> from schemas.records.messages import DeleteKey
        >>> with client.together():  # doctest: +SKIP
        ...     futures = [client.submit(DeleteKey(volume="vol1", bucket="bucket1", key=f"{n}")) for n in range(9)]
        """
        return self.pipeline.together()

    def submit_with(self, body: RequestBody, done: Done) -> None:
        """Send a request; ``done`` is called with the response or the exception. This is cheaper than a future.

        ``done`` runs on the client's own thread: it must be quick and must not block, but may submit.

        >>> from schemas.records.messages import DeleteVolume
        >>> client.submit_with(DeleteVolume(volume="vol1"), print)  # doctest: +SKIP
        """
        self.pipeline.submit(bodies.request(body), done)

    def call(self, body: RequestBody) -> Response:
        """Send a request and wait for its response; raises one of ``producers.errors``.

        >>> from schemas.records.messages import CreateVolume
        >>> client.call(CreateVolume(volume="vol1")).index  # doctest: +SKIP
        17
        """
        return self.submit(body).result()

    # Volumes

    def create_volume(
        self,
        volume: str,
        *,
        owner: str = "",
        quota_in_bytes: int = UNLIMITED,
        quota_in_namespace: int = UNLIMITED,
    ) -> None:
        """Create a volume; an empty owner means the caller. Raises as :meth:`call`.

        >>> client.create_volume("vol1", quota_in_bytes=10**12)  # doctest: +SKIP
        """
        self.call(
            bodies.create_volume(
                volume, owner=owner, quota_in_bytes=quota_in_bytes, quota_in_namespace=quota_in_namespace
            )
        )

    def set_volume_property(
        self,
        volume: str,
        *,
        owner: str | None = None,
        quota_in_bytes: int | None = None,
        quota_in_namespace: int | None = None,
    ) -> None:
        """Change a volume's owner or quotas; None leaves one as it is, -1 lifts a quota. Raises as :meth:`call`.

        >>> client.set_volume_property("vol1", quota_in_namespace=100)  # doctest: +SKIP
        """
        self.call(
            bodies.set_volume_property(
                volume, owner=owner, quota_in_bytes=quota_in_bytes, quota_in_namespace=quota_in_namespace
            )
        )

    def delete_volume(self, volume: str) -> None:
        """Delete an empty volume. Raises as :meth:`call`.

        >>> client.delete_volume("vol1")  # doctest: +SKIP
        """
        self.call(bodies.delete_volume(volume))

    # Buckets

    def create_bucket(
        self,
        volume: str,
        bucket: str,
        *,
        owner: str = "",
        quota_in_bytes: int = UNLIMITED,
        quota_in_namespace: int = UNLIMITED,
    ) -> None:
        """Create a bucket; an empty owner means the caller. Raises as :meth:`call`.

        >>> client.create_bucket("vol1", "bucket1", quota_in_namespace=1000)  # doctest: +SKIP
        """
        self.call(
            bodies.create_bucket(
                volume, bucket, owner=owner, quota_in_bytes=quota_in_bytes, quota_in_namespace=quota_in_namespace
            )
        )

    def set_bucket_property(
        self,
        volume: str,
        bucket: str,
        *,
        owner: str | None = None,
        quota_in_bytes: int | None = None,
        quota_in_namespace: int | None = None,
    ) -> None:
        """Change a bucket's owner or quotas; None leaves one as it is, -1 lifts a quota. Raises as :meth:`call`.

        >>> client.set_bucket_property("vol1", "bucket1", owner="alice")  # doctest: +SKIP
        """
        self.call(
            bodies.set_bucket_property(
                volume, bucket, owner=owner, quota_in_bytes=quota_in_bytes, quota_in_namespace=quota_in_namespace
            )
        )

    def delete_bucket(self, volume: str, bucket: str) -> None:
        """Delete an empty bucket. Raises as :meth:`call`.

        >>> client.delete_bucket("vol1", "bucket1")  # doctest: +SKIP
        """
        self.call(bodies.delete_bucket(volume, bucket))

    def repair_quota(self, volume: str, bucket: str, count: UsageView) -> None:
        """Put a bucket's usage counters right by a ``count`` of :meth:`usage`; a volume's, with an empty ``bucket``.

        What was committed since the count stays counted. Raises as :meth:`call`; INDEX_MOVED if the bucket itself was
        changed or repaired since: count again.

        >>> client.repair_quota("vol1", "bucket1", client.usage("vol1", "bucket1"))  # doctest: +SKIP
        """
        self.call(
            bodies.repair_quota(volume, bucket, asdict(arguments.typed("count", count, UsageView, "a UsageView")))
        )

    # Keys

    def create_key(
        self,
        volume: str,
        bucket: str,
        key: str,
        *,
        size: int,
        replication: str = "RATIS/THREE",
        metadata: Mapping[str, str] | None = None,
    ) -> KeySession:
        """Open a key of an expected size in bytes; the key exists once :meth:`commit_key` commits its session.

        Raises as :meth:`call`.

        >>> client.create_key("vol1", "bucket1", "a/b.txt", size=5).session_id  # doctest: +SKIP
        42
        """
        body = bodies.create_key(volume, bucket, key, size=size, replication=replication, metadata=metadata)
        return session_of(self.call(body))

    def allocate_block(
        self, volume: str, bucket: str, key: str, session_id: int, *, excluded_pipelines: Sequence[str] = ()
    ) -> BlockLocation:
        """Get one more block for an open key. Raises as :meth:`call`.

        >>> client.allocate_block("vol1", "bucket1", "a/b.txt", 42).local_id  # doctest: +SKIP
        """
        body = bodies.allocate_block(volume, bucket, key, session_id, excluded_pipelines=excluded_pipelines)
        return block_of(self.call(body))

    def commit_key(
        self, volume: str, bucket: str, key: str, session_id: int, *, size: int, blocks: Sequence[BlockLocation]
    ) -> None:
        """Make an open key visible, with its final size and blocks. Raises as :meth:`call`.

        >>> session = client.create_key("vol1", "bucket1", "empty", size=0)  # doctest: +SKIP
        >>> client.commit_key("vol1", "bucket1", "empty", session.session_id, size=0, blocks=[])  # doctest: +SKIP
        """
        self.call(bodies.commit_key(volume, bucket, key, session_id, size=size, blocks=blocks))

    def put_key(
        self,
        volume: str,
        bucket: str,
        key: str,
        data: bytes,
        *,
        replication: str = "RATIS/THREE",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Make a small key with its bytes in one request; they are kept in the nodes' tables. Raises as :meth:`call`.

        The cluster says how small it must be: RequestFailed with INLINE_TOO_LARGE if it is larger. :meth:`open` writes
        keys of any size, and small ones by this request.

        >>> client.put_key("vol1", "bucket1", "a/b.txt", b"hello")  # doctest: +SKIP
        """
        self.call(bodies.put_key(volume, bucket, key, data, replication=replication, metadata=metadata))

    def delete_key(self, volume: str, bucket: str, key: str) -> None:
        """Delete a key. Raises as :meth:`call`.

        >>> client.delete_key("vol1", "bucket1", "a/b.txt")  # doctest: +SKIP
        """
        self.call(bodies.delete_key(volume, bucket, key))

    def rename_key(self, volume: str, bucket: str, from_key: str, to_key: str) -> None:
        """Rename a key within its bucket. Raises as :meth:`call`.

        >>> client.rename_key("vol1", "bucket1", "a/b.txt", "a/c.txt")  # doctest: +SKIP
        """
        self.call(bodies.rename_key(volume, bucket, from_key, to_key))

    # Snapshots

    def create_snapshot(self, volume: str, bucket: str, snapshot: str = "") -> CreatedSnapshot:
        """Keep a bucket as it is now under a name; without one the name is made of the time. Raises as :meth:`call`.

        The answer has the snapshot's name and its id, which stays when the snapshot is renamed.

        >>> client.create_snapshot("vol1", "bucket1", "monday").snapshot  # doctest: +SKIP
        'monday'
        """
        return snapshot_of(self.call(bodies.create_snapshot(volume, bucket, snapshot)))

    def delete_snapshot(self, volume: str, bucket: str, snapshot: str) -> None:
        """Give up a snapshot. Its name is free at once; its space is reclaimed soon. Raises as :meth:`call`.

        >>> client.delete_snapshot("vol1", "bucket1", "monday")  # doctest: +SKIP
        """
        self.call(bodies.delete_snapshot(volume, bucket, snapshot))

    def rename_snapshot(self, volume: str, bucket: str, snapshot: str, to: str) -> None:
        """Give a snapshot another name within its bucket. Raises as :meth:`call`.

        >>> client.rename_snapshot("vol1", "bucket1", "monday", "before-the-move")  # doctest: +SKIP
        """
        self.call(bodies.rename_snapshot(volume, bucket, snapshot, to))

    def set_snapshot_properties(self, volume: str, bucket: str, snapshot: str, properties: Mapping[str, str]) -> None:
        """Set properties of a snapshot by name; an empty value removes one, others stay. Raises as :meth:`call`.

        >>> client.set_snapshot_properties("vol1", "bucket1", "monday", {"kept-until": "2027"})  # doctest: +SKIP
        """
        self.call(bodies.set_snapshot_properties(volume, bucket, snapshot, properties))

    # Access

    def add_acl(self, volume: str, bucket: str = "", *, acls: Sequence[str], key: str = "", prefix: str = "") -> None:
        """Add rights to the access control list of a volume, bucket, key or prefix. Raises as :meth:`call`.

        An entry is ``TYPE:NAME:RIGHTS[SCOPE]`` (``schemas.access.acl``).

        >>> client.add_acl("vol1", "bucket1", acls=["user:alice:rl", "group:staff:r[DEFAULT]"])  # doctest: +SKIP
        """
        self.call(bodies.change_acl("ADD", volume, bucket, key, prefix, acls))

    def remove_acl(
        self, volume: str, bucket: str = "", *, acls: Sequence[str], key: str = "", prefix: str = ""
    ) -> None:
        """Take rights out of an access control list. Raises as :meth:`call`.

        >>> client.remove_acl("vol1", "bucket1", acls=["user:alice:l"])  # doctest: +SKIP
        """
        self.call(bodies.change_acl("REMOVE", volume, bucket, key, prefix, acls))

    def set_acl(self, volume: str, bucket: str = "", *, acls: Sequence[str], key: str = "", prefix: str = "") -> None:
        """Replace an access control list. Raises as :meth:`call`.

        >>> client.set_acl("vol1", "bucket1", prefix="logs/", acls=["world::r"])  # doctest: +SKIP
        """
        self.call(bodies.change_acl("SET", volume, bucket, key, prefix, acls))

    def get_acl(
        self, volume: str, bucket: str = "", *, key: str = "", prefix: str = "",
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> AclView:  # fmt: skip
        """Read the access control list and the owner of a volume, bucket, key or prefix.

        >>> client.get_acl("vol1", "bucket1").acls  # doctest: +SKIP
        ['user:alice:r[ACCESS]']
        """
        return self.reads.acl(volume, bucket, key=key, prefix=prefix, consistency=consistency)

    def get_delegation_token(self, renewer: str = "") -> Credentials:
        """Make a token that lets its holder act as this client's user for a day. Raises as :meth:`call`.

        ``renewer`` may renew and cancel it, too.

        >>> token = client.get_delegation_token("scheduler")  # doctest: +SKIP
        >>> worker = Client("127.0.0.1:9092", credentials=token)  # doctest: +SKIP
        """
        return bodies.token_of(self.pipeline.credentials, self.call(bodies.get_delegation_token(renewer)))

    def renew_delegation_token(self, token: Credentials) -> None:
        """Let a delegation token live a day longer, until it is seven days old. Raises as :meth:`call`.

        >>> client.renew_delegation_token(token)  # doctest: +SKIP
        """
        self.call(bodies.renew_delegation_token(token))

    def cancel_delegation_token(self, token: Credentials) -> None:
        """End a delegation token. Raises as :meth:`call`.

        >>> client.cancel_delegation_token(token)  # doctest: +SKIP
        """
        self.call(bodies.cancel_delegation_token(token))

    # Bytes

    @overload
    def open(
        self, path: str, mode: Literal["rb"] = "rb", *, options: StreamOptions | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> KeyInput: ...  # fmt: skip

    @overload
    def open(
        self, path: str, mode: Literal["wb"], *, size: int = 0, replication: str = "RATIS/THREE",
        metadata: Mapping[str, str] | None = None, options: StreamOptions | None = None,
    ) -> KeyOutput: ...  # fmt: skip

    @overload
    def open(
        self, path: str, mode: str, *, size: int = 0, replication: str = "RATIS/THREE",
        metadata: Mapping[str, str] | None = None, options: StreamOptions | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> KeyOutput | KeyInput: ...  # fmt: skip

    def open(
        self, path: str, mode: str = "rb", *, size: int = 0, replication: str = "RATIS/THREE",
        metadata: Mapping[str, str] | None = None, options: StreamOptions | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> KeyOutput | KeyInput:  # fmt: skip
        """Open the key ``/volume/bucket/key`` as a binary file, to read (``rb``) or to write it (``wb``).

        A key that is written becomes visible when its file is closed; if an exception ends the ``with`` block, it does
        not. ``size`` is the expected number of bytes, if it is known. A small key is made by one request when its file
        is closed. Raises one of ``producers.errors``, here and in the file's methods: for a small key, whatever the
        cluster refuses is raised by ``close``.

        >>> with client.open("/vol1/bucket1/a/b.txt", "wb") as file:  # doctest: +SKIP
        ...     file.write(b"hello")
        >>> with client.open("/vol1/bucket1/a/b.txt") as file:  # doctest: +SKIP
        ...     print(file.read())
        b'hello'
        """
        check_open(
            path, size=size, replication=replication, metadata=metadata, options=options, consistency=consistency
        )
        if arguments.choice("mode", mode, MODES) == "wb":
            return create_file(
                self, self.streams, path, size=size, replication=replication, metadata=metadata, options=options
            )
        return open_file(self.reads, self.streams, path, options=options, consistency=consistency)

    # Operators

    def log_digest_base(
        self, shard: int, index: int, *, slots: Sequence[int], sums: Sequence[int], basis: str, force: bool = False
    ) -> None:
        """Restart the digest sums of a shard's log at an index, after a repair (design, section 3).

        Raises as :meth:`call`; INDEX_MOVED if the shard is at another index by now, DIGESTS_DIFFER if its leader has
        other sums. With ``force`` the sums are logged all the same, and every replica that differs is flagged.

        >>> client.log_digest_base(0, 17, slots=[256], sums=[-5], basis="oracle")  # doctest: +SKIP
        """
        self.call(bodies.log_digest_base(shard, index, slots=slots, sums=sums, basis=basis, force=force))

    # Reads

    def volume_info(self, volume: str, *, consistency: Consistency = DEFAULT_CONSISTENCY) -> VolumeView:
        """Read a volume; as :meth:`producers.reads.reads.Reads.volume_info`.

        >>> client.volume_info("vol1").info.owner  # doctest: +SKIP
        """
        return self.reads.volume_info(volume, consistency=consistency)

    def usage(self, volume: str, bucket: str = "") -> UsageView:
        """Have a bucket's keys counted, beside what its counters say; without a bucket, a volume's buckets.

        It takes about a minute for five million keys, and writing goes on. For administrators. Raises as
        :class:`Reads`.

        >>> client.usage("vol1", "bucket1").is_right  # doctest: +SKIP
        True
        """
        return self.reads.usage(volume, bucket)

    def bucket_info(self, volume: str, bucket: str, *, consistency: Consistency = DEFAULT_CONSISTENCY) -> BucketView:
        """Read a bucket; as :meth:`producers.reads.reads.Reads.bucket_info`.

        >>> client.bucket_info("vol1", "bucket1").usage["used_bytes"]  # doctest: +SKIP
        """
        return self.reads.bucket_info(volume, bucket, consistency=consistency)

    def key_info(
        self, volume: str, bucket: str, key: str, *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> KeyView:
        """Read a key; as :meth:`producers.reads.reads.Reads.key_info`.

        >>> client.key_info("vol1", "bucket1", "a/b.txt", consistency="session").info.size  # doctest: +SKIP
        >>> client.key_info("vol1", "bucket1", ".snapshot/snap1/a/b.txt").info.size  # doctest: +SKIP
        """
        return self.reads.key_info(volume, bucket, key, consistency=consistency)

    def key_infos(
        self, volume: str, bucket: str, keys: Sequence[str], *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> list[KeyView | None]:
        """Read many keys of one bucket; as :meth:`producers.reads.reads.Reads.key_infos`.

        >>> client.key_infos("vol1", "bucket1", ["a", "b"])[0].info.size  # doctest: +SKIP
        """
        return self.reads.key_infos(volume, bucket, keys, consistency=consistency)

    def snapshot_info(
        self, volume: str, bucket: str, snapshot: str, *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> SnapshotView:
        """Read a snapshot; as :meth:`producers.reads.reads.Reads.snapshot_info`.

        >>> client.snapshot_info("vol1", "bucket1", "snap1").usage["only_disk_bytes"]  # doctest: +SKIP
        """
        return self.reads.snapshot_info(volume, bucket, snapshot, consistency=consistency)

    def list_volumes(
        self, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[ListedVolume]:  # fmt: skip
        """Iterate over volumes by name; as :meth:`producers.reads.reads.Reads.list_volumes`.

        >>> [found.volume for found in client.list_volumes(prefix="vol")]  # doctest: +SKIP
        """
        return self.reads.volumes(prefix, start_after, limit, consistency).entries()

    def list_buckets(
        self, volume: str, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[ListedBucket]:  # fmt: skip
        """Iterate over a volume's buckets by name; as :meth:`producers.reads.reads.Reads.list_buckets`.

        >>> [(found.bucket, found.usage["used_bytes"]) for found in client.list_buckets("vol1")]  # doctest: +SKIP
        """
        return self.reads.buckets(volume, prefix, start_after, limit, consistency).entries()

    def list_keys(
        self, volume: str, bucket: str, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[KeyInfo]:  # fmt: skip
        """Iterate over a bucket's keys by name; as :meth:`producers.reads.reads.Reads.list_keys`.

        The iterator reads page after page. To show one page at a time, give ``limit``, and as ``start_after`` the last
        name of the previous page.

        >>> [found.key for found in client.list_keys("vol1", "bucket1", prefix="a/", limit=20)]  # doctest: +SKIP
        """
        return self.reads.keys(volume, bucket, prefix, start_after, limit, consistency).entries()

    def list_snapshots(
        self, volume: str, bucket: str, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[SnapshotInfo]:  # fmt: skip
        """Iterate over a bucket's snapshots by name; as :meth:`producers.reads.reads.Reads.list_snapshots`.

        >>> [found.snapshot for found in client.list_snapshots("vol1", "bucket1")]  # doctest: +SKIP
        """
        return self.reads.snapshots(volume, bucket, prefix, start_after, limit, consistency).entries()

    def snapshot_diff(
        self, volume: str, bucket: str, from_snapshot: str, to_snapshot: str | None = None, *,
        page_size: int = PAGE_ENTRIES, on_progress: OnProgress | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[SnapshotDiffEntry]:  # fmt: skip
        """Iterate over what changed in a bucket between two snapshots, or between a snapshot and now (None).

        Deletions come first, then renames, creations and modifications, each by name. The first entry is waited for
        until a node has compared the snapshots; ``on_progress`` is told how far it is. Entries are fetched
        ``page_size`` at a time. Raises one of ``producers.errors``: NotFound if a snapshot is deleted meanwhile.

        >>> [(found.kind, found.key) for found in client.snapshot_diff("vol1", "bucket1", "monday")]  # doctest: +SKIP
        """
        return self.reads.snapshot_diff(
            volume,
            bucket,
            from_snapshot,
            to_snapshot,
            page_size=page_size,
            on_progress=on_progress,
            consistency=consistency,
        ).entries()

    def cancel_snapshot_diff(self, job: str) -> SnapshotDiffProgress:
        """Stop a snapshot diff by its id, as ``on_progress`` is told it.

        Raises NotFound if no node has it, RequestFailed if it has ended.

        >>> client.cancel_snapshot_diff("5b1c0d6c3f8e4c0b8f8a9d1e2f3a4b5c").state  # doctest: +SKIP
        'CANCELLING'
        """
        return self.reads.cancel_snapshot_diff(job)

    # Closing

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> list[RequestBody]:
        """Refuse new calls, wait for those in flight, disconnect; return what is unanswered after ``timeout_ms``.

        The unanswered calls raise OutcomeUnknown. Closing again returns an empty list.

        >>> unanswered = client.close(timeout_ms=1000)  # doctest: +SKIP
        """
        arguments.number("timeout_ms", timeout_ms, 0)
        self.pipeline.check_may_close()
        deadline = Deadline.after_ms(timeout_ms)
        self.streams.release(self, deadline)
        # What the client asked for on its own is not waited for any longer, and is nobody's business.
        unanswered = without_own(self.pipeline.close(deadline, is_own))
        self.streams.close()
        self.reads.close()
        return unanswered

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; raises OutcomeUnknown if requests are unanswered and no other exception ended the block."""
        unanswered = self.close(self.close_timeout_ms)
        if not unanswered:
            return
        closed = closed_unanswered(unanswered)
        if error is None:
            raise closed
        logger.warning("%s", closed)
