"""A log record as the auditor's reading rule sees it, and whole: tables need the values. Pure."""

from __future__ import annotations

from schemas.codecs.codec import Undecodable, UnknownSchema, decode
from schemas.records.log import LogRecord
from spark_streaming.records.core.log_headers import header_of
from spark_streaming.records.core.reading import LOG_RECORD_TYPES, UNKNOWN_SCHEMA, Header


def read_record(offset: int, value: bytes | None) -> tuple[Header, LogRecord | None]:
    """Decode a record of a log; return its header and itself, or a header with an error and None."""
    if value is None:
        return Header(offset=offset, kind=None, error="no value"), None
    try:
        record = decode(value)
    except UnknownSchema as error:
        return Header(offset=offset, kind=None, error=f"{UNKNOWN_SCHEMA} {error.fingerprint.hex()}"), None
    except Undecodable as error:
        return Header(offset=offset, kind=None, error=str(error)), None
    kind = type(record).__name__
    if kind not in LOG_RECORD_TYPES:
        return Header(offset=offset, kind=None, error=f"a {kind} is no record of a log"), None
    return header_of(offset, value, record), record
