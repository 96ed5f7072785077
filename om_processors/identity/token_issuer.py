"""Block tokens for the locations that a node answers with (decision 0074).

A token is made where a right was judged, for an answer of HTTP: it is in no log, in no row and in no response of the
brokers. Every node makes tokens, by its own replica of shard 0; the row that names the key is looked at again once it
is KNOWN_MS old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from om_processors.namespace import users
from om_processors.namespace.token_keys import key_to_issue_with
from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import Clock
from schemas.access.block_tokens import TOKEN_KEYS_USER, TOKEN_LIFETIME_MS, BlockToken, issued_token
from schemas.privilege import ClusterSecret
from schemas.records.datanode import BlockTokenKey

KNOWN_MS = 100
"""How long what the row said is believed."""


class BlockTokenIssuer:
    """Makes tokens for one node; for any thread. ``system`` returns the replica of shard 0, None until it is open."""

    def __init__(self, secret: ClusterSecret, system: Callable[[], Replica | None], clock: Clock) -> None:
        self._secret = secret
        self._system = system
        self._clock = clock
        self._known: tuple[BlockTokenKey | None, float] = None, float("-inf")

    def trouble(self) -> str:
        """Say why this node cannot tell whether there are keys; empty if it can."""
        replica = self._system()
        if replica is None:
            return "this node still opens its replica of shard 0"
        if replica.evidence is not None:
            return "this node's replica of shard 0 is flagged, so it cannot say which key of block tokens is valid"
        return ""

    def key(self) -> BlockTokenKey | None:
        """Return the key that makes tokens now; None if there is none, or the replica of shard 0 is flagged."""
        key, again_ms = self._known
        now_ms = self._clock.elapsed_ms()
        if now_ms >= again_ms:
            key = self._look_up()
            self._known = key, now_ms + KNOWN_MS
        return key

    def _look_up(self) -> BlockTokenKey | None:
        replica = self._system()
        if replica is None:
            return None
        with replica.lock:
            flagged = replica.evidence is not None
            row = users.get_user(replica.rows, TOKEN_KEYS_USER)
        if flagged or row is None:
            return None
        return key_to_issue_with(row, self._secret.block_token_key, self._clock.wall_ms())

    def tokens(self, blocks: Iterable[Mapping[str, Any]], operations: int) -> dict[str, Any] | None:
        """Return tokens for blocks as the HTTP API shows them, in their order and in hexadecimal; None without a key.

        ``lasts_ms`` is how long they last from now on.
        """
        key = self.key()
        if key is None:
            return None
        now_ms = self._clock.wall_ms()
        expires_ms = min(now_ms + TOKEN_LIFETIME_MS, key.until_ms)
        made = [
            issued_token(
                BlockToken(
                    key_id=key.key_id, container_id=block["container_id"], local_id=block["local_id"],
                    operations=operations, length=block["length"], expires_ms=expires_ms,
                ),
                key,
            ).hex()
            for block in blocks
        ]  # fmt: skip
        return {"lasts_ms": max(0, expires_ms - now_ms), "tokens": made}
