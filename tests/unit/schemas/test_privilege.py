"""Proofs of the cluster's secret: what they are of, and that nothing shows the secret."""

from __future__ import annotations

import copy
import hmac
import pickle
from typing import get_args

import httpx
import pytest

from schemas.privilege import (
    MAX_SECRET_BYTES,
    MIN_SECRET_BYTES,
    PRIVILEGED,
    ClusterSecret,
)
from schemas.records.identity import UserRequest
from schemas.records.messages import FleetRequest, LeaderRequest, RepairQuota, RequestBody, ShardCommand

TEXT = b"0123456789abcdef0123456789abcdef"
SECRET = ClusterSecret(TEXT)
OTHER = ClusterSecret(TEXT + b"!")


def test_operators_leaders_and_the_fleets_requests_are_privileged_and_no_others():
    assert frozenset(get_args(ShardCommand | FleetRequest | LeaderRequest | UserRequest | RepairQuota)) == PRIVILEGED
    names = {body.__name__ for body in get_args(RequestBody) if body not in PRIVILEGED}
    assert names == {
        "CreateVolume", "SetVolumeProperty", "DeleteVolume", "CreateBucket", "SetBucketProperty", "DeleteBucket", "CreateKey",
        "AllocateBlock", "CommitKey", "PutKey", "DeleteKey", "RenameKey", "CreateSnapshot", "DeleteSnapshot",
        "RenameSnapshot", "SetSnapshotProperty", "GetDelegationToken", "RenewDelegationToken",
        "CancelDelegationToken", "ChangeAcl", "ReserveBlocks", "CommitReserved", "ReleaseBlocks",
    }  # fmt: skip


def test_a_proof_is_of_the_bytes_and_the_secret():
    proof = SECRET.proof(b"request")
    assert len(proof) == 32
    assert SECRET.proof(b"request") == proof, "a request that is sent again has the same"
    assert SECRET.proves(proof, b"request")
    for wrong in (None, b"", proof[:-1], proof + b"\0", bytes(32), OTHER.proof(b"request")):
        assert not SECRET.proves(wrong, b"request")
    assert not SECRET.proves(proof, b"requesu")
    assert proof != hmac.digest(TEXT, b"request", "sha256"), "of a key of its own, not of the secret itself"


def test_an_authorization_is_of_method_host_and_target():
    given = SECRET.authorization("POST", "om1:9871", "/v1/shards/0/transfer?node=om2")
    assert SECRET.authorizes(given, "POST", "OM1:9871", "/v1/shards/0/transfer?node=om2")
    for method, host, target in [
        ("PUT", "om1:9871", "/v1/shards/0/transfer?node=om2"),
        ("POST", "om2:9871", "/v1/shards/0/transfer?node=om2"),
        ("POST", "om1:9871", "/v1/shards/0/transfer?node=om3"),
        ("POST", "om1:9871/v1", "/shards/0/transfer?node=om2"),
    ]:
        assert not SECRET.authorizes(given, method, host, target)
        assert not OTHER.authorizes(given, method, host, target)
    for wrong in (None, "", "Bearer x", given[:-1], given.upper(), "Stratolog \udcff", "Stratolog ö"):
        assert not SECRET.authorizes(wrong, "POST", "om1:9871", "/v1/shards/0/transfer?node=om2")


def test_httpx_sends_what_the_server_looks_at():
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200)

    with httpx.Client(transport=httpx.MockTransport(answer), auth=SECRET.sign) as client:
        client.post("http://[::1]:9871/v1/x", params={"node": "a b", "address": "h:1"})
        client.post("http://om1/v1/x")
    for request in seen:
        target = request.url.raw_path.decode()
        assert SECRET.authorizes(request.headers["Authorization"], "POST", request.headers["Host"], target)
    assert [request.headers["Host"] for request in seen] == ["[::1]:9871", "om1"]


@pytest.mark.parametrize("size", [0, MIN_SECRET_BYTES - 1, MAX_SECRET_BYTES + 1])
def test_a_secret_has_a_size(size: int):
    with pytest.raises(ValueError, match=f"a secret has 32 to 4096 bytes, not {size}"):
        ClusterSecret(b"s" * size)


def test_nothing_shows_the_secret():
    assert repr(SECRET) == str(SECRET) == "ClusterSecret(…)"
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            copied(SECRET)
    assert not any(TEXT in value for name in SECRET.__slots__ if isinstance(value := getattr(SECRET, name), bytes))
