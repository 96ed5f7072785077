"""Lookups of keys straight at the nodes; whoever gets no answer here asks over HTTP.

The rules for a lookup that is not answered are those of HTTP reads (other nodes, pauses, the deadline), so they are
only there: this module makes one attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from producers.direct.core.link_talk import LinkFailed
from schemas.records.door import DoorRows
from schemas.result_codes import NOT_SUPPORTED_OPERATION, OK, OVERLOADED

ELSEWHERE = frozenset({"NO_LEADER", "NOT_CAUGHT_UP", "REPLICA_FLAGGED", OVERLOADED, NOT_SUPPORTED_OPERATION})
"""Codes that say that another node, or HTTP, may answer."""

LookUp = Callable[[str, str, Sequence[str], str], Future[DoorRows] | None]
"""Sends a lookup (volume, bucket, keys, consistency); None if no node is connected."""


def rows_of(
    look_up: LookUp, volume: str, bucket: str, keys: Sequence[str], consistency: str, timeout_s: float
) -> DoorRows | None:
    """Look up 1 to MAX_READ_KEYS keys; None if HTTP is to be asked. A status other than OK is final."""
    try:
        answer = look_up(volume, bucket, keys, consistency)
        rows = None if answer is None else answer.result(timeout_s)
    except (LinkFailed, FutureTimeout, UnicodeEncodeError):
        return None
    if rows is None or rows.status in ELSEWHERE or (rows.status == OK and len(rows.rows) != len(keys)):
        return None
    return rows
