"""The stream ports of datanodes: frames of every kind, HELLOs that lie, as a stranger and with a client's certificate."""

from __future__ import annotations

import random
import ssl

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
from schemas.records.packets import HEADER_BYTES, VERSION, BadFrame, FrameBuffer, Kind, encode_frame
from tests.chaos.fuzz.arms import Arms, Told, context_of, heard_until, line_to, say
from tests.chaos.fuzz.wild import Wild, changed

TOGETHER = 40
STRANGERS = 0.1
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


def attack(arms: Arms, frames: int, seed: int, told: Told) -> None:
    """Send so many frames, by turns to each datanode."""
    rng = random.Random(f"datanode {seed}")
    made = WildFrames(arms, rng)
    known, unknown = context_of(arms, known=True), context_of(arms, known=False)
    addresses = list(arms.datanodes.values())
    while told["sent"] < frames:
        sent = [made.frame() for _ in range(rng.randrange(1, TOGETHER))]
        told["sent"] += len(sent) + 1
        told["connections"] += 1
        context = rng.choice((None, unknown)) if rng.random() < STRANGERS else known
        try:
            _talk(arms, rng.choice(addresses), context, made.hello(), sent, told, is_known=context is known)
        except OSError as error:
            told["closed"] += 1
            told[f"connection: {type(error).__name__}"] += 1


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
        """Return a HELLO, a tenth of the time one that lies."""
        rng = self._rng
        said = Hello(
            peer="mallory", cluster=self._arms.cluster, min_version=1, max_version=VERSION, max_payload_bytes=4096
        )
        if rng.random() < 0.9:
            return encode_frame(Kind.HELLO, encode(said))
        lie = rng.choice((
            Hello(peer="om1", cluster="", min_version=1, max_version=VERSION, max_payload_bytes=2**31),
            Hello(peer="dn1", cluster="other", min_version=1, max_version=VERSION, max_payload_bytes=0),
            Hello(peer="x" * 3000, cluster=self._arms.cluster, min_version=99, max_version=-1, max_payload_bytes=-1),
        ))  # fmt: skip
        frame = encode_frame(Kind.HELLO, encode(lie))
        return changed(rng, frame) if rng.random() < 0.3 else frame

    def frame(self) -> bytes:
        """Return a frame: mostly a request that is whole, so that the connection goes on."""
        rng = self._rng
        payload = self._payload()
        kind = Kind.REQUEST if rng.random() < 0.95 else rng.choice(tuple(Kind))
        numbers = {"stream": rng.randrange(3), "sequence": rng.randrange(2**32), "offset": rng.choice((0, 1, 2**40))}
        frame = encode_frame(kind, payload, **numbers)
        return self._lying(frame) if rng.random() < 0.03 else frame

    def _payload(self) -> bytes:
        rng = self._rng
        while True:
            kind = rng.choice(REQUESTS)
            body = self._wild.record(kind)
            if not self._arms.blocks_are_guarded and hasattr(body, "partition"):
                body.partition = NO_SUCH_PARTITION
            if isinstance(body, OpenStream | WriteBlocks) and rng.random() < 0.5:
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


def _talk(
    arms: Arms,
    address: str,
    context: ssl.SSLContext | None,
    hello: bytes,
    sent: list[bytes],
    told: Told,
    *,
    is_known: bool,
) -> None:
    last = 2**50
    end = encode_frame(Kind.REQUEST, encode(WatchBlock(
        partition=NO_SUCH_PARTITION, container_id=1, local_id=1, length=1, bcs_id=1, timeout_ms=1
    )), sequence=last)  # fmt: skip
    buffer = FrameBuffer()
    seen = [0]
    over = [False]

    def is_over(said: bytearray) -> bool:
        fresh, seen[0] = bytes(said[seen[0] :]), len(said)
        while fresh:
            room = buffer.space()
            part, fresh = fresh[: len(room)], fresh[len(room) :]
            room[: len(part)] = part
            room.release()
            buffer.received(len(part))
            while (frame := buffer.frame()) is not None:
                over[0] |= frame.header.sequence == last
                count_frame(frame.header.kind, bytes(frame.payload), told)
        return over[0]

    with line_to(address, context) as sock:
        say(sock, hello + b"".join(sent) + end, told)
        try:
            heard = heard_until(sock, is_over, told, arms.canary, wait_s=3.0)
        except BadFrame:
            told["answered in bytes that are no frame"] += 1
            return
    if not is_known:
        told["allowed"] += len(heard) > 7


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
