"""The HTTP ports of nodes and datanodes: wild methods, targets, headers and bodies, as a stranger and as a user."""

from __future__ import annotations

import random
import re
import ssl
import time
from urllib.parse import quote

from schemas.access.signatures import user_authorization
from tests.chaos.fuzz.arms import Arms, Told, context_of, heard_until, line_to, say
from tests.chaos.fuzz.wild import WORDS, changed

TOGETHER = 40
METHODS = (
    "GET",
    "GET",
    "GET",
    "POST",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "G\x00T",
    "X" * 60,
)
SHARD_PAGES = (
    "digest",
    "position",
    "read-index",
    "checkpoint",
    "trim",
    "transfer",
    "rows",
    "scrub",
    "windows",
    "flag",
    "unflag",
)
PAGES = (
    "/", "/health", "/status", "/metrics", "/v1/volumes", "/v1/volumes/{volume}", "/v1/volumes/{volume}/buckets/{bucket}",
    "/v1/volumes/{volume}/buckets/{bucket}/keys", "/v1/volumes/{volume}/buckets/{bucket}/key?name={key}",
    "/v1/volumes/{volume}/buckets/{bucket}/key?name={key}&bytes=true", "/v1/acl?kind=VOLUME&volume={volume}",
    "/v1/tokens", "/v1/tokens?owner=operator", "/v1/users", "/v1/pipelines", "/v1/datanodes", "/v1/containers/1", "/v1/door",
    "/v1/snapshot-diffs/{volume}/{bucket}", "/v1/leadership", "/v1/transfers/0/0", "/v1/drain", "/v1/modes",
    *(f"/v1/shards/0/{page}" for page in SHARD_PAGES),
)  # fmt: skip
OPEN = re.compile(r"/(health|status|metrics)(\?.*)?")
"""What whoever has a certificate may read."""
FOR_EVERY_USER = re.compile(r"/v1/(volumes|pipelines|datanodes|tokens|containers/[^/?]*)(\?.*)?")
"""What every user may read; of volumes and tokens, those that are its own: none."""
ANSWER = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) ")
DATANODES = re.compile(r"dn[0-9]+")


class WildCalls:
    """Makes calls of HTTP to one server."""

    def __init__(self, arms: Arms, rng: random.Random, host: str) -> None:
        self._arms = arms
        self._rng = rng
        self._host = host
        self._signer = arms.signer()

    def target(self) -> str:
        """Return a path, mostly of a page that there is."""
        rng, arms = self._rng, self._arms
        path = rng.choice(PAGES).format(volume=arms.volume, bucket=arms.bucket, key=rng.choice(arms.keys or ("k",)))
        if rng.random() < 0.3:
            path = path.replace(arms.volume, quote(rng.choice(WORDS), safe=""))
        if rng.random() < 0.3:
            word = quote(rng.choice(WORDS), safe="")
            path += rng.choice(
                (
                    "/",
                    "//..",
                    "?consistency=stale",
                    f"?{word}={word}",
                    "&limit=-1",
                    "?limit=99999999999999999999",
                    f"/{word}",
                    "%00",
                )
            )
        if rng.random() < 0.05:
            path = "/" + "a" * rng.choice((300, 9_000))
        return path

    def whole(self, who: str) -> tuple[bytes, str, str]:
        """Return a call whose framing is right, with its method and target."""
        rng = self._rng
        method, target = rng.choice(METHODS[:12]), self.target()
        headers = [f"Host: {self._host if rng.random() < 0.9 else 'evil.example'}"]
        if (given := self._authorization(who, method, target)) is not None:
            headers.append(f"Authorization: {given}")
        if rng.random() < 0.1:
            headers.append(rng.choice((
                "Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Upgrade: stratolog-door", "Range: bytes=0-",
                "X-Forwarded-For: 127.0.0.1", f"Cookie: {'c' * 500}", "Expect: 100-continue", "Accept-Encoding: gzip",
            )))  # fmt: skip
        body = rng.randbytes(rng.choice((0, 0, 10, 3_000))) if method not in ("GET", "HEAD", "OPTIONS") else b""
        if body and rng.random() < 0.5:
            headers.append("Transfer-Encoding: chunked")
            framed = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
        else:
            headers.append(f"Content-Length: {len(body)}")
            framed = body
        head = f"{method} {target} HTTP/1.1\r\n" + "\r\n".join(headers)
        return head.encode() + b"\r\n\r\n" + framed, method, target

    def _authorization(self, who: str, method: str, target: str) -> str | None:
        rng, now_ms = self._rng, time.time_ns() // 1_000_000
        if who == "user" and rng.random() < 0.7:
            return user_authorization(self._signer, method, self._host, target, now_ms)
        match rng.randrange(6):
            case 0:
                return user_authorization(self._signer, method, self._host, target, now_ms - 3_600_000)
            case 1:
                return user_authorization(self._signer, method, self._host, target + "x", now_ms)
            case 2:
                return f"Stratolog {rng.randbytes(32).hex()}"
            case 3:
                return f"Stratolog-User operator:0 {now_ms} {rng.randbytes(32).hex()}"
            case 4:
                return (
                    changed(rng, b"Stratolog-User mallory:1 12 abc")
                    .decode("latin-1")
                    .translate({13: 32, 10: 32, 0: 32})
                )
            case _:
                return None

    def broken(self) -> bytes:
        """Return what is no call, or lies about its length."""
        rng = self._rng
        call, _, _ = self.whole("stranger")
        head = f"POST {self.target()} HTTP/1.1\r\nHost: {self._host}\r\n".encode()
        match rng.randrange(8):
            case 0 | 1:
                return changed(rng, call)
            case 2:
                return head + b"Content-Length: 99999999999\r\n\r\nshort"
            case 3:
                return head + b"Content-Length: -1\r\n\r\n"
            case 4:
                return head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\nx"
            case 5:
                return (
                    head
                    + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\nGET /v1/users HTTP/1.1\r\n\r\n"
                )
            case 6:
                return head + b"A: " + b"a" * 20_000 + b"\r\n\r\n"
            case _:
                return rng.randbytes(rng.randrange(1, 400))


def is_allowed(name: str, who: str, method: str, target: str, status: int) -> bool:
    """Say whether an answer gives somebody what he has no right to."""
    if not 200 <= status < 300:
        return False
    if who == "stranger" or method.upper() not in ("GET", "HEAD", "OPTIONS"):
        return True
    # A datanode's pages tell what it stores to every holder of a certificate.
    readable = (
        OPEN.fullmatch(target) or (who == "user" and FOR_EVERY_USER.fullmatch(target)) or DATANODES.fullmatch(name)
    )
    return readable is None


def attack(arms: Arms, frames: int, seed: int, told: Told) -> None:
    """Send so many calls, by turns to each server."""
    rng = random.Random(f"http {seed}")
    contexts = {"user": context_of(arms, known=True), "stranger": context_of(arms, known=False)}
    names = sorted(arms.web)
    calls = {name: WildCalls(arms, rng, arms.web[name]) for name in names}
    while told["sent"] < frames:
        # Half of the calls are the node's: its pages are more.
        name = rng.choice(names) if rng.random() < 0.5 else names[-1]
        who = "user" if rng.random() < 0.8 else "stranger"
        told["connections"] += 1
        try:
            _talk(arms, rng, calls[name], name, who, contexts[who] if rng.random() < 0.95 else None, told)
        except OSError as error:
            told["closed"] += 1
            told[f"connection: {type(error).__name__}"] += 1


def _talk(
    arms: Arms, rng: random.Random, calls: WildCalls, name: str, who: str, context: ssl.SSLContext | None, told: Told
) -> None:
    whole = [calls.whole(who) for _ in range(rng.randrange(1, TOGETHER))]
    end = calls.broken() if rng.random() < 0.5 else b""
    told["sent"] += len(whole) + bool(end)
    with line_to(arms.web[name], context) as sock:
        say(sock, b"".join(call for call, _, _ in whole) + end, told)
        enough = len(whole) + bool(end)
        heard = heard_until(sock, lambda said: len(ANSWER.findall(said)) >= enough, told, arms.canary, wait_s=1.0)
    statuses = [int(status) for status in ANSWER.findall(heard)]
    told["answered"] += len(statuses)
    told["in clear"] += context is None
    for number, status in enumerate(statuses):
        told[f"status {status}"] += 1
        told["refused"] += status >= 400
        told["failed"] += status >= 500 and status != 503
        # 100 is no answer to a call of its own: from there on calls and answers do not go together.
        if 100 in statuses[: number + 1] or number >= len(whole):
            told["allowed"] += number >= len(whole) and 200 <= status < 300 and who == "stranger"
            continue
        _, method, target = whole[number]
        if context is None or is_allowed(name, who, method, target, status):
            told["allowed"] += 1
            told[f"allowed {name} {who} {method} {target[:60]}"] += 1
