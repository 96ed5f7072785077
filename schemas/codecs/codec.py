"""Bytes <-> records: Avro single-object encoding, and the only place where bytes become records.

Layout of every encoded value (Avro specification, "Single-object encoding")::

    C3 01 | CRC-64-AVRO fingerprint of the writer schema, 8 bytes little-endian | Avro binary body

A reader finds the writer schema by its fingerprint among all versions (``registry``). Functions compiled
from the current schemas write and read the current versions (``native``, or ``python_codec`` where it was not built).
fastavro reads older versions and resolves them to the current one. In the golden tests avro-python3 and fastavro
confirm that the bytes follow the specification.

Whatever can be decoded can be encoded, so bytes are checked where they enter. The functions are pure. A malformed value
raises :class:`Undecodable`, an unknown fingerprint :class:`UnknownSchema`, a record that its schema does not allow
:class:`Unencodable`.
"""

from __future__ import annotations

import json
from functools import cache
from io import BytesIO
from typing import Any, TypeVar

from fastavro import schemaless_reader

from schemas.codecs.converters import record_decoder
from schemas.codecs.python_codec import Decoder, Encoder
from schemas.codecs.registry import FINGERPRINT_BYTES, MARKER, registry
from schemas.features import LATEST, version_at
from schemas.records import datanode, door, identity, log, messages, rows

try:
    from schemas.native import compile_decoder, compile_encoder
except ImportError:  # not built, for want of a compiler
    from schemas.codecs.python_codec import compile_decoder, compile_encoder

_ENCODING_ERRORS = (ValueError, TypeError, AttributeError, LookupError)
"""What encoders raise for a value that does not have its type."""

T = TypeVar("T")
HEADER_BYTES = len(MARKER) + FINGERPRINT_BYTES

TOP_LEVEL: tuple[type, ...] = (
    log.LeaderClaim, log.Genesis, log.Members, log.FeatureLevel, log.Prepared, log.Mode, log.Barrier, log.Tick,
    log.DigestBase, log.Batch, log.RequestBatch,
    messages.Request, messages.Requests, messages.PreparedRequest, messages.Response, messages.Responses,
    messages.Rejected, messages.AuditReport, messages.Verdict, messages.WindowStats,
    rows.VolumeInfo, rows.BucketInfo, rows.KeyInfo, rows.DatanodeRow, rows.SnapshotInfo,
    identity.PrefixInfo, identity.UserRow, identity.TokenRow,
    datanode.Hello, datanode.OpenStream, datanode.PutBlock, datanode.BlockCommitted, datanode.WatchBlock,
    datanode.BlockWatched, datanode.OpenBlocks, datanode.WriteBlocks, datanode.BlocksWritten, datanode.PutBlocks,
    datanode.BlocksCommitted, datanode.WatchBlocks, datanode.BlocksWatched, datanode.GetBlock, datanode.BlockInfo,
    datanode.ReadBlock, datanode.SalvageBlock,
    datanode.WriteChunk, datanode.ChunkWritten, datanode.DeleteBlocks, datanode.BlocksDeleted, datanode.OpenPipeline,
    datanode.ClosePipeline, datanode.CloseContainer, datanode.FetchContainer, datanode.ListContainer,
    datanode.ContainerBlocks, datanode.Forwarded, datanode.TokenedRequest, datanode.BlockTokenKeys, datanode.Accepted, datanode.StreamError, datanode.Heartbeat,
    datanode.BlockReport, datanode.BlockRow, datanode.PipelineRow, datanode.ContainerRow,
    door.DoorLeaders, door.DoorRead, door.DoorRows,
)  # fmt: skip


class Undecodable(ValueError):
    """The value is not a single-object encoded record of the type asked for."""


class Unencodable(ValueError):
    """The record has a field that its schema does not allow."""


class UnknownSchema(Undecodable):
    """No known version has the value's schema fingerprint: upgrade this node."""

    def __init__(self, fingerprint: bytes) -> None:
        super().__init__(f"unknown schema fingerprint {fingerprint.hex()}: upgrade this node")
        self.fingerprint = fingerprint


def _classes() -> dict[str, type]:
    """Return every record class by name, nested ones included."""
    modules = (log, messages, rows, datanode, door, identity)
    return {name: cls for module in modules for name, cls in vars(module).items() if isinstance(cls, type)}


CLASSES = _classes()
_current = {cls: registry.current(cls.__name__) for cls in TOP_LEVEL}
_encoders: dict[type, tuple[bytes, Encoder]] = {
    cls: (MARKER + version.fingerprint, compile_encoder(json.loads(version.text), CLASSES))
    for cls, version in _current.items()
}
_decoders: dict[bytes, tuple[str, Decoder]] = {
    MARKER + version.fingerprint: (version.name, compile_decoder(json.loads(version.text), CLASSES))
    for version in _current.values()
}


def header_of(cls: type) -> bytes:
    """Return the HEADER_BYTES that begin every value of a record type; raises KeyError for other classes."""
    return _encoders[cls][0]


def encode(value: Any) -> bytes:
    """Encode a record in the current version of its schema.

    Raises KeyError for a class that is not a top-level record, Unencodable for a field that its schema does not allow.
    """
    header, encoder = _encoders[type(value)]
    try:
        return header + encoder(value)
    except _ENCODING_ERRORS as error:
        raise Unencodable(f"not a valid {type(value).__name__}: {type(error).__name__}: {error}") from error


def encode_at(value: Any, level: int) -> bytes:
    """Encode a record in the version of its schema that belongs to feature level ``level`` (``schemas.features``)."""
    if level >= LATEST:
        header, encoder = _encoders[type(value)]
    else:
        name = type(value).__name__
        header, encoder = _encoder_of_version(name, version_at(name, level))
    try:
        return header + encoder(value)
    except _ENCODING_ERRORS as error:
        raise Unencodable(f"not a valid {type(value).__name__}: {type(error).__name__}: {error}") from error


@cache
def _encoder_of_version(name: str, number: int) -> tuple[bytes, Encoder]:
    version = registry.version(name, number)
    return MARKER + version.fingerprint, compile_encoder(json.loads(version.text), CLASSES)


def decode(data: bytes) -> Any:
    """Decode a record of the top-level type that its fingerprint names.

    Raises UnknownSchema for a fingerprint of no known version, Undecodable for any other fault, trailing bytes
    included.
    """
    found = _decoders.get(data[:HEADER_BYTES])
    if found is None:
        return decode_by_fastavro(data)
    name, decoder = found
    try:
        value, end = decoder(data, HEADER_BYTES)
    except (ValueError, IndexError) as error:
        raise Undecodable(f"not a valid {name}: {type(error).__name__}: {error}") from error
    if end != len(data):
        raise Undecodable(_wrong_end(name, end, len(data)))
    return value


def decode_by_fastavro(data: bytes) -> Any:
    """Decode a record of any version of its schema by fastavro, resolved to the current one.

    It is slower than :func:`decode`, and raises as that does.
    """
    if data[:2] != MARKER or len(data) < HEADER_BYTES:
        raise Undecodable(f"{len(data)} bytes starting {data[:4].hex()!r} are not single-object encoded Avro")
    version = registry.by_fingerprint(data[2:HEADER_BYTES])
    if version is None:
        raise UnknownSchema(data[2:HEADER_BYTES])
    body = BytesIO(data)
    body.seek(HEADER_BYTES)
    try:
        datum = schemaless_reader(body, version.parsed, version.resolve_to, return_record_name=True)
        value = record_decoder(CLASSES[version.name])(datum)
    except Exception as error:
        # fastavro raises EOFError, IndexError, ValueError, UnicodeDecodeError … on foreign bytes. The caller need
        # not know which: the value is unreadable.
        raise Undecodable(f"not a valid {version.name}: {type(error).__name__}: {error}") from error
    if body.tell() != len(data):
        raise Undecodable(_wrong_end(version.name, body.tell(), len(data)))
    try:
        encode(value)  # fastavro does not check the ranges of numbers
    except Unencodable as error:
        raise Undecodable(str(error)) from error
    return value


def _wrong_end(name: str, end: int, size: int) -> str:
    if end > size:
        return f"not a valid {name}: it ends {end - size} bytes too early"
    return f"{size - end} bytes too many after a {name}"


def decode_as(cls: type[T], data: bytes) -> T:
    """Decode a record of type ``cls``; raises as :func:`decode` does, and Undecodable for another type."""
    value = decode(data)
    if type(value) is not cls:
        raise Undecodable(f"a {type(value).__name__} where a {cls.__name__} was expected")
    return value
