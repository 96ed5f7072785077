"""Rows of blockTable: larger rows win, and tombstones win over all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.block_rows import block_key, block_of_key, decode_block_row, encode_block_row
from schemas.records.datanode import BlockRow

IDS = st.integers(0, 2**64 - 1)
LENGTHS = st.integers(0, 2**63 - 1)


def row(length: int, *, deleted: bool = False, checksums: bytes = b"") -> BlockRow:
    return BlockRow(bcs_id=7, length=length, bytes_per_checksum=65536, checksums=checksums, deleted=deleted)


@given(IDS, IDS)
def test_keys_come_back(container_id: int, local_id: int):
    assert block_of_key(block_key(container_id, local_id)) == (container_id, local_id)


@given(LENGTHS, LENGTHS)
def test_the_longer_row_is_the_larger(one: int, other: int):
    assert decode_block_row(encode_block_row(row(one))) == row(one)
    if one != other:
        assert (encode_block_row(row(one)) < encode_block_row(row(other))) == (one < other)
    assert encode_block_row(row(one)) < encode_block_row(row(other, deleted=True))
