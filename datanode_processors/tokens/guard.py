"""Block tokens at a datanode: the keys that it was told, and what a peer may do with its tokens (decision 0074).

Rules:

1. Keys come from Object Manager nodes, in TLS, and are kept in memory alone. A set of keys takes the place of the one
   before; one that is older is dropped, so a leader that was deposed brings no key back.
2. Whoever needs no token (``permits.NEEDS_NO_TOKEN``) is not asked for one.
3. A datanode that has not been told yet, or meets the id of a key that is newer than all it has, waits for ``wait_s``
   before it refuses. So a restart or a roll refuses nobody who can wait.
4. Nodes that issue no tokens yet, because of the cluster's feature level, say so: then none are demanded.

Nothing here shows a key or a token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datanode_processors.errors import BlockError
from datanode_processors.tokens.core.token_needs import needs_of
from replicated_db.shell.logs import Note
from schemas import stream_errors
from schemas.access.block_tokens import (
    BadBlockToken,
    BlockToken,
    check_need,
    key_id_of,
    split_tokens,
    verified_token,
)
from schemas.records.datanode import Accepted, BlockTokenKey, BlockTokenKeys

KEY_WAIT_S = 2.0
"""How long a request waits for a key that its datanode was not told yet: less than a child's time to open a stream."""


MAX_VERIFIED = 4096
"""Tokens whose HMAC is remembered as right; then all are compared again. A reader shows one token many times."""


@dataclass(frozen=True, slots=True)
class _ToldKeys:
    newest: int
    by_id: Mapping[int, BlockTokenKey]
    verified: dict[bytes, tuple[BlockToken, int]] = field(default_factory=dict)
    """Tokens that were made with these keys, each with its last moment."""

    def token(self, data: bytes, now_ms: int) -> BlockToken:
        """Return what a token says; raises BadBlockToken."""
        token, until_ms = self.verified.get(data, (None, 0))
        if token is None or now_ms >= until_ms:
            token = verified_token(data, self.by_id, now_ms)
            if len(self.verified) >= MAX_VERIFIED:
                self.verified.clear()
            self.verified[data] = token, min(token.expires_ms, self.by_id[token.key_id].until_ms)
        return token


class BlockTokenGuard:
    """The keys of one datanode, and its judgement; for many threads. ``now_ms`` is the wall clock."""

    def __init__(self, now_ms: Callable[[], int], note: Note, *, wait_s: float = KEY_WAIT_S) -> None:
        self._now_ms = now_ms
        self._note = note
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._told: _ToldKeys | None = None
        self.refused = 0
        """Requests that were refused for want of a token that allows them."""

    def tell(self, keys: BlockTokenKeys) -> Accepted:
        """Take the keys that are valid from now on, unless newer ones were told before."""
        told = _ToldKeys(keys.newest, {key.key_id: key for key in keys.keys})
        with self._changed:
            before = self._told
            if before is not None and before.newest > told.newest:
                return Accepted(detail=f"key {before.newest} of block tokens is newer, and stays")
            self._told = told
            self._changed.notify_all()
        if before is None or before.newest != told.newest:
            what = f"the newest key of block tokens is {told.newest}" if told.newest else "no block tokens are issued"
            self._note(f"{what}, a node says")
        return Accepted(detail=f"{len(told.by_id)} keys of block tokens")

    def check(self, request: object, tokens: bytes) -> int | None:
        """Return up to which offset a stream may be written, or a block read (None: any).

        Raises BlockError unless the tokens allow the request.
        """
        needs = needs_of(request)
        if not needs:
            return None
        try:
            shown = list(split_tokens(tokens))
            told = self._current(shown)
            if not told.newest:
                return None
            now_ms = self._now_ms()
            given = {(one.container_id, one.local_id): one for one in (told.token(data, now_ms) for data in shown)}
            found = [check_need(given.get((need.container_id, need.local_id)), need) for need in needs]
        except BadBlockToken as error:
            self.refused += 1
            raise BlockError(error.code, str(error)) from error
        return min(token.length for token in found)

    def _current(self, shown: Sequence[bytes]) -> _ToldKeys:
        """Return the keys, once they are there that the tokens name, or were waited for."""
        told = self._told
        if told is not None and all(data in told.verified for data in shown):
            return told
        wanted = max(map(key_id_of, shown), default=0)
        if told is None or wanted > told.newest > 0:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._told is not None and not wanted > self._told.newest > 0, self._wait_s
                )
                told = self._told
        if told is None:
            raise BadBlockToken(
                stream_errors.BLOCK_TOKEN_KEY_UNKNOWN,
                "this datanode demands block tokens ('block_tokens'), and no Object Manager node has told it their "
                "keys: it has just started, or the nodes have 'block_tokens' off, or none leads shard 0",
            )
        return told

    def status(self) -> dict[str, Any]:
        """Return what ``/status`` says: ids of keys, never a key."""
        told = self._told
        return {
            "demanded": told is None or told.newest > 0, "told": told is not None,
            "keys": [] if told is None else sorted(told.by_id), "refused": self.refused,
        }  # fmt: skip
