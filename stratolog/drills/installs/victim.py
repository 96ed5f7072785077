"""A node of a drill's own stack that is started without a wait, killed, and looked at."""

from __future__ import annotations

from pathlib import Path

from stratolog.drills.installs.core.stages import InstallStage, ReplicaState, is_replaying
from stratolog.drills.installs.dying_node import command_of
from stratolog.drills.installs.leavings import left_behind
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.own_stack import SHARD
from stratolog.drills.kit.rebuild import database_of
from stratolog.local.state import NODE


class NodeVictim:
    """A node by its name; what ``kills.Victim`` wants."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self.database: Path = database_of(cluster.settings, name, SHARD)
        member = cluster.member(NODE, name)
        self.log: Path = member.log
        self._process = member.process

    def start(self, dies_in: InstallStage | None = None) -> None:
        """Start the process, and do not wait for it. It kills itself in a stage that is given."""
        command = None if dies_in is None else command_of(self.name, dies_in)
        self._process = self._cluster.spawn(self.name, command).process

    def kill(self) -> None:
        """SIGKILL; return once the process is gone."""
        self._process.kill()

    def runs(self) -> bool:
        """Whether the process runs."""
        return self._process.is_running()

    def replays(self) -> bool:
        """Whether it has applied a record behind what it has installed."""
        return is_replaying(self._cluster.view(self.name, SHARD))

    def left(self) -> ReplicaState:
        """Return the replica that a start would find; the process does not run."""
        return left_behind(self._cluster.settings, self.database, SHARD)
