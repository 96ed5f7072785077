"""Users' and tokens' secrets, and the signatures that they make."""

from __future__ import annotations

import copy
import hmac
import pickle

import pytest

from schemas.access.credentials import (
    Credentials,
    TokenName,
    client_prefix,
    credentials_of,
    operator_credentials,
    parse_credentials,
    parse_token,
)
from schemas.access.signatures import (
    MAX_CLOCK_SKEW_MS,
    MAX_REST_BYTES,
    presented,
    seal_of,
    sealed_key,
    user_authorization,
)
from schemas.privilege import ClusterSecret
from schemas.trace_context import traceparent_of

CLUSTER = ClusterSecret(b"0123456789abcdef0123456789abcdef")
OTHER = ClusterSecret(b"0123456789abcdef0123456789abcdeg")
ALICE = credentials_of(CLUSTER, TokenName(user="alice", generation=17, number=0))
TOKEN = ALICE.of_token(20)
TRACE = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"


def test_every_user_generation_token_and_cluster_has_a_secret_of_its_own():
    names = [
        parse_token(text) for text in ("alice:17", "alice:18", "bob:17", "alice:17:20", "alice:17:21", "operator:0")
    ]
    signed = {
        credentials_of(secret, name).request_mac(b"", b"request") for secret in (CLUSTER, OTHER) for name in names
    }
    assert len(signed) == 2 * len(names)
    assert credentials_of(CLUSTER, TOKEN.name).request_mac(b"", b"x") == TOKEN.request_mac(b"", b"x")
    assert operator_credentials(CLUSTER).user == "operator"


def test_a_tokens_holder_does_not_know_its_owners_secret():
    assert TOKEN.text() != ALICE.text()
    with pytest.raises(ValueError, match="no tokens of its own"):
        TOKEN.of_token(21)


@pytest.mark.parametrize(
    "text", ["", "alice", "alice:", "alice:0", "alice:-1", "alice:01", "operator:5", ":5", "a b:5", "alice:5:0", "alice:5:6:7",
             "alice:9223372036854775808", "x" * 65 + ":5", "alice:5\n", "ålice:5"],
)  # fmt: skip
def test_what_is_no_token(text: str):
    with pytest.raises(ValueError, match="is no token"):
        parse_token(text)


def test_a_signature_is_of_the_record_and_of_what_else_is_in_its_key():
    key = sealed_key(ALICE, b"request", TRACE)
    seal = seal_of(key, b"request")
    assert seal is not None
    assert (seal.token, seal.rest) == ("alice:17", TRACE)
    assert seal.is_of(ALICE)
    assert not seal.is_of(TOKEN)
    for value, wrong in [
        (b"requesu", key), (b"", key), (b"request", key[:-1]), (b"request", key + b"x"),
        (b"request", key[:12] + bytes([key[12] ^ 1]) + key[13:]), (b"request", sealed_key(TOKEN, b"request", TRACE)),
    ]:  # fmt: skip
        found = seal_of(wrong, value)
        assert found is None or not found.is_of(ALICE), wrong


def test_other_keys_are_no_signatures_and_signatures_are_no_other_keys():
    key = sealed_key(ALICE, b"request")
    for other in (
        None,
        b"",
        bytes(32),
        TRACE,
        CLUSTER.proof(b"request"),
        key[:30],
        b"\xa1",
        b"\xa1\x00" + bytes(40),
        b"\xa1\xff" + bytes(60),
    ):
        assert seal_of(other, b"request") is None
    for length in range(1, 112):
        sealed = sealed_key(Credentials("a" * min(length, 64) + ":7", bytes(32)), b"request")
        assert traceparent_of(sealed) is None
        assert not CLUSTER.proves(sealed, b"request")


def test_a_key_with_more_behind_its_signature_than_can_be_signed_is_none():
    """Found by ``tests/chaos/fuzz``: the leader that compared such a signature ended, and so did the next one."""
    longest = sealed_key(ALICE, b"request", bytes(MAX_REST_BYTES))
    found = seal_of(longest, b"request")
    assert found is not None
    assert found.is_of(ALICE)
    for more in (1, 45, 100_000):
        assert seal_of(longest + bytes(more), b"request") is None
    with pytest.raises(ValueError, match="range"):
        sealed_key(ALICE, b"request", bytes(MAX_REST_BYTES + 1))


def test_a_call_of_http_is_good_for_itself_alone():
    header = user_authorization(ALICE, "GET", "om1:9871", "/v1/volumes?limit=1", 1_000)
    found = presented(header)
    assert found is not None
    assert found.is_of(ALICE, "GET", "OM1:9871", "/v1/volumes?limit=1")
    for call in [
        ("POST", "om1:9871", "/v1/volumes?limit=1"),
        ("GET", "om2:9871", "/v1/volumes?limit=1"),
        ("GET", "om1:9871", "/v1/volumes"),
    ]:
        assert not found.is_of(ALICE, *call)
    later = presented(header.replace(" 1000 ", " 1001 "))
    assert later is not None
    assert not later.is_of(ALICE, "GET", "om1:9871", "/v1/volumes?limit=1")
    for wrong in (
        None,
        "",
        header + "x",
        header.upper(),
        CLUSTER.authorization("GET", "h", "/"),
        header.replace("alice:17", "alice"),
    ):
        assert presented(wrong) is None
    assert MAX_CLOCK_SKEW_MS == 300_000


def test_a_file_of_credentials_is_read_back_and_no_other():
    again = parse_credentials(ALICE.text())
    assert (again.token, again.text()) == (ALICE.token, ALICE.text())
    secret = ALICE.text().split()[2]
    for wrong in ("", "x", ALICE.text()[:-4], ALICE.text() + "more", f"stratolog-credentials-1 alice:17 {'g' * 64}"):
        with pytest.raises(ValueError) as error:
            parse_credentials(wrong)
        assert secret not in str(error.value)


def test_nothing_shows_a_secret():
    secret = ALICE.text().split()[2]
    assert secret not in repr(ALICE) + str(ALICE) + sealed_key(ALICE, b"").hex()
    assert repr(ALICE) == "Credentials('alice:17', …)"
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            copied(ALICE)
    assert ALICE.request_mac(b"", b"r") != hmac.digest(bytes.fromhex(secret), b"\0r", "sha256"), "a key of its own"


def test_ids_of_clients_are_of_their_users():
    assert len(client_prefix("alice")) == 6
    assert client_prefix("alice") != client_prefix("bob")
