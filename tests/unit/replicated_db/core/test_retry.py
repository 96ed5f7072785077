"""Exactly once: repeats, reused ids, expiry of requests and removal of retry rows."""

from __future__ import annotations

import pytest

from replicated_db.core.execution.retry import (
    MAX_EXPIRIES_PER_BATCH,
    REQUEST_LIFETIME_MS,
    RETENTION_MS,
    expired,
    expiry_row,
    is_expired,
    prunable,
    retry_key,
    retry_value,
    rows_of,
)
from replicated_db.core.tables.column_families import RETRY, RETRY_EXPIRY
from replicated_db.core.tables.memory import MemoryStore
from schemas.codecs.codec import decode
from schemas.records.log import Batch, Delete
from tests.support.replicated.kit import (
    FAMILIES,
    HASH,
    START_MS,
    Shard,
    add,
    assert_sound,
    batch,
    propose,
    prune,
    put,
    responses,
    result,
    rows,
)

NOW = 1_000_000_000


@pytest.mark.parametrize(
    ("sent_ms", "expected"),
    [
        (NOW, False),
        (NOW - REQUEST_LIFETIME_MS + 1, False),
        (NOW - REQUEST_LIFETIME_MS, True),
        (NOW + REQUEST_LIFETIME_MS - 1, False),
        (NOW + REQUEST_LIFETIME_MS, True),
        (0, True),
    ],
)
def test_is_expired(sent_ms: int, expected: bool):
    assert is_expired(sent_ms, NOW) is expected


def test_retention_outlives_every_request():
    """A row goes after RETENTION_MS; its request, sent up to the lifetime ahead of its batch, has expired by then."""
    assert RETENTION_MS >= 2 * REQUEST_LIFETIME_MS


def test_layouts():
    record = batch(
        results=[result(1, b"a"), result(2, b"b", recorded=False), result(3, b"c")], timestamp_ms=5, last_index=9
    )
    key = retry_key(b"c" * 16, (1).to_bytes(8, "big"))
    assert key == b"c" * 16 + bytes(7) + b"\x01"
    assert retry_value(record.results[0]) == HASH + b"a"
    assert rows_of(record) == [(key, HASH + b"a"), (b"c" * 16 + bytes(7) + b"\x03", HASH + b"c")]
    expiry_key, packed = expiry_row(record, [key for key, _ in rows_of(record)])
    assert expiry_key == (5).to_bytes(8, "big") + (9).to_bytes(8, "big")
    assert len(packed) == 48


def store_with_expiries(*times_ms: int) -> MemoryStore:
    store = MemoryStore(FAMILIES.names)
    for number, time_ms in enumerate(times_ms, 1):
        record = batch(results=[result(number)], timestamp_ms=time_ms, last_index=number)
        [(key, value)] = rows_of(record)
        store.write([(RETRY, key, value), (RETRY_EXPIRY, *expiry_row(record, [key]))])
    return store


def call_of(key: bytes) -> int:
    return int.from_bytes(key[16:], "big")


def test_expired_goes_from_the_oldest():
    store = store_with_expiries(100, 200, 200, 300)
    found = list(expired(store, b"", 201))
    assert [call_of(keys[0]) for _, keys in found] == [1, 2, 3]
    assert [call_of(keys[0]) for _, keys in expired(store, found[0][0], 201)] == [2, 3]
    assert list(expired(store, b"", 100)) == []
    assert [call_of(keys[0]) for _, keys in expired(store, b"", 101)] == [1]
    assert list(expired(store, b"", -5)) == []


def test_prunable_only_what_is_gone_and_in_order():
    store = store_with_expiries(100, 200, 300, 400)
    assert prunable(store, 1000) == []
    keys = [key for key, _ in store.iterate(RETRY, b"")]
    store.write([(RETRY, keys[0], None), (RETRY, keys[2], None)])
    assert [int.from_bytes(key[:8], "big") for key in prunable(store, 1000)] == [100]
    store.write([(RETRY, key, None) for key in keys])
    assert len(prunable(store, 1000)) == MAX_EXPIRIES_PER_BATCH
    assert prunable(store, 100) == []


# Through the leader.


def retry_rows(shard: Shard) -> int:
    return sum(1 for _ in shard.replica.store.iterate(RETRY, b""))


def last_batch(shard: Shard) -> Batch:
    records = [decode(entry.value) for entry in shard.log.entries]
    return [record for record in records if isinstance(record, Batch)][-1]


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_a_repeat_of_an_applied_request_leaves_at_once(shard: Shard):
    first = propose(put(b"a", b"1"))
    shard.batch(first)
    [answer] = responses(shard.deliver())
    again = propose(put(b"a", b"1"), call=int.from_bytes(first.call_id, "big"))
    reply = shard.execute(again)
    assert reply is not None
    assert reply.response == answer
    assert reply.proposal is again
    assert shard.leader.seal() == []
    assert shard.leader.index == 1


def test_a_repeat_in_the_same_batch_waits_for_it(shard: Shard):
    first = propose(add(b"n", 5))
    again = propose(add(b"n", 5), call=int.from_bytes(first.call_id, "big"))
    assert shard.batch(first, again, again) == [None, None, None]
    [effective] = shard.deliver()
    assert [reply.response for reply in effective.replies] == [b"done 1"] * 3
    assert shard.leader.index == 1
    assert_sound(shard.replica)


def test_a_repeat_of_a_request_in_flight_waits_for_its_batch(shard: Shard):
    first = propose(add(b"n", 5))
    again = propose(add(b"n", 5), call=int.from_bytes(first.call_id, "big"))
    shard.batch(first)
    assert shard.execute(again) is None
    assert shard.leader.seal() == [], "the repeat adds nothing to the log"
    [effective] = shard.deliver()
    assert [reply.proposal for reply in effective.replies] == [first, again]
    assert responses([effective]) == [b"done 1", b"done 1"]


def test_a_repeat_beside_new_requests_waits_for_the_earlier_batch(shard: Shard):
    first, other = propose(add(b"n", 5)), propose(add(b"n", 7))
    again = propose(add(b"n", 5), call=int.from_bytes(first.call_id, "big"))
    shard.batch(first)
    shard.batch(other, again)
    one, two = shard.deliver()
    assert responses([one]) == [b"done 1", b"done 1"]
    assert responses([two]) == [b"done 2"]


def test_a_repeat_after_a_change_of_leader(shard: Shard):
    first = propose(add(b"n", 5))
    shard.batch(first)
    shard.deliver()
    shard.lead("n2", genesis=False)
    reply = shard.execute(propose(add(b"n", 5), call=int.from_bytes(first.call_id, "big")))
    assert reply is not None
    assert reply.response == b"done 1"


@pytest.mark.parametrize("where", ["same batch", "in flight", "applied"])
def test_the_same_call_with_another_payload(shard: Shard, where: str):
    first = propose(add(b"n", 5), call=900_001)
    other = propose(add(b"n", 6), call=900_001, hashed=b"another request!")
    if where == "same batch":
        shard.batch(first, other)
    else:
        shard.batch(first)
        if where == "applied":
            shard.deliver()
        assert shard.batch(other) == [None], "it depends on state: it waits for its batch"
    answers = responses(shard.deliver())
    assert answers[-1] == b"call id reused|the call id was used for another request|2"
    assert rows(shard.replica)["counters", b"n"] == (5).to_bytes(8, "big")
    assert [r.recorded for r in last_batch(shard).results][-1] is False
    assert retry_rows(shard) == 1
    assert_sound(shard.replica)


def test_an_id_that_was_reused_keeps_its_first_answer(shard: Shard):
    shard.do(add(b"n", 5), call=900_002)
    shard.do(add(b"n", 6), call=900_002, hashed=b"another request!")
    assert shard.do(add(b"n", 5), call=900_002) == b"done 1"


@pytest.mark.parametrize("delta_ms", [-REQUEST_LIFETIME_MS, REQUEST_LIFETIME_MS, -(1 << 40), 1 << 40])
def test_an_expired_request_is_not_executed(shard: Shard, delta_ms: int):
    proposal = propose(put(b"a", b"1"), sent_ms=START_MS + delta_ms)
    assert shard.batch(proposal) == [None]
    [answer] = responses(shard.deliver())
    assert answer.startswith(b"expired|first sent at")
    assert rows(shard.replica) == {}
    assert [r.recorded for r in last_batch(shard).results] == [False]
    assert shard.leader.index == 1, "the answer has an index of its own"


@pytest.mark.parametrize("delta_ms", [-REQUEST_LIFETIME_MS + 1, REQUEST_LIFETIME_MS - 1])
def test_a_request_within_its_lifetime_is_executed(shard: Shard, delta_ms: int):
    shard.batch(propose(put(b"a", b"1"), sent_ms=START_MS + delta_ms))
    assert responses(shard.deliver()) == [b"done 1"]


def test_an_old_repeat_gets_its_answer_while_the_row_lives(shard: Shard):
    first = propose(put(b"a", b"1"))
    shard.batch(first)
    shard.deliver()
    shard.clock.advance(REQUEST_LIFETIME_MS + 1000)
    reply = shard.execute(first)
    assert reply is not None
    assert reply.response == b"done 1"


def test_rows_live_for_the_retention_and_not_longer(shard: Shard):
    first = propose(put(b"a", b"1"))
    shard.batch(first)
    shard.deliver()
    shard.clock.advance(RETENTION_MS)
    shard.do(put(b"b", b"1"))
    assert retry_rows(shard) == 2, "exactly the retention: it stays"
    shard.clock.advance(2_000)
    shard.do(put(b"c", b"1"))
    assert retry_rows(shard) == 2
    removal = last_batch(shard).operations[0]
    assert isinstance(removal, Delete)
    assert removal.cf == RETRY
    assert removal.prev is not None
    shard.batch(first)
    assert responses(shard.deliver())[0].startswith(b"expired|"), "what is forgotten is expired, never executed"
    assert_sound(shard.replica)
    shard.catch_up()
    assert rows(shard.nodes["n2"].replica) == rows(shard.replica)


def test_removal_is_bounded_per_batch_and_keeps_up():
    shard = Shard()
    for number in range(10):
        shard.do(put(b"k%d" % number, b""))
        shard.clock.advance(1)
    shard.clock.advance(RETENTION_MS)
    left = [retry_rows(shard)]
    for number in range(6):
        shard.do(put(b"later %d" % number, b""))
        left.append(retry_rows(shard))
    assert left == [10, 9, 8, 7, 6, 5, 6], (
        "each batch adds one and removes those of two old batches, while there are any"
    )
    assert_sound(shard.replica)


def test_no_row_goes_without_an_index(shard: Shard):
    first = propose(put(b"a", b"1"))
    shard.batch(first)
    shard.deliver()
    shard.clock.advance(RETENTION_MS + 1)
    # Only the repeat of an applied request comes in: a batch for the removal alone would change rows under the same index, and digests
    # computed before it would pass for those behind it (decision 0004).
    reply = shard.execute(first)
    assert reply is not None
    assert reply.response == b"done 1"
    assert shard.leader.seal() == []
    assert retry_rows(shard) == 1
    shard.do(put(b"b", b"1"))
    assert retry_rows(shard) == 1, "the next batch with an index removes it and adds its own"
    assert_sound(shard.replica)


def test_a_new_leader_removes_what_the_former_did_not(shard: Shard):
    for number in range(3):
        shard.do(put(b"k%d" % number, b""))
        shard.clock.advance(1)
    shard.clock.advance(RETENTION_MS)
    shard.do(put(b"x", b""))
    assert retry_rows(shard) == 2
    shard.lead("n2", genesis=False)
    for number in range(3):
        shard.do(put(b"y%d" % number, b""))
    assert {key for cf, key in rows(shard.replica) if cf == "things"} >= {b"x", b"y0", b"y2"}
    assert retry_rows(shard) == 4
    assert_sound(shard.replica)


def test_prune_forgets_expiry_rows_whose_rows_are_gone(shard: Shard):
    def expiries() -> int:
        return sum(1 for _ in shard.replica.store.iterate(RETRY_EXPIRY, b""))

    for number in range(4):
        shard.do(put(b"k%d" % number, b""))
        shard.clock.advance(1)
    prune(shard.replica)
    assert expiries() == 4
    shard.clock.advance(RETENTION_MS)
    for _ in range(2):
        shard.do(put(b"x", b""))
    for _ in range(3):
        prune(shard.replica)
    assert expiries() == 2
    assert retry_rows(shard) == 2
    assert_sound(shard.replica)


def test_local_proposals_have_no_retry_row(shard: Shard):
    proposal = propose(put(b"a", b"1"), client=b"")
    shard.batch(proposal)
    [effective] = shard.deliver()
    assert responses([effective]) == [b"done 1"]
    assert last_batch(shard).results == []
    assert retry_rows(shard) == 0
