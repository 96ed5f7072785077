"""A page of the log, judged without what lies before it: as the reading rule judges it from the first record on."""

from __future__ import annotations

import hashlib

import pytest

from replicated_db.core.ports import Entry
from schemas.codecs.codec import encode
from schemas.records.log import LeaderClaim
from stratolog.ui.core.judged_tail import ChainMark, TailRecord, judged_tail, mark_before
from stratolog.ui.core.log_events import LogEvents
from stratolog.ui.core.words import Tone
from tests.support.logs.logbuilder import LogBuilder


def entries_of(log: LogBuilder) -> list[Entry]:
    return [Entry(offset=offset, timestamp_ms=1000 + offset, value=value) for offset, value in enumerate(log.values)]


def eventful() -> LogBuilder:
    """Two leaders, with void records of every kind among others."""
    log = LogBuilder().start()
    for number in range(6):
        log.batch(log.put("keyTable", b"/v/b/%d" % number, b"x"))
        log.tick()
    log.gap()
    log.claim("om2")
    log.stale(term=1)
    log.lost_claim()
    for number in range(6):
        log.batch(log.put("keyTable", b"/v/b/%d" % number, b"y"))
        log.duplicate()
        log.stale(term=2)
    log.barrier(scrub=True)
    log.claim("om3")
    log.members("om1", "om2", "om3", "om4")
    log.mode()
    return log


def readings(records: list[TailRecord]) -> dict[int, str | None]:
    return {one.entry.offset: one.reading for one in records}


def test_a_tail_from_anywhere_is_judged_as_the_whole_log_is() -> None:
    log = eventful()
    entries = entries_of(log)
    whole = readings(judged_tail(entries, None, from_first=True))
    assert {"void: an earlier seq is missing", "void: of an earlier term", "void: same term, other nonce"} < set(
        whole.values()
    )
    mark = ChainMark(len(entries) - 1, log.chain.hex())
    for start in range(len(entries)):
        found = readings(judged_tail(entries[start:], mark))
        judged = {offset: reading for offset, reading in found.items() if reading is not None}
        assert judged == {offset: whole[offset] for offset in judged}, start
        if start < len(entries) - 12:
            assert len(judged) >= len(entries) - start - 8, start  # a few at its beginning are not judged


def test_pages_follow_from_each_other_back_to_the_first_record() -> None:
    log = eventful()
    entries = entries_of(log)
    whole = readings(judged_tail(entries, None, from_first=True))
    mark: ChainMark | None = ChainMark(len(entries) - 1, log.chain.hex())
    seen: dict[int, str | None] = {}
    pages = 0
    while mark is not None and pages < 20:
        start = max(0, mark.offset - 11)
        page = judged_tail(entries[start : mark.offset + 1], mark, from_first=start == 0)
        seen |= {offset: reading for offset, reading in readings(page).items() if reading is not None}
        mark, pages = mark_before(page), pages + 1
    assert seen == whole


def test_the_node_may_be_behind_the_log_and_offsets_may_be_missing() -> None:
    log = eventful()
    entries = [entry for entry in entries_of(log) if entry.offset != 3]  # void: a tick less breaks the chain
    whole = entries_of(log)
    chain = _chain_at(log, 8)
    found = judged_tail(whole[4:], ChainMark(8, chain))
    assert found[-1].reading == "counts"
    assert all(one.reading is None for one in judged_tail(entries, ChainMark(len(whole) - 1, log.chain.hex()))[:2])


def _chain_at(log: LogBuilder, offset: int) -> str:
    chain = bytes(32)
    for value in log.values[: offset + 1]:
        chain = hashlib.sha256(chain + value).digest()  # nothing before the first gap is void
    return chain.hex()


@pytest.mark.parametrize("mark", [None, ChainMark(20, "ab" * 32), ChainMark(-1, ""), ChainMark(2**53, "nonsense")])
def test_with_a_wrong_mark_nothing_is_judged(mark: ChainMark | None) -> None:
    entries = entries_of(eventful())
    assert {one.reading for one in judged_tail(entries, mark)} == {None}
    assert judged_tail([], mark) == []


def test_a_strangers_bytes_stop_the_reading() -> None:
    log = eventful()
    log.append_value(b"no record at all")
    log.tick()
    found = judged_tail(entries_of(log), None, from_first=True)
    assert [one.reading for one in found[-2:]] == ["STOP: undecodable", None]
    assert found[-2].record is None


# -- events ------------------------------------------------------------------------------------------------------------


def test_claims_and_control_records_are_events() -> None:
    log = eventful()
    follower = LogEvents(0)
    events = [event for offset, value in enumerate(log.values) if (event := follower.take(value, offset))]
    assert [event.text for event in events] == [
        "om1 leads from here on, term 1",
        "created, with the replicas om1, om2, om3",
        "om2 leads from here on, term 2",
        "om9's claim of term 2 is void: the term is taken",
        "om3 leads from here on, term 3",
        "members are now om1, om2, om3, om4",
        "CreateKey is executed in mode 'late'",
    ]
    assert {event.where for event in events} == {"shard 0"}


def test_events_from_the_middle_of_a_log_know_the_term() -> None:
    log = eventful()
    follower = LogEvents(1)
    events = [event for value in log.values[8:] if (event := follower.take(value, 0))]
    assert [event.text for event in events][:2] == [
        "om2 leads from here on, term 2", "om9's claim of term 2 is void: the term is taken",
    ]  # fmt: skip


def test_a_digest_base_and_foreign_bytes_are_events() -> None:
    log = eventful()
    log.digest_base()
    follower = LogEvents(0)
    for value in log.values[:-1]:
        follower.take(value, 0)
    base = follower.take(log.values[-1], 5)
    assert base is not None
    assert (base.tone, base.text.startswith("digest base at index")) == (Tone.WARN, True)
    foreign = follower.take(b"\x00" * 40, 6)
    assert foreign is not None
    assert foreign.tone is Tone.BAD
    claim = LeaderClaim(term=99, nonce=b"n" * 16, node="om9", address="", claimed_at_ms=0)
    assert follower.take(encode(claim), 7) is not None
