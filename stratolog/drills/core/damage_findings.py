"""Findings on a damaged row: who names it, and how exactly. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schemas.records.verdict_words import EQUAL
from stratolog.cluster.core.findings import Finding
from stratolog.drills.core.log_digest import Sums, differing
from stratolog.drills.core.log_survey import Digest
from stratolog.drills.core.wording import named, slots_named


class DigestBucket(NamedTuple):
    """A bucket of a digest: a column family, and the bucket's number in it."""

    cf: str
    bucket: int


def scrub_names(damaged: str, scans: Mapping[str, Sums], log: Digest, slots: Sequence[int]) -> Finding:
    """Judge full scans at a barrier: only the damaged replica's differs from the log's, in one bucket (``slots``)."""
    others = [name for name, sums in scans.items() if name != damaged and differing(sums, log.sums)]
    seen = f"{damaged} differs in {slots_named(log.families, slots) or 'nothing'}"
    return Finding(
        question="a full scan names the damaged replica, and one digest bucket",
        holds=len(slots) == 1 and not others and len(scans) > 1,
        seen=seen + (f"; so do {', '.join(others)}" if others else f"; {len(scans) - 1} others are equal to the log"),
    )


def audit_names(damaged: str, seen: Sequence[DigestBucket], expected: Sequence[DigestBucket]) -> Finding:
    """Judge what the Spark audit's verdict on the damaged replica names: column families and buckets."""
    return Finding(
        question="the Spark audit says diverged, and names the bucket",
        holds=list(seen) == list(expected) and bool(seen),
        seen=f"{damaged}: {named(f'{one.cf} bucket {one.bucket}' for one in seen) or 'nothing'}",
    )  # fmt: skip


def audit_names_row(damaged: str, said: str, key: bytes) -> Finding:
    """Judge what the Spark audit says of the rows in which the damaged replica differs."""
    shown = repr(key.decode(errors="replace"))
    return Finding(
        question="the Spark audit names the damaged row and no other",
        holds=said.count(" (") == 1 and f"{shown} (another value)" in said, seen=f"{damaged}: {said}",
    )  # fmt: skip


def audit_agrees(repaired: str, verdict: str, index: int) -> Finding:
    """Judge the Spark audit's verdict on the full scan of a repaired replica."""
    return Finding(
        question="the Spark audit says equal again", holds=verdict == EQUAL,
        seen=f"{repaired}: {verdict} at index {index}, by a full scan",
    )  # fmt: skip


def narrowed(damaged: bytes, keys: Sequence[bytes]) -> Finding:
    """Judge which keys of the bucket differ between the damaged replica and a healthy one."""
    return Finding(
        question="the bucket's rows name the damaged row and no other", holds=list(keys) == [damaged],
        seen=named(key.decode(errors="replace") for key in keys) or "no row differs",
    )  # fmt: skip
