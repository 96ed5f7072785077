"""Frames of the datanodes' stream protocol: what travels on a TCP connection, in both directions.

A frame is a header of HEADER_BYTES and a payload. The header is fixed and big-endian::

    magic "SD" (2) | version (1) | kind (1) | payload length (4) | stream (8) | sequence (8) | offset (8)
    | CRC32C of the payload (4) | CRC32C of the header up to here (4)

A frame is forwarded as it came, so its checksums hold from the client to the last datanode. Payloads of DATA frames are raw bytes of a
block; END, ACK and PING have none or an encoded record; all others are one encoded record (``schemas.datanode``).

The functions are pure and know no sockets. Whatever is wrong raises :class:`BadFrame`, which names it; a stream of bytes that had a bad
header cannot be read on.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from crc32c import crc32c

from schemas.record import record

VERSION = 1
MIN_VERSION = 1
"""Versions of the framing that this software speaks, lowest and highest."""

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024 + 64 * 1024
"""Largest payload: a chunk of the old way, and what its record adds."""
MAX_PACKET_BYTES = 4 * 1024 * 1024
"""Largest payload of a DATA frame."""
PACKET_BYTES = 64 * 1024
"""Usual payload of a DATA frame."""
CELL_BYTES = 64 * 1024
"""Usual size of a checksum cell: the bytes of a block that one CRC32C covers."""
MAX_ROUTES = 7
"""Datanodes in one spanning tree."""

_MAGIC = b"SD"
_FIXED = Struct(">2sBBIQQQI")
_CHECK = Struct(">I")
HEADER_BYTES = _FIXED.size + _CHECK.size


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    """First frame of each side."""
    OPEN = 2
    """A stream begins (OpenStream); answered by ACK of the offset it begins at once the whole tree below stands."""
    DATA = 3
    """Bytes of a block; ``offset`` is theirs in the block."""
    END = 4
    """The stream's last frame, ``offset`` the block's length; its payload is empty or a PutBlock that rides the stream."""
    ACK = 5
    """All replicas from here down have everything below ``offset``; after END it may carry a BlockCommitted."""
    REQUEST = 6
    """One encoded request; ``sequence`` comes back in the reply."""
    REPLY = 7
    """Its answer: one encoded record."""
    ERROR = 8
    """A StreamError: ends a stream, or answers a request."""


@record
class FrameHeader:
    """A frame but for its payload."""

    kind: Kind
    stream: int
    sequence: int
    offset: int
    length: int
    crc: int


class BadFrame(ValueError):
    """The bytes are no frame of a version that is spoken here."""


def encode_header(kind: Kind, stream: int, sequence: int, offset: int, length: int, crc: int) -> bytes:
    """Return the HEADER_BYTES of a frame whose payload has ``length`` bytes and CRC32C ``crc``."""
    fixed = _FIXED.pack(_MAGIC, VERSION, kind, length, stream, sequence, offset, crc)
    return fixed + _CHECK.pack(crc32c(fixed))


def encode_frame(kind: Kind, payload: bytes = b"", *, stream: int = 0, sequence: int = 0, offset: int = 0) -> bytes:
    """Return a whole frame. For DATA, send header and payload apart instead of copying the payload."""
    return encode_header(kind, stream, sequence, offset, len(payload), crc32c(payload)) + payload


def decode_header(data: bytes | bytearray | memoryview) -> FrameHeader:
    """Decode HEADER_BYTES. Raises BadFrame: wrong magic, checksum, version, kind, or a payload over its limit."""
    if len(data) != HEADER_BYTES:
        raise BadFrame(f"{len(data)} bytes where a header of {HEADER_BYTES} was expected")
    magic, version, kind, length, stream, sequence, offset, crc = _FIXED.unpack_from(data)
    if magic != _MAGIC:
        raise BadFrame(f"a frame begins with {magic!r}, not {_MAGIC!r}")
    if _CHECK.unpack_from(data, _FIXED.size)[0] != crc32c(bytes(data[: _FIXED.size])):
        raise BadFrame("the checksum of a frame's header is wrong")
    if not MIN_VERSION <= version <= VERSION:
        raise BadFrame(f"framing version {version}; {MIN_VERSION} to {VERSION} are spoken here")
    try:
        known = Kind(kind)
    except ValueError:
        raise BadFrame(f"unknown kind of frame: {kind}") from None
    limit = MAX_PACKET_BYTES if known is Kind.DATA else MAX_PAYLOAD_BYTES
    if length > limit:
        raise BadFrame(f"a {known.name} frame of {length} bytes; at most {limit} are taken")
    return FrameHeader(kind=known, stream=stream, sequence=sequence, offset=offset, length=length, crc=crc)


def check_payload(header: FrameHeader, payload: bytes | bytearray | memoryview) -> None:
    """Raise BadFrame if the payload is not the header's."""
    if len(payload) != header.length or crc32c(payload) != header.crc:
        raise BadFrame(
            f"the payload of {header.kind.name} {header.sequence} at offset {header.offset} does not have its checksum"
        )


def agreed_version(minimum: int, maximum: int) -> int:
    """Return the version to speak with a peer that speaks ``minimum`` to ``maximum``; raises BadFrame if there is none."""
    version = min(VERSION, maximum)
    if version < max(MIN_VERSION, minimum):
        raise BadFrame(f"the peer speaks framing {minimum} to {maximum}, this side {MIN_VERSION} to {VERSION}")
    return version
