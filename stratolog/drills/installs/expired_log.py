"""``expired-log``: a node is away while the log's beginning is deleted, and installs a peer's checkpoint. Twice.

The first time the node has no file of its peer's, so all files come. The second time it has files from its first
install that the peer still has, and those are not sent again. The drill runs on a stack of its own, because a log that
was trimmed cannot be read from its first record again: no replay, no oracle.
"""

from __future__ import annotations

from typing import Any

from stratolog.cluster.installs import install_words
from stratolog.drills.core import install_findings
from stratolog.drills.kit.aftermath import judge_at_rest
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import Load, own_load
from stratolog.drills.kit.own_stack import SHARD, own_stack, trim_log
from stratolog.drills.kit.session import Session

WRITES = 100
TIMES = ("first", "second")


def run(session: Session, cluster: Cluster) -> None:
    """Run the drill."""
    with own_stack(session, cluster.settings, "expired-log", detached=cluster.detached) as own:
        victim = own.follower_of(SHARD)
        with own_load(session, own, "expired-log", SHARD) as load:
            load.wait_more(WRITES)
            for time in TIMES:
                said = _be_away(session, own, victim, load, time)
            session.find(install_findings.saved(said))
            judge_at_rest(session, own, SHARD, load)


def _be_away(session: Session, own: Cluster, victim: str, load: Load, time: str) -> dict[str, Any] | None:
    """Kill a node, trim the log, start the node again; return what it says of its install."""
    with session.step(f"SIGKILL {victim}, for the {time} time"):
        start_again = own.take(session, victim, ProcessFault.KILL)
    load.wait_more(WRITES)
    with session.step("delete the log's records before the leader's position") as found:
        first = trim_log(own)
        found(f"the log begins at offset {first}")
    with session.step(f"start {victim} again, and wait until it has caught up") as found:
        start_again()
        own.wait_led()
        own.wait_caught_up(victim, SHARD)
        said: dict[str, Any] | None = own.view(victim, SHARD).get("installed")
        words = install_words(said) if said else ""
        found(words)
    load.wait_more(WRITES)
    session.find(install_findings.installed(victim, said, words, first))
    if said is not None:
        session.figures[f"{time}_fetched_bytes"] = float(said["fetched_bytes"])
        session.figures[f"{time}_saved_bytes"] = float(said["saved_bytes"])
        session.figures[f"{time}_install_s"] = float(said["took_s"])
    return said
