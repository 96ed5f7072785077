"""Calls over HTTP say who makes them, each by itself."""

from __future__ import annotations

import time

import httpx

from producers.reads.call_signer import CallSigner
from schemas.access.credentials import SECRET_BYTES, Credentials
from schemas.access.signatures import presented
from schemas.privilege import AUTHORIZATION

ANN = Credentials("ann:1", bytes(SECRET_BYTES))
MINUTE_MS = 60_000


def test_a_call_is_signed_for_its_method_host_and_target_and_for_now() -> None:
    heard: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(request)
        return httpx.Response(200)

    with httpx.Client(auth=CallSigner(ANN), transport=httpx.MockTransport(answer)) as http:
        http.get("http://om1:9871/v1/volumes/v%2F1", params={"consistency": "stale"})
        http.post("http://om2:9871/v1/snapshot-diffs")
    first, second = (presented(request.headers[AUTHORIZATION]) for request in heard)
    assert first is not None
    assert second is not None
    assert first.is_of(ANN, "GET", "om1:9871", "/v1/volumes/v%2F1?consistency=stale")
    assert second.is_of(ANN, "POST", "om2:9871", "/v1/snapshot-diffs")
    assert not second.is_of(ANN, "GET", "om2:9871", "/v1/snapshot-diffs")
    now_ms = time.time() * 1000
    for one in (first, second):
        assert abs(one.time_ms - now_ms) < 5 * MINUTE_MS
