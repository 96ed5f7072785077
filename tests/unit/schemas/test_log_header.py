"""What is seen of a log record without decoding it."""

from __future__ import annotations

import pytest

from schemas.codecs.codec import encode
from schemas.codecs.log_header import has_nonce
from schemas.records.log import Tick

NONCE = bytes(range(100, 116))


@pytest.mark.parametrize("term", [0, 1, 63, 64, 1 << 20, (1 << 63) - 1])
def test_the_nonce_is_found_whatever_the_term_takes(term: int):
    value = encode(Tick(term=term, nonce=NONCE, seq=1, prev_chain=bytes(32)))
    assert has_nonce(value, NONCE)
    assert not has_nonce(value, NONCE[::-1])


def test_the_same_bytes_elsewhere_are_no_nonce():
    value = encode(Tick(term=1, nonce=bytes(16), seq=1, prev_chain=bytes(16) + NONCE))
    assert not has_nonce(value, NONCE)
