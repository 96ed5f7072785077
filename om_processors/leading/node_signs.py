"""The signs that the watchdog looks at, gathered from one node's loops, its replicas and the brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer

from om_processors.config import NodeConfig
from om_processors.leading.core.leadership_machine import LeadershipMachine
from om_processors.leading.core.membership import MembershipCheck
from om_processors.leading.core.watchdog import ShardSigns, Signs
from om_processors.leading.log_ends import LogEnds
from replicated_db.core.applying.replica import Replica
from replicated_db.shell.leader_loop import LeaderLoop


class NodeSigns:
    """``event_loop_ago_ms`` says how long ago the node's event loop turned last, None before its first turn."""

    def __init__(
        self, config: NodeConfig, loops: Mapping[int, LeaderLoop], event_loop_ago_ms: Callable[[], float | None]
    ) -> None:
        self.ends = LogEnds({shard: loop.replica for shard, loop in loops.items()})
        self._node = config.node
        self._loops = loops
        self._event_loop_ago_ms = event_loop_ago_ms
        self._membership_check = MembershipCheck(config.node, config.replicas)

    def ask(self, consumer: Consumer) -> None:
        """Ask the brokers where the logs end; raises WrongCluster if a log names other members than the settings."""
        self.ends.ask(consumer, self._check_members)

    def _check_members(self, replica: Replica, end: int) -> None:
        self._membership_check.look(replica.identity.shard, replica.read_offset, end, replica.known_members)

    def of(self, machine: LeadershipMachine) -> Signs:
        """Return the present signs. Hold the machine's lock."""
        shards = tuple(
            ShardSigns(
                shard=shard,
                turned_ago_ms=loop.turned_ago_ms() if machine.has_thread(shard) else None,
                lag_records=self.ends.lags[shard], leaderless=shard in self.ends.leaderless,
                flagged=loop.replica.evidence is not None,
                member=not loop.replica.state.replicas or self._node in loop.replica.state.replicas,
                lingering=machine.is_draining(shard),
            )
            for shard, loop in self._loops.items()
        )  # fmt: skip
        unsettled_ms = machine.unsettled_ms(time.monotonic())
        return Signs(shards=shards, event_loop_ago_ms=self._event_loop_ago_ms(), unsettled_ms=unsettled_ms)
