"""``kill-leader``: SIGKILL a shard's leader under load; it measures the time to the first acknowledged write.

No write may be lost or doubled.
"""

from __future__ import annotations

from stratolog.drills.kit.aftermath import judged_load
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.core import write_findings
from stratolog.drills.kit.faults import lose_leader
from stratolog.drills.kit.session import Session

WRITES = 20


def run(session: Session, cluster: Cluster, shard: int) -> None:
    """Run the drill."""
    with session.step("check that the stack is whole"):
        cluster.check_whole()
    with judged_load(session, cluster, "kill-leader", shard) as (load, judge):
        lost = lose_leader(session, cluster, shard, ProcessFault.KILL, lambda: load.wait_more(WRITES))
        with session.step(f"start {lost.name} again, wait until it has caught up"):
            lost.give_back()
            cluster.wait_led()
            cluster.wait_caught_up(lost.name, shard)
            load.wait_more(WRITES)
        seen = judge()
        pause_s = write_findings.failover_s(load.journal, lost.at_s, seen.claims, int(lost.view["term"]))
        session.find(write_findings.failed_over(lost.name, lost.successor, pause_s))
        if pause_s is not None:
            session.figures["kill_to_first_acknowledged_write_s"] = pause_s
