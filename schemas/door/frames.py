"""Frames of the direct door, in both directions.

A connection begins as HTTP: ``GET /v1/door`` with ``Upgrade: stratolog-door``, answered with 101. From then on both
sides send frames: a header of HEADER_BYTES and a payload. The header is fixed and big-endian::

    magic "SO" (2) | version (1) | kind (1) | shard (4) | number (4) | payload length (4)
    | CRC32C of the header up to here and the payload (4)

What frames mean
    - Both sides begin with HELLO (a ``Hello``), without waiting for each other's. The node's is followed by LEADERS.
    - REQUESTS: a ``Request``, or an envelope of many (``schemas/codecs/envelopes.py``), for ``shard``.
    - KEYED: a key behind a byte with its length, and one ``Request``. The key is what a record of om.requests would
      have: the proof of a privileged request, or where its trace is.
    - ANSWERS: a ``Response``, or an envelope of many. Each request is answered by itself, in whatever order.
    - LEADERS (``DoorLeaders``): who leads, and again whenever that has changed.
    - READ (``DoorRead``), answered by ROWS (``DoorRows``) with its ``number``.
    - ERROR (a ``StreamError``): what was wrong. The node closes the connection.

A connection that breaks says nothing about the outcome of requests: the client sends them again, through either door.

Everything here is pure and knows no sockets. Whatever is wrong raises ``BadFrame``, which names it. After it a
stream of bytes cannot be read any further.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

from crc32c import crc32c

from schemas.records.framing import BadFrame, Framing
from schemas.records.record import record
from schemas.topics import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES

DOOR_VERSION = 1
MIN_DOOR_VERSION = 1
"""Versions of the framing that this software speaks, lowest and highest."""

UPGRADE = "stratolog-door"
"""The protocol's name in the header Upgrade."""
DOOR_PATH = "/v1/door"

MAX_KEY_BYTES = 255
"""Most bytes of the key that begins a KEYED frame."""
MAX_GREETING_BYTES = 4 * 1024
MAX_READ_KEYS = 1000
"""Most keys of one READ; a client asks for more in parts."""
MAX_READ_BYTES = 4 * 1024 * 1024
MAX_NUMBER = 2**32 - 1
"""Largest ``shard`` and ``number``."""

_MAGIC = b"SO"
_FIXED = Struct(">2sBBIII")
_CHECK = Struct(">I")
HEADER_BYTES = _FIXED.size + _CHECK.size


class DoorKind(IntEnum):
    """What a frame is."""

    HELLO = 1
    REQUESTS = 2
    KEYED = 3
    ANSWERS = 4
    LEADERS = 5
    READ = 6
    ROWS = 7
    ERROR = 8


DOOR_LIMITS = {
    DoorKind.HELLO: MAX_GREETING_BYTES,
    # A request over its limit is answered with REQUEST_TOO_LARGE, so a frame may hold a little more.
    DoorKind.REQUESTS: 2 * MAX_REQUEST_BYTES,
    DoorKind.KEYED: 2 * MAX_REQUEST_BYTES,
    DoorKind.ANSWERS: MAX_MESSAGE_BYTES,
    DoorKind.LEADERS: MAX_REQUEST_BYTES,
    DoorKind.READ: MAX_READ_BYTES,
    DoorKind.ROWS: 2 * MAX_MESSAGE_BYTES,
    DoorKind.ERROR: 64 * 1024,
}
"""Most bytes of a payload, by kind."""
DOOR_VERSIONS = range(MIN_DOOR_VERSION, DOOR_VERSION + 1)
_FRAMING = Framing(
    magic=_MAGIC, versions=DOOR_VERSIONS, kinds={int(kind): kind for kind in DoorKind}, limits=DOOR_LIMITS
)


@record
class DoorFrame:
    """A frame whose checksum is right."""

    kind: DoorKind
    shard: int
    number: int
    payload: bytes


def door_frame(kind: DoorKind, payload: bytes, *, shard: int = 0, number: int = 0) -> bytes:
    """Return a whole frame; raises BadFrame for a payload over its limit."""
    if len(payload) > DOOR_LIMITS[kind]:
        raise BadFrame(f"a {kind.name} frame of {len(payload)} bytes; at most {DOOR_LIMITS[kind]} are sent")
    fixed = _FIXED.pack(_MAGIC, DOOR_VERSION, kind, shard, number, len(payload))
    return fixed + _CHECK.pack(crc32c(payload, crc32c(fixed))) + payload


class DoorFrames:
    """Cuts received bytes into frames of the kinds that are heard. Keeps less than one frame, within its kind's limit.

    >>> sent = door_frame(DoorKind.READ, b"row", number=7)
    >>> frames = DoorFrames(frozenset({DoorKind.READ}))
    >>> [len(list(frames.take(part))) for part in (sent[:5], sent[5:], sent + sent)]
    [0, 1, 2]
    """

    def __init__(self, hears: frozenset[DoorKind]) -> None:
        self._hears = hears
        self._bytes = bytearray()

    def __len__(self) -> int:
        """Return how many bytes wait for the rest of their frame."""
        return len(self._bytes)

    def take(self, data: bytes) -> Iterator[DoorFrame]:
        """Yield the frames that ``data`` completes; raises BadFrame, also before a bad frame is whole."""
        self._bytes += data
        start = 0
        try:
            while (found := self._frame_at(start)) is not None:
                start += HEADER_BYTES + len(found.payload)
                yield found
        finally:
            del self._bytes[:start]

    def _frame_at(self, start: int) -> DoorFrame | None:
        if len(self._bytes) - start < HEADER_BYTES:
            _FRAMING.check_magic(bytes(self._bytes[start : start + len(_MAGIC)]))
            return None
        magic, version, kind, shard, number, length = _FIXED.unpack_from(self._bytes, start)
        _FRAMING.check_magic(magic)
        known = _FRAMING.kind_of(version, kind, length, self._hears)
        end = start + HEADER_BYTES + length
        if len(self._bytes) < end:
            return None
        with memoryview(self._bytes) as view:
            payload = bytes(view[start + HEADER_BYTES : end])
            check = crc32c(payload, crc32c(view[start : start + _FIXED.size]))
        if check != _CHECK.unpack_from(self._bytes, start + _FIXED.size)[0]:
            raise BadFrame(f"the checksum of a {known.name} frame of {length} bytes is wrong")
        return DoorFrame(kind=known, shard=shard, number=number, payload=payload)


def keyed(key: bytes, request: bytes) -> bytes:
    """Return the payload of a KEYED frame; raises BadFrame for a key of over MAX_KEY_BYTES."""
    if len(key) > MAX_KEY_BYTES:
        raise BadFrame(f"a key of {len(key)} bytes; at most {MAX_KEY_BYTES} are sent")
    return bytes([len(key)]) + key + request


def key_and_request(payload: bytes) -> tuple[bytes, bytes]:
    """Return what :func:`keyed` joined; raises BadFrame for a payload without a whole key.

    >>> key_and_request(keyed(b"key", b"request"))
    (b'key', b'request')
    """
    if not payload or len(payload) < 1 + payload[0]:
        raise BadFrame(f"a KEYED frame of {len(payload)} bytes has no whole key")
    return payload[1 : 1 + payload[0]], payload[1 + payload[0] :]
