"""The HTTP API of a node, on Faust's web server: reads at a chosen consistency, status, health, metrics, digests.

Every answer is JSON, except metrics. Errors are ``{"error": CODE, "message": text}`` with 400 (illegal input), 404 (no
such thing) or 503 (not now: ask again, here or elsewhere). Paths and parameters: docs/architecture.md.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import faust
from faust.web import View

from om_processors.errors import OMError
from om_processors.identity.readers import question_of, reader_in
from om_processors.identity.token_issuer import BlockTokenIssuer
from om_processors.namespace.access import (
    Caller,
    require_on_bucket,
    require_on_key,
    require_on_session,
    require_on_volume,
)
from om_processors.namespace.context import ReadView
from om_processors.namespace.names import (
    SNAPSHOT_INDICATOR,
    check_bucket_name,
    check_key_name,
    check_volume_name,
)
from om_processors.serving import queries
from om_processors.serving.consistency import (
    LINEARIZABLE,
    READ_DEADLINE_S,
    SESSION,
    STALE,
    Consistency,
    NotReadable,
    parse_session,
)
from om_processors.serving.node_status import NodeStatus
from om_processors.serving.snapshot_reads import MAX_SNAPSHOT_READS, SnapshotReads
from om_processors.serving.views import Json
from om_processors.snapshots.core.snapshot_paths import place_of
from om_processors.snapshots.open_snapshots import SnapshotsBusy
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.web import shard_pages
from replicated_db.shell.web.scan_threads import MAX_SCANS, ScansBusy, ScanThreads
from schemas.access.acl import LIST, READ
from schemas.access.block_tokens import READ_BLOCK, WRITE_BLOCK
from schemas.records.rows import NO_KEY
from schemas.result_codes import INVALID_REQUEST, OVERLOADED, PERMISSION_DENIED
from schemas.sharding import shard_of
from transport.waiting.deadline import Deadline
from transport.web.metrics import CONTENT_TYPE

Answer = tuple[int, Json]

MAX_SESSION_ID = 2**63 - 1
COUNT_PAUSE_S = 0.001
"""Pause of a count of a bucket's keys, each quota.PAUSE_ROWS rows: what else the process does goes on."""
MAX_LISTINGS = 256
"""Most listings that run or wait."""


class OMHttpApi:
    """Handlers; :meth:`attach` gives them their paths. ``fatal`` gets a store's error and ends the process.

    Who makes it closes it: what takes long runs on threads of its own.
    """

    def __init__(
        self, replicas: dict[int, Replica], consistency: Consistency, status: NodeStatus, snapshots: SnapshotReads,
        fatal: Callable[[BaseException], None], block_tokens: BlockTokenIssuer | None = None,
    ) -> None:  # fmt: skip
        """``block_tokens`` makes the tokens of locations; None: there are none."""
        self._block_tokens = block_tokens
        self._fatal = fatal
        self._replicas = replicas
        self._consistency = consistency
        self._status = status
        self._snapshots = snapshots
        self._shard_pages = shard_pages.ShardPages()
        # A page of large rows takes too long for the event loop, and the first read of a snapshot opens its database.
        self._listings = ScanThreads("listing", MAX_LISTINGS)
        self._snapshot_reads = ScanThreads("read of a snapshot", MAX_SNAPSHOT_READS)
        self._counts = ScanThreads("count of a bucket", MAX_SCANS)

    def close(self) -> None:
        """Let the threads end behind the reads under way."""
        self._shard_pages.close()
        self._listings.close()
        self._snapshot_reads.close()
        self._counts.close()

    def attach(self, app: faust.App) -> None:
        """Register all pages."""
        for path, handler in self._pages().items():
            _page(app, path, partial(self._or_stop, handler))

        @app.page("/metrics")
        async def metrics(view: View, request: Any) -> Any:  # noqa: ARG001 - Faust's signature
            return view.text(self._status.metrics(), content_type=CONTENT_TYPE)

        @app.page("/v1/shards/{shard}/read-index")
        class ReadIndexPage(View):
            async def post(view, request: Any, shard: str) -> Any:  # noqa: ARG002, N805 - Faust's signature
                status, body = await answered(lambda: self.read_index(shard))
                return view.json(body, status=status)

    async def _or_stop(self, handler: Callable[..., Awaitable[Answer]], query: Any, **parts: str) -> Answer:
        try:
            return await handler(query, **parts)
        except StoreFailure as error:
            self._fatal(error)
            raise

    def _pages(self) -> dict[str, Callable[..., Awaitable[Answer]]]:
        return {
            "/health": self.health,
            "/status": self.status,
            "/v1/usage": self.usage,
            "/v1/volumes": self.volumes,
            "/v1/volumes/{volume}": self.volume,
            "/v1/volumes/{volume}/buckets": self.buckets,
            "/v1/volumes/{volume}/buckets/{bucket}": self.bucket,
            "/v1/volumes/{volume}/buckets/{bucket}/keys": self.keys,
            "/v1/volumes/{volume}/buckets/{bucket}/key": self.key,
            "/v1/volumes/{volume}/buckets/{bucket}/open-key": self.open_key,
            "/v1/volumes/{volume}/buckets/{bucket}/snapshots": self.snapshots,
            "/v1/volumes/{volume}/buckets/{bucket}/snapshots/{snapshot}": self.snapshot,
            "/v1/shards/{shard}/digest": self.digest,
            "/v1/shards/{shard}/rows": self.rows,
            "/v1/shards/{shard}/row": self.row,
            "/v1/shards/{shard}/count": self.count,
        }

    # -- reads -----------------------------------------------------------------------------------------------------

    async def volumes(self, query: Any) -> Answer:
        """List the volumes of all shards: a snapshot per shard only."""
        prefix, start_after, limit = _page_of(query)
        listings: list[Json] = []
        positions: dict[str, int] = {}
        max_bytes = queries.MAX_PAGE_BYTES // len(self._replicas)
        for shard in self._replicas:
            listing, position = await self._read(
                shard, query,
                lambda view: queries.list_volumes(view, prefix, start_after, limit, max_bytes, reader_in(query)),
                self._listings,
            )  # fmt: skip
            listings.append(listing)
            positions |= position
        return 200, {**queries.merge_listings(listings, limit), "positions": positions}

    async def volume(self, query: Any, volume: str) -> Answer:
        """Return a volume."""
        check_volume_name(volume)
        allow = partial(require_on_volume, volume=volume, right=READ)
        return await self._of_volume(volume, query, lambda view: queries.volume_info(view, volume), allow)

    async def usage(self, query: Any) -> Answer:
        """Count the keys of ``bucket``, or the buckets of ``volume``, beside what the counters say. It takes long.

        For members and administrators: no path of a user's (``identity/readers.py``).
        """
        volume, bucket = query.get("volume", ""), query.get("bucket", "")
        check_volume_name(volume)
        ask = partial(_usage, volume, bucket)
        return await self._of_volume(volume, query, ask, None, self._counts)

    async def buckets(self, query: Any, volume: str) -> Answer:
        """List a volume's buckets."""
        page = _page_of(query)
        check_volume_name(volume)
        allow = partial(require_on_volume, volume=volume, right=LIST)
        ask = partial(_buckets, volume, page)
        return await self._of_volume(volume, query, ask, allow, self._listings)

    async def bucket(self, query: Any, volume: str, bucket: str) -> Answer:
        """Return a bucket."""
        allow = _on_bucket(volume, bucket, READ)
        return await self._of_volume(volume, query, lambda view: queries.bucket_info(view, volume, bucket), allow)

    async def keys(self, query: Any, volume: str, bucket: str) -> Answer:
        """List a bucket's keys, or those of a snapshot if the prefix begins with ``.snapshot/``."""
        prefix, start_after, limit = page = _page_of(query)
        place = place_of(prefix)
        allow = _on_bucket(volume, bucket, LIST)
        if place is None or prefix == SNAPSHOT_INDICATOR:  # keys of the bucket may begin so, and go on
            return await self._of_volume(volume, query, partial(_keys, volume, bucket, page), allow, self._listings)
        ask = partial(self._snapshots.keys, self._shard_of(volume), volume, bucket, place, start_after, limit)
        return await self._of_volume(volume, query, ask, allow, self._snapshot_reads)

    async def key(self, query: Any, volume: str, bucket: str) -> Answer:
        """Return a key, or one of a snapshot if its name begins with ``.snapshot/``.

        With ``bytes=true`` the answer has an inline key's bytes, too; with ``tokens=true``, block tokens to read it.
        """
        status, answer = await self._key(query, volume, bucket)
        return status, self._with_tokens(query, answer, READ_BLOCK)

    async def open_key(self, query: Any, volume: str, bucket: str) -> Answer:
        """Return the blocks of a key that is being written, and block tokens to write them; for its session's user.

        Without a name, those of a reservation.
        """
        name, session_id = query.get("name", NO_KEY), shard_pages.number(query, "session_id", 0, 0, MAX_SESSION_ID)
        check_place(volume, bucket)
        if name != NO_KEY:
            check_key_name(name)
        allow = partial(require_on_session, volume=volume, bucket=bucket, key=name, session_id=session_id)
        ask = partial(queries.open_key_blocks, volume=volume, bucket=bucket, key=name, session_id=session_id)
        status, answer = await self._of_volume(volume, query, ask, allow)
        return status, self._with_tokens(query, answer, READ_BLOCK | WRITE_BLOCK)

    def _with_tokens(self, query: Any, answer: Json, operations: int) -> Json:
        """Return a key's answer with tokens for its blocks, in their order, if they are asked for and there are any.

        Raises NotReadable if another node is to be asked for them.
        """
        if self._block_tokens is None or query.get("tokens", "false") != "true":
            return answer
        if trouble := self._block_tokens.trouble():
            raise NotReadable("REPLICA_FLAGGED", trouble)
        return {**answer, "block_tokens": self._block_tokens.tokens(answer["blocks"], operations)}

    async def _key(self, query: Any, volume: str, bucket: str) -> Answer:
        name = query.get("name", "")
        with_bytes = query.get("bytes", "false") == "true"
        place = place_of(name)
        if place is None:
            check_place(volume, bucket)
            check_key_name(name)
            allow = partial(require_on_key, volume=volume, bucket=bucket, key=name, right=READ)
            ask = partial(queries.key_info, volume=volume, bucket=bucket, key=name, with_bytes=with_bytes)
            return await self._of_volume(volume, query, ask, allow)
        ask = partial(
            self._snapshots.key, self._shard_of(volume), volume, bucket, place, with_bytes=with_bytes,
            reader=reader_in(query),
        )  # fmt: skip
        return await self._of_volume(volume, query, ask, None, self._snapshot_reads)

    async def snapshots(self, query: Any, volume: str, bucket: str) -> Answer:
        """List a bucket's active snapshots."""
        page = _page_of(query)
        ask = partial(_snapshots, volume, bucket, page)
        return await self._of_volume(volume, query, ask, _on_bucket(volume, bucket, LIST), self._listings)

    async def snapshot(self, query: Any, volume: str, bucket: str, snapshot: str) -> Answer:
        """Return a snapshot, with what it takes on this node's disk."""
        ask = partial(self._snapshots.info, self._shard_of(volume), volume, bucket, snapshot)
        return await self._of_volume(volume, query, ask, _on_bucket(volume, bucket, READ), self._snapshot_reads)

    def _shard_of(self, volume: str) -> int:
        return shard_of(volume, len(self._replicas))

    async def _of_volume(
        self, volume: str, query: Any, ask: Callable[[ReadView], Json], allow: Callable[..., None] | None,
        threads: ScanThreads | None = None,
    ) -> Answer:  # fmt: skip
        """Answer from a snapshot of a shard, once ``allow`` has let the reader pass there (None: ``ask`` judges)."""
        reader = reader_in(query)
        if reader is not None and allow is not None:
            ask = partial(_allowed, allow, reader, ask)
        answer, positions = await self._read(self._shard_of(volume), query, ask, threads)
        return 200, {**answer, "positions": positions}

    async def _read(
        self, shard: int, query: Any, ask: Callable[[ReadView], Json], threads: ScanThreads | None = None
    ) -> tuple[Json, dict[str, int]]:
        """Query a snapshot of a shard, on ``threads`` if that takes long."""
        consistency = query.get("consistency", LINEARIZABLE)
        if consistency not in (LINEARIZABLE, SESSION, STALE):
            raise OMError(INVALID_REQUEST, f"consistency {consistency!r} is not linearizable, session or stale")
        await self._consistency.ready(shard, consistency, parse_session(query.get("session", "")))
        position, _, snapshot = self._replicas[shard].snapshot()
        positions = {str(shard): position.index}
        try:
            self._consistency.refuse_flagged(shard)
            if threads is None:
                return ask(snapshot), positions
        except BaseException:
            threads = None
            raise
        finally:
            if threads is None:
                snapshot.close()
        return await threads.run(snapshot, ask), positions

    # -- operations ------------------------------------------------------------------------------------------------

    async def health(self, query: Any) -> Answer:  # noqa: ARG002 - every page takes the query
        """Say whether this node serves."""
        return self._status.health()

    async def status(self, query: Any) -> Answer:  # noqa: ARG002 - every page takes the query
        """Return this node's state of its shards."""
        return 200, self._status.status()

    async def read_index(self, shard: str) -> Answer:
        """Return a read index; only the shard's leader can."""
        deadline = Deadline.after_s(READ_DEADLINE_S)
        offset, record_hash = await self._consistency.own_read_index(self._replica(shard).identity.shard, deadline)
        return 200, {"offset": offset, "hash": record_hash}

    async def digest(self, query: Any, shard: str) -> Answer:
        """Return the incremental digest, and with ``scrub=true`` that of a full scan."""
        return 200, await self._shard_pages.digest(self._replica(shard), query)

    async def rows(self, query: Any, shard: str) -> Answer:
        """Return key and hash of the rows of one digest bucket."""
        return 200, await self._shard_pages.rows(self._replica(shard), query)

    async def row(self, query: Any, shard: str) -> Answer:
        """Return one row of any family."""
        return 200, await self._shard_pages.row(self._replica(shard), query)

    async def count(self, query: Any, shard: str) -> Answer:
        """Return how many rows a family has, up to a limit."""
        return 200, await self._shard_pages.count(self._replica(shard), query)

    def _replica(self, shard: str) -> Replica:
        return shard_pages.replica_of(self._replicas, shard)


def _allowed(allow: Callable[..., None], reader: Caller, ask: Callable[[ReadView], Json], view: ReadView) -> Json:
    allow(view, reader)
    return ask(view)


def _on_bucket(volume: str, bucket: str, right: int) -> Callable[..., None]:
    """Return the question for a right on a bucket; raises OMError for illegal names."""
    check_place(volume, bucket)
    return partial(require_on_bucket, volume=volume, bucket=bucket, right=right)


def check_place(volume: str, bucket: str) -> None:
    """Raise OMError for illegal names."""
    check_volume_name(volume)
    check_bucket_name(bucket)


def _buckets(volume: str, page: tuple[str, str, int], view: ReadView) -> Json:
    return queries.list_buckets(view, volume, *page)


def _usage(volume: str, bucket: str, view: ReadView) -> Json:
    return queries.usage(view, volume, bucket, partial(time.sleep, COUNT_PAUSE_S))


def _keys(volume: str, bucket: str, page: tuple[str, str, int], view: ReadView) -> Json:
    return queries.list_keys(view, volume, bucket, *page)


def _snapshots(volume: str, bucket: str, page: tuple[str, str, int], view: ReadView) -> Json:
    return queries.list_snapshots(view, volume, bucket, *page)


def _page_of(query: Any) -> tuple[str, str, int]:
    limit = shard_pages.number(query, "limit", queries.DEFAULT_LIMIT, 1, queries.MAX_LIMIT)
    return query.get("prefix", ""), query.get("start_after", ""), limit


async def answered(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Translate refusals to HTTP; anything else is a defect and becomes Faust's 500, with its traceback in the log."""
    try:
        return await ask()
    except OMError as error:
        status = 403 if error.status == PERMISSION_DENIED else 404 if error.status.endswith("_NOT_FOUND") else 400
        return status, {"error": error.status, "message": error.message}
    except shard_pages.BadQuery as error:
        return 400, {"error": INVALID_REQUEST, "message": str(error)}
    except NotReadable as error:
        return 503, {"error": error.code, "message": str(error)}
    except (ScansBusy, SnapshotsBusy) as error:
        return 503, {"error": OVERLOADED, "message": str(error)}


def _page(app: faust.App, path: str, handler: Callable[..., Awaitable[Answer]]) -> None:
    @app.page(path, name=f"v1{path}")
    async def page(view: View, request: Any, **parts: str) -> Any:
        status, body = await answered(lambda: handler(question_of(request), **parts))
        return view.json(body, status=status)
