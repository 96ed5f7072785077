"""The chaos runner's journal and its judge: what a killed client leaves, what replicas must list, and that each kind of loss is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from om_processors.namespace.tables import inline_key, key_key
from replicated_db.core.ports import Entry
from schemas.codecs.codec import decode_as, encode
from schemas.column_families import INLINE_TABLE, KEY_TABLE
from schemas.records.log import Batch, RequestBatch
from schemas.records.rows import KeyInfo
from stratolog.drills.core.log_survey import LogEntry, Survey
from stratolog.drills.kit.core.journal import (
    ABSENT,
    CHAINS,
    COMMIT,
    CREATE,
    DELETE,
    PUT,
    REPLACE,
    Ack,
    Journal,
    data_of,
    key_of,
    longest_gap_ms,
    number_of,
    size_of,
)
from stratolog.drills.kit.core.judging import Aftermath, LogCount, judge_data, judge_listing
from stratolog.drills.kit.journal_file import JournalFile, JournalTail, read_journal
from tests.support.logs.judged_log import LogReader
from tests.support.logs.logbuilder import LogBuilder, digest

CLIENT = "00" * 16
KEYS = {number: key_of(CLIENT, number) for number in range(1, 6)}


def by_number(journal: Journal) -> dict[int, frozenset[str]]:
    return {number_of(key): possible for key, possible in journal.expected()}


def write(path: Path) -> JournalFile:
    lines = JournalFile(path, CLIENT, "volume", "bucket")
    for number in range(1, 6):
        lines.on_tried(key_of(CLIENT, number), CREATE)
        lines.on_acknowledged(key_of(CLIENT, number), CREATE, call_id=number * 10, index=number * 100, at_ms=0)
        lines.on_tried(key_of(CLIENT, number), COMMIT)
    lines.on_acknowledged(key_of(CLIENT, 1), COMMIT, call_id=11, index=101, at_ms=0)
    lines.on_acknowledged(key_of(CLIENT, 2), COMMIT, call_id=21, index=201, at_ms=0)
    lines.on_tried(key_of(CLIENT, 2), DELETE)
    lines.on_acknowledged(key_of(CLIENT, 2), DELETE, call_id=22, index=202, at_ms=0)
    lines.on_refused(key_of(CLIENT, 3), COMMIT, "KEY_NOT_FOUND")
    lines.on_unknown(key_of(CLIENT, 4), COMMIT, "DEADLINE_EXCEEDED")
    return lines


def test_what_a_journal_says_must_and_may_be_listed(tmp_path: Path) -> None:
    write(tmp_path / "j")
    journal = read_journal(tmp_path / "j")
    assert journal is not None
    assert by_number(journal) == {
        1: {COMMIT}, 2: {ABSENT}, 3: {ABSENT}, 4: {ABSENT, COMMIT}, 5: {ABSENT, COMMIT},
    }  # fmt: skip
    assert [key for key in journal.keys if journal.was_deleted(key)] == [KEYS[2]]
    assert [journal.effects(KEYS[number]) for number in range(1, 6)] == [(1, 0), (1, 1), (0, 0), (1, 0), (1, 0)]
    assert journal.unknown == 2
    assert journal.calls == {10: 100, 20: 200, 30: 300, 40: 400, 50: 500, 11: 101, 21: 201, 22: 202}
    assert len(journal.refusals) == 1


def test_an_unanswered_deletion_leaves_the_key_in_doubt(tmp_path: Path) -> None:
    lines = write(tmp_path / "j")
    lines.on_tried(key_of(CLIENT, 1), DELETE)
    journal = read_journal(tmp_path / "j")
    assert journal is not None
    assert by_number(journal)[1] == {COMMIT, ABSENT}


def test_what_replaces_a_key_decides_its_size_and_bytes(tmp_path: Path) -> None:
    lines = JournalFile(tmp_path / "j", CLIENT, "volume", "bucket")
    for number in range(1, 4):
        for step in (PUT, REPLACE):
            lines.on_tried(key_of(CLIENT, number), step)
            if (number, step) != (3, REPLACE):
                lines.on_acknowledged(key_of(CLIENT, number), step, call_id=number, index=number, at_ms=0)
    lines.on_tried(key_of(CLIENT, 2), DELETE)
    journal = read_journal(tmp_path / "j")
    assert journal is not None
    assert by_number(journal) == {1: {REPLACE}, 2: {REPLACE, ABSENT}, 3: {PUT, REPLACE}}
    assert [journal.effects(KEYS[number]) for number in (1, 2, 3)] == [(2, 0), (2, 1), (2, 0)]


def test_each_step_gives_a_key_another_size_and_other_bytes() -> None:
    assert len(set(CHAINS)) == 8
    sizes = set()
    for number in range(64):
        steps = [step for step in (PUT, REPLACE, COMMIT) if step in CHAINS[number % len(CHAINS)]]
        assert len({size_of(number, step) for step in steps}) == len(steps)
        for step in steps:
            data = data_of(CLIENT, number, step)
            assert data is None if step == COMMIT else data is not None and len(data) == size_of(number, step)
        sizes |= {size_of(number, step) > 4096 for step in steps if step != COMMIT}
    assert sizes == {True, False}, "values of both kinds: in the table, and in blob files"
    assert data_of(CLIENT, 1, PUT) != data_of(CLIENT, 2, PUT) != data_of("11" * 16, 2, PUT)


def test_a_line_that_a_killed_client_did_not_finish_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "j")
    with (tmp_path / "j").open("a") as file:
        file.write("T 6")
    journal = read_journal(tmp_path / "j")
    assert journal is not None
    assert key_of(CLIENT, 6) not in journal.keys
    (tmp_path / "empty").touch()
    assert read_journal(tmp_path / "empty") is None


def test_why_a_request_was_refused_may_have_several_lines(tmp_path: Path) -> None:
    lines = JournalFile(tmp_path / "j", CLIENT, "volume", "bucket")
    lines.on_tried(KEYS[1], COMMIT)
    lines.on_refused(KEYS[1], COMMIT, "NO:\nA 1 m 1 1 1")
    journal = read_journal(tmp_path / "j")
    assert journal is not None
    assert (journal.calls, journal.refusals) == ({}, [f"{KEYS[1]} m: NO: A 1 m 1 1 1"])


def test_a_tail_counts_what_is_written_meanwhile(tmp_path: Path) -> None:
    tail = JournalTail(tmp_path / "j")
    assert tail.poll() == 0
    lines = write(tmp_path / "j")
    assert tail.poll() == 8
    assert tail.unanswered == 1
    lines.on_acknowledged(key_of(CLIENT, 5), COMMIT, call_id=51, index=501, at_ms=0)
    assert tail.poll() == 9
    assert tail.unanswered == 0


def acked_at(*times_ms: int) -> Journal:
    acks = [Ack(key_of(CLIENT, at_ms), COMMIT, at_ms, at_ms, at_ms) for at_ms in times_ms]
    return Journal(client_id=CLIENT, volume="a", bucket="b", acks=acks)


def test_the_longest_gap_is_that_of_all_clients_of_a_shard() -> None:
    one, two = acked_at(0, 10, 500), acked_at(400, 520)
    assert longest_gap_ms([one]) == 490
    assert longest_gap_ms([one, two]) == 390
    assert longest_gap_ms([]) == 0
    assert one.longest_gap_s(0.005, 0.6) == pytest.approx(0.49)
    assert one.longest_gap_s(0.1, 0.4) == pytest.approx(0.3)


def test_what_was_acknowledged_behind_an_index_is_in_doubt_before_it(tmp_path: Path) -> None:
    before = read(tmp_path).as_of(101)
    assert by_number(before)[1] == {COMMIT}
    assert by_number(before)[2] == {COMMIT, ABSENT}
    assert set(before.acknowledged) == {KEYS[1]}
    assert set(before.calls.values()) == {100, 101}


def test_a_key_with_a_name_of_its_own_has_the_size_that_was_tried() -> None:
    journal = Journal(client_id=CLIENT, volume="v", bucket="b")
    journal.on_tried("newest", COMMIT, 1_001)
    found = Aftermath()
    judge_listing(found, "om1", {"newest": 1_001}, [journal])
    assert found.sound
    judge_listing(found, "om1", {"newest": 1}, [journal])
    assert found.unexpected == 1
    journal.on_acknowledged("newest", COMMIT, call_id=1, index=1, at_ms=0)
    judge_listing(found, "om1", {}, [journal])
    assert found.lost == 1
    assert journal.data("newest", COMMIT) is None


def test_findings_are_sound_only_without_any() -> None:
    findings = Aftermath(acknowledged=5)
    assert findings.sound
    findings.note("lost", ["key 1"])
    assert not findings.sound
    assert findings.words == ["lost: key 1"]


def read(tmp_path: Path) -> Journal:
    write(tmp_path / "j")
    journal = read_journal(tmp_path / "j")
    assert journal is not None
    return journal


@pytest.mark.parametrize(
    ("listed", "figure"),
    [
        ({}, "lost"),
        ({KEYS[1]: size_of(1) + 1}, "lost"),
        ({KEYS[1]: size_of(1), KEYS[2]: size_of(2)}, "lost"),
        ({KEYS[1]: size_of(1), KEYS[4]: 0}, "unexpected"),
        ({KEYS[1]: size_of(1), KEYS[3]: size_of(3)}, "unexpected"),
        ({KEYS[1]: size_of(1), "nobody's": 1}, "unexpected"),
    ],
    ids=["missing", "another size", "deleted and there", "in doubt, of another size", "refused and there", "nobody's"],
)
def test_a_listing_that_is_wrong_is_found(tmp_path: Path, listed: dict[str, int], figure: str) -> None:
    findings = Aftermath()
    judge_listing(findings, "om1", listed, [read(tmp_path)])
    assert getattr(findings, figure) == 1
    assert not findings.sound


@pytest.mark.parametrize("in_doubt", [{}, {KEYS[4]: size_of(4)}, {KEYS[4]: size_of(4), KEYS[5]: size_of(5)}])
def test_a_listing_that_is_right_is_sound(tmp_path: Path, in_doubt: dict[str, int]) -> None:
    findings = Aftermath()
    judge_listing(findings, "om1", {KEYS[1]: size_of(1), **in_doubt}, [read(tmp_path)])
    assert findings.sound, findings.words


def put(tmp_path: Path) -> Journal:
    """Key 1 was put and replaced, key 2 put and not answered for the replacement; key 3 has blocks."""
    lines = JournalFile(tmp_path / "puts", CLIENT, "v", "b")
    for number, step in ((1, PUT), (1, REPLACE), (2, PUT), (3, CREATE), (3, COMMIT)):
        lines.on_tried(key_of(CLIENT, number), step)
        lines.on_acknowledged(key_of(CLIENT, number), step, call_id=number, index=number, at_ms=0)
    lines.on_tried(key_of(CLIENT, 2), REPLACE)
    journal = read_journal(tmp_path / "puts")
    assert journal is not None
    return journal


RIGHT = {KEYS[1]: data_of(CLIENT, 1, REPLACE), KEYS[2]: data_of(CLIENT, 2, PUT), KEYS[3]: None}


def test_bytes_that_are_right_are_sound_and_counted(tmp_path: Path) -> None:
    for found in (RIGHT, RIGHT | {KEYS[2]: data_of(CLIENT, 2, REPLACE)}):
        findings = Aftermath()
        assert judge_data(findings, "om1", found, [put(tmp_path / str(len(found[KEYS[2]] or b"")))]) == 2
        assert findings.sound, findings.words


@pytest.mark.parametrize(
    "wrong",
    [{KEYS[1]: data_of(CLIENT, 1, PUT)}, {KEYS[2]: None}, {KEYS[3]: data_of(CLIENT, 3, PUT)}, {KEYS[1]: b""}],
    ids=["of the version before", "none", "beside blocks", "empty"],
)
def test_bytes_that_are_wrong_are_found(tmp_path: Path, wrong: dict[str, bytes | None]) -> None:
    findings = Aftermath()
    judge_data(findings, "om1", RIGHT | wrong, [put(tmp_path)])
    assert findings.lost == 1


@pytest.mark.parametrize("step", ["right", "others", "left over", "missing"])
def test_the_log_is_asked_for_the_bytes_of_inline_keys(tmp_path: Path, step: str) -> None:
    journal, log, findings = put(tmp_path), LogBuilder().start(), Aftermath()
    for number in (1, 2, 3):
        data = RIGHT[KEYS[number]]
        row = encode(KeyInfo(
            volume="v", bucket="b", key=KEYS[number], owner="", object_id=number, update_id=1, size=len(data or b""),
            replication="", blocks=[], metadata={}, creation_time_ms=0, modification_time_ms=0, inline=data is not None,
        ))  # fmt: skip
        log.batch(log.put(KEY_TABLE, key_key("v", "b", KEYS[number]), row))
        if data is not None and (number, step) != (1, "missing"):
            log.batch(log.put(INLINE_TABLE, inline_key(number), b"" if (number, step) == (1, "others") else data))
    if step == "left over":
        log.batch(log.put(INLINE_TABLE, inline_key(9), b"nobody's"))
    journal.acks.clear()  # this log has rows, and no results
    LogReading([journal], log).tell(findings)
    assert (findings.lost, findings.unexpected) == {
        "right": (0, 0), "others": (1, 0), "left over": (0, 1), "missing": (1, 0),
    }[step]  # fmt: skip


CALLER = b"client-%09d" % 0


class LogReading:
    """What a log says beside journals."""

    def __init__(self, journals: list[Journal], log: LogBuilder, *, alone: bool = True) -> None:
        self._count, self.survey, reader = LogCount(journals, alone=alone), Survey(), LogReader()
        for offset, value in enumerate(log.values):
            judged = reader.judged(Entry(offset=offset, timestamp_ms=0, value=value))
            entry = LogEntry(offset=offset, timestamp_ms=0, value=value, record=judged.record, reading=judged.reading)
            self.survey.take(entry, None, 0)
            self._count.take(entry)

    def tell(self, found: Aftermath) -> Aftermath:
        self._count.tell(found, "the log")
        return found


def told(calls: dict[int, int]) -> Journal:
    """Return the journal of CALLER, to whom calls were acknowledged at indexes."""
    acks = [Ack("key", COMMIT, call_id, index, 0) for call_id, index in calls.items()]
    return Journal(client_id=CALLER.hex(), volume="v", bucket="b", acks=acks)


def counted(log: LogBuilder, acknowledged: dict[int, int], *, alone: bool = True) -> Aftermath:
    return LogReading([told(acknowledged)], log, alone=alone).tell(Aftermath())


def some_log() -> LogBuilder:
    log = LogBuilder().start()
    log.batch(log.put(KEY_TABLE, b"/v/b/one", b"1"), results=2)
    log.stale(0)
    log.batch(log.put(KEY_TABLE, b"/v/b/two", b"2"), log.delete(KEY_TABLE, b"/v/b/one"))
    return log


def test_a_log_that_holds_all_is_sound_and_sums_to_its_rows() -> None:
    log = some_log()
    read, found = LogReading([told({1: 1, 2: 1, 3: 3})], log), Aftermath()
    assert read.tell(found).sound, found.words
    assert read.survey.digest_here().sums == digest(log.rows)


@pytest.mark.parametrize("acknowledged", [{1: 1, 9: 9}, {1: 2}], ids=["not in the log", "at another index"])
def test_an_acknowledged_call_that_the_log_lacks_is_lost(acknowledged: dict[int, int]) -> None:
    assert counted(some_log(), acknowledged).lost == 1


def test_a_call_or_a_key_that_is_there_twice_is_a_duplicate() -> None:
    log = some_log()
    again = decode_as(Batch, log.values[2])
    log.count(
        replace(
            again,
            **log.header(),
            operations=[],
            first_index=log.index + 1,
            last_index=log.index + 2,
            timestamp_ms=log.timestamp_ms,
        )
    )
    assert counted(log, {}).duplicated == 2
    log = some_log()
    log.batch(log.put(KEY_TABLE, b"/v/b/one", b"1"))
    assert counted(log, {}).duplicated == 1


@pytest.mark.parametrize(("steps", "found"), [((PUT, REPLACE, DELETE), 0), ((PUT, DELETE), 1), ((PUT, REPLACE), 1)])
def test_a_key_may_be_written_as_often_as_was_asked(steps: tuple[str, ...], found: int) -> None:
    log, journal = some_log(), Journal(client_id=CALLER.hex(), volume="v", bucket="b")
    log.batch(log.put(KEY_TABLE, b"/v/b/one", b"1"))
    for step in steps:
        journal.on_tried("one", step, 1)
    after = LogReading([journal], log, alone=False).tell(Aftermath())
    assert (after.duplicated, after.lost) == (found, 0)


def test_what_others_do_is_nobodys_fault_where_others_write() -> None:
    log = some_log()
    log.batch(log.put(KEY_TABLE, b"/v/b/one", b"1"), log.put(INLINE_TABLE, inline_key(9), b"theirs"))
    assert not counted(log, {1: 1}).sound
    assert counted(log, {1: 1}, alone=False).sound


def test_a_call_that_was_validated_late_is_in_the_log() -> None:
    log = some_log()
    log.request_batch()
    late = decode_as(RequestBatch, log.values[-1]).requests[0]
    journal = Journal(client_id=late.client_id.hex(), volume="v", bucket="b")
    journal.acks.append(Ack("key", COMMIT, int.from_bytes(late.call_id, "big"), 4711, 0))
    assert LogReading([journal], log).tell(Aftermath()).lost == 0
