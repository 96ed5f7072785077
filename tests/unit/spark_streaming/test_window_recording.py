"""From samples of records to records of om.stats: added up, kept over restarts, sent now and then."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.codec import decode_as
from schemas.records.messages import WindowStats
from spark_streaming.windows.core.reading_windows import LatestWindows, lags, rows_of
from spark_streaming.windows.core.sampling import LOG, REPORTS, Sampling, buckets_of
from spark_streaming.windows.core.window_book import BUCKET_RATIO, KEPT_WINDOWS, RowKey, Sample, amount_of
from spark_streaming.windows.recording import WindowRecorder
from spark_streaming.windows.sample_text import decoded_samples, encoded_samples

WINDOW_MS = 10_000
NAME = "request\tCreateKey\tOK"


def found(*records: tuple[str, int, str, int], shard: int = 0) -> list[Sample]:
    """Samples of records (source, appended_ms, name, amount) through the operator's text."""
    sampling = Sampling(WINDOW_MS)
    for source, appended_ms, name, amount in records:
        sampling.add(source, appended_ms, [name], np.array([amount], dtype=np.int64))
    value = encoded_samples(sampling.samples("om.log", shard))
    return [] if value is None else list(decoded_samples("om.log", shard, value))


def test_samples_of_one_window_row_and_bucket_are_one_group():
    one, other, later = found(
        (LOG, 1_000, NAME, 100), (LOG, 9_999, NAME, 101), (LOG, 9_999, NAME, 7), (LOG, 10_000, NAME, 100)
    )
    assert (one.stream.log, one.stream.shard, one.stream.source) == ("om.log", 0, "log")
    assert (one.start_ms, one.row, one.samples, one.total, one.greatest) == (
        0, RowKey("request", "CreateKey", "OK"), 2, 201, 101,
    )  # fmt: skip
    assert (other.start_ms, other.samples, other.total) == (0, 1, 7)
    assert (later.start_ms, later.samples) == (10_000, 1)
    assert found() == []


def test_names_of_strangers_are_names_all_the_same():
    (tabs,) = found((LOG, 0, "request\ta\tb\tc", 1))
    (short,) = found((LOG, 0, "request", 1))
    assert (tabs.row, short.row) == (RowKey("request", "a", "b\tc"), RowKey("request", "", ""))


@given(st.lists(st.integers(-(2**62), 2**62)))
def test_a_bucket_stands_for_its_amounts(amounts: list[int]):
    for amount, bucket in zip(amounts, buckets_of(np.array(amounts, dtype=np.int64)).tolist(), strict=True):
        assert (bucket == 0) == (amount <= 0)
        if 0 < amount < 10**9:
            assert abs(amount_of(bucket) - amount) <= max(1, amount * (BUCKET_RATIO - 1))


@given(
    st.lists(
        st.tuples(st.sampled_from([LOG, REPORTS]), st.integers(0, 50_000), st.sampled_from("abc"), st.integers(0, 99))
    )
)
def test_nothing_is_lost_on_the_way(records: list[tuple[str, int, str, int]]):
    wanted: Counter[Any] = Counter()
    for source, appended_ms, name, amount in records:
        wanted[source, appended_ms // WINDOW_MS * WINDOW_MS, name] += amount
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


def put(start: int) -> tuple[str, int, str, int]:
    return LOG, start * WINDOW_MS, "operation\tput\t", 1


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
    samples = found(put(0), (LOG, 0, "log_index\t\t", 5), (REPORTS, 0, "replica\tom1\tincremental", 4))
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
