from __future__ import annotations

from typing import Any

import pytest

from replicated_db.core.errors import DigestsDiffer, Refused
from replicated_db.core.execution.transaction import MAX_KEY_BYTES, Transaction
from replicated_db.core.tables.digests import DigestSlots
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.merge import decode_int64, encode_int64
from replicated_db.core.tables.overlay import Overlay
from schemas.records.log import Checkpoint, Delete, Merge, Put, Tick
from tests.support.replicated.kit import FAMILIES, add, delete, hash_of, put


@pytest.fixture
def overlay() -> Overlay:
    store = MemoryStore(FAMILIES.names)
    store.write([("things", b"a", b"1"), ("counters", b"n", encode_int64(5))])
    overlay = Overlay(store)
    overlay.open_layer(1)
    return overlay


@pytest.fixture
def transaction(overlay: Overlay) -> Transaction:
    return Transaction(FAMILIES, overlay, 7)


def test_put_names_the_row_it_replaces(transaction: Transaction):
    transaction.put("things", b"a", b"2")
    transaction.put("things", b"new", b"x")
    assert transaction.operations == [
        Put(cf="things", key=b"a", value=b"2", prev=hash_of("things", b"a", b"1")),
        Put(cf="things", key=b"new", value=b"x", prev=None),
    ]


def test_operations_see_the_earlier_ones(transaction: Transaction):
    transaction.put("things", b"a", b"2")
    transaction.delete("things", b"a")
    transaction.put("things", b"a", b"3")
    assert [operation.prev for operation in transaction.operations] == [
        hash_of("things", b"a", b"1"), hash_of("things", b"a", b"2"), None,
    ]  # fmt: skip
    assert transaction.get("things", b"a") == b"3"


def test_deleting_an_absent_row_is_logged(transaction: Transaction):
    transaction.delete("things", b"nothing")
    assert transaction.operations == [Delete(cf="things", key=b"nothing", prev=None)]


def test_two_merges_of_one_key_both_count(transaction: Transaction):
    transaction.merge("counters", b"n", "add_int64", encode_int64(2))
    transaction.merge("counters", b"n", "add_int64", encode_int64(-10))
    first, second = transaction.operations
    assert isinstance(first, Merge)
    assert isinstance(second, Merge)
    assert first.prev == hash_of("counters", b"n", encode_int64(5))
    assert first.next == second.prev == hash_of("counters", b"n", encode_int64(7))
    assert second.next == hash_of("counters", b"n", encode_int64(-3))
    assert decode_int64(transaction.get("counters", b"n")) == -3


def test_merge_of_an_absent_row(transaction: Transaction):
    transaction.merge("counters", b"m", "max_bytes", b"x")
    [merge] = transaction.operations
    assert isinstance(merge, Merge)
    assert (merge.prev, merge.next) == (None, hash_of("counters", b"m", b"x"))


def test_nothing_is_written_before_commit(transaction: Transaction, overlay: Overlay):
    transaction.put("things", b"a", b"2")
    transaction.put("things", b"z", b"2")
    assert overlay.get("things", b"a") == b"1"
    assert len(overlay) == 0
    operations = transaction.commit()
    assert operations == transaction.operations
    assert overlay.get("things", b"a") == b"2"
    assert overlay.layer_of("things", b"z") == 1


def test_iteration_sees_own_writes_overlay_and_store(transaction: Transaction, overlay: Overlay):
    overlay.set("things", b"b", b"overlay")
    assert [key for key, _ in transaction.iterate("things", b"")] == [b"a", b"b"]
    transaction.put("things", b"c", b"own")
    transaction.delete("things", b"a")
    transaction.put("counters", b"b2", b"another family")
    assert list(transaction.iterate("things", b"")) == [(b"b", b"overlay"), (b"c", b"own")]
    assert list(transaction.iterate("things", b"b", b"c")) == [(b"b", b"overlay")]


def test_rows_may_be_deleted_while_iterating(transaction: Transaction):
    for number in range(5):
        transaction.put("things", b"k%d" % number, b"")
    for key, _ in transaction.iterate("things", b"k"):
        transaction.delete("things", key)
    assert list(transaction.iterate("things", b"k")) == []


def test_size_grows_with_each_operation(transaction: Transaction):
    sizes = [transaction.size_bytes]
    transaction.put("things", b"k" * 100, b"v" * 1000)
    sizes.append(transaction.size_bytes)
    transaction.delete("things", b"k" * 100)
    sizes.append(transaction.size_bytes)
    transaction.merge("counters", b"k", "add_int64", bytes(8))
    sizes.append(transaction.size_bytes)
    assert sizes[1] - sizes[0] >= 1100
    assert sizes[2] - sizes[1] >= 100
    assert sizes[3] - sizes[2] >= 9


# Illegal operations change nothing and name the input.


ILLEGAL: dict[str, tuple[Any, str]] = {
    "put family": (put(b"k", b"v", cf="nowhere"), "no column family 'nowhere'; there are: retryTable, things, counters"),
    "delete family": (delete(b"k", cf="transactionInfoTable"), "no column family 'transactionInfoTable'"),
    "merge family": (
        Merge(cf="nowhere", key=b"k", operator="add_int64", operand=bytes(8), prev=None, next=0), "no column family 'nowhere'",
    ),
    "operator": (
        Merge(cf="counters", key=b"k", operator="sub", operand=bytes(8), prev=None, next=0), "no merge operator 'sub'; there are",
    ),
    "operand": (Merge(cf="counters", key=b"k", operator="add_int64", operand=b"1", prev=None, next=0), "8 bytes, not 1"),
    "long key": (put(b"k" * (MAX_KEY_BYTES + 1), b""), f"a key of {MAX_KEY_BYTES + 1} bytes in things"),
    "key type": (put("k", b""), "a str as a key in things"),  # type: ignore[arg-type]
    "value type": (put(b"k", "v"), "a str as a value in things"),  # type: ignore[arg-type]
    "no value": (put(b"k", None), "a NoneType as a value"),  # type: ignore[arg-type]
    "value of bytearray": (put(b"k", bytearray(b"v")), "a bytearray as a value"),  # type: ignore[arg-type]
    "operand type": (
        Merge(cf="counters", key=b"k", operator="add_int64", operand="12345678", prev=None, next=0),  # type: ignore[arg-type]
        "a str as an operand",
    ),
    "checkpoint name": (Checkpoint(name="../evil"), "illegal checkpoint name '../evil'"),
    "no operation": (Tick(term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32)), "a Tick is no operation"),
}  # fmt: skip


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_operations(transaction: Transaction, case: str):
    operation, message = ILLEGAL[case]
    with pytest.raises(Refused) as refused:
        transaction.submit(operation)
    assert message in str(refused.value)
    assert transaction.operations == []
    assert transaction.size_bytes == 0
    assert list(transaction.iterate("things", b"")) == [(b"a", b"1")]


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "9", "x" * 64, "2026-11-21"])
def test_legal_checkpoint_names(transaction: Transaction, name: str):
    transaction.submit(Checkpoint(name=name))
    assert transaction.checkpoint_name == name
    assert transaction.operations == []


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "-a", "_a", "a/b", "a b", "x" * 65, "ä", "a\n", "a\x00"])
def test_illegal_checkpoint_names(transaction: Transaction, name: str):
    with pytest.raises(Refused, match="illegal checkpoint name"):
        transaction.checkpoint(name)


def test_one_checkpoint_per_transaction(transaction: Transaction):
    transaction.checkpoint("a")
    with pytest.raises(Refused, match="a second checkpoint 'b'"):
        transaction.checkpoint("b")


@pytest.mark.parametrize(("slots", "sums"), [([1], []), ([2, 1], [5, 5]), ([1, 1], [5, 5])])
def test_illegal_digest_bases(transaction: Transaction, slots: list[int], sums: list[int]):
    with pytest.raises(Refused, match="slots must ascend"):
        transaction.digest_base(slots, sums, "oracle")


def test_submit_computes_hashes_afresh(transaction: Transaction):
    transaction.submit(put(b"a", b"2", prev=12345))
    transaction.submit(delete(b"a", prev=1))
    transaction.submit(add(b"n", 1, prev=2, next=3))
    first, second, third = transaction.operations
    assert isinstance(first, Put)
    assert isinstance(second, Delete)
    assert isinstance(third, Merge)
    assert first.prev == hash_of("things", b"a", b"1")
    assert second.prev == hash_of("things", b"a", b"2")
    assert third.prev == hash_of("counters", b"n", encode_int64(5))
    assert third.next == hash_of("counters", b"n", encode_int64(6))


@pytest.mark.parametrize(
    ("slot", "named"),
    [(256 + 5, f"bucket 5 of {FAMILIES.names[1]}"), (99 * 256 + 7, "bucket 7 of family 99")],
)
def test_a_digest_base_that_differs_says_where(transaction: Transaction, slot: int, named: str):
    transaction.settled = lambda: DigestSlots([], [])
    with pytest.raises(DigestsDiffer, match=f"others in 1 slots, the first being {named}: 0, not 3"):
        transaction.digest_base([slot], [3], "oracle")
