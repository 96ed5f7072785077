"""What the live view keeps and shows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from io import StringIO
from itertools import islice

import pytest
from rich.console import Console

from schemas.codecs.codec import encode
from schemas.records.messages import Verdict
from schemas.topics import DN_LOG, OM_VERDICTS
from spark_streaming import dashboard
from spark_streaming.dashboard import colour_of, consume, follow, silence_words, table_of
from spark_streaming.records.core.freshness import ReportedPartition, judged
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from transport.topics import topic_tail
from transport.topics.core.latest_verdicts import LatestVerdicts
from transport.topics.topic_tail import TopicUnavailable

EQUAL = Verdict(
    cluster="c", shard=0, node="om1", barrier_offset=10, index=5, verdict="equal", basis="incremental", differences=[],
    differing_slots=0, evidence=None, reason="", decided_at_ms=1000,
)  # fmt: skip


def test_the_table_says_it():
    console = Console(file=StringIO(), width=160)
    bad = replace(EQUAL, node="om2", verdict="diverged", differing_slots=7, reason="7 slots differ from the log's sums")
    console.print(table_of([EQUAL, bad], now_ms=4000))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in text for word in ("om1", "equal", "om2", "diverged", "7 slots differ", "3 s"))


def shown(verdicts: list[Verdict], now_ms: int = 4000, width: int = 160) -> list[list[str]]:
    """Return the cells of the table's rows, the header first."""
    console = Console(file=StringIO(), width=width)
    console.print(table_of(verdicts, now_ms, width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines if line[0] in "┃│"
    ]


def test_keys_that_differ_are_shown_whole():
    """A reason is cut, and they stand at its end."""
    named = "rows that differ: keyTable bucket 7: '/v/b/k' (missing)"
    lost = replace(EQUAL, verdict="diverged", differing_slots=1, reason=f"{'1 slot differs; ' * 9}{named}")
    _, row = shown([lost], width=220)
    assert row[-1] == named


def test_each_verdict_is_a_row_of_the_table():
    lost = replace(EQUAL, node="", log=DN_LOG, verdict="diverged", basis="log", differing_slots=7, reason="x" * 99)
    assert shown([EQUAL, lost]) == [
        ["log", "shard", "replica", "basis", "verdict", "index", "barrier", "slots", "reason"],
        ["om.log", "0", "om1", "incremental", "equal, 3 s ago", "5", "10", "", ""],
        ["dn.log", "0", "-", "log", "diverged, 3 s ago", "5", "10", "7", "x" * 60],
    ]


def test_a_verdict_of_a_clock_that_is_ahead_has_no_age():
    ages = [shown([EQUAL], now_ms=now_ms)[1][4] for now_ms in (10, 1999, 2000)]
    assert ages == ["equal, 0 s ago", "equal, 0 s ago", "equal, 1 s ago"]


@pytest.mark.parametrize(("name", "least"), dashboard.GOING)
def test_a_narrow_terminal_has_fewer_columns(name: str, least: int):
    """A column goes where the words of it would be broken."""
    names = [[column.header for column in table_of([EQUAL], 0, width).columns] for width in (least, least - 1)]
    assert [name in one for one in names] == [True, False]


def test_a_table_without_a_width_has_all_columns():
    assert [column.header for column in table_of([EQUAL], 0).columns] == shown([EQUAL])[0]


# Read from a broker.

MANY_POLLS = 500
"""More polls than a record that is there needs."""


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBroker]:
    monkeypatch.setattr(dashboard, "POLL_SECONDS", 0.02)
    with memory_broker() as broker:
        yield broker


@contextmanager
def consuming(servers: str, *, from_start: bool = True) -> Iterator[Iterator[list[Verdict]]]:
    """Consume, and close the consumer at the end of the block: generators close what they have opened."""
    found = consume(servers, from_start=from_start)
    try:
        yield found
    finally:
        assert isinstance(found, Generator)
        found.close()


def values(*nodes: str) -> list[bytes]:
    return [encode(replace(EQUAL, node=node)) for node in nodes]


def test_the_view_shows_what_was_there_and_leaves_out_what_is_no_verdict(broker: MemoryBroker):
    broker.append(OM_VERDICTS, *values("om1"), b"nonsense", None, b"", *values("om2"))
    broker.append(OM_VERDICTS, *values("om3"), partition=3)
    console = Console(file=StringIO(), width=160)
    latest = follow(broker.bootstrap_servers, console=console, until=lambda latest: latest.seen >= 3)
    assert sorted(verdict.node for verdict in latest) == ["om1", "om2", "om3"]
    assert all(node in console.file.getvalue() for node in ("om1", "om2", "om3"))  # type: ignore[attr-defined]


def test_a_view_from_the_end_shows_only_what_comes(broker: MemoryBroker):
    broker.append(OM_VERDICTS, *values("om1"))
    with consuming(broker.bootstrap_servers, from_start=False) as found:
        assert next(found) == []
        broker.append(OM_VERDICTS, *values("om2"))
        assert [one.node for one in next(batch for batch in found if batch)] == ["om2"]


def test_each_viewer_sees_everything(broker: MemoryBroker):
    """A viewer commits nothing: the next one begins at the same place."""
    broker.append(OM_VERDICTS, *values("om1"))
    for _ in range(2):
        with consuming(broker.bootstrap_servers) as found:
            assert [one.node for one in next(batch for batch in found if batch)] == ["om1"]


def test_the_view_ends_on_ctrl_c_with_what_it_has(broker: MemoryBroker):
    broker.append(OM_VERDICTS, *values("om1"))

    def pressed(latest: LatestVerdicts) -> bool:
        if latest.seen:
            raise KeyboardInterrupt
        return False

    latest = follow(broker.bootstrap_servers, console=Console(file=StringIO()), until=pressed)
    assert [verdict.node for verdict in latest] == ["om1"]


class WatchedTerminal(StringIO):
    """A terminal that calls ``on_shown`` when it shows ``word`` for the first time."""

    def __init__(self, on_shown: dict[str, Callable[[], None]]) -> None:
        super().__init__()
        self._on_shown = on_shown

    def write(self, text: str) -> int:
        written = super().write(text)
        for word in [word for word in self._on_shown if word in text]:
            self._on_shown.pop(word)()
        return written


def test_the_view_goes_on_until_it_is_told_to_end(broker: MemoryBroker):
    """It begins with the oldest verdict, shows those that come while it runs, and ends by nothing but Ctrl-C."""

    def pressed() -> None:
        raise KeyboardInterrupt

    broker.append(OM_VERDICTS, *values("om1"))
    terminal = WatchedTerminal({"om1": lambda: broker.append(OM_VERDICTS, *values("om2")), "om2": pressed})
    latest = follow(broker.bootstrap_servers, console=Console(file=terminal, width=160, force_terminal=True))
    assert [verdict.node for verdict in latest] == ["om1", "om2"]


def test_the_view_tells_how_old_a_verdict_is(broker: MemoryBroker):
    decided_at_ms = time.time_ns() // 10**6 - 3_600_000
    broker.append(OM_VERDICTS, encode(replace(EQUAL, decided_at_ms=decided_at_ms)))
    console = Console(file=StringIO(), width=160)
    follow(broker.bootstrap_servers, console=console, until=lambda latest: latest.seen > 0)
    ages = re.findall(r"(\d+) min ago", console.file.getvalue())  # type: ignore[attr-defined]
    assert ages
    assert all(60 <= int(age) < 120 for age in ages)


# An audit that has died.

PARTITION = ReportedPartition("om.log", 0)


def styles(verdicts: list[Verdict], now_ms: int, reported_ms: dict[ReportedPartition, int]) -> list[tuple[str, str]]:
    """What is shown of each verdict, and in which colour."""
    return [(one.words, colour_of(one)) for one in judged(verdicts, reported_ms, now_ms)]


def test_a_verdict_since_which_replicas_have_reported_is_grey():
    """A dead audit stayed green: its last verdicts were repeated as they had been."""
    bad = replace(EQUAL, node="om2", verdict="diverged")
    hour = 3_600_000
    assert styles([EQUAL, bad], hour, {PARTITION: hour - 5}) == [
        ("equal, 59 min ago (stale)", "bright_black"), ("diverged, 59 min ago (stale)", "bold red"),
    ]  # fmt: skip
    words = silence_words(judged([EQUAL], {PARTITION: hour}, hour), {PARTITION: hour})
    assert words == "1 partitions have reports of 59 min without a verdict: does the audit run?"


def test_a_verdict_since_which_nobody_has_reported_is_not():
    """A cluster that nobody writes to has no new barriers."""
    quiet = {PARTITION: EQUAL.decided_at_ms + 59_999}
    assert styles([EQUAL], 3_600_000, quiet) == [("equal, 59 min ago", "green")]
    assert silence_words(judged([EQUAL], quiet, 3_600_000), quiet) is None


def test_without_any_report_an_old_verdict_is_grey():
    assert styles([EQUAL], 1000 + 25 * 60_000, {}) == [("equal, 25 min ago (stale)", "bright_black")]
    assert styles([EQUAL], 999 + 25 * 60_000, {}) == [("equal, 24 min ago", "green")]


def test_an_equal_of_a_replica_that_is_not_judged_any_more_is_grey():
    """It is a member no longer; a scan's verdict is as old as the last scan."""
    young = replace(EQUAL, node="om2", decided_at_ms=61_000)
    scan = replace(EQUAL, node="om2", basis="scrubbed")
    found = judged([EQUAL, young, scan, replace(EQUAL, verdict="diverged")], {PARTITION: 61_000}, 61_000)
    assert [one.is_stale for one in found] == [True, False, False, False]


def test_nodes_scan_their_rows_at_their_own_pace():
    """A scan that another node's has outlived by minutes is none that nobody hears of."""
    old = replace(EQUAL, basis="scrubbed")
    for age_ms, stale in ((299_000, False), (25 * 60_000, True)):
        young = replace(old, node="om2", decided_at_ms=old.decided_at_ms + age_ms)
        found = judged([old, young], {PARTITION: young.decided_at_ms}, young.decided_at_ms)
        assert [one.is_stale for one in found] == [stale, False]


def test_a_consumer_begins_at_the_oldest_verdict(broker: MemoryBroker):
    broker.append(OM_VERDICTS, *values("om1"))
    found = consume(broker.bootstrap_servers)
    assert isinstance(found, Generator)
    with closing(found):
        assert [one.node for one in next((batch for batch in islice(found, MANY_POLLS) if batch), [])] == ["om1"]


def test_a_batch_of_the_view_is_bounded(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_tail, "READ_LIMIT", 3)
    broker.append(OM_VERDICTS, *values(*map(str, range(7))))
    with consuming(broker.bootstrap_servers) as found:
        sizes: list[int] = []
        while sum(sizes) < 7:
            sizes.append(len(next(found)))
    assert max(sizes) <= 3


def test_brokers_that_do_not_answer_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topic_tail, "CONTACT_S", 0.05)
    with pytest.raises(TopicUnavailable, match=r"om\.verdicts cannot be read: "):
        next(consume("127.0.0.1:1"))
