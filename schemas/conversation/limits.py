"""How large a peer's messages may be, by when they are said and by their type (decision 0031).

======================================  ==========================================================================
before the peer's HELLO is read         HELLO, or ERROR instead of it, of MAX_HELLO_BYTES (``FrameBuffer.greeting``)
a frame, by its kind                    ``PAYLOAD_LIMITS``, looked at when its header has come
a record, by its type                   MAX_RECORD_BYTES, looked at before it is decoded; those below fill a frame
======================================  ==========================================================================

The functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.codecs.codec import HEADER_BYTES, Undecodable, decode
from schemas.codecs.registry import MARKER, registry
from schemas.records.datanode import TokenedRequest
from schemas.records.packets import MAX_RECORD_BYTES, Frame, Kind

LARGE_INNER = frozenset({"PutBlock", "WriteChunk"})
LARGE_REQUESTS = LARGE_INNER | {"Forwarded", "WriteBlocks", "TokenedRequest"}
LARGE_ANSWERS = frozenset({"BlockInfo", "ContainerBlocks"})
"""Records that contain bytes of blocks, or checksums, and may therefore fill a frame; LARGE_INNER also with tokens
beside them. Decoded, they take about as much memory as encoded (rows of ContainerBlocks take more, but only datanodes
that were asked send them). All other records take many times as much decoded, and are limited to MAX_RECORD_BYTES.
"""
_NONE: frozenset[str] = frozenset()
LARGE_BY_KIND: Mapping[Kind, frozenset[str]] = {
    Kind.REQUEST: LARGE_REQUESTS, Kind.END: LARGE_REQUESTS, Kind.REPLY: LARGE_ANSWERS,
}  # fmt: skip
"""By kind of frame, the records that may fill one. For a kind that is not named here, none may."""


class UnreadableRecord(ValueError):
    """A whole payload, in its place, that is too large for its type or is not the record expected there."""


def decode_within(data: bytes, what: str, large: frozenset[str]) -> Any:
    """Decode a record; raises UnreadableRecord, which names it as ``what``.

    A record over MAX_RECORD_BYTES is not decoded, unless its type is among the ``large``.
    """
    if len(data) > MAX_RECORD_BYTES:
        known = registry.by_fingerprint(data[len(MARKER) : HEADER_BYTES])
        name = "record" if known is None else known.name
        if name not in large:
            raise UnreadableRecord(f"{what}: a {name} of {len(data)} bytes; at most {MAX_RECORD_BYTES} are taken")
    try:
        return decode(data)
    except Undecodable as error:
        raise UnreadableRecord(f"{what}: {type(error).__name__}: {error}") from error


def record_of(frame: Frame, *types: type) -> Any:
    """Return the record in a frame's payload; raises UnreadableRecord. With ``types``, it must be one of them.

    The payload is copied: the buffer is reused, so a record must not keep views of it.
    """
    kind = frame.header.kind
    value = decode_within(bytes(frame.payload), f"payload of {kind.name}", LARGE_BY_KIND.get(kind, _NONE))
    if types and not isinstance(value, types):
        wanted = " or ".join(cls.__name__ for cls in types)
        raise UnreadableRecord(f"payload of {kind.name} is a {type(value).__name__}, not a {wanted}")
    return value


def without_tokens(value: Any) -> tuple[Any, bytes]:
    """Return the request in a TokenedRequest, and its block tokens; any other record as it is, without tokens.

    Raises UnreadableRecord if the request cannot be read, or has tokens again.
    """
    if not isinstance(value, TokenedRequest):
        return value, b""
    inner = decode_within(value.request, "request with block tokens", LARGE_INNER)
    if isinstance(inner, TokenedRequest):
        raise UnreadableRecord("request with block tokens: it has tokens again")
    return inner, value.tokens
