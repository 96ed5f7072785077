"""What the pages of trimming answer, and what they refuse, over a trimming that answers what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from om_processors.fleet.log_trimming import BaseAnswer
from om_processors.serving.http_api import Answer, answered
from om_processors.serving.trimming_api import MAX_NUMBER, TrimmingApi
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.trimming.places import MemberPlace
from replicated_db.core.trimming.trim_rule import RuleFinding, TrimDecision, TrimWish

SHARDS = 3
PLACE = MemberPlace(node="om1", cluster="c", shard=2, offset=8, keeps_from=7, index=2, flagged=False, members=("om1",))
KEEP = RuleFinding(rule="keep", allows=5, why="the last records are kept")
DECISION = TrimDecision(first=0, end=10, offset=5, base=None, findings=(KEEP,), held_by=KEEP)


class Trimming:
    """What the pages ask of OMLogTrimming."""

    def __init__(self) -> None:
        self.leading = True
        self.error: Exception | None = None
        self.done: list[tuple[Any, ...]] = []

    def leads(self, shard: int) -> bool:
        return self.leading and shard == 2

    def place(self, shard: int) -> MemberPlace:
        if self.error is not None:
            raise self.error
        self.done.append(("place", shard))
        return PLACE

    def look(self, shard: int, wish: TrimWish, addresses: Mapping[str, str]) -> TrimDecision:
        self.done.append(("look", shard, wish, addresses))
        return DECISION

    def trim(self, shard: int, wish: TrimWish, addresses: Mapping[str, str]) -> TrimDecision:
        self.done.append(("trim", shard, wish, addresses))
        return DECISION

    def log_base(self, shard: int, addresses: Mapping[str, str]) -> BaseAnswer:
        self.done.append(("base", shard, addresses))
        return BaseAnswer(asked=True, index=7)


class Case:
    def __init__(self) -> None:
        trimming: Any = Trimming()
        self.trimming = trimming
        self.fatal: list[BaseException] = []
        self.api = TrimmingApi(trimming, SHARDS, self.fatal.append)

    def post(self, what: str, shard: str = "2", **query: str) -> Answer:
        handler = self.api.trim if what == "trim" else self.api.durable_position
        return asyncio.run(answered(lambda: self.api._handle(handler, query, shard)))

    def refusal(self, shard: str = "2", **query: str) -> tuple[int, str, str]:
        status, body = self.post("trim", shard, **query)
        assert self.trimming.done == []
        return status, body["error"], body["message"]


@pytest.fixture
def case() -> Case:
    return Case()


def test_where_a_replica_stands_on_the_disk(case: Case):
    assert case.post("durable-position") == (200, PLACE.to_json())
    assert case.trimming.done == [("place", 2)]


@pytest.mark.parametrize("shard", ["3", "x", "-1", ""])
def test_a_shard_that_there_is_not(case: Case, shard: str):
    assert case.refusal(shard)[1:] == ("INVALID_REQUEST", f"there is no shard {shard!r}; there are 0..2")


def test_without_saying_so_nothing_is_trimmed(case: Case):
    assert case.post("trim") == (200, DECISION.to_json())
    assert case.post("trim", do="look") == (200, DECISION.to_json())
    assert case.trimming.done == [("look", 2, TrimWish(), {})] * 2


def test_a_log_is_trimmed_as_it_is_wished(case: Case):
    query = {"keep_records": "7", "keep_ms": str(MAX_NUMBER), "leave_behind": "om2,,om3", "without_audit": "true"}
    assert case.post("trim", do="trim", nodes="om2=host:1,om3=[::1]:22", **query) == (200, DECISION.to_json())
    wish = TrimWish(keep_records=7, keep_ms=MAX_NUMBER, leave_behind=frozenset({"om2", "om3"}), without_audit=True)
    assert case.trimming.done == [("trim", 2, wish, {"om2": "host:1", "om3": "[::1]:22"})]
    case.post("trim", without_audit="1", keep_records="0")
    assert case.trimming.done[1][2] == TrimWish()


def test_a_base_is_asked_for(case: Case):
    assert case.post("trim", do="base", nodes="om2=host:1") == (200, {"asked": True, "index": 7, "why": ""})
    assert case.trimming.done == [("base", 2, {"om2": "host:1"})]


@pytest.mark.parametrize("nodes", ["om2", "=host:1", "om2=host", "om2=host:x", "om1=host:1,om2=:"])
def test_a_node_without_an_address_is_named(case: Case, nodes: str):
    wrong = nodes.rpartition(",")[2]
    assert case.refusal(nodes=nodes)[1:] == ("INVALID_REQUEST", f"nodes: {wrong!r} is not name=host:port")


def test_what_is_not_understood_is_refused(case: Case):
    assert case.refusal(do="erase")[1:] == ("INVALID_REQUEST", "do='erase' is not look, base or trim")
    for query in ({"keep_records": "-1"}, {"keep_ms": "soon"}, {"keep_ms": str(MAX_NUMBER + 1)}):
        assert case.refusal(**query)[1] == "INVALID_REQUEST"


def test_the_leader_alone_trims(case: Case):
    case.trimming.leading = False
    _, error, message = case.refusal(do="trim")
    assert (error, message) == ("NOT_LEADER", "this node does not lead shard 2: ask its leader")


def test_silent_brokers_are_asked_again_and_a_broken_store_ends_the_process(case: Case):
    case.trimming.error = LogUnavailable("no broker answers")
    status, body = case.post("durable-position")
    assert (status, body["error"], body["message"]) == (503, "LOG_UNAVAILABLE", "no broker answers")
    assert case.fatal == []
    case.trimming.error = StoreFailure("RocksDB: sync")
    with pytest.raises(StoreFailure):
        asyncio.run(case.api._handle(case.api.durable_position, {}, "2"))
    assert case.fatal == [case.trimming.error]
