"""Forgetting expiry rows whose retry rows are gone. Each replica does so by itself, together with its writes."""

from __future__ import annotations

from replicated_db.core.execution.retry import RETENTION_MS, prunable
from replicated_db.core.ports import StoreView, Write
from replicated_db.core.tables.column_families import RETRY_EXPIRY

PRUNE_INTERVAL_MS = 1000
"""How often, in batch time, a replica looks for dead expiry rows after it found none."""


class ExpiryPruning:
    """How far one replica has pruned. It looks again from batch time ``due_ms`` on."""

    def __init__(self) -> None:
        self.due_ms = 0
        self._pruned_to = b""

    def writes(self, timestamp_ms: int, view: StoreView) -> list[Write]:
        """Return writes that remove dead expiry rows, two per batch at most; a batch adds one, or two with floors."""
        if timestamp_ms < self.due_ms:
            return []
        keys = prunable(view, timestamp_ms - RETENTION_MS, self._pruned_to)
        if keys:
            self._pruned_to = keys[-1]
        else:
            self.due_ms = timestamp_ms + PRUNE_INTERVAL_MS
        return [(RETRY_EXPIRY, key, None) for key in keys]
