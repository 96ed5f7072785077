"""A node of a drill's own stack that is started without a wait, killed, and looked at."""

from __future__ import annotations

from pathlib import Path

from stratolog.drills.installs.core.stages import ReplicaState
from stratolog.drills.installs.leavings import left_behind
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.own_stack import SHARD
from stratolog.local.state import NODE


class NodeVictim:
    """A node by its name; what ``kills.Victim`` wants."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self.database: Path = cluster.settings.node_folder(name) / f"shard-{SHARD}"
        self.log: Path = cluster.member(NODE, name).log

    def start(self) -> None:
        """Start the process, and do not wait for it."""
        self._cluster.spawn(self.name)

    def kill(self) -> None:
        """SIGKILL; return once the process is gone."""
        self._cluster.member(NODE, self.name).process.kill()

    def runs(self) -> bool:
        """Whether the process runs."""
        return self._cluster.member(NODE, self.name).process.is_running()

    def answers(self) -> bool:
        """Whether it answers HTTP."""
        return bool(self._cluster.view(self.name, SHARD))

    def left(self) -> ReplicaState:
        """Return the replica that a start would find; the process does not run."""
        return left_behind(self._cluster.settings, self.database, SHARD)
