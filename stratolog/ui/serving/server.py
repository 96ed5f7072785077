"""The dashboard's HTTP server, on aiohttp. The guard of the nodes' servers stands before it (decisions 0033, 0052).

===========================  =====================================================================================
``GET /``                    the page; ``/assets/...`` its style and script
``GET /events``              server-sent events: the panels whose HTML has changed, once a second
``GET /replica``             what is known of one replica (``log``, ``shard``, ``node``)
``GET /keys``                the keys in which two replicas differ (``shard``, ``node``, ``cf``, ``bucket``)
``GET /log``                 a page of a shard's log (``shard``; ``until`` and ``chain`` for an older one)
``GET /sizes``               a bucket's keys by size (``volume``, ``bucket``)
``GET /number``              the dashboard's number, of which operators' links are made
``POST /drills/{name}``      start a drill (``shard``); ``POST /drills/stop``; ``POST /operator`` proves a key
===========================  =====================================================================================
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any

from aiohttp import web

from schemas.codecs.decimals import decimal_of
from schemas.privilege import ClusterSecret
from stratolog.drills.kit import catalogue
from stratolog.errors import Unavailable, UserError
from stratolog.ui.core.board import board_of
from stratolog.ui.core.judged_tail import ChainMark
from stratolog.ui.core.replica_grid import details_of
from stratolog.ui.core.verdict_book import JudgedReplica
from stratolog.ui.rendering.dialogs import drills_panel, keys_fragment, log_fragment, replica_dialog, sizes_dialog
from stratolog.ui.rendering.markup import rendered
from stratolog.ui.rendering.panels import panels_of
from stratolog.ui.serving.drill_runs import ABOUT_A_SHARD, STARTABLE, DrillRuns
from stratolog.ui.serving.login import LOGIN, DashboardLogin
from stratolog.ui.serving.operator_key import new_number, secret_of_key
from stratolog.ui.watching import questions
from stratolog.ui.watching.watch import ClusterWatch
from transport.web.http_guard import HttpGuard
from transport.web.http_server import HttpServer
from transport.web.listening import CannotListen, listen

TICK_S = 1.0
MAX_VIEWERS = 32
"""Pages that are kept up to date at the same time; one more is refused with 503."""
MAX_QUESTIONS = 4
"""Questions to Kafka and nodes that run at the same time; others wait."""
MAX_NUMBER = 2**53
MAX_BODY_BYTES = 1024
"""No call has a body."""
SEND_TIMEOUT_S = 10.0
"""A page that takes nothing for so long is let go."""
END_TIMEOUT_S = 2.0
"""How long answers under way may take when the dashboard ends."""
ASSETS = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "login.js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class DashboardServer:
    """Serves one cluster's dashboard. Without a ``secret`` nobody can start drills from it."""

    def __init__(self, watch: ClusterWatch, drills: DrillRuns, secret: ClusterSecret | None) -> None:
        self._watch = watch
        self._drills = drills
        self.number = new_number()
        self.key = None if secret is None else secret.link_key(self.number)
        judge = None if self.key is None else secret_of_key(self.key)
        self.tls = watch.settings.tls()
        self._guard = HttpGuard(judge, watch.settings.own_hosts(), re.compile(re.escape(LOGIN)) if self.tls else None)
        self._login = DashboardLogin(self.key, rendered("login.html"))
        self._pool = ThreadPoolExecutor(max_workers=MAX_QUESTIONS, thread_name_prefix="ui-question")
        self._viewers = 0
        self._panels: dict[str, str] = {}
        self._rendered_s = float("-inf")
        self._ended = asyncio.Event()

    def app(self) -> web.Application:
        """Return the application."""
        judges = [self._guard.middleware()]
        if self.tls is not None:
            judges.append(self._login.middleware())
        app = web.Application(middlewares=[*judges, _answered], client_max_size=MAX_BODY_BYTES)
        if self.tls is not None:
            app.router.add_post(LOGIN, self._login.log_in)
        app.add_routes([
            web.get("/", self._page), web.get("/assets/{name}", self._asset), web.get("/events", self._events),
            web.get("/replica", self._replica), web.get("/keys", self._keys), web.get("/log", self._log),
            web.get("/sizes", self._sizes), web.get("/number", self._number), web.post("/operator", self._operator),
            web.post("/drills/stop", self._stop_drill), web.post("/drills/{name}", self._start_drill),
        ])  # fmt: skip
        app.on_response_prepare.append(_add_headers)
        app.on_shutdown.append(self._end)
        return app

    async def _end(self, _: web.Application) -> None:
        self._ended.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- the page ------------------------------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002 - aiohttp's signature
        settings = self._watch.settings
        drills = [catalogue.find(name) for name in STARTABLE]
        return _html(rendered(
            "page.html", cluster=settings.cluster, shards=settings.shards, drills=drills, about_a_shard=ABOUT_A_SHARD
        ))  # fmt: skip

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in ASSETS:
            raise web.HTTPNotFound
        return web.Response(text=_asset_text(name), content_type=ASSETS[name])

    async def _number(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002 - aiohttp's signature
        """Return the number, and whether all places for pages are taken: a browser does not show why it got a 503."""
        return web.json_response({
            "number": self.number, "cluster": self._watch.settings.cluster, "most_pages": MAX_VIEWERS,
            "is_full": self._viewers >= MAX_VIEWERS,
        })  # fmt: skip

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._viewers >= MAX_VIEWERS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_VIEWERS} pages are open already")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self._viewers += 1
        try:
            await response.prepare(request)
            sent: dict[str, str] = {}
            while not self._ended.is_set():
                self._watch.look()
                panels = self._current()
                news = {name: html for name, html in panels.items() if sent.get(name) != html}
                sent = dict(panels)
                message = f"data: {json.dumps(news)}\n\n".encode()
                await asyncio.wait_for(response.write(message), SEND_TIMEOUT_S)
                await self._pause()
        except ConnectionResetError:
            pass  # the page is closed
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # it takes nothing: what waits for it would be kept until it does
        finally:
            self._viewers -= 1
        return response

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._ended.wait(), TICK_S)
        except TimeoutError:
            pass

    def _current(self) -> Mapping[str, str]:
        """Return the panels, made at most once a tick for all pages together."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._rendered_s >= TICK_S * 0.9:
            self._rendered_s = now_s
            seen = self._watch.observed()
            runs = drills_panel(self._drills.desk, self._drills.runs_elsewhere(), seen.now_ms)
            self._panels = {**panels_of(board_of(seen)), "drill-runs": runs}
        return self._panels

    # -- questions -----------------------------------------------------------------------------------------------------

    async def _replica(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        replica = JudgedReplica(query.get("log", ""), _number_in(query, "shard"), query.get("node", ""))
        details = details_of(self._watch.observed(), replica)
        return _html(replica_dialog(details))

    async def _keys(self, request: web.Request) -> web.StreamResponse:
        query, settings = request.query, self._watch.settings
        shard, bucket = _shard_in(query, settings.shards), _number_in(query, "bucket")
        node, cf = query.get("node", ""), query.get("cf", "")
        mine, other, peer = await self._asked(lambda: questions.bucket_rows(settings, shard, node, cf, bucket))
        return _html(keys_fragment(cf, bucket, mine, other, (node, peer)))

    async def _log(self, request: web.Request) -> web.StreamResponse:
        query, settings = request.query, self._watch.settings
        shard = _shard_in(query, settings.shards)
        until = ChainMark(_number_in(query, "until"), query.get("chain", "")) if "until" in query else None
        records, first = await self._asked(lambda: questions.log_page(settings, shard, until))
        return _html(log_fragment(shard, records, first))

    async def _sizes(self, request: web.Request) -> web.StreamResponse:
        query, settings = request.query, self._watch.settings
        volume, bucket = query.get("volume", ""), query.get("bucket", "")
        found = await self._asked(lambda: questions.key_sizes(settings, volume, bucket))
        return _html(sizes_dialog(f"{volume}/{bucket}", found))

    async def _asked(self, question: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, question)

    # -- operators -----------------------------------------------------------------------------------------------------

    async def _operator(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002 - the guard has judged it
        return web.json_response({"operator": True})

    async def _start_drill(self, request: web.Request) -> web.StreamResponse:
        shard = _shard_in(request.query, self._watch.settings.shards) if "shard" in request.query else None
        run = await self._asked(lambda: self._drills.start(request.match_info["name"], shard))
        return web.json_response({"drill": run.name, "number": run.number})

    async def _stop_drill(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002 - aiohttp's signature
        return web.json_response({"stopped": self._drills.stop()})


class BadQuestion(UserError):
    """A parameter is illegal; the message names it."""


def _number_in(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    found = decimal_of(text, MAX_NUMBER)
    if found is None:
        raise BadQuestion(f"{name} {text[:50]!r} is not a number in 0..{MAX_NUMBER}")
    return found


def _shard_in(query: Mapping[str, str], shards: int) -> int:
    if (shard := _number_in(query, "shard")) >= shards:
        raise BadQuestion(f"there is no shard {shard}; there are {shards}")
    return shard


def _asset_text(name: str) -> str:
    return (resources.files("stratolog.ui") / "assets" / name).read_text(encoding="utf-8")


def _html(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html")


@web.middleware
async def _answered(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:  # fmt: skip
    """Say what is wrong with a question, or who does not answer it, in words."""
    try:
        return await handler(request)
    except Unavailable as error:
        return web.json_response({"error": "UNAVAILABLE", "message": str(error)}, status=503)
    except UserError as error:
        return web.json_response({"error": "INVALID_REQUEST", "message": str(error)}, status=400)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


async def serve(server: DashboardServer, host: str, port: int, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; raises Unavailable if the address is taken."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    context = None if server.tls is None else server.tls.server(needs_certificate=False)
    web_server = HttpServer(server.app(), tls=context, end_timeout_s=END_TIMEOUT_S)
    try:
        await web_server.start(listen(host, port, "the dashboard"))
    except CannotListen as error:
        raise Unavailable(str(error)) from error
    ready()
    try:
        await ended.wait()
    finally:
        await web_server.close()
