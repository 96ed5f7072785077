"""Mutated frames of the direct door, by the million: whatever arrives, each side goes on or ends that one connection.

    python -m tests.support.om.door_fuzz --frames 1000000 --seed 1

Streams of one to four frames of every kind are mutated (bytes turned, cut, repeated, put in; lengths, kinds and numbers that
lie), half of the time with a checksum that is right again, and arrive in pieces. The node's side is the real connection
before the real gateway, the client's the real conversation behind its upgrade. What must hold:

- Nothing but the refusals that are foreseen is raised.
- Who refuses says why, and hears nothing more.
- What is kept of a frame that is not whole is within its kind's limit.
- A stream that was not touched is heard whole, however it is cut.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from crc32c import crc32c

from om_processors.doors.door_connection import DoorConnection
from om_processors.doors.door_lookups import refused
from om_processors.intake.gateway import Gateway, Received
from producers.direct.core.link_talk import LinkFailed, LinkState, LinkTalk
from replicated_db.core.leading.leader import Proposal, Reply
from schemas.access.signatures import Seal
from schemas.codecs.codec import Undecodable, decode_as, encode
from schemas.codecs.envelopes import responses_in
from schemas.door.frames import DOOR_LIMITS, HEADER_BYTES, DoorFrames, DoorKind, door_frame, keyed
from schemas.door.talk import DoorRole, DoorTalk
from schemas.records.datanode import StreamError
from schemas.records.door import DoorLeaders, DoorRead, DoorRows, ShardLeader
from schemas.records.messages import CreateVolume, PutKey, Rejected, Requests, Response, Responses
from tests.support.local.secret import SECRET
from tests.support.om.om_world import request_of

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: stratolog-door\r\n\r\n"
LENGTH = Struct(">I")
LENGTH_AT, CHECK_AT = HEADER_BYTES - 8, HEADER_BYTES - 4
LIES = (0, 1, 2**31, 2**32 - 1, 1024 * 1024, 8 * 1024 * 1024)


def _answer() -> bytes:
    return encode(Response(client_id=bytes(16), call_id=1, shard=0, index=1, status="OK", message="", result=None))


def _payloads() -> dict[DoorKind, list[bytes]]:
    """Return legal payloads of every kind."""
    request = encode(request_of(CreateVolume(volume="v")))
    inline = encode(request_of(PutKey(volume="v", bucket="b", key="k", data=bytes(500))))
    read = DoorRead(consistency="stale", index=0, volume="v", bucket="b", keys=["k", "l"], with_bytes=True)
    leader = ShardLeader(shard=0, term=3, node="om1", address="127.0.0.1:1")
    error = StreamError(code="OVERLOADED", message="not now", datanode="om1", offset=-1, hint="")
    return {
        DoorKind.HELLO: [],
        DoorKind.REQUESTS: [request, inline, encode(Requests(requests=[request, inline])), b""],
        DoorKind.KEYED: [keyed(bytes(32), request), keyed(b"", request)],
        DoorKind.ANSWERS: [_answer(), encode(Responses(responses=[_answer(), b"x"]))],
        DoorKind.LEADERS: [encode(DoorLeaders(shards=1, leaders=[leader])), encode(DoorLeaders(shards=2, leaders=[]))],
        DoorKind.READ: [encode(read)],
        DoorKind.ROWS: [encode(DoorRows(status="OK", message="", shard=0, index=1, rows=[b"row", None], data=[b"d", None]))],
        DoorKind.ERROR: [encode(error)],
    }  # fmt: skip


PAYLOADS = _payloads()
HELLOS = {role: DoorTalk(role, "peer", "c").hello() for role in DoorRole}


class Wire(asyncio.Transport):
    """Keeps what is written, until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "written to a connection that has ended"
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        """The peer is not asked."""

    def resume_reading(self) -> None:
        """The peer is not asked."""

    def close(self) -> None:
        self.ended = True

    abort = close


class Host:
    """A node that admits requests as a leader's intake does, and refuses what it admits."""

    node, cluster, shards, crowded = "om1", "c", 2, False

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._gateway = Gateway(shard=0, node="om1", secret=SECRET)

    def time(self) -> float:
        return 0.0

    def call_soon(self, act: Callable[..., None], *arguments: Any) -> None:
        act(*arguments)

    call_soon_threadsafe = call_soon

    def submit(
        self, connection: DoorConnection, shard: int, requests: Sequence[bytes], key: bytes | None, seal: Seal | None
    ) -> None:
        for value in requests:
            admitted = self._gateway.admit(Received(offset=-1, value=value, key=key, way=connection, seal=seal), 0)
            self.seen[f"request: {type(admitted).__name__}"] += 1
            if isinstance(admitted, Rejected):
                connection.reject(admitted.message)
                return
            assert isinstance(admitted, Proposal | Reply)
            connection.answer(shard, [_answer()])

    def look_up(self, _connection: Any, reads: Any) -> None:
        for read, told in reads:
            self.seen["lookup"] += 1
            assert isinstance(read, DoorRead)
            told(refused("OVERLOADED", "not now"))

    def leaders_frame(self) -> bytes:
        return door_frame(DoorKind.LEADERS, PAYLOADS[DoorKind.LEADERS][0])

    def held(self, connection: DoorConnection, held_bytes: int) -> None:
        assert connection.held_bytes == held_bytes >= 0


def fuzz(frames: int, seed: int) -> Counter[str]:
    """Send so many frames to both sides in turn; return what was seen. Raises AssertionError, with the case."""
    seen: Counter[str] = Counter()
    number = 0
    while seen["frames"] < frames:
        rng = random.Random(f"{seed} {number}")
        role = (DoorRole.NODE, DoorRole.CLIENT)[number % 2]
        kinds = [_kind(rng, role) for _ in range(rng.randrange(1, 5))]
        sent = [_frame(rng, kind, role) for kind in kinds]
        mutated = rng.random() < 0.9
        stream = b"".join(mutate(rng, one) if mutated and rng.random() < 0.7 else one for one in sent)
        seen["frames"] += len(sent)
        try:
            (_node if role is DoorRole.NODE else _client)(rng, stream, None if mutated else sent, seen)
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {number}, {role}: {error!r}; {stream[:200]!r}") from error
        number += 1
    return seen


def _kind(rng: random.Random, role: DoorRole) -> DoorKind:
    heard = sorted(role.hears)
    return rng.choice(list(DoorKind)) if rng.random() < 0.1 else rng.choice(heard)


def _frame(rng: random.Random, kind: DoorKind, role: DoorRole) -> bytes:
    if kind is DoorKind.HELLO:
        return HELLOS[role]
    return door_frame(kind, rng.choice(PAYLOADS[kind]), shard=rng.choice((0, 0, 1)), number=rng.randrange(4))


def mutate(rng: random.Random, frame: bytes) -> bytes:
    """Change a frame; half of the time its checksum is right again."""
    changed = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(6):
            case 0 | 1 if changed:
                changed[place] ^= 1 << rng.randrange(8)
            case 2:
                del changed[place : place + rng.randrange(1, 40)]
            case 3:
                changed[place:place] = rng.randbytes(rng.randrange(1, 40))
            case 4:
                changed[place:place] = changed[place : place + 40]
            case _ if len(changed) >= HEADER_BYTES:
                changed[LENGTH_AT:CHECK_AT] = LENGTH.pack(rng.choice(LIES))
    if rng.random() < 0.5 and len(changed) >= HEADER_BYTES:
        if rng.random() < 0.7:  # the right length, too
            changed[LENGTH_AT:CHECK_AT] = LENGTH.pack(len(changed) - HEADER_BYTES)
        check = crc32c(bytes(changed[HEADER_BYTES:]), crc32c(bytes(changed[:CHECK_AT])))
        changed[CHECK_AT:HEADER_BYTES] = LENGTH.pack(check)
    return bytes(changed)


def _pieces(rng: random.Random, data: bytes) -> list[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _node(rng: random.Random, stream: bytes, whole: list[bytes] | None, seen: Counter[str]) -> None:
    host, wire = Host(), Wire()
    loop: Any = host
    connection = DoorConnection(host, loop, lambda _: None)
    connection.connection_made(wire)
    for piece in _pieces(rng, HELLOS[DoorRole.CLIENT] + stream):
        if not wire.ended:
            connection.data_received(piece)
    assert len(connection._frames) <= max(DOOR_LIMITS.values()) + HEADER_BYTES or wire.ended
    said = list(DoorFrames(DoorRole.CLIENT.hears).take(bytes(wire.sent)))
    errors = [decode_as(StreamError, frame.payload).message for frame in said if frame.kind is DoorKind.ERROR]
    assert bool(errors) is wire.ended, "who is left is told why"
    assert all(errors)
    seen += host.seen
    seen["node: told and left" if errors else "node: goes on"] += 1
    if whole is not None and not errors:
        assert not connection._frames, "a whole frame waits"
    connection.connection_lost(None)


def _client(rng: random.Random, stream: bytes, whole: list[bytes] | None, seen: Counter[str]) -> None:
    link = LinkTalk("127.0.0.1:1", "c0ffee")
    link.begin()
    heard, why = 0, ""
    try:
        for piece in _pieces(rng, SWITCHED + HELLOS[DoorRole.NODE] + stream):
            if not piece:
                continue
            for frame in link.hear(piece):
                heard += 1
                _read(frame.kind, frame.payload, seen)
    except LinkFailed as error:
        why = str(error)
    if why:
        assert link.state is LinkState.FAILED
        seen["client: leaves the node"] += 1
        return
    seen["client: goes on"] += 1
    assert whole is None or heard == len(whole)


def _read(kind: DoorKind, payload: bytes, seen: Counter[str]) -> None:
    """Read a payload as the client does; what cannot be read is an Undecodable."""
    try:
        match kind:
            case DoorKind.ANSWERS:
                for value in responses_in(payload):
                    decode_as(Response, value)
            case DoorKind.LEADERS:
                decode_as(DoorLeaders, payload)
            case DoorKind.ROWS:
                decode_as(DoorRows, payload)
        seen[f"client: {kind.name} read"] += 1
    except Undecodable:
        seen[f"client: {kind.name} cannot be read"] += 1


def main() -> int:
    """Fuzz from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for what, count in sorted(fuzz(options.frames, options.seed).items()):
        print(f"{count:>10}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
