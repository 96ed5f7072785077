"""The asyncio client: the same typed methods, awaited (design, sections 4 and 5).

What belongs here: the bridge between the request engine's thread and an event loop. Outcomes are passed to the loop in
batches: one wake-up serves all outcomes since the last one. Reads run in worker threads of the client.
``build_tools/async_methods.py`` writes the methods that send a request, or read, from those of ``Client``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from producers.blocks.stream_options import StreamOptions
from producers.client import CLOSE_TIMEOUT_MS, MODES, Client, logger
from producers.connecting import open_engine
from producers.errors import CLIENT_CLOSED, ClientClosed, StratologError, closed_unanswered, wrong_process
from producers.files.async_key_files import AsyncKeyFile
from producers.files.block_reservations import is_own, without_own
from producers.files.key_files import KeyInput, KeyOutput, check_open
from producers.reads.leaders_group import find_nodes
from producers.reads.read_views import (
    PAGE_ENTRIES,
    AclView,
    BucketView,
    KeyView,
    ListedBucket,
    ListedVolume,
    Pages,
    Row,
    SnapshotDiffEntry,
    SnapshotView,
    UsageView,
    VolumeView,
)
from producers.reads.reads import DEFAULT_CONSISTENCY, Consistency, Reads
from producers.reads.snapshot_diffs import OnProgress, SnapshotDiffProgress
from producers.requests import arguments, bodies
from producers.requests.core.calls import MAX_IN_FLIGHT, Outcome
from producers.requests.engine import RequestEngine, RequestSettings, make_settings
from producers.requests.keys import block_of, session_of, snapshot_of
from schemas.access.credentials import Credentials
from schemas.kafka.connection import Brokers
from schemas.privilege import ClusterSecret
from schemas.records.messages import UNLIMITED, CreatedSnapshot, KeySession, RequestBody, Response
from schemas.records.rows import BlockLocation, KeyInfo, SnapshotInfo
from schemas.security.tls import TlsFiles
from schemas.settings.table import CommandSettings
from transport.processes import this_process
from transport.waiting.daemon_threads import DaemonThreads
from transport.waiting.deadline import Deadline

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

P = ParamSpec("P")
T = TypeVar("T")

FILE_WORKERS = 16
"""Threads in which the methods of open files run; more open files than threads share them."""
READ_WORKERS = 32
"""Threads in which reads run; further reads wait for one."""


class AsyncClient:
    """A connection to a Stratolog cluster for one event loop, in one process; parameters as :class:`producers.Client`.

    It connects when it is entered (``async with``) or by :meth:`connect`, and raises as ``Client`` does. An
    awaiting task may be cancelled; its request stays in flight, and its outcome is dropped. In a process that is
    forked from the one that connected it, each use raises RequestFailed (WRONG_PROCESS), and closing does nothing.

    >>> import asyncio
    >>> from producers import AsyncClient
    >>> async def main() -> None:
    ...     async with AsyncClient("127.0.0.1:9092") as client:
    ...         await asyncio.gather(*(client.create_volume(f"vol{n}") for n in range(100)))
    >>> asyncio.run(main())  # doctest: +SKIP
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
        open_pipeline: Callable[[RequestSettings], RequestEngine] = open_engine,
    ) -> None:
        self._open_pipeline = open_pipeline
        self._settings: RequestSettings = make_settings(
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
        self._reads = Reads(
            nodes if read_from == () else read_from, deadline_ms=deadline_ms, positions=lambda: self.positions,
            find=partial(find_nodes, self._settings.bootstrap_servers), tls=self._settings.tls, credentials=credentials,
        )  # fmt: skip
        self._process = 0
        """The process that connected."""
        self._pipeline: RequestEngine | None = None
        self._streams = arguments.optional("streams", streams, StreamOptions)
        self._readers = DaemonThreads(READ_WORKERS, "stratolog-read")
        self._closed = False
        self._files: tuple[Client, DaemonThreads] | None = None
        """The object that opens files, and their worker threads; made for the first file."""
        self._room = asyncio.Semaphore(max_in_flight)
        self._outcomes: deque[tuple[asyncio.Future[Response], Outcome]] = deque()
        """Outcomes that the loop has not taken yet; at most as many as calls may be in flight."""
        self._woken = False

    async def connect(self) -> None:
        """Connect, in the running loop; raises NotConnected. Does nothing if connected."""
        self._check_process()
        if self._pipeline is None:
            self._loop = asyncio.get_running_loop()
            pipeline = await self._in_thread(self._open_pipeline, self._settings)
            try:
                await self._in_thread(self._reads.follow, pipeline.positions, pipeline.look_up, pipeline.cluster)
            except BaseException:
                pipeline.close(Deadline.after_ms(0))
                raise
            self._pipeline, self._process = pipeline, this_process()

    def _is_elsewhere(self) -> bool:
        return self._pipeline is not None and self._process != this_process()

    def _check_process(self) -> None:
        if self._is_elsewhere():
            raise wrong_process(
                "this AsyncClient was connected", self._process, this_process(),
                "make one of its own in each process, after the fork",
            )  # fmt: skip

    @property
    def reads(self) -> Reads:
        """Reads from the nodes; raises RequestFailed (WRONG_PROCESS)."""
        self._check_process()
        return self._reads

    @property
    def pipeline(self) -> RequestEngine:
        """The connected request engine; raises RuntimeError before :meth:`connect`, RequestFailed (WRONG_PROCESS)."""
        self._check_process()
        if self._pipeline is None:
            raise RuntimeError("the client is not connected: use it in 'async with', or await connect()")
        return self._pipeline

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
        """The highest index that an answer carried, by shard."""
        return self.pipeline.positions()

    # Sending

    async def submit(self, body: RequestBody) -> asyncio.Future[Response]:
        """Send a request, waiting for room if need be, and return the future of its response.

        >>> from schemas.records.messages import CreateVolume
        >>> future = await client.submit(CreateVolume(volume="vol1"))  # doctest: +SKIP
        """
        bodies.request(body)
        pipeline = self.pipeline
        await self._room.acquire()
        future: asyncio.Future[Response] = self._loop.create_future()
        try:
            pipeline.submit(body, partial(self._done, future))
        except BaseException:
            self._room.release()
            raise
        return future

    async def call(self, body: RequestBody) -> Response:
        """Send a request and wait for its response; raises one of ``producers.errors``.

        >>> from schemas.records.messages import CreateVolume
        >>> (await client.call(CreateVolume(volume="vol1"))).index  # doctest: +SKIP
        17
        """
        return await (await self.submit(body))

    def _done(self, future: asyncio.Future[Response], outcome: Outcome) -> None:
        """Take an outcome, on the engine's thread; wake the loop unless it has been woken for earlier outcomes."""
        self._outcomes.append((future, outcome))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        # The flag is cleared before the deque is emptied, so an outcome that is appended afterwards wakes the loop
        # again.
        self._woken = False
        while self._outcomes:
            future, outcome = self._outcomes.popleft()
            self._room.release()
            if future.cancelled():
                continue
            if isinstance(outcome, StratologError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    # Reading

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As ``asyncio.to_thread``, in threads of the client: neither its close nor the loop's end waits for them."""
        if self._closed:
            raise ClientClosed(CLIENT_CLOSED, "the client is closed")
        step = partial(copy_context().run, partial(call, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._readers, step)

    async def _entries(self, pages: Pages[Row]) -> AsyncIterator[Row]:
        while (entries := await self._in_thread(pages.next_page)) is not None:
            for entry in entries:
                yield entry

    # Bytes

    def open(
        self, path: str, mode: str = "rb", *, size: int = 0, replication: str = "RATIS/THREE",
        metadata: Mapping[str, str] | None = None, options: StreamOptions | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> AsyncKeyFile:  # fmt: skip
        """As :meth:`producers.Client.open`, with ``async with``; at most FILE_WORKERS threads do the work.

        >>> async with client.open("/vol1/bucket1/a/b.txt") as file:  # doctest: +SKIP
        ...     print(await file.read())
        b'hello'
        """
        arguments.choice("mode", mode, MODES)
        check_open(
            path, size=size, replication=replication, metadata=metadata, options=options, consistency=consistency
        )

        def opens() -> KeyOutput | KeyInput:
            return self._file_client()[0].open(
                path, mode, size=size, replication=replication, metadata=metadata, options=options,
                consistency=consistency,
            )  # fmt: skip

        return AsyncKeyFile(opens, lambda: self._file_client()[1], self._check_process)

    def _file_client(self) -> tuple[Client, DaemonThreads]:
        if self._files is None:
            workers = DaemonThreads(FILE_WORKERS, "stratolog-file")
            self._files = Client.over(self.pipeline, self.reads, self._streams), workers
        return self._files

    # Written by build_tools.async_methods from Client's methods: change those, and run it.

    async def create_volume(
        self,
        volume: str,
        *,
        owner: str = "",
        quota_in_bytes: int = UNLIMITED,
        quota_in_namespace: int = UNLIMITED,
    ) -> None:
        """As :meth:`producers.Client.create_volume`."""
        await self.call(
            bodies.create_volume(
                volume, owner=owner, quota_in_bytes=quota_in_bytes, quota_in_namespace=quota_in_namespace
            )
        )

    async def set_volume_property(
        self,
        volume: str,
        *,
        owner: str | None = None,
        quota_in_bytes: int | None = None,
        quota_in_namespace: int | None = None,
    ) -> None:
        """As :meth:`producers.Client.set_volume_property`."""
        await self.call(
            bodies.set_volume_property(
                volume, owner=owner, quota_in_bytes=quota_in_bytes, quota_in_namespace=quota_in_namespace
            )
        )

    async def delete_volume(self, volume: str) -> None:
        """As :meth:`producers.Client.delete_volume`."""
        await self.call(bodies.delete_volume(volume))

    async def create_bucket(
        self,
        volume: str,
        bucket: str,
        *,
        owner: str = "",
        quota_in_bytes: int = UNLIMITED,
        quota_in_namespace: int = UNLIMITED,
    ) -> None:
        """As :meth:`producers.Client.create_bucket`."""
        await self.call(
            bodies.create_bucket(
                volume, bucket, owner=owner, quota_in_bytes=quota_in_bytes, quota_in_namespace=quota_in_namespace
            )
        )

    async def set_bucket_property(
        self,
        volume: str,
        bucket: str,
        *,
        owner: str | None = None,
        quota_in_bytes: int | None = None,
        quota_in_namespace: int | None = None,
    ) -> None:
        """As :meth:`producers.Client.set_bucket_property`."""
        await self.call(
            bodies.set_bucket_property(
                volume, bucket, owner=owner, quota_in_bytes=quota_in_bytes, quota_in_namespace=quota_in_namespace
            )
        )

    async def delete_bucket(self, volume: str, bucket: str) -> None:
        """As :meth:`producers.Client.delete_bucket`."""
        await self.call(bodies.delete_bucket(volume, bucket))

    async def repair_quota(self, volume: str, bucket: str, count: UsageView) -> None:
        """As :meth:`producers.Client.repair_quota`."""
        await self.call(
            bodies.repair_quota(volume, bucket, asdict(arguments.typed("count", count, UsageView, "a UsageView")))
        )

    async def create_key(
        self,
        volume: str,
        bucket: str,
        key: str,
        *,
        size: int,
        replication: str = "RATIS/THREE",
        metadata: Mapping[str, str] | None = None,
    ) -> KeySession:
        """As :meth:`producers.Client.create_key`."""
        body = bodies.create_key(volume, bucket, key, size=size, replication=replication, metadata=metadata)
        return session_of(await self.call(body))

    async def allocate_block(
        self, volume: str, bucket: str, key: str, session_id: int, *, excluded_pipelines: Sequence[str] = ()
    ) -> BlockLocation:
        """As :meth:`producers.Client.allocate_block`."""
        body = bodies.allocate_block(volume, bucket, key, session_id, excluded_pipelines=excluded_pipelines)
        return block_of(await self.call(body))

    async def commit_key(
        self, volume: str, bucket: str, key: str, session_id: int, *, size: int, blocks: Sequence[BlockLocation]
    ) -> None:
        """As :meth:`producers.Client.commit_key`."""
        await self.call(bodies.commit_key(volume, bucket, key, session_id, size=size, blocks=blocks))

    async def put_key(
        self,
        volume: str,
        bucket: str,
        key: str,
        data: bytes,
        *,
        replication: str = "RATIS/THREE",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """As :meth:`producers.Client.put_key`."""
        await self.call(bodies.put_key(volume, bucket, key, data, replication=replication, metadata=metadata))

    async def delete_key(self, volume: str, bucket: str, key: str) -> None:
        """As :meth:`producers.Client.delete_key`."""
        await self.call(bodies.delete_key(volume, bucket, key))

    async def rename_key(self, volume: str, bucket: str, from_key: str, to_key: str) -> None:
        """As :meth:`producers.Client.rename_key`."""
        await self.call(bodies.rename_key(volume, bucket, from_key, to_key))

    async def create_snapshot(self, volume: str, bucket: str, snapshot: str = "") -> CreatedSnapshot:
        """As :meth:`producers.Client.create_snapshot`."""
        return snapshot_of(await self.call(bodies.create_snapshot(volume, bucket, snapshot)))

    async def delete_snapshot(self, volume: str, bucket: str, snapshot: str) -> None:
        """As :meth:`producers.Client.delete_snapshot`."""
        await self.call(bodies.delete_snapshot(volume, bucket, snapshot))

    async def rename_snapshot(self, volume: str, bucket: str, snapshot: str, to: str) -> None:
        """As :meth:`producers.Client.rename_snapshot`."""
        await self.call(bodies.rename_snapshot(volume, bucket, snapshot, to))

    async def set_snapshot_properties(
        self, volume: str, bucket: str, snapshot: str, properties: Mapping[str, str]
    ) -> None:
        """As :meth:`producers.Client.set_snapshot_properties`."""
        await self.call(bodies.set_snapshot_properties(volume, bucket, snapshot, properties))

    async def add_acl(
        self, volume: str, bucket: str = "", *, acls: Sequence[str], key: str = "", prefix: str = ""
    ) -> None:
        """As :meth:`producers.Client.add_acl`."""
        await self.call(bodies.change_acl("ADD", volume, bucket, key, prefix, acls))

    async def remove_acl(
        self, volume: str, bucket: str = "", *, acls: Sequence[str], key: str = "", prefix: str = ""
    ) -> None:
        """As :meth:`producers.Client.remove_acl`."""
        await self.call(bodies.change_acl("REMOVE", volume, bucket, key, prefix, acls))

    async def set_acl(
        self, volume: str, bucket: str = "", *, acls: Sequence[str], key: str = "", prefix: str = ""
    ) -> None:
        """As :meth:`producers.Client.set_acl`."""
        await self.call(bodies.change_acl("SET", volume, bucket, key, prefix, acls))

    async def get_acl(
        self, volume: str, bucket: str = "", *, key: str = "", prefix: str = "",
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> AclView:  # fmt: skip
        """As :meth:`producers.Client.get_acl`."""
        return await self._in_thread(self.reads.acl, volume, bucket, key=key, prefix=prefix, consistency=consistency)

    async def get_delegation_token(self, renewer: str = "") -> Credentials:
        """As :meth:`producers.Client.get_delegation_token`."""
        return bodies.token_of(self.pipeline.credentials, await self.call(bodies.get_delegation_token(renewer)))

    async def renew_delegation_token(self, token: Credentials) -> None:
        """As :meth:`producers.Client.renew_delegation_token`."""
        await self.call(bodies.renew_delegation_token(token))

    async def cancel_delegation_token(self, token: Credentials) -> None:
        """As :meth:`producers.Client.cancel_delegation_token`."""
        await self.call(bodies.cancel_delegation_token(token))

    async def log_digest_base(
        self, shard: int, index: int, *, slots: Sequence[int], sums: Sequence[int], basis: str, force: bool = False
    ) -> None:
        """As :meth:`producers.Client.log_digest_base`."""
        await self.call(bodies.log_digest_base(shard, index, slots=slots, sums=sums, basis=basis, force=force))

    async def volume_info(self, volume: str, *, consistency: Consistency = DEFAULT_CONSISTENCY) -> VolumeView:
        """As :meth:`producers.Client.volume_info`."""
        return await self._in_thread(self.reads.volume_info, volume, consistency=consistency)

    async def usage(self, volume: str, bucket: str = "") -> UsageView:
        """As :meth:`producers.Client.usage`."""
        return await self._in_thread(self.reads.usage, volume, bucket)

    async def bucket_info(
        self, volume: str, bucket: str, *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> BucketView:
        """As :meth:`producers.Client.bucket_info`."""
        return await self._in_thread(self.reads.bucket_info, volume, bucket, consistency=consistency)

    async def key_info(
        self, volume: str, bucket: str, key: str, *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> KeyView:
        """As :meth:`producers.Client.key_info`."""
        return await self._in_thread(self.reads.key_info, volume, bucket, key, consistency=consistency)

    async def key_infos(
        self, volume: str, bucket: str, keys: Sequence[str], *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> list[KeyView | None]:
        """As :meth:`producers.Client.key_infos`."""
        return await self._in_thread(self.reads.key_infos, volume, bucket, keys, consistency=consistency)

    async def snapshot_info(
        self, volume: str, bucket: str, snapshot: str, *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> SnapshotView:
        """As :meth:`producers.Client.snapshot_info`."""
        return await self._in_thread(self.reads.snapshot_info, volume, bucket, snapshot, consistency=consistency)

    def list_volumes(
        self, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> AsyncIterator[ListedVolume]:  # fmt: skip
        """As :meth:`producers.Client.list_volumes`, by ``async for``."""
        return self._entries(self.reads.volumes(prefix, start_after, limit, consistency))

    def list_buckets(
        self, volume: str, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> AsyncIterator[ListedBucket]:  # fmt: skip
        """As :meth:`producers.Client.list_buckets`, by ``async for``."""
        return self._entries(self.reads.buckets(volume, prefix, start_after, limit, consistency))

    def list_keys(
        self, volume: str, bucket: str, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> AsyncIterator[KeyInfo]:  # fmt: skip
        """As :meth:`producers.Client.list_keys`, by ``async for``."""
        return self._entries(self.reads.keys(volume, bucket, prefix, start_after, limit, consistency))

    def list_snapshots(
        self, volume: str, bucket: str, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> AsyncIterator[SnapshotInfo]:  # fmt: skip
        """As :meth:`producers.Client.list_snapshots`, by ``async for``."""
        return self._entries(self.reads.snapshots(volume, bucket, prefix, start_after, limit, consistency))

    def snapshot_diff(
        self, volume: str, bucket: str, from_snapshot: str, to_snapshot: str | None = None, *,
        page_size: int = PAGE_ENTRIES, on_progress: OnProgress | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> AsyncIterator[SnapshotDiffEntry]:  # fmt: skip
        """As :meth:`producers.Client.snapshot_diff`, by ``async for``."""
        return self._entries(
            self.reads.snapshot_diff(
                volume,
                bucket,
                from_snapshot,
                to_snapshot,
                page_size=page_size,
                on_progress=on_progress,
                consistency=consistency,
            )
        )

    async def cancel_snapshot_diff(self, job: str) -> SnapshotDiffProgress:
        """As :meth:`producers.Client.cancel_snapshot_diff`."""
        return await self._in_thread(self.reads.cancel_snapshot_diff, job)

    # Written by hand again.

    # Closing

    async def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> list[RequestBody]:
        """As :meth:`producers.Client.close`."""
        arguments.number("timeout_ms", timeout_ms, 0)
        self._closed = True
        # A thread of its own: all others may be busy.
        closing = DaemonThreads(1, "stratolog-close")
        try:
            return await asyncio.get_running_loop().run_in_executor(closing, self._close, Deadline.after_ms(timeout_ms))
        finally:
            closing.shutdown(wait=False)

    def _close(self, deadline: Deadline) -> list[RequestBody]:
        unanswered: list[RequestBody] = []
        if self._is_elsewhere():
            return unanswered
        if self._files is not None:
            client, workers = self._files
            client.streams.release(client, deadline)
            client.streams.close()
            # A thread that still waits for an answer ends with the calls, and nobody waits for it any longer.
            workers.shutdown(wait=False)
            workers.wait(deadline)
        if self._pipeline is not None:
            unanswered = without_own(self._pipeline.close(deadline, is_own))
        self.reads.close()
        self._readers.shutdown(wait=False)
        return unanswered

    async def __aenter__(self) -> Self:
        """Connect, and return the client itself."""
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; raises OutcomeUnknown if requests are unanswered and no other exception ended the block."""
        unanswered = await self.close()
        if not unanswered:
            return
        closed = closed_unanswered(unanswered)
        if error is None:
            raise closed
        logger.warning("%s", closed)
