"""Lookups and listings of keys straight at the nodes; whoever gets no answer here asks over HTTP.

The rules for a lookup that is not answered are those of HTTP reads (other nodes, pauses, the deadline), so they are
only there: this module makes one attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Protocol

from producers.direct.core.link_talk import LinkFailed
from producers.requests.listed_page import ListedPage
from schemas.records.door import DoorRows
from schemas.result_codes import NOT_SUPPORTED_OPERATION, OK, OVERLOADED

ELSEWHERE = frozenset({"NO_LEADER", "NOT_CAUGHT_UP", "REPLICA_FLAGGED", OVERLOADED, NOT_SUPPORTED_OPERATION})
"""Codes that say that another node, or HTTP, may answer."""


class LookUp(Protocol):
    """Sends a lookup; returns None if no node takes it, or if no frame holds it."""

    def __call__(
        self, volume: str, bucket: str, keys: Sequence[str], consistency: str, *, with_bytes: bool = False,
        page: ListedPage | None = None,
    ) -> Future[DoorRows] | None:  # fmt: skip
        """Ask for keys of one bucket, and with ``with_bytes`` for the bytes of those that are inline; or for a page."""


def page_of(
    look_up: LookUp, volume: str, bucket: str, page: ListedPage, consistency: str, timeout_s: float
) -> DoorRows | None:
    """Ask for a page of a listing; None if HTTP is to be asked. A status other than OK is final."""
    try:
        rows = _answered(look_up(volume, bucket, (), consistency, page=page), timeout_s)
    except (LinkFailed, FutureTimeout, UnicodeEncodeError):
        return None
    if rows is None or rows.status in ELSEWHERE:
        return None
    if rows.status == OK and (len(rows.rows) > page.limit or None in rows.rows or (rows.more and not rows.rows)):
        return None
    return rows


def _answered(answer: Future[DoorRows] | None, timeout_s: float) -> DoorRows | None:
    """Wait for an answer; whoever keeps the question hears that nobody waits any longer."""
    if answer is None:
        return None
    try:
        return answer.result(timeout_s)
    finally:
        answer.cancel()


def rows_of(
    look_up: LookUp, volume: str, bucket: str, keys: Sequence[str], consistency: str, timeout_s: float, *,
    with_bytes: bool = False,
) -> DoorRows | None:  # fmt: skip
    """Look up 1 to MAX_READ_KEYS keys; None if HTTP is to be asked. A status other than OK is final."""
    try:
        rows = _answered(look_up(volume, bucket, keys, consistency, with_bytes=with_bytes), timeout_s)
    except (LinkFailed, FutureTimeout, UnicodeEncodeError):
        return None
    if rows is None or rows.status in ELSEWHERE:
        return None
    if rows.status == OK and (len(rows.rows) != len(keys) or len(rows.data) != (len(keys) if with_bytes else 0)):
        return None
    return rows
