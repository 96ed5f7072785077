"""A query's checkpoint, compared with logs that may have been trimmed while the query did not run.

Spark goes on where its last committed micro-batch ended. If the log begins behind that place, the query could never run
again: lost data fails it. Then its checkpoint is set aside, and the query begins anew, at the log's base.

Layout (Spark 4): ``commits/N`` exists once micro-batch N is committed, and ``offsets/N`` says where it ended: a
version, a line of metadata, and one JSON object for each source, ``{"topic": {"partition": next offset}}``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers

ADMIN_TIMEOUT_S = 30.0
ASIDE = ".before-trim"
"""Ending of the name under which a folder is set aside; an older one of that name is removed."""


def committed_offsets(checkpoint: Path) -> dict[TopicPartition, int]:
    """Return where the last committed micro-batch ended; empty if there is none, or if the files are foreign."""
    try:
        last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
        lines = (checkpoint / "offsets" / str(last)).read_text().splitlines()[2:]
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
            _set_aside(folder)
    return lost


def _set_aside(folder: Path) -> None:
    aside = folder.with_name(folder.name + ASIDE)
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
