"""Wild requests for the Object Manager, with wild keys: what a record of ``om.requests`` or a KEYED frame may hold."""

from __future__ import annotations

import random
import time

from schemas.access.credentials import Credentials, client_prefix
from schemas.access.signatures import sealed_key
from schemas.codecs.codec import Unencodable, encode
from schemas.kafka.reply_keys import reply_key
from schemas.records.identity import ChangeAcl, GetDelegationToken
from schemas.records.messages import CreateKey, DeleteKey, PutKey, Request, RequestBody, Requests
from tests.chaos.fuzz.arms import MALLORY, Arms
from tests.chaos.fuzz.wild import Wild, changed

HARMLESS = (GetDelegationToken,)
"""What every user may ask for."""
BODIES = tuple(one for one in RequestBody.__args__ if one not in HARMLESS)
LIKELY = (PutKey, DeleteKey, ChangeAcl, CreateKey)
OPERATORS_TOKEN = "operator:0"
ENVELOPE_MOST = 20


class WildRequests:
    """Makes (key, value, number of requests) of records; the seed decides all but the time."""

    def __init__(self, arms: Arms, rng: random.Random, *, turned: float = 0.1) -> None:
        """``turned`` is the share of requests whose bytes are changed."""
        self._rng = rng
        self._turned = turned
        self._wild = Wild(rng, arms.words())
        self._signer = arms.signer()
        self._stolen = Credentials(OPERATORS_TOKEN, rng.randbytes(32))
        self._clients = [client_prefix(MALLORY) + rng.randbytes(10) for _ in range(4)]

    def record(self) -> tuple[bytes | None, bytes, int]:
        """Return a record."""
        rng = self._rng
        if rng.random() < 0.1:
            requests = [self.request() for _ in range(rng.randrange(2, ENVELOPE_MOST))]
            value, number = encode(Requests(requests=requests)), len(requests)
        else:
            value, number = self.request(), 1
        if rng.random() < self._turned / 2:
            value = changed(rng, value)
        key = self.key(value)
        if key is not None and rng.random() < 0.1:
            key = changed(rng, key)
        return key, value, number

    def request(self) -> bytes:
        """Return an encoded request."""
        rng = self._rng
        while True:
            body = self._wild.record(rng.choice(LIKELY) if rng.random() < 0.4 else rng.choice(BODIES))
            sent_at_ms = time.time_ns() // 1_000_000 if rng.random() < 0.9 else self._wild.number()
            request = Request(
                client_id=rng.choice(self._clients) if rng.random() < 0.7 else rng.randbytes(16),
                call_id=rng.randrange(2**40), first_sent_at_ms=sent_at_ms, answered_below=rng.randrange(3),
                reply_partition=0 if rng.random() < 0.9 else self._wild.number(),
                caller=MALLORY if rng.random() < 0.8 else rng.choice(("operator", "alice", "", "om1")), body=body,
            )  # fmt: skip
            try:
                value = encode(request)
            except Unencodable:
                continue
            return changed(rng, value) if rng.random() < self._turned else value

    def key(self, value: bytes) -> bytes | None:
        """Return a key: none, its own signature, forged ones, another's token, anything."""
        rng = self._rng
        rest = reply_key(f"om.responses.{MALLORY}") if rng.random() < 0.5 else b""
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                return sealed_key(self._signer, value, rest)
            case 4:
                return sealed_key(self._stolen, value, rest)
            case 5:
                return sealed_key(self._signer, value + b"x", rest)
            case 6:
                return sealed_key(self._signer, value)[:-1] + rng.randbytes(rng.choice((1, 40, 230, 400)))
            case 7:
                return rng.randbytes(rng.choice((0, 1, 32, 60, 255)))
            case 8:
                return reply_key("om.responses.alice", rng.randbytes(32))
            case _:
                return rest or None
