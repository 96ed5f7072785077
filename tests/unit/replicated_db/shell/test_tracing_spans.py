"""Spans of traced requests: what a leader's loop and a follower leave of them, and what strangers cannot make them do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra 'tracing' is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, StatusCode

from replicated_db.core.leading.leader import Proposal, Reply
from replicated_db.shell.tracing import leader_spans
from replicated_db.shell.tracing.budget import MAX_HEADERS, TRACED_FOR_MS, SpanBudget
from replicated_db.shell.tracing.follower_spans import FollowerSpans
from replicated_db.shell.tracing.leader_spans import LeaderSpans
from schemas.trace_context import TRACEPARENT, TRACEPARENT_BYTES
from tests.support.replicated.following import Following
from tests.support.replicated.kit import propose, put
from tests.support.replicated.leader_story import Story
from tests.support.tracing.spans import KeptSpans

TRACE, CALLER = 0xA1, 0xB2
KEY = f"00-{TRACE:032x}-{CALLER:016x}-01".encode()
NOW_MS = 1_700_000_000_000


def own(span: ReadableSpan) -> SpanContext:
    found: SpanContext | None = span.context
    assert found is not None
    return found


def above(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


@pytest.fixture
def spans_kept() -> KeptSpans:
    return KeptSpans()


def begun(spans: LeaderSpans, count: int) -> list[Proposal]:
    proposals = [propose(put(b"k", b"v")) for _ in range(count)]
    for proposal in proposals:
        spans.begin(proposal, KEY)
    return proposals


def replies(proposals: Sequence[Proposal]) -> list[Reply]:
    return [Reply(proposal=proposal, response=b"") for proposal in proposals]


# -- a leader ----------------------------------------------------------------------------------------------------------


def test_a_loop_leaves_the_spans_of_a_traced_request_and_of_no_other(spans_kept: KeptSpans):
    story = Story()
    spans = story.loop._spans = LeaderSpans(spans_kept.tracer, 0)
    traced, other = propose(put(b"a", b"1")), propose(put(b"b", b"2"))
    headers: list[Any] = []

    def appended() -> Sequence[Proposal]:
        headers.extend(spans.headers())
        return []

    def taken() -> Sequence[Proposal]:
        spans.begin(traced, KEY)
        story.log.holds = True
        return [traced, other]

    story.lead(taken, appended)
    found = spans_kept.by_name()
    assert set(found) == {f"lead {traced.request_type}", "execute", "append"}
    assert {own(span).trace_id for span in found.values()} == {TRACE}
    lead = found[f"lead {traced.request_type}"]
    assert above(lead) == CALLER
    assert {above(found["execute"]), above(found["append"])} == {own(lead).span_id}
    assert headers == [(TRACEPARENT, f"00-{TRACE:032x}-{own(found['append']).span_id:016x}-01".encode())]
    (settled,) = story.settled
    assert (found["append"].attributes or {})["stratolog.log.offset"] == settled.offset
    assert len(spans) == 0


def test_what_is_answered_at_once_has_one_step(spans_kept: KeptSpans):
    spans = LeaderSpans(spans_kept.tracer, 3)
    proposals = begun(spans, 1)
    spans.answered(replies(proposals))
    lead = spans_kept.by_name()[f"lead {proposals[0].request_type}"]
    assert dict(lead.attributes or {}) == {"stratolog.request": proposals[0].request_type, "stratolog.shard": 3}
    assert spans.headers() == ()
    spans.answered(replies(proposals))
    assert len(spans_kept.by_name()) == 2, "an answer that comes twice ends nothing twice"


def test_a_claim_that_ends_ends_its_spans_with_an_error(spans_kept: KeptSpans):
    spans = LeaderSpans(spans_kept.tracer, 0)
    (proposal,) = begun(spans, 1)
    spans.taken(proposal)
    spans.drop("deposed")
    assert {span.status.status_code for span in spans_kept.by_name().values()} == {StatusCode.ERROR}
    assert (len(spans), spans.headers()) == (0, ())


@pytest.mark.parametrize(
    "key",
    [
        b"", b"x", bytes(32), bytes(TRACEPARENT_BYTES), b"\xff" * TRACEPARENT_BYTES, b"-" * TRACEPARENT_BYTES, KEY + b"0",
        b"00-" + b"0" * 32 + b"-" + b"1" * 16 + b"-01", b"00-" + b"1" * 32 + b"-" + b"0" * 16 + b"-01",
        b"ff" + KEY[2:], KEY.replace(b"a1", b"zz"), KEY.replace(b"a1", b"A1"), KEY.replace(b"a1", b"\r\n"),
    ],
)  # fmt: skip
def test_a_key_that_names_no_trace_leaves_no_spans(spans_kept: KeptSpans, key: bytes):
    spans = LeaderSpans(spans_kept.tracer, 0)
    spans.begin(propose(put(b"k", b"v")), key)
    assert len(spans) == 0
    FollowerSpans(spans_kept.tracer, now_ns=lambda: 0).applied(
        [(TRACEPARENT, key), ("x", KEY), (TRACEPARENT, None)], 0, 1, 0, 0
    )
    assert spans_kept.by_name() == {}


def test_a_caller_that_does_not_sample_leaves_no_spans(spans_kept: KeptSpans):
    spans = LeaderSpans(spans_kept.tracer, 0)
    spans.begin(propose(put(b"k", b"v")), KEY[:-2] + b"00")
    assert len(spans) == 0


def test_what_strangers_ask_for_is_bounded(spans_kept: KeptSpans, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leader_spans, "MAX_OPEN", 5)
    spans = LeaderSpans(spans_kept.tracer, 0)
    begun(spans, 9)
    assert len(spans) == 5, "at work"
    spans.drop("over")
    limited = LeaderSpans(spans_kept.tracer, 0, SpanBudget(3, now_s=lambda: 1.0))
    begun(limited, 9)
    assert len(limited) == 3, "in a second"
    monkeypatch.undo()
    wide = LeaderSpans(spans_kept.tracer, 0)
    for proposal in begun(wide, MAX_HEADERS + 5):
        wide.taken(proposal)
    assert len(wide.headers()) == MAX_HEADERS
    assert wide.headers() == (), "each record names its own"


def test_a_copy_of_a_request_at_work_has_no_spans_of_its_own(spans_kept: KeptSpans):
    spans = LeaderSpans(spans_kept.tracer, 0)
    (proposal,) = begun(spans, 1)
    spans.begin(proposal, KEY)
    assert len(spans) == 1


def test_a_second_has_room_again():
    now_s = 1.0
    budget = SpanBudget(1, now_s=lambda: now_s)
    assert [budget.allows(), budget.allows()] == [True, False]
    now_s = 2.0
    assert budget.allows()


# -- a follower --------------------------------------------------------------------------------------------------------


def taking(following: Following, offset: int, headers: Any) -> None:
    message = SimpleNamespace(
        partition=0, offset=offset, value=following.shard.log.entries[offset].value, headers=headers,
        timestamp=NOW_MS / 1000,
    )  # fmt: skip
    spans = following.follower.spans
    assert spans is not None
    asyncio.run(following.follower._take_traced(spans, message))


def test_a_follower_leaves_a_span_of_each_traced_request_of_a_record_that_it_applies(spans_kept: KeptSpans):
    following = Following()
    following.shard.do(put(b"a", b"1"))
    following.follower.spans = FollowerSpans(spans_kept.tracer, now_ns=lambda: NOW_MS * 1_000_000)
    end = len(following.shard.log.entries)
    for offset in range(following.replica.read_offset + 1, end):
        taking(following, offset, ((TRACEPARENT, KEY),) if offset == end - 1 else (("other", b"x"),))
    (span,) = spans_kept.by_name().values()
    assert (span.name, own(span).trace_id, above(span)) == ("apply", TRACE, CALLER)
    assert dict(span.attributes or {}) == {"stratolog.shard": 0, "stratolog.log.offset": end - 1}
    taking(following, end - 1, ((TRACEPARENT, KEY),))
    assert len(spans_kept.by_name()) == 1, "a record that comes again is not applied again"


def test_records_of_long_ago_and_too_many_requests_leave_no_spans(spans_kept: KeptSpans):
    spans = FollowerSpans(spans_kept.tracer, now_ns=lambda: NOW_MS * 1_000_000)
    spans.applied([(TRACEPARENT, KEY)], 0, 1, NOW_MS - TRACED_FOR_MS - 1, 0)
    assert spans_kept.by_name() == {}
    spans.applied([(TRACEPARENT, KEY)] * (MAX_HEADERS + 3), 0, 1, NOW_MS, 0)
    assert len(spans_kept.ended()) == MAX_HEADERS
