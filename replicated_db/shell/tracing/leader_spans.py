"""A leader's spans of the traced requests of one shard.

Below the caller's span, which the request's key names (``schemas.trace_context``):

- ``lead TYPE``: from the taking of the request to its answer.
- ``execute``: from there until its batch is handed to the log.
- ``append``: from there until the batch is effective and applied, and its answers are sent. Its context goes with the
  record of the log, so the followers' spans are below it.

A request that is answered at once (a repeated call, a refusal) has the first alone. One that is sent again while its
first copy is at work leaves no spans of its own, and neither do those beyond the bounds. Nothing waits for a span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from replicated_db.core.leading.leader import Proposal, Reply
from replicated_db.shell.tracing.budget import MAX_HEADERS, MAX_OPEN, SpanBudget
from schemas.trace_context import TRACEPARENT, traceparent_of

PROPAGATOR = TraceContextTextMapPropagator()

CallName = tuple[bytes, bytes]
"""A request's client and call id."""


@dataclass(slots=True, kw_only=True)
class _TracedCall:
    """A request at work: its spans, of which ``step`` is the one that has not ended."""

    lead: Span
    step: Span


class LeaderSpans:
    """Spans of the requests of one shard; for the shard's thread."""

    def __init__(self, tracer: Tracer, shard: int, budget: SpanBudget | None = None) -> None:
        self._tracer = tracer
        self._shard = shard
        self._budget = budget or SpanBudget()
        self._calls: dict[CallName, _TracedCall] = {}
        self._taken: list[_TracedCall] = []
        """Those in the batch that is being built."""

    def __len__(self) -> int:
        """Return the number of traced requests at work."""
        return len(self._calls)

    def begin(self, proposal: Proposal, key: bytes) -> None:
        """Take the request of a record with this key."""
        call = (proposal.client_id, proposal.call_id)
        traceparent = traceparent_of(key)
        if traceparent is None or call in self._calls or len(self._calls) >= MAX_OPEN:
            return
        above = PROPAGATOR.extract({TRACEPARENT: traceparent})
        # Without a parent it would be a trace of its own, and the caller asked for none.
        if not above or not self._budget.allows():
            return
        attributes: Mapping[str, str | int] = {
            "stratolog.request": proposal.request_type, "stratolog.shard": self._shard,
        }  # fmt: skip
        lead = self._tracer.start_span(
            f"lead {proposal.request_type}", above, kind=SpanKind.SERVER, attributes=attributes
        )
        if lead.is_recording():
            self._calls[call] = _TracedCall(
                lead=lead, step=self._tracer.start_span("execute", set_span_in_context(lead))
            )

    def taken(self, proposal: Proposal) -> None:
        """Note that a request is in the batch being built."""
        if self._calls and (call := self._calls.get((proposal.client_id, proposal.call_id))) is not None:
            self._taken.append(call)

    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Return the headers of the record that is appended now: the requests taken since the last one are in it."""
        if not self._taken:
            return ()
        taken, self._taken = self._taken, []
        found: list[tuple[str, bytes]] = []
        for call in taken:
            call.step.end()
            call.step = self._tracer.start_span("append", set_span_in_context(call.lead), kind=SpanKind.PRODUCER)
            if len(found) < MAX_HEADERS:
                carrier: dict[str, str] = {}
                PROPAGATOR.inject(carrier, set_span_in_context(call.step))
                found.append((TRACEPARENT, carrier[TRACEPARENT].encode()))
        return found

    def answered(self, replies: Sequence[Reply], offset: int | None = None) -> None:
        """End the spans of what has been answered; ``offset`` is that of its batch, None if it was answered at once."""
        if not self._calls:
            return
        for reply in replies:
            call = self._calls.pop((reply.proposal.client_id, reply.proposal.call_id), None)
            if call is None:
                continue
            if offset is not None:
                call.step.set_attribute("stratolog.log.offset", offset)
            call.step.end()
            call.lead.end()

    def drop(self, reason: str) -> None:
        """End all spans: the claim is over, and another leader answers."""
        for call in self._calls.values():
            for span in (call.step, call.lead):
                span.set_status(Status(StatusCode.ERROR, reason))
                span.end()
        self._calls.clear()
        self._taken.clear()
