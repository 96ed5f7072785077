"""Which small blocks travel together: rules of ``core/small_batches``, and any order of events against them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from producers.blocks.core.small_batches import (
    CLOSED_S,
    GATHERED_BLOCKS,
    GATHERED_BYTES,
    LAST_CLOSED_S,
    MAX_UNDER_WAY,
    MAX_WAYS,
    SmallBatches,
)
from schemas.records.packets import MAX_BLOCKS_TOGETHER, MAX_BYTES_TOGETHER

WAY = "way"


@dataclass(frozen=True)
class Waits:
    number: int
    length: int = 32_768


def test_a_block_leaves_at_once_and_others_gather_behind_it() -> None:
    batches: SmallBatches[Waits] = SmallBatches()
    batches.add(WAY, Waits(0))
    assert batches.next_batch(WAY) == [Waits(0)]
    for number in range(1, GATHERED_BLOCKS):
        batches.add(WAY, Waits(number))
        assert batches.next_batch(WAY) == []
    batches.on_ended(WAY)
    assert batches.next_batch(WAY) == [Waits(number) for number in range(1, GATHERED_BLOCKS)]
    assert batches.next_batch(WAY) == []


def test_a_batch_leaves_beside_others_once_enough_has_gathered() -> None:
    batches: SmallBatches[Waits] = SmallBatches()
    batches.add(WAY, Waits(0))
    assert batches.next_batch(WAY)
    for turn in range(1, MAX_UNDER_WAY + 1):
        found: list[Waits] = []
        for _ in range(GATHERED_BLOCKS):
            assert found == []
            batches.add(WAY, Waits(turn))
            found = batches.next_batch(WAY)
        assert found == ([Waits(turn)] * GATHERED_BLOCKS if turn < MAX_UNDER_WAY else [])
    large: SmallBatches[Waits] = SmallBatches()
    large.add(WAY, Waits(0))
    assert large.next_batch(WAY)
    large.add(WAY, Waits(1, GATHERED_BYTES))
    assert large.next_batch(WAY) == [Waits(1, GATHERED_BYTES)]


def test_ways_do_not_wait_for_each_other() -> None:
    batches: SmallBatches[Waits] = SmallBatches()
    batches.add(WAY, Waits(1))
    assert batches.next_batch(WAY)
    batches.add("other", Waits(9))
    assert batches.next_batch("other") == [Waits(9)]


def test_a_failure_closes_the_way_for_longer_each_time() -> None:
    batches: SmallBatches[Waits] = SmallBatches()
    now_s, closed_s = 100.0, CLOSED_S
    for _ in range(8):
        batches.add(WAY, Waits(1))
        assert batches.next_batch(WAY) == [Waits(1)]
        batches.add(WAY, Waits(2))
        assert batches.on_failed(WAY, now_s) == [Waits(2)]
        assert not batches.takes(WAY, now_s + closed_s - 0.1)
        now_s += closed_s
        assert batches.takes(WAY, now_s)
        closed_s = min(2 * closed_s, LAST_CLOSED_S)
    batches.add(WAY, Waits(3))
    assert batches.next_batch(WAY) == [Waits(3)]
    batches.on_ended(WAY)
    batches.add(WAY, Waits(4))
    batches.next_batch(WAY)
    batches.on_failed(WAY, now_s)
    assert batches.takes(WAY, now_s + CLOSED_S)


def test_ways_without_blocks_are_forgotten() -> None:
    batches: SmallBatches[Waits] = SmallBatches()
    for number in range(3 * MAX_WAYS):
        batches.add(number, Waits(number))
        batches.next_batch(number)
        batches.on_ended(number)
    assert len(batches._ways) <= MAX_WAYS


@given(
    st.lists(
        st.one_of(st.integers(1, MAX_BYTES_TOGETHER).map(lambda size: ("add", size)), st.just(("end", 0))), max_size=200
    )
)
def test_every_block_leaves_once_in_order_within_the_limits(events: list[tuple[str, int]]) -> None:
    batches: SmallBatches[Waits] = SmallBatches()
    left: list[Waits] = []
    added = under_way = 0
    for what, size in [*events, *[("end", 0)] * 400]:
        if what == "add":
            batches.add(WAY, Waits(added, size))
            added += 1
        elif under_way:
            batches.on_ended(WAY)
            under_way -= 1
        if batch := batches.next_batch(WAY):
            under_way += 1
            assert under_way <= MAX_UNDER_WAY
            assert len(batch) <= MAX_BLOCKS_TOGETHER
            assert sum(block.length for block in batch) <= MAX_BYTES_TOGETHER
            left += batch
    assert [block.number for block in left] == list(range(added))


def test_a_batch_has_as_many_bytes_as_it_may_and_no_block_more() -> None:
    for over, left in ((0, 0), (1, 1)):
        batches: SmallBatches[Waits] = SmallBatches()
        half = MAX_BYTES_TOGETHER // 2
        blocks = [Waits(0, half), Waits(1, half + over)]
        for block in blocks:
            batches.add(WAY, block)
        assert batches.next_batch(WAY) == blocks[: 2 - left]
        batches.on_ended(WAY)
        assert batches.next_batch(WAY) == blocks[2 - left :]


def test_a_batch_has_as_many_blocks_as_it_may() -> None:
    batches: SmallBatches[Waits] = SmallBatches()
    for number in range(MAX_BLOCKS_TOGETHER + 1):
        batches.add(WAY, Waits(number, 1))
    assert len(batches.next_batch(WAY)) == MAX_BLOCKS_TOGETHER
    batches.on_ended(WAY)
    assert [block.number for block in batches.next_batch(WAY)] == [MAX_BLOCKS_TOGETHER]


def test_bytes_that_have_gathered_leave_beside_a_batch_as_soon_as_they_are_enough() -> None:
    batches: SmallBatches[Waits] = SmallBatches()
    batches.add(WAY, Waits(0))
    assert batches.next_batch(WAY)
    batches.add(WAY, Waits(1, GATHERED_BYTES - 1))
    assert batches.next_batch(WAY) == []
    batches.add(WAY, Waits(2, 1))
    assert [block.number for block in batches.next_batch(WAY)] == [1, 2]
    batches.add(WAY, Waits(3, GATHERED_BYTES - 1))
    assert batches.next_batch(WAY) == [], "what has left does not count any more"
