"""A key that is written leaves a span of itself, which ends with it, however that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra 'tracing' is not installed")

from opentelemetry.trace import StatusCode

from producers.errors import NotFound, StratologError
from producers.requests.call_spans import TracedClient
from schemas.result_codes import BUCKET_NOT_FOUND
from tests.support.sdk.datanodes import KIB, World
from tests.support.tracing.spans import KeptSpans

Make = Callable[..., World]
LIMIT = 16 * KIB


@pytest.fixture
def kept() -> KeptSpans:
    return KeptSpans()


def traced(make: Make, kept: KeptSpans, **settings: Any) -> World:
    world = make(**settings)
    world.client.streams.spans = TracedClient(kept.tracer)
    return world


def outcomes(kept: KeptSpans) -> list[tuple[str, str, object]]:
    """Return name, status and error of each span that has ended."""
    return [
        (span.name, span.status.status_code.name, (span.attributes or {}).get("error.type")) for span in kept.ended()
    ]


def test_a_key_that_is_committed_ends_its_span_without_an_error(make: Make, kept: KeptSpans) -> None:
    world = traced(make, kept)
    world.put(b"data")
    assert ("write key", StatusCode.UNSET.name, None) in outcomes(kept)
    (span,) = [one for one in kept.ended() if one.name == "write key"]
    assert (span.attributes or {})["stratolog.key"] == "/v/b/k"
    (block,) = [one for one in kept.ended() if one.name == "write block"]
    assert (block.attributes or {})["stratolog.bytes"] == 4


def test_a_key_that_cannot_be_opened_ends_its_span_with_the_reason(make: Make, kept: KeptSpans) -> None:
    world = traced(make, kept)
    with pytest.raises(NotFound):
        world.client.open("/v/none/k", "wb")
    assert outcomes(kept) == [("write key", StatusCode.ERROR.name, BUCKET_NOT_FOUND)]


@pytest.mark.parametrize("inline_bytes", [0, LIMIT])
def test_a_key_that_is_given_up_ends_its_span(make: Make, kept: KeptSpans, inline_bytes: int) -> None:
    world = traced(make, kept, inline_bytes=inline_bytes)
    file = world.client.open("/v/b/k", "wb")
    file.write(b"data")
    assert not [one for one in kept.ended() if one.name == "write key"]
    file._writer.abort()
    assert [one.name for one in kept.ended()].count("write key") == 1


def test_a_small_key_that_is_refused_ends_its_span_with_the_reason(make: Make, kept: KeptSpans) -> None:
    world = traced(make, kept, inline_bytes=LIMIT)
    file = world.client.open("/v/none/k", "wb")
    file.write(b"data")
    with pytest.raises(NotFound):
        file.close()
    assert outcomes(kept) == [("write key", StatusCode.ERROR.name, BUCKET_NOT_FOUND)]


def test_a_key_whose_writing_fails_ends_its_span_with_the_reason(make: Make, kept: KeptSpans) -> None:
    world = traced(make, kept)
    file = world.client.open("/v/b/k", "wb")
    file.write(b"data")
    file._writer.interrupt("no longer wanted")
    with pytest.raises(StratologError, match="no longer wanted"):
        file.close()
    assert ("write key", StatusCode.ERROR.name, "WRITE_FAILED") in outcomes(kept)
