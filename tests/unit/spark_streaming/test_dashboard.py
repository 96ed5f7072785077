"""What the live view keeps and shows."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from schemas.records.messages import Verdict
from spark_streaming import dashboard
from spark_streaming.dashboard import LatestVerdicts, table_of

EQUAL = Verdict(
    cluster="c", shard=0, node="om1", barrier_offset=10, index=5, verdict="equal", basis="incremental", differences=[],
    differing_slots=0, evidence=None, reason="", decided_at_ms=1000,
)  # fmt: skip


def test_the_last_barriers_verdict_stays():
    latest = LatestVerdicts()
    for offset in (10, 30, 20):
        latest.add(replace(EQUAL, barrier_offset=offset))
    assert [v.barrier_offset for v in latest] == [30]
    assert latest.seen == 3


def test_a_later_verdict_for_the_same_barrier_replaces():
    latest = LatestVerdicts()
    latest.add(replace(EQUAL, verdict="unknown"))
    latest.add(EQUAL)
    assert [v.verdict for v in latest] == ["equal"]


def test_rows_are_bounded(monkeypatch):
    monkeypatch.setattr(dashboard, "MAX_ROWS", 3)
    latest = LatestVerdicts()
    for shard in range(5):
        latest.add(replace(EQUAL, shard=shard))
    assert [v.shard for v in latest] == [2, 3, 4]


def test_the_table_says_it():
    console = Console(file=StringIO(), width=160)
    bad = replace(EQUAL, node="om2", verdict="diverged", differing_slots=7, reason="7 slots differ from the log's sums")
    console.print(table_of([EQUAL, bad], now_ms=4000))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in text for word in ("om1", "equal", "om2", "diverged", "7 slots differ", "3 s"))
