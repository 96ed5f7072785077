"""The pages of a node's HTTP API for trimming: for operators, and for members among themselves.

``POST /v1/shards/{shard}/durable-position``    any member: where its replica stands, on the disk
``POST /v1/shards/{shard}/trim?do=look|base|trim``    the shard's leader: say how far, log a base, trim

The second takes ``keep_records``, ``keep_ms``, ``leave_behind`` (names, with commas), ``without_audit`` and ``nodes``
(``name=host:port``, with commas). They wait for disks and other nodes, so each runs beside the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import faust
from faust.web import View

from om_processors.errors import OMError
from om_processors.fleet.log_trimming import OMLogTrimming
from om_processors.serving.consistency import NotReadable
from om_processors.serving.http_api import Answer, answered
from om_processors.serving.views import Json
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.trimming.trim_rule import TrimWish
from replicated_db.shell.web.shard_pages import number
from schemas.result_codes import INVALID_REQUEST, NOT_LEADER

MAX_NUMBER = (1 << 63) - 1
LOG_UNAVAILABLE = "LOG_UNAVAILABLE"
"""The brokers did not answer: ask again."""

LOOK, BASE, TRIM = "look", "base", "trim"


class TrimmingApi:
    """Handlers; :meth:`attach` gives them their paths. ``fatal`` gets a store's error and ends the process."""

    def __init__(self, trimming: OMLogTrimming, shards: int, fatal: Callable[[BaseException], None]) -> None:
        self._trimming = trimming
        self._shards = shards
        self._fatal = fatal

    def attach(self, app: faust.App) -> None:
        """Register both pages."""
        for what, handler in (("durable-position", self.durable_position), ("trim", self.trim)):
            self._post(app, what, handler)

    def _post(self, app: faust.App, what: str, handler: Callable[[int, Any], Json]) -> None:
        handle = self._handle

        @app.page(f"/v1/shards/{{shard}}/{what}", name=f"v1/{what}")
        class TrimmingPage(View):
            async def post(view, request: Any, shard: str) -> Any:  # noqa: N805 - Faust's signature
                status, body = await answered(lambda: handle(handler, request.query, shard))
                return view.json(body, status=status)

    async def _handle(self, handler: Callable[[int, Any], Json], query: Any, shard: str) -> Answer:
        if not shard.isdecimal() or int(shard) >= self._shards:
            raise OMError(INVALID_REQUEST, f"there is no shard {shard!r}; there are 0..{self._shards - 1}")
        try:
            return 200, await asyncio.to_thread(partial(handler, int(shard), query))
        except StoreFailure as error:
            self._fatal(error)
            raise
        except LogUnavailable as error:
            raise NotReadable(LOG_UNAVAILABLE, str(error)) from error

    def durable_position(self, shard: int, query: Any) -> Json:  # noqa: ARG002 - every page takes the query
        """Return where this node's replica stands, with everything up to there on the disk."""
        return self._trimming.place(shard).to_json()

    def trim(self, shard: int, query: Any) -> Json:
        """Do what the parameter ``do`` says."""
        do = query.get("do", LOOK)
        if do not in (LOOK, BASE, TRIM):
            raise OMError(INVALID_REQUEST, f"do={do!r} is not {LOOK}, {BASE} or {TRIM}")
        wish, addresses = wish_from(query), addresses_from(query)
        if not self._trimming.leads(shard):
            raise NotReadable(NOT_LEADER, f"this node does not lead shard {shard}: ask its leader")
        if do == BASE:
            return asdict(self._trimming.log_base(shard, addresses))
        act = self._trimming.trim if do == TRIM else self._trimming.look
        return act(shard, wish, addresses).to_json()


def wish_from(query: Any) -> TrimWish:
    """Return what the parameters wish; raises BadQuery."""
    return TrimWish(
        keep_records=number(query, "keep_records", 0, 0, MAX_NUMBER), keep_ms=number(query, "keep_ms", 0, 0, MAX_NUMBER),
        leave_behind=frozenset(filter(None, query.get("leave_behind", "").split(","))),
        without_audit=query.get("without_audit", "false") == "true",
    )  # fmt: skip


def addresses_from(query: Any) -> dict[str, str]:
    """Return the addresses in the parameter ``nodes``; raises OMError."""
    found = {}
    for item in filter(None, query.get("nodes", "").split(",")):
        name, separator, address = item.partition("=")
        if not separator or not name or not address.rpartition(":")[2].isdecimal():
            raise OMError(INVALID_REQUEST, f"nodes: {item!r} is not name=host:port")
        found[name] = address
    return found
