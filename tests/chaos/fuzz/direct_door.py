"""The direct door of a node: as a stranger, with a certificate alone, and as a user without rights."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Sequence

from schemas.access.credentials import Credentials
from schemas.access.signatures import user_authorization
from schemas.codecs.codec import Undecodable, decode_as, encode
from schemas.codecs.envelopes import responses_in
from schemas.door.frames import (
    DOOR_PATH,
    MAX_KEY_BYTES,
    UPGRADE,
    DoorFrame,
    DoorFrames,
    DoorKind,
    door_frame,
    keyed,
)
from schemas.door.talk import DoorRole, DoorTalk
from schemas.records.datanode import StreamError
from schemas.records.door import DoorRead, DoorRows
from schemas.records.framing import BadFrame
from schemas.records.messages import CreateVolume, Request
from tests.chaos.fuzz.arms import Arms, Line, Told, by_many, context_of
from tests.chaos.fuzz.kafka_door import count_answer
from tests.chaos.fuzz.requests import WildRequests
from tests.chaos.fuzz.wild import Wild
from tests.support.om.door_fuzz import HELLOS, mutate

TOGETHER = 100
"""Frames that are sent together, at most: a connection goes on with the next ones if nothing has ended it."""
ENDERS = 0.5
"""How often a frame with changed bytes follows: most such end their connection."""
WHOLE_S = 10.0
"""How long the node may be silent before it has answered all that was sent together."""
LAST_CALL = 2**45
END = door_frame(DoorKind.REQUESTS, encode(Request(
    client_id=bytes(16), call_id=LAST_CALL, first_sent_at_ms=0, answered_below=0, reply_partition=0, caller="mallory",
    body=CreateVolume(volume="last"),
)))  # fmt: skip
STRANGERS = 0.15
"""Share of what is sent together by those who are not let in."""
LAST_WORDS_S = 0.5
"""How long what is said to a frame that ends a connection is waited for."""


def attack(arms: Arms, frames: int, seed: int, told: Told) -> None:
    """Send so many frames."""
    by_many(lambda number, share, own: _attack(arms, share, f"direct {seed} {number}", own), frames, told)


def _attack(arms: Arms, frames: int, seed: str, told: Told) -> None:
    rng = random.Random(seed)
    made = WildFrames(arms, rng)
    known, unknown = context_of(arms, known=True), context_of(arms, known=False)
    signer = arms.signer()
    kept: DoorLine | None = None
    while told["sent"] < frames:
        sent = [made.frame() for _ in range(rng.randrange(1, TOGETHER))]
        ender = made.ender() if rng.random() < ENDERS else b""
        told["sent"] += len(sent) + bool(ender)
        try:
            if rng.random() < STRANGERS:
                _as_stranger(arms, rng, rng.choice((None, unknown, known)), b"".join(sent) + ender, told)
                continue
            line, kept = kept, None
            if line is None:
                line = DoorLine(arms, known, signer, told)
                if not line.is_let_in or not line.greet(rng):
                    line.close()
                    continue
            if line.talk(sent, ender):
                kept = line
            else:
                line.close()
        except OSError as error:
            told["closed"] += 1
            told[f"connection: {type(error).__name__}"] += 1
    if kept is not None:
        kept.close()


class WildFrames:
    """Makes frames of the direct door."""

    def __init__(self, arms: Arms, rng: random.Random) -> None:
        self._rng = rng
        self._made = WildRequests(arms, rng, turned=0)
        self._broken = WildRequests(arms, rng, turned=1)
        words = {
            "limit": [0, 3], "index": [0], "keys": [list(arms.keys)], "consistency": ["stale", "linearizable", "session"],
        }  # fmt: skip
        self._wild = Wild(rng, arms.words() | words)

    def frame(self) -> bytes:
        """Return a frame that is whole, so that the connection goes on."""
        return self._frame(self._made, 0)

    def ender(self) -> bytes:
        """Return a frame that ends most connections: of a shard that there is not, or with changed bytes."""
        rng = self._rng
        shard = 0 if rng.random() < 0.9 else rng.randrange(2**32)
        if rng.random() < 0.5:
            return self._frame(self._broken, shard)
        return mutate(rng, self._frame(self._made, shard))

    def _frame(self, made: WildRequests, shard: int) -> bytes:
        rng = self._rng
        number = rng.randrange(2**32)
        try:
            if rng.random() < 0.3:
                return door_frame(DoorKind.READ, encode(self._wild.record(DoorRead)), shard=shard, number=number)
            key, value, _ = made.record()
            if key is not None and len(key) > MAX_KEY_BYTES:
                key = key[:MAX_KEY_BYTES]
            kind, payload = (DoorKind.REQUESTS, value) if key is None else (DoorKind.KEYED, keyed(key, value))
            return door_frame(kind, payload, shard=shard, number=number)
        except (ValueError, BadFrame):
            return door_frame(DoorKind.REQUESTS, b"", number=number)


def _upgrade(arms: Arms, authorization: str | None) -> bytes:
    lines = [
        f"GET {DOOR_PATH} HTTP/1.1", f"Host: {arms.node}", "Connection: Upgrade", f"Upgrade: {UPGRADE}",
        *([] if authorization is None else [f"Authorization: {authorization}"]),
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _as_stranger(arms: Arms, rng: random.Random, context: ssl.SSLContext | None, data: bytes, told: Told) -> None:
    """Nobody without a signature is let in: neither by the upgrade nor by frames without one."""
    wrong = rng.choice(
        (None, "Stratolog " + "0" * 64, f"Stratolog-User mallory:1 {time.time_ns() // 10**6} {'0' * 64}")
    )
    upgrade = _upgrade(arms, wrong) if rng.random() < 0.8 else b""
    with Line(arms.node, context, told, arms.canary) as line:
        line.say(upgrade + HELLOS[DoorRole.CLIENT] + data)
        heard, _ = line.hear_until(lambda said: b"}" in said)
    told["allowed"] += b"101 Switching" in heard
    if heard.startswith(b"HTTP/1.1 4"):
        told["answered"] += 1
        told["refused"] += 1
        told[f"strangers told {heard[9:12].decode()}"] += 1


class DoorLine(Line):
    """A connection to the direct door, of the user who attacks."""

    def __init__(self, arms: Arms, context: ssl.SSLContext, signer: Credentials, told: Told) -> None:
        """Connect and ask for the upgrade."""
        super().__init__(arms.node, context, told, arms.canary)
        self.say(_upgrade(arms, user_authorization(signer, "GET", arms.node, DOOR_PATH, time.time_ns() // 1_000_000)))
        head, _ = self.hear_until(lambda said: b"\r\n\r\n" in said, WHOLE_S)
        self.is_let_in = b" 101 " in head
        self._frames = DoorFrames(DoorRole.CLIENT.hears)
        if not self.is_let_in:
            told[f"upgrade: {head[9:12].decode(errors='replace')}"] += 1
        for frame in self._frames.take(head.partition(b"\r\n\r\n")[2]):
            _count(frame, told)

    def greet(self, rng: random.Random) -> bool:
        """Say HELLO, sometimes one that is not right; return whether the node hears what follows."""
        hello = HELLOS[DoorRole.CLIENT] if rng.random() < 0.05 else DoorTalk(DoorRole.CLIENT, "c0ffee").hello()
        if rng.random() >= 0.03:
            self.say(hello)
            return True
        self.say(mutate(rng, hello) + END)
        self.hear_until(self._is_over(), LAST_WORDS_S)
        return False

    def talk(self, sent: Sequence[bytes], ender: bytes) -> bool:
        """Send frames and what may end the connection, hear the answers, and say whether it goes on."""
        # The end of a talk: requests of a connection are answered in order, unless one has ended the connection.
        self.say(b"".join(sent) + END + ender)
        _, goes_on = self.hear_until(self._is_over(), WHOLE_S)
        if goes_on and ender:
            counts = self._is_over()
            self.hear_until(lambda said: counts(said) and False, LAST_WORDS_S)
        return goes_on and not ender

    def _is_over(self) -> Callable[[bytearray], bool]:
        """Return what counts the frames that are heard, and says whether the last answer is among them."""
        seen = 0

        def is_over(said: bytearray) -> bool:
            nonlocal seen
            fresh, seen = bytes(said[seen:]), len(said)
            over = False
            for frame in self._frames.take(fresh):
                over |= _count(frame, self.told)
            return over

        return is_over


def _count(frame: DoorFrame, told: Told) -> bool:
    """Count what a node says; True if it is the answer to the last frame."""
    payload = frame.payload
    match frame.kind:
        case DoorKind.ANSWERS:
            return LAST_CALL in [count_answer(value, told) for value in responses_in(payload)]
        case DoorKind.ROWS:
            rows = decode_as(DoorRows, payload)
            told["answered"] += 1
            told["allowed" if rows.status == "OK" else "refused"] += 1
            told[f"lookups told {rows.status}"] += 1
        case DoorKind.ERROR:
            told["answered"] += 1
            told["refused"] += 1
            try:
                told[f"ended with {decode_as(StreamError, payload).code}"] += 1
            except Undecodable:
                told["ended with what cannot be read"] += 1
    return False
