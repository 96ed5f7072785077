"""Fitting a key's blocks to its size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.requests.keys import fit_blocks
from schemas.records.rows import BlockLocation


def blocks_of(lengths):
    return [
        BlockLocation(container_id=1, local_id=number, offset=0, length=length, pipeline="p")
        for number, length in enumerate(lengths)
    ]


def test_no_bytes_need_no_block():
    assert fit_blocks(blocks_of([100]), 0) == []


@given(lengths=st.lists(st.integers(1, 1000)), data=st.data())
def test_fitted_blocks_hold_exactly_the_bytes_in_order(lengths, data):
    size = data.draw(st.integers(0, sum(lengths)))
    fitted = fit_blocks(blocks_of(lengths), size)
    assert sum(block.length for block in fitted) == size
    assert [block.local_id for block in fitted] == list(range(len(fitted)))
    position = 0
    for block, allocated in zip(fitted, lengths, strict=False):
        assert block.offset == position
        assert 0 < block.length <= allocated
        position += block.length


def test_too_few_blocks_are_refused_with_both_sizes():
    with pytest.raises(ValueError, match="30 bytes were allocated, 31 are needed"):
        fit_blocks(blocks_of([10, 20]), 31)
