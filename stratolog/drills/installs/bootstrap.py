"""``bootstrap``: a node loses its disk, and installs a peer's checkpoint instead of reading the whole log.

The drill runs on a stack of its own, because it deletes a node's databases.
"""

from __future__ import annotations

from stratolog.cluster.installs import install_words
from stratolog.drills.core import install_findings
from stratolog.drills.kit.aftermath import judged_load, scan_all
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.own_stack import SHARD, lose_disk, own_stack
from stratolog.drills.kit.session import Session

WRITES = 100


def run(session: Session, cluster: Cluster) -> None:
    """Run the drill."""
    with own_stack(session, cluster.settings, "bootstrap", detached=cluster.detached) as own:
        victim = own.follower_of(SHARD)
        with judged_load(session, own, "bootstrap", SHARD) as (load, judge):
            load.wait_more(WRITES)
            before = int(own.view(victim, SHARD)["applied_offset"])
            with session.step(f"SIGKILL {victim}, and delete its folder"):
                start_again = own.take(session, victim, ProcessFault.KILL)
                lose_disk(own, victim)
            load.wait_more(WRITES)
            with session.step(f"start {victim} again, and wait until it has caught up") as found:
                start_again()
                own.wait_led()
                own.wait_caught_up(victim, SHARD)
                said = own.view(victim, SHARD).get("installed")
                words = install_words(said) if said else ""
                found(words)
            load.wait_more(WRITES)
            judge()
            session.find(
                install_findings.installed(victim, said, words, before),
                install_findings.scans_equal(scan_all(own, SHARD)),
            )
            if said is not None:
                session.figures["fetched_bytes"] = float(said["fetched_bytes"])
                session.figures["saved_bytes"] = float(said["saved_bytes"])
                session.figures["install_s"] = float(said["took_s"])
