"""What is left of deleted snapshots: what a leader has purged, and which checkpoints a replica removes and keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.execution.requests.snapshot import MAX_PURGED_SNAPSHOTS
from om_processors.execution.service import OM_FAMILIES
from om_processors.fleet.snapshot_cleanup import (
    MAX_SHOWN,
    SnapshotCheckpoints,
    SnapshotCleanupLoop,
    SnapshotPurge,
    _shown,
)
from replicated_db.core.errors import StoreFailure
from schemas.column_families import KEY_TABLE, SNAPSHOT_TABLE
from schemas.features import PIPELINE_GENERATIONS
from schemas.records.log import LATE_MODE
from schemas.records.messages import (
    CancelPrepare,
    CommitKey,
    CreateBucket,
    CreateKey,
    CreateSnapshot,
    CreateVolume,
    DeleteKey,
    DeleteSnapshot,
    Prepare,
    PurgeSnapshots,
    RenameSnapshot,
    RequestBody,
)
from tests.support.om.late_world import START_MS, LateNode, LateWorld

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}


class Case:
    """A shard with a leader, n1, and a follower, n2."""

    def __init__(self, grace_ms: int = 0) -> None:
        self.world = LateWorld()
        self.proposed: list[PurgeSnapshots] = []
        self.notes: list[str] = []
        self.do(CreateVolume(volume="vol1"))
        self.do(CreateBucket(**PLACE))
        proposer: Any = self
        self.log_time_ms = START_MS
        replica = self.world.nodes["n1"].replica
        self.purge = SnapshotPurge(
            0, replica, proposer, self.note, grace_ms, lambda: max(replica.position.timestamp_ms, self.log_time_ms)
        )
        self.care = {name: SnapshotCheckpoints(node.replica, self.note) for name, node in self.world.nodes.items()}

    def note(self, text: str, *, shard: int) -> None:
        assert shard == 0
        self.notes.append(text)

    def propose(self, key: Any, body: RequestBody) -> bool:
        assert isinstance(body, PurgeSnapshots)
        assert key == ("purge snapshots", 0, body.rows[0], len(body.rows))
        self.proposed.append(body)
        return True

    def do(self, body: RequestBody) -> None:
        assert self.world.do(body).status == "OK"
        self.world.nodes["n2"].read()

    def take(self, name: str) -> str:
        self.do(CreateSnapshot(**PLACE, snapshot=name))
        return f"snapshot-{self.world.leader.index << 8}"

    def node(self, name: str) -> LateNode:
        return self.world.nodes[name]

    def restart(self, name: str) -> None:
        self.world.nodes[name] = node = self.node(name).restart()
        self.care[name] = SnapshotCheckpoints(node.replica, self.note)

    def turn(self) -> None:
        for care in self.care.values():
            care.turn()

    def kept(self) -> list[set[str]]:
        return [set(node.store.checkpoint_names()) for node in self.world.nodes.values()]


def test_a_deleted_snapshot_is_purged_and_every_replica_removes_its_checkpoint():
    case = Case()
    first, second = case.take("snap1"), case.take("snap2")
    case.purge.turn()
    case.turn()
    assert (case.proposed, case.kept()) == ([], [{first, second}] * 2)
    case.do(RenameSnapshot(**PLACE, snapshot="snap1", to="other"))
    case.do(DeleteSnapshot(**PLACE, snapshot="other"))
    case.purge.turn()
    case.turn()
    (row,) = [key for key, _ in case.node("n1").store.iterate(SNAPSHOT_TABLE, b"") if b"/#" in key]
    assert case.proposed == [PurgeSnapshots(shard=0, rows=[row])]
    assert case.kept() == [{first, second}] * 2, "until the purge is applied"
    case.do(case.proposed[0])
    case.turn()
    assert case.kept() == [{second}] * 2
    case.purge.turn()
    assert len(case.proposed) == 1
    assert case.notes == [
        "1 deleted snapshots are to be purged", *[f"removed 1 checkpoints ({first}), which no snapshot's row names"] * 2,
    ]  # fmt: skip


def test_a_purge_has_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("om_processors.fleet.snapshot_cleanup.MAX_PURGED_SNAPSHOTS", 2)
    assert MAX_PURGED_SNAPSHOTS > 2
    case = Case()
    for number in range(3):
        case.take(f"snap{number}")
        case.do(DeleteSnapshot(**PLACE, snapshot=f"snap{number}"))
    case.purge.turn()
    case.do(case.proposed[0])
    case.purge.turn()
    case.do(case.proposed[1])
    assert [len(body.rows) for body in case.proposed] == [2, 1]


def test_nothing_is_proposed_below_the_level():
    case = Case()
    case.take("snap1")
    case.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    replica = case.node("n1").replica
    object.__setattr__(replica.state, "feature_level", PIPELINE_GENERATIONS)
    case.purge.turn()
    assert case.proposed == []


def test_a_checkpoint_holds_exactly_what_was_before_the_request():
    """The requests around it are in flight together, and in the batches right before and after."""
    case = Case()
    world = case.world
    sessions = []
    for name in ("a", "b"):
        world.do(CreateKey(**PLACE, key=name, size=0))
        sessions.append(world.session_at(world.leader.index))
    world.submit(world.request(CommitKey(**PLACE, key="a", session_id=sessions[0], size=0)))
    world.submit(world.request(CreateSnapshot(**PLACE, snapshot="snap1")))
    world.submit(world.request(CommitKey(**PLACE, key="b", session_id=sessions[1], size=0)))
    world.submit(world.request(DeleteKey(**PLACE, key="a")))
    world.settle()
    case.node("n2").read()
    for node in world.nodes.values():
        (name,) = node.store.checkpoint_names()
        copy = node.store.checkpoints[name]
        assert [key for key, _ in copy.iterate(KEY_TABLE, b"")] == [b"/vol1/bucket1/a"]
        assert list(copy.iterate(SNAPSHOT_TABLE, b"")) == []
    assert (
        len({tuple(node.replica.scan(node.store.checkpoints[name]).slots()[1]) for node in world.nodes.values()}) == 1
    )


def test_a_replica_that_replays_makes_checkpoints_again_and_removes_those_of_purged_snapshots():
    case = Case()
    case.take("snap1")
    case.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    second = case.take("snap2")
    case.purge.turn()
    case.do(case.proposed[0])
    case.turn()
    replayed = LateNode(log=case.world.log, name="n3")
    care = SnapshotCheckpoints(replayed.replica, case.note)
    replayed.read()
    assert len(replayed.store.checkpoint_names()) == 2
    care.turn()
    assert replayed.store.checkpoint_names() == [second]
    scans = [node.replica.scan(node.store.checkpoints[second]) for node in (replayed, case.node("n1"))]
    assert scans[0] == scans[1]


def test_what_no_row_names_goes_and_others_stay():
    """A replica that lost its last writes may have the checkpoint of a batch that it has not applied."""
    case = Case()
    kept = case.take("snap1")
    case.turn()
    store = case.node("n2").store
    for name in ("snapshot-99", "snapshot-before-upgrade", "upgrade"):
        store.checkpoint(name)
    case.turn()
    assert case.kept() == [{kept}, {kept, "snapshot-before-upgrade", "upgrade"}], "an operator's is not a snapshot's"
    store.checkpoint("snapshot-99")
    case.restart("n2")
    case.turn()
    assert case.kept()[1] == {kept, "snapshot-before-upgrade", "upgrade"}


def test_a_snapshot_made_and_purged_between_two_turns_leaves_nothing():
    """The sums of snapshotTable are then what they were. Seed 18003990 of the simulation."""
    case = Case()
    kept = case.take("snap1")
    case.turn()
    passing = case.take("snap2")
    case.do(DeleteSnapshot(**PLACE, snapshot="snap2"))
    case.do(PurgeSnapshots(shard=0, rows=[f"/vol1/bucket1/#{passing.removeprefix('snapshot-')}".encode()]))
    assert case.kept() == [{kept, passing}] * 2
    case.turn()
    assert case.kept() == [{kept}] * 2


def test_a_missing_checkpoint_is_noted_once_and_made_again_by_a_replay():
    case = Case()
    name = case.take("snap1")
    case.node("n2").store.drop_checkpoint(name)
    for _ in range(2):
        case.turn()
    (note,) = case.notes
    assert note.startswith(
        f"1 checkpoints ({name}) of active snapshots not on this node's disk: reads of them fail here"
    )
    case.take("snap2")
    case.turn()
    assert len(case.notes) == 1
    case.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    case.restart("n2")
    case.turn()
    assert len(case.notes) == 1, "nobody reads a deleted one"


def test_a_checkpoint_that_cannot_be_removed_is_tried_again():
    case = Case()
    name = case.take("snap1")
    case.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    case.purge.turn()
    case.do(case.proposed[0])
    store = case.node("n2").store
    drop = store.drop_checkpoint

    def refuse(name: str) -> None:
        raise StoreFailure("RocksDB: the disk is full")

    store.drop_checkpoint = refuse  # type: ignore[method-assign]
    case.turn()
    assert case.kept() == [set(), {name}]
    assert "a checkpoint stays for now: RocksDB: the disk is full" in case.notes
    store.drop_checkpoint = drop  # type: ignore[method-assign]
    case.turn()
    assert case.kept() == [set(), set()]


def test_rows_that_late_validation_has_not_written_yet_are_looked_at_again():
    case = Case()
    name = case.take("snap1")
    case.turn()
    for request_type in ("DeleteSnapshot", "PurgeSnapshots"):
        case.world.command(request_type, LATE_MODE)
    case.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    case.turn()
    row = f"/vol1/bucket1/#{name.removeprefix('snapshot-')}".encode()
    case.do(PurgeSnapshots(shard=0, rows=[row]))
    case.turn()
    for node in case.world.nodes.values():
        node.replica.flush()
    case.turn()
    assert case.kept() == [set(), set()]


def test_a_prepared_shard_takes_no_snapshot():
    case = Case()
    case.do(Prepare(shard=0, checkpoint="upgrade"))
    assert case.world.do(CreateSnapshot(**PLACE, snapshot="snap1")).status == "PREPARED"
    case.do(CancelPrepare(shard=0))
    name = case.take("snap1")
    assert case.kept() == [{"upgrade", name}] * 2


def test_each_turn_purges_for_the_shards_that_the_node_leads_and_looks_at_all(monkeypatch: pytest.MonkeyPatch):
    replica: Any = SimpleNamespace(identity=SimpleNamespace(shard=0), store=None, families=OM_FAMILIES)
    loops: Any = {shard: SimpleNamespace(leading=shard == 1, replica=replica, log_time_ms=int) for shard in (0, 1)}
    anything: Any = None
    loop = SnapshotCleanupLoop(loops, anything, 0, anything, pytest.fail)  # type: ignore[arg-type]
    done: list[str] = []
    for shard, purge in loop._purges.items():
        monkeypatch.setattr(purge, "turn", lambda shard=shard: done.append(f"purge {shard}"))
    for checkpoints in loop._checkpoints:
        monkeypatch.setattr(checkpoints, "turn", lambda: done.append("look"))
    ended = iter([False, True])
    monkeypatch.setattr(loop, "_stop", SimpleNamespace(wait=lambda _: next(ended)))
    loop.run()
    assert done == ["purge 1", "look", "look"]


def test_a_deleted_snapshot_keeps_what_it_needs_for_those_who_still_read_it():
    """It was purged within a second, and the blocks that its readers had open went."""
    case = Case(grace_ms=60_000)
    case.take("snap1")
    case.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    (row,) = [key for key, _ in case.node("n1").store.iterate(SNAPSHOT_TABLE, b"")]
    deleted_ms = case.node("n1").replica.position.timestamp_ms
    for case.log_time_ms in (deleted_ms, deleted_ms + 59_999):
        case.purge.turn()
        assert case.proposed == []
    case.log_time_ms = deleted_ms + 60_000
    case.purge.turn()
    assert case.proposed == [PurgeSnapshots(shard=0, rows=[row])]


def test_many_names_are_counted_and_a_few_are_shown():
    names = [f"c{number}" for number in range(MAX_SHOWN + 3)]
    assert _shown(names[:MAX_SHOWN]) == f"{MAX_SHOWN} checkpoints ({', '.join(names[:MAX_SHOWN])})"
    shown = ", ".join(sorted(names)[:MAX_SHOWN])
    assert _shown(names) == f"{MAX_SHOWN + 3} checkpoints ({shown} and 3 more)"
