"""``kill-leader``: SIGKILL a shard's leader under load; it measures the time to the first acknowledged write.

No write may be lost or doubled.
"""

from __future__ import annotations

import time

from stratolog.drills.kit.aftermath import judge_load
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.core import write_findings
from stratolog.drills.kit.load import own_load
from stratolog.drills.kit.session import Session
from stratolog.drills.kit.taps import ReportTap

WRITES = 20


def run(session: Session, cluster: Cluster, shard: int) -> None:
    """Run the drill."""
    with session.step("check that the stack is whole"):
        cluster.check_whole()
    with (
        ReportTap(cluster.settings.connection, shard) as reports,
        own_load(session, cluster, "kill-leader", shard) as load,
    ):
        victim = cluster.wait_leader(shard)
        before = cluster.view(victim, shard)
        with session.step(f"SIGKILL {victim}, which leads shard {shard}"):
            killed_s = time.monotonic()
            start_again = cluster.kill(session, victim)
        with session.step("wait for another leader, and for writes") as found:
            successor = cluster.wait_leader(shard, other_than=victim)
            load.wait_more(WRITES)
            found(f"{successor} leads")
        with session.step(f"start {victim} again, wait until it has caught up"):
            start_again()
            cluster.wait_led()
            cluster.wait_caught_up(victim, shard)
            load.wait_more(WRITES)
        seen = judge_load(session, cluster, shard, load, reports, int(before["applied_offset"]))
        pause_s = write_findings.failover_s(load.journal, killed_s, seen.claims, int(before["term"]))
        session.find(write_findings.failed_over(victim, successor, pause_s))
        if pause_s is not None:
            session.figures["kill_to_first_acknowledged_write_s"] = pause_s
