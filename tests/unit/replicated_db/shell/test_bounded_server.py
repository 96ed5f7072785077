"""How many descriptors a process asks for, and how many of them are for connections."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import faust
import pytest
from aiohttp.http_exceptions import BadHttpMessage

from replicated_db.shell.web import bounded_server, node_web
from replicated_db.shell.web.bounded_server import MAX_WEB_CONNECTIONS, NOTE_S, ServerLog, raise_descriptors


def test_what_is_no_http_is_told_by_its_number_alone(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    kept = ServerLog(lambda: now_s)
    for number in range(50):
        kept.exception(
            "Error handling request from %s", "somebody", exc_info=BadHttpMessage(f"Authorization: x{number}")
        )
    assert [one.getMessage() for one in caplog.records] == ["1 requests were no HTTP, or their callers had gone"]
    now_s += NOTE_S
    kept.exception("Error handling request from %s", "somebody", exc_info=BadHttpMessage("Authorization: x"))
    assert caplog.records[-1].getMessage() == "50 requests were no HTTP, or their callers had gone"
    assert "Authorization" not in caplog.text
    kept.exception("Error handling request from %s", "somebody", exc_info=ConnectionResetError("gone"))
    assert "gone" not in caplog.text.replace("callers had gone", "")
    kept.exception("Error handling request from %s", "somebody", exc_info=ValueError("a defect"))
    assert "ValueError: a defect" in caplog.text


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_takes_the_descriptors_that_it_may_have(limits: tuple[int, int]) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    assert raise_descriptors(1000) == 1000
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1000, hard)
    assert raise_descriptors(600) == 1000, "never fewer than before"


def test_half_of_the_descriptors_are_for_connections(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (900, hard))
    monkeypatch.setattr(bounded_server, "WANTED_DESCRIPTORS", 900)
    for most, expected in ((900, 450), (100_000, MAX_WEB_CONNECTIONS)):
        monkeypatch.setattr(node_web, "raise_descriptors", lambda most=most: most)
        web = node_web.NodeWeb(faust.App("test", autodiscover=False))
        assert web._runner.most == expected
