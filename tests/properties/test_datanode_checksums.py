"""Checksums kept while writing against checksums of the whole bytes, for any packets, overwrites, cuts and readings."""

from __future__ import annotations

from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from datanode_processors.blocks.core.checksums import (
    MIN_CELL_BYTES,
    CellChecksums,
    cell_range,
    checksum_at,
    comparable_cells,
    differing_cells,
)
from tests.support.datanodes.checksums import checksums_of

CELL = MIN_CELL_BYTES
SIZES = st.one_of(st.integers(1, 3 * CELL), st.sampled_from([CELL - 1, CELL, CELL + 1, 2 * CELL]))
WRITE = st.tuples(st.just("write"), st.integers(0, 1 << 16), SIZES, st.booleans())
APPEND = st.tuples(st.just("append"), st.just(0), SIZES, st.booleans())
CUT = st.tuples(st.just("cut"), st.integers(0, 1 << 16), st.just(0), st.just(False))
READ = st.tuples(st.just("read"), st.integers(0, 1 << 16), st.just(0), st.just(False))
FAILED = st.tuples(st.just("failed"), st.integers(0, 1 << 16), SIZES, st.just(False))
STEPS = st.lists(st.one_of(WRITE, APPEND, APPEND, CUT, READ, FAILED), max_size=30)


def fresh(seed: int, size: int) -> bytes:
    """Return bytes that differ with the seed, and along the way."""
    return Random(seed).randbytes(size)


def agree(cells: CellChecksums, stored: bytes | bytearray) -> None:
    """Whatever is known is right."""
    assert cells.length == len(stored)
    truth = checksums_of(stored, CELL)
    assert cells.cells == len(truth) // 4
    for cell, crc in enumerate(cells):
        assert crc is None or crc == checksum_at(truth, cell)


@given(STEPS, st.integers(0, 2 * CELL + 5))
def test_what_is_known_is_right_and_reading_makes_all_known(steps: list[tuple[str, int, int, bool]], found: int):
    stored = bytearray(fresh(99, found))
    cells = CellChecksums(CELL, found)
    for number, (what, place, size, with_crc) in enumerate(steps):
        offset = place % (len(stored) + 1)
        data = fresh(number, size)
        if what in {"write", "append"}:
            offset = len(stored) if what == "append" else offset
            cells.write(offset, data, crc32c(data) if with_crc else None)
            stored[offset : offset + size] = data
        elif what == "cut":
            cells.cut(offset)
            del stored[offset:]
        elif what == "failed":  # part of it may have been written, nothing is longer
            inside = data[: len(stored) - offset]
            stored[offset : offset + len(inside)] = inside
            cells.forget(offset, offset + size)
        else:
            unknown = cells.unknown(len(stored))
            if unknown:
                cell = unknown[place % len(unknown)]
                start, length = cell_range(cell, len(stored), CELL)
                cells.learn(cell, crc32c(bytes(stored[start : start + length])))
        agree(cells, stored)
    for cell in cells.unknown(len(stored)):
        start, length = cell_range(cell, len(stored), CELL)
        cells.learn(cell, crc32c(bytes(stored[start : start + length])))
    assert cells.packed(len(stored)) == checksums_of(stored, CELL)


@given(st.lists(SIZES, max_size=12))
def test_appending_alone_never_needs_reading(sizes: list[int]):
    cells, stored = CellChecksums(CELL), bytearray()
    for number, size in enumerate(sizes):
        cells.write(len(stored), fresh(number, size))
        stored += fresh(number, size)
        assert cells.unknown(len(stored)) == []
        assert cells.packed(len(stored)) == checksums_of(stored, CELL)


@given(st.integers(0, 5 * CELL), st.integers(0, 5 * CELL), st.lists(SIZES, max_size=12))
def test_a_resume_needs_two_cells_at_most(length: int, resume: int, sizes: list[int]):
    """The one in the middle of which it goes on, and the one in which it ends before what was there does."""
    stored = bytearray(fresh(1, length))
    cells = CellChecksums(CELL)
    cells.write(0, bytes(stored))
    offset = resume = min(resume, length)
    for number, size in enumerate(sizes):
        cells.write(offset, fresh(number, size))
        stored[offset : offset + size] = fresh(number, size)
        offset += size
        agree(cells, stored)
        assert set(cells.unknown(len(stored))) <= {resume // CELL, (offset - 1) // CELL}


@given(st.binary(max_size=3 * CELL), st.binary(max_size=3 * CELL), st.integers(0, 3 * CELL))
def test_lists_differ_in_the_whole_cells_whose_bytes_do(ours: bytes, tail: bytes, common: int):
    theirs = ours[:common] + tail
    found = differing_cells(checksums_of(ours, CELL), len(ours), checksums_of(theirs, CELL), len(theirs), CELL)
    count = comparable_cells(len(ours), len(theirs), CELL)
    truth = [n for n in range(count) if ours[n * CELL : (n + 1) * CELL] != theirs[n * CELL : (n + 1) * CELL]]
    assert found == truth


@given(st.integers(1, 3 * CELL), st.integers(-4, 4).filter(bool))
def test_a_list_that_does_not_fit_its_length_is_compared_with_nothing(length: int, more: int):
    whole = checksums_of(bytes(length), CELL)
    wrong = whole[:more] if more < 0 else whole + bytes(more)
    for ours, theirs in ((wrong, whole), (whole, wrong)):
        with pytest.raises(ValueError, match=str(length)):
            differing_cells(ours, length, theirs, length, CELL)
