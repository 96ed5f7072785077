"""What is counted of a batch, and which replies of it were executed in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from om_processors.serving.request_metrics import (
    BUCKETS_MS,
    RequestMetrics,
    executed,
    latency_family,
    requests_family,
    status_of,
)
from om_processors.serving.write_audit import FILE_NAME, WriteAudit
from replicated_db.core.leading.leader import Effective, Proposal, Reply
from schemas.codecs.codec import encode
from schemas.records.log import Batch, Result, Tick
from schemas.records.messages import CreateKey, Request, Response
from schemas.result_codes import OK, QUOTA_EXCEEDED
from transport.web.metrics import Metrics

CLIENT = bytes(range(16))
NOW_MS = 1_750_000_000_000


def response(call_id: int, status: str = OK, message: str = "", shard: int = 0, index: int = 1) -> bytes:
    return encode(
        Response(
            client_id=CLIENT, call_id=call_id, shard=shard, index=index, status=status, message=message, result=None
        )
    )


def proposal(call_id: int, key: str = "k") -> Proposal:
    body = CreateKey(volume="vol1", bucket="bucket1", key=key, size=1)
    request = Request(
        client_id=CLIENT,
        call_id=call_id,
        first_sent_at_ms=NOW_MS,
        answered_below=1,
        reply_partition=0,
        caller="me",
        body=body,
    )
    return Proposal(
        client_id=CLIENT, call_id=call_id.to_bytes(8, "big"), request_hash=bytes(16), first_sent_at_ms=NOW_MS,
        request_type="CreateKey", body=request, reply_to=0,
    )  # fmt: skip


def batch(*calls: int, status: str = OK, age_ms: int = 0) -> Batch:
    results = [
        Result(
            client_id=CLIENT, call_id=call.to_bytes(8, "big"), request_hash=bytes(16), first_sent_at_ms=NOW_MS - age_ms,
            request_type="CreateKey", index=index, recorded=True, response=response(call, status),
        )
        for index, call in enumerate(calls, 1)
    ]  # fmt: skip
    return Batch(
        term=3, nonce=bytes(16), seq=1, prev_chain=bytes(32), first_index=1, last_index=len(calls), timestamp_ms=NOW_MS,
        request_position=None, operations=[], results=results,
    )  # fmt: skip


def effective(record: Any, *calls: int, key: str = "k") -> Effective:
    replies = [Reply(proposal=proposal(call, key), response=response(call)) for call in calls]
    return Effective(offset=1, record=record, record_hash=bytes(16), replies=replies, outcome=None)  # type: ignore[arg-type]


@given(
    call_id=st.integers(0, 2**63 - 1), shard=st.integers(0, 1023), index=st.integers(-1, 2**44),
    status=st.sampled_from([OK, QUOTA_EXCEEDED]), message=st.sampled_from(["", "\x04OK", "why"]), client=st.binary(min_size=16, max_size=16),
)  # fmt: skip
def test_the_status_is_the_decoded_one(call_id: int, shard: int, index: int, status: str, message: str, client: bytes):
    value = encode(
        Response(
            client_id=client, call_id=call_id, shard=shard, index=index, status=status, message=message, result=None
        )
    )
    assert status_of(value) == status


def test_a_batch_is_counted_by_type_result_and_latency():
    metrics = RequestMetrics()
    metrics.count(batch(1, 2, 3, age_ms=7), NOW_MS)
    metrics.count(batch(4, status=QUOTA_EXCEEDED, age_ms=10**7), NOW_MS)
    metrics.count(batch(5, age_ms=-50), NOW_MS)
    assert metrics.counts == {("CreateKey", OK): 4, ("CreateKey", QUOTA_EXCEEDED): 1}
    shards = [({"node": "om1", "shard": "3"}, metrics)]
    text = Metrics(lambda: (requests_family(shards), latency_family(shards))).text()
    found = {
        (sample.name, *(sample.labels.get(label) for label in ("node", "shard", "type", "result", "le"))): sample.value
        for one in text_string_to_metric_families(text)
        for sample in one.samples
    }
    assert found["stratolog_requests_total", "om1", "3", "CreateKey", "OK", None] == 4
    seconds = "stratolog_request_seconds"
    slower = {le: found[f"{seconds}_bucket", "om1", "3", None, None, le] for le in ("0.005", "0.01", "+Inf")}
    assert slower == {"0.005": 1, "0.01": 4, "+Inf": 5}, "a clock that runs ahead counts as 0"
    assert found[f"{seconds}_count", "om1", "3", None, None, None] == 5
    assert found[f"{seconds}_sum", "om1", "3", None, None, None] == metrics.total_ms / 1000
    assert list(BUCKETS_MS) == sorted(BUCKETS_MS)


def test_repeats_that_are_answered_with_a_batch_were_not_executed_in_it():
    found = executed(effective(batch(1, 2, 3), 1, 1, 2, 9, 3, 2))
    assert [(index, int.from_bytes(reply.proposal.call_id, "big")) for index, reply in found] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]


def test_other_records_hold_no_requests():
    tick = Tick(term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32))
    assert list(executed(effective(tick))) == []


@pytest.mark.parametrize("key", ["a/b", 'with "quotes"', "line\nbreak", "Ö𝄞"])
def test_an_audit_line_says_who_what_and_what_came_of_it(tmp_path, key: str):
    audit = WriteAudit("om1", tmp_path / "node")
    audit.write(2, effective(batch(7, 8), 7, 8, key=key), NOW_MS)
    audit.close()
    lines = [json.loads(line) for line in (tmp_path / "node" / FILE_NAME).read_text().splitlines()]
    assert [line["index"] for line in lines] == [1, 2]
    assert lines[0] == {
        "time": "2025-06-15T15:06:40.000+00:00", "node": "om1", "shard": 2, "term": 3, "index": 1, "client": CLIENT.hex(),
        "call": 7, "user": "me", "type": "CreateKey", "volume": "vol1", "bucket": "bucket1", "key": key, "result": "OK",
    }  # fmt: skip
