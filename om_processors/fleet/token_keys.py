"""The keys of block tokens, on shard 0's leader: it has them rolled, and tells every datanode (decision 0074).

Rules:

1. A key is rolled by a request; the next turn sees in the row whether it took effect.
2. Each life of each datanode is told all valid keys, over mutual TLS, when they change; what was not taken is told
   again after RETRY_MS. A new leader tells everybody.
3. Keys age by the log's time, which their row carries: this node's wall clock may be set.
4. Below the level ACCESS_CONTROL datanodes are told that no tokens are issued yet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from om_processors.fleet.core.fleet import Picture
from om_processors.fleet.datanode_client import Courier
from om_processors.fleet.proposer import Proposer
from om_processors.namespace import users
from om_processors.namespace.token_keys import NONE_YET, next_roll, valid_keys
from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import Clock
from replicated_db.shell.logs import Note
from schemas.access.block_tokens import TOKEN_KEYS_USER
from schemas.features import ACCESS_CONTROL
from schemas.privilege import ClusterSecret
from schemas.records.datanode import BlockTokenKeys
from schemas.sharding import SYSTEM_SHARD

RETRY_MS = 2_000
"""A datanode that did not take the keys is told again after this time."""

Said = tuple[bytes, tuple[tuple[int, int], ...]]
"""What a datanode was told: its incarnation; id and last moment of each key."""


class TokenKeyRounds:
    """Rolls and tells; for the thread of the placement loop. The courier's threads only note what was taken."""

    def __init__(
        self, replica: Replica, secret: ClusterSecret, proposer: Proposer, courier: Courier, clock: Clock, note: Note,
        log_time_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """``log_time_ms`` returns the present time of shard 0's log."""
        self._replica = replica
        self._secret = secret
        self._proposer = proposer
        self._courier = courier
        self._clock = clock
        self._note = note
        self._log_time_ms = log_time_ms
        self._said: dict[str, Said] = {}
        self._not_before: dict[str, int] = {}

    def turn(self, picture: Picture) -> None:
        """Have the key rolled if it is due, and tell the datanodes that do not know the keys."""
        keys = self._keys()
        if keys is None:
            return
        now_ms = self._clock.elapsed_ms()
        ids = tuple((key.key_id, key.until_ms) for key in keys.keys)
        for node in picture.datanodes.values():
            if not node.alive or node.heartbeat is None or now_ms < self._not_before.get(node.name, 0):
                continue
            said = (node.heartbeat.incarnation, ids)
            if self._said.get(node.name) == said:
                continue
            self._not_before[node.name] = now_ms + RETRY_MS
            self._courier.send(
                ("token-keys", node.name), node.heartbeat.address, keys, datanode=node.name,
                done=partial(self._was_told, node.name, said),
            )  # fmt: skip

    def _was_told(self, datanode: str, said: Said, answer: Any) -> None:  # noqa: ARG002 - any answer will do
        self._said[datanode] = said

    def _keys(self) -> BlockTokenKeys | None:
        """Return the keys that are valid now, None if that is not known."""
        replica, now_ms = self._replica, self._log_time_ms()
        with replica.lock:
            level, flagged = replica.state.feature_level, replica.evidence is not None
            row = users.get_user(replica.rows, TOKEN_KEYS_USER)
        if flagged:
            return None
        if level < ACCESS_CONTROL:
            return NONE_YET
        roll = next_roll(row, now_ms)
        generation = 0 if row is None else row.generation
        if roll is not None and self._proposer.propose(("token-key", generation), roll):
            self._note(f"the key of block tokens is rolled, {generation} was the newest", shard=SYSTEM_SHARD)
        return None if row is None else valid_keys(row, self._secret.block_token_key, now_ms)
