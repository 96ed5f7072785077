"""The pages about access: whose lists, users and delegation tokens a caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.identity.readers import Question
from om_processors.namespace import users
from om_processors.namespace.access import Caller
from om_processors.serving.access_api import AccessApi
from om_processors.serving.http_api import Answer, answered
from schemas.access.acl import BUCKET
from schemas.records.identity import CreateUser, GetDelegationToken, ProvenCaller
from tests.support.om.dict_transaction import DictTables
from tests.support.om.om_world import World

ANN, BOB = (Caller(user=name, administrator=False, groups=()) for name in ("ann", "bob"))
ROOT = Caller(user="root", administrator=True, groups=())


class Moment(DictTables):
    closed = False

    def close(self) -> None:
        self.closed = True


class AccessSite:
    """Users ann and bob, of whom ann has a token; the bucket is that of the world's owner."""

    def __init__(self) -> None:
        self.world = World()
        self.world.make()
        for name in ("ann", "bob"):
            self.world.do(CreateUser(user=name))
        row = users.get_user(self.world.tables, "ann")
        assert row is not None
        self.world.standing = ProvenCaller(administrator=False, groups=[], generation=row.generation, token=0)
        self.world.do(GetDelegationToken(renewer="bob"), "ann")
        self.moments: list[Moment] = []
        replica: Any = SimpleNamespace(moment=self._moment)
        consistency: Any = SimpleNamespace(ready=self._ready, refuse_flagged=lambda _: None)
        self.api = AccessApi({0: replica}, consistency)

    async def _ready(self, shard: int, consistency: str, session: dict[int, int]) -> None:
        """Be ready at once."""

    def _moment(self, _families: object) -> tuple[int, Moment]:
        self.moments.append(Moment())
        self.moments[-1].tables = self.world.tables.tables
        return 7, self.moments[-1]

    def get(self, page: Callable[..., Awaitable[Answer]], reader: Caller | None, **query: str) -> tuple[int, Any]:
        found = asyncio.run(answered(lambda: page(Question(query, reader))))
        assert all(one.closed for one in self.moments)
        return found


@pytest.fixture(scope="module")
def site() -> AccessSite:
    return AccessSite()


def owners(answer: tuple[int, Any]) -> list[str]:
    status, body = answer
    assert (status, body["positions"]) == (200, {"0": 7})
    return [one["owner"] for one in body["tokens"]]


def test_a_user_sees_the_own_tokens_and_an_administrator_anybodys(site: AccessSite):
    assert owners(site.get(site.api.tokens, ANN)) == ["ann"]
    assert owners(site.get(site.api.tokens, ANN, owner="ann")) == ["ann"]
    assert owners(site.get(site.api.tokens, BOB)) == []
    assert owners(site.get(site.api.tokens, ROOT, owner="ann")) == ["ann"]
    assert owners(site.get(site.api.tokens, None, owner="ann")) == ["ann"], "rights are not judged"


def test_nobody_sees_another_users_tokens(site: AccessSite):
    status, body = site.get(site.api.tokens, BOB, owner="ann")
    assert (status, body["error"]) == (403, "PERMISSION_DENIED")
    assert "the tokens of 'ann' are not yours" in body["message"]


def test_users_are_told_by_name_without_a_secret(site: AccessSite):
    status, body = site.get(site.api.users, ROOT)
    assert status == 200
    assert [one["user"] for one in body["users"]] == ["ann", "bob"]
    assert not [name for one in body["users"] for name in one if "secret" in name or "key" in name]


def test_an_unknown_consistency_is_named(site: AccessSite):
    status, body = site.get(site.api.users, ROOT, consistency="soon")
    assert (status, body["message"]) == (400, "consistency 'soon' is not linearizable, session or stale")


def test_the_list_of_an_object_needs_a_right_of_its_own(site: AccessSite):
    place = {"kind": BUCKET, "volume": "vol1", "bucket": "bucket1"}
    status, body = site.get(site.api.acl, ROOT, **place)
    assert status == 200
    assert body["acls"] == []
    assert site.get(site.api.acl, BOB, **place)[0] == 403
    assert site.get(site.api.acl, ROOT, **{**place, "bucket": "none"})[0] == 404
