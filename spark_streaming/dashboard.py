"""The live view: one table of the latest verdicts, read from om.verdicts (design, section 9).

It needs no Spark. It follows the topic, and shows the latest verdict for each (log, shard, node, basis)
(``transport/topics/core/latest_verdicts.py``). Each is shown with its age, and in grey if it is stale
(:mod:`freshness`): an audit that has died leaves its last verdicts behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from schemas.kafka.connection import Brokers
from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED
from schemas.topics import OM_VERDICTS
from spark_streaming.naming.core.row_differences import NAMED
from spark_streaming.records.core.freshness import (
    JudgedVerdict,
    ReportedPartition,
    age_words,
    behind_partitions,
    judged,
)
from spark_streaming.records.report_times import ReportTimes
from transport.topics.core.latest_verdicts import LatestVerdicts
from transport.topics.topic_tail import FIRST_RECORD, TailStart, TopicTail, records_of

POLL_SECONDS = 0.5
REASON_CHARACTERS = 60
KEYS_CHARACTERS = 400
"""Of the keys that differ so much is shown, over several lines."""
COLOURS = {"equal": "green", "diverged": "bold red", "unknown": "yellow"}


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

    Raises TopicUnavailable if the brokers cannot be reached or the topic does not exist. Skips other records.
    """
    start = FIRST_RECORD if from_start else TailStart(last_records=0)
    with TopicTail(bootstrap_servers, topic, start) as tail:
        while True:
            yield list(records_of(Verdict, tail.poll(POLL_SECONDS)))


def follow(
    bootstrap_servers: Brokers,
    *,
    topic: str = OM_VERDICTS,
    console: Console | None = None,
    from_start: bool = True,
    until: Callable[[LatestVerdicts], bool] = lambda _: False,
) -> LatestVerdicts:
    """Show a live table of the verdicts until ``until`` returns true or the user presses Ctrl-C; return the last state.

    Raises TopicUnavailable if the brokers cannot be reached or the topic does not exist.
    """
    latest, times = LatestVerdicts(), ReportTimes(bootstrap_servers)
    with Live(console=console or Console(), auto_refresh=False) as live:
        try:
            for verdicts in consume(bootstrap_servers, topic, from_start=from_start):
                latest.take(verdicts)
                now_ms = time.time_ns() // 1_000_000
                live.update(table_of(latest, now_ms, live.console.width, times.newest_ms()), refresh=True)
                if until(latest):
                    break
        except KeyboardInterrupt:
            pass
    return latest
