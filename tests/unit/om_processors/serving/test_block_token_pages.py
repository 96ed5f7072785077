"""Tokens in a node's answers: with the locations of a key and of an open key, for whoever has the right, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.identity.readers import Question
from om_processors.identity.token_issuer import BlockTokenIssuer
from om_processors.namespace import users
from om_processors.namespace.access import Caller
from om_processors.serving.fleet_api import FleetApi
from om_processors.serving.http_api import Answer, OMHttpApi, answered
from replicated_db.core.tables.memory import ManualClock
from schemas.access.acl import parse_acl
from schemas.access.block_tokens import READ_BLOCK, TOKEN_KEYS_USER, TOKEN_LIFETIME_MS, WRITE_BLOCK, verified_token
from schemas.records.datanode import BlockTokenKey
from schemas.records.identity import ChangeAcl, CreateUser, ProvenCaller
from schemas.records.messages import AllocateBlock, CommitKey, CommitReserved, CreateKey, KeySession, ReserveBlocks
from tests.support.local.secret import SECRET
from tests.support.om.dict_transaction import DictTables
from tests.support.om.om_world import BLOCK_SIZE_BYTES, World

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
ANN, BOB = (Caller(user=name, administrator=False, groups=()) for name in ("ann", "bob"))
ROOT = Caller(user="root", administrator=True, groups=())


class Snapshot(DictTables):
    def close(self) -> None:
        """Nothing to close."""


class Site:
    """A node with the key ``done``, and the key ``open`` in a session of bob's; ann owns the bucket."""

    def __init__(self, *, issues: bool = True) -> None:
        self.world = World()
        self.world.make()
        self.world.do(CreateUser(user=TOKEN_KEYS_USER))
        done = self.world.session(CreateKey(**PLACE, key="done", size=150))
        self.world.do(CommitKey(**PLACE, key="done", session_id=done.session_id, size=150))
        self.session = self.world.session(CreateKey(**PLACE, key="open", size=10), "bob")
        self.clock = ManualClock(now_ms=self.world.now_ms, elapsed=0)
        replica: Any = SimpleNamespace(
            snapshot=lambda: (SimpleNamespace(index=9), None, self._snapshot()), lock=_Unlocked(), evidence=None,
            rows=self.world.tables,
        )  # fmt: skip
        self.replica = replica
        consistency: Any = SimpleNamespace(ready=self._ready, refuse_flagged=lambda shard: None)
        nothing: Any = None
        fatal: Any = pytest.fail
        self.issuer = BlockTokenIssuer(SECRET, lambda: replica, self.clock) if issues else None
        self.api = OMHttpApi({0: replica}, consistency, nothing, nothing, fatal, self.issuer)
        config: Any = SimpleNamespace(datanodes=())
        self.fleet = FleetApi(config, replica, consistency, None, self.issuer)

    async def _ready(self, shard: int, consistency: str, session: dict[int, int]) -> None:
        """Be ready at once."""

    def _snapshot(self) -> Snapshot:
        found = Snapshot()
        found.tables = self.world.tables.tables
        return found

    def get(
        self, page: Callable[..., Awaitable[Answer]], reader: Caller | None, query: dict[str, str], **parts: str
    ) -> tuple[int, Any]:
        return asyncio.run(answered(lambda: page(Question(query, reader), **parts)))

    def key(self, reader: Caller | None = None, name: str = "done", **query: str) -> tuple[int, Any]:
        return self.get(self.api.key, reader, {"name": name, **query}, **PLACE)

    def open_key(self, reader: Caller | None = None, **query: str) -> tuple[int, Any]:
        given = {"name": "open", "session_id": str(self.session.session_id), "tokens": "true"}
        return self.get(self.api.open_key, reader, given | query, **PLACE)

    def said(self, answer: Any) -> list[tuple[int, int, int, int]]:
        """Return container, local id, operations and length of each token, which is as long-lived as is said."""
        row = users.get_user(self.world.tables, TOKEN_KEYS_USER)
        assert row is not None
        key = BlockTokenKey(key_id=row.generation, key=SECRET.block_token_key(row.generation), until_ms=2**60)
        given = answer["block_tokens"]
        assert given["lasts_ms"] == TOKEN_LIFETIME_MS
        tokens = [verified_token(bytes.fromhex(one), {key.key_id: key}, self.clock.now_ms) for one in given["tokens"]]
        assert {one.expires_ms for one in tokens} == {self.clock.now_ms + TOKEN_LIFETIME_MS}
        return [(one.container_id, one.local_id, one.operations, one.length) for one in tokens]


class _Unlocked:
    def __enter__(self) -> None:
        """Nothing else runs."""

    def __exit__(self, *_: object) -> None:
        """Nothing else runs."""


@pytest.fixture(scope="module")
def site() -> Site:
    return Site()


def blocks(answer: Any) -> list[tuple[int, int]]:
    return [(block["container_id"], block["local_id"]) for block in answer["blocks"]]


def test_a_key_comes_with_tokens_to_read_its_blocks(site: Site):
    status, answer = site.key(tokens="true")
    assert status == 200
    lengths = [BLOCK_SIZE_BYTES, 50]
    assert site.said(answer) == [
        (*one, READ_BLOCK, length) for one, length in zip(blocks(answer), lengths, strict=True)
    ]
    assert "block_tokens" not in site.key()[1]
    assert site.get(site.fleet.pipelines, None, {})[1]["block_tokens"] is True


def test_an_open_key_comes_with_tokens_for_all_blocks_that_it_was_given():
    site = Site()
    more = site.world.do(AllocateBlock(**PLACE, key="open", session_id=site.session.session_id, excluded_pipelines=[]))
    assert not isinstance(more, KeySession)
    status, answer = site.open_key()
    assert status == 200
    assert len(answer["blocks"]) == 2
    assert site.said(answer) == [(*one, READ_BLOCK | WRITE_BLOCK, BLOCK_SIZE_BYTES) for one in blocks(answer)]


def test_a_reservation_comes_with_tokens_for_the_blocks_that_are_left():
    site = Site()
    reserved = site.world.session(ReserveBlocks(**PLACE, count=3), "bob")
    first, *left = reserved.blocks
    named = {"name": "", "session_id": str(reserved.session_id)}
    _, answer = site.open_key(None, **named)
    assert [one[1] for one in blocks(answer)] == [block.local_id for block in reserved.blocks]
    written = replace(first, offset=0, length=5, bcs_id=7)
    body = CommitReserved(**PLACE, key="k", session_id=reserved.session_id, size=5, blocks=[written])
    assert site.world.do(body, "bob") is None
    status, answer = site.open_key(BOB, **named)
    assert status == 200
    assert site.said(answer) == [(one.container_id, one.local_id, READ_BLOCK | WRITE_BLOCK, one.length) for one in left]
    status, refused = site.open_key(replace(BOB, user="eve"), **named)
    assert (status, refused["error"]) == (403, "PERMISSION_DENIED")


def test_tokens_come_with_locations_to_whoever_has_the_right():
    site = Site()
    assert site.key(ANN, tokens="true")[0] == 200
    status, refused = site.key(BOB, tokens="true")
    assert (status, refused["error"]) == (403, "PERMISSION_DENIED")
    assert "block_tokens" not in refused
    for reader in (ANN, BOB, ROOT):  # ann owns the bucket
        assert site.open_key(reader)[0] == 200
    eve = replace(BOB, user="eve")
    status, refused = site.open_key(eve)
    assert (status, refused["error"]) == (403, "PERMISSION_DENIED")
    for kind, name in (("VOLUME", ""), ("BUCKET", "")):
        site.world.standing = ProvenCaller(administrator=True, groups=[], generation=1, token=0)
        site.world.do(
            ChangeAcl(
                change="ADD", kind=kind, volume="vol1", bucket="bucket1" if kind == "BUCKET" else "", name=name,
                acls=[parse_acl("user:eve:r")],
            )
        )  # fmt: skip
    status, refused = site.open_key(eve)  # who may read the bucket writes to no session of another
    assert (status, "another user's" in refused["message"]) == (403, True)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"session_id": "7"}, 404, "KEY_NOT_FOUND"),
        ({"name": "done"}, 404, "KEY_NOT_FOUND"),
        ({"session_id": "x"}, 400, "INVALID_REQUEST"),
        ({"session_id": str(2**63)}, 400, "INVALID_REQUEST"),
        ({"name": ""}, 404, "KEY_NOT_FOUND"),  # the session is that of a key, not of a reservation
        ({"name": "k" * 5000}, 400, "INVALID_KEY_NAME"),
        ({"consistency": "hopeful"}, 400, "INVALID_REQUEST"),
    ],
)
def test_an_open_key_that_is_none_is_refused(site: Site, query: dict[str, str], status: int, code: str):
    found, answer = site.open_key(None, **query)
    assert (found, answer["error"]) == (status, code)


def test_a_node_whose_replica_of_shard_0_is_flagged_sends_clients_to_another_one():
    site = Site()
    site.replica.evidence = object()
    status, refused = site.key(tokens="true")
    assert (status, refused["error"]) == (503, "REPLICA_FLAGGED")
    assert site.key()[0] == 200


def test_nodes_without_tokens_or_without_a_key_of_them_give_none():
    site = Site(issues=False)
    assert "block_tokens" not in site.key(tokens="true")[1]
    assert site.get(site.fleet.pipelines, None, {})[1]["block_tokens"] is False
    without = Site()
    without.world.tables.tables["identityTable"].clear()
    assert without.key(tokens="true")[1]["block_tokens"] is None
    assert without.get(without.fleet.pipelines, None, {})[1]["block_tokens"] is False
