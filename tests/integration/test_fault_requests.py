"""Requests that come twice, too late, or wrong: one effect and one answer, a clear error, and nothing stops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from producers import Client, RequestFailed
from producers.requests.keys import fit_blocks
from replicated_db.core.execution.retry import REQUEST_LIFETIME_MS
from schemas import result_codes as codes
from schemas.codecs.codec import decode_as, encode
from schemas.codecs.envelopes import MAX_ENVELOPE_MESSAGES, enveloped_requests
from schemas.codecs.registry import MARKER
from schemas.column_families import RETRY_TABLE
from schemas.privilege import ClusterSecret
from schemas.records.datanode import Member
from schemas.records.messages import (
    AddNode,
    CreateBucket,
    CreateKey,
    CreatePipeline,
    CreateVolume,
    LogDigestBase,
    Prepare,
    PurgeBlocks,
    RemoveDatanode,
    RemoveNode,
    Requests,
    Response,
    SetDatanodeState,
    SetRequestMode,
)
from schemas.topics import MAX_REQUEST_BYTES, OM_AUDIT, OM_REJECTED, OM_REQUESTS, OM_RESPONSES, OM_VERDICTS
from stratolog.drills.kit.load import put_key
from tests.support.faults.odd_records import append_with_bad_header
from tests.support.faults.stack_faults import RawClient, RejectedTap, assert_log_agrees, fresh_volume
from tests.support.local.stack import TestStack
from tests.support.logs.judged_log import read_log

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
SHARDS = 2


STACK = {"nodes": 3, "shards": SHARDS, "barrier_interval_ms": 200}


@pytest.fixture
def raw(stack: TestStack) -> Iterator[RawClient]:
    with RawClient(stack.settings.bootstrap_servers, SHARDS) as found:
        yield found


def data_digest(stack: TestStack) -> dict[int, dict[str, Any]]:
    """Return the sums of every family but the retry rows', per shard, once the replicas agree."""
    stack.wait_converged()
    found = {}
    for shard in range(SHARDS):
        answer = stack.get(stack.names[0], f"/v1/shards/{shard}/digest", scrub="true").json()
        slots = dict(zip(answer["slots"], answer["sums"], strict=True))
        found[shard] = {slot: total for slot, total in slots.items() if slot >= 256}
    return found


# ------------------------------------------------------------------------------------------------- the same one twice


def test_one_request_in_flight_twice(stack: TestStack, raw: RawClient, fault_round: int) -> None:
    request = raw.request(CreateVolume(volume=fresh_volume(1, SHARDS)))
    value = encode(request)
    raw.send(*[value] * 20, shard=1)
    answers = raw.wait_answers(request.call_id, 20)
    assert len(set(answers)) == 1
    assert decode_as(Response, answers[0]).status == codes.OK
    stack.wait_converged()
    log = assert_log_agrees(stack, 1)
    assert log.results_by_call()[request.client_id, request.call_id.to_bytes(8, "big")] == 1


def test_one_request_across_a_leader_change(stack: TestStack, raw: RawClient, fault_round: int) -> None:
    shard = 0
    stack.wait_led()
    before = raw.request(CreateVolume(volume=fresh_volume(shard, SHARDS)))
    between = raw.request(CreateVolume(volume=fresh_volume(shard, SHARDS)))
    raw.send(encode(before), shard=shard)
    first = raw.wait_answers(before.call_id, 1)
    victim = stack.wait_leader(shard)
    stack.kill_node(victim)
    raw.send(encode(before), encode(between), encode(between), shard=shard)
    stack.wait_leader(shard, other_than=victim)
    answers = raw.wait_answers(before.call_id, 2)
    assert set(answers) == set(first), "a repeat after the change has another answer"
    assert len(set(raw.wait_answers(between.call_id, 2))) == 1
    stack.start_node(victim)
    stack.wait_led()
    raw.send(encode(before), encode(between), shard=shard)
    assert set(raw.wait_answers(before.call_id, 3)) == set(first)
    assert len(set(raw.wait_answers(between.call_id, 3))) == 1
    for request in (before, between):
        assert decode_as(Response, raw.answers(request.call_id)[0]).status == codes.OK
    stack.wait_converged()
    calls = assert_log_agrees(stack, shard).results_by_call()
    for request in (before, between):
        assert calls[request.client_id, request.call_id.to_bytes(8, "big")] == 1


def test_a_call_id_is_used_again(stack: TestStack, raw: RawClient) -> None:
    volume, other = fresh_volume(0, SHARDS), fresh_volume(0, SHARDS)
    first = raw.request(CreateVolume(volume=volume))
    second = raw.request(CreateVolume(volume=other), call_id=first.call_id)
    raw.send(encode(first), encode(second), encode(first), shard=0)
    answers = raw.wait_answers(first.call_id, 3)
    statuses = sorted(decode_as(Response, value).status for value in answers)
    assert statuses == [codes.CALL_ID_REUSED, codes.OK, codes.OK]
    stack.wait_converged()
    assert stack.get("om1", f"/v1/volumes/{volume}").status_code == 200
    assert stack.get("om1", f"/v1/volumes/{other}").status_code == 404
    assert_log_agrees(stack, 0)


@pytest.mark.parametrize("age_ms", [REQUEST_LIFETIME_MS + 5_000, -REQUEST_LIFETIME_MS - 5_000])
def test_a_request_has_expired(stack: TestStack, raw: RawClient, age_ms: int) -> None:
    volume = fresh_volume(1, SHARDS)
    before = data_digest(stack)
    response = raw.call(CreateVolume(volume=volume), age_ms=age_ms)
    assert response.status == codes.REQUEST_EXPIRED
    assert response.message
    assert data_digest(stack) == before
    # It leaves no retry row either: the same call id may be used once more, by a request of today.
    today = raw.request(CreateVolume(volume=volume), call_id=response.call_id)
    raw.send(encode(today), shard=1)
    assert decode_as(Response, raw.wait_answers(response.call_id, 2)[1]).status == codes.OK


# ---------------------------------------------------------------------------------------------------------- bad input


def refused(act: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(RequestFailed) as caught:
        act()
    return caught.value.status, caught.value.message


def test_refusals_name_the_input_and_change_nothing(stack: TestStack, client: Client) -> None:
    volume = fresh_volume(1, SHARDS)
    client.create_volume(volume, quota_in_bytes=1_000)
    client.create_bucket(volume, "bucket", quota_in_bytes=100, quota_in_namespace=2)
    put_key(client, volume, "bucket", "full", 90)
    session = client.create_key(volume, "bucket", "open", size=5)
    blocks = fit_blocks(session.blocks, 5)
    before = data_digest(stack)
    missing = fresh_volume(1, SHARDS)
    wrong = session.session_id + 1
    expected: list[tuple[str, str, Callable[[], Any]]] = [
        (codes.INVALID_VOLUME_NAME, "Upper_case", lambda: client.create_volume("Upper_case")),
        (codes.INVALID_BUCKET_NAME, "'a'", lambda: client.create_bucket(volume, "a")),
        (codes.INVALID_KEY_NAME, "empty", lambda: client.create_key(volume, "bucket", "", size=0)),
        (codes.VOLUME_NOT_FOUND, missing, lambda: client.create_bucket(missing, "bucket")),
        (codes.BUCKET_NOT_FOUND, "nowhere", lambda: client.create_key(volume, "nowhere", "k", size=0)),
        (codes.KEY_NOT_FOUND, "absent", lambda: client.delete_key(volume, "bucket", "absent")),
        (codes.KEY_NOT_FOUND, "absent", lambda: client.rename_key(volume, "bucket", "absent", "b")),
        (codes.VOLUME_ALREADY_EXISTS, volume, lambda: client.create_volume(volume)),
        (codes.BUCKET_ALREADY_EXISTS, "bucket", lambda: client.create_bucket(volume, "bucket", quota_in_bytes=1)),
        (codes.VOLUME_NOT_EMPTY, volume, lambda: client.delete_volume(volume)),
        (codes.BUCKET_NOT_EMPTY, "bucket", lambda: client.delete_bucket(volume, "bucket")),
        (codes.KEY_NOT_FOUND, str(wrong), lambda: client.commit_key(volume, "bucket", "open", wrong, size=5, blocks=blocks)),
        (codes.KEY_NOT_FOUND, str(wrong), lambda: client.allocate_block(volume, "bucket", "open", wrong)),
        (codes.INVALID_REQUEST, "-1", lambda: client.create_key(volume, "bucket", "k", size=-1)),
        (codes.INVALID_REQUEST, "-5", lambda: client.commit_key(volume, "bucket", "open", session.session_id, size=-5, blocks=[])),
        (codes.INVALID_REQUEST, "0", lambda: client.create_bucket(volume, "zero", quota_in_bytes=0)),
        (codes.QUOTA_EXCEEDED, "100", lambda: client.create_key(volume, "bucket", "large", size=11)),
        (codes.QUOTA_EXCEEDED, "1000", lambda: client.create_bucket(volume, "huge", quota_in_bytes=901)),
        (codes.QUOTA_ERROR, "bucket", lambda: client.create_bucket(volume, "boundless")),
        (codes.QUOTA_ERROR, "90", lambda: client.set_bucket_property(volume, "bucket", quota_in_bytes=89)),
    ]  # fmt: skip
    for code, named, act in expected:
        status, message = refused(act)
        assert status == code, (code, status, message)
        assert named in message, (code, message)
    assert data_digest(stack) == before
    client.commit_key(volume, "bucket", "open", session.session_id, size=5, blocks=blocks)
    assert refused(lambda: client.create_key(volume, "bucket", "third", size=0))[0] == codes.QUOTA_EXCEEDED


def test_a_foreign_shard(stack: TestStack, raw: RawClient) -> None:
    volume = fresh_volume(0, SHARDS)
    before = data_digest(stack)
    response = raw.call(CreateVolume(volume=volume), shard=1)
    assert response.status == codes.WRONG_SHARD
    assert volume in response.message
    assert "shard 0" in response.message
    assert data_digest(stack) == before
    assert raw.call(CreateVolume(volume=volume)).status == codes.OK


def test_what_nobody_can_be_answered_for_is_rejected_with_the_reason(stack: TestStack, raw: RawClient) -> None:
    shard = 1
    good = encode(raw.request(CreateVolume(volume=fresh_volume(shard, SHARDS))))
    unknown_schema = MARKER + b"\x11" * 8 + good[10:]
    junk = {
        b"": codes.UNDECODABLE,
        b"this is no request": codes.UNDECODABLE,
        good[:-3]: codes.UNDECODABLE,
        good + b"\x00": codes.UNDECODABLE,
        unknown_schema: codes.UNKNOWN_SCHEMA,
        os.urandom(MAX_REQUEST_BYTES + 1): codes.REQUEST_TOO_LARGE,
        # A record of ours, but no request.
        a_response(raw, shard): codes.UNDECODABLE,
    }
    before = data_digest(stack)
    with RejectedTap(stack.settings.bootstrap_servers) as rejected:
        raw.send(*junk, shard=shard)
        stack.wait("all rejected", lambda: len(rejected.records()) >= len(junk))
        records = rejected.records()
    assert [record.reason for record in records] == list(junk.values())
    for record, value in zip(records, junk, strict=True):
        assert record.shard == shard
        assert record.node in stack.names
        assert record.message
        assert record.value_size_bytes == len(value)
        assert value.startswith(record.value)
    assert "1111111111111111" in records[4].message
    assert data_digest(stack) == before
    assert raw.call(CreateVolume(volume=fresh_volume(shard, SHARDS))).status == codes.OK


def test_requests_in_one_record_stand_for_themselves(stack: TestStack, raw: RawClient) -> None:
    """Executed in order, answered one by one; what cannot be decoded among them is rejected alone, a broken envelope whole."""
    shard = 1
    volume = fresh_volume(shard, SHARDS)
    requests = [
        raw.request(CreateVolume(volume=volume)),
        raw.request(CreateBucket(volume=volume, bucket="bucket")),
        raw.request(CreateBucket(volume=volume, bucket="bucket")),
        raw.request(CreateBucket(volume=volume, bucket="second")),
    ]
    values = [encode(request) for request in requests]
    [envelope] = enveloped_requests([values[0], b"no request", *values[1:]])
    too_many = encode(Requests(requests=[values[0]] * (MAX_ENVELOPE_MESSAGES + 1)))
    with RejectedTap(stack.settings.bootstrap_servers) as rejected:
        raw.send(envelope, envelope[:-1], too_many, shard=shard)
        stack.wait("all rejected", lambda: len(rejected.records()) >= 3)
        assert {record.value for record in rejected.records()} == {b"no request", envelope[:-1], too_many}
        assert {record.reason for record in rejected.records()} == {codes.UNDECODABLE}
    answers = [decode_as(Response, raw.wait_answers(request.call_id, 1)[0]).status for request in requests]
    assert answers == [codes.OK, codes.OK, codes.BUCKET_ALREADY_EXISTS, codes.OK]
    raw.send(envelope, shard=shard)  # the same again: the same answers
    assert [len(set(raw.wait_answers(request.call_id, 2))) for request in requests] == [1, 1, 1, 1]


def a_response(raw: RawClient, shard: int) -> bytes:
    request = raw.request(CreateVolume(volume=fresh_volume(shard, SHARDS)))
    raw.send(encode(request), shard=shard)
    return raw.wait_answers(request.call_id, 1)[0]


def test_a_request_that_is_too_large_is_answered(stack: TestStack, raw: RawClient, client: Client) -> None:
    volume = fresh_volume(1, SHARDS)
    assert raw.call(CreateVolume(volume=volume)).status == codes.OK
    assert raw.call(CreateBucket(volume=volume, bucket="bucket")).status == codes.OK
    before = data_digest(stack)
    metadata = {"x": "y" * MAX_REQUEST_BYTES}
    response = raw.call(CreateKey(volume=volume, bucket="bucket", key="k", size=0, metadata=metadata))
    assert response.status == codes.REQUEST_TOO_LARGE
    assert str(MAX_REQUEST_BYTES) in response.message
    with pytest.raises(RequestFailed, match=codes.REQUEST_TOO_LARGE):  # the client does not even send it
        client.create_key(volume, "bucket", "k", size=0, metadata=metadata)
    assert data_digest(stack) == before


def test_a_request_of_legal_size_with_too_large_an_effect_is_answered(stack: TestStack, raw: RawClient) -> None:
    volume = fresh_volume(1, SHARDS)
    assert raw.call(CreateVolume(volume=volume)).status == codes.OK
    assert raw.call(CreateBucket(volume=volume, bucket="bucket")).status == codes.OK
    before = data_digest(stack)
    response = raw.call(CreateBucket(volume=volume, bucket="large", owner="y" * (MAX_REQUEST_BYTES - 130)))
    assert response.status == codes.REQUEST_TOO_LARGE
    assert data_digest(stack) == before


def test_a_reply_partition_that_does_not_exist(stack: TestStack, raw: RawClient, fault_round: int) -> None:
    volume = fresh_volume(1, SHARDS)
    lost = replace(raw.request(CreateVolume(volume=volume)), reply_partition=4711)
    raw.send(encode(lost), shard=1)
    response = raw.call(CreateVolume(volume=volume))
    assert response.status == codes.VOLUME_ALREADY_EXISTS, "the request had its effect, its answer could not be sent"


def test_nothing_has_stopped(stack: TestStack, client: Client) -> None:
    """Last in this file: after all of the above the same processes run, agree, and the log gives what they hold."""
    assert set(stack.nodes) == set(stack.names)
    assert all(process.is_running() for process in stack.nodes.values())
    stack.wait_converged()
    for shard in range(SHARDS):
        log = assert_log_agrees(stack, shard)
        assert any(cf == RETRY_TABLE for cf, _ in log.rows())
        assert not any(stack.shard(name, shard)["flagged"] for name in stack.names)
    assert read_log(stack.settings.bootstrap_servers, 0).position.term >= 1


# ---------------------------------------------------------------------------------------------------------- strangers


def privileged(stack: TestStack, shard: int) -> dict[str, Any]:
    """Return one request of each kind; each would change something, or flag every replica."""
    index = stack.shard(stack.wait_leader(shard), shard)["applied_index"]
    return {
        "digest base": LogDigestBase(shard=shard, index=index, slots=[1], sums=[1], basis="oracle"),
        "member": AddNode(shard=shard, node="evil"),
        "no member": RemoveNode(shard=shard, node="om3"),
        "prepare": Prepare(shard=shard, checkpoint="evil"),
        "mode": SetRequestMode(shard=shard, request_type="CreateKey", mode="late"),
        "pipeline": CreatePipeline(
            partition=255, members=[Member(datanode="d", address="a", http_address="h", rack="/r")]
        ),
        "datanode": SetDatanodeState(datanode="dn1", state="DECOMMISSIONING"),
        "removed datanode": RemoveDatanode(datanode="dn1"),
        "purge": PurgeBlocks(shard=shard, rows=[b"/v/b/k/1"]),
    }


def test_a_stranger_gets_nothing_done(stack: TestStack, raw: RawClient, client: Client, fault_round: int) -> None:
    """Without a proof, with one of another secret, with one of another request, and in an envelope, whose requests have none."""
    before = data_digest(stack)
    other = ClusterSecret(b"the secret of some other cluster, or a guess")
    asked = []
    for body in privileged(stack, 0).values():
        for secret in (None, other):
            raw.secret = secret
            asked.append(request := raw.request(body))
            raw.send(encode(request), shard=0)
    raw.secret = stack.settings.secret()
    asked += (enveloped := [raw.request(body) for body in privileged(stack, 0).values()])
    raw.send(encode(Requests(requests=[encode(request) for request in enveloped])), shard=0)
    for request in asked:
        response = decode_as(Response, raw.wait_answers(request.call_id, 1)[0])
        assert (response.status, response.index) == (codes.PERMISSION_DENIED, -1), request.body
    raw.secret = None
    with pytest.raises(RequestFailed, match="PERMISSION_DENIED"), stack.client(cluster_secret=None) as stranger:
        stranger.call(RemoveNode(shard=0, node="om3"))
    assert data_digest(stack) == before
    assert {stack.shard(name, 0)["flagged"] for name in stack.names} == {False}
    client.create_volume(fresh_volume(0, SHARDS))


def test_an_operators_wrong_digest_base_is_refused(
    stack: TestStack, raw: RawClient, client: Client, fault_round: int
) -> None:
    stack.wait_converged()
    index = stack.shard(stack.wait_leader(0), 0)["applied_index"]
    with pytest.raises(RequestFailed, match="DIGESTS_DIFFER: .* Nothing was logged"):
        client.log_digest_base(0, index, slots=[1], sums=[1], basis="oracle")
    raw.secret = stack.settings.secret()
    body = LogDigestBase(shard=0, index=index + 1, slots=[1], sums=[1], basis="oracle")
    assert raw.call(body, shard=0).status == codes.DIGESTS_DIFFER, "a proof lets it come so far"
    client.create_volume(fresh_volume(0, SHARDS))
    assert {stack.shard(name, 0)["flagged"] for name in stack.names} == {False}


def test_http_calls_of_strangers_are_refused(stack: TestStack, fault_round: int) -> None:
    leader = stack.wait_leader(0)
    other = next(name for name in stack.names if name != leader)
    url = f"http://{stack.address(leader)}/v1/shards/0"
    term = stack.shard(leader, 0)["term"]
    parameters = {"node": other, "address": stack.address(other), "owner": leader}
    foreign: dict[str, Any] = {"headers": {"Origin": "https://evil.example"}, "auth": stack.settings.secret().sign}
    for what in ("transfer", "borrow", "renew", "give-back", "read-index"):
        for how in ({}, foreign, {"auth": ClusterSecret(b"of another cluster" * 2).sign}):
            answer = httpx.post(f"{url}/{what}", params=parameters, timeout=30, trust_env=False, **how)
            assert (answer.status_code, answer.json()["error"]) == (403, codes.PERMISSION_DENIED)
    rebound = httpx.get(f"http://{stack.address(leader)}/v1/volumes", headers={"Host": "evil.example"}, trust_env=False)
    assert rebound.status_code == 403
    assert stack.get(other, "/v1/volumes").status_code == 200, "a linearizable read: nodes ask each other with a proof"
    assert (stack.wait_leader(0), stack.shard(leader, 0)["term"]) == (leader, term)


def test_no_record_on_any_topic_ends_a_node(stack: TestStack, raw: RawClient, client: Client, fault_round: int) -> None:
    """Null values and keys, keys without end, headers of any kind: on every topic but the log, anybody may have written them."""
    servers = stack.settings.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    headers: list[Any] = [[], [("flagged", b"0")], [("flagged", None), ("flagged", b"0")], [("", b""), ("proof", b"x")]]
    for topic in (OM_REQUESTS, OM_RESPONSES, OM_AUDIT, OM_REJECTED, OM_VERDICTS):
        for key in (None, b"", b"0/om2", b"9" * 5_000 + b"/om2", b"\xff", client.pipeline.client_id):
            for head in headers:
                producer.produce(topic, None, key, partition=0, headers=head)
    assert producer.flush(30) == 0
    for topic in (OM_REQUESTS, OM_RESPONSES, OM_AUDIT):
        append_with_bad_header(servers, topic, 0, [b"one", b"two"])
    refused = raw.request(AddNode(shard=0, node="evil"))
    append_with_bad_header(servers, OM_REQUESTS, 0, [encode(refused)])
    assert decode_as(Response, raw.wait_answers(refused.call_id, 1)[0]).status == codes.PERMISSION_DENIED
    for shard in range(SHARDS):
        client.create_volume(fresh_volume(shard, SHARDS))
    stack.wait_converged()
    assert all(process.is_running() for process in stack.nodes.values())
    assert len(stack.nodes) == len(stack.names)


def test_a_strangers_open_transaction_holds_nothing_up(stack: TestStack, client: Client, fault_round: int) -> None:
    servers = stack.settings.bootstrap_servers
    producer = Producer(
        {"bootstrap.servers": servers, "transactional.id": f"evil-{fault_round}", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for topic in (OM_REQUESTS, OM_RESPONSES, OM_AUDIT):
        producer.produce(topic, b"nothing", partition=0)
    assert producer.flush(30) == 0
    try:
        client.create_volume(fresh_volume(0, SHARDS))
        stack.wait_led()
    finally:
        producer.abort_transaction(30)
    client.create_volume(fresh_volume(0, SHARDS))
    stack.wait_converged()
