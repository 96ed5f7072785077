"""``bootstrap-kill``: a node is killed at every stage of its install, and started again each time.

The node has a replica, and checkpoints, when the log's beginning is deleted while it is away: so each kill leaves the
old replica or the new one, and both have rows. The drill runs on a stack of its own, as ``expired-log`` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stratolog.cluster.installs import install_words
from stratolog.drills.core import install_findings
from stratolog.drills.core.report import CouldNotRun
from stratolog.drills.installs.core import kill_findings
from stratolog.drills.installs.core.stages import InstallStage
from stratolog.drills.installs.kills import InstallKills, Kill
from stratolog.drills.installs.victim import NodeVictim
from stratolog.drills.kit.aftermath import judge_at_rest
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import Load, own_load
from stratolog.drills.kit.own_stack import SHARD, own_stack, trim_log
from stratolog.drills.kit.session import Session
from stratolog.local.state import NODE

WRITES = 50
LONG_NAMES, NAME_BYTES = 5_000, 4_000
"""Keys that make a checkpoint of more than LAST_ROUND_BYTES, so that an install has a second round."""

MOST_KILLS = 60
STAGES = (
    InstallStage.SECOND_ROUND,
    *(stage for stage in InstallStage if stage not in (InstallStage.SEEKING, InstallStage.SECOND_ROUND)),
)
"""In this order: what is fetched stays, so only a first install has a second round."""


def run(session: Session, cluster: Cluster) -> None:
    """Run the drill."""
    with own_stack(session, cluster.settings, "bootstrap-kill", detached=cluster.detached) as own:
        victim = NodeVictim(own, own.follower_of(SHARD))
        with own_load(session, own, "bootstrap-kill", SHARD) as load:
            _keep_a_snapshot(load)
            load.wait_more(WRITES)
            _be_away(session, own, victim, load)
            with session.step(f"write {LONG_NAMES} keys with long names"):
                load.put_many(LONG_NAMES, NAME_BYTES)
                trim_log(own)
            kills = list(_kill_everywhere(session, own, victim, load))
            _kill_the_peer(session, own, victim, load)
            _judge(session, own, victim, load, kills)


def _keep_a_snapshot(load: Load) -> None:
    """Have all replicas take a checkpoint that stays: an install carries it, and puts the old one aside."""
    volume = f"{load.volume}-kept"
    load.client.create_volume(volume)
    load.client.create_bucket(volume, "kept")
    load.client.create_snapshot(volume, "kept", "first")


def _be_away(session: Session, own: Cluster, victim: NodeVictim, load: Load) -> None:
    """Kill the node when it has caught up, and delete the log's records that it would need."""
    with session.step(f"SIGKILL {victim.name}, and delete the log's records that it would need") as found:
        own.wait_led()
        own.wait_caught_up(victim.name, SHARD)
        victim.kill()
        load.wait_more(WRITES)
        found(f"the log begins at offset {trim_log(own)}")


def _kill_everywhere(session: Session, own: Cluster, victim: NodeVictim, load: Load) -> Iterable[Kill]:
    def need_again() -> None:
        victim.start()
        _be_away(session, own, victim, load)

    kills = InstallKills(victim)
    each = iter(kills.at_each(STAGES, need_again, MOST_KILLS))
    while True:
        with session.step(f"start {victim.name}, and SIGKILL it in its install") as found:
            kill = next(each, None)
            if kill is None:
                found("every stage was met, or enough was tried")
                return
            found(kill.wrong or f"{kill.found.value}; it is {'new' if kill.found.is_new else 'old'}")
        yield kill


def _kill_the_peer(session: Session, own: Cluster, victim: NodeVictim, load: Load) -> None:
    """Have the node install once more, and kill the leader, which serves it, as soon as files come."""
    victim.start()
    _be_away(session, own, victim, load)
    leader = own.wait_leader(SHARD)
    with session.step(f"start {victim.name}, and SIGKILL {leader}, which serves it") as found:
        found(InstallKills(victim).see(InstallStage.FETCHING).stage().value)
        own.member(NODE, leader).process.kill()
        own.spawn(leader)
        own.wait_led()
        own.wait_caught_up(victim.name, SHARD)


def _judge(session: Session, own: Cluster, victim: NodeVictim, load: Load, kills: list[Kill]) -> None:
    load.wait_more(WRITES)
    judge_at_rest(session, own, SHARD, load)
    said = own.view(victim.name, SHARD).get("installed")
    met = Counter(kill.found for kill in kills)
    session.find(
        kill_findings.never_mixed(len(kills), [kill.wrong for kill in kills if kill.wrong]),
        kill_findings.not_fetched_again(
            sum(kill.kept_bytes for kill in kills), sum(kill.fetched_again for kill in kills)
        ),
        install_findings.installed(victim.name, said, install_words(said) if said else "", 0),
    )
    session.figures["kills"] = len(kills)
    session.figures["kept_bytes"] = float(sum(kill.kept_bytes for kill in kills))
    for name in ("fetched_bytes", "saved_bytes", "took_s"):
        session.figures[f"last_install_{name}"] = float(said[name]) if said else 0.0
    if missed := kill_findings.every_stage(met, STAGES):
        raise CouldNotRun(missed)
