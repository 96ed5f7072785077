"""The sentence on top of the dashboard: which of its rules applies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_streaming.records.core.freshness import ReportedPartition
from stratolog.ui.core.board import board_of
from stratolog.ui.core.sentence import MAX_REASON_CHARACTERS, sentence_of
from stratolog.ui.core.words import Tone
from stratolog.ui.rendering.panels import panels_of
from tests.support.ui.observations import NODES, NOW_MS, WELL, all_equal, seen, status, verdict


def test_all_equal_is_green_and_says_index_age_and_scan() -> None:
    found = sentence_of(WELL)
    assert found.tone is Tone.GOOD
    assert found.text == "6 replicas equal at index 1,234 · 1,234, 4 s ago, last full scan 4 s ago"


def test_the_oldest_scan_counts() -> None:
    old = [verdict("om2", 1, basis="scrubbed", decided_at_ms=NOW_MS - 50_000)]
    kept = [one for one in all_equal() if (one.node, one.shard, one.basis) != ("om2", 1, "scrubbed")]
    assert sentence_of(seen(verdicts=kept + old)).text.endswith("last full scan 50 s ago")


def test_one_shard_has_one_index() -> None:
    verdicts = [verdict(node) for node in NODES]
    found = sentence_of(seen(shards=1, verdicts=verdicts, nodes={}))
    assert found.text == "3 replicas equal at index 1,234, 4 s ago, no full scan yet"


def test_a_divergence_is_red_and_named_whatever_else_holds() -> None:
    worse = verdict("om3", 1, "diverged", barrier_offset=120, index=1_300)
    kept = [one for one in all_equal() if (one.node, one.shard, one.basis) != ("om3", 1, "incremental")]
    found = sentence_of(seen(verdicts=[*kept, worse], stopped=["audit"]))
    assert found.tone is Tone.BAD
    assert found.text == "1 of 6 replicas DIVERGED: om3 of shard 1"
    assert found.more == "at index 1,300, by incremental, said 4 s ago: its cell in the grid names what differs"
    named = replace(worse, reason="keyTable, bucket 17: /v/b/k is missing")
    assert sentence_of(seen(verdicts=[*kept, named])).more.endswith("4 s ago: keyTable, bucket 17: /v/b/k is missing")
    long = board_of(seen(verdicts=[*kept, replace(worse, reason="x" * 100_000)], trouble=["y" * 100_000]))
    assert 2 * MAX_REASON_CHARACTERS < len(panels_of(long)["sentence"]) < 2 * MAX_REASON_CHARACTERS + 300


def test_a_full_scan_behind_a_divergence_ends_it() -> None:
    old = verdict("om3", 1, "diverged", "evidence", barrier_offset=90)
    assert sentence_of(seen(verdicts=[*all_equal(), old])).tone is Tone.GOOD
    young = verdict("om3", 1, "diverged", "evidence", barrier_offset=101)
    assert sentence_of(seen(verdicts=[*all_equal(), young])).tone is Tone.BAD


def test_a_dead_audit_is_grey_at_once_if_its_process_is_known() -> None:
    found = sentence_of(seen(stopped=["audit"]))
    assert found.tone is Tone.STALE
    assert found.text.startswith("The audit has ended; it last said: 6 replicas equal at index")


def test_a_silent_audit_is_grey_while_replicas_report() -> None:
    verdicts = all_equal(decided_at_ms=NOW_MS - 100_000)
    found = sentence_of(seen(verdicts=verdicts))
    assert found.tone is Tone.STALE
    assert found.text.startswith("The audit is silent; 6 replicas were equal at")
    assert found.more == "2 partitions with reports of 95 s without a verdict: does the audit run?"


def test_without_a_broker_nothing_holds_any_more() -> None:
    board = board_of(seen(is_cut_off=True, stopped=["broker-1"]))
    assert board.sentence.tone is Tone.STALE
    assert board.sentence.text.startswith("No broker answers; the audit last said: 6 replicas equal at index")
    assert board.sentence.more == "not running: broker-1"
    assert {cell.tone for _, _, cells in board.grids[0].rows for cell in cells if cell} == {Tone.STALE}
    assert {lag.tone for lag in board.audit_lags} == {Tone.STALE}
    assert sentence_of(seen(is_cut_off=True, verdicts=[])).text == "No broker answers, and nothing is judged"


def test_a_quiet_cluster_stays_green() -> None:
    """Nobody has reported since: the last verdicts are still true."""
    verdicts = all_equal(decided_at_ms=NOW_MS - 600_000)
    reported = {ReportedPartition("om.log", shard): NOW_MS - 601_000 for shard in (0, 1)}
    assert sentence_of(seen(verdicts=verdicts, reported_ms=reported)).tone is Tone.GOOD


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reported_ms": {}}, "no reports and no verdicts so far"),
        ({}, "replicas report, and there is no verdict: does the audit run?"),
        ({"stopped": ["audit"]}, "'stratolog up' starts it again"),
    ],
)
def test_without_verdicts_it_is_grey(given: dict[str, object], words: str) -> None:
    found = sentence_of(seen(verdicts=[], **given))
    assert (found.tone, found.more) == (Tone.STALE, words)


def test_an_unknown_replica_and_a_silent_node_are_yellow() -> None:
    doubt = verdict("om2", 1, "unknown", reason="no report in time")
    kept = [one for one in all_equal() if (one.node, one.shard, one.basis) != ("om2", 1, "incremental")]
    nodes = {"om1": None, "om2": status("om2"), "om3": status("om3")}
    found = sentence_of(seen(verdicts=[*kept, doubt], nodes=nodes))
    assert found.tone is Tone.WARN
    assert found.text.startswith("5 of 6 replicas equal at")
    assert found.more == "om2 of shard 1 is unknown: no report in time; om1 does not answer"
