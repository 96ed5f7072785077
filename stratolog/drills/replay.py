"""``replay``: rebuild a replica beside the stack, and compare it with the log and with the live replicas.

The replay begins at the log's first record, or (``--from N``) at a checkpoint at or before offset N that some replica
has. It ends at offset M (``--to M``), or at the last barrier, where every live replica has published its digest. A
replay that begins in the middle of the log without a checkpoint is refused: digests are sums over all rows.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.records.verdict_words import INCREMENTAL
from stratolog.cluster.spark_oracle import open_oracle
from stratolog.drills.core import digest_findings
from stratolog.drills.core.log_digest import Sums, unsigned
from stratolog.drills.core.log_survey import Digest, Survey
from stratolog.drills.core.report import CouldNotRun, StepFailed
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.log_reading import survey
from stratolog.drills.kit.rebuild import (
    Rebuilt,
    TakenCheckpoint,
    bases_for,
    checkpoints_of,
    copy_base,
    rebuild,
    scratch,
)
from stratolog.drills.kit.session import Session
from stratolog.drills.kit.taps import ReportTap

REPORTS_SLACK_MS = 60_000
"""The search for a barrier's reports begins this long before the barrier's append time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What to replay: offsets, None for the first record and the last barrier. ``oracle``: ask Spark too."""

    start: int | None = None
    stop: int | None = None
    oracle: bool = False


def run(session: Session, cluster: Cluster, shard: int, wanted: Range) -> None:
    """Run the drill."""
    settings = cluster.settings
    if wanted.oracle and importlib.util.find_spec("pyspark") is None:
        raise CouldNotRun("pyspark is not installed, which --oracle needs: install stratolog with the extra 'spark'")
    if wanted.start is not None and wanted.stop is not None and wanted.start > wanted.stop:
        raise CouldNotRun(f"--from {wanted.start} is behind --to {wanted.stop}")
    with session.step("read the log by both rules, and add up its claims") as found:
        seen = survey(settings, shard, until=wanted.stop)
        goal = _goal(seen, wanted)
        found(f"to offset {goal.offset}, index {goal.index}")
    bases = bases_for(wanted.start, checkpoints_of(settings, shard, seen.checkpoints)) if wanted.start else []
    with scratch(session, settings, "replay") as folder:
        if bases:
            _copy_base(session, cluster, shard, folder, bases, goal)
        with session.step(f"apply the log up to offset {goal.offset} in {folder}, and scan the rows") as found:
            begun_s = time.monotonic()
            rebuilt = rebuild(settings, shard, folder, goal.offset)
            session.figures["records_applied"] = rebuilt.applied
            session.figures["replay_s"] = time.monotonic() - begun_s
            found(f"{rebuilt.applied} records took effect")
    _judge(session, cluster, shard, rebuilt, goal, seen, everybody=wanted.stop is None)
    if wanted.oracle and goal.known:
        _ask_the_oracle(session, cluster, shard, goal)


def _goal(seen: Survey, wanted: Range) -> Digest:
    """Return the log's digest at the end of the replay; raises CouldNotRun if that offset is not in the log."""
    if wanted.stop is not None:
        if seen.end_offset < wanted.stop:
            raise CouldNotRun(f"the log ends at offset {seen.end_offset}: there is no offset {wanted.stop}")
        return seen.digest_here()
    if seen.barrier is None:
        raise CouldNotRun("the log has no barrier yet, so no replica has published a digest: write something first")
    if wanted.start is not None and wanted.start > seen.barrier.offset:
        raise CouldNotRun(f"the last barrier is at offset {seen.barrier.offset}: --from {wanted.start} is behind it")
    return seen.barrier


def _copy_base(
    session: Session, cluster: Cluster, shard: int, folder: Path, bases: Sequence[TakenCheckpoint], goal: Digest
) -> None:  # fmt: skip
    """Put a copy of the checkpoint to begin at into ``folder``."""
    with session.step(f"copy a checkpoint taken at or before offset {bases[0].offset}") as found:
        base = copy_base(cluster.settings, shard, folder, bases, goal.offset)
        if base is None:
            raise StepFailed(f"none of the checkpoints {', '.join(one.name for one in bases)} holds what its name says")
        found(f"{base.name} of {base.node}, taken at offset {base.offset}")


def _judge(
    session: Session, cluster: Cluster, shard: int, rebuilt: Rebuilt, goal: Digest, seen: Survey, *, everybody: bool
) -> None:  # fmt: skip
    """Compare with the log, and with the live replicas whose digest at that index is known."""
    if goal.known:
        digests = {"running": rebuilt.incremental, "scanned": rebuilt.scrubbed}
        session.find(digest_findings.rebuilt_equal(digests, goal))
    else:
        session.find(digest_findings.scan_equal(rebuilt.incremental, rebuilt.scrubbed))
    session.find(digest_findings.no_evidence(rebuilt.evidence), digest_findings.rules_agree(seen.rules_differ))
    with session.step(f"look for the live replicas' digests at index {goal.index}") as found:
        live = live_digests(cluster, shard, goal)
        silent = [name for name in cluster.names if name not in live]
        found(", ".join(sorted(live)) or "none has reported there, and none stands there: not compared")
    if live or everybody:
        session.find(digest_findings.live_equal(live, rebuilt.scrubbed, goal.families, silent))


def live_digests(cluster: Cluster, shard: int, goal: Digest) -> dict[str, Sums]:
    """Return nodes' digests at an index: from their reports at a barrier there, or from where they stand now."""
    since_ms = max(0, goal.timestamp_ms - REPORTS_SLACK_MS)
    with ReportTap(cluster.settings.connection, shard, since_ms) as reports:
        live = reports.at_index(INCREMENTAL, goal.index)
    for name in _answering(cluster, shard, [name for name in cluster.names if name not in live]):
        answer = cluster.get(name, f"/v1/shards/{shard}/digest")
        if answer["index"] == goal.index:
            live[name] = unsigned(answer["slots"], answer["sums"])
    return live


def _answering(cluster: Cluster, shard: int, names: Sequence[str]) -> list[str]:
    return [name for name in names if cluster.view(name, shard)]


def _ask_the_oracle(session: Session, cluster: Cluster, shard: int, goal: Digest) -> None:
    with session.step(f"have Spark recompute the rows at offset {goal.offset} the long way") as found:
        with open_oracle(cluster.settings, lambda _: None) as oracle:
            computed = oracle(shard, goal.offset)
        found(f"{computed.rows} rows")
    session.find(digest_findings.oracle_equal(computed.digest, computed.index, goal))
