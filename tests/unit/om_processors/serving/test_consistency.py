"""Which reads a node answers now: as its replica stands, and as the shard's leader says over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from om_processors.errors import OMError
from om_processors.serving import consistency
from om_processors.serving.consistency import LINEARIZABLE, SESSION, STALE, Consistency, NotReadable, parse_session
from replicated_db.core.errors import AheadOfLog
from replicated_db.shell.read_index import NotLeading
from schemas.privilege import AUTHORIZATION
from stratolog.local.ports import free_ports
from tests.support.local.secret import SECRET
from transport.web.http_server import HttpServer
from transport.web.listening import listen

HASH = bytes(range(32))


class Case:
    """A node with one shard; ``counted`` is what its replica says of a record that it has read."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.asked: list[tuple[int, bytes]] = []
        self.counted: bool | Exception = True
        self.index: Future[Any] = Future()
        self.replica: Any = SimpleNamespace(
            evidence=None, read_offset=10, has_counted=self._has_counted, identity=SimpleNamespace(shard=0),
            position=SimpleNamespace(index=5, address="", leader=""),
        )  # fmt: skip
        self.leader: Any = SimpleNamespace(leading=True, read_index=lambda: self.index)
        config: Any = SimpleNamespace(node="om1", secret=SECRET, tls=None)
        replicas: dict[int, Any] = {0: self.replica}
        loops: dict[int, Any] = {0: self.leader}
        self.consistency = Consistency(config, replicas, loops, self.failures.append)

    def _has_counted(self, offset: int, record_hash: bytes) -> bool:
        self.asked.append((offset, record_hash))
        if isinstance(self.counted, Exception):
            raise self.counted
        return self.counted

    def lead(self, offset: int) -> None:
        self.index.set_result(SimpleNamespace(offset=offset, record_hash=HASH))

    def ready(self, how: str, session: dict[int, int] | None = None) -> None:
        async def ask() -> None:
            try:
                await self.consistency.ready(0, how, session or {})
            finally:
                await self.consistency.close()

        asyncio.run(ask())


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(consistency, "READ_DEADLINE_S", 0.1)
    monkeypatch.setattr(consistency, "ASK_AGAIN_S", 0.01)
    return Case()


@pytest.mark.parametrize(
    ("text", "positions"), [("", {}), ("0:5", {0: 5}), ("0:5,1:7", {0: 5, 1: 7}), ("0:5,0:7,0:6,", {0: 7})]
)
def test_positions_of_a_session(text: str, positions: dict[int, int]):
    assert parse_session(text) == positions


@pytest.mark.parametrize("text", ["5", "a:5", "0:a", ":5", "0:", "0:-1", "0:5;1:7"])
def test_a_session_that_is_none_is_refused_by_name(text: str):
    with pytest.raises(OMError, match="is not shard:index") as refused:
        parse_session(text)
    assert refused.value.status == "INVALID_REQUEST"
    assert repr(text) in refused.value.message


def test_a_stale_read_waits_for_nothing(case: Case):
    case.ready(STALE)
    assert case.asked == []


def test_a_session_waits_until_its_own_writes_are_here(case: Case):
    case.ready(SESSION, {0: 5, 7: 100})
    case.ready(SESSION)
    with pytest.raises(NotReadable, match="shard 0: not caught up within") as refused:
        case.ready(SESSION, {0: 6})
    assert refused.value.code == "NOT_CAUGHT_UP"


def test_the_leader_reads_when_its_record_has_counted_here(case: Case):
    case.lead(10)
    case.ready(LINEARIZABLE)
    assert case.asked == [(10, HASH)]


def test_a_read_index_that_has_not_been_read_here_is_waited_for(case: Case):
    case.lead(11)
    with pytest.raises(NotReadable, match="not caught up"):
        case.ready(LINEARIZABLE)
    assert case.asked == []


def test_whoever_waits_for_another_nodes_record_hurries_the_follower(case: Case):
    hurried: list[int] = []
    case.consistency.hurry = lambda: hurried.append(1)
    case.lead(10)
    for how, session in ((STALE, {}), (SESSION, {0: 5}), (LINEARIZABLE, {})):
        case.ready(how, session)
    assert hurried == [], "nothing is waited for, or this node applies it itself"
    with pytest.raises(NotReadable):
        case.ready(SESSION, {0: 6})
    assert len(hurried) == 1
    case.leader.leading = False
    with pytest.raises(NotReadable, match="shard 0 has no leader"):
        case.ready(LINEARIZABLE)
    assert len(hurried) == 2


def test_a_record_that_did_not_count_here_ends_the_process(case: Case):
    """Replica and leader read different logs."""
    case.lead(10)
    case.counted = AheadOfLog("another record")
    with pytest.raises(AheadOfLog):
        case.ready(LINEARIZABLE)
    assert case.failures == [case.counted]


def test_a_record_too_long_ago_is_no_answer(case: Case):
    case.lead(10)
    case.counted = False
    with pytest.raises(NotReadable, match="the record at 10 is too long ago") as refused:
        case.ready(LINEARIZABLE)
    assert (refused.value.code, case.failures) == ("NOT_CAUGHT_UP", [])


@pytest.mark.parametrize("how", [STALE, SESSION, LINEARIZABLE])
def test_a_flagged_replica_answers_no_reads(case: Case, how: str):
    case.replica.evidence = "row of another value"
    with pytest.raises(NotReadable, match="shard 0 of om1 has found a divergence: row of another value") as refused:
        case.ready(how)
    assert refused.value.code == "REPLICA_FLAGGED"


@pytest.mark.parametrize("error", [NotLeading("stepped down"), None])
def test_a_leader_that_steps_down_or_hangs_has_no_index(case: Case, error: Exception | None):
    if error is not None:
        case.index.set_exception(error)
    with pytest.raises(NotReadable, match="shard 0 is not led by om1") as refused:
        case.ready(LINEARIZABLE)
    assert refused.value.code == "NO_LEADER"


@pytest.mark.parametrize(("leader", "address"), [("", ""), ("om1", "127.0.0.1:1")])
def test_without_another_leader_there_is_nobody_to_ask(case: Case, leader: str, address: str):
    """This node's own claim may be the last one in the log, though it leads no more."""
    case.leader.leading = False
    case.replica.position.leader, case.replica.position.address = leader, address
    with pytest.raises(NotReadable, match="shard 0 has no leader"):
        case.ready(LINEARIZABLE)


def ask_another(case: Case, answer: Callable[[web.Request], Awaitable[web.Response]]) -> None:
    """Read linearizably while another node leads, which answers so."""
    (port,) = free_ports(1)
    case.leader.leading = False
    case.replica.position.leader, case.replica.position.address = "om2", f"127.0.0.1:{port}"

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/shards/0/read-index", answer)
        server = HttpServer(app)
        await server.start(listen("127.0.0.1", port))
        try:
            await case.consistency.ready(0, LINEARIZABLE, {})
        finally:
            await case.consistency.close()
            await server.close()

    asyncio.run(run())


def test_another_leader_is_asked_with_a_proof(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(consistency, "READ_DEADLINE_S", 10)
    seen: list[bool] = []

    async def answer(request: web.Request) -> web.Response:
        proof = request.headers[AUTHORIZATION]
        seen.append(SECRET.authorizes(proof, "POST", request.headers["Host"], "/v1/shards/0/read-index"))
        return web.json_response({"offset": 10, "hash": HASH.hex()})

    ask_another(case, answer)
    assert seen == [True]
    assert case.asked == [(10, HASH)]


def test_a_leader_that_does_not_know_yet_is_asked_again(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(consistency, "READ_DEADLINE_S", 10)
    answers = [web.json_response({"message": "not now"}, status=503), web.Response(text="{"), None]

    async def answer(_: web.Request) -> web.Response:
        return answers.pop(0) or web.json_response({"offset": 10, "hash": HASH.hex()})

    ask_another(case, answer)
    assert answers == []


def test_a_leader_that_refuses_until_the_deadline_says_why(case: Case):
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"message": "not now"}, status=503)

    with pytest.raises(NotReadable, match="shard 0: om2: not now") as refused:
        ask_another(case, answer)
    assert refused.value.code == "NO_LEADER"


def test_a_leader_that_is_not_there_is_named(case: Case):
    (port,) = free_ports(1)
    case.leader.leading = False
    case.replica.position.leader, case.replica.position.address = "om2", f"127.0.0.1:{port}"
    with pytest.raises(NotReadable, match="shard 0: om2 does not answer"):
        case.ready(LINEARIZABLE)


ODD: list[Any] = [{}, {"offset": 10}, {"offset": "10", "hash": HASH.hex()}, {"offset": 10, "hash": 7}, [10], "x", None]


@pytest.mark.parametrize("body", [*ODD, {"offset": 10, "hash": "xy"}, {"offset": 10, "hash": "abc"}])
@pytest.mark.parametrize("status", [200, 503])
def test_an_odd_answer_of_the_leader_is_no_index(case: Case, body: Any, status: int):
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    with pytest.raises(NotReadable, match=f"shard 0: om2 answers {status} and .*, which is no read index") as refused:
        ask_another(case, answer)
    assert refused.value.code == "NO_LEADER"
    assert case.asked == []
