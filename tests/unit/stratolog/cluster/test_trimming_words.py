"""What an operator may write for --keep, and what the leader's page takes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from replicated_db.core.trimming.trim_rule import TrimWish
from replicated_db.shell.trimming.trim_pages import addresses_from, wish_from
from replicated_db.shell.web.shard_pages import BadQuery
from stratolog.cluster.trimming import LogLeader, PipelineLog, ShardLog, keep_from
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable


@pytest.mark.parametrize(
    ("text", "kept"),
    [("0", (0, 0)), ("500", (500, 0)), ("30s", (0, 30_000)), ("90m", (0, 5_400_000)), ("36h", (0, 129_600_000)),
     ("7d", (0, 604_800_000))],
)  # fmt: skip
def test_what_is_kept(text: str, kept: tuple[int, int]) -> None:
    assert keep_from(text) == kept


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5h", "7 d", "7w", "d", "1" * 16, "٣"])
def test_what_cannot_be_kept(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number of records, or an age"):
        keep_from(text)


def test_what_the_page_takes() -> None:
    query = {"keep_records": "5", "keep_ms": "6", "leave_behind": "om2,,om3", "without_audit": "true"}
    assert wish_from(query) == TrimWish(
        keep_records=5, keep_ms=6, leave_behind=frozenset({"om2", "om3"}), without_audit=True
    )
    assert wish_from({}) == TrimWish()
    assert addresses_from({"nodes": "om1=127.0.0.1:1,om2=[::1]:2"}) == {"om1": "127.0.0.1:1", "om2": "[::1]:2"}
    assert addresses_from({}) == {}


@pytest.mark.parametrize("query", [{"keep_ms": "-1"}, {"keep_records": "x"}, {"keep_ms": str(1 << 63)}])
def test_numbers_that_the_page_refuses(query: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        wish_from(query)


@pytest.mark.parametrize("nodes", ["om1", "om1=", "=127.0.0.1:1", "om1=host", "om1=host:x"])
def test_addresses_that_the_page_refuses(nodes: str) -> None:
    with pytest.raises(BadQuery, match="is not name=host:port"):
        addresses_from({"nodes": nodes})


# Pipelines, whose leaders their members name.


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What nodes and datanodes answer to a GET, by address and path; others do not listen."""
    answers: dict[str, Any] = {}

    def handle(request: httpx.Request) -> httpx.Response:
        target = f"{request.url.netloc.decode()}{request.url.path}"
        if target not in answers:
            raise httpx.ConnectError("nobody listens", request=request)
        return httpx.Response(200, json=answers[target])

    http = httpx.Client(transport=httpx.MockTransport(handle))
    monkeypatch.setattr("stratolog.nodes.answers.http_to", lambda _address: http)
    return answers


def test_the_leader_of_a_pipeline_is_the_member_that_says_so(said: dict[str, Any]) -> None:
    settings = Settings()
    assert settings.nodes
    with pytest.raises(Unavailable, match="no node answers"):
        PipelineLog(3).leader(settings)
    members = [{"datanode": f"dn{n}", "http_address": f"host:{n}" if n < 4 else ""} for n in range(1, 5)]
    said[f"{settings.nodes[-1].address}/v1/pipelines"] = {"pipelines": [{"partition": 3, "members": members}]}
    assert PipelineLog(3).leader(settings) is None
    assert PipelineLog(4).leader(settings) is None
    said["host:2/status"] = {"pipelines": [{"shard": 3, "role": "follower"}, {"shard": 4, "role": "leader"}]}
    assert PipelineLog(3).leader(settings) is None
    said["host:3/status"] = {"pipelines": [{"shard": 3, "role": "leader"}]}
    named = tuple((one["datanode"], one["http_address"]) for one in members)
    assert PipelineLog(3).leader(settings) == LogLeader(name="dn3", address="host:3", members=named)


def test_names_of_logs() -> None:
    assert (str(ShardLog(2)), str(PipelineLog(7))) == ("shard 2", "pipeline-7")
