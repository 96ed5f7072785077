from __future__ import annotations

import struct
from hashlib import sha256

import pytest
from xxhash import xxh64

from replicated_db.core.tables.column_families import SEED, families
from replicated_db.core.tables.digests import FIRST_CHAIN, Digests, digest_of_rows, next_chain, row_hash
from schemas.column_families import BUCKETS, OM_COLUMN_FAMILIES
from tests.support.replicated.kit import FAMILIES

OM = families(OM_COLUMN_FAMILIES[1:])

# xxhash64(cf, key, value) as Spark 4.0.0 computes it.
SPARK = [
    ("keyTable", b"/v/b/k1", b"hello" * 50, -3030131085761305911),
    ("keyTable", bytes([0x00, 0xFF]), b"", 3968950548805325261),
    ("bucketTable", b"x" * 33, b"y" * 31, -1909718309393734209),
]


@pytest.mark.parametrize(("cf", "key", "value", "expected"), SPARK)
def test_row_hash_is_sparks(cf: str, key: bytes, value: bytes, expected: int):
    assert row_hash(OM, cf, key, value) == expected


@pytest.mark.parametrize(("cf", "key", "value", "expected"), SPARK)
def test_row_hash_is_the_chained_xxh64(cf: str, key: bytes, value: bytes, expected: int):
    seed = xxh64(cf.encode(), seed=42).intdigest()
    unsigned = xxh64(value, seed=xxh64(key, seed=seed).intdigest()).intdigest()
    assert unsigned % (1 << 64) == expected % (1 << 64)
    assert SEED == 42


def test_an_absent_row_has_no_hash_and_an_empty_one_has():
    assert row_hash(OM, "keyTable", b"k", None) is None
    assert row_hash(OM, "keyTable", b"k", b"") is not None


def test_hash_depends_on_each_part():
    hashes = {
        row_hash(OM, cf, key, value)
        for cf in ("keyTable", "bucketTable")
        for key in (b"a", b"")
        for value in (b"a", b"")
    }
    assert len(hashes) == 8


def test_slots_of_the_spark_vectors():
    digests = digest_of_rows(OM, [(cf, key, value) for cf, key, value, _ in SPARK])
    slots, sums = digests.slots()
    expected = {
        OM.positions[cf] * 256 + (xxh64(key, seed=xxh64(cf.encode(), seed=42).intdigest()).intdigest() & 255): hashed
        for cf, key, _, hashed in SPARK
    }
    assert dict(zip(slots, sums, strict=True)) == expected
    assert slots == sorted(slots)
    assert digests.total() == sum(expected.values()) % (1 << 64)


def test_sums_of_one_slot_wrap():
    digests = Digests(FAMILIES)
    for number in range(2000):
        digests.add("things", b"%d" % number, b"v")
    assert all(0 <= value < 1 << 64 for row in digests.sums for value in row)
    slots, sums = digests.slots()
    assert all(-(1 << 63) <= value < 1 << 63 for value in sums)
    assert {slot // BUCKETS for slot in slots} == {FAMILIES.positions["things"]}


def test_a_slot_whose_sum_is_0_is_left_out():
    digests = Digests(FAMILIES)
    assert digests.slots() == ([], [])
    assert digests.total() == 0


def test_sums_are_packed_in_the_order_of_the_network():
    digests = Digests(FAMILIES)
    digests.change({1: 2, 255: -1})
    assert digests.pack(0) == bytes(8) + (2).to_bytes(8, "big") + bytes(253 * 8) + b"\xff" * 8


@pytest.mark.parametrize("size", [0, 7, 255 * 8, 257 * 8])
def test_sums_of_another_size_are_refused(size: int):
    with pytest.raises(struct.error):
        Digests(FAMILIES).unpack(0, bytes(size))


@pytest.mark.parametrize("slots", [1, 31, 32, 33, 256])
def test_sums_that_change_between_two_packings(slots: int):
    digests = Digests(FAMILIES)
    for number in range(3):
        digests.change({slot: slot + number for slot in range(slots)})
        digests.add("things", b"key %d" % number, b"value")
        for position, row in enumerate(digests.sums):
            assert digests.copy().pack(position) == b"".join(each.to_bytes(8, "big") for each in row)
            assert digests.pack(position) == digests.pack(position) == digests.copy().pack(position)
            other = Digests(FAMILIES)
            other.unpack(position, digests.pack(position))
            other.change({position * BUCKETS: 1})
            assert other.pack(position) == b"".join(each.to_bytes(8, "big") for each in [row[0] + 1, *row[1:]])


def test_pack_and_unpack():
    digests = digest_of_rows(FAMILIES, [("things", b"a", b"1"), ("counters", b"b", b"2")])
    other = Digests(FAMILIES)
    for position in range(len(FAMILIES.names)):
        packed = digests.pack(position)
        assert len(packed) == 2048
        other.unpack(position, packed)
    assert other == digests


def test_copy_is_independent():
    digests = digest_of_rows(FAMILIES, [("things", b"a", b"1")])
    copied = digests.copy()
    copied.add("things", b"b", b"2")
    assert copied != digests
    assert digests == digest_of_rows(FAMILIES, [("things", b"a", b"1")])
    with pytest.raises(TypeError):
        hash(digests)


def test_chain():
    assert next_chain(FIRST_CHAIN, b"abc") == sha256(bytes(32) + b"abc").digest()
    assert next_chain(next_chain(FIRST_CHAIN, b"a"), b"b") != next_chain(next_chain(FIRST_CHAIN, b"b"), b"a")
