"""How signatures travel: in the key of a record of ``om.requests``, in a KEYED frame, in a header of HTTP. Pure.

A record's value, be it a request or an envelope of one client's requests, has one signature. The record's key::

    A1 | length of the token, 1 byte | token, ASCII | HMAC-SHA256, 32 bytes | the rest

The signature covers the value and the *rest*: what the key of an unsigned record would be (where its trace is). The
requests themselves do not change by it. So a retry is the same bytes, in whichever record, and retry rows know it.

A call of HTTP has ``Authorization: Stratolog-User TOKEN TIME HEX``: HMAC-SHA256 over method, ``Host``, the path with
its query, and the time in ms since the epoch, which may be MAX_CLOCK_SKEW_MS away.
"""

from __future__ import annotations

import hmac
import re
from typing import Any

from schemas.access.credentials import MAX_TOKEN_CHARACTERS, Credentials, TokenName, parse_token
from schemas.records.record import record

USER_SCHEME = "Stratolog-User"
MAX_CLOCK_SKEW_MS = 5 * 60_000
"""How far the clocks of a caller of HTTP and of a node may differ; a request's time has the same bound."""

MAX_REST_BYTES = 255
"""Most bytes behind a signature in a key: what is signed has their number in one byte."""

_MARK = 0xA1
"""No ASCII, so that no ``traceparent`` begins with it."""
_MAC_BYTES = 32
_HEADER = re.compile(rf"{USER_SCHEME} ([!-~]{{1,{MAX_TOKEN_CHARACTERS}}}) ([0-9]{{1,15}}) ([0-9a-f]{{64}})")


class Seal:
    """The signature of a record: what its key says, and the ``value`` that was signed.

    ``finding`` is for whoever checks it: the requests of an envelope share one seal.
    """

    __slots__ = ("finding", "mac", "rest", "token", "value")

    def __init__(self, token: str, mac: bytes, rest: bytes, value: bytes) -> None:
        self.token, self.mac, self.rest, self.value = token, mac, rest, value
        self.finding: Any = None

    def is_of(self, credentials: Credentials) -> bool:
        """Say whether the credentials made the signature."""
        return hmac.compare_digest(credentials.request_mac(self.rest, self.value), self.mac)


def sealed_key(credentials: Credentials, value: bytes, rest: bytes | None = None) -> bytes:
    """Return the key of a record with this value; ``rest`` is the key that it would have unsigned."""
    token, inner = credentials.token.encode(), rest or b""
    return bytes((_MARK, len(token))) + token + credentials.request_mac(inner, value) + inner


def seal_of(key: bytes | None, value: bytes) -> Seal | None:
    """Return the signature in a record's key; None if there is none.

    >>> from schemas.access.credentials import Credentials
    >>> mine = Credentials("alice:17", bytes(32))
    >>> seal_of(sealed_key(mine, b"request"), b"request").is_of(mine)
    True
    >>> seal_of(bytes(32), b"request") is None
    True
    """
    if key is None or len(key) < 2 or key[0] != _MARK or not key[1] or len(key) < 2 + key[1] + _MAC_BYTES:
        return None
    end = 2 + key[1]
    if len(key) > end + _MAC_BYTES + MAX_REST_BYTES:  # Kafka bounds no key: whoever made it did not sign by these rules
        return None
    try:
        token = key[2:end].decode("ascii")
    except UnicodeDecodeError:
        return None
    return Seal(token, key[end : end + _MAC_BYTES], key[end + _MAC_BYTES :], value)


@record
class Presented:
    """What a header Authorization of a user says."""

    name: TokenName
    time_ms: int
    mac: bytes

    def is_of(self, credentials: Credentials, method: str, host: str, target: str) -> bool:
        """Say whether the credentials made the signature of a call."""
        return hmac.compare_digest(credentials.http_mac(method, host, target, self.time_ms), self.mac)


def user_authorization(credentials: Credentials, method: str, host: str, target: str, time_ms: int) -> str:
    """Return the value of the header Authorization for a call; ``target`` is the path with its query, as sent."""
    mac = credentials.http_mac(method, host, target, time_ms)
    return f"{USER_SCHEME} {credentials.token} {time_ms} {mac.hex()}"


def presented(authorization: str | None) -> Presented | None:
    """Return what a header says; None if it is no user's."""
    found = _HEADER.fullmatch(authorization or "")
    if found is None:
        return None
    try:
        name = parse_token(found[1])
    except ValueError:
        return None
    return Presented(name=name, time_ms=int(found[2]), mac=bytes.fromhex(found[3]))
