"""Windows of time: exact in any order of partitions and micro-batches, over restarts, and nothing left out in silence."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streaming.windows import book_file
from spark_streaming.windows.core import window_book
from spark_streaming.windows.core.window_book import (
    KEPT_WINDOWS,
    OTHER,
    Amounts,
    ChangedWindow,
    RowKey,
    Sample,
    WindowBook,
    WindowStream,
    amount_of,
)

WINDOW_MS = 10_000
ROW = RowKey("record", "Batch", "")
Sums = dict[tuple[WindowStream, int, RowKey], tuple[int, int, int | None]]


def stream(shard: int = 0, source: str = "log") -> WindowStream:
    return WindowStream("om.log", shard, source)


def sample(start: int, amount: int = 1, of: WindowStream | None = None, row: RowKey = ROW) -> Sample:
    """One sample in window number ``start``."""
    return Sample(of or stream(), start * WINDOW_MS, row, 1, 1, amount, amount)


def sums(changed: list[ChangedWindow]) -> Sums:
    """What a reader has who takes the last record on each window."""
    return {
        (one.stream, one.start_ms, row): (amounts.count, amounts.total, amounts.greatest)
        for one in changed
        for row, amounts in one.rows.items()
    }


def expected(samples: list[Sample]) -> Sums:
    book = WindowBook(WINDOW_MS)
    found: Sums = {}
    for one in samples:  # each in a book of its own would be too easy: no window of this one is closed
        key = one.stream, one.start_ms, one.row
        count, total, greatest = found.get(key, (0, 0, None))
        found[key] = count + 1, total + one.total, max(one.greatest, greatest or 0)
    assert book.batch_id == -1
    return found


def test_partitions_that_are_hours_apart_lose_nothing():
    """One watermark for all closed the windows of what was behind: 17,138 of 1,120,037 operations survived."""
    book = WindowBook(WINDOW_MS)
    ahead = [sample(start, of=stream(source="reports")) for start in range(360)]
    slow = [sample(start, of=stream(0)) for start in range(360)]
    skewed = [sample(359, of=stream(1))]
    changed = book.take(0, [*ahead, *skewed])
    for number in range(0, 360, 7):
        changed += book.take(1 + number, slow[number : number + 7])
    assert sums(changed) == expected([*ahead, *slow, *skewed])
    assert {held.late for _, held in book} == {0}


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_any_micro_batches_and_restarts_give_the_same_sums(seed: int, partitions: int):
    """Each partition in its own order, with times that go back by less than the windows that are kept."""
    choose = random.Random(seed)
    by_stream = {}
    for shard in range(partitions):
        starts, now = [], 0
        for _ in range(choose.randint(0, 60)):
            now += choose.choice([0, 0, 1, 5])
            starts.append(max(0, now - choose.randint(0, KEPT_WINDOWS)))
        by_stream[stream(shard)] = [sample(start, choose.randint(0, 99), stream(shard)) for start in starts]
    everything = [one for samples in by_stream.values() for one in samples]
    book, changed, batch_id = WindowBook(WINDOW_MS), [], 0
    while any(by_stream.values()):
        some = []
        for of, samples in by_stream.items():
            taken = choose.randint(0, 20)
            some += samples[:taken]
            by_stream[of] = samples[taken:]
        changed += book.take(batch_id, some)
        if choose.random() < 0.3:
            assert book.take(batch_id, some) == [], "a micro-batch that was taken is not taken again"
        batch_id += 1
    assert sums(changed) == expected(everything)


def test_what_comes_for_a_closed_window_is_counted_as_late_and_shown():
    book = WindowBook(WINDOW_MS)
    book.take(0, [sample(0), sample(100)])
    (changed,) = book.take(1, [sample(100 - KEPT_WINDOWS - 1), sample(3, row=RowKey("operation", "put", ""))])
    assert (changed.start_ms, changed.late) == (100 * WINDOW_MS, 1)
    assert sums([changed])[stream(), 100 * WINDOW_MS, ROW] == (1, 1, 1)
    (changed,) = book.take(2, [sample(100 - KEPT_WINDOWS)])
    assert (changed.start_ms, changed.late) == ((100 - KEPT_WINDOWS) * WINDOW_MS, 1)


def test_open_windows_and_their_rows_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(window_book, "ROWS_OF_A_WINDOW", 3)
    book = WindowBook(WINDOW_MS)
    for number in range(50):
        book.take(number, [sample(number, row=RowKey("request", str(kind), "OK")) for kind in range(9)])
    ((_, held),) = list(book)
    assert len(held.windows) == KEPT_WINDOWS + 1
    rows = held.windows[49 * WINDOW_MS]
    assert Counter({row.kind: one.count for row, one in rows.items()}) == {"0": 1, "1": 1, "2": 1, OTHER: 6}


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_a_percentile_is_within_two_percent(amounts: list[int]):
    import math

    row = Amounts()
    for amount in amounts:
        bucket = max(1, math.ceil(math.log(amount) / math.log(window_book.BUCKET_RATIO))) if amount > 0 else 0
        row.add(Sample(stream(), 0, ROW, bucket, 1, amount, amount))
    for share in (0.5, 0.99, 1.0):
        true = sorted(amounts)[math.ceil(share * len(amounts)) - 1]
        assert abs(row.percentile(share) - true) <= 0.02 * true + 1
    assert row.percentile(1.0) <= max(amounts)


def test_without_samples_there_is_no_percentile():
    assert Amounts().percentile(0.5) == 0
    assert amount_of(-1) == 0


def test_another_checkpoint_begins_a_new_book():
    """Its query reads the logs from their beginnings, and numbers its micro-batches from 0 on."""
    book = WindowBook(WINDOW_MS)
    for number in range(3):
        book.take(number, [sample(number)])
    assert sums(book.take(0, [sample(0)])) == {(stream(), 0, ROW): (1, 1, 1)}
    assert sums(book.take(1, [sample(1)])) == {(stream(), WINDOW_MS, ROW): (1, 1, 1)}


# The file.


def test_a_restart_goes_on_with_the_windows_that_were_open(tmp_path: Path):
    path = tmp_path / "new" / "windows.json"
    book = book_file.load(path, WINDOW_MS)
    book.take(4, [sample(0, 5), sample(1, 7), sample(1, 9, stream(3))])
    book_file.save(book, path)
    again = book_file.load(path, WINDOW_MS)
    assert again.take(4, [sample(1, 100)]) == []
    assert sums(again.take(5, [sample(1, 2)])) == {(stream(), WINDOW_MS, ROW): (2, 9, 7)}
    assert list(path.parent.iterdir()) == [path]


def test_windows_of_another_length_begin_anew(tmp_path: Path):
    path = tmp_path / "windows.json"
    book = WindowBook(WINDOW_MS)
    book.take(0, [sample(1)])
    book_file.save(book, path)
    again = book_file.load(path, 2 * WINDOW_MS)
    assert (again.batch_id, [held.windows for _, held in again]) == (0, [{}])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"batch_id": 1}', '{"batch_id": 1, "streams": [7], "window_ms": 1}'])
def test_a_book_that_cannot_be_read_is_put_aside_and_windows_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
):
    """A loss of power left it empty, and the audit stopped at every start."""
    path = tmp_path / "windows.json"
    path.write_text(text)
    book = book_file.load(path, WINDOW_MS)
    assert (list(book), path.exists()) == ([], False)
    assert path.with_suffix(".unreadable").read_text() == text
    assert "windows begin anew" in caplog.text
    book.take(3, [sample(1)])
    book_file.save(book, path)
    assert book_file.load(path, WINDOW_MS).batch_id == 3


def test_a_book_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    book_file.save(WindowBook(WINDOW_MS), tmp_path / "windows.json")
    assert synced == [str(tmp_path / "windows.tmp"), str(tmp_path)]
