"""Feature levels: which version of a schema may be written, and what a level brought."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas import features
from schemas.codecs.codec import Unencodable, decode, encode, encode_at
from schemas.codecs.registry import registry
from schemas.records.identity import TOKEN_REQUESTS, USER_REQUESTS, ChangeAcl, CreateUser, ProvenCaller
from schemas.records.log import Genesis, Tick
from schemas.records.messages import (
    FLEET_REQUESTS,
    LEADER_REQUESTS,
    RESERVATION_REQUESTS,
    SHARD_COMMANDS,
    SNAPSHOT_REQUESTS,
    CommitReserved,
    CreatePipeline,
    CreateVolume,
    ExpireOpenKeys,
    PreparedRequest,
    PurgeBlocks,
    PutKey,
    ReleaseBlocks,
    RemoveDatanode,
    RepairQuota,
    Request,
    RequestBody,
    ReserveBlocks,
    RetirePipeline,
    SetDatanodeState,
)
from schemas.records.rows import Acl, BlockLocation, KeyInfo

GENESIS = Genesis(
    term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32), cluster="c", shard=0, shards=1, replicas=["a"],
    column_families=["t"], feature_level=features.LATEST,
)  # fmt: skip


def test_levels_count_up_without_gaps():
    assert list(features.NAMES) == list(range(1, features.LATEST + 1))


@pytest.mark.parametrize("name", [version.name for version in registry])
def test_every_version_of_every_schema_has_a_level(name: str):
    versions = registry.versions(name)
    levels = features.VERSIONS.get(name, (features.INITIAL,))
    assert len(levels) == len(versions), f"say in features.VERSIONS which level brought each version of {name}"
    assert list(levels) == sorted(levels)
    assert set(levels) <= set(features.NAMES)
    assert registry.version(name, features.version_at(name, features.LATEST)) is registry.current(name)


def test_only_later_requests_are_tied_to_a_level():
    later = {
        *SHARD_COMMANDS,
        *FLEET_REQUESTS,
        *LEADER_REQUESTS,
        *SNAPSHOT_REQUESTS,
        *RESERVATION_REQUESTS,
        PutKey,
        RepairQuota,
    }
    assert set(features.COMMANDS) <= later | {*USER_REQUESTS, *TOKEN_REQUESTS, ChangeAcl}
    assert features.level_of_command(CreateVolume(volume="v")) == features.INITIAL


def test_an_earlier_level_writes_the_earlier_version_and_it_is_read():
    older = encode_at(GENESIS, features.INITIAL)
    assert older[2:10] == registry.version("Genesis", 1).fingerprint
    assert decode(older) == replace(GENESIS, feature_level=features.INITIAL)
    assert encode_at(GENESIS, features.LATEST) == encode(GENESIS)
    tick = Tick(term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32))
    assert encode_at(tick, features.INITIAL) == encode(tick)


EXPIRY = ExpireOpenKeys(shard=0, modified_before_ms=1, rows=[b"/v/b/k/255"])


def request(body: RequestBody) -> Request:
    return Request(
        client_id=bytes(16), call_id=1, first_sent_at_ms=0, answered_below=0, reply_partition=0, caller="", body=body
    )


@pytest.mark.parametrize(
    "body", [CreateVolume(volume="v"), PurgeBlocks(shard=0, rows=[b"a"])], ids=["INITIAL", "DATANODES"]
)
def test_until_finalize_older_software_reads_the_requests_of_the_log(body: RequestBody):
    """What a RequestBatch holds at a level is written with that level's schema."""
    level = features.level_of_command(body)
    for at, version in ((level, features.version_at("Request", level)), (features.LATEST, 9)):
        value = encode_at(request(body), at)
        assert value[2:10] == registry.version("Request", version).fingerprint
        assert decode(value) == request(body)


def test_expiry_of_open_keys_is_of_its_own_level():
    assert features.level_of_command(EXPIRY) == features.level_of_type("ExpireOpenKeys") == features.OPEN_KEY_EXPIRY
    assert decode(encode_at(request(EXPIRY), features.OPEN_KEY_EXPIRY)) == request(EXPIRY)
    with pytest.raises(Unencodable):
        encode_at(request(EXPIRY), features.DATANODES)


def test_the_levels_before_changed_nothing_else():
    """OPEN_KEY_EXPIRY brought a request and no more: all that DATANODES writes but requests stays as it is."""
    brought = {name for name, levels in features.VERSIONS.items() if features.OPEN_KEY_EXPIRY in levels}
    assert brought == {"Request"}


def test_small_objects_are_of_their_own_level():
    put = request(PutKey(volume="v", bucket="b", key="k", data=b"bytes", metadata={"a": "b"}))
    assert features.level_of_command(put.body) == features.level_of_type("PutKey") == features.SMALL_OBJECTS
    assert decode(encode_at(put, features.SMALL_OBJECTS)) == put
    with pytest.raises(Unencodable):
        encode_at(put, features.SNAPSHOTS)
    brought = {name for name, levels in features.VERSIONS.items() if features.SMALL_OBJECTS in levels}
    assert brought == {"KeyInfo", "Request"}


def test_rows_of_keys_of_earlier_levels_are_not_inline():
    info = KeyInfo(
        volume="v", bucket="b", key="k", owner="o", object_id=1, update_id=2, size=3, replication="RATIS/THREE",
        blocks=[], metadata={}, creation_time_ms=4, modification_time_ms=5,
    )  # fmt: skip
    for level in range(features.INITIAL, features.SMALL_OBJECTS):
        assert decode(encode_at(info, level)) == info
    assert decode(encode(replace(info, inline=True))).inline


def test_access_control_is_of_its_own_level():
    made = request(CreateUser(user="alice", groups=["staff"]))
    assert features.level_of_command(made.body) == features.level_of_type("ChangeAcl") == features.ACCESS_CONTROL
    assert decode(encode_at(made, features.ACCESS_CONTROL)) == made
    with pytest.raises(Unencodable):
        encode_at(made, features.SMALL_OBJECTS)
    brought = {name for name, levels in features.VERSIONS.items() if features.ACCESS_CONTROL in levels}
    rows = {"VolumeInfo", "BucketInfo", "KeyInfo", "PrefixInfo", "UserRow", "TokenRow"}
    assert brought == {"Request", "PreparedRequest", *rows}


def test_below_its_level_neither_lists_nor_standings_are_written():
    acl = Acl(type="WORLD", name="", rights=1, scope="ACCESS")
    info = KeyInfo(
        volume="v", bucket="b", key="k", owner="o", object_id=1, update_id=2, size=3, replication="RATIS/THREE",
        blocks=[], metadata={}, creation_time_ms=4, modification_time_ms=5, acls=[acl],
    )  # fmt: skip
    assert decode(encode_at(info, features.SMALL_OBJECTS)).acls == []
    assert decode(encode_at(info, features.ACCESS_CONTROL)) == info
    standing = ProvenCaller(administrator=False, groups=["staff"], generation=7, token=0)
    prepared = PreparedRequest(
        request=b"", object_id=0, session_id=0, blocks=[], status="OK", message="", standing=standing
    )
    assert decode(encode_at(prepared, features.SMALL_OBJECTS)).standing is None
    assert decode(encode_at(prepared, features.ACCESS_CONTROL)) == prepared


BLOCK = BlockLocation(container_id=1, local_id=2, offset=0, length=3, pipeline="p", bcs_id=4)


@pytest.mark.parametrize(
    "body",
    [
        ReserveBlocks(volume="v", bucket="b", count=64),
        CommitReserved(volume="v", bucket="b", key="k", session_id=5, size=3, blocks=[BLOCK], metadata={"a": "b"}),
        ReleaseBlocks(volume="v", bucket="b", session_id=5),
    ],
    ids=lambda body: type(body).__name__,
)
def test_block_reservations_are_of_their_own_level(body: RequestBody):
    kind = type(body).__name__
    assert features.level_of_command(body) == features.level_of_type(kind) == features.BLOCK_RESERVATIONS
    assert decode(encode_at(request(body), features.BLOCK_RESERVATIONS)) == request(body)
    with pytest.raises(Unencodable):
        encode_at(request(body), features.ACCESS_CONTROL)


def test_a_repair_of_quotas_is_of_its_own_level():
    body = RepairQuota(
        volume="v", bucket="", update_id=1, kept_bytes=-5, counted_bytes=2, kept_names=3, counted_names=4
    )
    assert features.level_of_command(body) == features.level_of_type("RepairQuota") == features.DELETION_GRACE
    assert decode(encode_at(request(body), features.DELETION_GRACE)) == request(body)
    with pytest.raises(Unencodable):
        encode_at(request(body), features.LISTED_SUMS)


@pytest.mark.parametrize(
    "body",
    [
        CreatePipeline(partition=0, members=[], generation=2), RetirePipeline(partition=0, reason="", generation=1),
        SetDatanodeState(datanode="dn1", state="DECOMMISSIONED", changed_at_ms=5),
    ],
    ids=lambda body: type(body).__name__,
)  # fmt: skip
def test_a_request_that_names_a_row_is_of_the_level_that_can_say_it(body: RequestBody):
    """Without the name it is as before, so that a node of older software may lead until finalize."""
    without: Any = {features.NAMING[type(body)]: 0}
    unnamed = replace(body, **without)
    assert features.level_of_command(unnamed) == features.DATANODES
    assert decode(encode_at(request(unnamed), features.DATANODES)) == request(unnamed)
    assert features.level_of_command(body) == features.DELETION_GRACE
    assert decode(encode_at(request(body), features.DELETION_GRACE)) == request(body)


def test_a_removal_of_datanodes_is_of_its_own_level():
    body = RemoveDatanode(datanode="dn1")
    assert features.level_of_command(body) == features.level_of_type("RemoveDatanode") == features.DELETION_GRACE
    with pytest.raises(Unencodable):
        encode_at(request(body), features.LISTED_SUMS)


def test_block_reservations_brought_requests_alone():
    """A reservation is a row of openKeyTable as software of the level before reads it."""
    brought = {name for name, levels in features.VERSIONS.items() if features.BLOCK_RESERVATIONS in levels}
    assert brought == {"Request"}


def test_an_unknown_version():
    with pytest.raises(KeyError):
        registry.version("Genesis", 99)
