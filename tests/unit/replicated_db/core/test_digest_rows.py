"""The rows that keep a replica's digests: what is listed, when the families' rows are written, and what a restart reads."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicated_db.core.applying.replica import Replica
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.core.tables.digest_rows import DIGEST_PREFIX, LISTED_SUMS_KEY, MAX_LISTED_SUMS, DigestRows
from replicated_db.core.tables.digests import Digests
from replicated_db.core.tables.memory import MemoryStore
from schemas import features
from schemas.column_families import BUCKETS
from tests.support.replicated.kit import FAMILIES, Shard, put

SLOTS = len(FAMILIES.names) * BUCKETS
ENTRY_BYTES = 12


class Kept:
    """Digests, and the store that their rows go to."""

    def __init__(self) -> None:
        self.store = MemoryStore(FAMILIES.names)
        self.digests = Digests(FAMILIES)
        self.rows = DigestRows(FAMILIES)

    def after(self, deltas: dict[int, int], *, lists: bool = True) -> set[bytes]:
        """Take a batch's changes; return the keys of the rows that were written for it."""
        writes = self.rows.after(self.digests, deltas, lists=lists)
        self.store.write(writes)
        assert self.read() == self.digests
        return {key for _, key, _ in writes}

    def read(self) -> Digests:
        """Return the digests as a restart reads them."""
        found = Digests(FAMILIES)
        DigestRows(FAMILIES).read(self.store, found)
        return found

    def restart(self) -> None:
        self.digests, self.rows = Digests(FAMILIES), DigestRows(FAMILIES)
        self.rows.read(self.store, self.digests)

    @property
    def listed(self) -> int:
        """How many sums are listed in the store."""
        return len(self.store.get(TRANSACTION_INFO, LISTED_SUMS_KEY) or b"") // ENTRY_BYTES


def row_of(family: str) -> bytes:
    return DIGEST_PREFIX + family.encode()


def test_a_few_sums_are_listed_and_no_familys_row_is_written() -> None:
    kept = Kept()
    assert kept.after({3: 7, BUCKETS + 1: -1}) == {LISTED_SUMS_KEY}
    assert kept.store.get(TRANSACTION_INFO, LISTED_SUMS_KEY) == (
        (3).to_bytes(4, "big") + (7).to_bytes(8, "big") + (BUCKETS + 1).to_bytes(4, "big") + b"\xff" * 8
    )
    assert kept.after({3: 1}) == {LISTED_SUMS_KEY}
    assert kept.listed == 2, "a sum is listed once"
    assert all(kept.store.get(TRANSACTION_INFO, row_of(name)) is None for name in FAMILIES.names)


def test_a_batch_without_changes_writes_no_row() -> None:
    assert Kept().after({}) == set()


def test_the_rows_of_all_listed_families_are_written_when_the_list_is_full() -> None:
    kept = Kept()
    first, second, *others = FAMILIES.names
    assert kept.after(dict.fromkeys(range(MAX_LISTED_SUMS), 1)) == {LISTED_SUMS_KEY}
    assert kept.listed == MAX_LISTED_SUMS
    assert kept.after({BUCKETS: 5}) == {row_of(first), row_of(second), LISTED_SUMS_KEY}
    assert kept.listed == 0
    assert all(kept.store.get(TRANSACTION_INFO, row_of(name)) is None for name in others)
    assert kept.after({0: 1}) == {LISTED_SUMS_KEY}
    assert kept.listed == 1


def test_a_large_batch_writes_the_rows_of_its_families_alone() -> None:
    kept = Kept()
    assert kept.after(dict.fromkeys(range(MAX_LISTED_SUMS + 1), 1)) == {row_of(FAMILIES.names[0])}
    assert kept.after(dict.fromkeys(range(MAX_LISTED_SUMS + 1), 1)) == {row_of(FAMILIES.names[0])}


def test_what_is_listed_is_written_out_where_nothing_may_be_listed() -> None:
    kept = Kept()
    assert kept.after({BUCKETS + 9: 4}) == {LISTED_SUMS_KEY}
    assert kept.after({1: 1}, lists=False) == {*map(row_of, FAMILIES.names[:2]), LISTED_SUMS_KEY}
    assert kept.listed == 0
    assert kept.after({1: 1}, lists=False) == {row_of(FAMILIES.names[0])}


def test_a_restart_goes_on_with_the_list_that_it_reads() -> None:
    kept = Kept()
    kept.after({5: 1, 6: 1})
    kept.restart()
    kept.after({6: 1, 7: 1})
    assert kept.listed == 3
    kept.restart()
    writes = kept.rows.whole(kept.digests)
    assert {key for _, key, _ in writes} == {*map(row_of, FAMILIES.names), LISTED_SUMS_KEY}
    kept.store.write(writes)
    assert kept.listed == 0
    assert kept.read() == kept.digests
    assert LISTED_SUMS_KEY not in {key for _, key, _ in kept.rows.whole(kept.digests)}, "there is nothing to take back"


@given(
    steps=st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, SLOTS - 1), st.integers(-(1 << 64), 1 << 64), max_size=60),
            st.sampled_from(["listed", "not listed", "whole", "restart"]),
        ),
        max_size=12,
    )
)
@settings(deadline=None)
def test_a_restart_reads_the_digests_whatever_was_written(steps: list[tuple[dict[int, int], str]]) -> None:
    kept = Kept()
    for deltas, how in steps:
        kept.after(deltas, lists=how != "not listed")
        assert kept.listed <= MAX_LISTED_SUMS
        if how == "whole":
            kept.store.write(kept.rows.whole(kept.digests))
            assert kept.listed == 0
        elif how == "restart":
            kept.restart()


@pytest.mark.parametrize("size", [1, 11, 13, 23])
def test_a_list_of_another_size_is_refused(size: int) -> None:
    kept = Kept()
    kept.store.write([(TRANSACTION_INFO, LISTED_SUMS_KEY, bytes(size))])
    with pytest.raises(struct.error):
        kept.read()


def test_a_slot_that_no_family_has_is_refused_and_named() -> None:
    kept = Kept()
    kept.store.write([(TRANSACTION_INFO, LISTED_SUMS_KEY, SLOTS.to_bytes(4, "big") + bytes(8))])
    with pytest.raises(ValueError, match=f"#LISTEDSUMS lists the sum of slot {SLOTS}"):
        kept.read()


def test_a_replica_lists_sums_from_its_level_on_and_finds_them_again() -> None:
    shard = Shard()
    replica = shard.replica
    assert replica.state.feature_level == features.LATEST >= features.LISTED_SUMS
    sizes = []
    for number in range(2 * MAX_LISTED_SUMS):
        shard.do(put(b"%d" % number, b"v"))
        sizes.append(len(replica.store.get(TRANSACTION_INFO, LISTED_SUMS_KEY) or b""))
        assert Replica(replica.identity, FAMILIES, replica.store).digests == replica.digests
    assert max(sizes) <= MAX_LISTED_SUMS * ENTRY_BYTES
    assert sum(after < before for before, after in pairwise(sizes)) >= 2, "the list was written out and begun anew"
    assert replica.scan(replica.store) == replica.digests
