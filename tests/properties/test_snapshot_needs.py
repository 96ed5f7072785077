"""Snapshots never lose a version that their rows name, and what no snapshot needs is purged: weighted walks beside the model.

Datanodes delete blocks long before the row is purged. So a walk remembers what the leader's question has given free, whatever
happens to the row: from then on no snapshot, present or future, may name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from om_processors.namespace import ids, snapshots
from om_processors.namespace.snapshots import NeededVersions
from om_processors.namespace.tables import decode_key
from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE, SNAPSHOT_TABLE
from schemas.records import messages as m
from schemas.records.rows import KeyInfo
from tests.support.om.modelled_world import ModelledWorld

WALKS = 25
STEPS = 250
KEYS = ["a", "b", "c", "a/1023"]
BUCKETS = ["bucket1"] * 4 + ["bucket2"]
NAMES = ["snap1", "snap2", "snap3", "snap4"]


class Walk:
    """Draws what touches versions and snapshots, by weight."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.both = ModelledWorld()
        self.seen: Counter[tuple[str, str]] = Counter()
        self.open: list[tuple[str, str, m.KeySession]] = []
        self.free: set[int] = set()
        """Indexes at which versions were born whose blocks datanodes may have deleted."""
        self.do(m.CreateVolume(volume="vol1"))
        for bucket in ("bucket1", "bucket2"):
            self.do(m.CreateBucket(volume="vol1", bucket=bucket))

    def do(self, body: m.RequestBody) -> Any:
        result = self.both.do(body)
        self.seen[type(body).__name__, self.both.status] += 1
        return result

    def step(self) -> None:
        weighted: dict[Callable[[], None], int] = {
            self.begin: 8, self.commit: 8, self.put: 12, self.delete: 8, self.rename: 8, self.expire: 1,
            self.take: 6, self.give_up: 4, self.move: 2, self.purge_snapshots: 2, self.ask: 4, self.purge: 6,
            self.drop_bucket: 1,
        }  # fmt: skip
        self.random.choices(list(weighted), list(weighted.values()))[0]()
        self.check()

    def place(self) -> dict[str, Any]:
        return {"volume": "vol1", "bucket": self.random.choice(BUCKETS)}

    def begin(self) -> None:
        place, key = self.place(), self.random.choice(KEYS)
        session = self.do(m.CreateKey(**place, key=key, size=self.random.randrange(300)))
        if session is not None:
            self.open.append((place["bucket"], key, session))

    def commit(self) -> None:
        if self.open:
            bucket, key, session = self.open.pop(self.random.randrange(len(self.open)))
            size = self.random.randrange(len(session.blocks) * 100 + 1)
            self.do(m.CommitKey(volume="vol1", bucket=bucket, key=key, session_id=session.session_id, size=size))

    def put(self) -> None:
        self.begin()
        self.commit()

    def delete(self) -> None:
        self.do(m.DeleteKey(**self.place(), key=self.random.choice(KEYS)))

    def rename(self) -> None:
        from_key, to_key = self.random.choices(KEYS, k=2)
        self.do(m.RenameKey(**self.place(), from_key=from_key, to_key=to_key))

    def expire(self) -> None:
        rows = sorted(self.both.world.tables.tables[OPEN_KEY_TABLE])[:3]
        if rows:
            self.do(m.ExpireOpenKeys(shard=0, modified_before_ms=self.both.world.now_ms, rows=rows))

    def take(self) -> None:
        self.do(m.CreateSnapshot(**self.place(), snapshot=self.random.choice([*NAMES, ""])))

    def give_up(self) -> None:
        self.do(m.DeleteSnapshot(**self.place(), snapshot=self.random.choice(NAMES)))

    def move(self) -> None:
        self.do(m.RenameSnapshot(**self.place(), snapshot=self.random.choice(NAMES), to=self.random.choice(NAMES)))

    def purge_snapshots(self) -> None:
        rows = [key for key in self.both.world.tables.tables[SNAPSHOT_TABLE] if snapshots.DELETED_MARK in key]
        if rows:
            self.do(m.PurgeSnapshots(shard=0, rows=sorted(rows)))

    def drop_bucket(self) -> None:
        self.do(m.DeleteBucket(volume="vol1", bucket="bucket2"))
        self.do(m.CreateBucket(volume="vol1", bucket="bucket2"))

    def ask(self) -> None:
        """A leader asks what is free, and datanodes delete it; the purge of the row may come much later, or never."""
        view = self.both.world.tables
        rows = [decode_key(value) for _, value in view.iterate(DELETED_TABLE, b"")]
        needed = NeededVersions(view)
        self.free |= {ids.index_of(info.object_id) for info in rows if not needed.include(info)}

    def purge(self) -> None:
        rows = sorted(self.both.world.tables.tables[DELETED_TABLE])
        if rows:
            self.do(m.PurgeBlocks(shard=0, rows=rows))

    def check(self) -> None:
        self.both.assert_nothing_is_left_behind()
        self.both.assert_snapshots()
        for one in self.both.model.snapshot_rows().values():
            lost = self.free & {born for born, blocks in one.keys.items() if blocks}
            assert not lost, f"{one.name} of index {one.index} names what may be deleted: {lost}"

    def end(self) -> None:
        """Give up all snapshots: everything that waits is purged then."""
        for one in list(self.both.model.snapshot_rows()):
            _, volume, bucket, name = one.decode().split("/")
            if not name.startswith("#"):
                self.do(m.DeleteSnapshot(volume=volume, bucket=bucket, snapshot=name))
        self.purge_snapshots()
        assert not self.both.world.tables.tables[SNAPSHOT_TABLE]
        self.purge()
        assert not self.both.world.tables.tables[DELETED_TABLE]


def test_no_snapshot_loses_a_version_and_all_others_go():
    seen: Counter[tuple[str, str]] = Counter()
    for seed in range(WALKS):
        walk = Walk(seed)
        for _ in range(STEPS):
            walk.step()
        walk.end()
        seen += walk.seen
    met = {
        ("CreateSnapshot", "FILE_ALREADY_EXISTS"), ("DeleteSnapshot", "FILE_NOT_FOUND"), ("DeleteSnapshot", "OK"),
        ("RenameSnapshot", "OK"), ("RenameSnapshot", "FILE_ALREADY_EXISTS"), ("RenameSnapshot", "FILE_NOT_FOUND"),
        ("PurgeSnapshots", "OK"), ("PurgeBlocks", "OK"), ("DeleteBucket", "CONTAINS_SNAPSHOT"), ("DeleteBucket", "OK"),
        ("RenameKey", "OK"), ("ExpireOpenKeys", "OK"),
    }  # fmt: skip
    assert not met - seen.keys()


WRONG: dict[str, Callable[[list[int], int, int, int], bool]] = {
    "nothing is needed": lambda indexes, c, d, size: False,
    "everything is needed": lambda indexes, c, d, size: True,
    "sessions are needed": lambda indexes, c, d, size: any(c < s <= d for s in indexes),
    "the oldest snapshot alone": lambda indexes, c, d, size: any(c < s <= d for s in indexes[:1]) and bool(size),
    "the youngest snapshot alone": lambda indexes, c, d, size: any(c < s <= d for s in indexes[-1:]) and bool(size),
    "not the one right before the end": lambda indexes, c, d, size: any(c < s < d - 1 for s in indexes) and bool(size),
    "not the one soon after the beginning": lambda indexes, c, d, size: any(c + 2 < s <= d for s in indexes) and bool(size),
    "also after the end": lambda indexes, c, d, size: any(c < s for s in indexes) and bool(size),
    "also before the beginning": lambda indexes, c, d, size: any(s <= d for s in indexes) and bool(size),
}  # fmt: skip


@pytest.mark.parametrize("rule", WRONG)
def test_the_walks_find_every_other_rule(rule: str, monkeypatch: pytest.MonkeyPatch):
    def wrong(indexes: list[int], info: KeyInfo) -> bool:
        return WRONG[rule](indexes, ids.index_of(info.object_id), info.update_id, info.size)

    monkeypatch.setattr(snapshots, "needed_by", wrong)
    with pytest.raises(AssertionError):
        test_no_snapshot_loses_a_version_and_all_others_go()
