"""The work that a node does unasked for the shards that it leads: open keys expire, deleted snapshots are purged; with
datanodes, heartbeats and placement. The checkpoints of purged snapshots go on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from om_processors.config import NodeConfig
from om_processors.fleet.datanode_client import Courier
from om_processors.fleet.heartbeats import FleetView
from om_processors.fleet.log_trimming import ask_base
from om_processors.fleet.open_key_cleanup import OpenKeyCleanupLoop
from om_processors.fleet.placement_loop import PlacementLoop
from om_processors.fleet.proposer import Proposer
from om_processors.fleet.snapshot_cleanup import OnRemoved, SnapshotCleanupLoop
from om_processors.fleet.token_keys import TokenKeyRounds
from replicated_db.core.ports import Clock, Ids
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from schemas.sharding import SYSTEM_SHARD


class LeaderDuties:
    """The loops of one node, and the proposer and courier that they use.

    ``fleet`` is one of the loops, None without datanodes.
    """

    def __init__(
        self, config: NodeConfig, loops: Mapping[int, LeaderLoop], fleet: FleetView | None, clock: Clock, ids: Ids,
        note: Note, fatal: Callable[[BaseException], None], on_checkpoint_removed: OnRemoved, brokers_id: str = "",
    ) -> None:  # fmt: skip
        self._proposer = Proposer(
            config.bootstrap_servers, node=config.node, shards=config.shards, clock=clock, ids=ids, log=note,
            secret=config.secret,
        )  # fmt: skip
        self._courier = Courier(
            own=config.node, cluster=config.cluster, log=note, tls=config.tls, brokers_id=brokers_id
        )
        threshold_ms = config.open_key_expire_threshold_ms
        self._background: list[Background] = [
            OpenKeyCleanupLoop(loops, self._proposer, threshold_ms, clock, note, fatal),
            SnapshotCleanupLoop(
                loops, self._proposer, config.deleted_block_grace_ms, note, fatal, on_checkpoint_removed
            ),
        ]
        if fleet is not None:
            token_keys = None
            if config.block_tokens:
                system = loops[SYSTEM_SHARD]
                token_keys = TokenKeyRounds(
                    system.replica, config.secret, self._proposer, self._courier, clock, note, system.log_time_ms
                )
            placing = PlacementLoop(
                config, fleet, loops, self._proposer, self._courier, clock, note, fatal, token_keys
            )  # fmt: skip
            self._background += [fleet, placing]

    def ask_base(self, shard: int, index: int) -> str:
        """Have a base logged of a shard that stands at ``index`` (``LogTrimming``)."""
        return ask_base(self._proposer, shard, index)

    def start(self) -> None:
        """Start all loops."""
        for loop in self._background:
            loop.start()

    def close(self) -> None:
        """End all loops, then the proposer and the courier."""
        for loop in reversed(self._background):
            loop.close()
        self._courier.close()
        self._proposer.close()
