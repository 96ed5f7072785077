"""A replica's own rows: where it stands, and how its shard is run according to the last control records."""

from __future__ import annotations

from collections.abc import Mapping

from replicated_db.core.execution.shard_state import ShardState, state_after
from replicated_db.core.log.position import (
    KEY_INDEX_KEY,
    LEVEL_KEY,
    MEMBERS_KEY,
    MODE_PREFIX,
    POSITION_KEY,
    PREPARED_KEY,
    REQUEST_KEY,
    Position,
    encode_request_position,
)
from replicated_db.core.ports import StoreView, Write
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.core.tables.digest_rows import DigestRows
from replicated_db.core.tables.digests import Digests
from schemas.codecs.codec import decode_as
from schemas.records.log import ControlRecord, FeatureLevel, Genesis, Members, Mode, Prepared, RequestPosition

STATE_KEYS: Mapping[type[ControlRecord], bytes] = {
    Members: MEMBERS_KEY, FeatureLevel: LEVEL_KEY, Prepared: PREPARED_KEY,
}  # fmt: skip
"""Key of the last control record of each kind. Mode records have a key per request type (MODE_PREFIX)."""


def state_key(record: ControlRecord) -> bytes:
    """Return the key under which a control record is kept."""
    return MODE_PREFIX + record.request_type.encode() if isinstance(record, Mode) else STATE_KEYS[type(record)]


def stored_state(store: StoreView, genesis: Genesis | None) -> ShardState:
    """Return how a shard is run, according to what is stored.

    Raises UpgradeNeeded for a feature level that this software does not know.
    """
    state = ShardState() if genesis is None else state_after(ShardState(), genesis)
    for cls, key in STATE_KEYS.items():
        if (stored := store.get(TRANSACTION_INFO, key)) is not None:
            state = state_after(state, decode_as(cls, stored))
    for _, stored in store.iterate(TRANSACTION_INFO, MODE_PREFIX, MODE_PREFIX + b"\xff"):
        state = state_after(state, decode_as(Mode, stored))
    return state


def local_rows(
    digest_rows: DigestRows, digests: Digests, position: Position, request_position: RequestPosition | None
) -> list[Write]:
    """Return a replica's local rows at a position: those that a batch writes beside its rows."""
    rows = digest_rows.whole(digests)
    rows.append((TRANSACTION_INFO, KEY_INDEX_KEY, position.key_index()))
    rows.append((TRANSACTION_INFO, POSITION_KEY, position.encode()))
    if request_position is not None:
        rows.append((TRANSACTION_INFO, REQUEST_KEY, encode_request_position(request_position)))
    return rows
