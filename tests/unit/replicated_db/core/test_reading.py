"""The reading rule, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from xxhash import xxh3_128_digest

from replicated_db.core.errors import AheadOfLog, BrokenLog, StopProcess
from replicated_db.core.log.position import Position
from replicated_db.core.log.reading import Reading, advance, judge, position_before
from replicated_db.core.tables.digests import next_chain
from schemas.codecs.codec import encode
from schemas.records.log import Barrier, DigestBase, LeaderClaim, LogRecord, Mode, Tick
from tests.support.replicated.kit import batch, genesis, request_batch

OURS, OTHERS = b"o" * 16, b"t" * 16
CHAIN = b"C" * 32
HERE = Position(
    topic_id="t",
    offset=40,
    term=5,
    nonce=OURS,
    seq=7,
    chain=CHAIN,
    index=100,
    timestamp_ms=9_000,
    leader="n1",
    address="a",
)


def claim(term: int, nonce: bytes = OTHERS) -> LeaderClaim:
    return LeaderClaim(term=term, nonce=nonce, node="n2", address="b", claimed_at_ms=1)


def header(**changed: Any) -> dict[str, Any]:
    return {"term": 5, "nonce": OURS, "seq": 8, "prev_chain": CHAIN} | changed


KINDS: dict[str, Any] = {
    "batch": lambda **h: batch(first_index=101, timestamp_ms=9_000, **h),
    "barrier": lambda **h: Barrier(**h, index=100, scrub=False),
    "tick": Tick,
    "digest base": lambda **h: DigestBase(**h, index=100, slots=[], sums=[], basis="oracle"),
    "genesis": genesis,
    "request batch": lambda **h: request_batch(first_index=101, timestamp_ms=9_000, **h),
    "mode": lambda **h: Mode(**h, index=100, request_type="Test", mode="late"),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


# Rule 1 and the claims of rules 3 and 4.


@pytest.mark.parametrize(
    ("term", "reading"),
    [(6, Reading.VALID_CLAIM), (5, Reading.LOST_CLAIM), (4, Reading.LOST_CLAIM), (1, Reading.LOST_CLAIM), (0, Reading.LOST_CLAIM)],
)  # fmt: skip
def test_claims(term: int, reading: Reading):
    assert judge(HERE, claim(term)) is reading


@pytest.mark.parametrize("term", [7, 8, 1000])
def test_a_claim_that_skips_a_term(term: int):
    with pytest.raises(AheadOfLog, match=f"AHEAD_OF_LOG: a claim of term {term} follows term 5"):
        judge(HERE, claim(term))


def test_a_claim_repeated_with_the_same_nonce_is_lost():
    assert judge(HERE, claim(5, OURS)) is Reading.LOST_CLAIM


def test_the_first_claim_has_term_1():
    assert judge(Position(), claim(1)) is Reading.VALID_CLAIM
    assert judge(Position(), claim(0)) is Reading.LOST_CLAIM
    with pytest.raises(AheadOfLog):
        judge(Position(), claim(2))


# Rules 2 to 4 for every other kind of record.


@each_kind
def test_counts(kind: str):
    assert judge(HERE, KINDS[kind](**header())) is Reading.COUNTS


@each_kind
@pytest.mark.parametrize("term", [4, 1, 0, -1])
def test_stale_term(kind: str, term: int):
    assert judge(HERE, KINDS[kind](**header(term=term))) is Reading.STALE_TERM


@each_kind
def test_twin(kind: str):
    assert judge(HERE, KINDS[kind](**header(nonce=OTHERS))) is Reading.TWIN


@each_kind
@pytest.mark.parametrize("seq", [7, 6, 1, 0, -5])
def test_duplicate(kind: str, seq: int):
    assert judge(HERE, KINDS[kind](**header(seq=seq))) is Reading.DUPLICATE


@each_kind
@pytest.mark.parametrize("seq", [9, 10, 1000])
def test_gap(kind: str, seq: int):
    assert judge(HERE, KINDS[kind](**header(seq=seq))) is Reading.GAP


@each_kind
@pytest.mark.parametrize("term", [6, 7])
def test_a_record_above_the_current_term(kind: str, term: int):
    with pytest.raises(AheadOfLog, match=f"a record of term {term} in term 5"):
        judge(HERE, KINDS[kind](**header(term=term)))


@each_kind
def test_void_comes_before_every_other_check(kind: str):
    """A void record may hold anything: no continuity is demanded of it."""
    wild = KINDS[kind](**header(term=4, prev_chain=bytes(32), seq=-1))
    assert judge(HERE, wild) is Reading.STALE_TERM
    assert judge(HERE, KINDS[kind](**header(seq=7, prev_chain=bytes(32)))) is Reading.DUPLICATE


@each_kind
def test_nothing_counts_before_the_first_claim(kind: str):
    with pytest.raises(AheadOfLog):
        judge(Position(), KINDS[kind](**header(term=1, seq=1, nonce=bytes(16))))
    for nonce in (bytes(16), OTHERS):
        first = KINDS[kind](**header(term=0, seq=1, nonce=nonce, prev_chain=bytes(32)))
        assert judge(Position(), first) is Reading.STALE_TERM


# Rule 5.


@each_kind
def test_a_wrong_chain(kind: str):
    with pytest.raises(BrokenLog, match="prev_chain"):
        judge(HERE, KINDS[kind](**header(prev_chain=bytes(32))))


both_batches = pytest.mark.parametrize("make", [batch, request_batch])


@both_batches
@pytest.mark.parametrize("first_index", [100, 102, 1])
def test_a_wrong_first_index(make: Any, first_index: int):
    with pytest.raises(BrokenLog, match=f"indexes {first_index}\\.\\..* after 100"):
        judge(HERE, make(**header(), first_index=first_index, timestamp_ms=9_000))


@both_batches
def test_a_last_index_below_the_first(make: Any):
    with pytest.raises(BrokenLog, match="indexes 101..99"):
        judge(HERE, make(**header(), first_index=101, last_index=99, timestamp_ms=9_000))


@both_batches
def test_a_batch_that_mints_no_index_counts(make: Any):
    assert judge(HERE, make(**header(), first_index=101, last_index=100, timestamp_ms=9_000)) is Reading.COUNTS


@both_batches
def test_batch_time_never_runs_backwards(make: Any):
    with pytest.raises(BrokenLog, match="8999 ms after 9000 ms"):
        judge(HERE, make(**header(), first_index=101, timestamp_ms=8_999))


@pytest.mark.parametrize("index", [99, 101])
@pytest.mark.parametrize("kind", ["barrier", "digest base", "mode"])
def test_an_index_that_is_not_the_last(kind: str, index: int):
    with pytest.raises(BrokenLog, match=f"index {index} where 100"):
        judge(HERE, replace(KINDS[kind](**header()), index=index))


def test_stops_are_told_apart_and_are_all_stops():
    assert issubclass(AheadOfLog, StopProcess)
    assert issubclass(BrokenLog, StopProcess)
    assert not issubclass(BrokenLog, AheadOfLog)


def test_takes_effect():
    assert [reading for reading in Reading if reading.takes_effect] == [Reading.VALID_CLAIM, Reading.COUNTS]
    assert all(reading.value.startswith("void: ") for reading in Reading if not reading.takes_effect)


# Advancing.


def test_after_a_claim():
    after = advance(HERE, claim(6), 41, b"claim bytes")
    assert after == replace(
        HERE, offset=41, record_hash=xxh3_128_digest(b"claim bytes"), chain=next_chain(CHAIN, b"claim bytes"),
        term=6, nonce=OTHERS, seq=0, leader="n2", address="b",
    )  # fmt: skip


@both_batches
def test_after_a_batch(make: Any):
    record = make(**header(), first_index=101, last_index=103, timestamp_ms=9_500)
    after = advance(HERE, record, 45, b"bytes")
    assert after == replace(
        HERE, offset=45, record_hash=xxh3_128_digest(b"bytes"), chain=next_chain(CHAIN, b"bytes"), seq=8, index=103,
        timestamp_ms=9_500,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["barrier", "tick", "digest base", "genesis", "mode"])
def test_after_another_record(kind: str):
    record: LogRecord = KINDS[kind](**header())
    after = advance(HERE, record, 41, b"bytes")
    assert after == replace(
        HERE, offset=41, record_hash=xxh3_128_digest(b"bytes"), chain=next_chain(CHAIN, b"bytes"), seq=8
    )


def test_a_trimmed_log_is_read_from_its_base():
    base = DigestBase(**header(), index=100, slots=[], sums=[], basis="trim")
    begun = position_before(base)
    assert judge(begun, base) is Reading.COUNTS
    value = encode(base)
    after = advance(begun, base, 41, value)
    whole = advance(HERE, base, 41, value)
    assert (after.term, after.nonce, after.seq, after.chain, after.index, after.offset) == (
        whole.term, whole.nonce, whole.seq, whole.chain, whole.index, whole.offset,
    )  # fmt: skip
