"""A client's spans: one for each call, with its outcome; none without a tracer or outside the sample."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra 'tracing' is not installed")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from producers.errors import ClientClosed, RequestFailed
from producers.requests.call_spans import NO_SPAN_OF_KEY, NO_SPANS, TracedClient, spans_of
from producers.requests.core.calls import Policy
from schemas.records.messages import CreateVolume, DeleteVolume
from schemas.result_codes import VOLUME_NOT_FOUND
from schemas.trace_context import traceparent_of
from tests.support.sdk.memory import MemoryCluster, pipeline_to
from tests.support.tracing.spans import KeptSpans
from transport.waiting.deadline import Deadline

PATIENCE_S = 60


class TracedCalls(KeptSpans):
    """A client's engine with a tracer, and the spans that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.pipeline, self.connection = pipeline_to(MemoryCluster(), Policy())
        self.pipeline.spans = TracedClient(self.tracer)

    def call(self, body: Any) -> Any:
        outcomes: SimpleQueue[Any] = SimpleQueue()
        self.pipeline.submit(body, outcomes.put)
        return outcomes.get(timeout=PATIENCE_S)


@pytest.fixture
def traced() -> Iterator[TracedCalls]:
    made = TracedCalls()
    yield made
    made.pipeline.close(Deadline.after_ms(0))


def test_a_call_is_a_span_below_the_callers(traced: TracedCalls):
    with traced.tracer.start_as_current_span("application") as mine:
        assert traced.call(CreateVolume(volume="v1")).status == "OK"
    span, application = traced.ended()
    assert (span.name, span.kind) == ("CreateVolume", SpanKind.CLIENT)
    assert span.parent == mine.get_span_context() == application.context
    assert (span.attributes or {})["stratolog.index"] == 1
    assert span.status.status_code is StatusCode.UNSET


def test_an_error_is_the_spans_and_the_callers(traced: TracedCalls):
    assert isinstance(traced.call(DeleteVolume(volume="v1")), RequestFailed)
    (span,) = traced.ended()
    assert (span.attributes or {})["error.type"] == VOLUME_NOT_FOUND
    assert span.status.status_code is StatusCode.ERROR


def test_a_call_that_is_not_sent_ends_its_span(traced: TracedCalls):
    traced.pipeline.close(Deadline.after_ms(0))
    with pytest.raises(ClientClosed):
        traced.pipeline.submit(CreateVolume(volume="v1"), lambda _: None)
    assert [span.status.status_code for span in traced.ended()] == [StatusCode.ERROR]


def test_the_key_of_a_record_names_the_calls_span(traced: TracedCalls):
    span = TracedClient(traced.tracer).call(CreateVolume(volume="v1"))
    assert span is not None
    text = traceparent_of(span.key)
    span.end(RequestFailed("WRONG", "x"))
    (ended,) = traced.ended()
    assert ended.context is not None
    assert text is not None
    assert text[:-2] == f"00-{ended.context.trace_id:032x}-{ended.context.span_id:016x}-"
    assert int(text[-2:], 16) & 1, "sampled"


def test_what_is_not_sampled_has_no_key_and_no_span():
    spans = spans_of(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test"))
    assert spans.call(CreateVolume(volume="v1")) is None
    assert spans.key("/v/b/k") is NO_SPAN_OF_KEY
    assert spans_of(None) is NO_SPANS


def test_a_key_has_a_span_with_its_blocks_below(traced: TracedCalls):
    key = TracedClient(traced.tracer).key("/v/b/k")
    done, failed, left = object(), object(), object()
    with key.current():
        traced.call(CreateVolume(volume="v1"))
    for block in (done, failed, left):
        key.block_began(block, "pipeline-1", "dn1,dn2,dn3")
    key.block_ended(done, 7)
    key.block_ended(done, 7)
    key.block_ended(failed, 0, OSError("broken"))
    key.ended(OSError("broken"))
    key.ended()
    names = [span.name for span in traced.ended()]
    assert names == ["CreateVolume", "write block", "write block", "write block", "write key"]
    *below, whole = traced.ended()
    assert [span.parent for span in below] == [whole.context] * 4
    assert [span.status.status_code for span in below] == [
        StatusCode.UNSET,
        StatusCode.UNSET,
        StatusCode.ERROR,
        StatusCode.ERROR,
    ]
    assert dict(below[1].attributes or {}) == {
        "stratolog.pipeline": "pipeline-1", "stratolog.datanodes": "dn1,dn2,dn3", "stratolog.bytes": 7,
    }  # fmt: skip


def test_without_a_tracer_nothing_of_opentelemetry_is_imported():
    words = "import sys, producers, om_processors.intake.intake, stratolog.cluster.connection, stratolog.configuration.tracing; "
    words += "sys.exit(any(name.partition('.')[0] == 'opentelemetry' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", words], check=False, timeout=120).returncode == 0
