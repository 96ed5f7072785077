"""``rolling-upgrade``: nodes of two versions in one shard, in both directions, in both modes of execution.

First, one node of three has the next version, and an old node leads. Then a node of the next version leads, and one old
node is left. With late validation every replica executes the requests by its own rules, so the odd one diverges. The
replicas' digests tell which one, at which index and in which buckets; their rows name the keys. With leader-side
execution the same requests leave all replicas equal, because followers apply bytes.

The drill touches nothing of the running stack. Nodes with other handlers exist only in ``two_versions``, so the drill
makes its shards in this process, over RocksDB databases in a directory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from om_processors.execution.service import OM_FAMILIES
from schemas import result_codes as codes
from stratolog.drills.core import version_findings
from stratolog.drills.core.log_digest import differing, slot_of
from stratolog.drills.core.version_findings import DifferingRow, Mixed
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.rebuild import scratch
from stratolog.drills.kit.session import Session
from stratolog.drills.two_versions import NEXT, THIS, MixedShard, mixed_shard, some_requests

ODD = "om3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """The version of each node; the first node leads, and ODD is the one that differs."""

    name: str
    versions: Mapping[str, str]


DIRECTIONS = (
    Direction(name="one upgraded follower", versions={"om1": THIS, "om2": THIS, ODD: NEXT}),
    Direction(name="one follower left to upgrade", versions={"om1": NEXT, "om2": NEXT, ODD: THIS}),
)


def run(session: Session, cluster: Cluster) -> None:
    """Run the drill."""
    with scratch(session, cluster.settings, "rolling-upgrade") as folder:
        for number, direction in enumerate(DIRECTIONS):
            for late in (True, False):
                mode = "late validation" if late else "leader-side execution"
                with session.step(f"{mode}, {direction.name}: send the same requests") as found:
                    seen = mixed(folder / f"{number}-{late}", direction, late=late)
                    found(f"{seen.requests} requests, {seen.refused} refused by the leader")
                where = f"{direction.name} ({ODD} has {direction.versions[ODD]})"
                session.find(
                    version_findings.late_diverges(where, ODD, seen)
                    if late
                    else version_findings.leader_side_holds(where, seen)
                )
                if late:
                    session.figures[f"rows_diverged_{direction.name.replace(' ', '_')}"] = len(seen.rows)


def mixed(folder: Path, direction: Direction, *, late: bool) -> Mixed:
    """Have a mixed shard take some requests, compare its replicas after each, and its rows in the end."""
    requests, refused = 0, 0
    first: int | None = None
    with mixed_shard(folder, direction.versions, late=late) as shard:
        for answer in some_requests(shard):
            requests += 1
            refused += answer.status != codes.OK
            if first is None and len({tuple(sorted(sums.items())) for sums in shard.digests().values()}) > 1:
                first = answer.index
        scans = shard.scans()
        odd = [name for name in scans if name != shard.leader_name and scans[name] != scans[shard.leader_name]]
        return Mixed(
            requests=requests, refused=refused, first_index=first, odd=tuple(odd),
            slots=tuple(slot for name in odd for slot in differing(scans[name], scans[shard.leader_name])),
            rows=tuple(row for name in odd for row in _differing_rows(shard, name)),
            families=OM_FAMILIES.names, evidence=tuple(shard.evidence()), scanned=scans == shard.digests(),
        )  # fmt: skip


def _differing_rows(shard: MixedShard, name: str) -> list[DifferingRow]:
    """Return the rows in which a node differs from the leader."""
    mine, theirs = shard.rows(name), shard.rows(shard.leader_name)
    keys = sorted(row for row in mine.keys() | theirs.keys() if mine.get(row) != theirs.get(row))
    return [DifferingRow(cf, slot_of(OM_FAMILIES.names, cf, key), _words(key)) for cf, key in keys]


def _words(key: bytes) -> str:
    text = key.decode(errors="replace")
    return text if text.isprintable() else key.hex()
