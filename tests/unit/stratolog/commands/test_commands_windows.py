"""``stratolog audit --windows``: what is read of ``om.stats``, and what is shown of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.codecs.codec import encode
from schemas.records.messages import WindowRow, WindowStats
from schemas.topics import OM_STATS
from spark_streaming.windows.core import reading_windows
from spark_streaming.windows.core.reading_windows import LatestWindows, lags
from stratolog.cluster.window_stats import read_windows
from stratolog.commands.common.window_tables import print_windows
from stratolog.errors import Unavailable
from tests.support.local.memory_broker import memory_broker
from transport.waiting.deadline import Deadline


def row(metric: str, kind: str, total: int, *, status: str = "", count: int = 1) -> WindowRow:
    return WindowRow(
        metric=metric, kind=kind, status=status, count=count, total=total, greatest=total, p50=total, p99=total
    )


LOG = WindowStats(
    cluster="c", log="om.log", shard=3, source="log", start_ms=20_000, seconds=10, late=4, counted_at_ms=31_000,
    rows=[
        row("batch", "requests", 450), row("operation", "put", 1000), row("operation", "delete", 5),
        row("record", "Batch", 70_000, count=25), row("record", "Barrier", 500), row("log_index", "", 100),
        row("request", "CreateKey", 12, status="OK", count=450),
    ],
)  # fmt: skip
REPORTS = replace(
    LOG, source="reports", rows=[
        row("replica", "om1", 100, status="incremental"), row("replica", "om2", 93, status="incremental"),
        row("replica", "om2", 90, status="scrubbed"), row("replica", "om3", 999, status="evidence"),
        row("replica", "om4", 101, status="incremental"),
    ],
)  # fmt: skip


def test_the_newest_full_window_of_each_partition_is_shown():
    latest = LatestWindows()
    older, newer = replace(LOG, start_ms=10_000), replace(LOG, start_ms=30_000)
    repeated = replace(LOG, late=5)
    latest.take([older, LOG, newer, REPORTS, repeated])
    assert latest.of_each_partition() == [repeated, REPORTS]


def test_the_windows_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading_windows, "MAX_WINDOWS", 2)
    latest = LatestWindows()
    latest.take([replace(LOG, start_ms=start) for start in (30_000, 10_000, 20_000)])
    assert sorted(place.start_ms for place in latest.windows) == [20_000, 30_000]


def test_how_far_replicas_are_behind():
    """Never less than nothing; evidence names the index of a batch, and counts not; without batches nobody is behind."""
    assert lags([LOG, REPORTS]) == {("om.log", 3, "om1"): 0, ("om.log", 3, "om2"): 7, ("om.log", 3, "om4"): 0}
    assert lags([REPORTS]) == {}


def test_rates_are_by_second(capsys: pytest.CaptureFixture[str]):
    print_windows([LOG, REPORTS], 32_000)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "om.log 3 10 s, 12 s ago 45.0 100.5 7.0 2.5 4" in lines
    assert "3 CreateKey OK 45.0 12 12 12" in lines
    assert "om.log 3 om2 7" in lines


def test_windows_are_read_from_the_brokers(monkeypatch: pytest.MonkeyPatch):
    with memory_broker() as broker:
        broker.append(OM_STATS, encode(LOG), b"nonsense", encode(REPORTS))
        assert read_windows(broker.bootstrap_servers, 0) == [LOG, REPORTS]
        assert read_windows(broker.bootstrap_servers, LOG.counted_at_ms + 1) == []
        monkeypatch.setattr("stratolog.cluster.window_stats.TAIL_RECORDS", 1)
        assert read_windows(broker.bootstrap_servers, 0) == [REPORTS]


def test_brokers_that_do_not_answer_are_named():
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: om\.stats cannot be read: .*topics ensure"):
        read_windows("127.0.0.1:1", 0, Deadline.after_s(0.05))
