"""The pages for trimming over real HTTP: who may ask, what is refused, and what a broken store does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from aiohttp import web

from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.trimming.places import MemberPlace
from replicated_db.core.trimming.trim_rule import RuleFinding, TrimDecision, TrimWish
from replicated_db.shell.trimming.log_trimming import BaseAnswer
from replicated_db.shell.trimming.trim_pages import TrimPages
from tests.support.local.secret import SECRET
from transport.web.http_guard import HttpGuard
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of

FINDING = RuleFinding(rule="members", allows=7, why="n2 is the slowest")
PLACE = MemberPlace(
    node="n1", cluster="test", shard=3, offset=9, keeps_from=7, index=5, flagged=False, members=("n1", "n2")
)


class Trimming:
    """What the pages ask of LogTrimming: shard 3 is led here, shard 4 is not."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.done: list[tuple[Any, ...]] = []

    def has(self, shard: int) -> bool:
        return shard in (3, 4)

    def leads(self, shard: int) -> bool:
        return shard == 3

    def place(self, shard: int) -> MemberPlace:
        self._do("place", shard)
        return PLACE

    def look(self, shard: int, wish: TrimWish, addresses: Mapping[str, str]) -> TrimDecision:
        self._do("look", shard, wish, dict(addresses))
        return TrimDecision(first=0, end=9, offset=7, base=None, findings=(FINDING,), held_by=FINDING)

    def trim(self, shard: int, wish: TrimWish, addresses: Mapping[str, str]) -> TrimDecision:
        self._do("trim", shard)
        return TrimDecision(first=0, end=9, offset=7, base=None, findings=(FINDING,), held_by=FINDING)

    def log_base(self, shard: int, addresses: Mapping[str, str]) -> BaseAnswer:
        self._do("base", shard)
        return BaseAnswer(asked=True, index=5)

    def _do(self, *what: Any) -> None:
        self.done.append(what)
        if self.error is not None:
            raise self.error


@pytest.fixture
def trimming() -> Trimming:
    return Trimming()


def ask(trimming: Any, *targets: str, auth: Any = SECRET.sign) -> list[httpx.Response]:
    """POST to each of the targets, below /v1/shards/."""
    fatal: list[BaseException] = []

    async def run() -> list[httpx.Response]:
        app = web.Application(middlewares=[HttpGuard(SECRET).middleware()])
        pages = TrimPages(trimming, fatal.append)
        pages.attach(app)
        server, listening = HttpServer(app, end_timeout_s=0.1), listen("127.0.0.1", 0)
        port = port_of(listening)
        await server.start(listening)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
                return [await http.post(f"/v1/shards/{target}", auth=auth) for target in targets]
        finally:
            await server.close()
            pages.close()

    answers = asyncio.run(run())
    trimming.fatal = fatal
    return answers


def test_a_member_tells_its_place_whether_it_leads_or_not(trimming: Trimming) -> None:
    leading, following = ask(trimming, "3/durable-position", "4/durable-position")
    assert MemberPlace.from_json(leading.json()) == PLACE
    assert following.status_code == 200


def test_the_leader_looks_logs_a_base_and_trims(trimming: Trimming) -> None:
    looked, base, trimmed = ask(trimming, "3/trim?keep_ms=5&nodes=n2%3Dhost:1", "3/trim?do=base", "3/trim?do=trim")
    assert (looked.json()["offset"], looked.json()["held_by"]) == (7, "members")
    assert base.json() == {"asked": True, "index": 5, "why": ""}
    assert trimmed.json()["records"] == 7
    assert trimming.done == [("look", 3, TrimWish(keep_ms=5), {"n2": "host:1"}), ("base", 3), ("trim", 3)]


def test_what_a_request_wishes_reaches_the_rules(trimming: Trimming) -> None:
    ask(trimming, "3/trim?keep_records=2&leave_behind=n3,n4&without_audit=true&nodes=n2%3Da:1,n3%3Db:2,", "3/trim")
    everything = TrimWish(keep_records=2, leave_behind=frozenset({"n3", "n4"}), without_audit=True)
    assert trimming.done == [("look", 3, everything, {"n2": "a:1", "n3": "b:2"}), ("look", 3, TrimWish(), {})]


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("4/trim", 503, "NOT_LEADER"), ("5/trim", 400, "INVALID_REQUEST"), ("x/trim", 400, "INVALID_REQUEST"),
        ("9" * 4000 + "/trim", 400, "INVALID_REQUEST"), ("5/durable-position", 400, "INVALID_REQUEST"),
        ("3/trim?do=x", 400, "INVALID_REQUEST"), ("3/trim?nodes=n2", 400, "INVALID_REQUEST"),
        ("3/trim?nodes=%3Dhost:1", 400, "INVALID_REQUEST"), ("3/trim?nodes=n2%3Dhost", 400, "INVALID_REQUEST"),
        ("3/trim?keep_records=-1", 400, "INVALID_REQUEST"),
    ],
)  # fmt: skip
def test_what_is_refused(trimming: Trimming, target: str, status: int, code: str) -> None:
    [answer] = ask(trimming, target)
    assert (answer.status_code, answer.json()["error"]) == (status, code)
    assert trimming.done == []


def test_silent_brokers_are_told_and_a_broken_store_ends_the_process(trimming: Any) -> None:
    trimming.error = LogUnavailable("no broker")
    [answer] = ask(trimming, "3/trim?do=trim")
    assert (answer.status_code, answer.json()) == (503, {"error": "LOG_UNAVAILABLE", "message": "no broker"})
    assert trimming.fatal == []
    trimming.error = StoreFailure("RocksDB: sync")
    [answer] = ask(trimming, "3/durable-position")
    assert answer.status_code == 500
    assert trimming.fatal == [trimming.error]


def test_strangers_learn_and_change_nothing(trimming: Trimming) -> None:
    answers = ask(trimming, "3/durable-position", "3/trim?do=trim", auth=None)
    assert [answer.status_code for answer in answers] == [403, 403]
    assert trimming.done == []
