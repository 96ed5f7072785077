"""Usage counters put right: what was counted at one index holds at a later one, whatever was committed meanwhile."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from om_processors.errors import OMError
from om_processors.namespace import quota
from om_processors.namespace.access import ACCESS_RULES
from replicated_db.core.tables.merge import encode_int64
from schemas.column_families import USAGE_TABLE
from schemas.records.identity import ProvenCaller
from schemas.records.messages import (
    CommitKey,
    CreateBucket,
    CreateKey,
    DeleteBucket,
    DeleteKey,
    RepairQuota,
    SetBucketProperty,
)
from tests.support.om.om_world import World

MAX = quota.MAX_COUNT


def put(world: World, key: str, size: int) -> None:
    opened = world.session(CreateKey(volume="vol1", bucket="bucket1", key=key, size=size))
    world.do(CommitKey(volume="vol1", bucket="bucket1", key=key, session_id=opened.session_id, size=size))


def counted(world: World, bucket: str = "bucket1") -> RepairQuota:
    """What a scan of this moment would have put right."""
    return RepairQuota(volume="vol1", bucket=bucket, **asdict(quota.count(world.tables, "vol1", bucket)))


def damage(world: World, bucket: str, size_bytes: int, names: int) -> None:
    """Change the counters behind the requests' back, as a leader without table files once did."""
    for counter, off in zip(quota.counters("vol1", bucket), (size_bytes, names), strict=True):
        world.tables.tables[USAGE_TABLE][counter] = encode_int64(quota.read(world.tables, counter) + off)


def is_right(world: World, bucket: str = "bucket1") -> bool:
    found = quota.count(world.tables, "vol1", bucket)
    return (found.kept_bytes, found.kept_names) == (found.counted_bytes, found.counted_names)


@pytest.fixture
def world() -> World:
    made = World().make()
    put(made, "a", 100)
    put(made, "b", 7)
    return made


def test_a_count_says_what_the_rows_amount_to(world: World):
    assert asdict(quota.count(world.tables, "vol1", "bucket1")) == {
        "update_id": 2, "kept_bytes": 107, "counted_bytes": 107, "kept_names": 2, "counted_names": 2,
    }  # fmt: skip
    world.do(CreateBucket(volume="vol1", bucket="bucket1-x", quota_in_bytes=500))
    assert asdict(quota.count(world.tables, "vol1", "")) == {
        "update_id": 1, "kept_bytes": 500, "counted_bytes": 500, "kept_names": 2, "counted_names": 2,
    }  # fmt: skip


@pytest.mark.parametrize("bucket", ["bucket1", ""])
@pytest.mark.parametrize("off", [(0, 0), (50, 1), (-7, 0), (0, -2), (-5000, -30), (MAX - 9_000, MAX - 9_000)])
def test_what_was_committed_since_the_count_stays_counted(world: World, bucket: str, off: tuple[int, int]):
    damage(world, bucket, *off)
    body = counted(world, bucket)
    put(world, "c", 1000)
    world.do(DeleteKey(volume="vol1", bucket="bucket1", key="b"))
    world.do(CreateBucket(volume="vol1", bucket="bucket2", quota_in_bytes=40))
    assert is_right(world, bucket) is (off == (0, 0))
    world.do(body)
    assert is_right(world, bucket)
    assert is_right(world, "bucket2")


def test_a_repair_changes_what_is_wrong_alone(world: World):
    damage(world, "bucket1", 0, 5)
    world.do(counted(world))
    assert [write[:3] for write in world.writes if write[1] == USAGE_TABLE] == [
        ("merge", USAGE_TABLE, b"/vol1/bucket1/#usedNamespace")
    ]


def test_one_of_two_repairs_is_refused(world: World):
    damage(world, "bucket1", 50, 1)
    first, second = counted(world), counted(world)
    world.do(first)
    error = world.refusal(second)
    assert (error.status, error.message) == (
        "INDEX_MOVED",
        f"bucket /vol1/bucket1 was changed at index {world.index - 1}, after its rows were counted: count them again",
    )
    assert is_right(world)
    world.do(counted(world))
    assert is_right(world)


def test_a_count_of_another_bucket_of_that_name_is_refused(world: World):
    body = counted(world)
    for key in "ab":
        world.do(DeleteKey(volume="vol1", bucket="bucket1", key=key))
    world.do(DeleteBucket(volume="vol1", bucket="bucket1"))
    assert world.refusal(body).status == "BUCKET_NOT_FOUND"
    world.do(CreateBucket(volume="vol1", bucket="bucket1"))
    assert world.refusal(body).status == "INDEX_MOVED"
    body = counted(world)
    world.do(SetBucketProperty(volume="vol1", bucket="bucket1", owner="bob"))
    assert world.refusal(body).status == "INDEX_MOVED"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"volume": "NO"}, "NO"),
        ({"bucket": "b/c"}, "b/c"),
        ({"counted_bytes": -1}, "less than 0"),
        ({"counted_names": -1}, "less than 0"),
        ({"kept_bytes": 108}, "#usedBytes would become -1"),
        ({"kept_bytes": -MAX, "counted_bytes": MAX}, "count the rows again"),
        ({"kept_bytes": 0, "counted_bytes": MAX}, "count the rows again"),
    ],
)
def test_a_count_that_cannot_be_right_is_refused(world: World, changes: dict[str, int], said: str):
    body = counted(world)
    fields = asdict(body) | {"kept_bytes": 107, "counted_bytes": 0} | changes
    error = world.refusal(RepairQuota(**fields))
    assert said in error.message
    assert error.status.startswith("INVALID_")


@pytest.mark.parametrize("bucket", ["nowhere", "", "bucket1"])
def test_what_is_not_there_has_no_counters(bucket: str):
    world = World()
    with pytest.raises(OMError, match="no volume /vol1"):
        quota.count(world.tables, "vol1", bucket)
    if bucket == "nowhere":
        world.make()
        with pytest.raises(OMError, match="no bucket /vol1/nowhere"):
            quota.count(world.tables, "vol1", bucket)


def test_repairs_are_for_administrators(world: World):
    damage(world, "bucket1", 3, 3)
    body = counted(world)
    world.authorizer = ACCESS_RULES
    world.standing = ProvenCaller(administrator=False, groups=[], generation=1, token=0)
    assert world.refusal(body, "ann").message == "user ann: RepairQuota is for administrators"
    world.standing = replace(world.standing, administrator=True)
    world.do(body, "ann")
    assert is_right(world)


def test_a_count_pauses(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quota, "PAUSE_ROWS", 1)
    pauses: list[None] = []
    quota.count(world.tables, "vol1", "bucket1", lambda: pauses.append(None))
    assert len(pauses) == 2
