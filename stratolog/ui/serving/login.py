"""Who may look at the dashboard of a secure cluster: whoever has an operator's link, or an operator's certificate.

The link is the one that lets a browser start drills (``operator_key``). A browser that opens it without having logged
in gets a small page, whose script sends the key behind ``#`` once. From then on a cookie stands for it, which no script
can read, no other site's page sends along, and no plain connection carries. It is drawn when the dashboard starts, and
ends with it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from schemas.security.certificates import ADMINISTRATORS, PeerIdentity
from transport.web.http_guard import CALLER

COOKIE = "__Host-stratolog-dashboard"
KEY_HEADER = "X-Stratolog-Key"
"""A page of another site cannot send it without asking first, and is not answered."""
LOGIN = "/login"
OPEN = frozenset({"/assets/login.js", "/assets/dashboard.css", LOGIN})
"""What the page needs by which one logs in."""
COOKIE_BYTES = 32


class DashboardLogin:
    """Judges who looks. ``key`` is the operator's; ``page`` is shown to whoever has not logged in."""

    def __init__(self, key: str | None, page: str) -> None:
        self._key = key
        self._page = page
        self._cookie = secrets.token_hex(COOKIE_BYTES)

    def knows(self, request: web.Request) -> bool:
        """Say whether a request is that of an operator."""
        caller = request.get(CALLER)
        if isinstance(caller, PeerIdentity) and caller.role in ADMINISTRATORS:
            return True
        given = request.cookies.get(COOKIE, "")
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self._cookie.encode())

    async def log_in(self, request: web.Request) -> web.StreamResponse:
        """Answer the script of the page: a cookie for the right key."""
        given = request.headers.get(KEY_HEADER, "").encode(errors="surrogateescape")
        if self._key is None or not hmac.compare_digest(given, self._key.encode()):
            raise web.HTTPForbidden(text="that is no key of this dashboard: 'stratolog ui' prints a link with it")
        answer = web.json_response({})
        answer.set_cookie(COOKIE, self._cookie, secure=True, httponly=True, samesite="Strict", path="/")
        return answer

    def middleware(self) -> Any:
        """Return the middleware that stands before all pages."""

        @web.middleware
        async def known(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if request.path in OPEN or self.knows(request):
                return await handler(request)
            if request.path == "/":
                return web.Response(text=self._page, content_type="text/html", status=401)
            return web.json_response({"error": "PERMISSION_DENIED", "message": "log in first"}, status=403)

        return known
