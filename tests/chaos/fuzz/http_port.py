"""The HTTP ports of nodes and datanodes: wild methods, targets, headers and bodies, as a stranger and as a user."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from urllib.parse import quote

from schemas.access.signatures import user_authorization
from tests.chaos.fuzz.arms import Arms, Line, Told, by_many, context_of
from tests.chaos.fuzz.wild import WORDS, changed

TOGETHER = 60
"""Calls that are sent together, at most: a connection goes on with the next ones if nothing has ended it."""
ENDERS = 0.5
"""How often something follows that is no call, or lies about its length."""
IN_CLEAR = 0.05
"""Share of what is sent together, to a port that speaks TLS, in clear."""
WHOLE_S = 5.0
"""How long a server may be silent before it has answered all that was sent together."""
LAST_WORDS_S = 0.5
"""How long what is said to what is no call is waited for."""
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


Call = tuple[bytes, str, str]
"""The bytes of a call, its method and its target."""


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
        return "/" + "a" * 300 if rng.random() < 0.05 else path

    def whole(self, who: str) -> Call:
        """Return a call whose framing is right, with its method and target."""
        rng = self._rng
        method, target = rng.choice(METHODS[:11]), self.target()
        headers = [f"Host: {self._host if rng.random() < 0.9 else 'evil.example'}"]
        if (given := self._authorization(who, method, target)) is not None:
            headers.append(f"Authorization: {given}")
        if rng.random() < 0.1:
            headers.append(rng.choice((
                "Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Range: bytes=0-",
                "X-Forwarded-For: 127.0.0.1", f"Cookie: {'c' * 500}", "Accept-Encoding: gzip",
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
        match rng.randrange(5):
            case 0:
                return user_authorization(self._signer, method, self._host, target, now_ms - 3_600_000)
            case 1:
                return user_authorization(self._signer, method, self._host, target + "x", now_ms)
            case 2:
                return f"Stratolog {rng.randbytes(32).hex()}"
            case 3:
                return f"Stratolog-User operator:0 {now_ms} {rng.randbytes(32).hex()}"
            case _:
                return None

    def broken(self) -> bytes:
        """Return what a server's reader does not go on behind: no call, one that lies about its length, an odd one."""
        rng = self._rng
        call, method, _ = self.whole("stranger")
        host = f"Host: {self._host}\r\n".encode()
        head = f"POST {self.target()} HTTP/1.1\r\n".encode() + host
        odd = f"GET {self.target()} HTTP/1.1\r\n".encode() + host
        match rng.randrange(13):
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
            case 7:
                return odd + b"Authorization: " + changed(rng, b"Stratolog-User mallory:1 12 abc") + b"\r\n\r\n"
            case 8:
                return odd + rng.choice((b"Upgrade: stratolog-door", b"Expect: 100-continue")) + b"\r\n\r\n"
            case 9:
                return b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n" + host + b"\r\n"
            case 10 | 11:
                return rng.choice(METHODS[11:]).encode() + call[len(method) :]
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
    by_many(lambda number, share, own: _attack(arms, share, f"http {seed} {number}", own), frames, told)


def _attack(arms: Arms, frames: int, seed: str, told: Told) -> None:
    rng = random.Random(seed)
    contexts = {"user": context_of(arms, known=True), "stranger": context_of(arms, known=False)}
    names = sorted(arms.web)
    calls = {name: WildCalls(arms, rng, arms.web[name]) for name in names}
    kept: dict[tuple[str, str], CallLine] = {}
    while told["sent"] < frames:
        # Half of the calls are the node's: its pages are more.
        name = rng.choice(names) if rng.random() < 0.5 else names[-1]
        who = "user" if rng.random() < 0.8 else "stranger"
        made = calls[name]
        whole = [made.whole(who) for _ in range(rng.randrange(1, TOGETHER))]
        end = made.broken() if rng.random() < ENDERS else b""
        told["sent"] += len(whole) + bool(end)
        in_clear = rng.random() < IN_CLEAR
        try:
            line = None if in_clear else kept.pop((name, who), None)
            if line is None:
                line = CallLine(arms.web[name], None if in_clear else contexts[who], told, arms.canary)
            if line.talk(name, who, whole, end, in_clear=in_clear):
                kept[name, who] = line
            else:
                line.close()
        except OSError as error:
            told["closed"] += 1
            told[f"connection: {type(error).__name__}"] += 1
    for line in kept.values():
        line.close()


class CallLine(Line):
    """A connection to a server of HTTP."""

    def talk(self, name: str, who: str, whole: Sequence[Call], end: bytes, *, in_clear: bool) -> bool:
        """Send calls and what may end the connection, hear the answers, and say whether it goes on."""
        told = self.told
        self.say(b"".join(call for call, _, _ in whole))
        heard, goes_on = self.hear_until(lambda said: len(ANSWER.findall(said)) >= len(whole), WHOLE_S)
        if goes_on and end:
            # By itself: a server drops the calls that came together with what it cannot read.
            self.say(end)
            heard += self.hear_until(lambda _: False, LAST_WORDS_S)[0]
        statuses = [int(status) for status in ANSWER.findall(heard)]
        told["answered"] += len(statuses)
        told["in clear"] += in_clear
        for number, status in enumerate(statuses):
            told[f"status {status}"] += 1
            told["refused"] += status >= 400
            told["failed"] += status >= 500 and status != 503
            # 100 is no answer to a call of its own: from there on calls and answers do not go together.
            if 100 in statuses[: number + 1] or number >= len(whole):
                told["allowed"] += number >= len(whole) and 200 <= status < 300 and who == "stranger"
                continue
            _, method, target = whole[number]
            if in_clear or is_allowed(name, who, method, target, status):
                told["allowed"] += 1
                told[f"allowed {name} {who} {method} {target[:60]}"] += 1
        return goes_on and not end and len(statuses) == len(whole)
