"""The chaos runner's journal and its judge: what a killed client leaves, what replicas must list, and that each kind of loss is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from replicated_db.core.ports import Entry
from schemas.codecs.codec import decode_as
from schemas.column_families import KEY_TABLE
from schemas.records.log import Batch
from tests.chaos.journal import COMMIT, CREATE, DELETE, Journal, Tail, Writing, key_of, size_of
from tests.chaos.judge import Findings, LogCount, judge_listing, longest_gap_ms
from tests.support.logs.judged_log import LogReader
from tests.support.logs.logbuilder import MASK, LogBuilder, digest

CLIENT = "00" * 16


def write(path: Path) -> Writing:
    lines = Writing(path, CLIENT, "volume", "bucket")
    for number in range(1, 6):
        lines.tried(number, CREATE)
        lines.acknowledged(number, CREATE, number * 10, number * 100)
        lines.tried(number, COMMIT)
    lines.acknowledged(1, COMMIT, 11, 101)
    lines.acknowledged(2, COMMIT, 21, 201)
    lines.tried(2, DELETE)
    lines.acknowledged(2, DELETE, 22, 202)
    lines.refused(3, COMMIT, "KEY_NOT_FOUND")
    lines.unknown(4, COMMIT, "DEADLINE_EXCEEDED")
    return lines


def test_what_a_journal_says_must_and_may_be_listed(tmp_path: Path) -> None:
    write(tmp_path / "j")
    journal = Journal.read(tmp_path / "j")
    assert journal is not None
    must, may = journal.expected()
    assert must == {key_of(CLIENT, 1): size_of(1)}
    assert may == {key_of(CLIENT, 4): size_of(4), key_of(CLIENT, 5): size_of(5)}
    assert journal.unknown == 2
    assert journal.calls == {10: 100, 20: 200, 30: 300, 40: 400, 50: 500, 11: 101, 21: 201, 22: 202}
    assert len(journal.refusals) == 1


def test_an_unanswered_deletion_leaves_the_key_in_doubt(tmp_path: Path) -> None:
    lines = write(tmp_path / "j")
    lines.tried(1, DELETE)
    journal = Journal.read(tmp_path / "j")
    assert journal is not None
    must, may = journal.expected()
    assert not must
    assert key_of(CLIENT, 1) in may


def test_a_line_that_a_killed_client_did_not_finish_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "j")
    with (tmp_path / "j").open("a") as file:
        file.write("T 6")
    journal = Journal.read(tmp_path / "j")
    assert journal is not None
    assert 6 not in journal.steps[CREATE]
    (tmp_path / "empty").touch()
    assert Journal.read(tmp_path / "empty") is None


def test_a_tail_counts_what_is_written_meanwhile(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "j")
    assert tail.poll() == 0
    lines = write(tmp_path / "j")
    assert tail.poll() == 8
    assert tail.unanswered == 1
    lines.acknowledged(5, COMMIT, 51, 501)
    assert tail.poll() == 9
    assert tail.unanswered == 0


def test_the_longest_gap_is_that_of_a_shard() -> None:
    one = Journal(client_id=CLIENT, volume="a", bucket="b", times_ms=[0, 10, 500])
    two = Journal(client_id=CLIENT, volume="a", bucket="b", times_ms=[400, 520])
    assert longest_gap_ms([one], 1) == 490
    assert longest_gap_ms([one, two], 1) == 390
    assert longest_gap_ms([], 1) == 0


def test_findings_are_sound_only_without_any() -> None:
    findings = Findings(acknowledged=5)
    assert findings.sound
    findings.note("lost", ["key 1"])
    assert not findings.sound
    assert findings.words == ["lost: key 1"]


def read(tmp_path: Path) -> Journal:
    write(tmp_path / "j")
    journal = Journal.read(tmp_path / "j")
    assert journal is not None
    return journal


KEYS = {number: key_of(CLIENT, number) for number in range(1, 6)}


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
    findings = Findings()
    judge_listing(findings, "om1", listed, [read(tmp_path)])
    assert getattr(findings, figure) == 1
    assert not findings.sound


@pytest.mark.parametrize("in_doubt", [{}, {KEYS[4]: size_of(4)}, {KEYS[4]: size_of(4), KEYS[5]: size_of(5)}])
def test_a_listing_that_is_right_is_sound(tmp_path: Path, in_doubt: dict[str, int]) -> None:
    findings = Findings()
    judge_listing(findings, "om1", {KEYS[1]: size_of(1), **in_doubt}, [read(tmp_path)])
    assert findings.sound, findings.words


CALLER = b"client-%09d" % 0


def counted(log: LogBuilder, acknowledged: dict[int, int]) -> tuple[LogCount, Findings]:
    count, findings, reader = LogCount({CALLER: acknowledged}), Findings(), LogReader()
    for offset, value in enumerate(log.values):
        count.take(reader.judged(Entry(offset=offset, timestamp_ms=0, value=value)))
    count.tell(findings)
    return count, findings


def some_log() -> LogBuilder:
    log = LogBuilder().start()
    log.batch(log.put(KEY_TABLE, b"/v/b/one", b"1"), results=2)
    log.stale(0)
    log.batch(log.put(KEY_TABLE, b"/v/b/two", b"2"), log.delete(KEY_TABLE, b"/v/b/one"))
    return log


def test_a_log_that_holds_all_is_sound_and_sums_to_its_rows() -> None:
    log = some_log()
    count, findings = counted(log, {1: 1, 2: 1, 3: 3})
    assert findings.sound, findings.words
    assert {slot: total & MASK for slot, total in count.sums.items() if total & MASK} == digest(log.rows)


@pytest.mark.parametrize("acknowledged", [{1: 1, 9: 9}, {1: 2}], ids=["not in the log", "at another index"])
def test_an_acknowledged_call_that_the_log_lacks_is_lost(acknowledged: dict[int, int]) -> None:
    assert counted(some_log(), acknowledged)[1].lost == 1


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
    assert counted(log, {})[1].duplicated == 2
    log = some_log()
    log.batch(log.put(KEY_TABLE, b"/v/b/one", b"1"))
    assert counted(log, {})[1].duplicated == 1
