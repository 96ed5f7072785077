"""``bootstrap-leader-change``: the leader changes several times while a node fetches its checkpoint.

Twice the leadership is moved, and the serving node lives: the transfer goes on. Then the leader, which serves, is
killed, and afterwards the next one: the node asks another peer, or the same one once it is back. What is whole, and in
the next listing, too, is kept. The two peers have files in common, because one has installed the other's checkpoint
before. The drill runs on a stack of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratolog.cluster.installs import install_words
from stratolog.cluster.leadership import move
from stratolog.drills.core import install_findings
from stratolog.drills.installs.core import kill_findings
from stratolog.drills.installs.core.kill_findings import CandidateSight, LeaderChange, bytes_of
from stratolog.drills.installs.core.stages import ORDER, InstallStage
from stratolog.drills.installs.kills import InstallKills
from stratolog.drills.installs.victim import NodeVictim
from stratolog.drills.installs.watch import InstallWatch, candidate_of
from stratolog.drills.kit.aftermath import judged_load, scan_all
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import Load
from stratolog.drills.kit.own_stack import SHARD, lose_disk, own_stack
from stratolog.drills.kit.session import Session
from stratolog.local.state import NODE

MIB = 1024 * 1024
BYTES_PER_S = MIB
"""The throttle of the serving nodes: the least that the setting allows."""

NAME_BYTES = 4_000
COMMON_NAMES = 800
"""Keys whose rows are in files that both peers have."""

OTHER_NAMES = 5_000
"""Keys whose rows each peer has in files of its own. They make the transfer longer than a node's restart."""

KILLS = 2
WRITES = 50


def run(session: Session, cluster: Cluster) -> None:
    """Run the drill."""
    with own_stack(
        session, cluster.settings, "bootstrap-leader-change", detached=cluster.detached, bytes_per_s=BYTES_PER_S
    ) as own:
        victim = NodeVictim(own, own.follower_of(SHARD))
        with judged_load(session, own, "bootstrap-leader-change", SHARD) as (load, judge):
            _share_files(session, own, victim, load)
            before = int(own.view(victim.name, SHARD)["applied_offset"])
            with session.step(f"SIGKILL {victim.name}, and delete its folder"):
                victim.kill()
                lose_disk(own, victim.name)
            with session.step(f"start {victim.name}, and wait until files come"):
                watch = InstallKills(victim).see(InstallStage.FETCHING)
            changes = [*_move_twice(session, own, victim), *_kill_leaders(session, own, victim, watch)]
            with session.step(f"wait until {victim.name} has caught up") as found:
                own.wait_led()
                own.wait_caught_up(victim.name, SHARD)
                said = own.view(victim.name, SHARD).get("installed")
                found(words := install_words(said) if said else "")
            load.wait_more(WRITES)
            judge()
            session.find(
                kill_findings.changed_during(changes, KILLS + 2), kill_findings.goes_on(changes),
                kill_findings.marked_anew(changes), kill_findings.kept_whole(changes),
                install_findings.installed(victim.name, said, words, before),
                install_findings.scans_equal(scan_all(own, SHARD)),
            )  # fmt: skip
            session.figures["leader_changes"] = len(changes)
            session.figures["kept_bytes"] = float(sum(one.kept_bytes for one in changes if one.peer_lost))
            for name in ("fetched_bytes", "saved_bytes", "took_s"):
                session.figures[name] = float(said[name]) if said else 0.0


def _share_files(session: Session, own: Cluster, victim: NodeVictim, load: Load) -> None:
    """Have the two peers hold some files in common, and each of them others besides."""
    leader = own.wait_leader(SHARD)
    other = next(name for name in own.names if name not in (leader, victim.name))
    with session.step(f"write {COMMON_NAMES} keys with long names, and have {other} install {leader}'s checkpoint"):
        load.put_many(COMMON_NAMES, NAME_BYTES)
        own.member(NODE, other).process.kill()
        lose_disk(own, other)
        own.spawn(other)
        own.wait_led()
        own.wait_caught_up(other, SHARD)
    with session.step(f"write {OTHER_NAMES} more"):
        load.put_many(OTHER_NAMES, NAME_BYTES)
        for name in own.names:
            own.wait_caught_up(name, SHARD)


def _move_twice(session: Session, own: Cluster, victim: NodeVictim) -> Iterator[LeaderChange]:
    """Move the leadership to the other peer and back, while the first one serves."""
    serving = own.wait_leader(SHARD)
    other = next(name for name in own.names if name not in (serving, victim.name))
    for old, new in ((serving, other), (other, serving)):
        with session.step(f"move the leadership from {old} to {new}; {serving} serves on") as found:
            before = _sight(own, victim)
            move(own.settings, SHARD, new)
            own.wait_leader(SHARD, other_than=old)
            after = _sight(own, victim)
            found(f"{len(after.whole)} files are whole")
        yield LeaderChange(old_leader=old, new_leader=new, peer_lost=False, before=before, after=after)


def _kill_leaders(session: Session, own: Cluster, victim: NodeVictim, watch: InstallWatch) -> Iterator[LeaderChange]:
    """Kill the leader, which serves, and start it again; the next one when it has come back, while files come."""
    for _ in range(KILLS):
        leader = own.wait_leader(SHARD)
        with session.step(f"SIGKILL {leader}, which leads and serves; start it again") as found:
            before = _enough(own, victim, watch)
            if before is None:
                found("too late: all files have come")
                return
            listings = watch.listings
            own.member(NODE, leader).process.kill()
            own.spawn(leader)
            new = own.wait_leader(SHARD, other_than=leader)
            after = _marked_after(own, victim, watch, before, listings)
            found(f"{new} leads, {after.peer} serves, {bytes_of(after)} bytes of whole files are there")
            _wait_back(own, victim, leader)
        yield LeaderChange(old_leader=leader, new_leader=new, peer_lost=True, before=before, after=after)


def _marked_after(
    own: Cluster, victim: NodeVictim, watch: InstallWatch, before: CandidateSight, listings: int
) -> CandidateSight:
    """Wait until the victim has accepted a listing of another mark, and return its candidate then."""

    def seen() -> CandidateSight | None:
        watch.stage()
        found = candidate_of(victim.database)
        has_changed = found is not None and found.mark != before.mark
        return found if has_changed and watch.listings > listings else None

    return own.wait("a listing of another mark", seen)


def _wait_back(own: Cluster, victim: NodeVictim, name: str) -> None:
    """Wait until the peers stand together again, and know one leader: the victim, which installs, says nothing."""
    own.wait_led([other for other in own.names if other != victim.name])
    own.wait_caught_up(name, SHARD)


def _enough(own: Cluster, victim: NodeVictim, watch: InstallWatch) -> CandidateSight | None:
    """Wait until the files that both peers have are there; return None if all others are there, too."""
    enough = COMMON_NAMES * NAME_BYTES // 2  # a file of rows is smaller than the rows, and the next file much larger

    def seen() -> tuple[CandidateSight | None] | None:
        if ORDER[watch.stage()] > ORDER[InstallStage.SECOND_ROUND]:
            return (None,)
        found = candidate_of(victim.database)
        return (found,) if found is not None and bytes_of(found) >= enough else None

    return own.wait(f"{enough} bytes of whole files", seen)[0]


def _sight(own: Cluster, victim: NodeVictim) -> CandidateSight:
    return own.wait("the candidate's mark", lambda: candidate_of(victim.database))
