"""The work that a node does unasked for the shards that it leads: open keys expire, deleted snapshots are purged, the
log is trimmed; with datanodes, heartbeats and placement. The checkpoints of purged snapshots go on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from om_processors.config import NodeConfig
from om_processors.fleet.datanode_client import Courier
from om_processors.fleet.heartbeats import FleetView
from om_processors.fleet.log_trimming import om_log_trimming
from om_processors.fleet.open_key_cleanup import OpenKeyCleanupLoop
from om_processors.fleet.placement_loop import PlacementLoop
from om_processors.fleet.proposer import Proposer
from om_processors.fleet.snapshot_cleanup import OnRemoved, SnapshotCleanupLoop
from om_processors.fleet.token_keys import TokenKeyRounds
from replicated_db.core.ports import Clock, Ids
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from replicated_db.shell.trimming.log_trimmer import Holds
from replicated_db.shell.trimming.log_trimming import LogTrimLoop
from schemas.sharding import SYSTEM_SHARD


class LeaderDuties:
    """The loops of one node, and the proposer and courier that they use.

    ``fleet`` is one of the loops, None without datanodes. ``trimming`` also trims on an operator's word.
    """

    def __init__(
        self, config: NodeConfig, topic_id: str, loops: Mapping[int, LeaderLoop], fleet: FleetView | None, clock: Clock,
        ids: Ids, note: Note, fatal: Callable[[BaseException], None], on_checkpoint_removed: OnRemoved, holds: Holds,
    ) -> None:  # fmt: skip
        self._proposer = Proposer(
            config.bootstrap_servers, node=config.node, shards=config.shards, clock=clock, ids=ids, log=note,
            secret=config.secret,
        )  # fmt: skip
        self._courier = Courier(own=config.node, cluster=config.cluster, log=note, tls=config.tls)
        threshold_ms = config.open_key_expire_threshold_ms
        self.trimming = om_log_trimming(config, topic_id, loops, self._proposer, clock, holds)
        self._background: list[Background] = [
            OpenKeyCleanupLoop(loops, self._proposer, threshold_ms, clock, note, fatal),
            SnapshotCleanupLoop(loops, self._proposer, note, fatal, on_checkpoint_removed),
            LogTrimLoop(self.trimming, config.trim_log_after_ms, note, fatal),
        ]
        if fleet is not None:
            token_keys = None
            if config.block_tokens:
                token_keys = TokenKeyRounds(
                    loops[SYSTEM_SHARD].replica, config.secret, self._proposer, self._courier, clock, note
                )
            placing = PlacementLoop(
                config, fleet, loops, self._proposer, self._courier, clock, note, fatal, token_keys
            )  # fmt: skip
            self._background += [fleet, placing]

    def start(self) -> None:
        """Start all loops."""
        for loop in self._background:
            loop.start()

    def close(self) -> None:
        """End all loops, then the proposer and the courier."""
        for loop in reversed(self._background):
            loop.close()
        self.trimming.close()
        self._courier.close()
        self._proposer.close()
