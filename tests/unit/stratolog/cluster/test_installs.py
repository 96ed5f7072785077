"""Installs in words: those that are done, from a node's status; those that run, from its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratolog.cluster.installs import (
    MAX_SHOWN_CHARACTERS,
    install_words,
    installing,
    installs_in,
    installs_on_datanodes,
)
from stratolog.configuration.settings import Settings, default_datanodes
from stratolog.drills.core import install_findings
from stratolog.drills.core.install_findings import ScannedDigest

SAID: dict[str, Any] = {
    "peer": "om1", "leader": "om3", "term": 4, "index": 90, "offset": 77, "rounds": 2, "fetched_bytes": 3 * 1024,
    "saved_bytes": 5 * 1024 * 1024, "took_s": 1.25,
}  # fmt: skip
WORDS = "that of om1 at offset 77, in 2 rounds: 3.0 KiB fetched, 5.0 MiB saved by exclusion, 1.25 s"


def test_what_a_node_has_installed():
    assert install_words(SAID) == WORDS
    status = {"shards": [{"shard": 0, "installed": SAID}, {"shard": 1, "installed": None}, {"shard": 2}]}
    assert list(installs_in("om2", status)) == [f"om2, shard 0: installed a peer's checkpoint, {WORDS}"]
    assert list(installs_in("om2", None)) == []


def test_what_a_node_is_installing(tmp_path: Path):
    settings = replace(Settings(), data_dir=tmp_path)
    assert installing(settings, "om1") == []
    folder = settings.node_folder("om1")
    for shard, text in ((0, b"fetches: 1 of 2"), (1, b"x" * 5_000), (2, b"\xff\xfe")):
        (folder / f"shard-{shard}.candidate").mkdir(parents=True)
        (folder / f"shard-{shard}.candidate" / "progress.txt").write_bytes(text)
    assert installing(settings, "om1") == ["fetches: 1 of 2", "x" * MAX_SHOWN_CHARACTERS]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the nodes of default settings answer to GET /status, by address: a pair of status code and body."""
    answers: dict[str, Any] = {}

    def handle(request: httpx.Request) -> httpx.Response:
        address = request.url.netloc.decode()
        if address not in answers:
            raise httpx.ConnectError("nobody listens", request=request)
        code, body = answers[address]
        return httpx.Response(code, json=body)

    http = httpx.Client(transport=httpx.MockTransport(handle))
    monkeypatch.setattr("stratolog.nodes.answers.http_to", lambda _address: http)
    return answers


def test_a_node_that_is_not_ready_says_itself_what_it_installs(tmp_path: Path, said: dict[str, Any]):
    settings = replace(Settings(), data_dir=tmp_path)
    address = settings.node("om1").address
    said[address] = 503, {"error": "OPENING", "opening": ["shard 0: fetches", "x" * 5_000]}
    assert installing(settings, "om1") == ["shard 0: fetches", "x" * MAX_SHOWN_CHARACTERS]
    for answer in ((503, {"error": "OVERLOADED"}), (200, {"opening": ["no"]}), (503, ["no"]), (503, {"opening": 7})):
        said[address] = answer
        assert installing(settings, "om1") == []


def test_what_datanodes_install(said: dict[str, Any]):
    settings = replace(Settings(), datanodes=default_datanodes(3))
    one, other, _ = (f"{node.host}:{node.http_port}" for node in settings.datanodes)
    said[one] = 200, {"pipelines": [{"pipeline": "pipeline-3", "installed": SAID}, {"pipeline": "pipeline-4"}]}
    said[other] = 200, {"pipelines": [], "installing": [{"pipeline": "pipeline-3", "progress": "fetches: 1 of 2"}]}
    assert installs_on_datanodes(settings) == [
        f"dn1, pipeline-3: installed a checkpoint, {WORDS}", "dn2, pipeline-3: fetches: 1 of 2",
    ]  # fmt: skip


def test_findings():
    assert install_findings.installed("om2", SAID, WORDS, 77).holds
    assert not install_findings.installed("om2", SAID, WORDS, 78).holds
    none = install_findings.installed("om2", None, "", 0)
    assert (none.holds, none.seen) == (False, "it has installed none")
    assert install_findings.saved(SAID).holds
    assert not install_findings.saved(None).holds
    assert not install_findings.saved(SAID | {"saved_bytes": 0}).holds
    one = ScannedDigest(index=5, scanned="aa", incremental="aa")
    assert install_findings.scans_equal({"om1": one, "om2": one}).holds
    for other in (
        ScannedDigest(index=6, scanned="aa", incremental="aa"), ScannedDigest(index=5, scanned="bb", incremental="bb"),
        ScannedDigest(index=5, scanned="aa", incremental="bb"),
    ):  # fmt: skip
        assert not install_findings.scans_equal({"om1": one, "om2": other}).holds
    assert not install_findings.scans_equal({}).holds
