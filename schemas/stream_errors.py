"""Codes of a StreamError: why a datanode refused or failed."""

from __future__ import annotations

BAD_FRAME = "BAD_FRAME"
"""The bytes are not a frame, or a payload does not match its checksum: send it again on another connection."""
WRONG_CLUSTER = "WRONG_CLUSTER"
UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
INVALID_REQUEST = "INVALID_REQUEST"
"""The request is wrong in itself; the message names the input."""
NO_SUCH_PIPELINE = "NO_SUCH_PIPELINE"
"""This datanode is no member of the pipeline."""
PIPELINE_CLOSED = "PIPELINE_CLOSED"
NOT_LEADER = "NOT_LEADER"
"""Ask the pipeline's leader (``hint``, if known)."""
NO_SUCH_BLOCK = "NO_SUCH_BLOCK"
BLOCK_DELETED = "BLOCK_DELETED"
CONTAINER_CLOSED = "CONTAINER_CLOSED"
CHECKSUM_MISMATCH = "CHECKSUM_MISMATCH"
"""Stored bytes do not match their checksum, or a PutBlock claims other checksums for an equal length."""
NOT_COMMITTED = "NOT_COMMITTED"
"""This replica lacks the index or the bytes that were asked for: ask another."""
OUT_OF_ORDER = "OUT_OF_ORDER"
"""A packet does not begin where the stream's last one ended."""
DISK_FULL = "DISK_FULL"
OVERLOADED = "OVERLOADED"
"""A limit on streams or queues is reached: try again later, or elsewhere."""
DOWNSTREAM_FAILED = "DOWNSTREAM_FAILED"
"""A datanode further down the tree failed; ``datanode`` names it, ``offset`` is the length that all have."""
TIMED_OUT = "TIMED_OUT"
STOPPING = "STOPPING"
FAILED = "FAILED"
"""A defect; its message is in the log of the datanode."""
PERMISSION_DENIED = "PERMISSION_DENIED"
"""The peer is not who may ask for that: its certificate has another role or name, or it has none."""
BLOCK_TOKEN_MISSING = "BLOCK_TOKEN_MISSING"  # noqa: S105 - a code
"""The datanode demands block tokens, and the request has none for the block."""
BLOCK_TOKEN_INVALID = "BLOCK_TOKEN_INVALID"  # noqa: S105 - a code
"""A block token is damaged or forged, or it is not for that operation or length."""
BLOCK_TOKEN_EXPIRED = "BLOCK_TOKEN_EXPIRED"  # noqa: S105 - a code
BLOCK_TOKEN_KEY_UNKNOWN = "BLOCK_TOKEN_KEY_UNKNOWN"  # noqa: S105 - a code
"""The datanode does not have the key of a token: it was not told yet, or the key is no longer valid."""
TOKEN_REFUSALS = frozenset({BLOCK_TOKEN_MISSING, BLOCK_TOKEN_INVALID, BLOCK_TOKEN_EXPIRED, BLOCK_TOKEN_KEY_UNKNOWN})
"""Codes after which another token may do."""
