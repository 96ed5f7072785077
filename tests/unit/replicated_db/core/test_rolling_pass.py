"""The rolling scan of one family, and its pace."""

from __future__ import annotations

import pytest

from replicated_db.core.applying.rolling_pass import (
    LONGEST_REST_S,
    LONGEST_SHARE_S,
    MARGIN,
    SHARE,
    SLICE_ROWS,
    FamilyScan,
    ScanPace,
)
from replicated_db.core.tables.digests import MASK, Digests, digest_of_rows
from replicated_db.core.tables.memory import MemoryStore
from schemas.column_families import BUCKETS
from tests.support.replicated.kit import FAMILIES, hash_of

CF = "things"
POSITION = FAMILIES.positions[CF]
ROWS = {b"key-%d" % number: b"value" for number in range(2 * SLICE_ROWS + 1)}


def scan_of(changes: dict[bytes, bytes | None]) -> tuple[FamilyScan, Digests]:
    """A scan of ROWS with some changed, and the digest of ROWS."""
    store = MemoryStore(FAMILIES.names)
    store.write([(CF, key, value) for key, value in ROWS.items()])
    kept = digest_of_rows(FAMILIES, [(CF, key, value) for key, value in ROWS.items()])
    store.write([(CF, key, value) for key, value in changes.items()])
    return FamilyScan(FAMILIES, CF, store, kept.sums[POSITION]), kept


def test_a_family_is_read_slice_by_slice():
    scan, _ = scan_of({})
    assert [scan.step(), scan.step(), scan.step()] == [SLICE_ROWS, SLICE_ROWS, 1]
    assert scan.differences() == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"key-7", b"valuf"), (b"key-7", None), (b"stray", b"value")],
    ids=["flipped", "missing", "extra"],
)
def test_what_differs_is_by_how_much_the_rows_are_off(key: bytes, value: bytes | None):
    scan, kept = scan_of({key: value})
    while scan.step() == SLICE_ROWS:
        pass
    before, after = ROWS.get(key), value
    change = (hash_of(CF, key, after) if after else 0) - (hash_of(CF, key, before) if before else 0)
    ((slot, difference),) = scan.differences().items()
    assert difference == change & MASK
    changed = kept.copy()
    changed.change(scan.differences())
    assert changed == digest_of_rows(FAMILIES, [(CF, k, v) for k, v in ({**ROWS, key: value}).items() if v is not None])
    assert slot // BUCKETS == POSITION


def test_the_first_pass_takes_its_share():
    assert ScanPace(pass_s=300).rest_s(0.001) == pytest.approx(0.001 * (1 / SHARE - 1))
    assert ScanPace(pass_s=300).rest_s(100.0) == LONGEST_SHARE_S


def test_later_passes_are_even_and_never_take_more_than_the_share():
    rows = 1_000_000
    even = MARGIN * 300 * SLICE_ROWS / rows
    assert ScanPace(pass_s=300, rows=rows).rest_s(0.001) == pytest.approx(even - 0.001)
    assert ScanPace(pass_s=300, rows=100 * rows).rest_s(0.001) == pytest.approx(0.019), "too many: the share decides"
    assert ScanPace(pass_s=300, rows=rows).rest_s(0.5) == pytest.approx(9.5), "a busy machine: it yields"
    assert ScanPace(pass_s=300, rows=10).rest_s(0.001) == LONGEST_REST_S, "few rows are read soon"
    assert ScanPace(pass_s=300, rows=0).rest_s(0.001) == pytest.approx(0.019), "an empty replica"
