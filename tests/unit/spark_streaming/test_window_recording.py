"""From samples of records to records of om.stats: added up, kept over restarts, sent now and then."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.codec import decode_as
from schemas.records.messages import WindowStats
from spark_streaming.windows.core.reading_windows import LatestWindows, lags, rows_of
from spark_streaming.windows.core.sampling import LOG, REPORTS, Sampling, bucket_of
from spark_streaming.windows.core.window_book import BUCKET_RATIO, KEPT_WINDOWS, RowKey, Sample, amount_of
from spark_streaming.windows.recording import WindowRecorder
from spark_streaming.windows.sample_text import decoded_samples, encoded_samples

WINDOW_MS = 10_000
ROW = RowKey("request", "CreateKey", "OK")


def found(*records: tuple[str, int, RowKey, int], shard: int = 0) -> list[Sample]:
    """Samples of records (source, appended_ms, row, amount) through the operator's text."""
    sampling = Sampling(WINDOW_MS)
    for source, appended_ms, row, amount in records:
        sampling.add(source, appended_ms, {(row, amount): 1})
    value = encoded_samples(sampling.samples("om.log", shard))
    return [] if value is None else list(decoded_samples("om.log", shard, value))


def test_samples_of_one_window_row_and_bucket_are_one_group():
    one, other, later = found(
        (LOG, 1_000, ROW, 100), (LOG, 9_999, ROW, 101), (LOG, 9_999, ROW, 7), (LOG, 10_000, ROW, 100)
    )
    assert (one.stream.log, one.stream.shard, one.stream.source) == ("om.log", 0, "log")
    assert (one.start_ms, one.row, one.samples, one.total, one.greatest) == (
        0, RowKey("request", "CreateKey", "OK"), 2, 201, 101,
    )  # fmt: skip
    assert (other.start_ms, other.samples, other.total) == (0, 1, 7)
    assert (later.start_ms, later.samples) == (10_000, 1)
    assert found() == []


def test_names_of_strangers_are_names_all_the_same():
    (one,) = found((LOG, 0, RowKey("request", 'a\tb"', "\u2028"), 1))
    assert one.row == RowKey("request", 'a\tb"', "\u2028")


def test_a_sample_counts_as_often_as_its_record_gives_it():
    sampling = Sampling(WINDOW_MS)
    sampling.add(LOG, 0, {(ROW, 5): 3, (ROW, 2**40): 1})
    assert [(one.samples, one.total, one.greatest) for one in sampling.samples("om.log", 0)] == [
        (3, 15, 5), (1, 2**40, 2**40),
    ]  # fmt: skip


@given(st.integers(-(2**62), 2**62))
def test_a_bucket_stands_for_its_amounts(amount: int):
    bucket = bucket_of(amount)
    assert (bucket == 0) == (amount <= 0)
    if 0 < amount < 10**9:
        assert abs(amount_of(bucket) - amount) <= max(1, amount * (BUCKET_RATIO - 1))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([LOG, REPORTS]),
            st.integers(0, 50_000),
            st.sampled_from([RowKey(metric, "", "") for metric in "abc"]),
            st.integers(0, 99),
        )
    )
)
def test_nothing_is_lost_on_the_way(records: list[tuple[str, int, RowKey, int]]):
    wanted: Counter[Any] = Counter()
    for source, appended_ms, row, amount in records:
        wanted[source, appended_ms // WINDOW_MS * WINDOW_MS, row.metric] += amount
    said: Counter[Any] = Counter()
    for one in found(*records):
        said[one.stream.source, one.start_ms, one.row.metric] += one.total
    assert said == wanted
    assert sum(one.samples for one in found(*records)) == len(records)


@dataclass
class Sent:
    """A sender that keeps what it is given."""

    records: list[tuple[bytes, bytes]] = field(default_factory=list)

    def send(self, records: list[tuple[bytes, bytes]]) -> None:
        self.records += records

    def windows(self) -> list[WindowStats]:
        return [decode_as(WindowStats, value) for _, value in self.records]


def recorder(sent: Any, folder: Path, every_s: float = 0.0) -> WindowRecorder:
    return WindowRecorder(sender=sent, state=folder / "w.json", seconds=10, cluster="c", send_every_s=every_s)


def put(start: int) -> tuple[str, int, RowKey, int]:
    return LOG, start * WINDOW_MS, RowKey("operation", "put", ""), 1


def totals(windows: list[WindowStats]) -> dict[int, int]:
    """What a reader has of the puts, by the window's beginning."""
    latest = LatestWindows()
    latest.take(windows)
    return {
        one.start_ms // WINDOW_MS: row.total for one in latest.windows.values() for row in rows_of(one, "operation")
    }


def test_a_repeated_micro_batch_changes_nothing_also_after_a_restart(tmp_path: Path):
    """Of two micro-batches each window has both."""
    sent = Sent()
    samples = found(
        put(0), (LOG, 0, RowKey("log_index", "", ""), 5), (REPORTS, 0, RowKey("replica", "om1", "incremental"), 4)
    )
    recorder(sent, tmp_path).take(1, [])
    assert sent.records == []
    for batch_id in (2, 2, 3):
        recorder(sent, tmp_path).take(batch_id, samples)
    assert {key for key, _ in sent.records} == {b"om.log/0"}
    assert totals(sent.windows()) == {0: 2}
    last = [one for one in sent.windows() if one.source == LOG][-1]
    (row,) = rows_of(last, "operation")
    assert (row.count, row.total, row.p50, row.p99, last.late, last.seconds) == (2, 2, 1, 1, 0, 10)
    assert lags(sent.windows()) == {("om.log", 0, "om1"): 1}


def test_windows_are_sent_now_and_then(tmp_path: Path):
    sent = Sent()
    running = recorder(sent, tmp_path, every_s=3600)
    running.take(0, found(put(0)))
    running.take(1, found(put(0), put(1)))
    running.send_if_due()
    assert totals(sent.windows()) == {0: 1}, "the first is sent at once"
    again = recorder(sent, tmp_path, every_s=3600)
    again.take(2, found(put(1)))
    assert totals(sent.windows()) == {0: 2, 1: 2}, "a start sends what may not have been sent"


def test_a_window_that_closes_is_sent_before(tmp_path: Path):
    sent = Sent()
    running = recorder(sent, tmp_path, every_s=3600)
    running.take(0, found(put(0)))
    running.take(1, found(put(0)))
    running.take(2, found(put(KEPT_WINDOWS + 1)))
    assert totals(sent.windows()) == {0: 2, KEPT_WINDOWS + 1: 1}


def test_windows_that_wait_are_sent_when_it_is_time(tmp_path: Path):
    sent = Sent()
    running = recorder(sent, tmp_path, every_s=0.05)
    running.take(0, found(put(0)))
    running.take(1, found(put(0)))
    for _ in range(200):
        running.send_if_due()
        if totals(sent.windows()) == {0: 2}:
            break
        time.sleep(0.01)
    else:
        pytest.fail("they wait for ever")
    count = len(sent.records)
    running.send_if_due()
    assert len(sent.records) == count, "nothing has changed since"
