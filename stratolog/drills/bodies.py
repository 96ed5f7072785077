"""What each drill of the catalogue does, by its name; imported when one runs, as it loads all of them.

A drill runs one body once. A campaign (``tests/chaos``) runs the body of a drill beside the stack many times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stratolog.drills import (
    corrupt_replica,
    kill_follower,
    kill_leader,
    lost_broker,
    poison_request,
    restore,
    rolling_upgrade,
    zombie_leader,
)
from stratolog.drills.installs import bootstrap, bootstrap_kill, bootstrap_leader_change, expired_log
from stratolog.drills.keys import rotate_keys
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.session import Session

ABOUT_A_SHARD: Mapping[str, Callable[[Session, Cluster, int], None]] = {
    "kill-leader": kill_leader.run, "zombie-leader": zombie_leader.run, "kill-follower": kill_follower.run,
    "poison-request": poison_request.run, "corrupt-replica": corrupt_replica.run, "lost-broker": lost_broker.run,
}  # fmt: skip
"""Drills on the running stack, that have no options but a shard."""

BESIDE_THE_STACK: Mapping[str, Callable[[Session, Cluster], None]] = {
    "rolling-upgrade": rolling_upgrade.run, "bootstrap": bootstrap.run, "expired-log": expired_log.run,
    "bootstrap-leader-change": bootstrap_leader_change.run, "bootstrap-kill": bootstrap_kill.run,
    "restore": restore.run, "rotate-keys": rotate_keys.run,
}  # fmt: skip
"""Drills that touch nothing of the running stack."""
