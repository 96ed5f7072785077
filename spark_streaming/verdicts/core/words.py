"""The words of a verdict: what it says, and the basis on which it says it. Pure."""

from __future__ import annotations

EQUAL = "equal"
DIVERGED = "diverged"
UNKNOWN = "unknown"

INCREMENTAL = "incremental"
SCRUBBED = "scrubbed"
EVIDENCE = "evidence"
LOG = "log"
BLOCKS = "blocks"

ALONE = "replicas:"
"""Begins the basis of a verdict that rests on the replicas alone; what follows is the basis of the report."""


def alone_basis(basis: str) -> str:
    """Return the basis of a verdict on a report of ``basis`` that rests on the replicas alone."""
    return ALONE + basis
