"""The tracer that the settings make: where its spans go, which are kept, and what is said without the extra."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra 'tracing' is not installed")

from opentelemetry.sdk.trace import Tracer

from stratolog.configuration.settings import Settings
from stratolog.configuration.tracing import tracer_of
from stratolog.errors import Unavailable
from tests.support.tracing.collector import Collector


def test_without_an_endpoint_there_is_no_tracer() -> None:
    with tracer_of(Settings(), "stratolog-om", "om1") as tracer:
        assert tracer is None


def test_spans_are_at_the_collector_when_the_process_ends() -> None:
    with Collector() as collector:
        settings = replace(Settings(), trace_endpoint=f"{collector.endpoint}", cluster="mine")
        with tracer_of(settings, "stratolog-om", "om1") as tracer:
            assert tracer is not None
            with tracer.start_as_current_span("above", attributes={"stratolog.shard": 3}):
                tracer.start_span("below").end()
        below, above = sorted(collector.spans, key=lambda span: span.name, reverse=True)
    assert (above.name, above.service, above.instance, above.above) == ("above", "stratolog-om", "om1", "")
    assert above.attributes == {"stratolog.shard": 3}
    assert (below.name, below.above, below.trace) == ("below", above.span, above.trace)


@pytest.mark.parametrize(("one_in", "kept"), [(1, "1.0"), (4, "0.25")])
def test_one_trace_in_so_many_is_kept_and_its_callers_choice_is_followed(one_in: int, kept: str) -> None:
    settings = replace(Settings(), trace_endpoint="http://127.0.0.1:1", trace_one_in=one_in)
    with tracer_of(settings, "stratolog-command") as tracer:
        assert isinstance(tracer, Tracer)
        assert tracer.sampler.get_description().startswith(f"ParentBased{{root:TraceIdRatioBased{{{kept}}}")


def test_a_collector_that_is_gone_or_refuses_is_no_error_of_ours() -> None:
    with Collector() as collector:
        collector.status = 503
        for endpoint in ("http://127.0.0.1:1", collector.endpoint):
            with tracer_of(replace(Settings(), trace_endpoint=endpoint), "stratolog-command") as tracer:
                assert tracer is not None
                tracer.start_span("lost").end()
        assert collector.posts >= 1
        assert collector.spans == []


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    settings = replace(Settings(), trace_endpoint="http://127.0.0.1:1")
    with pytest.raises(Unavailable, match="with the extra 'tracing'"), tracer_of(settings, "stratolog-om", "om1"):
        pass
