"""The pages of a node's HTTP API that move leaders (``lending``): for operators, and for nodes among themselves.

``POST /v1/shards/{shard}/transfer?node=&address=`` goes to the shard's owner. The owners send the others:
``GET fitness``, ``POST borrow``, ``POST renew``, ``POST give-back``, each with ``owner=``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import faust
from faust.web import View

from om_processors.errors import OMError
from om_processors.leading.leadership import Leadership
from om_processors.namespace.names import shown
from om_processors.serving.http_api import Answer, answered
from om_processors.serving.views import Json
from replicated_db.core.applying.replica import Replica
from schemas.codecs.decimals import decimal_of
from schemas.result_codes import INVALID_REQUEST


class LeadershipApi:
    """Handlers; :meth:`attach` gives them their paths.

    They wait for drains and claims, so each runs beside the event loop.
    """

    def __init__(self, leadership: Leadership, replicas: dict[int, Replica]) -> None:
        self._leadership = leadership
        self._replicas = replicas

    def attach(self, app: faust.App) -> None:
        """Register all pages."""
        calls: dict[str, tuple[Callable[..., Json], tuple[str, ...]]] = {
            "transfer": (self._leadership.transfer, ("node", "address")),
            "borrow": (self._leadership.borrow, ("owner",)),
            "renew": (self._leadership.renew, ("owner",)),
            "give-back": (self._leadership.give_back, ("owner",)),
        }
        for what, (call, parameters) in calls.items():
            self._post(app, what, call, parameters)

        @app.page("/v1/shards/{shard}/fitness")
        async def fitness(view: View, request: Any, shard: str) -> Any:  # noqa: ARG001 - Faust's signature
            return view.json(await asyncio.to_thread(self._leadership.fitness))

    def _post(self, app: faust.App, what: str, call: Callable[..., Json], parameters: tuple[str, ...]) -> None:
        handle = self._handle

        @app.page(f"/v1/shards/{{shard}}/{what}", name=f"v1/{what}")
        class ChangePage(View):
            async def post(view, request: Any, shard: str) -> Any:  # noqa: N805 - Faust's signature
                status, body = await answered(lambda: handle(call, parameters, request.query, shard))
                return view.json(body, status=status)

    async def _handle(self, call: Callable[..., Json], parameters: tuple[str, ...], query: Any, shard: str) -> Answer:
        number = decimal_of(shard)
        if number is None or number not in self._replicas:
            raise OMError(INVALID_REQUEST, f"there is no shard {shown(shard)}; there are 0..{len(self._replicas) - 1}")
        for name in parameters:
            if not query.get(name):
                raise OMError(INVALID_REQUEST, f"the parameter {name!r} is missing")
        return 200, await asyncio.to_thread(partial(call, number, *(query[name] for name in parameters)))
