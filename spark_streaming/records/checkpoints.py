"""A query's checkpoint: whether it is whole, and whether the log still has what comes after it.

Spark goes on where its last committed micro-batch ended. If the log begins behind that place, the query could never
run again: lost data fails it. Nor could it if the machine crashed and a file of the checkpoint is torn or lost, because
Spark writes without fsync. Then the checkpoint is set aside, and the query begins anew, at the log's base: what it said
before is said again, from the same records.

Layout (Spark 4): ``commits/N`` exists once micro-batch N is committed, and ``offsets/N`` says where it ended: a
version, a line of metadata, and one JSON object for each source, ``{"topic": {"partition": next offset}}``. Beside a
file ``F`` lies ``.F.crc``: ``crc`` and a zero, the length of a chunk (4, big-endian), and the CRC-32 of each chunk.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers

ADMIN_TIMEOUT_S = 30.0
ASIDE = ".before-trim"
"""Ending of the name under which a folder is set aside; an older one of that name is removed."""
ASIDE_DAMAGED = ".damaged"
"""The same for a checkpoint of which something is torn or lost."""
MAX_CHECKED_BYTES = 64 * 1024 * 1024
"""Of so many bytes of a checkpoint, the newest, are checksums compared: a crash tears what was written last."""


def committed_offsets(checkpoint: Path) -> dict[TopicPartition, int]:
    """Return where the last committed micro-batch ended; empty if there is none, or if the files are foreign."""
    try:
        last = _numbers(checkpoint / "commits")[-1]
    except (OSError, IndexError):
        return {}
    return _sources(checkpoint, last)


def _sources(checkpoint: Path, number: int) -> dict[TopicPartition, int]:
    """Return where a micro-batch ends in its sources; empty if its file is not there, or cannot be understood."""
    try:
        lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()[2:]
        sources = [json.loads(line) for line in lines if line != "-"]
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for source in sources
            for topic, partitions in source.items()
            for partition, offset in partitions.items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def log_starts(bootstrap_servers: Brokers, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the first offset of each partition; raises KafkaException if the brokers do not answer."""
    admin = AdminClient(client_settings(bootstrap_servers, {"log_level": 0}))
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(one.topic, one.partition): earliest for one in partitions}
    if not asked:
        return {}
    answers = admin.list_offsets(asked, request_timeout=ADMIN_TIMEOUT_S)
    return {partition: future.result().offset for partition, future in answers.items()}


def first_lost(committed: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int]) -> str | None:
    """Say what the query would miss if it went on, None if it would miss nothing."""
    known = {(one.topic, one.partition): start for one, start in starts.items()}
    for one, offset in sorted(committed.items(), key=lambda pair: (pair[0].topic, pair[0].partition)):
        if (start := known.get((one.topic, one.partition), 0)) > offset:
            return f"{one.topic}/{one.partition} begins at offset {start}, and had been read up to {offset}"
    return None


def damage(checkpoint: Path) -> str | None:
    """Say what of a checkpoint is torn or lost, None if a query can go on with it."""
    planned, done = (_numbers(checkpoint / name) for name in ("offsets", "commits"))
    last = done[-1] if done else -1
    if not planned and not done:
        return _torn_file(checkpoint, last)
    if last not in planned and last >= 0:
        return f"offsets/{last} is lost"
    if planned[-1] > last + 1:
        return f"commits/{planned[-1] - 1} is lost"
    if not (checkpoint / "metadata").exists():
        return "metadata is lost"
    unreadable = [number for number in planned if number >= last and not _sources(checkpoint, number)]
    return f"offsets/{unreadable[0]} is torn" if unreadable else _torn_file(checkpoint, last)


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []


def _torn_file(checkpoint: Path, last: int) -> str | None:
    """Return a file that the query goes on with after micro-batch ``last`` and that has not its checksums.

    Spark writes under names that begin with a period, and leaves such files behind when it is killed.
    """
    left = MAX_CHECKED_BYTES
    try:
        for crcs in sorted(checkpoint.rglob(".*.crc"), key=lambda path: path.stat().st_mtime, reverse=True):
            file = crcs.with_name(crcs.name.removeprefix(".").removesuffix(".crc"))
            number = file.name.partition(".")[0]
            is_ahead = number.isdecimal() and int(number) > last + 1
            if left <= 0 or is_ahead or file.name.startswith(".") or not file.exists():
                continue
            data = file.read_bytes()
            left -= len(data)
            if not _has_checksums(data, crcs.read_bytes()):
                return f"{file.relative_to(checkpoint)} is torn"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _has_checksums(data: bytes, crcs: bytes) -> bool:
    size = int.from_bytes(crcs[4:8], "big")
    if not crcs.startswith(b"crc\0") or not size:
        return False
    chunks = (data[start : start + size] for start in range(0, len(data), size))
    return crcs[8:] == b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks)


def begin_anew_if_damaged(checkpoint: Path, others: Iterable[Path] = ()) -> str | None:
    """Set a checkpoint aside if something of it is torn or lost, and ``others`` with it; return what, or None."""
    what = damage(checkpoint)
    if what is not None:
        for folder in (checkpoint, *others):
            _set_aside(folder, ASIDE_DAMAGED)
    return what


def begin_anew_if_trimmed(
    bootstrap_servers: Brokers, checkpoint: Path, topics: Iterable[str], others: Iterable[Path] = ()
) -> str | None:
    """Set a checkpoint aside if one of ``topics`` was trimmed past it, and ``others`` with it; return why, or None.

    ``others``: folders whose content belongs to the checkpoint (output that is numbered by micro-batch).
    """
    wanted = frozenset(topics)
    committed = {one: offset for one, offset in committed_offsets(checkpoint).items() if one.topic in wanted}
    lost = first_lost(committed, log_starts(bootstrap_servers, committed))
    if lost is not None:
        for folder in (checkpoint, *others):
            _set_aside(folder, ASIDE)
    return lost


def _set_aside(folder: Path, ending: str) -> None:
    aside = folder.with_name(folder.name + ending)
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
