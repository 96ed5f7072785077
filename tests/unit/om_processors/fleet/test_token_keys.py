"""Keys of block tokens on shard 0's leader: they are rolled through the log, and every life of a datanode is told."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest

from om_processors.fleet.core.fleet import Fleet
from om_processors.fleet.token_keys import RETRY_MS, TokenKeyRounds
from om_processors.identity.identities import Denied, Identities
from om_processors.identity.token_issuer import KNOWN_MS, BlockTokenIssuer
from om_processors.namespace import users
from om_processors.namespace.token_keys import KEPT_MS, ROLL_MS, SPREAD_MS
from schemas.access.block_tokens import (
    READ_BLOCK,
    TOKEN_KEYS_USER,
    TOKEN_LIFETIME_MS,
    BadBlockToken,
    verified_token,
)
from schemas.access.credentials import TokenName, credentials_of
from schemas.access.signatures import seal_of, sealed_key
from schemas.codecs.codec import encode
from schemas.features import SMALL_OBJECTS
from schemas.records.datanode import BlockTokenKeys
from schemas.records.identity import RemoveUser, RotateUser
from schemas.records.messages import CreateVolume, Request, RequestBody
from tests.support.local.secret import SECRET
from tests.support.om.fleets import CLUSTER, TIMEOUT_MS, heartbeat
from tests.support.om.late_world import LateWorld

BLOCK = {"container_id": 7, "local_id": 1, "length": 100}


class Leader:
    """Shard 0's leader, with datanodes that take what they are told unless they are ``deaf``."""

    def __init__(self, world: LateWorld | None = None) -> None:
        self.world = world or LateWorld()
        self.deaf: set[str] = set()
        self.lives = {"dn1": 1, "dn2": 1}
        self.told: list[tuple[str, BlockTokenKeys]] = []
        self.proposed: list[RequestBody] = []
        self.proposes = True
        self.ahead_ms = 0
        """How far this node's wall clock is ahead of the log's time."""
        made: Any = self
        self.rounds = TokenKeyRounds(
            self.replica, SECRET, made, made, self.world.clock, lambda *_, **__: None,
            lambda: self.world.clock.now_ms - self.ahead_ms,
        )  # fmt: skip
        self.issuer = BlockTokenIssuer(SECRET, lambda: self.replica, self.world.clock)

    @property
    def replica(self) -> Any:
        return self.world.leader_node.replica

    def propose(self, _: Hashable, body: RequestBody) -> bool:
        self.proposed.append(body)
        if self.proposes:
            assert self.world.do(body).status == "OK"
        return True

    def send(
        self, _: Hashable, address: str, request: Any, *, datanode: str, done: Callable[[Any], None]
    ) -> bool:  # fmt: skip
        assert address == f"{datanode}:1"
        self.told.append((datanode, request))
        if datanode not in self.deaf:
            done(None)
        return True

    def pass_time(self, ms: int) -> None:
        self.world.clock.now_ms += ms
        self.world.clock.elapsed += ms

    def turn(self, ms: int = RETRY_MS) -> list[tuple[str, BlockTokenKeys]]:
        """Take a turn, ``ms`` later; return what was told."""
        self.told.clear()
        self.pass_time(ms)
        fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=0)
        for name, life in self.lives.items():
            fleet.on_heartbeat(heartbeat(name, incarnation=bytes([life]) * 16), 0)
        self.rounds.turn(fleet.picture((), (), 0))
        return list(self.told)

    def row(self) -> Any:
        return users.get_user(self.replica.rows, TOKEN_KEYS_USER)


def ids(told: list[tuple[str, BlockTokenKeys]]) -> list[tuple[str, list[int]]]:
    return [(name, [key.key_id for key in keys.keys]) for name, keys in told]


def test_a_key_is_made_and_told_to_each_life_of_each_datanode_once():
    leader = Leader()
    assert leader.turn() == []  # the first key is on its way through the log
    first = leader.row().generation
    assert ids(leader.turn()) == [("dn1", [first]), ("dn2", [first])]
    assert leader.turn() == []
    leader.lives["dn2"] = 2
    assert ids(leader.turn()) == [("dn2", [first])]
    leader.deaf.add("dn1")
    leader.lives["dn1"] = 2
    assert ids(leader.turn()) == [("dn1", [first])]
    assert leader.turn(RETRY_MS - 1) == []
    assert ids(leader.turn(1)) == [("dn1", [first])]


def test_a_key_is_rolled_daily_and_a_new_leader_tells_everybody():
    leader = Leader()
    leader.turn()
    leader.turn()
    first = leader.row().generation
    leader.turn(ROLL_MS)
    second = leader.row().generation
    assert second > first
    assert ids(leader.turn()) == [("dn1", [second, first]), ("dn2", [second, first])]
    successor = Leader(leader.world)
    assert ids(successor.turn()) == [("dn1", [second, first]), ("dn2", [second, first])]
    assert ids(successor.turn(KEPT_MS)) == [("dn1", [second]), ("dn2", [second])]
    assert successor.proposed == []


def test_a_wall_clock_that_is_set_rolls_no_key():
    leader = Leader()
    leader.turn()
    leader.turn()
    made = len(leader.proposed)
    leader.ahead_ms = ROLL_MS + 3_600_000
    leader.pass_time(leader.ahead_ms)
    for _ in range(20):
        leader.turn(500)
    assert len(leader.proposed) == made


def test_tokens_are_made_with_a_key_that_datanodes_know():
    leader = Leader()
    assert leader.issuer.tokens([BLOCK], READ_BLOCK) is None
    leader.turn()
    ((_, keys), _) = leader.turn()
    made = leader.issuer.tokens([BLOCK, BLOCK], READ_BLOCK)
    assert made is not None
    assert made["lasts_ms"] == TOKEN_LIFETIME_MS
    known = {key.key_id: key for key in keys.keys}
    token = verified_token(bytes.fromhex(made["tokens"][1]), known, leader.world.clock.now_ms)
    assert (token.container_id, token.local_id, token.length, token.operations) == (7, 1, 100, READ_BLOCK)
    leader.turn(ROLL_MS)
    leader.pass_time(KNOWN_MS)
    assert leader.issuer.key().key_id == keys.newest  # type: ignore[union-attr]
    leader.pass_time(SPREAD_MS)
    assert leader.issuer.key().key_id == leader.row().generation  # type: ignore[union-attr]


def test_a_key_that_may_be_stolen_is_rolled_at_once():
    leader = Leader()
    leader.turn()
    leader.turn()
    stolen = leader.issuer.tokens([BLOCK], READ_BLOCK)
    assert stolen is not None
    assert leader.world.do(RotateUser(user=TOKEN_KEYS_USER, overlap_ms=0)).status == "OK"
    ((_, keys), _) = leader.turn()
    assert [key.key_id for key in keys.keys] == [leader.row().generation]
    with pytest.raises(BadBlockToken, match="not valid here"):
        verified_token(bytes.fromhex(stolen["tokens"][0]), {keys.newest: keys.keys[0]}, leader.world.clock.now_ms)
    fresh = leader.issuer.tokens([BLOCK], READ_BLOCK)
    assert fresh is not None
    verified_token(bytes.fromhex(fresh["tokens"][0]), {keys.newest: keys.keys[0]}, leader.world.clock.now_ms)


def test_a_removed_key_is_made_again_with_another_id():
    leader = Leader()
    leader.turn()
    leader.turn()
    first = leader.row().generation
    assert leader.world.do(RemoveUser(user=TOKEN_KEYS_USER)).status == "OK"
    leader.turn()
    assert leader.row().generation > first
    assert {name for name, _ in ids(leader.turn())} == {"dn1", "dn2"}


def test_below_its_level_datanodes_are_told_that_there_are_no_tokens():
    leader = Leader()
    state = leader.replica.state
    leader.replica.state = replace(state, feature_level=SMALL_OBJECTS)
    assert [keys for _, keys in leader.turn()] == [BlockTokenKeys(newest=0, keys=[])] * 2
    assert leader.proposed == []
    assert leader.turn() == []
    leader.replica.state = state
    leader.turn()
    assert [keys.newest for _, keys in leader.turn()] == [leader.row().generation] * 2


def test_a_flagged_replica_tells_nothing_and_makes_no_tokens():
    leader = Leader()
    leader.turn()
    leader.replica.evidence = object()
    leader.lives["dn1"] = 9
    leader.pass_time(KNOWN_MS)
    assert leader.turn() == []
    assert leader.issuer.key() is None


def test_nobody_signs_as_the_keys_user():
    leader = Leader()
    leader.turn()
    generation = leader.row().generation
    signer = credentials_of(SECRET, TokenName(user=TOKEN_KEYS_USER, generation=generation, number=0))
    request = Request(
        client_id=bytes(16), call_id=1, first_sent_at_ms=leader.world.clock.now_ms, answered_below=0, reply_partition=0,
        caller=TOKEN_KEYS_USER, body=CreateVolume(volume="vol1"),
    )  # fmt: skip
    value = encode(request)
    identities = Identities(SECRET, lambda: leader.replica, leader.world.clock)
    found = identities.of_request(seal_of(sealed_key(signer, value), value), request)
    assert isinstance(found, Denied)
    assert "signs nothing" in found.message
