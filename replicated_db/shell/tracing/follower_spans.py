"""A follower's spans of traced requests: ``apply``, once for each that a record of the log names.

A replica that catches up reads old records, whose callers are gone: records older than TRACED_FOR_MS leave no spans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from opentelemetry.trace import SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from replicated_db.shell.tracing.budget import MAX_HEADERS, TRACED_FOR_MS, SpanBudget
from schemas.trace_context import TRACEPARENT, traceparent_of

PROPAGATOR = TraceContextTextMapPropagator()

Header = tuple[str, bytes | None]


class FollowerSpans:
    """Spans of the records that one process applies; for one thread."""

    def __init__(
        self, tracer: Tracer, budget: SpanBudget | None = None, *, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._tracer = tracer
        self.now_ns = now_ns
        self._budget = budget or SpanBudget()

    def applied(self, headers: Iterable[Header], shard: int, offset: int, timestamp_ms: int, begun_ns: int) -> None:
        """Say that a record with these headers, of this age, has been applied, from ``begun_ns`` until now."""
        if self.now_ns() // 1_000_000 - timestamp_ms > TRACED_FOR_MS:
            return
        values = [value for name, value in headers if name == TRACEPARENT]
        attributes = {"stratolog.shard": shard, "stratolog.log.offset": offset}
        for value in values[:MAX_HEADERS]:
            traceparent = traceparent_of(value)
            above = None if traceparent is None else PROPAGATOR.extract({TRACEPARENT: traceparent})
            if above and self._budget.allows():
                self._tracer.start_span(
                    "apply", above, kind=SpanKind.CONSUMER, attributes=attributes, start_time=begun_ns
                ).end()
