"""What every adapter of a port promises: one suite each, run on the in-memory twin and on the real thing.

A subclass names the fixture: ``store`` / ``reopen`` for stores, ``log`` for logs. A log's tests make no assumption about what is
already in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import MAX_CHECKPOINTS, Appender, DeliveryReport, Log, OffsetOutOfRange, RowPage, Store
from replicated_db.core.tables.column_families import LOCAL_FAMILIES, RETRY
from tests.support.replicated.kit import FAMILIES

ROWS = [(b"%d" % number, b"value %d" % number) for number in range(5)]
DEADLINE_S = 30.0


class StoreSuite:
    """For a ``store`` with the kit's families."""

    @pytest.fixture
    def filled(self, store: Store) -> Store:
        store.write([("things", key, value) for key, value in ROWS])
        return store

    def test_a_fresh_store_is_empty(self, store: Store):
        for family in (*FAMILIES.names, *LOCAL_FAMILIES):
            assert list(store.iterate(family, b"")) == []
            assert store.get(family, b"") is None

    def test_write_and_get(self, filled: Store):
        assert filled.get("things", b"3") == b"value 3"
        assert filled.get("things", b"33") is None
        assert filled.get("counters", b"3") is None

    def test_replace_and_remove(self, filled: Store):
        filled.write([("things", b"0", b"new"), ("things", b"1", None), ("things", b"absent", None)])
        assert filled.get("things", b"0") == b"new"
        assert filled.get("things", b"1") is None
        assert len(list(filled.iterate("things", b""))) == 4

    def test_the_last_write_of_a_key_wins(self, store: Store):
        store.write([("things", b"a", b"1"), ("things", b"a", None), ("things", b"a", b"2")])
        assert store.get("things", b"a") == b"2"
        store.write([("things", b"a", b"3"), ("things", b"a", None)])
        assert store.get("things", b"a") is None

    def test_many_families_in_one_write(self, store: Store):
        families = (RETRY, "things", "counters", *LOCAL_FAMILIES)
        store.write([(family, b"k", family.encode()) for family in families])
        assert [store.get(family, b"k") for family in families] == [family.encode() for family in families]

    def test_an_empty_write(self, store: Store):
        store.write([])

    def test_an_iterator_of_writes(self, store: Store):
        store.write(("things", key, value) for key, value in ROWS)
        assert list(store.iterate("things", b"")) == ROWS

    def test_any_bytes(self, store: Store):
        keys = [b"", b"\x00", b"\x00\x00", b"\xff", b"\xff\xff", bytes(range(256)), b"k" * 10_000]
        for value in (b"", b"\x00", b"v" * 100_000):
            store.write([("things", key, value) for key in keys])
            assert [store.get("things", key) for key in keys] == [value] * len(keys)
            assert list(store.iterate("things", b"")) == [(key, value) for key in sorted(keys)]

    def test_keys_are_ordered_as_unsigned_bytes(self, store: Store):
        keys = [b"", b"\x00", b"\x00\xff", b"\x01", b"a", b"a\x00", b"ab", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\x00"]
        store.write([("things", key, b"") for key in reversed(keys)])
        assert [key for key, _ in store.iterate("things", b"")] == sorted(keys)

    def test_iterate_over_a_range(self, filled: Store):
        for start, stop, expected in (
            (b"", None, "01234"), (b"2", None, "234"), (b"11", None, "234"), (b"9", None, ""), (b"1", b"3", "12"),
            (b"1", b"1", ""), (b"3", b"1", ""), (b"", b"", ""), (b"", b"0", ""), (b"", b"00", "0"), (b"4", b"99", "4"),
        ):  # fmt: skip
            found = [key.decode() for key, _ in filled.iterate("things", start, stop)]
            assert found == list(expected), (start, stop)

    def test_iterating_is_of_the_state_of_the_first_step(self, filled: Store):
        rows = filled.iterate("things", b"")
        assert next(rows) == ROWS[0]
        filled.write([("things", b"1", None), ("things", b"2", b"new"), ("things", b"11", b"new")])
        assert list(rows) == ROWS[1:]

    def test_an_abandoned_iteration(self, filled: Store):
        for _ in range(10):
            next(filled.iterate("things", b""))
        filled.write([("things", b"0", None)])

    def test_iterations_side_by_side(self, filled: Store):
        one, other = filled.iterate("things", b""), filled.iterate("things", b"2")
        assert [next(one), next(other), next(one), next(other)] == [ROWS[0], ROWS[2], ROWS[1], ROWS[3]]

    @pytest.mark.parametrize("call", ["get", "iterate", "write"])
    def test_an_unknown_family(self, filled: Store, call: str):
        def do() -> Any:
            if call == "get":
                return filled.get("nowhere", b"")
            if call == "iterate":
                return list(filled.iterate("nowhere", b""))
            return filled.write([("things", b"0", None), ("nowhere", b"", b"")])

        with pytest.raises(StoreFailure, match="nowhere"):
            do()
        assert filled.get("things", b"0") == b"value 0", "a write is all or nothing"

    def test_a_snapshot_does_not_change(self, filled: Store):
        snapshot = filled.snapshot()
        filled.write(
            [("things", b"1", None), ("things", b"2", b"new"), ("things", b"9", b"new"), ("counters", b"c", b"x")]
        )
        assert list(snapshot.iterate("things", b"")) == ROWS
        assert list(snapshot.iterate("counters", b"")) == []
        assert snapshot.get("things", b"1") == b"value 1"
        assert snapshot.get("things", b"2") == b"value 2"
        assert snapshot.get("things", b"9") is None
        assert [key for key, _ in snapshot.iterate("things", b"1", b"3")] == [b"1", b"2"]
        snapshot.close()

    def test_interleaved_reads_of_a_snapshot(self, filled: Store):
        snapshot = filled.snapshot()
        rows = snapshot.iterate("things", b"")
        assert next(rows) == ROWS[0]
        assert snapshot.get("things", b"4") == b"value 4"
        assert list(snapshot.iterate("things", b"3")) == ROWS[3:]
        assert list(rows) == ROWS[1:]
        snapshot.close()

    def test_a_closed_snapshot(self, filled: Store):
        snapshot = filled.snapshot()
        snapshot.close()
        snapshot.close()
        with pytest.raises(StoreFailure):
            snapshot.get("things", b"1")
        with pytest.raises(StoreFailure):
            list(snapshot.iterate("things", b""))

    def test_a_snapshot_of_an_unknown_family(self, filled: Store):
        snapshot = filled.snapshot()
        with pytest.raises(StoreFailure, match="nowhere"):
            snapshot.get("nowhere", b"1")
        snapshot.close()

    def test_many_snapshots(self, filled: Store):
        snapshots = []
        for number in range(20):
            filled.write([("counters", b"n", b"%d" % number)])
            snapshots.append(filled.snapshot())
        assert [snapshot.get("counters", b"n") for snapshot in snapshots] == [b"%d" % number for number in range(20)]
        for snapshot in snapshots:
            snapshot.close()

    def test_checkpoints_are_kept_and_replaced(
        self, filled: Store, read_checkpoint: Callable[[str], dict[bytes, bytes]]
    ):
        filled.checkpoint("one")
        filled.write([("things", b"0", None)])
        filled.checkpoint("two")
        assert read_checkpoint("one") == dict(ROWS)
        assert read_checkpoint("two") == dict(ROWS[1:])
        filled.write([("things", b"1", None)])
        filled.checkpoint("one")
        assert read_checkpoint("one") == dict(ROWS[2:])
        assert list(filled.iterate("things", b"")) == ROWS[2:]

    def test_checkpoints_of_the_prefix_are_kept_until_they_are_dropped(
        self, filled: Store, read_checkpoint: Callable[[str], dict[bytes, bytes]]
    ):
        """The suite's stores are opened with ``kept="keep-"``."""
        assert list(filled.checkpoint_names()) == []
        for number in range(2 * MAX_CHECKPOINTS):
            filled.checkpoint(f"keep-{number}")
            filled.checkpoint(f"other-{number}")
        kept = {f"keep-{number}" for number in range(2 * MAX_CHECKPOINTS)}
        youngest = {f"other-{number}" for number in range(MAX_CHECKPOINTS, 2 * MAX_CHECKPOINTS)}
        assert set(filled.checkpoint_names()) == kept | youngest
        filled.drop_checkpoint("keep-0")
        filled.drop_checkpoint("keep-0")
        filled.drop_checkpoint("never there")
        assert set(filled.checkpoint_names()) == (kept | youngest) - {"keep-0"}
        assert read_checkpoint("keep-1") == dict(ROWS)
        filled.write([("things", b"0", None)])
        filled.checkpoint("keep-0")
        assert read_checkpoint("keep-0") == dict(ROWS[1:])

    def test_pages(self, filled: Store):
        assert filled.page("things", b"", 2) == RowPage(rows=ROWS[:2], more=True)
        assert filled.page("things", b"1\x00", 10) == RowPage(rows=ROWS[2:], more=False)
        assert filled.page("things", b"", len(ROWS)) == RowPage(rows=ROWS, more=False)
        assert filled.page("things", b"x", 10) == filled.page("counters", b"", 1) == RowPage(rows=[], more=False)
        with pytest.raises(StoreFailure):
            filled.page("no such family", b"", 1)

    def test_a_synced_store_has_what_it_had(self, filled: Store):
        filled.sync()
        assert list(filled.iterate("things", b"")) == ROWS

    def test_a_family_whose_first_row_comes_after_a_snapshot(self, filled: Store):
        snapshot = filled.snapshot()
        filled.write([("counters", b"n", b"1")])
        assert snapshot.get("counters", b"n") is None
        assert list(snapshot.iterate("counters", b"")) == []
        assert filled.get("counters", b"n") == b"1"
        snapshot.close()

    def test_a_row_that_is_removed_from_a_family_without_rows(self, store: Store):
        store.write([("counters", b"n", None)])
        assert list(store.iterate("counters", b"")) == []

    def test_a_closed_store(self, filled: Store):
        filled.close()
        filled.close()
        for call in (
            lambda: filled.get("things", b"0"),
            lambda: list(filled.iterate("things", b"")),
            lambda: filled.write([("things", b"0", b"")]),
            lambda: filled.write([]),
            filled.snapshot,
            filled.sync,
            lambda: filled.checkpoint("c"),
            filled.checkpoint_names,
            lambda: filled.drop_checkpoint("c"),
        ):
            with pytest.raises(StoreFailure):
                call()


def settle(appender: Appender, count: int) -> list[DeliveryReport]:
    """Wait for ``count`` reports."""
    reports: list[DeliveryReport] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(reports) < count and time.monotonic() < deadline:
        reports += appender.poll(0.1)
    assert len(reports) == count
    return reports


def read_all(log: Log, offset: int, count: int, limit: int = 100) -> list[Any]:
    """Read exactly ``count`` entries from ``offset`` on."""
    entries: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(entries) < count and time.monotonic() < deadline:
        entries += log.read(offset + len(entries), min(limit, count - len(entries)), 0.5)
    assert len(entries) == count
    return entries


def read_until_refused(log: Log, offset: int) -> None:
    """Read at an offset that is not there; a real log needs a moment to say so."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        log.read(offset, 1, 0.5)


class LogSuite:
    """For a ``log``."""

    def append(self, log: Log, *values: bytes) -> list[DeliveryReport]:
        appender = log.appender()
        for token, value in enumerate(values, 1):
            appender.append(token, value)
        reports = settle(appender, len(values))
        appender.close()
        return reports

    def test_reports_carry_token_offset_and_append_time(self, log: Log):
        end = log.bounds()[1]
        reports = self.append(log, b"a", b"b", b"c")
        assert [report.token for report in reports] == [1, 2, 3]
        assert [report.offset for report in reports] == [end, end + 1, end + 2]
        assert [report.error for report in reports] == [None] * 3
        entries = read_all(log, end, 3)
        assert [entry.timestamp_ms for entry in entries] == [report.timestamp_ms for report in reports]
        assert all(entry.timestamp_ms > 0 for entry in entries)

    def test_what_was_appended_is_read_in_order(self, log: Log):
        end = log.bounds()[1]
        values = [b"%d" % number for number in range(50)]
        self.append(log, *values)
        entries = read_all(log, end, 50)
        assert [entry.value for entry in entries] == values
        assert [entry.offset for entry in entries] == list(range(end, end + 50))

    def test_bounds(self, log: Log):
        low, end = log.bounds()
        assert 0 <= low <= end
        self.append(log, b"a", b"b")
        assert log.bounds() == (low, end + 2)

    @pytest.mark.parametrize("limit", [1, 2, 7])
    def test_limit(self, log: Log, limit: int):
        end = log.bounds()[1]
        self.append(log, *[b"%d" % number for number in range(10)])
        assert [entry.value for entry in read_all(log, end, 10, limit)] == [b"%d" % number for number in range(10)]
        assert len(log.read(end, limit, 5)) <= limit

    def test_reading_goes_anywhere(self, log: Log):
        end = log.bounds()[1]
        self.append(log, *[b"%d" % number for number in range(6)])
        for number in (3, 0, 5, 5, 1, 2):
            assert read_all(log, end + number, 1, 1)[0].value == b"%d" % number

    def test_at_the_end_nothing_comes(self, log: Log):
        assert list(log.read(log.bounds()[1], 10, 0.2)) == []

    def test_what_is_appended_while_waiting_at_the_end(self, log: Log):
        end = log.bounds()[1]
        assert list(log.read(end, 10, 0.1)) == []
        self.append(log, b"late")
        assert read_all(log, end, 1)[0].value == b"late"

    def test_beyond_the_end(self, log: Log):
        with pytest.raises(OffsetOutOfRange):
            read_until_refused(log, log.bounds()[1] + 100)

    def test_reading_goes_on_after_a_refused_offset(self, log: Log):
        end = log.bounds()[1]
        self.append(log, b"a")
        with pytest.raises(OffsetOutOfRange):
            read_until_refused(log, end + 1000)
        assert read_all(log, end, 1)[0].value == b"a"

    def test_two_appenders_interleave(self, log: Log):
        end = log.bounds()[1]
        one, other = log.appender(), log.appender()
        for token in range(3):
            one.append(token, b"one %d" % token)
            settle(one, 1)
            other.append(token, b"other %d" % token)
            settle(other, 1)
        one.close()
        other.close()
        expected = [b"%s %d" % (who, token) for token in range(3) for who in (b"one", b"other")]
        assert [entry.value for entry in read_all(log, end, 6)] == expected

    @pytest.mark.parametrize("size", [1, 1000, 500_000])
    def test_any_value(self, log: Log, size: int):
        end = log.bounds()[1]
        value = bytes(range(256)) * (size // 256 + 1)
        self.append(log, value)
        assert read_all(log, end, 1)[0].value == value

    def test_a_poll_without_reports(self, log: Log):
        appender = log.appender()
        assert list(appender.poll(0)) == []
        appender.close()

    def test_the_topics_identity_is_stable(self, log: Log):
        assert log.topic_id()
        assert log.topic_id() == log.topic_id()
