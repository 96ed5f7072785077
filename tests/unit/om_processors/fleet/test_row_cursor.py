"""Walking through a family: every row comes once, then the first one again."""

from __future__ import annotations

from om_processors.fleet.row_cursor import RowCursor
from replicated_db.core.ports import RowPage
from replicated_db.core.tables.memory import MemoryStore

ROWS = [(bytes([letter]), b"1") for letter in b"abcde"]


def filled(number: int = 5) -> MemoryStore:
    store = MemoryStore(["things"])
    store.write([("things", key, value) for key, value in ROWS[:number]])
    return store


def test_every_row_comes_once_and_then_the_first_again():
    cursor = RowCursor(filled(), "things")
    assert [cursor.next_rows(2) for _ in range(4)] == [ROWS[:2], ROWS[2:4], ROWS[4:], ROWS[:2]]


def test_it_says_when_the_end_is_reached():
    cursor = RowCursor(filled(4), "things")
    ends = []
    for _ in range(4):
        cursor.next_rows(2)
        ends.append(cursor.at_end)
    assert ends == [False, True, False, True]
    assert RowCursor(filled(0), "things").next_rows(2) == []


def test_rows_that_do_not_fit_come_the_next_time():
    cursor = RowCursor(filled(3), "things")
    found: list[tuple[bytes, bytes]] = []
    for _ in range(3):
        found += cursor.next_rows(10, lambda rows: rows[:1])
        assert cursor.at_end == (len(found) == 3)
    assert found == ROWS[:3]


class BehindRemovedRows(MemoryStore):
    """A store that needs a second look to get past removed rows."""

    looks = 0

    def page(self, cf: str, start: bytes, limit: int) -> RowPage:
        self.looks += 1
        return RowPage(rows=[], more=True) if self.looks == 2 else super().page(cf, start, limit)


def test_rows_behind_removed_ones_come_later():
    store = BehindRemovedRows(["things"])
    store.write([("things", key, value) for key, value in ROWS])
    cursor = RowCursor(store, "things")
    assert [cursor.next_rows(3), cursor.next_rows(3)] == [ROWS[:3], []]
    assert not cursor.at_end
    assert cursor.next_rows(3) == ROWS[3:]
    assert cursor.at_end
