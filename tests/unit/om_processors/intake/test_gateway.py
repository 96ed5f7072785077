"""What a leader does with privileged requests that come with a proof, without one, or with a wrong one."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from om_processors.intake.gateway import Gateway, Received
from replicated_db.core.leading.leader import Proposal, Reply
from schemas.codecs.codec import decode_as, encode
from schemas.privilege import PRIVILEGED, ClusterSecret
from schemas.records.identity import CreateUser, RemoveUser, RotateUser
from schemas.records.messages import (
    AddNode,
    CancelPrepare,
    CreatePipeline,
    CreateVolume,
    ExpireOpenKeys,
    Finalize,
    LogDigestBase,
    Prepare,
    PurgeBlocks,
    PurgeSnapshots,
    RemoveDatanode,
    RemoveNode,
    RepairQuota,
    RequestBody,
    Response,
    RetirePipeline,
    SetDatanodeState,
    SetRequestMode,
)
from schemas.topics import MAX_REQUEST_BYTES
from tests.support.local.secret import SECRET, SECRET_TEXT
from tests.support.om.om_world import request_of

BODIES: list[Any] = [
    LogDigestBase(shard=0, index=1, slots=[], sums=[], basis="oracle"), AddNode(shard=0, node="om4"),
    RemoveNode(shard=0, node="om3"), Prepare(shard=0, checkpoint="c"), CancelPrepare(shard=0), Finalize(shard=0, level=2),
    SetRequestMode(shard=0, request_type="CreateKey", mode="late"), CreatePipeline(partition=0, members=[]),
    RetirePipeline(partition=0, reason=""), SetDatanodeState(datanode="dn1", state="IN_SERVICE"),
    PurgeBlocks(shard=0, rows=[b"row"]), ExpireOpenKeys(shard=0, modified_before_ms=1, rows=[b"row"]),
    PurgeSnapshots(shard=0, rows=[b"/vol1/bucket1/#1"]), CreateUser(user="alice"), RotateUser(user="alice", overlap_ms=0),
    RemoveUser(user="alice"),
    RemoveDatanode(datanode="dn1"),
    RepairQuota(volume="vol1", bucket="", update_id=1, kept_bytes=1, counted_bytes=2, kept_names=3, counted_names=4),
]  # fmt: skip
OTHER = ClusterSecret(b"the secret of some other cluster, or none")


def admit(body: RequestBody, proof: bytes | ClusterSecret | None) -> Any:
    value = encode(request_of(body))
    if isinstance(proof, ClusterSecret):
        proof = proof.proof(value)
    return Gateway(shard=0, node="om1", secret=SECRET).admit(Received(offset=0, value=value, key=proof), 0)


def test_every_privileged_request_is_here():
    assert {type(body) for body in BODIES} == PRIVILEGED
    assert set(get_args(RequestBody)) > PRIVILEGED


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_privileged_request_needs_the_proof(body: RequestBody):
    assert isinstance(admit(body, SECRET), Proposal)
    for proof, what in [
        (None, "has no proof of"),
        (b"", "another secret"),
        (OTHER, "another secret"),
        (bytes(32), "another"),
    ]:
        refused = admit(body, proof)
        assert isinstance(refused, Reply), "at once, without an index: nothing depends on it"
        response = decode_as(Response, refused.response)
        assert (response.status, response.index) == ("PERMISSION_DENIED", -1)
        assert what in response.message
        assert "'cluster_secret_file'" in response.message
        assert SECRET_TEXT not in response.message


def test_a_proof_of_another_request_proves_nothing():
    other = SECRET.proof(encode(request_of(BODIES[0], caller="somebody else")))
    assert isinstance(admit(BODIES[0], other), Reply)


def test_an_ordinary_request_needs_none_and_may_have_any():
    for proof in (None, b"", OTHER, SECRET):
        assert isinstance(admit(CreateVolume(volume="vol1"), proof), Proposal)


def test_a_privileged_request_that_is_too_large_is_refused_for_that():
    refused = admit(PurgeBlocks(shard=0, rows=[bytes(MAX_REQUEST_BYTES)]), SECRET)
    assert decode_as(Response, refused.response).status == "REQUEST_TOO_LARGE"
