"""The dashboard's server on a real socket: who may ask, who may start drills, what a page gets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("aiohttp", reason="the dashboard needs aiohttp (extra 'ui')")


from schemas.privilege import ClusterSecret
from stratolog.errors import Unavailable, UsageError
from stratolog.local.processes import wait_until
from stratolog.ui.serving import server as serving
from stratolog.ui.serving.drill_runs import ABOUT_A_SHARD, STARTABLE, DrillRuns
from stratolog.ui.serving.operator_key import new_number, operator_link, secret_of_key
from tests.support.ui.served import SECRET, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("ui"))
    yield found
    found.close()


def test_the_page_brings_all_that_it_needs(served: Served) -> None:
    page = served.http.get("/")
    assert page.status_code == 200
    assert "<!--" not in page.text.replace("<!doctype", "")
    assert "http://" not in page.text
    assert "https://" not in page.text
    for name in serving.ASSETS:
        asset = served.http.get(f"/assets/{name}")
        assert (asset.status_code, asset.headers["content-type"].partition(";")[0]) == (200, serving.ASSETS[name])
        assert "http://" not in asset.text
    for name in STARTABLE:
        assert f'value="{name}"' in page.text
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert set(ABOUT_A_SHARD) < set(STARTABLE)


@pytest.mark.parametrize("path", ["/assets/page.html", "/assets/..%2fserver.py", "/assets/", "/nothing"])
def test_nothing_else_is_served(served: Served, path: str) -> None:
    assert served.http.get(path).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/events", "/number", "/assets/dashboard.js"])
def test_foreign_pages_are_refused(served: Served, path: str, headers: dict[str, str]) -> None:
    answer = served.http.get(path, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (403, "PERMISSION_DENIED")


def test_only_who_has_the_key_is_an_operator(served: Served) -> None:
    key = served.server.key
    assert key == SECRET.link_key(served.server.number)
    assert served.post("/operator", key).json() == {"operator": True}
    for wrong in (None, "0" * 64, ClusterSecret(b"t" * 32).link_key(served.server.number), SECRET.link_key("other")):
        answer = served.post("/operator", wrong)
        assert (answer.status_code, answer.json()["error"]) == (403, "PERMISSION_DENIED")
        assert served.post("/drills/kill-leader?shard=0", wrong).status_code == 403
        assert served.post("/drills/stop", wrong).status_code == 403
    assert not served.drills.desk.runs


def test_a_proof_is_good_for_its_own_call_alone(served: Served) -> None:
    assert served.server.key is not None
    proof = secret_of_key(served.server.key).authorization("POST", served.address, "/operator")
    assert served.http.post("/drills/kill-leader", headers={"Authorization": proof}).status_code == 403
    assert served.post("/operator", served.server.key, Origin="http://evil.example").status_code == 403
    # The cluster's own secret proves calls to nodes, and none to the dashboard, whose page must not know it.
    own = SECRET.authorization("POST", served.address, "/operator")
    assert served.http.post("/operator", headers={"Authorization": own}).status_code == 403


def test_without_a_stack_no_drill_begins_and_the_answer_says_why(served: Served) -> None:
    answer = served.post("/drills/kill-leader?shard=0", served.server.key)
    assert (answer.status_code, "no stack is running" in answer.json()["message"]) == (503, True)
    answer = served.post("/drills/rm?shard=0", served.server.key)
    assert (answer.status_code, "no drill 'rm'" in answer.json()["message"]) == (400, True)
    answer = served.post("/drills/kill-leader?shard=99", served.server.key)
    assert (answer.status_code, answer.json()["message"]) == (400, "there is no shard 99; there are 2")
    assert served.post("/drills/stop", served.server.key).json() == {"stopped": False}


def test_without_a_secret_nobody_is_an_operator(tmp_path: Path) -> None:
    found = Served(tmp_path, secret=None)
    try:
        assert found.server.key is None
        assert found.post("/operator", "0" * 64).status_code == 403
        assert found.http.get("/number").json()["number"] == found.server.number
    finally:
        found.close()


@pytest.mark.parametrize(
    "path",
    ["/replica", "/replica?log=om.log&shard=-1&node=om1", "/log?shard=9", "/log?shard=0&until=x", "/keys?shard=0&node=om1",
     f"/log?shard={'9' * 400}", "/keys?shard=0&bucket=٣"],
)  # fmt: skip
def test_a_wrong_question_is_answered_in_words(served: Served, path: str) -> None:
    answer = served.http.get(path)
    assert (answer.status_code, answer.json()["error"]) == (400, "INVALID_REQUEST")


def test_panels_come_as_events_and_say_what_is_missing(served: Served) -> None:
    with served.http.stream("GET", "/events") as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        first: dict[str, Any] = json.loads(next(lines).removeprefix("data: "))
        second: dict[str, Any] = json.loads(next(lines).removeprefix("data: "))
    assert {"sentence", "grid", "traffic", "lag", "timeline", "datanodes", "namespace", "drill-runs"} == set(first)
    assert "No replica has been judged yet" in first["sentence"]
    assert set(second) < set(first)  # only what has changed


def test_one_page_too_many_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.http.get("/number").json()["is_full"] is False
    monkeypatch.setattr(serving, "MAX_VIEWERS", 0)
    assert served.http.get("/events").status_code == 503
    # A browser does not show the answer's words: the page asks here why.
    assert served.http.get("/number").json() == {
        "number": served.server.number, "cluster": "stratolog", "most_pages": 0, "is_full": True,
    }  # fmt: skip


def ended(connection: socket.socket) -> bool:
    """Read what has come; return whether the server has ended the connection."""
    try:
        return not connection.recv(1 << 20)
    except ConnectionResetError:
        return True


def test_a_page_that_takes_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SEND_TIMEOUT_S", 0.3)
    monkeypatch.setattr(serving, "TICK_S", 0.01)
    monkeypatch.setattr(serving, "MAX_VIEWERS", 1)
    monkeypatch.setattr(serving, "panels_of", lambda _: {"grid": "x" * 4_000_000 + new_number()})
    found = Served(tmp_path)
    host, _, port = found.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as slow:
            slow.sendall(f"GET /events HTTP/1.1\r\nHost: {found.address}\r\n\r\n".encode())
            assert wait_until(lambda: found.http.get("/number").json()["is_full"], 10)
            assert wait_until(lambda: not found.http.get("/number").json()["is_full"], 10)
            assert wait_until(lambda: ended(slow), 10)
    finally:
        found.close()


def test_sizes_of_a_bucket_that_nobody_lists_are_refused_in_words(served: Served) -> None:
    answer = served.http.get("/sizes", params={"volume": "v" * 5000, "bucket": "../<b>"})
    assert answer.status_code == 503
    assert answer.json()["message"] == f"no node lists the keys of {'v' * 100}/../<b>"


def test_a_link_holds_the_key_where_no_server_gets_it() -> None:
    link = operator_link("http://127.0.0.1:9880/", "ab")
    assert httpx.URL(link).fragment == "operator=ab"
    assert httpx.URL(link).raw_path == b"/"


def test_a_drill_that_cannot_be_named_or_has_no_stack_is_refused(tmp_path: Path) -> None:
    runs = DrillRuns(tmp_path)
    with pytest.raises(UsageError, match="no drill 'x'"):
        runs.start("x", 0)
    with pytest.raises(Unavailable, match="no stack is running"):
        runs.start("replay", 0)
    assert not runs.runs_elsewhere()
    assert not runs.stop()
    runs.close()
