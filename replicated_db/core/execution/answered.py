"""Early removal of retry rows, by what clients say has been answered (design, section 4, "Exactly once").

Rules:
    - A row is removed early only in the batch that raises the client's floor. So a late duplicate of a removed call is
      below the floor.
    - This is housekeeping. A batch does it only if nothing is in flight, and only for a client that is ``calls`` ahead.
      Under steady load rows are removed by age (``retry``), at no cost to the requests.
    - Rows are removed in the order of call ids, so the rows that a client has left are always its latest.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from replicated_db.core.execution.retry import CLIENT_BYTES, floor_of, floor_value
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.tables.column_families import RETRY

MAX_REMOVALS_PER_BATCH = 256
"""Most rows that one batch removes early."""

MAX_CLIENTS = 4096
"""Most clients that are remembered. Beyond it all are forgotten; each is learned again with its next request."""


class AnsweredCalls:
    """What each client says has been answered, by the requests of one claim.

    ``calls``: how far a client must be ahead of its floor; 0 = no early removal.
    """

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._floors: dict[bytes, int] = {}
        self._due: dict[bytes, int] = {}

    @property
    def due(self) -> bool:
        """Whether there may be rows to remove."""
        return bool(self._due)

    def on_requests(self, answered: Mapping[bytes, int]) -> None:
        """Take note, by client, below which call it has all answers: it will not repeat those calls."""
        if self._calls:
            for client_id, answered_below in answered.items():
                self._on_client(client_id, answered_below)

    def _on_client(self, client_id: bytes, answered_below: int) -> None:
        if answered_below - self._floors.get(client_id, 0) < self._calls:
            return
        if len(self._floors) >= MAX_CLIENTS:
            self._floors.clear()
            self._due.clear()
        self._floors.setdefault(client_id, 0)
        self._due[client_id] = max(answered_below, self._due.get(client_id, 0))

    def remove(self, transaction: Transaction, timestamp_ms: int) -> None:
        """Delete rows of answered calls and raise their clients' floors, up to MAX_REMOVALS_PER_BATCH rows."""
        room = MAX_REMOVALS_PER_BATCH
        while self._due and room:
            client_id, answered_below = self._due.popitem()
            floor = floor_of(transaction.get, client_id)
            if answered_below > floor:
                keys = self._keys(transaction, client_id, floor, answered_below, room)
                if len(keys) == room:  # there may be more rows
                    self._due[client_id] = answered_below
                    answered_below = int.from_bytes(keys[-1][CLIENT_BYTES:], "big") + 1
                for key in keys:
                    transaction.delete(RETRY, key)
                if keys:
                    transaction.put(RETRY, client_id, floor_value(answered_below, timestamp_ms))
                room -= len(keys)
            self._floors[client_id] = max(floor, answered_below)

    @staticmethod
    def _keys(transaction: Transaction, client_id: bytes, floor: int, below: int, limit: int) -> list[bytes]:
        rows = transaction.iterate(RETRY, client_id + floor.to_bytes(8, "big"), client_id + below.to_bytes(8, "big"))
        return [key for key, _ in islice(rows, limit)]
