"""The words in a verdict: the verdict itself, its basis, and the claim of a replica's own scan. Pure."""

from __future__ import annotations

EQUAL = "equal"
DIVERGED = "diverged"
UNKNOWN = "unknown"

INCREMENTAL = "incremental"
SCRUBBED = "scrubbed"
EVIDENCE = "evidence"
LOG = "log"
BASE = "base"
"""Of no replica: a DigestBase has replaced the log's sums by others."""
BLOCKS = "blocks"

SCAN = "scan"
"""Claim of evidence that a replica's scan of its own rows has found. It blames no leader, and no peer settles it."""

ALONE = "replicas:"
"""Prefix of the basis of a verdict that rests on the replicas alone; the basis of the report follows."""


def alone_basis(basis: str) -> str:
    """Return the basis of a verdict on a report of ``basis`` that rests on the replicas alone."""
    return ALONE + basis
