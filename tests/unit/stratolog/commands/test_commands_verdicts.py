"""What verdicts say together: what is latest, what counts as equal, and that what is missing never does."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from schemas.records.messages import Verdict
from spark_streaming import dashboard
from stratolog.cluster.checks import is_equal
from stratolog.commands import audit
from transport.topics.core.latest_verdicts import LatestVerdicts


def verdict(**given: Any) -> Verdict:
    values: dict[str, Any] = {
        "cluster": "c", "shard": 0, "node": "om1", "barrier_offset": 10, "index": 7, "verdict": "equal", "basis": "incremental",
        "differences": [], "differing_slots": 0, "evidence": None, "reason": "", "decided_at_ms": 1,
    }  # fmt: skip
    return Verdict(**{**values, **given})


def both(**given: Any) -> list[Verdict]:
    return [verdict(basis=basis, **given) for basis in ("incremental", "scrubbed")]


def latest_of(*found: Verdict) -> LatestVerdicts:
    latest = LatestVerdicts("om.log")
    latest.take(found)
    return latest


def test_nothing_is_not_equal() -> None:
    assert not is_equal(latest_of(), 0, "om1", 7)


def test_equal_needs_digest_and_full_scan() -> None:
    assert is_equal(latest_of(*both()), 0, "om1", 7)
    for one in both():
        assert not is_equal(latest_of(one), 0, "om1", 7)


def test_equal_is_said_of_one_replica_at_one_index() -> None:
    latest = latest_of(*both())
    assert not is_equal(latest, 0, "om2", 7)
    assert not is_equal(latest, 1, "om1", 7)
    assert not is_equal(latest, 0, "om1", 8)


def test_a_late_report_replaces_unknown() -> None:
    latest = latest_of(*both(verdict="unknown"))
    assert not is_equal(latest, 0, "om1", 7)
    latest.take(both())
    assert is_equal(latest, 0, "om1", 7)


def test_unknown_at_a_later_barrier_counts() -> None:
    latest = latest_of(*both(), verdict(barrier_offset=20, verdict="unknown"))
    assert not is_equal(latest, 0, "om1", 7)


def test_what_comes_late_about_an_earlier_barrier_does_not_count() -> None:
    latest = latest_of(*both(barrier_offset=20), verdict(barrier_offset=10, verdict="unknown"))
    assert is_equal(latest, 0, "om1", 7)


def test_diverged_once_is_never_forgotten() -> None:
    latest = latest_of(verdict(barrier_offset=5, index=3, verdict="diverged"), *both())
    assert not is_equal(latest, 0, "om1", 7)
    assert is_equal(latest_of(verdict(node="om2", verdict="diverged"), *both()), 0, "om1", 7)


def test_a_broken_log_is_everybodys() -> None:
    latest = latest_of(verdict(node="", basis="log", verdict="diverged"), *both())
    assert not is_equal(latest, 0, "om1", 7)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_live_table_breaks_no_word_on_a_narrow_terminal(width: int) -> None:
    long = verdict(
        index=123_456, barrier_offset=123_456, verdict="diverged", differing_slots=3, reason="[/] no report in time"
    )
    output = io.StringIO()
    Console(file=output, width=width).print(dashboard.table_of([long], 1_000, width))
    shown = output.getvalue()
    assert "diverged" in shown
    assert "123456" in shown
    assert "…" not in shown
    assert all(len(line) <= width for line in shown.splitlines())


def test_rows_that_contradict_each_other_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    finding = {"check": "usage", "shard": 0, "subject": "/v/b/#usedBytes", "said": "9", "found": "8"}
    result = {"ok": False, "shards": [], "pipelines": [], "semantics": {"findings": [finding], "left_out": ["why"]}}
    audit.print_result(result)
    said = capsys.readouterr().out
    assert "/v/b/#usedBytes" in said
    assert "not checked: why" in said
    assert said.endswith("NOT EQUAL\n")
    audit.print_result({**result, "ok": True, "semantics": {"findings": [], "left_out": []}})
    assert "no rows contradict each other" in capsys.readouterr().out
