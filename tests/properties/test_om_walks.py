"""Long seeded walks over the same model as ``test_om_execution``: together they must meet every answer there is.

Hypothesis looks for short failing sequences; these weighted walks go deep (full buckets, many sessions), and prove that
they do: an answer that no walk meets is one that the model does not test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from om_processors.errors import OMError
from om_processors.execution.execute import execute
from replicated_db.core.execution.shard_state import ShardState
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.tables.column_families import families
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.merge import ADD_INT64
from replicated_db.core.tables.overlay import Overlay
from schemas.column_families import OM_COLUMN_FAMILIES
from schemas.features import LATEST
from schemas.records import messages as m
from tests.support.om.dict_transaction import DictTransaction
from tests.support.om.modelled_world import ModelledWorld
from tests.support.om.om_world import World, request_of

NOW = ShardState(feature_level=LATEST)
WALKS = 12
STEPS = 400
VOLUMES = ["vol1"] * 5 + ["vol2"]
BUCKETS = ["bucket1"] * 5 + ["bucket1-x", "bucket3"]
KEYS = [f"key{number}" for number in range(6)]
BYTE_QUOTAS = [-1, -1, 400, 1000, 1500, 3000]
COUNT_QUOTAS = [-1, -1, -1, 2, 4]

EXPECTED = {
    "CreateVolume": {"VOLUME_ALREADY_EXISTS"},
    "SetVolumeProperty": {"VOLUME_NOT_FOUND", "QUOTA_ERROR", "QUOTA_EXCEEDED"},
    "DeleteVolume": {"VOLUME_NOT_FOUND", "VOLUME_NOT_EMPTY"},
    "CreateBucket": {"VOLUME_NOT_FOUND", "BUCKET_ALREADY_EXISTS", "QUOTA_ERROR", "QUOTA_EXCEEDED"},
    "SetBucketProperty": {"VOLUME_NOT_FOUND", "BUCKET_NOT_FOUND", "QUOTA_ERROR", "QUOTA_EXCEEDED"},
    "DeleteBucket": {"VOLUME_NOT_FOUND", "BUCKET_NOT_FOUND", "BUCKET_NOT_EMPTY"},
    "CreateKey": {"VOLUME_NOT_FOUND", "BUCKET_NOT_FOUND", "QUOTA_EXCEEDED"},
    "AllocateBlock": {"VOLUME_NOT_FOUND", "BUCKET_NOT_FOUND", "KEY_NOT_FOUND", "QUOTA_EXCEEDED"},
    "CommitKey": {"VOLUME_NOT_FOUND", "BUCKET_NOT_FOUND", "KEY_NOT_FOUND", "QUOTA_EXCEEDED", "INVALID_REQUEST"},
    "DeleteKey": {"VOLUME_NOT_FOUND", "BUCKET_NOT_FOUND", "KEY_NOT_FOUND"},
    "RenameKey": {"VOLUME_NOT_FOUND", "BUCKET_NOT_FOUND", "KEY_NOT_FOUND", "KEY_ALREADY_EXISTS"},
}


class Walk:
    """Draws requests by weight, from what there is or might be."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.sessions: list[tuple[str, str, str, int]] = []

    def draw(self) -> m.RequestBody:
        weighted: dict[Callable[[], m.RequestBody], int] = {
            self.create_volume: 4, self.set_volume: 4, self.delete_volume: 1, self.create_bucket: 6, self.set_bucket: 6,
            self.delete_bucket: 3, self.create_key: 20, self.allocate: 5, self.commit: 20, self.delete_key: 7, self.rename: 6,
        }  # fmt: skip
        return self.random.choices(list(weighted), list(weighted.values()))[0]()

    def place(self) -> tuple[str, str]:
        return self.random.choice(VOLUMES), self.random.choice(BUCKETS)

    def session(self) -> tuple[str, str, str, int]:
        recent = self.sessions[-20:]
        return self.random.choice(recent) if recent else ("vol1", "bucket1", "key0", 1)

    def create_volume(self) -> m.RequestBody:
        return m.CreateVolume(
            volume=self.random.choice(VOLUMES),
            quota_in_bytes=self.random.choice(BYTE_QUOTAS),
            quota_in_namespace=self.random.choice(COUNT_QUOTAS),
        )

    def set_volume(self) -> m.RequestBody:
        return m.SetVolumeProperty(
            volume=self.random.choice(VOLUMES),
            quota_in_bytes=self.random.choice([None, *BYTE_QUOTAS]),
            quota_in_namespace=self.random.choice([1, *COUNT_QUOTAS]),
        )

    def delete_volume(self) -> m.RequestBody:
        return m.DeleteVolume(volume=self.random.choice(VOLUMES))

    def create_bucket(self) -> m.RequestBody:
        volume, bucket = self.place()
        return m.CreateBucket(volume=volume, bucket=bucket, quota_in_bytes=self.random.choice(BYTE_QUOTAS))

    def set_bucket(self) -> m.RequestBody:
        volume, bucket = self.place()
        return m.SetBucketProperty(
            volume=volume,
            bucket=bucket,
            quota_in_bytes=self.random.choice(BYTE_QUOTAS),
            quota_in_namespace=self.random.choice([None, *COUNT_QUOTAS]),
        )

    def delete_bucket(self) -> m.RequestBody:
        volume, bucket = self.place()
        return m.DeleteBucket(volume=volume, bucket=bucket)

    def create_key(self) -> m.RequestBody:
        volume, bucket = self.place()
        return m.CreateKey(volume=volume, bucket=bucket, key=self.random.choice(KEYS), size=self.random.randrange(600))

    def allocate(self) -> m.RequestBody:
        volume, bucket, key, session_id = self.session()
        return m.AllocateBlock(volume=volume, bucket=bucket, key=key, session_id=session_id)

    def commit(self) -> m.RequestBody:
        volume, bucket, key, session_id = self.session()
        size = self.random.randrange(600)
        return m.CommitKey(volume=volume, bucket=bucket, key=key, session_id=session_id, size=size)

    def delete_key(self) -> m.RequestBody:
        volume, bucket = self.place()
        return m.DeleteKey(volume=volume, bucket=bucket, key=self.random.choice(KEYS))

    def rename(self) -> m.RequestBody:
        volume, bucket = self.place()
        return m.RenameKey(
            volume=volume, bucket=bucket, from_key=self.random.choice(KEYS), to_key=self.random.choice(KEYS)
        )


def run(seed: int, seen: Counter[tuple[str, str]]) -> dict[tuple[str, bytes], bytes]:
    """Walk, comparing with the model at each step; return the rows at the end."""
    walk, both = Walk(seed), ModelledWorld()
    for _ in range(STEPS):
        body = walk.draw()
        result = both.do(body)
        seen[type(body).__name__, both.status] += 1
        if isinstance(body, m.CreateKey) and isinstance(result, m.KeySession):
            walk.sessions.append((body.volume, body.bucket, body.key, result.session_id))
        both.assert_quotas_hold()
    both.assert_visible_state()
    both.assert_nothing_is_left_behind()
    both.assert_every_row_is_encoded_one_way()
    return both.world.tables.rows()


def test_walks_agree_with_the_model_and_meet_every_answer():
    seen: Counter[tuple[str, str]] = Counter()
    for seed in range(WALKS):
        run(seed, seen)
    missed = {(name, status) for name, statuses in EXPECTED.items() for status in {*statuses, "OK"}} - set(seen)
    assert not missed


def test_the_real_transaction_does_as_its_twin():
    """The same bodies through ``replicated_db``'s transaction over an overlay: the same statuses, results and rows."""
    real_families = families(OM_COLUMN_FAMILIES[1:], (ADD_INT64,))
    store = MemoryStore(real_families.names)
    overlay = Overlay(store)
    overlay.open_layer(1)
    walk, world = Walk(3), World()
    for _ in range(STEPS):
        body = walk.draw()
        answers: list[object] = []
        for real in (True, False):
            tx = (
                Transaction(real_families, overlay, world.index, NOW)
                if real
                else DictTransaction(world.tables, world.index)
            )
            try:
                answers.append(execute(request_of(body), tx, world.context()))
                tx.commit()
            except OMError as error:
                answers.append((error.status, error.message))
        assert answers[0] == answers[1]
        if isinstance(body, m.CreateKey) and isinstance(answers[0], m.KeySession):
            walk.sessions.append((body.volume, body.bucket, body.key, answers[0].session_id))
        world.index, world.now_ms = world.index + 1, world.now_ms + 10
    rows = {(cf, key): value for cf in OM_COLUMN_FAMILIES for key, value in overlay.iterate(cf, b"")}
    assert rows == world.tables.rows()
    assert rows


def test_the_same_walk_ends_in_the_same_bytes():
    assert run(7, Counter()) == run(7, Counter())
