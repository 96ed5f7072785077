"""Findings on replicas that have installed a peer's checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replicated_db.core.bootstrap.pace import size_words
from stratolog.cluster.core.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedDigest:
    """A replica's digest by a full scan at an index, and its incremental digest at the same moment."""

    index: int
    scanned: str
    incremental: str


def installed(node: str, said: Mapping[str, Any] | None, words: str, least_offset: int) -> Finding:
    """Judge whether a node has installed a checkpoint at or behind ``least_offset``.

    ``said`` is what it says of that, ``words`` the same for people.
    """
    return Finding(
        question=f"{node} installed a peer's checkpoint at or behind offset {least_offset}",
        holds=said is not None and int(said["offset"]) >= least_offset,
        seen=words or "it has installed none",
    )


def saved(said: Mapping[str, Any] | None) -> Finding:
    """Judge whether files that the node had already were not sent again."""
    count = 0 if said is None else int(said["saved_bytes"])
    return Finding(
        question="files that the node had already were not sent again", holds=count > 0,
        seen=f"{size_words(count)} were excluded",
    )  # fmt: skip


def scans_equal(scans: Mapping[str, ScannedDigest]) -> Finding:
    """Judge whether all nodes' full scans have one digest at one index, equal to the incremental ones."""
    own = [node for node, one in scans.items() if one.scanned != one.incremental]
    values = {(one.index, one.scanned) for one in scans.values()}
    if own:
        seen = f"rows of {', '.join(own)} are not those of its digest"
    else:
        seen = ", ".join(f"{node} {one.scanned} at index {one.index}" for node, one in sorted(scans.items()))
    return Finding(question="full scans of all replicas have one digest", holds=not own and len(values) == 1, seen=seen)


def restored(backup: str, rebuilt: str, scans: Mapping[str, ScannedDigest]) -> Finding:
    """Judge restored replicas against the digest that the backup's manifest has; ``rebuilt`` is the restore's own."""
    wrong = [f"{node} {one.scanned}" for node, one in sorted(scans.items()) if one.scanned != backup]
    if rebuilt != backup:
        wrong.insert(0, f"the restore {rebuilt}")
    return Finding(
        question=f"all restored replicas have the backup's digest {backup}", holds=bool(scans) and not wrong,
        seen=", ".join(wrong) or ", ".join(sorted(scans)),
    )  # fmt: skip
