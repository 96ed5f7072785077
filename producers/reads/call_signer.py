"""Signing calls of HTTP with a user's credentials: an ``auth`` for httpx (decision 0071)."""

from __future__ import annotations

import time
from collections.abc import Generator

import httpx

from schemas.access.credentials import Credentials
from schemas.access.signatures import user_authorization
from schemas.privilege import AUTHORIZATION


class CallSigner(httpx.Auth):
    """Gives each call the header that says who calls; it is good for this call alone, for five minutes."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Sign a call, and send it."""
        target, now_ms = request.url.raw_path.decode("ascii"), time.time_ns() // 1_000_000
        host = request.headers["host"]
        request.headers[AUTHORIZATION] = user_authorization(self._credentials, request.method, host, target, now_ms)
        yield request
