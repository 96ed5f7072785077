"""Where the time of one request goes: spans put end to end (``benchmarks.user.steps``)."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.user.steps import (
    ANSWER,
    APPEND,
    BEFORE,
    BLOCK,
    EXECUTE,
    REST,
    TO_LEADER,
    by_trace,
    followers_of,
    mean_ms,
    steps_of,
    summary,
)
from tests.support.tracing.collector import Collected

NUMBERS = itertools.count(1)


def span(name: str, begin_ms: float, end_ms: float, above: Collected | None = None, trace: str = "t") -> Collected:
    return Collected(
        trace=trace, span=str(next(NUMBERS)), above="" if above is None else above.span, name=name, service="", instance="",
        begin_ns=round(begin_ms * 1e6), end_ns=round(end_ms * 1e6), attributes={}, failed=False,
    )  # fmt: skip


def call(name: str, at_ms: float, above: Collected | None = None, trace: str = "t") -> list[Collected]:
    """Return the spans of one request that takes 10 ms: 1 to the leader, 2 there, 4 to be appended, 3 back."""
    top = span(name, at_ms, at_ms + 10, above, trace)
    lead = span(f"lead {name}", at_ms + 1, at_ms + 8, top, trace)
    append = span("append", at_ms + 3, at_ms + 7, lead, trace)
    execute = span("execute", at_ms + 1.5, at_ms + 3, lead, trace)
    applied = [span("apply", at_ms + 12, at_ms + after, append, trace) for after in (13, 23)]
    return [*applied, append, execute, lead, top]


def test_the_steps_of_a_lone_request_add_up_to_it() -> None:
    assert steps_of(call("CreateKey", 5)) == {
        BEFORE: 0, BLOCK: 0, TO_LEADER: 1, EXECUTE: 2, APPEND: 4, ANSWER: 3, REST: 0
    }  # fmt: skip


def test_the_steps_of_a_file_are_those_of_its_requests_and_blocks_and_what_lies_between() -> None:
    top = span("write key", 0, 60)
    spans = [top, *call("CreateKey", 2, top), span("write block", 15, 40, top), *call("CommitKey", 41, top)]
    found = steps_of(spans)
    assert found == {BEFORE: 2 + 3 + 1, BLOCK: 25, TO_LEADER: 2, EXECUTE: 4, APPEND: 8, ANSWER: 6, REST: 9}
    assert sum(found.values()) == 60


def test_what_overlaps_is_counted_once() -> None:
    top = span("write key", 0, 30)
    found = steps_of(
        [top, span("write block", 0, 12, top), span("write block", 4, 14, top), *call("CommitKey", 20, top)]
    )
    assert found is not None
    assert found[BLOCK] == 14
    assert sum(found.values()) == 30


def test_a_request_that_begins_while_a_block_is_written_adds_what_it_takes_longer() -> None:
    top = span("write key", 0, 30)
    found = steps_of([top, span("write block", 0, 25, top), *call("CommitKey", 20, top)])
    assert found == {BEFORE: 0, BLOCK: 25, TO_LEADER: 0, EXECUTE: 0, APPEND: 2, ANSWER: 3, REST: 0}


@pytest.mark.parametrize("missing", ["lead CreateKey", "execute", "append"])
def test_a_call_without_one_of_its_spans_has_no_steps(missing: str) -> None:
    assert steps_of([one for one in call("CreateKey", 0) if one.name != missing]) is None


def test_followers_count_from_the_beginning_of_the_append() -> None:
    assert followers_of(call("CreateKey", 5)) == [10, 20]


def test_the_summary_has_medians_of_the_calls_whose_spans_have_come() -> None:
    spans = [one for number in range(3) for one in call("PutKey", 100 * number, trace=str(number))]
    spans = [one for one in spans if not (one.trace == "2" and one.name == "append")]
    spans += call("ReserveBlocks", 0, trace="of another call")
    found = summary(by_trace(spans, "PutKey"))
    assert (found["calls"], found["elapsed_ms"], found["followers_ms"]) == (2, 10, 15)
    assert found["steps_ms"] == {BEFORE: 0, BLOCK: 0, TO_LEADER: 1, EXECUTE: 2, APPEND: 4, ANSWER: 3, REST: 0}
    with pytest.raises(RuntimeError, match="no call's spans have come"):
        summary(by_trace(spans, "CommitKey"))


def test_each_step_of_an_exchange_is_a_mean_over_those_that_had_it() -> None:
    before = {"store": (1.0, 10.0), "commit": (2.0, 4.0), "watch": (0.0, 0.0)}
    after = {"store": (1.01, 15.0), "commit": (2.002, 5.0), "watch": (0.0, 0.0)}
    assert mean_ms(before, after) == {"store": 2.0, "commit": 2.0}
    assert mean_ms(before, before) == {}
