"""The HTTP paths of the serving side; every process that hosts replicas may serve them.

==== ================================================== ==============================================================
GET  /v1/shards/{shard}/checkpoint                      where the replica stands; what the log must keep (``holds``)
POST /v1/shards/{shard}/checkpoint                      a ``TransferRequest``; the answer is a ``Listing``
GET  /v1/transfers/{transfer}/{digest}?offset=          up to MAX_PIECE_BYTES of a file; an empty body is its end
POST /v1/transfers/{transfer}/release                   the transfer is no longer needed
==== ================================================== ==============================================================

A POST needs the members' proof (``web.http_guard``). So only members get a listing, and with it a transfer's random id.
Checkpoints are made, and files read, on threads of their own: neither on the event loop nor on its executor, on which
followers fill gaps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import web
from xxhash import xxh3_128_hexdigest

from replicated_db.core.bootstrap.listing import (
    DIGEST_HEADER,
    MAX_LISTING_BYTES,
    MAX_NUMBER,
    BadListing,
    request_from,
)
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.bootstrap.transfer_desk import NoSuchTransfer, TransferDesk, TransferRefused
from schemas.codecs.decimals import decimal_of
from schemas.result_codes import INVALID_REQUEST, OVERLOADED

EXPIRE_INTERVAL_S = 30.0
"""How often the desk looks for transfers that nobody reads."""

NO_TRANSFER = "NO_TRANSFER"
MAKING_THREADS = 2
"""Checkpoints that are made and listed at once; others wait. A listing reads every file that has no digest yet."""

READING_THREADS = 2

Found = TypeVar("Found")


class TransferPages:
    """Handlers; :meth:`attach` gives them their paths in an aiohttp application. Who makes them closes them."""

    def __init__(self, desk: TransferDesk) -> None:
        self._desk = desk
        self._making = ThreadPoolExecutor(MAKING_THREADS, thread_name_prefix="transfer-making")
        self._reading = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="transfer-reading")

    def attach(self, app: web.Application) -> None:
        """Register the paths, and the clean-up of transfers that nobody reads."""
        app.router.add_get("/v1/shards/{shard}/checkpoint", self.view)
        app.router.add_post("/v1/shards/{shard}/checkpoint", self.begin)
        app.router.add_get("/v1/transfers/{transfer}/{digest}", self.piece)
        app.router.add_post("/v1/transfers/{transfer}/release", self.release)
        app.cleanup_ctx.append(self._expiring)

    def close(self) -> None:
        """Let the threads end behind what is under way. Call it when no application serves the pages any more."""
        for threads in (self._making, self._reading):
            threads.shutdown(wait=False, cancel_futures=True)

    async def view(self, request: web.Request) -> web.Response:
        """Say where the replica stands."""
        try:
            return _answer(self._desk.view(_number(request.match_info["shard"])))
        except BadListing as error:
            return _refusal(400, INVALID_REQUEST, error)
        except NoSuchTransfer as error:
            return _refusal(404, NO_TRANSFER, error)

    async def begin(self, request: web.Request) -> web.Response:
        """Take a checkpoint, and list it."""
        try:
            shard = _number(request.match_info["shard"])
            asked = request_from(await _json(request))
            if asked.shard != shard:
                raise BadListing(f"shard: {asked.shard}, but the path says {shard}")
            listing = await _on(self._making, self._desk.begin, asked)
            return _answer(listing.to_json())
        except BadListing as error:
            return _refusal(400, INVALID_REQUEST, error)
        except NoSuchTransfer as error:
            return _refusal(404, NO_TRANSFER, error)
        except TransferRefused as error:
            return _refusal(503 if error.again else 409, OVERLOADED if error.again else INVALID_REQUEST, error)
        except StoreFailure as error:
            return _refusal(503, OVERLOADED, error)

    async def piece(self, request: web.Request) -> web.Response:
        """Send a piece of a file, when the throttle lets it."""
        try:
            parts = request.match_info
            offset = _number(request.query.get("offset", "0"))
            found = await _on(self._reading, self._desk.piece, parts["transfer"], parts["digest"], offset)
        except BadListing as error:
            return _refusal(400, INVALID_REQUEST, error)
        except NoSuchTransfer as error:
            return _refusal(404, NO_TRANSFER, error)
        except StoreFailure as error:
            return _refusal(503, OVERLOADED, error)
        if (wait_s := self._desk.wait_s(len(found))) > 0:
            await asyncio.sleep(wait_s)
        return web.Response(body=found, content_type="application/octet-stream")

    async def release(self, request: web.Request) -> web.Response:
        """End a transfer."""
        await _on(self._reading, self._desk.release, request.match_info["transfer"])
        return web.json_response({})

    async def _expiring(self, _: web.Application) -> Any:
        task = asyncio.create_task(self._expire())
        yield
        task.cancel()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_S)
            await _on(self._reading, self._desk.expire)


async def _on(threads: ThreadPoolExecutor, call: Callable[..., Found], *arguments: Any) -> Found:
    return await asyncio.get_running_loop().run_in_executor(threads, call, *arguments)


def _number(text: str) -> int:
    found = decimal_of(text, MAX_NUMBER)
    if found is None:
        raise BadListing(f"{text[:40]!r} is not a number in 0..{MAX_NUMBER}")
    return found


async def _json(request: web.Request) -> Any:
    pieces, size = [], 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > MAX_LISTING_BYTES:
            raise BadListing(f"the request has more than {MAX_LISTING_BYTES} bytes")
        pieces.append(piece)
    try:
        return json.loads(b"".join(pieces))
    except (ValueError, RecursionError) as error:
        raise BadListing(f"the request is no JSON: {error}") from error


def _answer(record: Any) -> web.Response:
    body = json.dumps(record).encode()
    return web.Response(
        body=body, content_type="application/json", headers={DIGEST_HEADER: xxh3_128_hexdigest(body)}
    )  # fmt: skip


def _refusal(status: int, code: str, error: Exception) -> web.Response:
    return web.json_response({"error": code, "message": str(error)}, status=status)
