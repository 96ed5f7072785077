"""Requests that come twice, too late, or wrong: one effect and one answer, a clear error, and nothing stops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from producers import Client, RequestFailed
from producers.keys import fit_blocks
from replicated_db.retry import REQUEST_LIFETIME_MS
from schemas import result_codes as codes
from schemas.codec import decode_as, encode
from schemas.column_families import RETRY_TABLE
from schemas.envelopes import MAX_ENVELOPE_MESSAGES, enveloped_requests
from schemas.messages import CreateBucket, CreateKey, CreateVolume, Requests, Response
from schemas.registry import MARKER
from schemas.topics import MAX_REQUEST_BYTES
from tests.support.faults import (
    RawClient,
    RejectedTap,
    assert_log_agrees,
    fresh_volume,
    put_key,
)
from tests.support.judged_log import read_log
from tests.support.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
SHARDS = 2


@pytest.fixture(scope="module")
def stack(make_stack: Callable[..., TestStack]) -> TestStack:
    return make_stack(nodes=3, shards=SHARDS, barrier_interval_ms=200)


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
    metadata = {"x": "y" * (MAX_REQUEST_BYTES - 150)}
    response = raw.call(CreateKey(volume=volume, bucket="bucket", key="k", size=0, metadata=metadata))
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
