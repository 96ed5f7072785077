"""A shard's log from its first record on, judged by the reading rule: for the commands and the drills.

A log that was trimmed begins with a base (``replicated_db/core/trimming/bases.py``), and is judged from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from replicated_db.core.errors import StopProcess
from replicated_db.core.log.position import Position
from replicated_db.core.log.reading import Reading, advance, judge, position_before
from replicated_db.core.ports import Entry, LogUnavailable, OffsetOutOfRange
from replicated_db.shell.kafka.kafka_log import KafkaLog
from schemas.codecs.codec import Undecodable, decode
from schemas.kafka.client_settings import client_settings
from schemas.records.log import DigestBase, LogRecord
from schemas.topics import OM_LOG
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError

READ_LIMIT = 500
WAIT_S = 5.0
SILENT_READS = 12
"""A reader gives up after this many reads of WAIT_S in a row without a record, before the end of the log."""


class JudgedRecord(NamedTuple):
    """A record as it lies in the log, its decoded form (None: undecodable), and what the reading rule says of it."""

    entry: Entry
    record: LogRecord | None
    verdict: Reading | StopProcess


def first_offset(settings: Settings, shard: int) -> int:
    """Return the first offset of a shard's log: 0 unless it was trimmed. Raises Unavailable."""
    source = KafkaLog(settings.connection, OM_LOG, shard, "")
    try:
        return source.bounds().first
    except LogUnavailable as error:
        raise Unavailable(f"{OM_LOG}/{shard}: {error}") from error
    finally:
        source.close()


def read_entries(settings: Settings, shard: int, start: int = 0, until: int | None = None) -> Iterator[Entry]:
    """Read a shard's log from offset ``start`` up to and with ``until`` (None: its present end); raises Unavailable."""
    source = KafkaLog(settings.connection, OM_LOG, shard, "")
    silent = 0
    try:
        first, end = source.bounds()
        if start < first:
            raise UserError(f"the log of shard {shard} was trimmed: it begins at offset {first}, not at {start}")
        if until is not None:
            end = min(end, until + 1)
        offset = start
        while offset < end:
            entries = source.read(offset, min(READ_LIMIT, end - offset), WAIT_S)
            silent = 0 if entries else silent + 1
            if silent == SILENT_READS:
                raise LogUnavailable(f"offset {offset} of {end} is not served")
            yield from entries
            offset = entries[-1].offset + 1 if entries else offset
    except (LogUnavailable, OffsetOutOfRange) as error:
        raise Unavailable(f"{OM_LOG}/{shard}: {error}") from error
    finally:
        source.close()


def read_judged(settings: Settings, shard: int, until: int | None = None) -> Iterator[JudgedRecord]:
    """Read a shard's log from its first record up to and with offset ``until`` (None: its present end).

    The first record is the only place to begin, because earlier records decide which later ones are void. A record that
    breaks the log's contract is the last one. Raises Unavailable if the brokers do not answer, UserError for a trimmed
    log that does not begin with a base.
    """
    position = Position()
    first = first_offset(settings, shard)
    if until is not None and until < first:
        raise UserError(f"the log of shard {shard} was trimmed: it begins at offset {first}, behind {until}")
    for entry in read_entries(settings, shard, first, until):
        try:
            record: LogRecord = decode(entry.value)
            if entry.offset == first > 0:
                position = _position_at_start(shard, first, record)
            reading = judge(position, record)
        except Undecodable as error:
            yield JudgedRecord(entry, None, StopProcess(str(error)))
            return
        except StopProcess as error:
            yield JudgedRecord(entry, record, error)
            return
        if reading.takes_effect:
            position = advance(position, record, entry.offset, entry.value)
        yield JudgedRecord(entry, record, reading)


def _position_at_start(shard: int, first: int, record: LogRecord) -> Position:
    if not isinstance(record, DigestBase):
        raise UserError(
            f"the log of shard {shard} begins at offset {first} with a {type(record).__name__}, and what is void there "
            "follows from what was deleted: it was not trimmed by 'stratolog admin trim'"
        )
    return position_before(record)


def topic_id(settings: Settings) -> str:
    """Return Kafka's id of the log topic, which a topic made anew does not share; raises Unavailable."""
    admin = AdminClient(client_settings(settings.connection, {"socket.timeout.ms": 5000, "log_level": 0}))
    try:
        found = admin.describe_topics(TopicCollection([OM_LOG]), request_timeout=5)[OM_LOG].result()
    except Exception as error:
        raise Unavailable(f"{settings.connection}: {error}") from error
    return str(found.topic_id)
