"""The reports of a pipeline's members on their stored bytes, compared with the log's rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from schemas.records.datanode import BlockReport
from schemas.records.verdict_words import DIVERGED, EQUAL, UNKNOWN
from spark_streaming.verdicts.core.scans import ScanVerdict, against_log, among_members

Json = dict[str, Any]


class ScanHead(NamedTuple):
    """A BlockReport without its containers: partition and offset of its record, its node, the log offset it names."""

    shard: int
    offset: int
    node: str
    log_offset: int


def newest_scans(heads: Iterable[ScanHead], members: Mapping[int, set[str]]) -> list[tuple[int, int]]:
    """Return (partition, offset) of the reports to compare; ``heads`` are in the order of their offsets.

    For each partition the reports at one log offset are chosen: the newest that a majority of the members has reported
    on, or the newest of all if no offset has a majority. A member's later report on one log offset replaces its
    earlier one.
    """
    latest: dict[int, dict[int, dict[str, int]]] = {}
    for head in heads:
        if head.node in members.get(head.shard, ()):
            latest.setdefault(head.shard, {}).setdefault(head.log_offset, {})[head.node] = head.offset
    wanted: list[tuple[int, int]] = []
    for shard, scans in latest.items():
        majority = len(members[shard]) // 2 + 1
        at = max(scans, key=lambda offset: (len(scans[offset]) >= majority, offset))
        wanted += [(shard, offset) for offset in scans[at].values()]
    return wanted


def blocks_result(
    members: Sequence[str], at: int, index: int, reports: Sequence[BlockReport], expected: Mapping[int, int] | None
) -> Json:
    """Judge the members' reports at log offset ``at``, with managed index ``index``; the rows give ``expected``.

    Without ``expected``, because the log was trimmed, the members are compared with each other.
    """
    found = {report.datanode: report for report in reports}
    if expected is None:
        # The index at that offset is not known if it lies before the base.
        same = [report for report in reports if index in (0, report.index)]
        judge_one: Mapping[str, ScanVerdict] = among_members(same, len(members))
        missing = ScanVerdict(verdict=UNKNOWN, reason="no report of its stored bytes at that index")
        judged = [_member_result(node, judge_one.get(node, missing)) for node in members]
        return {"log_offset": at, "index": index or None, "containers": None, "members": judged}
    judged = [_member_result(node, _judge(found.get(node), index, expected)) for node in members]
    return {"log_offset": at, "index": index, "containers": len(expected), "members": judged}


def no_blocks(members: Sequence[str]) -> Json:
    """Return the result of a pipeline without a report of any member."""
    unknown = ScanVerdict(verdict=UNKNOWN, reason="no member has reported its stored bytes yet")
    judged = [_member_result(node, unknown) for node in members]
    return {"log_offset": None, "index": None, "containers": None, "members": judged}


def are_blocks_ok(entry: Json, *, required: bool) -> bool:
    """Say whether no member's bytes are ``diverged``; if ``required``, whether all are ``equal``."""
    verdicts = [member["verdict"] for member in entry["blocks"]["members"]]
    return all(verdict == EQUAL if required else verdict != DIVERGED for verdict in verdicts)


def _judge(report: BlockReport | None, index: int, expected: Mapping[int, int]) -> ScanVerdict:
    if report is None:
        return ScanVerdict(verdict=UNKNOWN, reason="no report of its stored bytes at that index")
    if report.index != index:
        return ScanVerdict(verdict=UNKNOWN, reason=f"names index {report.index}, at that offset the log's is {index}")
    return against_log(report, expected)


def _member_result(node: str, said: ScanVerdict) -> Json:
    containers = [asdict(one) | {"blocks": [key.hex() for key in one.blocks]} for one in said.containers]
    return {"node": node, "verdict": said.verdict, "reason": said.reason, "containers": containers}
