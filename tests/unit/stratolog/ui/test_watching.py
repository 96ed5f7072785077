"""What the dashboard asks of nodes and reads of topics: counts, sizes page by page, a log that is read anew."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE
from schemas.settings.values import NodeAddress
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable
from stratolog.ui.core.words import Tone
from stratolog.ui.watching import polls as asking
from stratolog.ui.watching import questions
from stratolog.ui.watching.polls import Polls
from stratolog.ui.watching.watch import ClusterWatch
from tests.support.logs.logbuilder import LogBuilder

Answer = Callable[[str, dict[str, str]], dict[str, Any] | None]


class Node:
    """An HTTP server that answers as a node does; ``answer`` returns None for a 404."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = dict(parse_qsl(parts.query))
                node.asked.append((parts.path, query))
                body = answer(parts.path, query)
                self.send_response(404 if body is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(body or {}).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    @property
    def address(self) -> NodeAddress:
        return NodeAddress(name=f"om{self.server.server_port}", host="127.0.0.1", port=self.server.server_port)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Node]]:
    nodes: list[Node] = []

    def one(answer: Answer) -> Node:
        nodes.append(Node(answer))
        return nodes[-1]

    yield one
    for node in nodes:
        node.close()


def settings_of(*nodes: Node, shards: int = 2) -> Settings:
    return Settings(nodes=tuple(node.address for node in nodes), shards=shards)


def names(*nodes: Node) -> list[str]:
    return [node.address.name for node in nodes]


# -- counts ------------------------------------------------------------------------------------------------------------


def test_rows_of_all_shards_are_added_up(serve: Callable[[Answer], Node]) -> None:
    def answer(path: str, query: dict[str, str]) -> dict[str, Any]:
        return {"rows": 3 if query["cf"] == OPEN_KEY_TABLE else 5, "more": path == "/v1/shards/1/count"}

    node = serve(answer)
    with closing(Polls()) as polls:
        assert polls.waiting(settings_of(node), names(node)) == {OPEN_KEY_TABLE: (6, True), DELETED_TABLE: (10, True)}
        assert {query["limit"] for _, query in node.asked} == {str(asking.MAX_COUNTED // 2)}
        polls.waiting(settings_of(node, shards=500), names(node))
    assert node.asked[-1][1]["limit"] == str(asking.LEAST_COUNTED)


def test_a_node_that_counts_nothing_is_passed_over_and_a_shard_that_nobody_counts_is_said(
    serve: Callable[[Answer], Node],
) -> None:
    older = serve(lambda _, __: None)
    newer = serve(lambda path, _: {"rows": 1, "more": False} if path == "/v1/shards/0/count" else None)
    settings = settings_of(older, newer)
    with closing(Polls()) as polls:
        assert polls.waiting(settings, names(older, newer)) == {OPEN_KEY_TABLE: (1, True), DELETED_TABLE: (1, True)}
        assert polls.waiting(settings, names(older)) == {}
        assert polls.waiting(settings, []) == {}


# -- sizes -------------------------------------------------------------------------------------------------------------


def listing(keys: int) -> Answer:
    def answer(_: str, query: dict[str, str]) -> dict[str, Any]:
        start, limit = int(query.get("start_after", "0")), int(query["limit"])
        end = min(start + limit, keys)
        return {"entries": [{"size": at} for at in range(start, end)], "truncated": end < keys, "next_after": str(end)}

    return answer


@pytest.mark.parametrize(
    ("keys", "counted", "pages"),
    [(0, 0, 1), (1, 1, 1), (20, 20, 2), (21, 21, 3), (40, 40, 4), (41, 40, 4), (99, 40, 4)],
)
def test_sizes_are_read_page_by_page_up_to_a_limit(
    serve: Callable[[Answer], Node], monkeypatch: pytest.MonkeyPatch, keys: int, counted: int, pages: int
) -> None:
    monkeypatch.setattr(questions, "LISTED_KEYS", 10)
    monkeypatch.setattr(questions, "MAX_SIZED_KEYS", 40)
    node = serve(listing(keys))
    found = questions.key_sizes(settings_of(node), "vol", "a b/ü")
    assert (found.keys, found.is_cut, len(node.asked)) == (counted, keys > counted, pages)
    assert node.asked[0][0] == "/v1/volumes/vol/buckets/a%20b%2F%C3%BC/keys"
    assert {query["consistency"] for _, query in node.asked} == {"stale"}


def test_a_node_that_falls_silent_between_two_pages_leaves_a_part(
    serve: Callable[[Answer], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "LISTED_KEYS", 10)
    pages = listing(30)
    node = serve(lambda path, query: None if query.get("start_after") == "20" else pages(path, query))
    found = questions.key_sizes(settings_of(node), "vol", "bucket")
    assert (found.keys, found.is_cut) == (20, True)


def test_a_bucket_that_no_node_lists_is_said(serve: Callable[[Answer], Node]) -> None:
    node = serve(lambda _, __: None)
    with pytest.raises(Unavailable, match="no node lists the keys of vol/bucket"):
        questions.key_sizes(settings_of(node), "vol", "bucket")


# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_log_that_is_read_anew_gives_the_same_events() -> None:
    log = LogBuilder().start()
    log.barrier()
    log.claim("om2")
    messages: Any = [
        SimpleNamespace(partition=lambda: 0, value=lambda value=value: value, timestamp=lambda at=at: (1, at))
        for at, value in enumerate(log.values)
    ]
    watch = ClusterWatch(Settings)
    found = []
    for _ in range(2):
        watch.log_taker()(messages)
        found.append(set(watch.observed().events))
    assert found[0] == found[1]
    assert "om2 leads from here on, term 2" in {event.text for event in found[0]}
    assert Tone.STALE not in {event.tone for event in found[0]}  # no claim is void
