"""The reading rule, case by case."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streaming.records.core.reading import (
    BARRIER,
    BATCH,
    CLAIM,
    DIGEST_BASE,
    GENESIS,
    MODE,
    REQUEST_BATCH,
    TICK,
    AuditPosition,
    GenesisFacts,
    Header,
    LogBroken,
    Ruling,
    read,
)

GENESIS_FACTS = GenesisFacts(cluster="c", shard=0, shards=1, replicas=("a", "b"), column_families=("x",))


def claim(offset: int, term: int = 1, nonce: bytes = b"n1") -> Header:
    return Header(offset=offset, kind=CLAIM, term=term, nonce=nonce, value=b"claim %d" % term, node="a")


def after_claim() -> AuditPosition:
    return read(AuditPosition(), claim(0))[0]


def counting(position: AuditPosition, kind: str, **changed: object) -> Header:
    header = Header(
        offset=position.next_offset,
        kind=kind,
        term=position.term,
        nonce=position.nonce,
        seq=position.seq + 1,
        prev_chain=position.chain,
        chain_after=hashlib.sha256(position.chain + kind.encode()).digest(),
        genesis=GENESIS_FACTS if kind == GENESIS else None,
    )
    return replace(header, **changed)  # type: ignore[arg-type]


def batch(position: AuditPosition, indexes: int = 1, kind: str = BATCH, **changed: object) -> Header:
    fields: dict[str, object] = {
        "first_index": position.last_index + 1,
        "last_index": position.last_index + indexes,
        "timestamp_ms": position.timestamp_ms + 1,
    }
    return counting(position, kind, **(fields | changed))


def started() -> AuditPosition:
    position = after_claim()
    return read(position, counting(position, GENESIS))[0]


def running() -> AuditPosition:
    """Term 2, two records counted in it, index 5."""
    position = started()
    position, _ = read(position, batch(position, indexes=5))
    position, _ = read(position, claim(position.next_offset, term=2, nonce=b"n2"))
    position, _ = read(position, counting(position, TICK))
    return read(position, counting(position, TICK))[0]


def test_first_claim_has_term_one():
    position, outcome = read(AuditPosition(), claim(0))
    assert outcome is Ruling.CLAIM
    assert (position.term, position.nonce, position.seq, position.leader) == (1, b"n1", 0, "a")
    assert position.chain == hashlib.sha256(bytes(32) + b"claim 1").digest()


@pytest.mark.parametrize("term", [0, 1, 2])
def test_claim_of_a_term_that_is_taken_is_void(term):
    before = running()
    after, outcome = read(before, claim(before.next_offset, term=term, nonce=b"n9"))
    assert outcome is Ruling.VOID
    assert after == replace(before, next_offset=before.next_offset + 1)


@pytest.mark.parametrize("term", [4, 5, 100])
def test_claim_above_the_next_term_is_ahead_of_log(term):
    before = running()
    with pytest.raises(LogBroken, match="AHEAD_OF_LOG"):
        read(before, claim(before.next_offset, term=term))


@pytest.mark.parametrize("kind", [TICK, BARRIER, BATCH, DIGEST_BASE, GENESIS])
def test_record_above_the_current_term_is_ahead_of_log(kind):
    before = running()
    with pytest.raises(LogBroken, match="AHEAD_OF_LOG"):
        read(before, counting(before, kind, term=3))


@pytest.mark.parametrize(
    "changed",
    [
        {"term": 1},
        {"term": 0},
        {"term": 1, "nonce": b"n1", "seq": 3},
        {"nonce": b"n1"},
        {"nonce": b""},
        {"seq": 2},
        {"seq": 1},
        {"seq": 0},
        {"seq": 4},
        {"seq": 99},
    ],
)
@pytest.mark.parametrize("kind", [TICK, BARRIER, BATCH, DIGEST_BASE, GENESIS])
def test_what_does_not_count_is_void_whatever_else_it_says(kind, changed):
    before = running()
    header = counting(before, kind, **({"prev_chain": b"wrong", "index": 77, "first_index": -3} | changed))
    after, outcome = read(before, header)
    assert outcome is Ruling.VOID
    assert after == replace(before, next_offset=before.next_offset + 1)


@pytest.mark.parametrize("kind", [TICK, BARRIER, DIGEST_BASE, MODE])
def test_counting_record(kind):
    before = running()
    header = counting(before, kind, index=5)
    after, outcome = read(before, header)
    assert outcome is Ruling.COUNTS
    assert after == replace(before, next_offset=before.next_offset + 1, seq=before.seq + 1, chain=header.chain_after)


each_batch = pytest.mark.parametrize("kind", [BATCH, REQUEST_BATCH])


@each_batch
def test_batch_moves_index_and_time(kind):
    before = running()
    after, _ = read(before, batch(before, indexes=3, kind=kind, timestamp_ms=10))
    assert (after.last_index, after.timestamp_ms) == (8, 10)


def test_batch_without_an_index_counts():
    before = running()
    after, outcome = read(before, batch(before, indexes=0))
    assert outcome is Ruling.COUNTS
    assert after.last_index == before.last_index


def test_batch_of_the_same_time_counts():
    before = running()
    assert read(before, batch(before, timestamp_ms=before.timestamp_ms))[1] is Ruling.COUNTS


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"prev_chain": bytes(32)}, "prev_chain"),
        ({"prev_chain": b""}, "prev_chain"),
        ({"first_index": 5}, "starts at index 5"),
        ({"first_index": 7}, "starts at index 7"),
        ({"last_index": 4}, "6..4"),
        ({"timestamp_ms": 0}, "timestamp"),
    ],
)
@each_batch
def test_false_batch_breaks_the_log(kind, changed, reason):
    before = running()
    with pytest.raises(LogBroken, match=reason):
        read(before, batch(before, kind=kind, **changed))


@pytest.mark.parametrize("kind", [BARRIER, DIGEST_BASE, MODE])
@pytest.mark.parametrize("index", [4, 6, 0])
def test_barrier_and_base_must_name_the_last_index(kind, index):
    before = running()
    with pytest.raises(LogBroken, match=f"{kind} of index {index}"):
        read(before, counting(before, kind, index=index))


@pytest.mark.parametrize("kind", [TICK, BARRIER, BATCH, DIGEST_BASE, REQUEST_BATCH, MODE])
def test_genesis_comes_first(kind):
    before = after_claim()
    with pytest.raises(LogBroken, match="before Genesis"):
        read(before, counting(before, kind, first_index=1))


def test_genesis_may_come_under_a_later_claim():
    position, _ = read(after_claim(), claim(1, term=2, nonce=b"n2"))
    position, outcome = read(position, counting(position, GENESIS))
    assert outcome is Ruling.COUNTS
    assert position.genesis == GENESIS_FACTS


def test_second_genesis_breaks_the_log():
    before = running()
    with pytest.raises(LogBroken, match="second Genesis"):
        read(before, counting(before, GENESIS))


@pytest.mark.parametrize("offset", [0, 4, 6, 100])
def test_missing_or_repeated_offsets_break_the_log(offset):
    before = running()
    assert before.next_offset not in (0, 4, 100)
    if offset == before.next_offset:
        offset += 1
    with pytest.raises(LogBroken, match="records are missing"):
        read(before, claim(offset))


def test_undecodable_record_breaks_the_log():
    before = running()
    with pytest.raises(LogBroken, match="unknown schema fingerprint 00"):
        read(before, Header(offset=before.next_offset, kind=None, error="unknown schema fingerprint 00"))


def test_records_before_any_claim():
    with pytest.raises(LogBroken, match="AHEAD_OF_LOG"):
        read(AuditPosition(), Header(offset=0, kind=TICK, term=1, seq=1))
    assert read(AuditPosition(), Header(offset=0, kind=TICK, term=0, seq=0))[1] is Ruling.VOID


@given(st.lists(st.sampled_from(["tick", "batch", "stale", "twin", "gap", "claim", "lost"]), max_size=60))
def test_void_records_change_nothing_but_the_offset(steps):
    """The same effective records with and without void ones between them lead to the same position."""
    noisy = quiet = started()
    for number, step in enumerate(steps):
        if step in ("tick", "batch", "claim"):
            headers = []
            for position in (noisy, quiet):
                if step == "claim":
                    headers.append(claim(position.next_offset, term=position.term + 1, nonce=b"%d" % number))
                else:
                    headers.append(counting(position, TICK) if step == "tick" else batch(position))
            noisy, first = read(noisy, headers[0])
            quiet, second = read(quiet, headers[1])
            assert first is second is not Ruling.VOID
        else:
            lies: dict[str, dict[str, object]] = {
                "stale": {"term": noisy.term - 1}, "twin": {"nonce": b"twin"}, "gap": {"seq": noisy.seq + 2}, "lost": {},
            }  # fmt: skip
            void = claim(noisy.next_offset, term=noisy.term) if step == "lost" else counting(noisy, TICK, **lies[step])
            noisy, outcome = read(noisy, void)
            assert outcome is Ruling.VOID
    assert replace(noisy, next_offset=0) == replace(quiet, next_offset=0)
