"""The keys of block tokens: when they are rolled, which are valid, and which one makes tokens (decision 0074). Pure.

The log has the ids of keys and no key. A key's id is the generation of the user TOKEN_KEYS_USER in identityTable, which
a request rolls as it rolls a user's secret: the key of before is valid for the request's overlap. So every node knows
the same keys, through restarts and changes of leaders, and the requests are those of the level ACCESS_CONTROL.

==============================  ====================================================================================
the row                         what shard 0's leader asks for
==============================  ====================================================================================
there is none                   CreateUser: the first key
younger than ROLL_MS            nothing
older                           RotateUser, with the overlap KEPT_MS: tokens of before serve as long as they last
==============================  ====================================================================================

Whoever suspects that a key is stolen rolls without an overlap (``stratolog admin block-tokens roll``): all tokens of
before end, and clients ask for new ones.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.access.block_tokens import TOKEN_KEYS_USER, TOKEN_LIFETIME_MS
from schemas.records.datanode import BlockTokenKey, BlockTokenKeys
from schemas.records.identity import CreateUser, RotateUser, UserRow

ROLL_MS = 24 * 3600 * 1000
"""How old a key is when it is rolled."""
CLOCKS_MS = 5 * 60 * 1000
"""How far the clocks of nodes may be apart."""
KEPT_MS = TOKEN_LIFETIME_MS + CLOCKS_MS
"""How long a key is valid after a roll that nobody hurries: every token of it has expired by then."""
KEY_LIFE_MS = 7 * ROLL_MS
"""How long a key is valid if no leader rolls it."""
SPREAD_MS = 10_000
"""How long after a roll tokens are still made with the key of before: datanodes are told the new one meanwhile."""

KeyOf = Callable[[int], bytes]
"""The key of an id (``ClusterSecret.block_token_key``)."""

NONE_YET = BlockTokenKeys(newest=0, keys=[])
"""What datanodes are told below the level ACCESS_CONTROL: no tokens are issued yet."""


def next_roll(row: UserRow | None, now_ms: int) -> CreateUser | RotateUser | None:
    """Return what the leader of shard 0 asks for now, None if nothing is due."""
    if row is None:
        return CreateUser(user=TOKEN_KEYS_USER)
    if now_ms - row.modification_time_ms < ROLL_MS:
        return None
    return RotateUser(user=TOKEN_KEYS_USER, overlap_ms=KEPT_MS)


def valid_keys(row: UserRow, key_of: KeyOf, now_ms: int) -> BlockTokenKeys:
    """Return the keys that are valid now, the newest first."""
    newest = BlockTokenKey(
        key_id=row.generation, key=key_of(row.generation), until_ms=row.modification_time_ms + KEY_LIFE_MS
    )
    keys = [newest]
    if row.previous_generation and row.previous_until_ms > now_ms:
        before = row.previous_generation
        keys.append(BlockTokenKey(key_id=before, key=key_of(before), until_ms=row.previous_until_ms))
    return BlockTokenKeys(newest=newest.key_id, keys=keys)


def key_to_issue_with(row: UserRow, key_of: KeyOf, now_ms: int) -> BlockTokenKey:
    """Return the key that makes tokens now: just after a roll, that of before if it is valid for long enough."""
    newest, *before = valid_keys(row, key_of, now_ms).keys
    is_fresh = now_ms - row.modification_time_ms < SPREAD_MS
    return next((key for key in before if is_fresh and key.until_ms - now_ms > SPREAD_MS), newest)
