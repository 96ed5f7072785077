"""Block tokens: who holds one may write or read one block on datanodes until it expires (decision 0074). Pure.

An Object Manager node makes a token with each location that it gives to whoever has the right; a datanode checks it
when a stream is opened, and for each request about a block. A token is TOKEN_BYTES bytes, all numbers big-endian::

    version (1) | operations (1) | key id (8) | container (8) | local id (8) | length (8) | expiry in ms (8)
    | HMAC-SHA256 of all of that under the key (32)

``length`` is how far the block may be written, or read, in bytes. Rules:

1. A key is derived from the cluster's secret and its id (``ClusterSecret.block_token_key``). Its id is the index, in
   shard 0, of the request that rolled it, so none comes twice: it is the generation of the user TOKEN_KEYS_USER, who
   signs nothing. Datanodes are told keys over mutual TLS.
2. Several tokens of one request are their bytes one after the other.
3. The HMAC is compared first, in constant time. Until it fits, nothing that a token says is believed but its key's id.
4. A key ends by its own time, and no token of it outlives it.

No error has any byte of a token or of a key.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from struct import Struct

from schemas import stream_errors
from schemas.records.datanode import BlockTokenKey
from schemas.records.record import record

TOKEN_VERSION = 1
READ_BLOCK, WRITE_BLOCK = 1, 2
"""What a token allows; a sum of them."""
OPERATION_NAMES = {READ_BLOCK: "READ", WRITE_BLOCK: "WRITE"}
TOKEN_KEYS_USER = "stratolog-block-tokens"  # noqa: S105 - a name
"""The user of identityTable whose generation is the id of the newest key."""
TOKEN_LIFETIME_MS = 3_600_000
"""How long a token lasts. A client asks for another before that, and datanodes' clocks may be off by some of it."""
MAX_TOKENS_TOGETHER = 64
"""Most tokens of one request: one for each of the blocks that are written together."""
MAX_NUMBER = 2**63 - 1

_SAID = Struct(">BBQQQQQ")
_MAC_BYTES = 32
TOKEN_BYTES = _SAID.size + _MAC_BYTES


class BadBlockToken(ValueError):
    """A token does not allow what is asked for; ``code`` is one of ``schemas.stream_errors``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@record
class BlockToken:
    """What a token says; ``length`` in bytes, ``expires_ms`` since the epoch."""

    key_id: int
    container_id: int
    local_id: int
    operations: int
    length: int
    expires_ms: int

    @property
    def block(self) -> str:
        """The block's name in messages."""
        return f"block {self.container_id}/{self.local_id}"


@record
class TokenNeed:
    """What a request needs a token for: ``operation`` on a block, up to ``length`` bytes of it."""

    operation: int
    container_id: int
    local_id: int
    length: int

    @property
    def block(self) -> str:
        """The block's name in messages."""
        return f"block {self.container_id}/{self.local_id}"


def issued_token(token: BlockToken, key: BlockTokenKey) -> bytes:
    """Return the bytes of a token, which expires no later than its key; raises struct.error for numbers below 0."""
    said = _SAID.pack(
        TOKEN_VERSION, token.operations, key.key_id, token.container_id, token.local_id, token.length,
        min(token.expires_ms, key.until_ms),
    )  # fmt: skip
    return said + hmac.digest(key.key, said, "sha256")


def split_tokens(data: bytes) -> Iterator[bytes]:
    """Yield the tokens of a request; raises BadBlockToken for what is no row of MAX_TOKENS_TOGETHER at the most."""
    count, rest = divmod(len(data), TOKEN_BYTES)
    if rest or count > MAX_TOKENS_TOGETHER:
        raise BadBlockToken(
            stream_errors.BLOCK_TOKEN_INVALID,
            f"{len(data)} bytes of block tokens: one has {TOKEN_BYTES}, and {MAX_TOKENS_TOGETHER} come together at most",
        )
    return (data[start : start + TOKEN_BYTES] for start in range(0, len(data), TOKEN_BYTES))


def key_id_of(data: bytes) -> int:
    """Return the id of the key that a token names, whoever wrote it; raises BadBlockToken for what is no token."""
    if len(data) != TOKEN_BYTES or data[0] != TOKEN_VERSION:
        raise BadBlockToken(
            stream_errors.BLOCK_TOKEN_INVALID, f"{len(data)} bytes are no block token of version {TOKEN_VERSION}"
        )
    return int(_SAID.unpack_from(data)[2])


def verified_token(data: bytes, keys: Mapping[int, BlockTokenKey], now_ms: int) -> BlockToken:
    """Return what a token says that was made with one of the keys and has not expired; raises BadBlockToken."""
    key_id = key_id_of(data)
    key = keys.get(key_id)
    if key is None:
        raise BadBlockToken(
            stream_errors.BLOCK_TOKEN_KEY_UNKNOWN, f"a block token of key {key_id}, which is not valid here: ask anew"
        )
    said = data[: _SAID.size]
    if not hmac.compare_digest(hmac.digest(key.key, said, "sha256"), data[_SAID.size :]):
        raise BadBlockToken(
            stream_errors.BLOCK_TOKEN_INVALID, f"a block token that names key {key_id} was not made with it"
        )
    _, operations, _, container_id, local_id, length, expires_ms = _SAID.unpack(said)
    token = BlockToken(
        key_id=key_id, container_id=container_id, local_id=local_id, operations=operations, length=length,
        expires_ms=expires_ms,
    )  # fmt: skip
    if now_ms >= min(expires_ms, key.until_ms):
        late_ms = now_ms - min(expires_ms, key.until_ms)
        raise BadBlockToken(
            stream_errors.BLOCK_TOKEN_EXPIRED,
            f"the token of {token.block} expired {late_ms} ms ago by this datanode's clock: ask anew",
        )
    return token


def check_need(token: BlockToken | None, need: TokenNeed) -> BlockToken:
    """Return a token that allows what is needed; raises BadBlockToken for another one, or none."""
    if token is None or (token.container_id, token.local_id) != (need.container_id, need.local_id):
        raise BadBlockToken(
            stream_errors.BLOCK_TOKEN_MISSING,
            f"{need.block} needs a block token, and none came for it: an Object Manager node gives it with the location",
        )
    if not token.operations & need.operation:
        raise BadBlockToken(
            stream_errors.BLOCK_TOKEN_INVALID,
            f"the token of {need.block} does not allow {OPERATION_NAMES[need.operation]}",
        )
    if need.length > token.length:
        raise BadBlockToken(
            stream_errors.BLOCK_TOKEN_INVALID,
            f"the token of {need.block} is for its first {token.length} bytes, not for {need.length}",
        )
    return token
