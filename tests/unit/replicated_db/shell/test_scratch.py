"""Rows that a diff keeps on the disk meanwhile: in the order of their keys, bounded, and gone with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_db.core.errors import StoreFailure
from replicated_db.shell.diffing import scratch as module
from replicated_db.shell.diffing.scratch import DiskScratch, ScratchFull

END = b"\xff"


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[DiskScratch]:
    made = DiskScratch(tmp_path / "deep" / "scratch", 1_000)
    yield made
    made.close()


def test_rows_come_in_the_order_of_their_keys_and_the_last_of_a_key_counts(scratch: DiskScratch) -> None:
    for key, value in ((b"c", b"3"), (b"a", b"1"), (b"b", b"2"), (b"a", b"one")):
        scratch.put(key, value)
    assert list(scratch.iterate(b"", END)) == [(b"a", b"one"), (b"b", b"2"), (b"c", b"3")]
    assert list(scratch.iterate(b"b", b"c")) == [(b"b", b"2")]
    scratch.put(b"b", b"two")
    assert dict(scratch.iterate(b"", END))[b"b"] == b"two", "also what was put after a look"


def test_it_takes_as_many_bytes_as_it_may_and_no_more(scratch: DiskScratch) -> None:
    assert scratch.bytes_taken == 0
    scratch.put(b"key", b"x" * 497)
    scratch.put(b"key", b"x" * 497)
    assert scratch.bytes_taken == 1_000, "replaced rows count, too"
    with pytest.raises(ScratchFull, match="more than 1000 bytes"):
        scratch.put(b"", b"x")
    assert list(scratch.iterate(b"", END)) == [(b"key", b"x" * 497)]


def test_rows_are_written_many_together(scratch: DiskScratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCRATCH_BATCH_ROWS", 3)
    waiting = []
    for number in range(7):
        scratch.put(b"%d" % number, b"")
        waiting.append(len(scratch._waiting))
    assert waiting == [1, 2, 0, 1, 2, 0, 1]
    assert len(list(scratch.iterate(b"", END))) == 7
    assert scratch._waiting == []


def test_nothing_of_it_is_left_when_it_is_closed(tmp_path: Path, scratch: DiskScratch) -> None:
    scratch.put(b"k", b"v")
    assert (tmp_path / "deep" / "scratch").is_dir()
    scratch.close()
    scratch.close()
    assert list((tmp_path / "deep").iterdir()) == []
    with pytest.raises(StoreFailure, match="scratch: "):
        list(scratch.iterate(b"", END))


def test_an_iteration_may_be_left_in_the_middle(scratch: DiskScratch) -> None:
    for key in (b"a", b"b"):
        scratch.put(key, b"")
    rows = scratch.iterate(b"", END)
    assert next(rows) == (b"a", b"")
    rows.close()  # type: ignore[attr-defined]


def test_a_place_where_there_can_be_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailure, match="file/scratch does not open"):
        DiskScratch(tmp_path / "file" / "scratch", 10)
