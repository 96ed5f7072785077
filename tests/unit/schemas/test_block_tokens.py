"""Block tokens: what one says holds as it was issued, and every other byte of it is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from schemas import stream_errors
from schemas.access.block_tokens import (
    MAX_TOKENS_TOGETHER,
    READ_BLOCK,
    TOKEN_BYTES,
    WRITE_BLOCK,
    BadBlockToken,
    BlockToken,
    TokenNeed,
    check_need,
    issued_token,
    key_id_of,
    split_tokens,
    verified_token,
)
from schemas.codecs.codec import encode
from schemas.conversation.conversation import with_tokens
from schemas.conversation.limits import UnreadableRecord, without_tokens
from schemas.privilege import ClusterSecret
from schemas.records.datanode import BlockTokenKey, GetBlock, TokenedRequest
from tests.support.local.secret import SECRET

NOW_MS = 1_750_000_000_000
KEY = BlockTokenKey(key_id=5, key=SECRET.block_token_key(5), until_ms=NOW_MS + 10_000)
OTHER = BlockTokenKey(key_id=6, key=SECRET.block_token_key(6), until_ms=NOW_MS + 10_000)
TOKEN = BlockToken(
    key_id=5, container_id=7, local_id=1, operations=READ_BLOCK, length=100, expires_ms=NOW_MS + 1_000
)  # fmt: skip
NEED = TokenNeed(operation=READ_BLOCK, container_id=7, local_id=1, length=100)
ISSUED = issued_token(TOKEN, KEY)


def code_of(data: bytes, *keys: BlockTokenKey, now_ms: int = NOW_MS) -> str:
    with pytest.raises(BadBlockToken) as found:
        verified_token(data, {key.key_id: key for key in keys or (KEY,)}, now_ms)
    assert not data or data.hex()[:16] not in str(found.value)
    return found.value.code


def test_a_token_says_what_it_was_issued_for():
    assert len(ISSUED) == TOKEN_BYTES == 74
    assert verified_token(ISSUED, {5: KEY}, NOW_MS) == TOKEN
    assert key_id_of(ISSUED) == 5
    check_need(TOKEN, NEED)


def test_every_bit_of_a_token_counts():
    for number in range(8 * TOKEN_BYTES):
        changed = bytearray(ISSUED)
        changed[number // 8] ^= 1 << number % 8
        assert code_of(bytes(changed)) in {stream_errors.BLOCK_TOKEN_INVALID, stream_errors.BLOCK_TOKEN_KEY_UNKNOWN}


@pytest.mark.parametrize("length", [0, 1, 40, TOKEN_BYTES - 1, TOKEN_BYTES + 1])
def test_a_token_of_another_length_is_none(length: int):
    assert code_of((ISSUED + b"x")[:length]) == stream_errors.BLOCK_TOKEN_INVALID


def test_a_token_of_another_key_or_cluster_is_refused():
    assert code_of(ISSUED, OTHER) == stream_errors.BLOCK_TOKEN_KEY_UNKNOWN
    stranger = ClusterSecret(b"the secret of some other cluster, or none").block_token_key(5)
    forged = issued_token(TOKEN, BlockTokenKey(key_id=5, key=stranger, until_ms=KEY.until_ms))
    assert code_of(forged) == stream_errors.BLOCK_TOKEN_INVALID


def test_a_token_ends_by_its_time_and_by_its_keys():
    assert code_of(ISSUED, now_ms=TOKEN.expires_ms) == stream_errors.BLOCK_TOKEN_EXPIRED
    assert verified_token(ISSUED, {5: KEY}, TOKEN.expires_ms - 1) == TOKEN
    ended = replace(KEY, until_ms=NOW_MS)
    assert code_of(ISSUED, ended) == stream_errors.BLOCK_TOKEN_EXPIRED
    assert verified_token(issued_token(replace(TOKEN, expires_ms=KEY.until_ms + 1), KEY), {5: KEY}, NOW_MS).expires_ms == KEY.until_ms  # fmt: skip


@pytest.mark.parametrize(
    ("token", "need", "code"),
    [
        (None, NEED, stream_errors.BLOCK_TOKEN_MISSING),
        (TOKEN, replace(NEED, container_id=8), stream_errors.BLOCK_TOKEN_MISSING),
        (TOKEN, replace(NEED, local_id=2), stream_errors.BLOCK_TOKEN_MISSING),
        (TOKEN, replace(NEED, operation=WRITE_BLOCK), stream_errors.BLOCK_TOKEN_INVALID),
        (TOKEN, replace(NEED, length=101), stream_errors.BLOCK_TOKEN_INVALID),
        (replace(TOKEN, operations=0), NEED, stream_errors.BLOCK_TOKEN_INVALID),
    ],
)
def test_a_token_is_for_its_block_its_operation_and_its_length(token: BlockToken | None, need: TokenNeed, code: str):
    with pytest.raises(BadBlockToken) as found:
        check_need(token, need)
    assert found.value.code == code
    assert f"{need.container_id}/{need.local_id}" in str(found.value)


def test_many_tokens_are_their_bytes_one_after_the_other():
    assert list(split_tokens(b"")) == []
    assert list(split_tokens(ISSUED + ISSUED)) == [ISSUED, ISSUED]
    for data in (ISSUED[:-1], ISSUED * (MAX_TOKENS_TOGETHER + 1)):
        with pytest.raises(BadBlockToken, match="together at most"):
            split_tokens(data)


def test_keys_differ_by_id_and_are_not_shown():
    keys = {SECRET.block_token_key(number) for number in range(50)}
    assert len(keys) == 50
    assert {len(key) for key in keys} == {32}
    assert "key=" not in repr(KEY)
    assert KEY.key.hex()[:8] not in repr(KEY)
    with pytest.raises(TypeError):
        pickle.dumps(SECRET)


def test_a_request_travels_with_its_tokens_and_never_with_tokens_twice():
    request = GetBlock(partition=1, container_id=7, local_id=1)
    assert with_tokens(request, b"") == encode(request)
    assert without_tokens(request) == (request, b"")
    tokened = TokenedRequest(tokens=ISSUED, request=encode(request))
    assert with_tokens(request, ISSUED) == encode(tokened)
    assert without_tokens(tokened) == (request, ISSUED)
    for inner in (encode(tokened), b"no record", b""):
        with pytest.raises(UnreadableRecord, match="request with block tokens"):
            without_tokens(TokenedRequest(tokens=ISSUED, request=inner))
