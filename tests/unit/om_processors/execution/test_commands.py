"""Operators' commands: what each logs, what it refuses, and that giving it again changes nothing."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from om_processors.errors import OMError
from om_processors.execution.commands import MAX_MEMBERS, command
from replicated_db.core.errors import Refused
from replicated_db.core.execution.shard_state import ShardState
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.tables.column_families import families
from replicated_db.core.tables.digests import DigestSlots
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.overlay import Overlay
from schemas import features
from schemas import result_codes as codes
from schemas.records.log import FORCED, LATE_MODE, LEADER_MODE, DigestBase, FeatureLevel, Members, Mode, Prepared
from schemas.records.messages import (
    OWN_DIGESTS,
    SHARD_COMMANDS,
    AddNode,
    CancelPrepare,
    Finalize,
    LogDigestBase,
    Prepare,
    RemoveNode,
    SetRequestMode,
    ShardCommand,
)

FAMILIES = families(["things"], [])
STATE = ShardState(replicas=("om1", "om2"), feature_level=features.LATEST)


OWN = DigestSlots([1], [2])
"""The leader's digests."""


def run(body: ShardCommand, state: ShardState = STATE, index: int = 5, *, settled: bool = True) -> Transaction:
    transaction = Transaction(FAMILIES, Overlay(MemoryStore(FAMILIES.names)), index, state)
    transaction.settled = lambda: OWN if settled else None
    command(body, transaction, shard=1)
    return transaction


def logged(body: ShardCommand, state: ShardState = STATE) -> tuple[type, dict[str, Any]] | None:
    operations = run(body, state).control_operations
    return (operations[0].record, operations[0].fields) if operations else None


def refused(body: ShardCommand, state: ShardState = STATE, *, settled: bool = True) -> str:
    with pytest.raises(OMError) as error:
        run(body, state, settled=settled)
    return f"{error.value.status}: {error.value.message}"


def test_add_node():
    assert logged(AddNode(shard=1, node="om3")) == (Members, {"replicas": ["om1", "om2", "om3"]})
    assert logged(AddNode(shard=1, node="om2")) is None
    assert "INVALID_REQUEST: a node's name has 1 to 63 characters, not 0" in refused(AddNode(shard=1, node=""))
    full = ShardState(replicas=tuple(f"n{n}" for n in range(MAX_MEMBERS)), feature_level=features.LATEST)
    assert f"there are {MAX_MEMBERS} members already" in refused(AddNode(shard=1, node="om3"), full)


def test_remove_node():
    assert logged(RemoveNode(shard=1, node="om1")) == (Members, {"replicas": ["om2"]})
    assert logged(RemoveNode(shard=1, node="om9")) is None
    last = ShardState(replicas=("om1",), feature_level=features.LATEST)
    assert "om1 is the last member" in refused(RemoveNode(shard=1, node="om1"), last)


def test_prepare_takes_its_checkpoint_each_time_and_logs_the_state_once():
    body = Prepare(shard=1, checkpoint="v2")
    first = run(body)
    assert (first.checkpoint_name, first.control_operations[0].record) == ("v2", Prepared)
    prepared = ShardState(replicas=("om1",), feature_level=features.LATEST, prepared="v2")
    again = run(body, prepared)
    assert (again.checkpoint_name, again.control_operations) == ("v2", ())
    assert "prepared already, with the checkpoint v2" in refused(Prepare(shard=1, checkpoint="v3"), prepared)
    assert "illegal checkpoint name '../x'" in refused(Prepare(shard=1, checkpoint="../x"))
    assert "'snapshot-' are those of snapshots" in refused(Prepare(shard=1, checkpoint="snapshot-1"))
    assert logged(CancelPrepare(shard=1), prepared) == (Prepared, {"prepared": False, "checkpoint": ""})
    assert logged(CancelPrepare(shard=1)) is None


def test_finalize_only_rises_and_only_to_a_level_that_is_known():
    old = ShardState(replicas=("om1",), feature_level=features.INITIAL)
    latest = features.LATEST
    assert logged(Finalize(shard=1, level=latest), old) == (FeatureLevel, {"level": latest})
    assert logged(Finalize(shard=1, level=latest)) is None
    assert "levels only rise" in refused(Finalize(shard=1, level=features.INITIAL))
    assert f"feature level {latest + 1} is not known" in refused(Finalize(shard=1, level=latest + 1))


def test_a_digest_base_is_of_the_last_index():
    body = LogDigestBase(shard=1, index=4, slots=[1], sums=[2], basis="oracle")
    assert logged(body) == (DigestBase, {"slots": [1], "sums": [2], "basis": "oracle"})
    moved = "INDEX_MOVED: the digests are of index 3, the shard is at 4"
    assert refused(LogDigestBase(shard=1, index=3, slots=[], sums=[], basis="oracle")) == moved
    assert refused(body, settled=False) == "INDEX_MOVED: requests before it are on their way: ask again"
    assert "the basis has 201 characters, over 200" in refused(replace(body, basis="x" * 201))


def test_a_digest_base_that_the_leader_does_not_hold_is_logged_only_if_it_is_forced():
    body = LogDigestBase(shard=1, index=4, slots=[1, 256], sums=[2, 3], basis="oracle")
    assert refused(body).startswith(
        "DIGESTS_DIFFER: the leader's digests are others in 1 slots, the first being bucket 0 of things: 0, not 3. Nothing was logged"
    )
    assert "bucket 1 of retryTable: 2, not 5" in refused(replace(body, slots=[1], sums=[5]))
    forced = replace(body, basis=FORCED + "oracle")
    assert logged(forced) == (DigestBase, {"slots": [1, 256], "sums": [2, 3], "basis": "forced: oracle"})


def test_a_base_is_of_the_leaders_own_digests_and_names_the_members():
    body = LogDigestBase(shard=1, index=OWN_DIGESTS, slots=[], sums=[], basis="trim")
    base, members = run(body).control_operations
    assert (base.record, base.fields) == (DigestBase, {"slots": OWN.numbers, "sums": OWN.sums, "basis": "trim"})
    assert (members.record, members.fields) == (Members, {"replicas": ["om1", "om2"]})
    assert refused(body, settled=False) == "INDEX_MOVED: requests before it are on their way: ask again"
    assert refused(replace(body, slots=[1], sums=[2])).startswith("INVALID_REQUEST: a base of the leader's own")
    old = ShardState(replicas=("om1",), feature_level=features.INITIAL)
    assert refused(body, old).startswith(codes.NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION)
    nobody = ShardState(feature_level=features.LATEST)
    with pytest.raises(Refused, match="does not name the shard's members"):
        run(body, nobody)


def test_a_refusal_does_not_repeat_the_request():
    assert len(refused(Prepare(shard=1, checkpoint="\x01" * 100_000))) < 1_200


def test_another_shards_command_is_refused():
    assert refused(AddNode(shard=0, node="om3")).startswith(codes.WRONG_SHARD)


@pytest.mark.parametrize(
    "body", [AddNode(shard=1, node="om3"), Prepare(shard=1, checkpoint="c"), CancelPrepare(shard=1)]
)
def test_a_command_of_a_later_level_waits_for_finalize(body: ShardCommand):
    old = ShardState(replicas=("om1",), feature_level=features.INITIAL)
    assert refused(body, old).startswith(codes.NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION)


def test_every_command_names_its_shard():
    assert all("shard" in {field.name for field in fields(cls)} for cls in SHARD_COMMANDS)


def test_set_request_mode():
    late = SetRequestMode(shard=1, request_type="CreateKey", mode=LATE_MODE)
    assert logged(late) == (Mode, {"request_type": "CreateKey", "mode": LATE_MODE})
    assert logged(SetRequestMode(shard=1, request_type="CreateKey", mode=LEADER_MODE)) is None
    in_late = replace(STATE, late=frozenset({"CreateKey"}))
    assert logged(late, in_late) is None
    assert logged(SetRequestMode(shard=1, request_type="CreateKey", mode=LEADER_MODE), in_late) is not None
    assert "INVALID_REQUEST: mode 'lazy' is none of leader, late" in refused(
        SetRequestMode(shard=1, request_type="CreateKey", mode="lazy")
    )
    for name in ("Prepare", "SetRequestMode", "", "NoSuch"):
        assert f"no mode can be set for requests of type {name!r}" in refused(
            SetRequestMode(shard=1, request_type=name, mode=LATE_MODE)
        )


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *(
            (name, features.DATANODES)
            for name in ("CreatePipeline", "RetirePipeline", "SetDatanodeState", "PurgeBlocks")
        ),
        ("ExpireOpenKeys", features.OPEN_KEY_EXPIRY),
        ("RemoveDatanode", features.DELETION_GRACE),
    ],
)
def test_requests_that_the_log_cannot_hold_yet_get_no_mode(name: str, level: int):
    """A leader could not write one into a RequestBatch of that level, not even to refuse it."""
    body = SetRequestMode(shard=1, request_type=name, mode=LATE_MODE)
    old = ShardState(replicas=("om1",), feature_level=level - 1)
    assert refused(body, old).startswith(
        f"{codes.NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION}: a mode of {name} needs feature level {level}"
    )
    assert logged(body, replace(old, feature_level=level)) is not None
