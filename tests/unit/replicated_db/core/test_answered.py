"""Early removal of retry rows: what a client says has been answered, the floor, and what is left of both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replicated_db.core.execution import answered
from replicated_db.core.execution.answered import AnsweredCalls
from replicated_db.core.execution.retry import RETENTION_MS, floor_of, floor_value, is_below_floor, prunable
from replicated_db.core.execution.shard_state import ShardState
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import LeaderLimits
from replicated_db.core.tables.column_families import RETRY, RETRY_EXPIRY
from replicated_db.core.tables.overlay import Overlay
from schemas import features
from schemas.records.log import Put
from tests.support.replicated.kit import FAMILIES, Shard, add, assert_sound, propose, prune, put, rows

CLIENT, OTHER = b"c" * 16, b"d" * 16


@pytest.fixture
def shard() -> Shard:
    return Shard(LeaderLimits(barrier_interval_ms=1, early_removal_calls=3))


def calls_of(shard: Shard, client: bytes = CLIENT) -> list[int]:
    """Calls whose retry row is there."""
    keys = [key for cf, key in rows(shard.replica) if cf == RETRY and len(key) == 24 and key[:16] == client]
    return [int.from_bytes(key[16:], "big") for key in keys]


def floor(shard: Shard, client: bytes = CLIENT) -> int:
    return floor_of(shard.replica.store.get, client)


def ask(shard: Shard, call: int, answered_below: int = 0, client: bytes = CLIENT) -> bytes:
    return shard.do(add(b"calls", 1), call=call, client=client, answered_below=answered_below)


def executed(shard: Shard) -> int:
    return int.from_bytes(rows(shard.replica)[("counters", b"calls")], "big")


def test_rows_below_go_together_with_the_floors_rise(shard: Shard):
    for call in range(1, 5):
        ask(shard, call)
    ask(shard, 5, answered_below=5)
    assert calls_of(shard) == [1, 2, 3, 4, 5], "heard of by this batch, done by the next"
    ask(shard, 6, answered_below=5)
    assert calls_of(shard) == [5, 6]
    assert floor(shard) == 5
    assert_sound(shard.replica)


def test_a_late_duplicate_of_a_removed_call_is_never_executed(shard: Shard):
    first = ask(shard, 1)
    for call in range(2, 6):
        ask(shard, call, answered_below=call)
    assert ask(shard, 5) == b"done 5", "its row is there: the first answer"
    assert 1 not in calls_of(shard)
    late = ask(shard, 1)
    assert late.startswith(b"expired|its client said that it has been answered")
    assert late != first
    assert executed(shard) == 5
    shard.lead("n2", genesis=False)
    assert ask(shard, 1).startswith(b"expired"), "the next leader knows, too"
    assert executed(shard) == 5


def test_a_call_below_the_floor_that_never_came_is_not_executed_either(shard: Shard):
    for call in (1, 2, 4, 5):
        ask(shard, call, answered_below=call)
    ask(shard, 6, answered_below=6)
    assert ask(shard, 3).startswith(b"expired")


def test_a_late_call_in_the_batch_that_raises_the_floor_is_not_executed(shard: Shard):
    """When it arrived, the floor was below it: it is judged again once the batch has removed rows."""
    for call in (1, 2, 4):
        ask(shard, call)
    ask(shard, 5, answered_below=5)
    assert floor(shard) == 0, "heard of, not done"
    assert ask(shard, 3).startswith(b"expired")
    assert floor(shard) == 5
    assert executed(shard) == 4


def test_other_clients_keep_their_rows(shard: Shard):
    ask(shard, 1, client=OTHER)
    for call in range(1, 6):
        ask(shard, call, answered_below=call)
    assert calls_of(shard, OTHER) == [1]
    assert floor(shard, OTHER) == 0


def test_a_client_that_is_not_far_enough_ahead_waits(shard: Shard):
    for call in (1, 2, 3):
        ask(shard, call, answered_below=min(call, 2))
    assert calls_of(shard) == [1, 2, 3]
    assert floor(shard) == 0


def test_nothing_is_removed_early_while_batches_are_in_flight(shard: Shard):
    sent_ms = shard.leader.timestamp_ms(shard.clock.elapsed_ms())
    for call in range(1, 8):
        shard.batch(propose(put(b"x", b""), call=call, answered_below=call, sent_ms=sent_ms))
    shard.deliver()
    assert calls_of(shard) == list(range(1, 8))
    ask(shard, 8)
    assert calls_of(shard) == [7, 8]


def test_older_software_might_lead_next_so_nothing_goes_early_at_the_first_level(shard: Shard):
    shard.leader.state = ShardState(feature_level=features.INITIAL)
    for call in range(1, 8):
        ask(shard, call, answered_below=call)
    assert calls_of(shard) == list(range(1, 8))


def test_many_rows_go_over_several_batches_in_the_order_of_calls(shard: Shard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answered, "MAX_REMOVALS_PER_BATCH", 2)
    for call in range(1, 6):
        ask(shard, call)
    ask(shard, 6, answered_below=6)
    floors = []
    for call in range(7, 10):
        ask(shard, call)
        floors.append((floor(shard), calls_of(shard)[0]))
    assert floors == [(3, 3), (5, 5), (6, 6)]


def test_a_floor_goes_ten_minutes_after_its_last_change(shard: Shard):
    def wait(ms: int) -> None:
        shard.clock.advance(ms)

    for call in range(1, 6):
        ask(shard, call, answered_below=call)
    assert floor(shard) == 3
    wait(RETENTION_MS // 2)
    for call in range(6, 11):
        ask(shard, call, answered_below=call)
    raised = floor(shard)
    assert raised > 3
    wait(RETENTION_MS // 2 + 10)
    for call in range(11, 15):
        ask(shard, call)
    assert floor(shard) == raised, "it has changed since"
    wait(RETENTION_MS)
    for call in range(15, 30):
        ask(shard, call)
        wait(2)
    assert floor(shard) == 0
    shard.catch_up()
    for node in shard.nodes.values():
        for _ in range(20):
            prune(node.replica)
        assert prunable(node.store, shard.replica.position.timestamp_ms - RETENTION_MS) == []
        assert all(
            int.from_bytes(key[:8], "big") > shard.replica.position.timestamp_ms - RETENTION_MS
            for key, _ in node.store.iterate(RETRY_EXPIRY, b"")
        )
        assert_sound(node.replica)


def test_a_batch_is_forgotten_only_when_the_rows_of_all_its_clients_are_gone(shard: Shard):
    sent_ms = shard.leader.timestamp_ms(shard.clock.elapsed_ms())
    shard.batch(
        propose(put(b"x", b""), call=1, client=OTHER, sent_ms=sent_ms), propose(put(b"x", b""), call=1, sent_ms=sent_ms)
    )
    shard.deliver()
    for call in range(2, 6):
        ask(shard, call, answered_below=call)
    assert calls_of(shard)[0] > 1
    assert prunable(shard.replica.store, shard.replica.position.timestamp_ms + 1) == [], (
        "the other client's row is there"
    )


def transaction_with(put_into: Callable[[Transaction], None]) -> Transaction:
    transaction = Transaction(FAMILIES, Overlay(Shard().replica.store), 1)
    put_into(transaction)
    return transaction


def test_what_is_heard_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answered, "MAX_CLIENTS", 3)
    heard = AnsweredCalls(1)
    for number in range(10):
        heard.on_requests({bytes([number]) * 16: 5})
        assert len(heard._due) <= len(heard._floors) <= 3
    assert heard.due


def test_a_statement_that_removes_nothing_writes_nothing():
    heard = AnsweredCalls(1)
    heard.on_requests({CLIENT: 100})
    heard.on_requests({CLIENT: -5})
    transaction = transaction_with(lambda _: None)
    heard.remove(transaction, 1)
    assert transaction.commit() == []
    assert not heard.due
    off = AnsweredCalls(0)
    off.on_requests({CLIENT: 100})
    assert not off.due


def test_the_floor_itself():
    transaction = transaction_with(lambda one: one.put(RETRY, CLIENT, floor_value(7, 1)))
    assert [operation for operation in transaction.operations if isinstance(operation, Put)]
    assert is_below_floor(transaction.get, CLIENT, (6).to_bytes(8, "big"))
    assert not is_below_floor(transaction.get, CLIENT, (7).to_bytes(8, "big"))
    assert not is_below_floor(transaction.get, OTHER, (0).to_bytes(8, "big"))
