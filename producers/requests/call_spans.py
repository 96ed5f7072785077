"""A client's spans, in OpenTelemetry's sense: one for each call, one for each key that is written and its blocks.

A client without a tracer has NO_SPANS, and imports nothing of OpenTelemetry. With one, a call's span begins when the
request is submitted, below the span that is current in the submitting thread, and ends with the call's outcome. If its
trace is sampled, the request goes in a record of its own that names the span (``schemas.trace_context``), so that the
leader's spans are below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from producers.errors import StratologError
from producers.requests.core.calls import Done, Outcome
from schemas.records.messages import RequestBody
from schemas.trace_context import TRACEPARENT

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class SpanOfKey(Protocol):
    """The span of a key that is being written, and those of its blocks."""

    def current(self) -> AbstractContextManager[object]:
        """Make it the current span of this thread: calls that are submitted within it are below it."""

    def block_began(self, block: object, pipeline: str, datanodes: str) -> None:
        """Begin the span of a block, told from others by its identity."""

    def block_ended(self, block: object, length: int, error: BaseException | None = None) -> None:
        """End it; ``length`` bytes of it are held by the datanodes."""

    def ended(self, error: BaseException | None = None) -> None:
        """End the key's span and those of its blocks. Ending it again does nothing."""


class SpanOfCall(Protocol):
    """The span of a call that is being submitted."""

    key: bytes
    """Key of the request's record."""

    def before(self, done: Done) -> Done:
        """Return what ends the span with the outcome, and then calls ``done``."""

    def end(self, outcome: Outcome) -> None:
        """End the span."""


class SpansOfClient(Protocol):
    """What makes a client's spans."""

    def call(self, body: RequestBody) -> SpanOfCall | None:
        """Begin a call's span; None if it is not sampled."""

    def key(self, path: str) -> SpanOfKey:
        """Begin the span of a key that is written."""


class NoSpanOfKey:
    """The span of a key of a client without a tracer."""

    def current(self) -> AbstractContextManager[object]:
        """Change nothing."""
        return nullcontext()

    def block_began(self, block: object, pipeline: str, datanodes: str) -> None:
        """Do nothing."""

    def block_ended(self, block: object, length: int, error: BaseException | None = None) -> None:
        """Do nothing."""

    def ended(self, error: BaseException | None = None) -> None:
        """Do nothing."""


class NoSpans:
    """The spans of a client without a tracer: there are none."""

    def call(self, body: RequestBody) -> SpanOfCall | None:  # noqa: ARG002 - as the others have it
        """Return None."""
        return None

    def key(self, path: str) -> SpanOfKey:  # noqa: ARG002 - as the others have it
        """Return a span that is none."""
        return NO_SPAN_OF_KEY


NO_SPAN_OF_KEY: SpanOfKey = NoSpanOfKey()
NO_SPANS: SpansOfClient = NoSpans()


def spans_of(tracer: Tracer | None) -> SpansOfClient:
    """Return the spans of a client with this tracer."""
    return NO_SPANS if tracer is None else TracedClient(tracer)


class TracedClient:
    """The spans of a client with a tracer. For any thread."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._trace = trace
        self._inject: Callable[..., None] = TraceContextTextMapPropagator().inject

    def call(self, body: RequestBody) -> SpanOfCall | None:
        """Begin a call's span; None if it is not sampled."""
        request = type(body).__name__
        span = self._tracer.start_span(
            request, kind=self._trace.SpanKind.CLIENT, attributes={"stratolog.request": request}
        )
        if not span.is_recording():
            return None
        carrier: dict[str, str] = {}
        self._inject(carrier, self._trace.set_span_in_context(span))
        return TracedRequest(self, span, carrier[TRACEPARENT].encode())

    def fail(self, span: Span, error: BaseException) -> None:
        """Note in a span what went wrong."""
        span.set_attribute("error.type", error.status if isinstance(error, StratologError) else type(error).__name__)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))

    def key(self, path: str) -> SpanOfKey:
        """Begin the span of a key that is written."""
        span = self._tracer.start_span("write key", attributes={"stratolog.key": path})
        return TracedKey(self, span) if span.is_recording() else NO_SPAN_OF_KEY

    def below(self, above: Span, name: str, attributes: dict[str, str]) -> Span:
        """Begin a span below another one."""
        return self._tracer.start_span(name, self._trace.set_span_in_context(above), attributes=attributes)

    def use(self, span: Span) -> AbstractContextManager[object]:
        """Make a span this thread's current one."""
        return self._trace.use_span(span, record_exception=False, set_status_on_exception=False)


class TracedRequest:
    """The span of a call. It is begun on one thread and ended on another."""

    def __init__(self, client: TracedClient, span: Span, key: bytes) -> None:
        self.key = key
        self._client = client
        self._span = span

    def before(self, done: Done) -> Done:
        """Return what ends the span with the outcome, and then calls ``done``."""

        def ended(outcome: Outcome) -> None:
            self.end(outcome)
            done(outcome)

        return ended

    def end(self, outcome: Outcome) -> None:
        """End the span."""
        if isinstance(outcome, StratologError):
            self._client.fail(self._span, outcome)
        else:
            self._span.set_attribute("stratolog.shard", outcome.shard)
            self._span.set_attribute("stratolog.index", outcome.index)
        self._span.end()


class TracedKey:
    """The span of a key, and those of its blocks. For one thread."""

    def __init__(self, client: TracedClient, span: Span) -> None:
        self._client = client
        self._span = span
        self._blocks: dict[int, Span] = {}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the current span of this thread."""
        with self._client.use(self._span):
            yield

    def block_began(self, block: object, pipeline: str, datanodes: str) -> None:
        """Begin the span of a block: its bytes to the datanodes, their commit and its watch."""
        attributes = {"stratolog.pipeline": pipeline, "stratolog.datanodes": datanodes}
        self._blocks[id(block)] = self._client.below(self._span, "write block", attributes)

    def block_ended(self, block: object, length: int, error: BaseException | None = None) -> None:
        """End it."""
        span = self._blocks.pop(id(block), None)
        if span is None:
            return
        span.set_attribute("stratolog.bytes", length)
        if error is not None:
            self._client.fail(span, error)
        span.end()

    def ended(self, error: BaseException | None = None) -> None:
        """End the key's span and those of its blocks."""
        for span in [*self._blocks.values(), self._span]:
            if not span.is_recording():
                continue
            if error is not None:
                self._client.fail(span, error)
            span.end()
        self._blocks.clear()
