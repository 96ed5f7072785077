"""The tracer of a process, made from the settings: spans go to a collector by OTLP over HTTP.

Without the setting ``trace_endpoint`` there is none, and nothing of OpenTelemetry is imported. With it, spans are sent
in batches by a thread of their own, which waits for nobody: if the collector does not answer, they are dropped. The
variables of OpenTelemetry (``OTEL_*``) set the queue, its batches and attributes of the process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stratolog.configuration.settings import Settings
from stratolog.extras import libraries_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

SEND_TIMEOUT_S = 2
"""How long a collector may take to answer, all attempts together."""

LIBRARY = "stratolog"


@contextmanager
def tracer_of(settings: Settings, service: str, instance: str | None = None) -> Iterator[Tracer | None]:
    """Give the tracer of this process, or None; at the end, the spans that wait are sent.

    ``service`` and ``instance`` name the process to the collector. Raises Unavailable if the extra ``tracing`` is not
    installed.
    """
    if settings.trace_endpoint is None:
        yield None
        return
    provider = _provider(settings, settings.trace_endpoint, service, instance)
    try:
        yield provider.get_tracer(LIBRARY)
    finally:
        provider.shutdown()


def _provider(settings: Settings, endpoint: str, service: str, instance: str | None) -> TracerProvider:
    with libraries_of("tracing"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    # Each attempt that fails would be a line; that a batch was given up is one.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    named = {"service.name": service, "service.instance.id": instance, "stratolog.cluster": settings.cluster}
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(1 / settings.trace_one_in)),
        resource=Resource.create({name: value for name, value in named.items() if value is not None}),
        # 'tracer_of' ends it, in any case.
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=SEND_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
