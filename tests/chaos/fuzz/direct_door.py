"""The direct door of a node: as a stranger, with a certificate alone, and as a user without rights."""

from __future__ import annotations

import random
import ssl
import time

from schemas.access.signatures import user_authorization
from schemas.codecs.codec import Undecodable, decode_as, encode
from schemas.codecs.envelopes import responses_in
from schemas.door.frames import (
    DOOR_PATH,
    MAX_KEY_BYTES,
    UPGRADE,
    BadDoorFrame,
    DoorFrame,
    DoorFrames,
    DoorKind,
    door_frame,
    keyed,
)
from schemas.door.talk import DoorRole, DoorTalk
from schemas.records.datanode import StreamError
from schemas.records.door import DoorRead, DoorRows
from schemas.records.messages import CreateVolume, Request
from tests.chaos.fuzz.arms import Arms, Told, context_of, heard_until, line_to, say
from tests.chaos.fuzz.kafka_door import count_answer
from tests.chaos.fuzz.requests import WildRequests
from tests.chaos.fuzz.wild import Wild
from tests.support.om.door_fuzz import HELLOS, mutate

TOGETHER = 64
"""Frames on one connection, unless one of them ends it."""
LAST_CALL = 2**45
END = door_frame(DoorKind.REQUESTS, encode(Request(
    client_id=bytes(16), call_id=LAST_CALL, first_sent_at_ms=0, answered_below=0, reply_partition=0, caller="mallory",
    body=CreateVolume(volume="last"),
)))  # fmt: skip
TURNED = 0.01
"""Share of frames, and of requests, with changed bytes: most such end their connection."""
STRANGERS = 0.15
"""Share of connections of those who are not let in."""


def attack(arms: Arms, frames: int, seed: int, told: Told) -> None:
    """Send so many frames."""
    rng = random.Random(f"direct {seed}")
    made = WildRequests(arms, rng, turned=TURNED)
    wild = Wild(
        rng,
        arms.words()
        | {
            "limit": [0, 3],
            "index": [0],
            "keys": [list(arms.keys)],
            "consistency": ["stale", "linearizable", "session"],
        },
    )
    known, unknown = context_of(arms, known=True), context_of(arms, known=False)
    while told["sent"] < frames:
        sent = [_frame(rng, made, wild) for _ in range(rng.randrange(1, TOGETHER))]
        told["sent"] += len(sent)
        told["connections"] += 1
        try:
            if rng.random() < STRANGERS:
                _as_stranger(arms, rng, rng.choice((None, unknown, known)), b"".join(sent), told)
            else:
                _as_user(arms, rng, known, sent, told)
        except OSError as error:
            told["closed"] += 1
            told[f"connection: {type(error).__name__}"] += 1


def _frame(rng: random.Random, made: WildRequests, wild: Wild) -> bytes:
    shard = 0 if rng.random() < 0.998 else rng.randrange(2**32)
    number = rng.randrange(2**32)
    try:
        if rng.random() < 0.3:
            frame = door_frame(DoorKind.READ, encode(wild.record(DoorRead)), shard=shard, number=number)
        else:
            key, value, _ = made.record()
            if key is not None and len(key) > MAX_KEY_BYTES:
                key = key[:MAX_KEY_BYTES]
            kind, payload = (DoorKind.REQUESTS, value) if key is None else (DoorKind.KEYED, keyed(key, value))
            frame = door_frame(kind, payload, shard=shard, number=number)
    except (ValueError, BadDoorFrame):
        frame = door_frame(DoorKind.REQUESTS, b"", number=number)
    return mutate(rng, frame) if rng.random() < TURNED else frame


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
    with line_to(arms.node, context) as sock:
        say(sock, upgrade + HELLOS[DoorRole.CLIENT] + data, told)
        heard = heard_until(sock, lambda said: b"}" in said, told, arms.canary)
    told["allowed"] += b"101 Switching" in heard
    if heard.startswith(b"HTTP/1.1 4"):
        told["answered"] += 1
        told["refused"] += 1
        told[f"strangers told {heard[9:12].decode()}"] += 1


def _as_user(arms: Arms, rng: random.Random, context: ssl.SSLContext, sent: list[bytes], told: Told) -> None:
    signed = user_authorization(arms.signer(), "GET", arms.node, DOOR_PATH, time.time_ns() // 1_000_000)
    hello = HELLOS[DoorRole.CLIENT] if rng.random() < 0.05 else DoorTalk(DoorRole.CLIENT, "c0ffee").hello()
    if rng.random() < 0.03:
        hello = mutate(rng, hello)
    with line_to(arms.node, context) as sock:
        say(sock, _upgrade(arms, signed), told)
        head = heard_until(sock, lambda said: b"\r\n\r\n" in said, told, arms.canary, wait_s=10.0)
        if b" 101 " not in head:
            told[f"upgrade: {head[9:12].decode(errors='replace')}"] += 1
            return
        frames = DoorFrames(DoorRole.CLIENT.hears)
        seen = [0]
        # The end of a talk: requests of a connection are answered in order, unless one has ended the connection.
        say(sock, hello + b"".join(sent) + END, told)

        def is_over(said: bytearray) -> bool:
            fresh, seen[0] = bytes(said[seen[0] :]), len(said)
            over = False
            for frame in frames.take(fresh):
                over |= _count(frame, told)
            return over

        for frame in frames.take(head.partition(b"\r\n\r\n")[2]):
            _count(frame, told)
        heard_until(sock, is_over, told, arms.canary, wait_s=10.0)


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
