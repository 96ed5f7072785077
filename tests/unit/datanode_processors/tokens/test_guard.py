"""A datanode's judgement of block tokens: which keys it takes, what tokens allow, and until when."""

from __future__ import annotations

from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.tokens import guard as module
from datanode_processors.tokens.core.token_needs import needs_of
from datanode_processors.tokens.guard import BlockTokenGuard
from schemas import stream_errors as codes
from schemas.access.block_tokens import READ_BLOCK, WRITE_BLOCK, BlockToken, TokenNeed, issued_token, verified_token
from schemas.records.datanode import (
    BlockTokenKey,
    BlockTokenKeys,
    GetBlock,
    OpenBlocks,
    OpenStream,
    PutBlock,
    PutBlocks,
    ReadBlock,
    SalvageBlock,
    WatchBlock,
    WholeBlock,
    WriteChunk,
)
from tests.support.local.secret import SECRET

NOW_MS, LIFE_MS = 1_000_000, 5_000
PLACE: dict[str, Any] = {"partition": 3, "container_id": 7, "local_id": 1}


def key(number: int, until_ms: int = NOW_MS + 10 * LIFE_MS) -> BlockTokenKey:
    return BlockTokenKey(key_id=number, key=SECRET.block_token_key(number), until_ms=until_ms)


def keys(*numbers: int, until_ms: int = NOW_MS + 10 * LIFE_MS) -> BlockTokenKeys:
    return BlockTokenKeys(newest=max(numbers, default=0), keys=[key(number, until_ms) for number in numbers])


def token(
    local_id: int = 1, length: int = 100, *, number: int = 5, operations: int = READ_BLOCK | WRITE_BLOCK
) -> bytes:
    said = BlockToken(
        key_id=number, container_id=7, local_id=local_id, operations=operations, length=length,
        expires_ms=NOW_MS + LIFE_MS,
    )  # fmt: skip
    return issued_token(said, key(number))


def read(length: int = 100, local_id: int = 1) -> ReadBlock:
    return ReadBlock(**{**PLACE, "local_id": local_id}, offset=0, length=length, bcs_id=0, committed_only=True)


def puts(*blocks: tuple[int, int]) -> PutBlocks:
    return PutBlocks(partition=3, bytes_per_checksum=512, blocks=wholes(*blocks))


def wholes(*blocks: tuple[int, int]) -> list[WholeBlock]:
    return [WholeBlock(container_id=7, local_id=local_id, length=length, checksums=b"") for local_id, length in blocks]


class World:
    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.notes: list[str] = []
        self.guard = BlockTokenGuard(lambda: self.now_ms, lambda text, **_: self.notes.append(text), wait_s=0.0)

    def refused(self, request: object, tokens: bytes) -> str:
        before = self.guard.refused
        with pytest.raises(BlockError) as caught:
            self.guard.check(request, tokens)
        assert self.guard.refused == before + 1
        return caught.value.code


@pytest.fixture
def world() -> World:
    return World()


def test_keys_are_taken_unless_newer_ones_are_there_and_news_are_noted_once(world: World) -> None:
    tell = world.guard.tell
    assert world.guard.status() == {"demanded": True, "told": False, "keys": [], "refused": 0}
    assert tell(keys(4, 5)).detail == "2 keys of block tokens"
    assert tell(keys(5)).detail == "1 keys of block tokens"
    assert world.notes == ["the newest key of block tokens is 5, a node says"]
    assert tell(keys(4)).detail == "key 5 of block tokens is newer, and stays"
    assert world.guard.status() == {"demanded": True, "told": True, "keys": [5], "refused": 0}
    tell(keys(6, 5))
    assert world.notes[1:] == ["the newest key of block tokens is 6, a node says"]
    assert world.guard.status()["keys"] == [5, 6]


def test_where_no_tokens_are_issued_none_are_demanded(world: World) -> None:
    assert world.refused(read(), b"") == codes.BLOCK_TOKEN_KEY_UNKNOWN
    world.guard.tell(keys())
    assert world.notes == ["no block tokens are issued, a node says"]
    assert world.guard.check(read(), b"") is None
    assert world.guard.status() == {"demanded": False, "told": True, "keys": [], "refused": 1}


def test_a_request_may_go_as_far_as_the_shortest_of_its_tokens(world: World) -> None:
    world.guard.tell(keys(5))
    assert world.guard.check(read(), token()) == 100
    assert world.guard.check(puts((1, 30), (2, 40)), token(2, 40) + token(1, 60)) == 40
    assert world.guard.check(GetBlock(**PLACE), token(length=0)) == 0
    assert world.guard.check(object(), b"") is None, "what needs no token"
    assert world.refused(puts((1, 30), (2, 41)), token(2, 40) + token(1, 60)) == codes.BLOCK_TOKEN_INVALID
    assert world.refused(puts((1, 30), (3, 1)), token(2, 40) + token(1, 60)) == codes.BLOCK_TOKEN_MISSING
    assert world.refused(read(), token(number=4)) == codes.BLOCK_TOKEN_KEY_UNKNOWN
    assert world.refused(read(), token(operations=WRITE_BLOCK)) == codes.BLOCK_TOKEN_INVALID
    assert world.refused(read(), token()[:-1]) == codes.BLOCK_TOKEN_INVALID


def test_a_token_ends_at_its_last_moment_however_often_it_was_shown(world: World) -> None:
    world.guard.tell(keys(5))
    for after_ms in (0, LIFE_MS - 1):
        world.now_ms = NOW_MS + after_ms
        assert world.guard.check(read(), token()) == 100
    world.now_ms = NOW_MS + LIFE_MS
    assert world.refused(read(), token()) == codes.BLOCK_TOKEN_EXPIRED


def test_a_token_ends_with_its_key(world: World) -> None:
    world.guard.tell(keys(5, until_ms=NOW_MS + 10))
    world.now_ms = NOW_MS + 9
    assert world.guard.check(read(), token()) == 100
    world.now_ms = NOW_MS + 10
    assert world.refused(read(), token()) == codes.BLOCK_TOKEN_EXPIRED
    world.guard.tell(keys(6))
    assert world.refused(read(), token()) == codes.BLOCK_TOKEN_KEY_UNKNOWN


def test_only_so_many_tokens_are_remembered_and_each_is_compared_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def verified(data: bytes, *given: Any) -> BlockToken:
        compared.append(data)
        return verified_token(data, *given)

    monkeypatch.setattr(module, "verified_token", verified)
    monkeypatch.setattr(module, "MAX_VERIFIED", 2)
    world.guard.tell(keys(5))
    one, two, three = (token(local_id) for local_id in (1, 2, 3))
    for local_id, shown in ((1, one), (2, two), (1, one), (2, two)):
        world.guard.check(read(local_id=local_id), shown)
    assert compared == [one, two]
    world.guard.check(read(local_id=3), three)
    world.guard.check(read(local_id=3), three)
    world.guard.check(read(local_id=1), one)
    assert compared == [one, two, three, one], "all were forgotten together"


def test_what_each_request_needs() -> None:
    def need(operation: int, length: int, local_id: int = 1) -> TokenNeed:
        return TokenNeed(operation=operation, container_id=7, local_id=local_id, length=length)

    stream = OpenStream(**PLACE, offset=30, bytes_per_checksum=512, window_bytes=1, routes=[])
    put = PutBlock(**PLACE, length=40, bytes_per_checksum=512, checksums=b"", wait_effective=True)
    chunk = WriteChunk(**PLACE, offset=10, data=b"12345", checksum=0)
    salvage = SalvageBlock(**PLACE, offset=10, length=20, bcs_id=0)
    together = OpenBlocks(
        partition=3, bytes_per_checksum=512, watch_timeout_ms=0, blocks=wholes((1, 5), (2, 6)), routes=[]
    )
    both = [need(WRITE_BLOCK, 5), need(WRITE_BLOCK, 6, 2)]
    assert needs_of(stream) == [need(WRITE_BLOCK, 30)]
    assert needs_of(put) == [need(WRITE_BLOCK, 40)]
    assert needs_of(chunk) == [need(WRITE_BLOCK, 15)]
    assert needs_of(salvage) == [need(READ_BLOCK, 30)]
    assert needs_of(GetBlock(**PLACE)) == [need(READ_BLOCK, 0)]
    assert needs_of(together) == needs_of(puts((1, 5), (2, 6))) == both
    assert needs_of(WatchBlock(**PLACE, length=1, bcs_id=0, timeout_ms=0)) == []
