"""The scrubber on real files: it finds what a disk has done to them, has it repaired from a peer, and knows where it was."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.core.checksums import cell_count
from datanode_processors.blocks.core.digests import container_digest
from datanode_processors.errors import BlockError
from datanode_processors.repair.scrubber import (
    Pace,
    Place,
    Scrubber,
    bad_cells,
    is_good,
    read_checksums,
    read_cursor,
    write_cursor,
)
from schemas.records.datanode import BlockRow
from schemas.stream_errors import OVERLOADED
from tests.support.datanodes.checksums import checksums_of

CELL = 512
FAST = 1 << 40


def row_of(data: bytes, length: int | None = None) -> BlockRow:
    data = data[:length]
    return BlockRow(
        bcs_id=1, length=len(data), bytes_per_checksum=CELL, checksums=checksums_of(data, CELL), deleted=False
    )


def no_wait(_: int) -> None:
    pass


class Disk:
    """A store with blocks of container 1, and what their bytes should be."""

    def __init__(self, folder: Path, blocks: dict[int, bytes]) -> None:
        self.store = BlockStore(folder, fsync="close")
        self.folder = folder
        self.blocks = blocks
        self.told: list[tuple[int, int, int, list[int]]] = []
        for local_id, data in blocks.items():
            with self.store.open_writer(1, local_id, 0, CELL) as writer:
                writer.write(0, data)
                writer.flush()

    def path(self, local_id: int) -> Path:
        return self.folder / "containers" / "1" / f"{local_id}.block"

    def damage(self, local_id: int, offset: int) -> None:
        with self.path(local_id).open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x10]))

    def committed(self, after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        for local_id, data in sorted(self.blocks.items()):
            if after is None or (0, 1, local_id) > after:
                yield 0, 1, local_id, row_of(data)

    def repair(self, partition: int, container_id: int, local_id: int, bad: list[int]) -> None:
        self.told.append((partition, container_id, local_id, bad))
        self.write_cells(local_id, bad)

    def write_cells(self, local_id: int, cells: Iterable[int], length: int | None = None) -> None:
        """Write what belongs into cells, as a repair does, up to ``length``."""
        data = self.blocks[local_id][:length]
        wanted = sorted(cells)
        offset = min([self.store.written_length(1, local_id), *(cell * CELL for cell in wanted)])
        with self.store.open_writer(1, local_id, offset, CELL, repair=True) as writer:
            for cell in wanted:
                writer.write(cell * CELL, data[cell * CELL : (cell + 1) * CELL])
            writer.sync()

    def scrubber(self, **more: float) -> Scrubber:
        return Scrubber(
            self.store,
            self.committed,
            self.repair,
            cursor_file=self.folder / "cursor",
            bytes_per_second=int(more.get("bytes_per_second", FAST)),
            round_s=more.get("round_s", 0.01),
        )


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    chance = random.Random(1)
    return Disk(tmp_path, {number: chance.randbytes(number * 3 * CELL + 17) for number in range(1, 6)})


def test_a_healthy_disk_is_left_alone(disk: Disk):
    scrubber = disk.scrubber()
    assert scrubber.scrub_round()
    assert disk.told == []
    counts = scrubber.counts
    assert (counts.rounds, counts.blocks, counts.bad_cells, counts.errors) == (1, 5, 0, 0)
    assert counts.bytes == sum(map(len, disk.blocks.values()))


def test_flipped_bits_are_found_and_repaired(disk: Disk):
    disk.damage(2, 0)
    disk.damage(2, 6 * CELL + 16)
    disk.damage(4, 5 * CELL - 1)
    assert disk.store.checksums(1, 2, CELL) == row_of(disk.blocks[2], CELL).checksums  # as it was written
    scrubber = disk.scrubber()
    scrubber.scrub_round()
    assert disk.told == [(0, 1, 2, [0, 6]), (0, 1, 4, [4])]
    for local_id, data in disk.blocks.items():
        assert disk.path(local_id).read_bytes() == data
        assert disk.store.checksums(1, local_id, len(data)) == row_of(data).checksums
        assert bad_cells(disk.store, 1, local_id, row_of(data), no_wait) == []
    assert scrubber.counts.bad_cells == 3
    scrubber.scrub_round()
    assert len(disk.told) == 2


def test_a_file_that_was_cut_takes_one_line_of_the_log(disk: Disk, caplog: pytest.LogCaptureFixture):
    os.truncate(disk.path(5), CELL)
    found = bad_cells(disk.store, 1, 5, row_of(disk.blocks[5]), no_wait)
    assert found == list(range(1, cell_count(len(disk.blocks[5]), CELL)))
    assert len(caplog.records) == 1


def test_threads_that_share_a_pace_share_its_rate():
    pace = Pace(1_000_000, threading.Event())
    began = time.monotonic()
    threads = [threading.Thread(target=pace.took, args=(100_000,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.29


def test_one_cell_is_judged_by_its_own_bytes_and_no_others_are_read(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row_of(disk.blocks[2])
    disk.damage(2, 3 * CELL)
    last = cell_count(row.length, CELL) - 1
    assert [cell for cell in range(last + 1) if not is_good(disk.store, 1, 2, row, cell)] == [3]
    asked: list[tuple[int, int]] = []
    real = disk.store.read

    def read(container_id: int, local_id: int, offset: int, length: int, **more: Any) -> Any:
        asked.append((offset, length))
        return real(container_id, local_id, offset, length, **more)

    monkeypatch.setattr(disk.store, "read", read)
    assert is_good(disk.store, 1, 2, row, 2)
    assert is_good(disk.store, 1, 2, row, last)
    assert asked == [(2 * CELL, CELL), (last * CELL, 17)]


@pytest.mark.parametrize("left", [0, 3 * CELL - 1, 3 * CELL])
def test_a_cell_that_is_not_there_whole_is_not_good(disk: Disk, left: int) -> None:
    row = row_of(disk.blocks[2])
    os.truncate(disk.path(2), left)
    disk.store = BlockStore(disk.folder)
    good = [cell for cell in range(cell_count(row.length, CELL)) if is_good(disk.store, 1, 2, row, cell)]
    assert good == list(range(left // CELL))


def test_the_store_no_longer_vouches_for_what_was_found_bad(disk: Disk):
    disk.damage(2, 0)
    scrubber = Scrubber(disk.store, disk.committed, lambda *_: None, cursor_file=disk.folder / "cursor")
    scrubber.scrub_block(0, 1, 2, row_of(disk.blocks[2]))
    assert disk.store.checksums(1, 2, CELL) != row_of(disk.blocks[2], CELL).checksums
    assert bad_cells(disk.store, 1, 2, row_of(disk.blocks[2]), no_wait) == [0]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_is_damaged_missing_or_too_much_is_made_good(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    size = data.draw(st.integers(1, 6 * CELL))
    content = random.Random(size).randbytes(size)
    committed = data.draw(st.integers(0, size))
    disk = Disk(tmp_path_factory.mktemp("disk"), {1: content})
    for offset in data.draw(st.lists(st.integers(0, size - 1), max_size=5)):
        disk.damage(1, offset)
    cut = data.draw(st.one_of(st.just(size), st.integers(0, size)))
    os.truncate(disk.path(1), cut)
    if data.draw(st.booleans()):
        disk.store = BlockStore(disk.folder)
    row, on_disk = row_of(content, committed), disk.path(1).read_bytes()
    wrong = [
        cell
        for cell in range(cell_count(committed, CELL))
        if on_disk[cell * CELL : min((cell + 1) * CELL, committed)]
        != content[cell * CELL : min((cell + 1) * CELL, committed)]
    ]
    assert bad_cells(disk.store, 1, 1, row, no_wait) == wrong
    disk.write_cells(1, wrong, committed)
    assert bad_cells(disk.store, 1, 1, row, no_wait) == []
    assert disk.path(1).read_bytes()[:committed] == content[:committed]
    assert disk.store.checksums(1, 1, committed, CELL) == row.checksums


def test_a_block_that_is_gone_is_fetched_whole(disk: Disk):
    data = disk.blocks[3]
    disk.path(3).unlink()
    disk.store = BlockStore(disk.folder)
    assert bad_cells(disk.store, 1, 3, row_of(data), no_wait) == list(range(10))
    disk.scrubber().scrub_round()
    assert disk.path(3).read_bytes() == data


def test_a_block_that_is_being_written_is_repaired_later(disk: Disk):
    data = disk.blocks[3]
    disk.damage(3, 0)
    with disk.store.open_writer(1, 3, len(data), CELL):
        with pytest.raises(BlockError, match=OVERLOADED):
            disk.write_cells(3, [0])
        scrubber = disk.scrubber()
        scrubber.scrub_round()
        assert scrubber.counts.errors == 1
    disk.told.clear()
    scrubber.scrub_round()
    assert disk.told == [(0, 1, 3, [0])]
    assert disk.path(3).read_bytes() == data


def test_it_goes_on_where_it_was_stopped(disk: Disk):
    scrubber = disk.scrubber()
    seen: list[int] = []

    def committed(after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        for place in disk.committed(after):
            seen.append(place[2])
            if len(seen) == 3:
                scrubber.stop()
            yield place

    scrubber._blocks = committed
    assert not scrubber.scrub_round()
    assert scrubber.cursor == (0, 1, 2)
    again = disk.scrubber()
    assert again.cursor == (0, 1, 2)
    again._blocks = committed
    assert again.scrub_round()
    assert seen == [1, 2, 3, 3, 4, 5]
    assert disk.scrubber().cursor is None


@pytest.mark.parametrize("text", ["", "{", "null", "[1,2]", '["x",1,2]'])
def test_a_cursor_that_cannot_be_understood_begins_anew(tmp_path: Path, text: str):
    (tmp_path / "cursor").write_text(text)
    assert read_cursor(tmp_path / "cursor") is None
    write_cursor(tmp_path / "cursor", (1, 2, 3))
    assert read_cursor(tmp_path / "cursor") == (1, 2, 3)


def test_a_row_that_contradicts_itself_does_not_end_the_round(disk: Disk):
    real = disk.committed

    def committed(after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        for partition, container_id, local_id, row in real(after):
            if local_id == 2:
                row = BlockRow(bcs_id=1, length=5, bytes_per_checksum=CELL, checksums=b"", deleted=False)
            yield partition, container_id, local_id, row

    scrubber = Scrubber(disk.store, committed, disk.repair, cursor_file=disk.folder / "cursor", bytes_per_second=FAST)
    assert scrubber.scrub_round()
    assert (scrubber.counts.blocks, scrubber.counts.errors) == (4, 1)


def test_the_thread_goes_round_and_stops(disk: Disk):
    scrubber = disk.scrubber()
    thread = threading.Thread(target=scrubber.run)
    thread.start()
    while scrubber.counts.rounds < 3:
        time.sleep(0.001)
    scrubber.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_rounds_begin_at_their_interval_and_no_sleep_is_longer_than_a_second(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
):
    now = [100.0]
    began: list[float] = []
    sleeps: list[float] = []
    scrubber = disk.scrubber(round_s=2.5)

    def scrub_round() -> bool:
        began.append(now[0])
        now[0] += 0.25
        if len(began) == 3:
            scrubber.stop()
        return True

    def wait(seconds: float) -> bool:
        sleeps.append(seconds)
        now[0] += seconds
        return scrubber._stop.is_set()

    monkeypatch.setattr("datanode_processors.repair.scrubber.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(scrubber, "scrub_round", scrub_round)
    monkeypatch.setattr(scrubber._stop, "wait", wait)
    scrubber.run()
    assert began == [100.0, 102.5, 105.0]
    assert sleeps == [1.0, 1.0, 0.25, 1.0, 1.0, 0.25, 1.0]


def test_a_round_that_took_longer_than_its_interval_is_followed_by_the_next_at_once(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
):
    now = [100.0]
    rounds: list[float] = []
    scrubber = disk.scrubber(round_s=2.5)

    def scrub_round() -> bool:
        rounds.append(now[0])
        now[0] += 2.5
        if len(rounds) == 2:
            scrubber.stop()
        return True

    def wait(_: float) -> bool:
        raise AssertionError("it sleeps")

    monkeypatch.setattr("datanode_processors.repair.scrubber.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(scrubber, "scrub_round", scrub_round)
    monkeypatch.setattr(scrubber._stop, "wait", wait)
    scrubber.run()
    assert rounds == [100.0, 102.5]


def test_the_rate_is_kept_step_by_step_and_a_second_of_idleness_is_made_up_for(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    sleeps: list[float] = []

    def sleep(seconds: float) -> bool:
        sleeps.append(seconds)
        now[0] += seconds
        return False

    stop: Any = SimpleNamespace(wait=sleep)

    monkeypatch.setattr("datanode_processors.repair.scrubber.time", SimpleNamespace(monotonic=lambda: now[0]))
    pace = Pace(1_000, stop)
    pace.took(500)
    pace.took(250)
    assert sleeps == [0.5, 0.25]
    now[0] += 60.0
    sleeps.clear()
    pace.took(1_000)
    assert not sleeps, "as much as in a second of idleness"
    pace.took(2_500)
    assert sleeps == [1.0, 1.0, 0.5], "no sleep is longer than a second"


@pytest.mark.parametrize(("passed_s", "kept"), [(9.9, None), (10.0, None), (10.1, (0, 1, 1))])
def test_the_cursor_is_written_every_ten_seconds(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, passed_s: float, kept: Place | None
):
    now = [100.0]
    monkeypatch.setattr("datanode_processors.repair.scrubber.time", SimpleNamespace(monotonic=lambda: now[0]))
    scrubber = disk.scrubber()
    seen: list[Place | None] = []

    def committed(after: Place | None) -> Iterator[tuple[int, int, int, BlockRow]]:
        for place in disk.committed(after):
            seen.append(read_cursor(disk.folder / "cursor"))
            if len(seen) == 1:
                now[0] += passed_s
            yield place

    scrubber._blocks = committed
    scrubber.scrub_round()
    assert seen == [None, kept, kept, kept, kept]


def test_a_cursor_that_cannot_be_written_ends_no_round(disk: Disk, caplog: pytest.LogCaptureFixture):
    scrubber = Scrubber(
        disk.store, disk.committed, disk.repair, cursor_file=disk.folder / "missing" / "cursor", bytes_per_second=FAST
    )
    assert scrubber.scrub_round()
    assert scrubber.counts.rounds == 1
    assert "No such file or directory" in caplog.text


def test_stopping_does_not_wait_for_a_slow_rate(disk: Disk):
    scrubber = disk.scrubber(bytes_per_second=1)
    thread = threading.Thread(target=scrubber.run)
    thread.start()
    while not scrubber.counts.bytes:
        time.sleep(0.001)
    scrubber.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert disk.told == []


def test_the_rate_is_kept_on_average():
    pace = Pace(1_000_000, threading.Event())
    began = time.monotonic()
    for _ in range(10):
        pace.took(20_000)
    assert time.monotonic() - began > 0.19


def test_a_rate_below_one_is_refused(disk: Disk):
    with pytest.raises(ValueError, match="at 0 bytes"):
        disk.scrubber(bytes_per_second=0)


def test_digests_tell_what_the_disks_have(tmp_path: Path):
    content = {number: random.Random(number).randbytes(number * 1000) for number in (1, 2, 3)}
    ours, theirs = Disk(tmp_path / "a", content), Disk(tmp_path / "b", content)

    def digest(disk: Disk) -> int:
        store = disk.store
        return container_digest(
            1, ((number, *read_checksums(store, 1, number, row_of(data))) for number, data in content.items())
        )

    assert digest(ours) == digest(theirs)
    with theirs.store.open_writer(1, 2, len(content[2]), CELL) as writer:
        writer.write(len(content[2]), b"not committed")
        writer.flush()
    assert digest(ours) == digest(theirs)
    theirs.damage(3, 2999)
    assert digest(ours) != digest(theirs)
    theirs.damage(3, 2999)
    os.truncate(theirs.path(3), 2999)
    theirs.store = BlockStore(theirs.folder)
    assert digest(ours) != digest(theirs)
    assert read_checksums(theirs.store, 1, 3, row_of(content[3])) == (2560, checksums_of(content[3][:2560], CELL))
