"""Result codes of responses (Ozone's names where Ozone has one), and for each what the client can do about it."""

from __future__ import annotations

import re
from enum import Enum


class Remedy(Enum):
    """What a client does about a result code."""

    NONE = "none"
    """Nothing is wrong."""
    RETRY = "retry"
    """Send the same request again, later or elsewhere; it has had no effect."""
    FIX = "fix"
    """The request, or the state that it meets, is wrong; the same request fails again."""
    UNKNOWN = "unknown"
    """The outcome is unknown: look before doing it again."""


OK = "OK"

# Retryable refusals: depend on no state, leave at once, have no effect.
NOT_LEADER = "NOT_LEADER"
OVERLOADED = "OVERLOADED"
PREPARED = "PREPARED"

# The outcome is unknown.
REQUEST_EXPIRED = "REQUEST_EXPIRED"

# The request is wrong, or the state forbids it.
INVALID_REQUEST = "INVALID_REQUEST"
UNDECODABLE = "UNDECODABLE"
UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
INLINE_TOO_LARGE = "INLINE_TOO_LARGE"
"""The bytes of a PutKey are more than the cluster keeps in its tables; they can be written to datanodes."""
CALL_ID_REUSED = "CALL_ID_REUSED"
WRONG_SHARD = "WRONG_SHARD"
INTERNAL_ERROR = "INTERNAL_ERROR"
NOT_SUPPORTED_OPERATION = "NOT_SUPPORTED_OPERATION"
NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION = "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
INDEX_MOVED = "INDEX_MOVED"
DIGESTS_DIFFER = "DIGESTS_DIFFER"
"""The shard's leader holds other rows than a digest base says."""
PERMISSION_DENIED = "PERMISSION_DENIED"
"""The caller has not proved who it is, or may not do what it asks for."""
USER_NOT_FOUND = "USER_NOT_FOUND"
USER_ALREADY_EXISTS = "USER_ALREADY_EXISTS"
INVALID_TOKEN = "INVALID_TOKEN"  # noqa: S105 - a code
"""There is no such delegation token."""
TOKEN_EXPIRED = "TOKEN_EXPIRED"  # noqa: S105 - a code
INVALID_VOLUME_NAME = "INVALID_VOLUME_NAME"
INVALID_BUCKET_NAME = "INVALID_BUCKET_NAME"
INVALID_KEY_NAME = "INVALID_KEY_NAME"
VOLUME_NOT_FOUND = "VOLUME_NOT_FOUND"
VOLUME_ALREADY_EXISTS = "VOLUME_ALREADY_EXISTS"
VOLUME_NOT_EMPTY = "VOLUME_NOT_EMPTY"
BUCKET_NOT_FOUND = "BUCKET_NOT_FOUND"
BUCKET_ALREADY_EXISTS = "BUCKET_ALREADY_EXISTS"
BUCKET_NOT_EMPTY = "BUCKET_NOT_EMPTY"
FAILED_TO_FIND_ACTIVE_PIPELINE = "FAILED_TO_FIND_ACTIVE_PIPELINE"
"""No datanode pipeline takes blocks; a new request may find one later."""
PIPELINE_NOT_FOUND = "PIPELINE_NOT_FOUND"
PIPELINE_ALREADY_EXISTS = "PIPELINE_ALREADY_EXISTS"
KEY_NOT_FOUND = "KEY_NOT_FOUND"
KEY_ALREADY_EXISTS = "KEY_ALREADY_EXISTS"
INVALID_SNAPSHOT_ERROR = "INVALID_SNAPSHOT_ERROR"
FILE_NOT_FOUND = "FILE_NOT_FOUND"
"""There is no such snapshot."""
FILE_ALREADY_EXISTS = "FILE_ALREADY_EXISTS"
"""There is a snapshot of that name."""
TOO_MANY_SNAPSHOTS = "TOO_MANY_SNAPSHOTS"
SNAPSHOT_DIFF_NOT_FOUND = "SNAPSHOT_DIFF_NOT_FOUND"
"""The node has no such job: it was forgotten, or the node has been restarted."""
SNAPSHOT_DIFF_CANCELLED = "SNAPSHOT_DIFF_CANCELLED"
SNAPSHOT_UNREADABLE = "SNAPSHOT_UNREADABLE"
"""The node's checkpoint of a snapshot is missing or damaged; another node may have it."""
DIFF_TOO_LARGE = "DIFF_TOO_LARGE"
CONTAINS_SNAPSHOT = "CONTAINS_SNAPSHOT"
"""A bucket with snapshots cannot be deleted."""
QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
QUOTA_ERROR = "QUOTA_ERROR"

_RETRY_AFTER = re.compile(r"try again in (\d{1,9}) ms$")


def with_retry_after(message: str, retry_after_ms: int) -> str:
    """Return a refusal's message followed by a hint when to try again (like HTTP's Retry-After)."""
    return f"{message}; try again in {retry_after_ms} ms"


def retry_after_ms(message: str) -> int | None:
    """Return the hint that :func:`with_retry_after` added, None if there is none.

    >>> retry_after_ms(with_retry_after("too many requests", 250))
    250
    """
    found = _RETRY_AFTER.search(message)
    return None if found is None else int(found[1])


_CLOCK_GAP = re.compile(r"a clock that is (\d{1,20}) ms (behind|ahead of) the shard's")


def clock_gap(first_sent_at_ms: int, shard_ms: int) -> str:
    """Return how far the clock that stamped a request is from its shard's time.

    >>> clock_gap(1_000, 302_000)
    "first sent at 1000 ms, by a clock that is 301000 ms behind the shard's"
    """
    gap_ms = shard_ms - first_sent_at_ms
    side = "behind" if gap_ms >= 0 else "ahead of"
    return f"first sent at {first_sent_at_ms} ms, by a clock that is {abs(gap_ms)} ms {side} the shard's"


def clock_gap_ms(message: str) -> int | None:
    """Return the gap that :func:`clock_gap` says: negative if the clock is ahead; None if it says none.

    >>> clock_gap_ms(clock_gap(302_000, 1_000))
    -301000
    """
    found = _CLOCK_GAP.search(message)
    return None if found is None else int(found[1]) * (1 if found[2] == "behind" else -1)


_REMEDIES = {
    OK: Remedy.NONE,
    NOT_LEADER: Remedy.RETRY,
    OVERLOADED: Remedy.RETRY,
    PREPARED: Remedy.RETRY,
    REQUEST_EXPIRED: Remedy.UNKNOWN,
}


def remedy(status: str) -> Remedy:
    """Return what to do about ``status``. An unknown code (of a newer server) counts as one to fix."""
    return _REMEDIES.get(status, Remedy.FIX)
