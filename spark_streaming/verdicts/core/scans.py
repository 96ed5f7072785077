"""Stored bytes of a pipeline's members, compared container by container. Pure.

A member's BlockReport gives for each container a digest over the checksums of the bytes on its disk
(``schemas/codecs/block_rows.py``). Rules:

1. Against the log: the rows at the report's index give the digest of each container that has a block. A member is
   ``diverged`` if it has another digest, lacks the container, has one that the log does not know, or names an
   unreadable block.
2. Among members alone: the digest that a majority of the members reports of a container counts as right. Without one no
   member can be called equal; until a majority has reported, all are ``unknown``.
3. A container without blocks is the same as none. An incomplete report is compared only up to its last container id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.records.datanode import BlockReport, ContainerDigest
from schemas.records.messages import ContainerDifference
from schemas.records.verdict_words import DIVERGED, EQUAL, UNKNOWN

MAX_CONTAINERS = 64
"""Most differing containers that a verdict names; its reason counts them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanVerdict:
    """The verdict on a member's report of its stored bytes."""

    verdict: str
    reason: str = ""
    containers: list[ContainerDifference] = field(default_factory=list)


def against_log(report: BlockReport, expected: Mapping[int, int]) -> ScanVerdict:
    """Compare a report with the digests that the log gives at its index (container id -> signed digest)."""
    return _verdict(report, expected, frozenset(), "the log's rows")


def among_members(reports: Sequence[BlockReport], members: int) -> dict[str, ScanVerdict]:
    """Compare reports of one index with each other; return each datanode's verdict."""
    majority = members // 2 + 1
    if len(reports) < majority:
        few = ScanVerdict(verdict=UNKNOWN, reason="no majority of the members has reported")
        return {report.datanode: few for report in reports}
    expected: dict[int, int] = {}
    unsettled: set[int] = set()
    held = [(report, _held(report)) for report in reports]
    for container in sorted({container for _, found in held for container in found}):
        votes = Counter(_digest(found, container) for report, found in held if _covers(report, container))
        digest, count = votes.most_common(1)[0]
        if count < majority:
            unsettled.add(container)
        elif digest is not None:
            expected[container] = digest
    others = "what a majority of the members has"
    return {report.datanode: _verdict(report, expected, unsettled, others) for report in reports}


def _verdict(
    report: BlockReport, expected: Mapping[int, int], unsettled: frozenset[int] | set[int], others: str
) -> ScanVerdict:
    held = _held(report)
    differing = [
        ContainerDifference(
            container_id=container,
            expected=expected.get(container),
            found=_digest(held, container),
            blocks=held[container].unreadable if container in held else [],
        )
        for container in sorted(expected.keys() | held.keys())
        if _covers(report, container)
        and (
            container in unsettled
            or _digest(held, container) != expected.get(container)
            or (container in held and held[container].unreadable)
        )
    ]
    if not differing:
        return ScanVerdict(verdict=EQUAL)
    blocks = sum(len(container.blocks) for container in differing)
    reason = f"{len(differing)} containers differ from {others}"
    if blocks:
        reason += f", {blocks} blocks are unreadable there"
    if any(container.container_id in unsettled for container in differing):
        reason += "; of some no majority of the members has the same"
    return ScanVerdict(verdict=DIVERGED, reason=reason, containers=differing[:MAX_CONTAINERS])


def _held(report: BlockReport) -> dict[int, ContainerDigest]:
    return {container.container_id: container for container in report.containers if container.blocks}


def _digest(held: Mapping[int, ContainerDigest], container: int) -> int | None:
    return held[container].digest if container in held else None


def _covers(report: BlockReport, container: int) -> bool:
    return report.complete or (bool(report.containers) and container <= report.containers[-1].container_id)
