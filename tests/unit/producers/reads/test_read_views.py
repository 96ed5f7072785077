"""The pages of a listing: how many entries each asks for, where it begins, and when there are no more."""

from __future__ import annotations

import pytest

from producers.reads.read_views import PAGE_ENTRIES, Page, Pages
from schemas.records.messages import CommitKey
from schemas.records.rows import KeyInfo
from tests.support.sdk.memory import key_row


def key(name: str) -> KeyInfo:
    row = key_row(CommitKey(volume="v", bucket="b", key=name, session_id=1, size=0, blocks=[]), {})
    assert isinstance(row, KeyInfo)
    return row


class Listing:
    """Keys with numbers from 0 on, as a node lists them; ``asked`` is (after, wanted) of each page."""

    def __init__(self, count: int) -> None:
        self.names = [f"{number:05d}" for number in range(count)]
        self.asked: list[tuple[str, int]] = []

    def read(self, after: str, wanted: int) -> Page[KeyInfo]:
        self.asked.append((after, wanted))
        left = [name for name in self.names if name > after]
        shown = left[:wanted]
        return Page(
            entries=[key(name) for name in shown],
            next_after=shown[-1] if len(shown) < len(left) else None,
            positions={},
        )


@pytest.mark.parametrize(
    ("count", "limit", "asked"),
    [
        (0, None, [("", PAGE_ENTRIES)]),
        (PAGE_ENTRIES, None, [("", PAGE_ENTRIES)]),
        (PAGE_ENTRIES + 1, None, [("", PAGE_ENTRIES), ("00999", PAGE_ENTRIES)]),
        (5, 5, [("", 5)]),
        (6, 5, [("", 5)]),
        (PAGE_ENTRIES + 9, PAGE_ENTRIES, [("", PAGE_ENTRIES)]),
        (PAGE_ENTRIES + 9, PAGE_ENTRIES + 1, [("", PAGE_ENTRIES), ("00999", 1)]),
        (5, 9, [("", 9)]),
    ],
)
def test_pages_ask_for_no_more_than_is_wanted_and_end(
    count: int, limit: int | None, asked: list[tuple[str, int]]
) -> None:
    listing = Listing(count)
    pages = Pages(listing.read, "", limit)
    assert [info.key for info in pages.entries()] == listing.names[:limit]
    assert listing.asked == asked
    assert pages.next_page() is None
    assert listing.asked == asked, "nobody is asked behind the end"


def test_pages_begin_where_they_are_told_and_are_read_one_by_one() -> None:
    listing = Listing(PAGE_ENTRIES + 10)
    pages = Pages(listing.read, "00004", None)
    assert listing.asked == []
    first = pages.next_page()
    assert first is not None
    assert (first[0].key, len(first)) == ("00005", PAGE_ENTRIES)
    assert listing.asked == [("00004", PAGE_ENTRIES)]
    rest = pages.next_page()
    assert rest is not None
    assert [info.key for info in rest] == listing.names[PAGE_ENTRIES + 5 :]
    assert pages.next_page() is None


def test_nothing_wanted_asks_nobody() -> None:
    listing = Listing(3)
    assert list(Pages(listing.read, "", 0).entries()) == []
    assert listing.asked == []
