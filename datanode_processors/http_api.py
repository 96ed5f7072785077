"""The HTTP API of a datanode, on Faust's web server: health, status, metrics, and figures to compare replicas by.

Every answer is JSON (metrics apart). Errors are ``{"error": CODE, "message": text}`` with 400 (illegal input) or 503
(not now). The paths have the Object Manager's shape; a pipeline's partition stands in the place of the shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import faust
from faust.web import View

from datanode_processors.errors import BlockError
from datanode_processors.status import DatanodeStatus
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.web import shard_pages
from replicated_db.shell.web.scan_threads import ScansBusy
from schemas.stream_errors import INVALID_REQUEST, OVERLOADED
from transport.web.metrics import CONTENT_TYPE

Json = dict[str, Any]
Answer = tuple[int, Json]


class DatanodeHttpApi:
    """Handlers; :meth:`attach` gives them their paths.

    A store that cannot be read is reported to ``fatal``, which ends the process. Who makes it closes it: what takes
    long runs on threads of its own.
    """

    def __init__(
        self, replicas: Mapping[int, Replica], status: DatanodeStatus, prepare_upgrade: Callable[[], Json],
        fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._replicas = replicas
        self._status = status
        self._prepare_upgrade = prepare_upgrade
        # A pool of its own, because each task takes up to a minute: followers need the event loop's pool to fill gaps.
        self._preparing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare-upgrade")
        self._shard_pages = shard_pages.ShardPages()
        self._fatal = fatal

    def close(self) -> None:
        """Let the threads end behind what is under way."""
        self._shard_pages.close()
        self._preparing.shutdown(wait=False, cancel_futures=True)

    def attach(self, app: faust.App) -> None:
        """Register all pages."""
        pages: dict[str, Callable[..., Awaitable[Answer]]] = {
            "/health": self.health,
            "/status": self.status,
            "/v1/shards/{shard}/digest": partial(self._shard, self._shard_pages.digest),
            "/v1/shards/{shard}/rows": partial(self._shard, self._shard_pages.rows),
            "/v1/shards/{shard}/row": partial(self._shard, self._shard_pages.row),
        }
        for path, handler in pages.items():
            self._page(app, path, handler)

        @app.page("/metrics")
        async def metrics(view: View, request: Any) -> Any:  # noqa: ARG001 - Faust's signature
            return view.text(self._status.metrics(), content_type=CONTENT_TYPE)

        @app.page("/v1/prepare-upgrade")
        class PrepareUpgrade(View):
            async def post(view, request: Any) -> Any:  # noqa: ARG002, N805 - Faust's signature
                status, body = await self._answered(self.prepare_upgrade)
                return view.json(body, status=status)

    def _page(self, app: faust.App, path: str, handler: Callable[..., Awaitable[Answer]]) -> None:
        @app.page(path, name=f"datanode{path}")
        async def page(view: View, request: Any, **parts: str) -> Any:
            status, body = await self._answered(lambda: handler(request.query, **parts))
            return view.json(body, status=status)

    async def _answered(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            return await ask()
        except shard_pages.BadQuery as error:
            return 400, {"error": INVALID_REQUEST, "message": str(error)}
        except ScansBusy as error:
            return 503, {"error": OVERLOADED, "message": str(error)}
        except BlockError as error:
            return 503, {"error": error.code, "message": error.message}
        except StoreFailure as error:
            self._fatal(error)
            raise

    async def health(self, query: Any) -> Answer:  # noqa: ARG002 - every page takes the query
        """Return whether all pipelines here serve."""
        return self._status.health()

    async def status(self, query: Any) -> Answer:  # noqa: ARG002 - every page takes the query
        """Return what this datanode knows of its pipelines, streams and blocks."""
        return 200, self._status.status()

    async def _shard(self, page: Callable[[Replica, Any], Awaitable[Json]], query: Any, shard: str) -> Answer:
        return 200, await page(shard_pages.replica_of(self._replicas, shard), query)

    async def prepare_upgrade(self) -> Answer:
        """Close containers and pipelines through the log, and mark the folder."""
        return 200, await asyncio.get_running_loop().run_in_executor(self._preparing, self._prepare_upgrade)
