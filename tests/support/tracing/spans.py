"""Spans that are kept in memory, for the tests of what is traced."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class KeptSpans:
    """A tracer, and the spans that have ended."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("test")

    def ended(self) -> tuple[ReadableSpan, ...]:
        """Return them, in the order in which they ended."""
        return tuple(self._kept.get_finished_spans())

    def by_name(self) -> dict[str, ReadableSpan]:
        """Return them by name; a name occurs once."""
        spans = self.ended()
        found = {span.name: span for span in spans}
        assert len(found) == len(spans)
        return found
