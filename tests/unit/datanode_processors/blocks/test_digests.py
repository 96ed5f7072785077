"""Container digests: equal iff what is stored is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from datanode_processors.blocks.core.digests import container_digest, next_digest

BLOCKS = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 3), st.binary(max_size=4)), max_size=4)


@given(BLOCKS, BLOCKS)
def test_digests_are_equal_iff_the_blocks_are(ours: dict[int, tuple[int, bytes]], theirs: dict[int, tuple[int, bytes]]):
    digests = [
        container_digest(1, ((local_id, *blocks[local_id]) for local_id in sorted(blocks))) for blocks in (ours, theirs)
    ]
    assert (digests[0] == digests[1]) == (ours == theirs)


def test_it_is_the_hash_that_spark_chains():
    first = xxh64_intdigest(
        b"\1\2\3\4", xxh64_intdigest(bytes(7) + b"\x05", xxh64_intdigest(bytes(7) + b"\x01" + bytes(7) + b"\x02", 42))
    )
    assert next_digest(42, 1, 2, 5, b"\1\2\3\4") == first
    assert container_digest(1, [(2, 5, b"\1\2\3\4")]) % 2**64 == first
    assert container_digest(1, []) == 42


def test_blocks_out_of_order_are_refused():
    with pytest.raises(ValueError, match="block 1 comes after 1"):
        container_digest(1, [(1, 0, b""), (1, 0, b"")])
