"""The blocks reserved in one bucket: when they are asked for, which key gets which, when they are given back."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from producers.files.core.block_stock import (
    BUSY_KEYS,
    BUSY_S,
    CLOSED_S,
    FIRST_TARGET,
    FRESH_S,
    LAST_CLOSED_S,
    LAST_TARGET,
    RESERVED_BLOCKS,
    BlockStock,
    Reservation,
)
from schemas.records.rows import BlockLocation

START_S = 1000.0


def blocks(session: int, count: int = RESERVED_BLOCKS, pipeline: str = "") -> list[BlockLocation]:
    """Return the blocks of a session; each session has a pipeline of its own unless one is named."""
    place = pipeline or f"p{session}"
    return [
        BlockLocation(container_id=1, local_id=session * 1000 + number, offset=0, length=100, pipeline=place)
        for number in range(count)
    ]


def make_busy(stock: BlockStock, now_s: float = START_S) -> BlockStock:
    for _ in range(BUSY_KEYS):
        stock.on_written(now_s)
    return stock


def stocked(*counts: int) -> BlockStock:
    """Return the stock of a busy bucket, with reservation 1, and maybe 2, of so many blocks."""
    stock = make_busy(BlockStock())
    asked = stock.to_ask(START_S)
    while asked < len(counts):
        assert stock.take(1, START_S) is None
        asked += stock.to_ask(START_S)
    assert asked == len(counts)
    for session, count in enumerate(counts, 1):
        stock.on_reserved(session, blocks(session, count), START_S)
    return stock


def take(stock: BlockStock, now_s: float = START_S) -> tuple[Reservation, BlockLocation]:
    found = stock.take(1, now_s)
    assert found is not None
    return found


def taken_from(stock: BlockStock, now_s: float = START_S) -> int | None:
    """Return the session that a key gets its block of; the key is committed."""
    found = stock.take(1, now_s)
    if found is None:
        return None
    stock.on_committed(found[0])
    return found[0].session_id


# -- rule 1: busy buckets ----------------------------------------------------------------------------------------------


def test_a_bucket_is_busy_once_enough_keys_were_written_within_the_time() -> None:
    stock = BlockStock()
    for number in range(BUSY_KEYS):
        assert not stock.serves(START_S)
        assert stock.to_ask(START_S) == 0
        stock.on_written(START_S + BUSY_S * number / (BUSY_KEYS - 1))
    assert stock.serves(START_S + BUSY_S)
    assert not stock.serves(START_S + BUSY_S + 0.001)


def test_a_key_now_and_then_reserves_nothing() -> None:
    stock = BlockStock()
    for number in range(100):
        now_s = START_S + number * BUSY_S / (BUSY_KEYS - 1) * 1.01
        stock.on_written(now_s)
        assert stock.to_ask(now_s) == 0
        assert stock.take(1, now_s) is None
    assert stock.is_empty


def test_a_bucket_that_was_busy_asks_for_no_more_but_uses_what_it_has() -> None:
    stock = stocked(2)
    later_s = START_S + BUSY_S + 1
    assert stock.to_ask(later_s) == 0
    assert taken_from(stock, later_s) == 1


# -- rule 2: how much is asked for -------------------------------------------------------------------------------------


def test_reservations_are_asked_for_up_to_the_target_once() -> None:
    stock = make_busy(BlockStock())
    assert stock.to_ask(START_S) == FIRST_TARGET // RESERVED_BLOCKS
    assert stock.to_ask(START_S) == 0, "they count from the asking on"
    stock.on_reserved(1, blocks(1), START_S)
    assert stock.to_ask(START_S) == 0
    take(stock)
    assert stock.to_ask(START_S) == 1, "one block less than the target"


def test_the_target_doubles_with_each_key_that_finds_no_block() -> None:
    stock = make_busy(BlockStock())
    asked = stock.to_ask(START_S)
    target = FIRST_TARGET
    for _ in range(6):
        assert stock.take(1, START_S) is None
        target = min(2 * target, LAST_TARGET)
        asked += stock.to_ask(START_S)
        assert asked * RESERVED_BLOCKS == target
    assert target == LAST_TARGET


def test_the_target_does_not_grow_where_nothing_is_reserved() -> None:
    stock = BlockStock()
    for _ in range(6):
        assert stock.take(1, START_S) is None
    make_busy(stock)
    assert stock.to_ask(START_S) == FIRST_TARGET // RESERVED_BLOCKS


def test_a_reservation_of_fewer_blocks_counts_with_what_it_has() -> None:
    stock = make_busy(BlockStock())
    stock.to_ask(START_S)
    stock.on_reserved(1, blocks(1, 1), START_S)
    assert stock.to_ask(START_S) == 1


# -- rule 3: which block a key gets ------------------------------------------------------------------------------------


def test_keys_get_the_blocks_of_the_oldest_reservation_in_order() -> None:
    stock = stocked(2, 1)
    assert [take(stock)[1].local_id for _ in range(3)] == [1000, 1001, 2000]
    assert stock.take(1, START_S) is None


def test_a_reservation_is_used_while_it_is_fresh() -> None:
    stock = stocked(3)
    assert stock.to_ask(START_S + 1) == 1
    stock.on_reserved(2, blocks(2, 1), START_S + 1)
    assert taken_from(stock, START_S + FRESH_S) == 1
    assert taken_from(stock, START_S + FRESH_S + 0.5) == 2
    assert stock.to_release() == [1]
    assert stock.take(1, START_S + FRESH_S + 0.5) is None


def test_an_old_reservation_is_given_back_after_its_last_key_has_ended() -> None:
    stock = stocked(2)
    reservation, _ = take(stock)
    assert stock.take(1, START_S + FRESH_S + 1) is None
    assert stock.to_release() == []
    stock.on_committed(reservation)
    assert stock.to_release() == [1]
    assert stock.to_release() == []


# -- rules 4 and 5: failures and refusals ------------------------------------------------------------------------------


def test_a_reservation_with_a_block_that_failed_is_not_used_any_more() -> None:
    stock = stocked(3, 1)
    failed, _ = take(stock)
    other, _ = take(stock)
    stock.on_failed(failed, START_S)
    assert not failed.used
    assert taken_from(stock) == 2
    assert stock.to_release() == [], "the other key is being written"
    stock.on_committed(other)
    assert stock.to_release() == [1]


def test_the_other_reservations_on_the_pipeline_of_a_block_that_failed_are_not_used_either() -> None:
    stock = make_busy(BlockStock())
    asked = stock.to_ask(START_S)
    while asked < 3:
        assert stock.take(1, START_S) is None
        asked += stock.to_ask(START_S)
    for session, pipeline in ((1, "p1"), (2, "p2"), (3, "p1")):
        stock.on_reserved(session, blocks(session, 2, pipeline), START_S)
    stock.on_failed(take(stock)[0], START_S)
    assert sorted(stock.to_release()) == [1, 3]
    assert stock.serves(START_S), "what is left is used though nothing is asked for"
    assert [taken_from(stock), taken_from(stock), taken_from(stock)] == [2, 2, None]
    assert not stock.serves(START_S)


def test_a_key_that_no_block_has_room_for_takes_none() -> None:
    stock = stocked(2)
    assert stock.take(101, START_S) is None
    assert stock.take(100, START_S) is not None


def test_old_blocks_do_not_count_as_stock() -> None:
    stock = stocked(RESERVED_BLOCKS)
    later_s = START_S + FRESH_S + 1
    make_busy(stock, later_s)
    assert stock.to_ask(later_s) == 1
    assert stock.to_release() == [1]


def test_after_a_failure_nothing_is_reserved_for_a_while() -> None:
    stock = stocked(2)
    stock.on_failed(take(stock)[0], START_S)
    for passed_s in (0.0, CLOSED_S - 0.001):
        make_busy(stock, START_S + passed_s)
        assert not stock.serves(START_S + passed_s)
        assert stock.to_ask(START_S + passed_s) == 0
    make_busy(stock, START_S + CLOSED_S)
    assert stock.to_ask(START_S + CLOSED_S) == 1


def test_keys_of_one_reservation_that_fail_together_are_one_failure() -> None:
    stock = stocked(4)
    keys = [take(stock)[0] for _ in range(3)]
    for reservation in keys:
        stock.on_failed(reservation, START_S)
    make_busy(stock, START_S + CLOSED_S)
    assert stock.serves(START_S + CLOSED_S)
    assert stock.to_release() == [1]


def test_requests_that_are_refused_together_are_one_refusal() -> None:
    stock = make_busy(BlockStock())
    for _ in range(6):
        stock.take(1, START_S)
    asked = stock.to_ask(START_S)
    assert asked > 1
    for _ in range(asked):
        stock.on_refused(START_S)
    make_busy(stock, START_S + CLOSED_S)
    assert stock.serves(START_S + CLOSED_S)
    assert stock.to_ask(START_S + CLOSED_S) == asked


@pytest.mark.parametrize("how", ["refused", "failed"])
def test_each_further_one_closes_for_twice_as_long(how: str) -> None:
    stock, now_s, closed_s = BlockStock(), START_S, CLOSED_S
    for session in range(8):
        make_busy(stock, now_s)
        assert stock.to_ask(now_s) == 1
        if how == "refused":
            stock.on_refused(now_s)
        else:
            stock.on_reserved(session, blocks(session, 1), now_s)
            stock.on_failed(take(stock, now_s)[0], now_s)
        make_busy(stock, now_s + closed_s - 0.001)
        assert not stock.serves(now_s + closed_s - 0.001)
        now_s += closed_s
        closed_s = min(2 * closed_s, LAST_CLOSED_S)
    assert closed_s == LAST_CLOSED_S


def test_a_key_that_is_committed_ends_the_series() -> None:
    stock, now_s = BlockStock(), START_S
    for _ in range(3):
        make_busy(stock, now_s)
        stock.to_ask(now_s)
        stock.on_refused(now_s)
        now_s += LAST_CLOSED_S
    make_busy(stock, now_s)
    stock.to_ask(now_s)
    stock.on_reserved(1, blocks(1), now_s)
    assert taken_from(stock, now_s) == 1
    stock.to_ask(now_s)
    stock.on_refused(now_s)
    make_busy(stock, now_s + CLOSED_S)
    assert stock.serves(now_s + CLOSED_S)


def test_a_key_that_is_not_committed_for_another_reason_closes_nothing() -> None:
    stock = stocked(2)
    reservation, first = take(stock)
    stock.on_unused(reservation)
    assert stock.serves(START_S)
    assert take(stock)[1] != first, "nobody knows whether its block is in a key"


# -- rule 6: giving back -----------------------------------------------------------------------------------------------


def test_a_reservation_whose_blocks_are_all_committed_ends_by_itself() -> None:
    stock = stocked(2)
    assert [taken_from(stock), taken_from(stock), taken_from(stock)] == [1, 1, None]
    stock.stop()
    assert stock.to_release() == []
    assert stock.is_empty


def test_one_lost_block_is_reason_enough_to_give_a_reservation_back() -> None:
    stock = stocked(2)
    stock.on_unused(take(stock)[0])
    assert taken_from(stock) == 1
    assert stock.to_release() == []
    assert stock.take(1, START_S) is None
    assert stock.to_release() == [1]


def test_stopping_gives_everything_back_that_no_key_is_written_to() -> None:
    stock = stocked(2, 2)
    reservation, _ = take(stock)
    stock.stop()
    assert stock.to_release() == [2]
    assert not stock.is_empty, "a key is being written"
    stock.on_committed(reservation)
    assert stock.has_to_release
    assert stock.to_release() == [1]
    assert stock.is_empty
    assert stock.take(1, START_S) is None


def test_what_comes_after_the_stop_is_given_back_when_it_is_stopped_again() -> None:
    stock = make_busy(BlockStock())
    stock.to_ask(START_S)
    stock.stop()
    assert not stock.is_empty
    stock.on_reserved(1, blocks(1), START_S)
    stock.stop()
    assert stock.to_release() == [1]


# -- any order of events -----------------------------------------------------------------------------------------------


class Stocks(RuleBasedStateMachine):
    """A bucket, its keys and a cluster in any order; the model is what happened to each block."""

    def __init__(self) -> None:
        super().__init__()
        self.stock = BlockStock()
        self.now_s = START_S
        self.asked = 0
        self.sessions = 0
        self.writing: list[tuple[Reservation, BlockLocation]] = []
        self.given: set[int] = set()
        self.there: dict[int, int] = {}
        """By session, the blocks that are not committed."""
        self.released: list[int] = []

    @rule(count=st.integers(1, BUSY_KEYS))
    def write(self, count: int) -> None:
        for _ in range(count):
            self.stock.on_written(self.now_s)

    @rule(passed_s=st.sampled_from([0.05, BUSY_S, CLOSED_S, FRESH_S + 1, LAST_CLOSED_S]))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule()
    def ask(self) -> None:
        wanted = self.stock.to_ask(self.now_s)
        assert not wanted or self.stock.is_busy(self.now_s)
        self.asked += wanted

    @precondition(lambda self: self.asked)
    @rule(count=st.integers(1, RESERVED_BLOCKS))
    def reserve(self, count: int) -> None:
        self.asked -= 1
        self.sessions += 1
        self.there[self.sessions] = count
        found = blocks(self.sessions, count, pipeline=f"p{self.sessions % 3}")
        self.stock.on_reserved(self.sessions, found, self.now_s)

    @precondition(lambda self: self.asked)
    @rule()
    def refuse(self) -> None:
        self.asked -= 1
        self.stock.on_refused(self.now_s)
        assert self.stock.to_ask(self.now_s) == 0

    @rule()
    def take(self) -> None:
        found = self.stock.take(1, self.now_s)
        if found is None:
            return
        reservation, block = found
        assert block.local_id not in self.given, "a block is given to one key at most"
        assert reservation.session_id not in self.released
        assert reservation.used
        assert self.now_s - reservation.since_s <= FRESH_S
        self.given.add(block.local_id)
        self.writing.append(found)

    @precondition(lambda self: self.writing)
    @rule(which=st.randoms(), end=st.sampled_from(["committed", "committed", "unused", "failed"]))
    def end(self, which: random.Random, end: str) -> None:
        self._end(which.randrange(len(self.writing)), end)

    def _end(self, number: int, end: str) -> None:
        reservation, _ = self.writing.pop(number)
        if end == "committed":
            self.there[reservation.session_id] -= 1
            self.stock.on_committed(reservation)
        elif end == "unused":
            self.stock.on_unused(reservation)
        else:
            self.stock.on_failed(reservation, self.now_s)
            assert not reservation.used

    @rule()
    def release(self) -> None:
        self._release()

    def _release(self) -> None:
        for session in self.stock.to_release():
            assert session not in self.released, "each is given back once"
            assert all(reservation.session_id != session for reservation, _ in self.writing)
            assert self.there[session], "all its blocks are committed"
            self.released.append(session)

    @rule()
    def stop(self) -> None:
        self.stock.stop()
        assert self.stock.take(1, self.now_s) is None

    @invariant()
    def the_stock_has_a_limit(self) -> None:
        there = sum(len(one.blocks) for one in self.stock._reservations)
        assert there + self.asked * RESERVED_BLOCKS < LAST_TARGET + RESERVED_BLOCKS

    def teardown(self) -> None:
        """End everything: what is not committed is given back, the rest has ended by itself."""
        while self.writing:
            self._end(0, "committed" if len(self.writing) % 2 else "unused")
        for _ in range(self.asked):
            self.stock.on_refused(self.now_s)
        self.stock.stop()
        self._release()
        assert sorted(self.released) == [session for session, left in sorted(self.there.items()) if left]
        assert self.stock.is_empty


TestStocks = Stocks.TestCase
TestStocks.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
