"""``kill-follower``: SIGKILL a follower under load.

It resumes at its own stored position and ends with an equal digest.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from stratolog.drills.core import digest_findings
from stratolog.drills.kit.aftermath import judged_load
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.rebuild import database_of, opened_store, stored_offset
from stratolog.drills.kit.session import Session

WRITES = 20


def run(session: Session, cluster: Cluster, shard: int) -> None:
    """Run the drill."""
    with session.step("check that the stack is whole"):
        cluster.check_whole()
    victim = cluster.follower_of(shard)
    with judged_load(session, cluster, "kill-follower", shard) as (load, judge):
        with session.step(f"SIGKILL {victim}, a follower of shard {shard}"):
            start_again = cluster.take(session, victim, ProcessFault.KILL)
        with session.step("read the position that it has stored, from a copy of its database") as found:
            stored = offset_of(cluster, victim, shard)
            found(f"offset {stored}")
            load.wait_more(WRITES)
        with session.step(f"start {victim} again, wait until it has caught up"):
            start_again()
            cluster.wait_led()
            cluster.wait_caught_up(victim, shard)
            load.wait_more(WRITES)
        judge()
        view = cluster.view(victim, shard)
        read = int(view["records_applied"]) + int(view["records_void"])
        session.find(digest_findings.resumed(stored, int(view["read_offset"]), read))
        session.figures["records_read_after_restart"] = read


def offset_of(cluster: Cluster, name: str, shard: int) -> int:
    """Return the offset that a stopped node has stored, read from a copy of its database."""
    source = database_of(cluster.settings, name, shard)
    with tempfile.TemporaryDirectory(prefix="stratolog-drill-") as scratch:
        with opened_store(Path(shutil.copytree(source, Path(scratch) / source.name))) as store:
            return stored_offset(store)
