"""The chaos runner's journal and its judge: what a killed client leaves, what replicas must list, and that each kind of loss is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from om_processors.namespace.tables import inline_key, key_key
from replicated_db.core.ports import Entry
from schemas.codecs.codec import decode_as, encode
from schemas.column_families import INLINE_TABLE, KEY_TABLE
from schemas.records.log import Batch
from schemas.records.rows import KeyInfo
from tests.chaos.journal import (
    ABSENT,
    CHAINS,
    COMMIT,
    CREATE,
    DELETE,
    PUT,
    REPLACE,
    Journal,
    Tail,
    Writing,
    chain_of,
    data_of,
    key_of,
    size_of,
)
from tests.chaos.judge import Findings, LogCount, judge_data, judge_listing, longest_gap_ms
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
    assert dict(journal.expected()) == {
        1: {COMMIT}, 2: {ABSENT}, 3: {ABSENT}, 4: {ABSENT, COMMIT}, 5: {ABSENT, COMMIT},
    }  # fmt: skip
    assert [number for number in journal.keys if journal.was_deleted(number)] == [2]
    assert [journal.effects(number) for number in range(1, 6)] == [(1, 0), (1, 1), (0, 0), (1, 0), (1, 0)]
    assert journal.unknown == 2
    assert journal.calls == {10: 100, 20: 200, 30: 300, 40: 400, 50: 500, 11: 101, 21: 201, 22: 202}
    assert len(journal.refusals) == 1


def test_an_unanswered_deletion_leaves_the_key_in_doubt(tmp_path: Path) -> None:
    lines = write(tmp_path / "j")
    lines.tried(1, DELETE)
    journal = Journal.read(tmp_path / "j")
    assert journal is not None
    assert dict(journal.expected())[1] == {COMMIT, ABSENT}


def test_what_replaces_a_key_decides_its_size_and_bytes(tmp_path: Path) -> None:
    lines = Writing(tmp_path / "j", CLIENT, "volume", "bucket")
    for number in range(1, 4):
        for step in (PUT, REPLACE):
            lines.tried(number, step)
            if (number, step) != (3, REPLACE):
                lines.acknowledged(number, step, number, number)
    lines.tried(2, DELETE)
    journal = Journal.read(tmp_path / "j")
    assert journal is not None
    assert dict(journal.expected()) == {1: {REPLACE}, 2: {REPLACE, ABSENT}, 3: {PUT, REPLACE}}
    assert [journal.effects(number) for number in (1, 2, 3)] == [(2, 0), (2, 1), (2, 0)]


def test_each_step_gives_a_key_another_size_and_other_bytes() -> None:
    assert {chain_of(number) for number in range(8)} == set(CHAINS)
    sizes = set()
    for number in range(64):
        steps = [step for step in (PUT, REPLACE, COMMIT) if step in chain_of(number)]
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
    journal = Journal.read(tmp_path / "j")
    assert journal is not None
    assert 6 not in journal.keys
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


def put(tmp_path: Path) -> Journal:
    """Key 1 was put and replaced, key 2 put and not answered for the replacement; key 3 has blocks."""
    lines = Writing(tmp_path / "puts", CLIENT, "v", "b")
    for number, step in ((1, PUT), (1, REPLACE), (2, PUT), (3, CREATE), (3, COMMIT)):
        lines.tried(number, step)
        lines.acknowledged(number, step, number, number)
    lines.tried(2, REPLACE)
    journal = Journal.read(tmp_path / "puts")
    assert journal is not None
    return journal


RIGHT = {KEYS[1]: data_of(CLIENT, 1, REPLACE), KEYS[2]: data_of(CLIENT, 2, PUT), KEYS[3]: None}


def test_bytes_that_are_right_are_sound_and_counted(tmp_path: Path) -> None:
    for found in (RIGHT, RIGHT | {KEYS[2]: data_of(CLIENT, 2, REPLACE)}):
        findings = Findings()
        assert judge_data(findings, "om1", found, [put(tmp_path / str(len(found[KEYS[2]] or b"")))]) == 2
        assert findings.sound, findings.words


@pytest.mark.parametrize(
    "wrong",
    [{KEYS[1]: data_of(CLIENT, 1, PUT)}, {KEYS[2]: None}, {KEYS[3]: data_of(CLIENT, 3, PUT)}, {KEYS[1]: b""}],
    ids=["of the version before", "none", "beside blocks", "empty"],
)
def test_bytes_that_are_wrong_are_found(tmp_path: Path, wrong: dict[str, bytes | None]) -> None:
    findings = Findings()
    judge_data(findings, "om1", RIGHT | wrong, [put(tmp_path)])
    assert findings.lost == 1


@pytest.mark.parametrize("step", ["right", "others", "left over", "missing"])
def test_the_log_is_asked_for_the_bytes_of_inline_keys(tmp_path: Path, step: str) -> None:
    journal, log, findings, reader = put(tmp_path), LogBuilder().start(), Findings(), LogReader()
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
    count = LogCount({})
    for offset, value in enumerate(log.values):
        count.take(reader.judged(Entry(offset=offset, timestamp_ms=0, value=value)))
    count.judge_bytes(findings, "the log", [journal])
    assert (findings.lost, findings.unexpected) == {
        "right": (0, 0), "others": (1, 0), "left over": (0, 1), "missing": (1, 0),
    }[step]  # fmt: skip


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


def test_a_key_may_be_written_as_often_as_was_asked() -> None:
    log = some_log()
    log.batch(log.put(KEY_TABLE, b"/v/b/one", b"1"))
    for asked, found in (((2, 1), 0), ((1, 1), 1), ((2, 0), 1)):
        count, findings, reader = LogCount({}, {b"/v/b/one": asked}), Findings(), LogReader()
        for offset, value in enumerate(log.values):
            count.take(reader.judged(Entry(offset=offset, timestamp_ms=0, value=value)))
        count.tell(findings)
        assert findings.duplicated == found
