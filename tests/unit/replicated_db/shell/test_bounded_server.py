"""How many descriptors a process asks for, and how many of them are for connections."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import faust
import pytest

from replicated_db.shell.web import bounded_server, node_web
from replicated_db.shell.web.bounded_server import MAX_WEB_CONNECTIONS, raise_descriptors


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
