"""Where the records that say how a shard is run are kept, and what they come to when a replica starts."""

from __future__ import annotations

from collections.abc import Mapping

from replicated_db.core.execution.shard_state import ShardState, state_after
from replicated_db.core.log.position import LEVEL_KEY, MEMBERS_KEY, MODE_PREFIX, PREPARED_KEY
from replicated_db.core.ports import StoreView
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from schemas.codecs.codec import decode_as
from schemas.records.log import ControlRecord, FeatureLevel, Genesis, Members, Mode, Prepared

STATE_KEYS: Mapping[type[ControlRecord], bytes] = {
    Members: MEMBERS_KEY, FeatureLevel: LEVEL_KEY, Prepared: PREPARED_KEY,
}  # fmt: skip
"""Where the last control record of each kind is kept; Mode records are kept by request type (MODE_PREFIX)."""


def state_key(record: ControlRecord) -> bytes:
    """Return where a control record is kept."""
    return MODE_PREFIX + record.request_type.encode() if isinstance(record, Mode) else STATE_KEYS[type(record)]


def stored_state(store: StoreView, genesis: Genesis | None) -> ShardState:
    """Return how a shard is run, by what is stored; raises UpgradeNeeded for a feature level that this software does not know."""
    state = ShardState() if genesis is None else state_after(ShardState(), genesis)
    for cls, key in STATE_KEYS.items():
        if (stored := store.get(TRANSACTION_INFO, key)) is not None:
            state = state_after(state, decode_as(cls, stored))
    for _, stored in store.iterate(TRANSACTION_INFO, MODE_PREFIX, MODE_PREFIX + b"\xff"):
        state = state_after(state, decode_as(Mode, stored))
    return state
