"""The judge of ``tests.chaos.hostile``: which victims it calls too slow."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.hostile_judging import HEADER, Seen, faults, figures, rows


def seen(put: Sequence[float], look_up: Sequence[float] = (1.0,), connected: Sequence[float] = ()) -> dict[str, Seen]:
    return {"v": Seen(times_ms={"put": list(put), "look_up": list(look_up)}, connected_ms=list(connected))}


def test_a_victim_is_too_slow_beyond_the_factor_of_its_own_quiet_time():
    assert list(faults(seen([2.0]), seen([6.0]), 3.0)) == []
    assert list(faults(seen([2.0]), seen([6.1]), 3.0)) == ["v: p50 of put is 6.10 ms, more than 3 times 2.00 ms"]
    assert list(faults(seen([2.0], [1.0]), seen([2.0], [9.0]), 3.0)) == [
        "v: p50 of look_up is 9.00 ms, more than 3 times 1.00 ms"
    ]


def test_a_few_slow_requests_are_no_fault():
    assert list(faults(seen([2.0] * 99), seen([2.0] * 90 + [900.0] * 9), 3.0)) == []


def test_a_victim_that_gets_no_answer_at_all_is_a_fault():
    assert list(faults(seen([2.0]), seen([]), 3.0)) == ["v: no put was answered beside it"]
    assert list(faults(seen([], []), seen([1.0]), 3.0)) == [
        "v: no put was answered before it", "v: no look_up was answered before it",
    ]  # fmt: skip


def test_figures_and_rows():
    assert figures([]) == {"requests": 0}
    assert figures([1.0, 2.0, 3.0]) == {"requests": 3, "p50_ms": 2.0, "p99_ms": 3.0, "most_ms": 3.0}
    assert seen([], [], [12.3])["v"].figures()["connected_ms"] == [12]
    (row,) = rows("flood", seen([1.0]), seen([], [2.0], [1500.0]))
    assert row == "| flood | v | 1.0, 1 ms | none | 1.0, 1 ms | 2.0, 2 ms | 0.0, 1.5 s |"
    assert row.count("|") == HEADER.splitlines()[1].count("|")
    (row,) = rows("flood", seen([1.0]), seen([1.0]))
    assert row.endswith("| before |")
