"""Apply against a dict model: true batches, false claims, and the digest in every case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replicated_db.core.applying.apply import plan_batch
from replicated_db.core.execution.folding import BatchOperations
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.ports import Write
from replicated_db.core.tables.digests import MASK, Digests, digest_of_rows, row_hash
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.overlay import Overlay
from schemas.records.log import Delete, Merge, Operation, Put
from tests.properties.examples import examples
from tests.support.replicated.kit import FAMILIES, batch

KEYS = st.sampled_from([b"a", b"b", b"c", b""])
CFS = st.sampled_from(["things", "counters"])
OPERATIONS = st.lists(
    st.builds(Put, cf=CFS, key=KEYS, value=st.binary(max_size=3), prev=st.none())
    | st.builds(Delete, cf=CFS, key=KEYS, prev=st.none())
    | st.builds(
        Merge, cf=CFS, key=KEYS, operator=st.just("add_int64"), operand=st.binary(min_size=8, max_size=8),
        prev=st.none(), next=st.just(0),
    )
    | st.builds(
        Merge, cf=CFS, key=KEYS, operator=st.just("max_bytes"), operand=st.binary(max_size=3), prev=st.none(),
        next=st.just(0),
    ),
    max_size=8,
)  # fmt: skip
ROWS = st.dictionaries(st.tuples(CFS, KEYS), st.binary(max_size=3), max_size=6)


def model(rows: dict[Any, bytes], operations: list[Operation]) -> dict[Any, bytes]:
    rows = dict(rows)
    for operation in operations:
        assert isinstance(operation, Put | Delete | Merge)
        key = (operation.cf, operation.key)
        if isinstance(operation, Put):
            rows[key] = operation.value
        elif isinstance(operation, Delete):
            rows.pop(key, None)
        elif operation.operator == "max_bytes":
            rows[key] = max(rows.get(key, b""), operation.operand)
        else:
            total = int.from_bytes(rows.get(key, b""), "big") + int.from_bytes(operation.operand, "big")
            rows[key] = (total % (1 << 64)).to_bytes(8, "big")
    return rows


def store_of(rows: dict[Any, bytes]) -> MemoryStore:
    store = MemoryStore(FAMILIES.names)
    store.write([(cf, key, value) for (cf, key), value in rows.items()])
    return store


def rows_of(store: MemoryStore) -> dict[Any, bytes]:
    return {(cf, key): value for cf in FAMILIES.names for key, value in store.iterate(cf, b"")}


def digest(rows: dict[Any, bytes]) -> Digests:
    return digest_of_rows(FAMILIES, [(cf, key, value) for (cf, key), value in rows.items()])


def executed(rows: dict[Any, bytes], operations: list[Operation]) -> list[Operation]:
    """The operations as a leader that has ``rows`` would log them."""
    overlay = Overlay(store_of(rows))
    overlay.open_layer(1)
    transaction = Transaction(FAMILIES, overlay, 1)
    for operation in operations:
        transaction.submit(operation)
    return list(transaction.commit())


def apply(rows: dict[Any, bytes], operations: list[Operation]) -> tuple[dict[Any, bytes], Digests, list[Any]]:
    store, digests = store_of(rows), digest(rows)
    plan = plan_batch(FAMILIES, store, batch(*operations))
    writes: list[Write] = [(cf, key, value) for (cf, key), value in plan.rows.items()]
    store.write(writes)
    for slot, delta in plan.deltas.items():
        family, bucket = divmod(slot, 256)
        digests.sums[family][bucket] = (digests.sums[family][bucket] + delta) & MASK
    return rows_of(store), digests, plan.false_claims


def log_sum(operations: list[Operation]) -> dict[tuple[str, bytes], int]:
    """Σ(next − prev) per key from the log alone."""
    sums: dict[tuple[str, bytes], int] = {}
    for operation in operations:
        assert isinstance(operation, Put | Delete | Merge)
        following = {
            Put: lambda o: row_hash(FAMILIES, o.cf, o.key, o.value),
            Delete: lambda o: None,
            Merge: lambda o: o.next,
        }
        made = following[type(operation)](operation)
        key = (operation.cf, operation.key)
        sums[key] = (sums.get(key, 0) + (made or 0) - (operation.prev or 0)) & MASK
    return sums


@settings(max_examples=examples(200), deadline=None)
@given(rows=ROWS, operations=OPERATIONS)
def test_a_true_batch(rows: dict[Any, bytes], operations: list[Operation]):
    after, digests, false_claims = apply(rows, executed(rows, operations))
    assert after == model(rows, operations)
    assert digests == digest(after)
    assert false_claims == []


@settings(max_examples=examples(200), deadline=None)
@given(rows=ROWS, operations=OPERATIONS)
def test_the_logs_sum_is_the_difference_of_the_digests(rows: dict[Any, bytes], operations: list[Operation]):
    logged = executed(rows, operations)
    after, _, _ = apply(rows, logged)
    total = sum(log_sum(logged).values()) & MASK
    assert (digest(rows).total() + total) & MASK == digest(after).total()


@settings(max_examples=examples(300), deadline=None)
@given(rows=ROWS, requests=st.lists(OPERATIONS, max_size=4))
def test_folding_changes_nothing_but_the_number_of_merges(rows: dict[Any, bytes], requests: list[list[Operation]]):
    logged = executed(rows, [operation for request in requests for operation in request])
    batch_operations = BatchOperations(FAMILIES)
    batch_operations.extend(logged)  # type: ignore[arg-type]
    folded = batch_operations.operations
    assert apply(rows, folded) == apply(rows, logged)
    assert log_sum(folded) == log_sum(logged)
    assert [o for o in folded if not isinstance(o, Merge)] == [o for o in logged if not isinstance(o, Merge)]
    # What is left cannot be folded: another operator, a Put or a Delete of the row lies between any two merges of it.
    last: dict[tuple[str, bytes], Operation] = {}
    for operation in folded:
        assert isinstance(operation, Put | Delete | Merge)
        before = last.get((operation.cf, operation.key))
        if isinstance(operation, Merge) and isinstance(before, Merge):
            assert before.operator != operation.operator
        last[operation.cf, operation.key] = operation


@settings(max_examples=examples(200), deadline=None)
@given(rows=ROWS, others=ROWS, operations=OPERATIONS)
def test_a_leader_with_other_rows(rows: dict[Any, bytes], others: dict[Any, bytes], operations: list[Operation]):
    """The follower's digest stays that of its own rows, whatever is claimed; a contradiction is found iff one was touched."""
    logged = executed(others, operations)
    after, digests, false_claims = apply(rows, logged)
    assert after == model(rows, operations)
    assert digests == digest(after)
    first_touch = {(o.cf, o.key) for o in logged if isinstance(o, Put | Delete | Merge)}
    differing = {key for key in first_touch if rows.get(key) != others.get(key)}
    assert {(claim.cf, claim.key) for claim in false_claims} == differing


@settings(max_examples=examples(200), deadline=None)
@given(rows=ROWS, operations=OPERATIONS.filter(bool), data=st.data())
def test_one_false_claim_is_found_at_its_operation(
    rows: dict[Any, bytes], operations: list[Operation], data: st.DataObject
):
    logged = executed(rows, operations)
    number = data.draw(st.integers(0, len(logged) - 1))
    victim: Any = logged[number]
    lie = data.draw(st.none() | st.integers(-(1 << 63), (1 << 63) - 1))
    if isinstance(victim, Merge) and data.draw(st.booleans()) and lie is not None:
        claim, changed = "next", replace(victim, next=lie)
        true = victim.next
    else:
        claim, changed = "prev", replace(victim, prev=lie)
        true = victim.prev
    after, digests, false_claims = apply(rows, [*logged[:number], changed, *logged[number + 1 :]])
    assert after == model(rows, operations)
    assert digests == digest(after)
    expected = [] if lie == true else [(number, claim, lie, true)]
    assert [(f.operation, f.claim, f.claimed, f.own) for f in false_claims] == expected


@given(rows=ROWS, seed=st.randoms(use_true_random=False))
def test_digests_do_not_depend_on_the_order(rows: dict[Any, bytes], seed: Any):
    shuffled = list(rows.items())
    seed.shuffle(shuffled)
    assert digest(dict(shuffled)) == digest(rows)
