"""What is left of deleted snapshots: the leader has their rows purged, and every replica removes their checkpoints.

Rules:
    - A deleted snapshot's row is purged by PurgeSnapshots, through the log, by the shard's leader. Until then it keeps
      what it needs for those who still read it: for ``deleted_block_grace_ms`` after its deletion, by the log's time.
      From then on nothing is kept for it; PurgeBlocks may take what it needed.
    - A replica removes a snapshot's checkpoint when no row names it. That is local: it is in no log, and each replica
      does it for itself, after a start and whenever its rows of snapshotTable have changed.
    - A checkpoint is made before its row is written, in one step under the apply lock. So a checkpoint without a row is
      looked up once more under the lock before it is removed.
    - A replica that replays the log makes the checkpoints of purged snapshots again, and removes them when it has
      applied the purge.
    - An active snapshot whose checkpoint is missing here is noted, and the node goes on. Its disk was damaged, or
      somebody removed the directory. Whoever reads that snapshot here gets an error.
    - A directory that cannot be removed is tried again on the next turn.
    - Bounds: a turn each TURN_S, MAX_PURGED_SNAPSHOTS rows a request, MAX_SHOWN names in a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from om_processors.execution.requests.snapshot import MAX_PURGED_SNAPSHOTS
from om_processors.fleet.proposer import Proposer
from om_processors.namespace.snapshots import DELETED_MARK, decode_snapshot, is_checkpoint_of_snapshot
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import StoreView
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from schemas.column_families import SNAPSHOT_TABLE
from schemas.features import SNAPSHOTS
from schemas.records.messages import PurgeSnapshots
from schemas.records.rows import ACTIVE, SnapshotInfo

OnRemoved = Callable[[int, str], None]
"""Is told of a checkpoint that was removed: the shard, and the checkpoint's name. It must not raise."""

TURN_S = 1.0
MAX_SHOWN = 5
"""Most names of checkpoints in one note."""


class SnapshotPurge:
    """Has the deleted snapshots of one shard purged, while this node leads it."""

    def __init__(
        self,
        shard: int,
        replica: Replica,
        proposer: Proposer,
        note: Note,
        grace_ms: int,
        log_time_ms: Callable[[], int],
    ) -> None:
        """``log_time_ms`` returns the present time of the shard's log."""
        self._shard = shard
        self._replica = replica
        self._proposer = proposer
        self._note = note
        self._grace_ms = grace_ms
        self._log_time_ms = log_time_ms

    def turn(self) -> None:
        """Propose to purge what was deleted a grace ago. A proposal that is lost is made again on a later turn."""
        if self._replica.state.feature_level < SNAPSHOTS:
            return
        before_ms = self._log_time_ms() - self._grace_ms
        deleted = (
            key
            for key, value in self._replica.store.iterate(SNAPSHOT_TABLE, b"")
            if DELETED_MARK in key and decode_snapshot(value).deletion_time_ms <= before_ms
        )
        rows = list(islice(deleted, MAX_PURGED_SNAPSHOTS))
        if rows:
            body = PurgeSnapshots(shard=self._shard, rows=rows)
            if self._proposer.propose(("purge snapshots", self._shard, rows[0], len(rows)), body):
                self._note(f"{len(rows)} deleted snapshots are to be purged", shard=self._shard)


class SnapshotCheckpoints:
    """Keeps the checkpoints of one replica that its rows name, and removes the others of snapshots."""

    def __init__(self, replica: Replica, note: Note, on_removed: OnRemoved | None = None) -> None:
        self._replica = replica
        self._note = note
        self._on_removed = on_removed
        self._family = replica.families.names.index(SNAPSHOT_TABLE)
        self._settled_at: tuple[bytes, set[str]] | None = None
        """Sums of snapshotTable's rows, and the checkpoints, when they last agreed; None: look.

        The sums alone do not say that nothing has happened: a snapshot made and purged since leaves them as they were.
        """
        self._missing: set[str] = set()

    def turn(self) -> None:
        """Compare the checkpoints with the rows, if either have changed.

        Raises StoreFailure if the store cannot be read.
        """
        store = self._replica.store
        with self._replica.lock:
            sums = self._replica.digests.pack(self._family)
            # Rows that late validation has not written yet are in the sums, and not in the store.
            settled = not self._replica.late.unwritten
        if self._settled_at == (sums, self._kept()):
            return
        # The rows are read after the sums: a change in between makes the next turn look once more. They are read before
        # the checkpoints: those of all rows have been made by then.
        rows = _by_checkpoint(store)
        there = self._kept()
        self._note_missing({name for name, info in rows.items() if info.state == ACTIVE} - there)
        strays = there - rows.keys()
        if strays:
            with self._replica.lock:
                strays -= _by_checkpoint(self._replica.rows).keys()
        if settled & self._drop(strays):
            self._settled_at = (sums, there - strays)

    def _kept(self) -> set[str]:
        return {name for name in self._replica.store.checkpoint_names() if is_checkpoint_of_snapshot(name)}

    def _drop(self, names: set[str]) -> bool:
        """Remove checkpoints; say whether all could be removed."""
        try:
            for name in sorted(names):
                self._replica.store.drop_checkpoint(name)
                if self._on_removed is not None:
                    self._on_removed(self._replica.identity.shard, name)
        except StoreFailure as error:  # a full disk, say: there is no reason to end the node
            self._note(f"a checkpoint stays for now: {error}", shard=self._replica.identity.shard)
            return False
        if names:
            self._note(f"removed {_shown(names)}, which no snapshot's row names", shard=self._replica.identity.shard)
        return True

    def _note_missing(self, missing: set[str]) -> None:
        if news := missing - self._missing:
            self._note(
                f"{_shown(news)} of active snapshots not on this node's disk: reads of them fail here; rebuild the "
                "replica to have them made again",
                shard=self._replica.identity.shard,
            )
        self._missing = missing


def _by_checkpoint(view: StoreView) -> dict[str, SnapshotInfo]:
    """Return the rows of all snapshots by the names of their checkpoints."""
    found = (decode_snapshot(value) for _, value in view.iterate(SNAPSHOT_TABLE, b""))
    return {info.checkpoint: info for info in found}


def _shown(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - MAX_SHOWN} more" if len(listed) > MAX_SHOWN else ""
    return f"{len(listed)} checkpoints ({', '.join(listed[:MAX_SHOWN])}{more})"


class SnapshotCleanupLoop(Background):
    """Takes turns for all shards, on a thread of its own; purges for those that this node leads."""

    def __init__(
        self, loops: Mapping[int, LeaderLoop], proposer: Proposer, grace_ms: int, note: Note,
        fatal: Callable[[BaseException], None], on_removed: OnRemoved | None = None,
    ) -> None:  # fmt: skip
        super().__init__("snapshot cleanup", fatal)
        self._loops = loops
        self._purges = {
            shard: SnapshotPurge(shard, loop.replica, proposer, note, grace_ms, loop.log_time_ms)
            for shard, loop in loops.items()
        }
        self._checkpoints = [SnapshotCheckpoints(loop.replica, note, on_removed) for loop in loops.values()]

    def run(self) -> None:
        """Take turns."""
        while not self._stop.wait(TURN_S):
            self.turn()

    def turn(self) -> None:
        """Look at every shard once."""
        for shard, purge in self._purges.items():
            if self._loops[shard].leading:
                purge.turn()
        for checkpoints in self._checkpoints:
            checkpoints.turn()
