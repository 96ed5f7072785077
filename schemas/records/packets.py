"""Frames of the datanodes' stream protocol: what travels on a TCP connection, in both directions.

A frame is a header of HEADER_BYTES and a payload. The header is fixed and big-endian::

    magic "SD" (2) | version (1) | kind (1) | payload length (4) | stream (8) | sequence (8) | offset (8)
    | CRC32C of the payload (4) | CRC32C of the header up to here (4)

A frame is forwarded as it came, so its checksums hold from the client to the last datanode. The payload of a DATA frame
is raw bytes of a block; END and ACK have no payload or an encoded record; all others have one encoded record
(``schemas.records.datanode``).

What frames mean
    - Both sides begin with HELLO (``stream``, ``sequence`` and ``offset`` 0), without waiting for each other's.
    - A stream: OPEN, answered by ACK; DATA, each where the one before ends, ``sequence`` rising; END, answered by ACK
      with END's ``sequence``. ACKs in between are cumulative: one may stand for many packets. The client chooses
      ``stream``, and every answer has it. ERROR ends the stream, and the datanode closes the connection.
    - A request: REQUEST, answered by REPLY or ERROR with its ``stream`` and ``sequence``. A ReadBlock or SalvageBlock
      is answered by DATA frames of one checksum cell each (``offset`` is the cell's in the block) and END, whose
      ``offset`` is the end of the last cell; or by ERROR, also after some cells. The connection goes on.

Everything here is pure and knows no sockets. Whatever is wrong raises ``BadFrame``, which names it. After a bad
header a stream of bytes cannot be read any further.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct

from crc32c import crc32c

from schemas.records.framing import BadFrame, Framing
from schemas.records.record import record

FRAME_VERSION = 1
"""Version of the header's layout, as each frame carries it."""
VERSION = 3
MIN_VERSION = 1
VERSIONS = range(MIN_VERSION, VERSION + 1)
"""Versions of the conversation that this software speaks, highest and lowest, as HELLO carries them."""
SMALL_BLOCKS_VERSION = 2
"""From this version on, a datanode knows WriteBlocks, PutBlocks and WatchBlocks."""
BLOCK_TOKENS_VERSION = 3
"""From this version on, a datanode knows TokenedRequest and BlockTokenKeys."""

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024 + 64 * 1024
"""Largest payload: a chunk of the old way, and what its record adds."""
MAX_PACKET_BYTES = 4 * 1024 * 1024
"""Largest payload of a DATA frame."""
MAX_HELLO_BYTES = 4 * 1024
"""Largest payload of HELLO: two names and three numbers, from whoever connects."""
MAX_RECORD_BYTES = 64 * 1024
"""Largest payload of OPEN, ACK and ERROR, and of every record that does not carry bytes of blocks or checksums."""
PACKET_BYTES = 64 * 1024
"""Usual payload of a DATA frame."""
CELL_BYTES = 64 * 1024
"""Usual size of a checksum cell: the bytes of a block that one CRC32C covers."""
MAX_BLOCKS_TOGETHER = 64
"""Blocks in one WriteBlocks, PutBlocks or WatchBlocks."""
MAX_BYTES_TOGETHER = 2 * 1024 * 1024
"""Bytes of blocks in one WriteBlocks."""
MAX_ROUTES = 7
"""Datanodes in one spanning tree."""

MAX_STREAM_ID = 2**64 - 1
"""Largest ``stream``, ``sequence`` and ``offset``."""

_MAGIC = b"SD"
_FIXED = Struct(">2sBBIQQQI")
_CHECK = Struct(">I")
HEADER_BYTES = _FIXED.size + _CHECK.size


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    """First frame of each side; ``offset`` stands for its brokers (``schemas/kafka/brokers_id.py``), 0: not known."""
    OPEN = 2
    """A stream begins (OpenStream); answered by ACK of the offset it begins at once the whole tree below stands."""
    DATA = 3
    """Bytes of a block; ``offset`` is theirs in the block."""
    END = 4
    """The stream's last frame; ``offset`` is the block's length. Its payload is empty or a PutBlock (way 2)."""
    ACK = 5
    """All replicas from here down have everything below ``offset``; after END it may carry a BlockCommitted."""
    REQUEST = 6
    """One encoded request; ``sequence`` comes back in the reply."""
    REPLY = 7
    """Its answer: one encoded record."""
    ERROR = 8
    """A StreamError: ends a stream, or answers a request."""


PAYLOAD_LIMITS = dict.fromkeys(Kind, MAX_PAYLOAD_BYTES) | {
    Kind.HELLO: MAX_HELLO_BYTES, Kind.OPEN: MAX_RECORD_BYTES, Kind.ACK: MAX_RECORD_BYTES, Kind.ERROR: MAX_RECORD_BYTES,
    Kind.DATA: MAX_PACKET_BYTES,
}  # fmt: skip
"""Largest payload by kind of frame."""
_FRAMING = Framing(
    magic=_MAGIC, versions=range(FRAME_VERSION, FRAME_VERSION + 1), kinds={int(kind): kind for kind in Kind},
    limits=PAYLOAD_LIMITS,
)  # fmt: skip


@record
class FrameHeader:
    """A frame but for its payload. Lengths and offsets in bytes."""

    kind: Kind
    stream: int
    sequence: int
    offset: int
    length: int
    crc: int


def encode_header(kind: Kind, stream: int, sequence: int, offset: int, length: int, crc: int) -> bytes:
    """Return the HEADER_BYTES of a frame whose payload has ``length`` bytes and CRC32C ``crc``.

    The numbers are the caller's to keep within their fields; one that is not raises struct.error.
    """
    fixed = _FIXED.pack(_MAGIC, FRAME_VERSION, kind, length, stream, sequence, offset, crc)
    return fixed + _CHECK.pack(crc32c(fixed))


def encode_frame(kind: Kind, payload: bytes = b"", *, stream: int = 0, sequence: int = 0, offset: int = 0) -> bytes:
    """Return a whole frame. For DATA, send header and payload apart instead of copying the payload."""
    return encode_header(kind, stream, sequence, offset, len(payload), crc32c(payload)) + payload


def decode_header(data: bytes | bytearray | memoryview) -> FrameHeader:
    """Decode HEADER_BYTES. Raises BadFrame: wrong magic, checksum, version, kind, or a payload over its limit."""
    if len(data) != HEADER_BYTES:
        raise BadFrame(f"{len(data)} bytes where a header of {HEADER_BYTES} was expected")
    magic, version, kind, length, stream, sequence, offset, crc = _FIXED.unpack_from(data)
    _FRAMING.check_magic(magic)
    if _CHECK.unpack_from(data, _FIXED.size)[0] != crc32c(memoryview(data)[: _FIXED.size]):
        raise BadFrame("the checksum of a frame's header is wrong")
    known = _FRAMING.kind_of(version, kind, length)
    return FrameHeader(kind=known, stream=stream, sequence=sequence, offset=offset, length=length, crc=crc)


def check_payload(header: FrameHeader, payload: bytes | bytearray | memoryview) -> None:
    """Raise BadFrame if the payload is not the header's."""
    if len(payload) != header.length or crc32c(payload) != header.crc:
        raise BadFrame(
            f"the payload of {header.kind.name} {header.sequence} at offset {header.offset} does not have its checksum"
        )


class Frame:
    """A frame in a FrameBuffer; its views are good until the buffer is asked for space again."""

    __slots__ = ("header", "payload", "start", "whole")

    def __init__(self, header: FrameHeader, whole: memoryview, start: int) -> None:
        self.header = header
        self.start = start
        """Where it begins in the buffer."""
        self.whole = whole
        """Header and payload as they came."""
        self.payload = whole[HEADER_BYTES:]

    def check(self) -> None:
        """Raise BadFrame if the payload does not have its checksum."""
        check_payload(self.header, self.payload)


class FrameBuffer:
    """Takes frames out of bytes that are received into one reused buffer.

    Call ``sock.recv_into(buffer.space())``, then ``received(count)``, then ``frame()`` until it returns None. Frames
    are contiguous, so one frame, or several in a row, can be sent on with a single call (``together``).

    ``space`` ends ``ahead_bytes`` behind the frame that is being received, or behind a packet of the usual size if that
    is further. With the size of a header (the default) a call receives a whole packet and the next one's header, and
    next to nothing is ever moved; of smaller frames it receives all that are there. The buffer grows to the largest
    frame that comes, which decode_header limits. ``grow`` is called first, with the number of bytes, and may raise.
    ``shrink`` gives them back.
    """

    def __init__(self, ahead_bytes: int = HEADER_BYTES, grow: Callable[[int], None] = lambda _: None) -> None:
        self._ahead = ahead_bytes
        self._grow = grow
        self._usual = HEADER_BYTES + PACKET_BYTES + ahead_bytes
        self._buffer = memoryview(bytearray(self._usual))
        self._start = 0
        self._end = 0
        self._header: FrameHeader | None = None
        self.greeting = False
        """Whether nothing but HELLO, or an ERROR instead of it, is taken: a stranger's frames get no room."""

    def __len__(self) -> int:
        """Bytes that were received and not taken yet."""
        return self._end - self._start

    def space(self) -> memoryview:
        """Return where to receive into, never empty; ends the life of the views handed out before.

        Raises BufferError if a whole frame has not been taken yet: the buffer holds one, not a queue of them.
        """
        needed = HEADER_BYTES + (self._header.length if self._header else 0)
        wanted = max(needed + self._ahead, self._usual)
        if self._end - self._start >= needed:
            raise BufferError("a whole frame is left to be taken")
        if self._start:
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        if wanted > len(self._buffer):
            self._grow(wanted - len(self._buffer))
            grown = memoryview(bytearray(wanted))
            grown[: self._end] = self._buffer[: self._end]
            self._buffer = grown
        return self._buffer[self._end : wanted]

    @property
    def grown_bytes(self) -> int:
        """How much larger the buffer is than usual."""
        return len(self._buffer) - self._usual

    def shrink(self) -> None:
        """Give back what the buffer has grown by, if nothing is in it; ends the life of the views handed out before."""
        if self.grown_bytes and self._start == self._end and self._header is None:
            self._buffer = memoryview(bytearray(self._usual))
            self._start = self._end = 0

    def received(self, count: int) -> None:
        """Note that ``count`` bytes have come into ``space()``."""
        self._end += count

    def frame(self) -> Frame | None:
        """Return the next frame if it is whole, its payload unchecked. Raises BadFrame for a wrong header."""
        start = self._start
        if self._header is None:
            if self._end - start < HEADER_BYTES:
                return None
            header = decode_header(self._buffer[start : start + HEADER_BYTES])
            if self.greeting and header.kind not in (Kind.HELLO, Kind.ERROR):
                raise BadFrame(f"a connection begins with HELLO, not {header.kind.name}")
            if self.greeting and header.length > MAX_HELLO_BYTES:
                raise BadFrame(
                    f"a {header.kind.name} of {header.length} bytes before HELLO; at most {MAX_HELLO_BYTES} are taken"
                )
            self._header = header
        end = start + HEADER_BYTES + self._header.length
        if end > self._end:
            return None
        header, self._header, self._start = self._header, None, end
        return Frame(header, self._buffer[start:end], start)

    def together(self, first: Frame, last: Frame) -> memoryview:
        """Return the bytes from one frame to another that was taken later, while both are good."""
        return first.whole if first is last else self._buffer[first.start : last.start + len(last.whole)]
