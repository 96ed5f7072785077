"""``point-in-time``: the state as of a managed index or a time, in a directory for ``stratolog sh --at DIR``.

A batch takes effect as a whole. The state as of an index is the state after the last batch that ends at or before the
index. The state as of a time is the state after the last batch whose timestamp (the leader's) is not later. If a
replica has an earlier checkpoint, the rebuild begins there. The directory stays, because the user asked for it; nothing
of the stack depends on it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from schemas.records.log import Batch, RequestBatch
from spark_streaming.records.core.reading import AuditPosition
from stratolog.configuration import state_directory
from stratolog.configuration.state_directory import ShardPosition
from stratolog.drills.core import digest_findings
from stratolog.drills.core.log_digest import total
from stratolog.drills.core.log_survey import Digest, LogEntry
from stratolog.drills.core.report import CouldNotRun
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.log_reading import survey
from stratolog.drills.kit.rebuild import FOLDER, bases_for, checkpoints_of, copy_base, rebuild
from stratolog.drills.kit.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment: a managed ``index`` of one shard, or a time in milliseconds since the epoch.

    ``into`` is the directory to make.
    """

    index: int | None = None
    time_ms: int | None = None
    into: Path | None = None

    def __str__(self) -> str:
        """Say it for people."""
        if self.time_ms is None:
            return f"index {self.index}"
        return datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")

    def is_past(self, entry: LogEntry) -> bool:
        """Whether a record is a batch that counts and is from after the moment. Pure."""
        record = entry.record
        if not entry.reading.takes_effect or not isinstance(record, Batch | RequestBatch):
            return False
        if self.time_ms is not None:
            return record.timestamp_ms > self.time_ms
        return self.index is not None and record.last_index > self.index


def time_of(text: str) -> int:
    """Read an ISO 8601 time as milliseconds since the epoch; without a zone it is this machine's local time.

    Raises ValueError.
    """
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def run(session: Session, cluster: Cluster, shards: Sequence[int], moment: Moment) -> None:
    """Run the drill for these shards."""
    _check(moment)
    settings = cluster.settings
    folder = (
        moment.into or settings.data_dir / FOLDER / f"point-in-time-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}"
    )
    if folder.exists():
        raise CouldNotRun(f"{folder} is there already: name another directory")
    goals = {shard: _goal(session, cluster, shard, moment) for shard in shards}
    _make(folder)
    discard = session.touching(f"directory {folder}, of this drill's own", lambda: _keep_or_discard(session, folder))
    for shard, (goal, checkpoints) in goals.items():
        taken = checkpoints_of(settings, shard, checkpoints)
        with session.step(f"rebuild shard {shard} up to offset {goal.offset}, index {goal.index}") as found:
            usable = [one for one in taken if one.offset <= goal.offset]
            base = copy_base(settings, shard, folder, bases_for(goal.offset, usable), goal.offset) if usable else None
            rebuilt = rebuild(settings, shard, folder, goal.offset)
            began = f"from checkpoint {base.name} of {base.node}" if base else "from the log's first record"
            found(f"{began}, {rebuilt.applied} records took effect")
        if goal.known:
            digests = {"running": rebuilt.incremental, "scanned": rebuilt.scrubbed}
            session.find(digest_findings.rebuilt_equal(digests, goal))
        else:
            session.find(digest_findings.scan_equal(rebuilt.incremental, rebuilt.scrubbed))
    state_directory.write_manifest(
        folder, cluster=settings.cluster, shards=settings.shards, as_of=str(moment),
        positions={
            shard: ShardPosition(index=goal.index, offset=goal.offset, digest=total(goal.sums))
            for shard, (goal, _) in goals.items()
        },
    )  # fmt: skip
    discard()


def _check(moment: Moment) -> None:
    """Raise CouldNotRun for a moment in the future."""
    if moment.time_ms is not None and moment.time_ms > time.time_ns() // 1_000_000:
        raise CouldNotRun(f"{moment} has not come yet")


def _goal(session: Session, cluster: Cluster, shard: int, moment: Moment) -> tuple[Digest, dict[str, int]]:
    """Return the log's digest after a shard's last record of the moment, and the checkpoints up to that record."""
    with session.step(f"find {moment} in the log of shard {shard}, and add up its claims") as found:
        seen = survey(cluster.settings, shard, stop=moment.is_past)
        _check_kept(shard, seen.digest.position, moment)
        goal = seen.digest_here()
        found(f"offset {goal.offset}, index {goal.index}")
    if moment.index is not None and goal.index < moment.index and not _reaches(cluster, shard, moment.index):
        raise CouldNotRun(f"shard {shard} is at index {goal.index}: there is no index {moment.index} yet")
    if goal.offset < 0:
        raise CouldNotRun(f"shard {shard} has no record before {moment}")
    return goal, seen.checkpoints


def _check_kept(shard: int, read: AuditPosition, moment: Moment) -> None:
    """Raise CouldNotRun if a moment lies before the records that a trimmed log still has.

    ``read`` is the position after the log's last record of the moment. A time needs a batch of the log that is not
    later: when the last one before the base was written is not known.
    """
    if read.trimmed_to < 0:
        return
    if moment.time_ms is None:
        is_kept = read.has_begun and (moment.index or 0) >= read.base_index
    else:
        is_kept = read.timestamp_ms > 0
    if not is_kept:
        raise CouldNotRun(
            f"{moment} lies before what the log of shard {shard} still has: it was trimmed, and begins at offset "
            f"{read.trimmed_to}, with index {max(read.base_index, 0)}"
        )


def _reaches(cluster: Cluster, shard: int, index: int) -> bool:
    """Whether the log reaches an index: the index then lies within a batch, and the state is from before that batch."""
    return survey(cluster.settings, shard).digest.index >= index


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise CouldNotRun(f"{folder} cannot be made: {error.strerror}") from error


def _keep_or_discard(session: Session, folder: Path) -> str:
    """Keep a complete state; delete one that was not finished, or about which a finding does not hold."""
    if state_directory.is_state(folder) and all(finding.holds for finding in session.findings):
        return (
            f"{folder} stays, to be looked at ('stratolog sh --at {folder} volume list') and deleted when it is no "
            "more needed"
        )
    shutil.rmtree(folder, ignore_errors=True)
    return f"{folder} is deleted"
