"""The log as drills read it: its digest against a model of the rows, void records, claims, results, checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicated_db.core.log.position import Position
from replicated_db.core.log.reading import Reading, advance, judge, position_before
from schemas.codecs.codec import decode
from schemas.column_families import OM_COLUMN_FAMILIES
from schemas.records.log import DigestBase, RequestBatch
from spark_streaming.records.core.reading import LogBroken
from stratolog.drills.core.log_digest import LogDigest, differing, row_hash, slot_of, total, unsigned
from stratolog.drills.core.log_survey import LogEntry, Survey
from stratolog.drills.core.report import CouldNotRun
from stratolog.drills.point_in_time import Moment, _check_kept
from tests.support.logs import logbuilder
from tests.support.logs.logbuilder import LogBuilder, digest, ordinary_log, total_hex


def entries(log: LogBuilder) -> list[LogEntry]:
    found, position = [], Position()
    for offset, value in enumerate(log.values):
        record = decode(value)
        reading = judge(position, record)
        if reading.takes_effect:
            position = advance(position, record, offset, value)
        found.append(LogEntry(offset=offset, timestamp_ms=0, value=value, record=record, reading=reading))
    return found


def surveyed(log: LogBuilder, client_id: bytes | None = None, since: int = 0) -> Survey:
    found = Survey()
    for entry in entries(log):
        found.take(entry, client_id, since)
    return found


def test_the_digest_is_that_of_the_rows_at_every_barrier() -> None:
    log = ordinary_log()
    barriers = {at.offset: at for at in log.barriers}
    found = LogDigest()
    for entry in entries(log):
        found.offer(entry.offset, entry.value, entry.record)
        if (at := barriers.get(entry.offset)) is not None:
            assert found.sums() == digest(at.rows)
            assert (total(found.sums()), found.index) == (total_hex(at.rows), at.index)
    assert len(barriers) > 3
    assert found.families == OM_COLUMN_FAMILIES


def test_a_lying_claim_shows_in_the_sum_until_a_digest_base() -> None:
    log = ordinary_log()
    log.batch(replace(log.put("keyTable", b"/v/b/lie", b"value"), prev=4711))  # a row that is not there
    assert differing(surveyed(log).digest.sums(), digest(log.rows)) == [logbuilder.slot_of("keyTable", b"/v/b/lie")]
    log.digest_base()
    assert surveyed(log).digest.sums() == digest(log.rows)


def test_a_request_batch_makes_the_sum_unknown_until_a_digest_base() -> None:
    log = ordinary_log()
    batch = RequestBatch(
        **log.header(), first_index=log.index + 1, last_index=log.index, timestamp_ms=log.timestamp_ms,
        request_position=None, requests=[],
    )  # fmt: skip
    log.count(batch)
    assert not surveyed(log).digest.known
    log.digest_base()
    assert surveyed(log).digest.known


def test_what_one_pass_finds() -> None:
    log = ordinary_log()
    own = decode(log.values[2]).results[0]
    found = surveyed(log, own.client_id)
    expected = [entry for entry in entries(log) if not entry.reading.takes_effect]
    assert found.void_records == len(expected) == len(found.void)
    assert {record.reading for record in found.void} >= {Reading.STALE_TERM, Reading.LOST_CLAIM, Reading.GAP}
    assert [(claim.term, claim.node) for claim in found.claims] == [(1, "om1"), (2, "om2")]
    assert found.claims[1].index_before > found.claims[0].index_before == 0
    assert found.calls[own.call_id][0].response == own.response
    assert set(found.checkpoints) == {"c4", "c9", "c14", "c19"}
    assert found.rules_differ is None
    assert found.end_offset == len(log.values) - 1


def test_void_records_and_strangers_before_the_drill_are_left_out() -> None:
    log = ordinary_log()
    since = len(log.values)
    log.stale(log.term - 1)
    found = surveyed(log, since=since)
    assert [record.offset for record in found.void] == [since]
    assert found.others == set()
    log.batch(log.put("keyTable", b"/v/b/k", b"v"))
    assert surveyed(log, since=since).others != set()


def test_a_disagreement_of_the_two_rules_is_noticed() -> None:
    log = ordinary_log()
    found = Survey()
    for entry in entries(log):
        if entry.reading is Reading.GAP:
            entry = LogEntry(
                offset=entry.offset, timestamp_ms=0, value=entry.value, record=entry.record, reading=Reading.COUNTS
            )
            found.take(entry, None, 0)
            break
        found.take(entry, None, 0)
    assert found.rules_differ == entry.offset


def test_the_auditors_rule_stops_where_the_log_is_broken() -> None:
    log = ordinary_log()
    log.chain = bytes(32)
    log.tick()
    found = LogDigest()
    for offset, value in enumerate(log.values[:-1]):
        found.offer(offset, value, decode(value))
    with pytest.raises(LogBroken, match="prev_chain"):
        found.offer(len(log.values) - 1, log.values[-1], decode(log.values[-1]))


def test_hashes_and_slots() -> None:
    row = ("keyTable", b"/v/b/k")
    assert row_hash(*row, b"value") == logbuilder.row_hash(*row, b"value") & (1 << 64) - 1
    assert slot_of(OM_COLUMN_FAMILIES, *row) == logbuilder.slot_of(*row)
    assert unsigned([1, 2, 3], [-1, 0, 5]) == {1: (1 << 64) - 1, 3: 5}
    assert differing({1: 5, 2: 6}, {2: 7, 3: 1}) == [1, 2, 3]
    assert total({1: (1 << 64) - 1, 2: 2}) == f"{1:016x}"


def test_a_trimmed_log_is_read_from_its_base() -> None:
    log = ordinary_log()
    first = log.digest_base()
    log.members("om1", "om2")
    log.batch(log.put("keyTable", b"/v/b/after", b"value"))
    log.stale(term=1)
    log.barrier()
    found, position = Survey(), Position()
    for offset, value in enumerate(log.values[first:], start=first):
        record = decode(value)
        if offset == first:
            assert isinstance(record, DigestBase)
            position = position_before(record)
        reading = judge(position, record)
        if reading.takes_effect:
            position = advance(position, record, offset, value)
        found.take(LogEntry(offset=offset, timestamp_ms=0, value=value, record=record, reading=reading), None, 0)
    assert found.rules_differ is None
    assert found.void_records == 1
    assert found.digest.sums() == digest(log.rows)
    assert found.digest.position.base_offset == first


def test_a_moment_before_the_base_is_refused() -> None:
    log = ordinary_log()
    first = log.digest_base()
    log.members("om1")
    index, written = log.index, log.batch(log.put("keyTable", b"/v/b/after", b"value"))
    found = LogDigest()
    for offset in (first, first + 1):
        found.offer(offset, log.values[offset], decode(log.values[offset]))
    _check_kept(0, found.position, Moment(index=index))
    for moment in (Moment(index=index - 1), Moment(time_ms=log.timestamp_ms - 1)):
        with pytest.raises(CouldNotRun, match=f"begins at offset {first}, with index {index}"):
            _check_kept(0, found.position, moment)
    found.offer(written, log.values[written], decode(log.values[written]))
    _check_kept(0, found.position, Moment(time_ms=log.timestamp_ms))
    _check_kept(0, LogDigest().position, Moment(index=0))
