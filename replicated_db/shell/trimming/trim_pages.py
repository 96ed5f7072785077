"""The HTTP paths for trimming, for operators and for members among themselves.

``POST /v1/shards/{shard}/durable-position``    any member: where its replica stands, on the disk
``POST /v1/shards/{shard}/trim?do=look|base|trim``    the shard's leader: say how far, log a base, trim

The second takes ``keep_records``, ``keep_ms``, ``leave_behind`` (names, with commas), ``without_audit`` and ``nodes``
(``name=host:port``, with commas). They wait for disks and other processes, so each runs beside the event loop, on
threads of its own: followers need the loop's own threads. Errors are ``{"error", "message"}`` with 400 or 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web

from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.trimming.trim_rule import TrimWish
from replicated_db.shell.trimming.log_trimming import LogTrimming
from replicated_db.shell.web.shard_pages import BadQuery, number
from schemas.codecs.decimals import decimal_of
from schemas.result_codes import INVALID_REQUEST, NOT_LEADER

MAX_NUMBER = (1 << 63) - 1
MAX_SHOWN_CHARACTERS = 100
THREADS = 4
LOG_UNAVAILABLE = "LOG_UNAVAILABLE"
"""The brokers did not answer: ask again."""

LOOK, BASE, TRIM = "look", "base", "trim"

Json = dict[str, Any]
Query = Mapping[str, str]


class _NotLed(Exception):
    """Another process leads the shard, or nobody."""


class TrimPages:
    """Handlers; :meth:`attach` gives them their paths. ``fatal`` gets a store's error and ends the process.

    Who makes them closes them.
    """

    def __init__(self, trimming: LogTrimming, fatal: Callable[[BaseException], None]) -> None:
        self._trimming = trimming
        self._fatal = fatal
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="trim-pages")

    def attach(self, app: web.Application) -> None:
        """Register both pages."""
        for what, handler in (("durable-position", self.durable_position), ("trim", self.trim)):
            app.router.add_post(f"/v1/shards/{{shard}}/{what}", partial(self._handle, handler))

    def close(self) -> None:
        """Let the threads end behind what is under way. Call it when no application serves the pages any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _handle(self, handler: Callable[[int, Query], Json], request: web.Request) -> web.Response:
        text = request.match_info["shard"]
        shard = decimal_of(text)
        if shard is None or not self._trimming.has(shard):
            return _refusal(400, INVALID_REQUEST, f"there is no shard {text[:MAX_SHOWN_CHARACTERS]!r} here")
        loop = asyncio.get_running_loop()
        try:
            return web.json_response(await loop.run_in_executor(self._threads, handler, shard, request.query))
        except BadQuery as error:
            return _refusal(400, INVALID_REQUEST, str(error))
        except _NotLed as error:
            return _refusal(503, NOT_LEADER, str(error))
        except LogUnavailable as error:
            return _refusal(503, LOG_UNAVAILABLE, str(error))
        except StoreFailure as error:
            self._fatal(error)
            raise

    def durable_position(self, shard: int, query: Query) -> Json:  # noqa: ARG002 - every page takes the query
        """Return where this process's replica stands, with everything up to there on the disk."""
        return self._trimming.place(shard).to_json()

    def trim(self, shard: int, query: Query) -> Json:
        """Do what the parameter ``do`` says."""
        do = query.get("do", LOOK)
        if do not in (LOOK, BASE, TRIM):
            raise BadQuery(f"do={do[:MAX_SHOWN_CHARACTERS]!r} is not {LOOK}, {BASE} or {TRIM}")
        wish, addresses = wish_from(query), addresses_from(query)
        if not self._trimming.leads(shard):
            raise _NotLed(f"shard {shard} is not led here: ask its leader")
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
    """Return the addresses in the parameter ``nodes``; raises BadQuery."""
    found = {}
    for item in filter(None, query.get("nodes", "").split(",")):
        name, _, address = item.partition("=")
        if not name or not address.rpartition(":")[2].isdecimal():
            raise BadQuery(f"nodes: {item[:MAX_SHOWN_CHARACTERS]!r} is not name=host:port")
        found[name] = address
    return found


def _refusal(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": code, "message": message}, status=status)
