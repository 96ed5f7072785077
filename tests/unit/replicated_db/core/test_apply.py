"""Planning a batch against the rows really found: claims that are true, claims that are false, and what cannot be understood."""

from __future__ import annotations

import pytest

from replicated_db.core.applying.apply import FalseClaim, Plan, plan_batch
from replicated_db.core.errors import BrokenLog
from replicated_db.core.ports import Write
from replicated_db.core.tables.column_families import RETRY
from replicated_db.core.tables.digests import MASK, Digests, digest_of_rows
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.merge import encode_int64
from schemas.records.log import Batch, Checkpoint, Merge, Operation
from tests.support.replicated.kit import FAMILIES, HASH, add, batch, delete, hash_of, put, result

FIVE, SEVEN = encode_int64(5), encode_int64(7)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(FAMILIES.names)
    store.write([("things", b"a", b"1"), ("things", b"b", b"2"), ("counters", b"n", FIVE)])
    return store


def scan(store: MemoryStore) -> Digests:
    return digest_of_rows(FAMILIES, [(cf, k, v) for cf in FAMILIES.names for k, v in store.iterate(cf, b"")])


def plan_and_check(store: MemoryStore, planned: Batch) -> Plan:
    """Plan, write, and hold the deltas against scans before and after."""
    before = scan(store)
    plan = plan_batch(FAMILIES, store, planned)
    writes: list[Write] = [(cf, key, value) for (cf, key), value in plan.rows.items()]
    store.write(writes)
    for slot, delta in plan.deltas.items():
        family, bucket = divmod(slot, 256)
        before.sums[family][bucket] = (before.sums[family][bucket] + delta) & MASK
    assert before == scan(store)
    return plan


def claims(plan: Plan) -> list[tuple[int, str, int | None, int | None]]:
    return [(found.operation, found.claim, found.claimed, found.own) for found in plan.false_claims]


A1, B2 = hash_of("things", b"a", b"1"), hash_of("things", b"b", b"2")
N5, N7 = hash_of("counters", b"n", FIVE), hash_of("counters", b"n", SEVEN)

TRUE: dict[str, list[Operation]] = {
    "put over": [put(b"a", b"x", prev=A1)],
    "put new": [put(b"c", b"x")],
    "put the same": [put(b"a", b"1", prev=A1)],
    "delete": [delete(b"a", prev=A1)],
    "delete absent": [delete(b"c")],
    "merge": [add(b"n", 2, prev=N5, next=N7)],
    "merge absent": [add(b"m", 7, next=hash_of("counters", b"m", SEVEN))],
    "put, put": [put(b"a", b"x", prev=A1), put(b"a", b"y", prev=hash_of("things", b"a", b"x"))],
    "put, delete": [put(b"c", b"x"), delete(b"c", prev=hash_of("things", b"c", b"x"))],
    "delete, put": [delete(b"a", prev=A1), put(b"a", b"x")],
    "delete, delete": [delete(b"a", prev=A1), delete(b"a")],
    "merge, merge": [add(b"n", 2, prev=N5, next=N7), add(b"n", -2, prev=N7, next=N5)],
    "put, merge": [put(b"n", SEVEN, cf="counters", prev=N5), add(b"n", -2, prev=N7, next=N5)],
    "delete, merge": [delete(b"n", cf="counters", prev=N5), add(b"n", 7, next=N7)],
    "same key, two families": [put(b"a", b"x", prev=A1), put(b"a", b"x", cf="counters")],
    "empty key and value": [put(b"", b"")],
    "nothing": [],
}


@pytest.mark.parametrize("case", TRUE)
def test_true_claims(store: MemoryStore, case: str):
    assert plan_and_check(store, batch(*TRUE[case])).false_claims == []


def test_rows_are_the_final_ones(store: MemoryStore):
    plan = plan_batch(FAMILIES, store, batch(*TRUE["put, put"], delete(b"b", prev=B2)))
    assert plan.rows == {("things", b"a"): b"y", ("things", b"b"): None}
    assert store.get("things", b"a") == b"1", "planning writes nothing"


FALSE: dict[str, tuple[list[Operation], list[tuple[int, str, int | None, int | None]], dict[bytes, bytes | None]]] = {
    # operations; false claims (operation, claim, claimed, own); rows of things afterwards
    "put, wrong prev": ([put(b"a", b"x", prev=99)], [(0, "prev", 99, A1)], {b"a": b"x"}),
    "put, prev of a present row none": ([put(b"a", b"x")], [(0, "prev", None, A1)], {b"a": b"x"}),
    "put, prev of an absent row": ([put(b"c", b"x", prev=99)], [(0, "prev", 99, None)], {b"c": b"x"}),
    "delete, wrong prev": ([delete(b"a", prev=99)], [(0, "prev", 99, A1)], {b"a": None}),
    "delete of an absent row": ([delete(b"c", prev=99)], [(0, "prev", 99, None)], {b"c": None}),
    "at the right operation": (
        [put(b"a", b"x", prev=A1), put(b"b", b"x", prev=B2), delete(b"c", prev=1), put(b"d", b"x")],
        [(2, "prev", 1, None)], {b"a": b"x", b"b": b"x", b"d": b"x"},
    ),
    "several": ([put(b"a", b"x", prev=1), put(b"b", b"x", prev=2)], [(0, "prev", 1, A1), (1, "prev", 2, B2)], {b"b": b"x"}),
    "healed by the put before": (
        [put(b"a", b"x", prev=7), put(b"a", b"y", prev=hash_of("things", b"a", b"x"))], [(0, "prev", 7, A1)], {b"a": b"y"},
    ),
    "behind a checkpoint": ([Checkpoint(name="c"), put(b"a", b"x", prev=5)], [(1, "prev", 5, A1)], {b"a": b"x"}),
}  # fmt: skip


@pytest.mark.parametrize("case", FALSE)
def test_false_claims_are_evidence_and_the_plan_goes_on(store: MemoryStore, case: str):
    operations, expected, after = FALSE[case]
    plan = plan_and_check(store, batch(*operations))
    assert claims(plan) == expected
    assert {key: store.get("things", key) for key in after} == after


def test_evidence_names_family_and_key(store: MemoryStore):
    [claim] = plan_batch(FAMILIES, store, batch(put(b"a", b"x", prev=5))).false_claims
    assert claim == FalseClaim(operation=0, cf="things", key=b"a", claim="prev", claimed=5, own=A1)


def test_a_merge_applies_to_the_own_row(store: MemoryStore):
    """The leader's row was 6, ours is 5: ours becomes 7 by the same operand, not the leader's 8."""
    six, eight = encode_int64(6), encode_int64(8)
    leaders = add(b"n", 2, prev=hash_of("counters", b"n", six), next=hash_of("counters", b"n", eight))
    plan = plan_and_check(store, batch(leaders))
    assert claims(plan) == [(0, "prev", hash_of("counters", b"n", six), N5)]
    assert store.get("counters", b"n") == SEVEN


def test_a_merge_with_a_false_next(store: MemoryStore):
    plan = plan_and_check(store, batch(add(b"n", 2, prev=N5, next=1)))
    assert claims(plan) == [(0, "next", 1, N7)]


def test_a_merge_false_in_both_is_one_contradiction(store: MemoryStore):
    assert claims(plan_and_check(store, batch(add(b"n", 2, prev=3, next=4)))) == [(0, "prev", 3, N5)]


def test_false_claims_that_cancel_are_caught(store: MemoryStore):
    plan = plan_and_check(store, batch(put(b"a", b"x", prev=B2), put(b"b", b"x", prev=A1)))
    assert claims(plan) == [(0, "prev", B2, A1), (1, "prev", A1, B2)]


# Retry rows.


def retry(call: int) -> bytes:
    return b"c" * 16 + call.to_bytes(8, "big")


def test_recorded_results_derive_rows_in_order(store: MemoryStore):
    planned = batch(
        put(b"c", b"x"), results=[result(1, b"one"), result(2, b"two", recorded=False), result(3, b"three")]
    )
    plan = plan_and_check(store, planned)
    assert plan.retry_keys == [retry(1), retry(3)]
    assert store.get(RETRY, retry(1)) == HASH + b"one"
    assert store.get(RETRY, retry(2)) is None
    assert plan.false_claims == []


def test_a_retry_row_that_is_there_already_is_evidence(store: MemoryStore):
    store.write([(RETRY, retry(1), b"old")])
    plan = plan_and_check(store, batch(put(b"c", b"x"), delete(b"a", prev=A1), results=[result(9), result(1)]))
    assert claims(plan) == [(3, "prev", None, hash_of(RETRY, retry(1), b"old"))]
    assert store.get(RETRY, retry(1)) == HASH + b"r"


def test_the_same_result_twice_is_evidence(store: MemoryStore):
    plan = plan_and_check(store, batch(results=[result(1), result(1)]))
    assert claims(plan) == [(1, "prev", None, hash_of(RETRY, retry(1), HASH + b"r"))]


def test_a_retry_row_deleted_by_the_same_batch(store: MemoryStore):
    store.write([(RETRY, retry(1), b"old")])
    operation = delete(retry(1), cf=RETRY, prev=hash_of(RETRY, retry(1), b"old"))
    plan = plan_and_check(store, batch(operation, results=[result(1)]))
    assert plan.false_claims == []


# Checkpoints, and what cannot be understood.


def test_a_checkpoint_comes_first(store: MemoryStore):
    plan = plan_and_check(store, batch(Checkpoint(name="snap-1"), put(b"a", b"x", prev=A1)))
    assert plan.checkpoint == "snap-1"
    assert plan_batch(FAMILIES, store, batch()).checkpoint is None


def test_a_checkpoint_elsewhere(store: MemoryStore):
    with pytest.raises(BrokenLog, match="operation 1: a Checkpoint may only come first"):
        plan_batch(FAMILIES, store, batch(put(b"a", b"x", prev=A1), Checkpoint(name="c")))
    with pytest.raises(BrokenLog, match="operation 1: a Checkpoint"):
        plan_batch(FAMILIES, store, batch(Checkpoint(name="c"), Checkpoint(name="d")))


@pytest.mark.parametrize("name", ["../../etc", "", ".", "a/b"])
def test_an_illegal_checkpoint_name_never_reaches_the_store(store: MemoryStore, name: str):
    with pytest.raises(BrokenLog, match="illegal checkpoint name"):
        plan_batch(FAMILIES, store, batch(Checkpoint(name=name)))


@pytest.mark.parametrize(
    "operation",
    [
        put(b"k", b"v", cf="newTable"), delete(b"k", cf="newTable"), put(b"k", b"v", cf="transactionInfoTable"),
        Merge(cf="newTable", key=b"k", operator="add_int64", operand=bytes(8), prev=None, next=0),
        Merge(cf="retryExpiryTable", key=b"k", operator="add_int64", operand=bytes(8), prev=None, next=0),
    ],
)  # fmt: skip
def test_an_unknown_column_family(store: MemoryStore, operation: Operation):
    with pytest.raises(BrokenLog, match="unknown column family .*: upgrade this node"):
        plan_batch(FAMILIES, store, batch(operation))


def test_an_unknown_operator(store: MemoryStore):
    operation = Merge(cf="counters", key=b"k", operator="mul_int64", operand=bytes(8), prev=None, next=0)
    with pytest.raises(BrokenLog, match="operation 1: unknown merge operator 'mul_int64': upgrade this node"):
        plan_batch(FAMILIES, store, batch(delete(b"c"), operation))
