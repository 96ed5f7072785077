from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_db.core.log.position import Position
from replicated_db.core.tables.digests import FIRST_CHAIN

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=30)
POSITIONS = st.builds(
    Position, topic_id=TEXT, offset=LONG, record_hash=st.binary(min_size=16, max_size=16), term=LONG,
    nonce=st.binary(min_size=16, max_size=16), seq=LONG, chain=st.binary(min_size=32, max_size=32), index=LONG,
    timestamp_ms=LONG, leader=TEXT, address=TEXT,
)  # fmt: skip


@given(position=POSITIONS)
def test_round_trip(position: Position):
    assert Position.decode(position.encode()) == position


def test_the_first_position():
    first = Position()
    assert (first.offset, first.term, first.seq, first.index) == (-1, 0, 0, 0)
    assert first.chain == FIRST_CHAIN == bytes(32)
    assert Position.decode(first.encode()) == first


@given(position=POSITIONS, cut=st.integers(1, 60))
def test_foreign_bytes(position: Position, cut: int):
    with pytest.raises((struct.error, UnicodeDecodeError)):
        Position.decode(position.encode()[: 100 - cut])


def test_key_index():
    assert Position(timestamp_ms=1234, index=56).key_index() == b"1234#56"
