"""The live view: one table of the latest verdicts, read from om.verdicts (design, section 9).

It needs no Spark. It consumes verdicts with confluent-kafka and keeps the last one for each (log, shard, node, basis),
at most MAX_ROWS of them. A verdict for an earlier barrier never replaces one for a later barrier. Each is shown with
its age, and in grey if it is stale (:mod:`freshness`): an audit that has died leaves its last verdicts behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from schemas.codecs.codec import Undecodable, decode_as
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.records.messages import Verdict
from schemas.topics import OM_LOG, OM_VERDICTS
from spark_streaming.naming.core.row_differences import NAMED
from spark_streaming.records.core.freshness import (
    JudgedVerdict,
    ReportedPartition,
    age_words,
    behind_partitions,
    judged,
)
from spark_streaming.records.report_times import ReportTimes
from spark_streaming.verdicts.core.words import DIVERGED

MAX_ROWS = 4096
POLL_SECONDS = 0.5
MESSAGES_PER_POLL = 500
METADATA_SECONDS = 10.0
REASON_CHARACTERS = 60
KEYS_CHARACTERS = 400
"""Of the keys that differ so much is shown, over several lines."""
COLOURS = {"equal": "green", "diverged": "bold red", "unknown": "yellow"}


class ReplicaSubject(NamedTuple):
    """The subject of a verdict: a replica of a partition of a log, and the basis on which it is judged."""

    log: str
    shard: int
    node: str
    basis: str


class LatestVerdicts:
    """The last verdict for each (log, shard, node, basis)."""

    def __init__(self) -> None:
        self._latest: dict[ReplicaSubject, Verdict] = {}
        self.seen = 0

    def add(self, verdict: Verdict) -> None:
        """Take a verdict, in the topic's order."""
        self.seen += 1
        key = ReplicaSubject(verdict.log, verdict.shard, verdict.node, verdict.basis)
        known = self._latest.get(key)
        if known is not None and verdict.barrier_offset < known.barrier_offset:
            return
        self._latest[key] = verdict
        while len(self._latest) > MAX_ROWS:
            self._latest.pop(next(iter(self._latest)))

    def __iter__(self) -> Iterator[Verdict]:
        """Iterate by log, shard, node, basis; the Object Manager's log comes first."""
        order = sorted(self._latest, key=lambda key: (key.log != OM_LOG, key))
        return iter([self._latest[key] for key in order])


GREY = "bright_black"
"""Colour of a verdict that is stale, unless it is ``diverged``: nobody has said since that it is not."""

GOING = (("barrier", 118), ("slots", 106), ("basis", 98), ("log", 80), ("reason", 72))
"""Columns of the table, each with the terminal width below which it is left out: no word is broken."""


def table_of(
    verdicts: Iterable[Verdict], now_ms: int, width: int = GOING[0][1],
    reported_ms: Mapping[ReportedPartition, int] = MappingProxyType({}),
) -> Table:  # fmt: skip
    """Return the table for people; ``now_ms`` gives the age of each verdict, ``width`` is the terminal's.

    ``reported_ms``: when the replicas of each partition last reported.
    """
    shown = judged(verdicts, reported_ms, now_ms)
    table = Table(title="Audit: replicas against the log", caption=silence_words(shown, reported_ms))
    gone = {name for name, least in GOING if width < least}
    names = ("log", "shard", "replica", "basis", "verdict", "index", "barrier", "slots", "reason")
    for name in names:
        if name not in gone:
            table.add_column(name, justify="right" if name in ("shard", "index", "barrier", "slots") else "left")
    for one in shown:
        verdict = one.verdict
        cells: tuple[Text | str, ...] = (
            verdict.log,
            str(verdict.shard),
            verdict.node or "-",
            verdict.basis,
            Text(one.words, style=colour_of(one)),
            str(verdict.index),
            str(verdict.barrier_offset),
            str(verdict.differing_slots) if verdict.differing_slots else "",
            Text(_reason(verdict)),
        )
        table.add_row(*(cell for name, cell in zip(names, cells, strict=True) if name not in gone))
    return table


def _reason(verdict: Verdict) -> str:
    """Return what is shown of a reason: the keys that differ, if they are named."""
    _, named, keys = verdict.reason.partition(NAMED)
    return f"{named}{keys}"[:KEYS_CHARACTERS] if named else verdict.reason[:REASON_CHARACTERS]


def colour_of(one: JudgedVerdict) -> str:
    """Return the colour in which a verdict is shown."""
    if one.is_stale and one.verdict.verdict != DIVERGED:
        return GREY
    return COLOURS.get(one.verdict.verdict, "white")


def silence_words(shown: Sequence[JudgedVerdict], reported_ms: Mapping[ReportedPartition, int]) -> str | None:
    """Say that the audit is silent while replicas report, None if it is not."""
    behind = behind_partitions([one.verdict for one in shown], reported_ms)
    if not behind:
        return None
    silent = age_words(max(behind.values()))
    return f"{len(behind)} partitions have reports of {silent} without a verdict: does the audit run?"


def consume(
    bootstrap_servers: Brokers, topic: str = OM_VERDICTS, *, from_start: bool = True
) -> Iterator[list[Verdict]]:
    """Yield new verdicts for ever, an empty list when there are none for POLL_SECONDS.

    Raises KafkaException if the brokers cannot be reached or the topic does not exist. Skips other records.
    """
    consumer = Consumer(
        client_settings(
            bootstrap_servers,
            {
                "group.id": "stratolog-audit-follow",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_uncommitted",  # a stranger's open transaction would hide all later records
            },
        )
    )
    with closing(consumer):
        found = consumer.list_topics(topic, timeout=METADATA_SECONDS).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        # Assigned, not subscribed: every viewer sees everything, and none has to join a group.
        first = [TopicPartition(topic, partition) for partition in found.partitions]
        for partition in first:
            low, high = consumer.get_watermark_offsets(partition, timeout=METADATA_SECONDS)
            partition.offset = low if from_start else high
        consumer.assign(first)
        while True:
            yield [v for m in consumer.consume(MESSAGES_PER_POLL, POLL_SECONDS) if (v := _verdict(m)) is not None]


def _verdict(message: Message) -> Verdict | None:
    error = message.error()
    if error is not None:
        # librdkafka recovers by itself from all but fatal errors.
        if error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(error)
        return None
    try:
        return decode_as(Verdict, message.value() or b"")
    except Undecodable:
        return None


def follow(
    bootstrap_servers: Brokers,
    *,
    topic: str = OM_VERDICTS,
    console: Console | None = None,
    from_start: bool = True,
    until: Callable[[LatestVerdicts], bool] = lambda _: False,
) -> LatestVerdicts:
    """Show a live table of the verdicts until ``until`` returns true or the user presses Ctrl-C; return the last state.

    Raises KafkaException if the brokers cannot be reached or the topic does not exist.
    """
    latest, times = LatestVerdicts(), ReportTimes(bootstrap_servers)
    with Live(console=console or Console(), auto_refresh=False) as live:
        try:
            for verdicts in consume(bootstrap_servers, topic, from_start=from_start):
                for verdict in verdicts:
                    latest.add(verdict)
                now_ms = time.time_ns() // 1_000_000
                live.update(table_of(latest, now_ms, live.console.width, times.newest_ms()), refresh=True)
                if until(latest):
                    break
        except KeyboardInterrupt:
            pass
    return latest
