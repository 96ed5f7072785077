"""A simulated cluster that is busy with snapshots: more of them, and more versions that they need, than ordinary seeds have.

What is checked is what ``truth`` and ``invariants`` check of every run: that each replica's checkpoint has the digest of the log right
before its request, that no snapshot loses a version, that only checkpoints of snapshots are left at the end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from om_processors.fleet import snapshot_cleanup
from om_processors.namespace import ids, snapshots
from om_processors.namespace import tables as om_tables
from om_processors.namespace.context import RowTransaction
from replicated_db.core.applying.replica import Replica
from schemas.records.rows import ACTIVE, KeyInfo, SnapshotInfo
from tests.simulation.trace import Failure, run
from tests.simulation.world import Action, World

SEEDS = 25
ROUNDS = 70
SETTLE = [("go_on", 15), ("deliver", 3), ("go_on", 15), ("deliver", 3), ("go_on", 15), ("respond", 3), ("respond", 3)]
BEGUN: list[Action] = [("assign", 0), *SETTLE, ("call", 0), ("call", 0), *SETTLE]
REQUESTS = {"churn": 14, "snapshot": 6, "purge": 3, "purge_snapshots": 2, "expire_open_keys": 1, "reserve": 5}
FAULTS = {
    "clean_up": 12, "flush": 4, "set_mode": 4, "crash": 3, "power_failure": 2, "crash_in_a_write": 3, "restart": 20, "rebalance": 8,
    "assign": 1, "zombie": 1, "lose_report": 1, "append_twice": 1, "pause": 1, "wake": 3,
}  # fmt: skip


def busy(seed: int) -> list[Action]:
    rng = random.Random(seed)
    actions = list(BEGUN)
    for _ in range(ROUNDS):
        requests = rng.choices(list(REQUESTS), list(REQUESTS.values()), k=3)
        faults = rng.choices(list(FAULTS), list(FAULTS.values()), k=2)
        actions += [*((name, rng.getrandbits(24)) for name in (*requests, *faults)), *SETTLE]
    return actions


def runs(seeds: int) -> tuple[Counter[str], Failure | None]:
    seen: Counter[str] = Counter()
    for seed in range(1, seeds + 1):
        world = World()
        failure = run(busy(seed), world)
        seen += world.seen
        if failure is not None:
            return seen, failure
    return seen, None


def test_a_cluster_that_is_busy_with_snapshots():
    seen, failure = runs(SEEDS)
    assert failure is None, failure
    for what in (
        "CreateSnapshot: OK", "DeleteSnapshot: OK", "RenameSnapshot: OK", "PurgeSnapshots: OK", "checkpoint compared",
        "versions kept for snapshots", "crash", "power failure", "crash in a write", "PurgeSnapshots: late",
        "CommitReserved: OK", "ReleaseBlocks: OK", "reservations compared",
        "retirements compared",
    ):  # fmt: skip
        assert seen[what], what


def nothing_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "needed_by", lambda indexes, info: False)


def only_what_was_opened_late_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(indexes: list[int], info: KeyInfo) -> bool:
        return any(ids.index_of(info.object_id) + 8 < one <= info.update_id for one in indexes) and bool(info.size)

    monkeypatch.setattr(snapshots, "needed_by", wrong)


def a_checkpoint_is_taken_after_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Replica._apply_batch

    def late(self: Replica, batch, position):
        taken: list[str] = []
        checkpoint = self.store.checkpoint
        self.store.checkpoint = taken.append  # type: ignore[assignment, method-assign]
        try:
            return apply(self, batch, position)
        finally:
            self.store.checkpoint = checkpoint  # type: ignore[method-assign]
            for name in taken:
                checkpoint(name)

    monkeypatch.setattr(Replica, "_apply_batch", late)


def a_row_names_another_index(monkeypatch: pytest.MonkeyPatch) -> None:
    put = snapshots.put_snapshot

    def wrong(tx: RowTransaction, info: SnapshotInfo) -> None:
        put(tx, replace(info, index=info.index + 1))

    monkeypatch.setattr(snapshots, "put_snapshot", wrong)


def checkpoints_go_before_the_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = snapshot_cleanup._by_checkpoint
    monkeypatch.setattr(
        snapshot_cleanup,
        "_by_checkpoint",
        lambda view: {name: info for name, info in rows(view).items() if info.state == ACTIVE},
    )


def a_deleted_row_keeps_the_times_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(om_tables, "retired", lambda info, now_ms: info)


def a_row_is_stamped_with_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    retired = om_tables.retired
    monkeypatch.setattr(om_tables, "retired", lambda info, now_ms: retired(info, now_ms - 1))


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (nothing_is_needed, "snapshots lose what they named"),
    (only_what_was_opened_late_is_needed, "deletedTable holds"),
    (a_deleted_row_keeps_the_times_of_its_key, "deletedTable holds"),
    (a_row_is_stamped_with_another_time, "deletedTable holds"),
    (a_checkpoint_is_taken_after_its_batch, "than the log gives below index"),
    (a_row_names_another_index, "names snapshot-"),
    (checkpoints_go_before_the_purge, " lacks snapshot-"),
]


@pytest.mark.parametrize(("plant", "words"), PLANTED, ids=lambda plant: getattr(plant, "__name__", ""))
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], words: str, monkeypatch: pytest.MonkeyPatch
):
    plant(monkeypatch)
    # In some runs another check is the first to see it.
    found = (run(busy(seed), World()) for seed in range(1, SEEDS + 1))
    assert any(failure is not None and words in str(failure.error) for failure in found)
