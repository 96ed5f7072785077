"""The stream ports of datanodes: frames of every kind, HELLOs that lie, as a stranger and with a client's certificate."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Sequence

from crc32c import crc32c

from schemas.codecs.codec import Undecodable, Unencodable, decode, encode
from schemas.records import datanode as records
from schemas.records.datanode import (
    GetBlock,
    Hello,
    ListContainer,
    OpenStream,
    ReadBlock,
    SalvageBlock,
    StreamError,
    WatchBlock,
    WriteBlocks,
)
from schemas.records.framing import BadFrame
from schemas.records.packets import HEADER_BYTES, VERSION, FrameBuffer, Kind, encode_frame
from tests.chaos.fuzz.arms import Arms, Line, Told, by_many, context_of
from tests.chaos.fuzz.wild import Wild, changed

TOGETHER = 80
"""Requests that are sent together, at most: a connection goes on with the next ones if nothing has ended it."""
STRANGERS = 0.1
"""Share of what is sent together that is sent by somebody without a certificate."""
LIARS = 0.1
"""Share of connections that begin with a HELLO that lies; what follows it is not heard."""
ENDERS = 0.5
"""How often a frame follows that ends most connections."""
LAST_WORDS_S = 0.5
"""How long what is said to such a frame is waited for."""
LAST = 2**50
MAX_FUZZED_BYTES = 40_000
REQUESTS = tuple(
    getattr(records, name)
    for name in (
        "OpenPipeline", "ClosePipeline", "CloseContainer", "FetchContainer", "DeleteBlocks", "Forwarded", "PutBlock",
        "WriteChunk", "WatchBlock", "WriteBlocks", "WatchBlocks", "PutBlocks", "GetBlock", "ReadBlock", "SalvageBlock",
        "ListContainer", "OpenStream", "Hello", "BlockInfo", "Heartbeat",
    )
)  # fmt: skip
READS = (GetBlock, ReadBlock, SalvageBlock, ListContainer)
HARMLESS_ANSWERS = ("BlockWatched", "BlocksWatched")
"""A watch says whether a replica has what the caller names; a made-up block it has not."""
NO_SUCH_PARTITION = 900_000
WHOLE_S = 5.0
"""How long a datanode may be silent before it has answered all that was sent together."""
ALERT = bytes(7)
"""So long is what TLS says, in clear, to a peer that it does not hear."""


def attack(arms: Arms, frames: int, seed: int, told: Told) -> None:
    """Send so many frames, by turns to each datanode."""
    by_many(lambda number, share, own: _attack(arms, share, f"datanode {seed} {number}", own), frames, told)


def _attack(arms: Arms, frames: int, seed: str, told: Told) -> None:
    rng = random.Random(seed)
    made = WildFrames(arms, rng)
    known, unknown = context_of(arms, known=True), context_of(arms, known=False)
    addresses = list(arms.datanodes.values())
    kept: dict[str, DatanodeLine] = {}
    while told["sent"] < frames:
        sent = [made.request() for _ in range(rng.randrange(1, TOGETHER))]
        ender = made.ender() if rng.random() < ENDERS else b""
        told["sent"] += len(sent) + bool(ender)
        address = rng.choice(addresses)
        try:
            if rng.random() < STRANGERS:
                with DatanodeLine(arms, address, rng.choice((None, unknown)), told) as line:
                    line.say(made.hello() + b"".join(sent) + ender)
                    heard = line.hear(LAST_WORDS_S)
                told["sent"] += 1
                told["allowed"] += len(heard) > len(ALERT)
                continue
            if (found := kept.pop(address, None)) is None:
                found = DatanodeLine(arms, address, known, told)
                told["sent"] += 1
                if rng.random() < LIARS:
                    found.say(made.lying_hello() + sent[0])
                    found.hear(LAST_WORDS_S)
                    found.close()
                    continue
                found.say(made.hello())
            if found.talk(sent, ender):
                kept[address] = found
            else:
                found.close()
        except OSError as error:
            told["closed"] += 1
            told[f"connection: {type(error).__name__}"] += 1
    for line in kept.values():
        line.close()


class DatanodeLine(Line):
    """A connection to a datanode."""

    def __init__(self, arms: Arms, address: str, context: ssl.SSLContext | None, told: Told) -> None:
        super().__init__(address, context, told, arms.canary)
        self._buffer = FrameBuffer()
        self._last = LAST

    def talk(self, sent: Sequence[bytes], ender: bytes) -> bool:
        """Send requests and what may end the connection, hear the answers, and say whether it goes on."""
        self._last += 1
        end = encode_frame(Kind.REQUEST, encode(WatchBlock(
            partition=NO_SUCH_PARTITION, container_id=1, local_id=1, length=1, bcs_id=1, timeout_ms=1
        )), sequence=self._last)  # fmt: skip
        self.say(b"".join(sent) + end + ender)
        try:
            _, goes_on = self.hear_until(self._is_over(), WHOLE_S)
            if goes_on and ender:
                self.hear(LAST_WORDS_S)
        except BadFrame:
            self.told["answered in bytes that are no frame"] += 1
            return False
        return goes_on and not ender

    def hear(self, wait_s: float) -> bytes:
        """Count what is said until the datanode is silent or gone, and return it."""
        counts = self._is_over()

        def never(said: bytearray) -> bool:
            counts(said)
            return False

        try:
            return self.hear_until(never, wait_s)[0]
        except BadFrame:
            self.told["answered in bytes that are no frame"] += 1
            return b""

    def _is_over(self) -> Callable[[bytearray], bool]:
        """Return what counts the frames that are heard, and says whether the last answer is among them."""
        seen = 0

        def is_over(said: bytearray) -> bool:
            nonlocal seen
            fresh, seen = bytes(said[seen:]), len(said)
            over = False
            while fresh:
                room = self._buffer.space()
                part, fresh = fresh[: len(room)], fresh[len(room) :]
                room[: len(part)] = part
                room.release()
                self._buffer.received(len(part))
                while (frame := self._buffer.frame()) is not None:
                    over |= frame.header.sequence == self._last
                    count_frame(frame.header.kind, bytes(frame.payload), self.told)
            return over

        return is_over


def plausible(arms: Arms) -> dict[str, list[object]]:
    """Return plausible values by the names of fields: real blocks only if whoever names one is not served for it."""
    words: dict[str, list[object]] = {
        "by": ["dn1", "mallory"],
        "datanode": ["dn1", "dn2"],
        "timeout_ms": [1],
        "watch_timeout_ms": [1],
    }
    words |= {"bytes_per_checksum": [65_536], "wait_effective": [True, False], "window_bytes": [65_536]}
    if arms.blocks_are_guarded:
        return words | {
            "partition": [one[0] for one in arms.blocks], "container_id": [one[1] for one in arms.blocks],
            "local_id": [one[2] for one in arms.blocks],
        }  # fmt: skip
    return words | {"partition": [NO_SUCH_PARTITION], "container_id": [2**61 + 5], "local_id": [2**60 + 3]}


class WildFrames:
    """Makes frames."""

    def __init__(self, arms: Arms, rng: random.Random) -> None:
        self._rng = rng
        self._arms = arms
        self._wild = Wild(rng, plausible(arms))

    def hello(self) -> bytes:
        """Return a HELLO that is right."""
        said = Hello(
            peer="mallory", cluster=self._arms.cluster, min_version=1, max_version=VERSION, max_payload_bytes=4096
        )
        return encode_frame(Kind.HELLO, encode(said))

    def lying_hello(self) -> bytes:
        """Return one that lies."""
        rng = self._rng
        lie = rng.choice((
            Hello(peer="om1", cluster="", min_version=1, max_version=VERSION, max_payload_bytes=2**31),
            Hello(peer="dn1", cluster="other", min_version=1, max_version=VERSION, max_payload_bytes=0),
            Hello(peer="x" * 3000, cluster=self._arms.cluster, min_version=99, max_version=-1, max_payload_bytes=-1),
        ))  # fmt: skip
        frame = encode_frame(Kind.HELLO, encode(lie))
        return changed(rng, frame) if rng.random() < 0.3 else frame

    def request(self) -> bytes:
        """Return a request whose frame is right, so that the connection goes on."""
        return self._frame(Kind.REQUEST, self._payload())

    def ender(self) -> bytes:
        """Return a frame that ends most connections: of another kind, or with a header that lies."""
        rng = self._rng
        if rng.random() < 0.4:
            return self._lying(self._frame(rng.choice(tuple(Kind)), self._payload()))
        if rng.random() < 0.5:
            return self._frame(Kind.OPEN, self._payload((OpenStream,)))
        return self._frame(rng.choice([one for one in Kind if one is not Kind.REQUEST]), self._payload())

    def _frame(self, kind: Kind, payload: bytes) -> bytes:
        rng = self._rng
        numbers = {"stream": rng.randrange(3), "sequence": rng.randrange(2**32), "offset": rng.choice((0, 1, 2**40))}
        return encode_frame(kind, payload, **numbers)

    def _payload(self, kinds: Sequence[type] = REQUESTS) -> bytes:
        rng = self._rng
        while True:
            body = self._wild.record(rng.choice(kinds))
            if not self._arms.blocks_are_guarded and hasattr(body, "partition"):
                body.partition = NO_SUCH_PARTITION
            if kinds is REQUESTS and isinstance(body, OpenStream | WriteBlocks) and rng.random() < 0.5:
                continue
            try:
                found = encode(body)
            except Unencodable:
                continue
            if len(found) <= MAX_FUZZED_BYTES:
                return changed(rng, found) if rng.random() < 0.2 else found

    def _lying(self, frame: bytes) -> bytes:
        """Return a frame whose header lies; half of the time its checksum is right."""
        rng = self._rng
        if rng.random() < 0.4:
            return changed(rng, frame)
        head = bytearray(frame[: HEADER_BYTES - 4])
        match rng.randrange(3):
            case 0:
                head[4:8] = rng.choice((0, 1, 2**31, 2**32 - 1, 4 * 2**20)).to_bytes(4, "big")
            case 1:
                head[3] = rng.randrange(256)
            case _:
                head[rng.randrange(len(head))] ^= 1 << rng.randrange(8)
        return bytes(head) + crc32c(bytes(head)).to_bytes(4, "big") + frame[HEADER_BYTES:]


def count_frame(kind: Kind, payload: bytes, told: Told) -> None:
    """Count what a datanode says."""
    if kind is Kind.HELLO:
        return
    told["answered"] += 1
    try:
        answer = decode(payload) if payload else None
    except Undecodable:
        answer = None
    if isinstance(answer, StreamError):
        told["refused"] += 1
        told[f"said {answer.code}"] += 1
        told["failed"] += answer.code == "FAILED" and "log says more" in answer.message
        return
    name = f"{kind.name} {type(answer).__name__}"
    told[f"answered {name}"] += 1
    told["allowed"] += type(answer).__name__ not in HARMLESS_ANSWERS
