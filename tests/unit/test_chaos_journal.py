"""The chaos runner's journal and its arithmetic: what a killed client leaves, and what replicas must list."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.journal import COMMIT, CREATE, DELETE, Journal, Tail, Writing, key_of, size_of
from tests.chaos.judge import Findings, longest_gap_ms

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
