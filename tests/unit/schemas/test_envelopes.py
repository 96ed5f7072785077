from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.codec import Undecodable, encode
from schemas.codecs.envelopes import (
    MAX_ENVELOPE_BYTES,
    MAX_ENVELOPE_MESSAGES,
    enveloped_requests,
    enveloped_responses,
    requests_in,
    responses_in,
)
from schemas.records.messages import Requests, Responses

KINDS = [
    pytest.param(enveloped_requests, requests_in, id="requests"),
    pytest.param(enveloped_responses, responses_in, id="responses"),
]


@pytest.mark.parametrize(("wrap", "unwrap"), KINDS)
@given(messages=st.lists(st.binary(min_size=1, max_size=3), max_size=1100))
def test_what_goes_in_comes_out_in_order(wrap, unwrap, messages):
    records = wrap(messages)
    assert [message for record in records for message in unwrap(record)] == messages
    assert all(len(unwrap(record)) <= MAX_ENVELOPE_MESSAGES for record in records)
    assert len(records) == -(-len(messages) // MAX_ENVELOPE_MESSAGES)


@pytest.mark.parametrize(("wrap", "unwrap"), KINDS)
def test_one_message_alone_travels_bare(wrap, unwrap):
    assert wrap([b"message"]) == [b"message"]
    assert unwrap(b"message") == [b"message"]
    assert wrap([]) == []


@pytest.mark.parametrize(("wrap", "unwrap"), KINDS)
def test_an_envelope_is_bounded_in_bytes(wrap, unwrap):
    half, whole = bytes(MAX_ENVELOPE_BYTES // 2), bytes(MAX_ENVELOPE_BYTES + 1)
    assert [len(unwrap(record)) for record in wrap([half, half, half, whole, half])] == [2, 1, 1, 1]


def test_a_broken_envelope_is_undecodable():
    value = enveloped_requests([b"one", b"two"])[0]
    with pytest.raises(Undecodable, match="not a valid Requests"):
        requests_in(value[:-1])
    with pytest.raises(Undecodable, match="too many after a Responses"):
        responses_in(enveloped_responses([b"one", b"two"])[0] + b"x")


def test_a_foreign_client_cannot_pack_more():
    too_many = [b"request"] * (MAX_ENVELOPE_MESSAGES + 1)
    with pytest.raises(Undecodable, match="an envelope of 501 requests; at most 500"):
        requests_in(encode(Requests(requests=too_many)))
    assert len(responses_in(encode(Responses(responses=too_many)))) == len(too_many)
