from __future__ import annotations

from collections.abc import Callable

import pytest

from om_processors.namespace import quota, tables
from schemas.codecs.codec import decode
from schemas.column_families import BUCKET_TABLE, OPEN_KEY_TABLE, USAGE_TABLE
from schemas.records.messages import (
    CommitKey,
    CreateBucket,
    CreateKey,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    RequestBody,
    SetBucketProperty,
    SetVolumeProperty,
)
from schemas.records.rows import BucketInfo
from tests.support.om.om_world import World

MAX = (1 << 63) - 1


def bucket_of(world: World, bucket: str = "bucket1") -> BucketInfo:
    row = world.tables.get(BUCKET_TABLE, tables.bucket_key("vol1", bucket))
    assert row is not None
    info = decode(row)
    assert isinstance(info, BucketInfo)
    return info


def volume_usage(world: World) -> tuple[int, int]:
    """Return the volume's number of buckets and allotted bytes."""
    return (
        quota.read(world.tables, tables.used_buckets_key("vol1")),
        quota.read(world.tables, tables.allotted_bytes_key("vol1")),
    )


def put_key(world: World, key: str, size: int) -> None:
    opened = world.session(CreateKey(volume="vol1", bucket="bucket1", key=key, size=size))
    world.do(CommitKey(volume="vol1", bucket="bucket1", key=key, session_id=opened.session_id, size=size))


def test_create_writes_the_row_and_counts_in_the_volume():
    world = World().make(bucket=None)
    world.do(CreateBucket(volume="vol1", bucket="bucket1", quota_in_bytes=500, quota_in_namespace=9), caller="bob")
    assert bucket_of(world) == BucketInfo(
        volume="vol1", bucket="bucket1", owner="bob", layout="OBJECT_STORE", object_id=2 << 8, update_id=2,
        quota_in_bytes=500, quota_in_namespace=9, creation_time_ms=1020, modification_time_ms=1020,
    )  # fmt: skip
    assert volume_usage(world) == (1, 500)
    assert world.tables.tables[USAGE_TABLE][b"/vol1/bucket1/#usedBytes"] == bytes(8)
    assert world.tables.tables[USAGE_TABLE][b"/vol1/bucket1/#usedNamespace"] == bytes(8)


def test_a_bucket_without_quota_writes_one_merge():
    world = World().make()
    assert [write for write in world.writes if write[0] == "merge"] == [("merge", USAGE_TABLE, b"/vol1/#usedNamespace")]


def test_create_twice():
    error = World().make().refusal(CreateBucket(volume="vol1", bucket="bucket1"))
    assert (error.status, error.message) == ("BUCKET_ALREADY_EXISTS", "bucket /vol1/bucket1 exists")


@pytest.mark.parametrize("layout", ["FILE_SYSTEM_OPTIMIZED", "LEGACY", "", "object_store"])
def test_other_layouts(layout):
    error = World().make().refusal(CreateBucket(volume="vol1", bucket="bucket2", layout=layout))
    assert error.status == "NOT_SUPPORTED_OPERATION"
    assert repr(layout) in error.message


COMMANDS: dict[str, Callable[..., RequestBody]] = {
    "create": CreateBucket,
    "set": lambda volume, bucket: SetBucketProperty(volume=volume, bucket=bucket, owner="bob"),
    "delete": DeleteBucket,
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_names_and_parents(command):
    world = World().make()
    assert world.refusal(command(volume="NO", bucket="bucket1")).status == "INVALID_VOLUME_NAME"
    assert world.refusal(command(volume="vol1", bucket="b/c")).status == "INVALID_BUCKET_NAME"
    assert world.refusal(command(volume="vol9", bucket="bucket9")).status == "VOLUME_NOT_FOUND"


@pytest.mark.parametrize("command", ["set", "delete"])
def test_missing_bucket(command):
    error = World().make().refusal(COMMANDS[command](volume="vol1", bucket="bucket9"))
    assert (error.status, error.message) == ("BUCKET_NOT_FOUND", "no bucket /vol1/bucket9")


@pytest.mark.parametrize("field", ["quota_in_bytes", "quota_in_namespace"])
@pytest.mark.parametrize("value", [0, -2])
def test_illegal_quotas(field, value):
    world = World().make()
    assert world.refusal(CreateBucket(volume="vol1", bucket="bucket2", **{field: value})).status == "INVALID_REQUEST"
    assert (
        world.refusal(SetBucketProperty(volume="vol1", bucket="bucket1", **{field: value})).status == "INVALID_REQUEST"
    )


def test_volume_with_byte_quota_wants_bucket_quotas_within_it():
    world = World()
    world.do(CreateVolume(volume="vol1", quota_in_bytes=100))
    assert world.refusal(CreateBucket(volume="vol1", bucket="bucket1")).status == "QUOTA_ERROR"
    assert world.refusal(CreateBucket(volume="vol1", bucket="bucket1", quota_in_bytes=101)).status == "QUOTA_EXCEEDED"
    world.do(CreateBucket(volume="vol1", bucket="bucket1", quota_in_bytes=60))
    error = world.refusal(CreateBucket(volume="vol1", bucket="bucket2", quota_in_bytes=41))
    assert error.status == "QUOTA_EXCEEDED"
    assert "sum to 101 bytes" in error.message
    world.do(CreateBucket(volume="vol1", bucket="bucket2", quota_in_bytes=40))
    assert volume_usage(world) == (2, 100)
    assert (
        world.refusal(SetBucketProperty(volume="vol1", bucket="bucket2", quota_in_bytes=41)).status == "QUOTA_EXCEEDED"
    )
    assert world.refusal(SetBucketProperty(volume="vol1", bucket="bucket2", quota_in_bytes=-1)).status == "QUOTA_ERROR"
    world.do(SetBucketProperty(volume="vol1", bucket="bucket1", quota_in_bytes=50))
    world.do(SetBucketProperty(volume="vol1", bucket="bucket2", quota_in_bytes=50))
    assert volume_usage(world) == (2, 100)
    world.do(DeleteBucket(volume="vol1", bucket="bucket1"))
    assert volume_usage(world) == (1, 50)


def test_volume_with_namespace_quota():
    world = World()
    world.do(CreateVolume(volume="vol1", quota_in_namespace=1))
    world.do(CreateBucket(volume="vol1", bucket="bucket1"))
    error = world.refusal(CreateBucket(volume="vol1", bucket="bucket2"))
    assert (error.status, error.message) == ("QUOTA_EXCEEDED", "volume /vol1 has a quota of 1 buckets and holds 1")
    world.do(DeleteBucket(volume="vol1", bucket="bucket1"))
    world.do(CreateBucket(volume="vol1", bucket="bucket2"))


def test_sum_of_quotas_stays_in_64_bits():
    world = World().make(bucket=None)
    world.do(CreateBucket(volume="vol1", bucket="bucket1", quota_in_bytes=MAX))
    error = world.refusal(CreateBucket(volume="vol1", bucket="bucket2", quota_in_bytes=1))
    assert error.status == "QUOTA_EXCEEDED"
    assert volume_usage(world) == (1, MAX)


def test_set_changes_what_is_given_and_the_volumes_sum():
    world = World().make()
    world.do(SetBucketProperty(volume="vol1", bucket="bucket1", owner="bob"))
    assert (bucket_of(world).owner, bucket_of(world).quota_in_bytes, bucket_of(world).update_id) == ("bob", -1, 3)
    world.do(SetBucketProperty(volume="vol1", bucket="bucket1", quota_in_bytes=70, quota_in_namespace=7))
    info = bucket_of(world)
    assert (info.quota_in_bytes, info.quota_in_namespace, info.owner) == (70, 7, "bob")
    assert (info.creation_time_ms, info.modification_time_ms) == (1020, 1040)
    assert volume_usage(world) == (1, 70)
    world.do(SetBucketProperty(volume="vol1", bucket="bucket1", quota_in_bytes=-1))
    assert bucket_of(world).quota_in_namespace == 7
    assert volume_usage(world) == (1, 0)


@pytest.mark.parametrize("owner", ["", None])
def test_set_needs_something_to_set(owner):
    error = World().make().refusal(SetBucketProperty(volume="vol1", bucket="bucket1", owner=owner))
    assert error.status == "INVALID_REQUEST"


def test_quotas_below_usage():
    world = World().make()
    put_key(world, "k1", 80)
    put_key(world, "k2", 20)
    error = world.refusal(SetBucketProperty(volume="vol1", bucket="bucket1", quota_in_bytes=99))
    assert error.status == "QUOTA_ERROR"
    assert "holds 100" in error.message
    error = world.refusal(SetBucketProperty(volume="vol1", bucket="bucket1", quota_in_namespace=1))
    assert error.status == "QUOTA_ERROR"
    world.do(SetBucketProperty(volume="vol1", bucket="bucket1", quota_in_bytes=100, quota_in_namespace=2))


def test_delete_needs_an_empty_bucket():
    world = World().make()
    put_key(world, "k1", 1)
    error = world.refusal(DeleteBucket(volume="vol1", bucket="bucket1"))
    assert (error.status, error.message) == ("BUCKET_NOT_EMPTY", "bucket /vol1/bucket1 has keys")
    world.do(DeleteKey(volume="vol1", bucket="bucket1", key="k1"))
    world.do(DeleteBucket(volume="vol1", bucket="bucket1"))
    assert volume_usage(world) == (0, 0)
    assert list(world.tables.tables[USAGE_TABLE]) == [b"/vol1/#usedNamespace", b"/vol1/#allottedBytes"]


def test_a_neighbour_whose_name_is_longer_does_not_hold_a_bucket_back():
    world = World().make().make("vol2", "bucket1")
    world.do(CreateBucket(volume="vol1", bucket="bucket1-x"))
    opened = world.session(CreateKey(volume="vol1", bucket="bucket1-x", key="k", size=0))
    world.do(CommitKey(volume="vol1", bucket="bucket1-x", key="k", session_id=opened.session_id, size=0))
    world.do(DeleteBucket(volume="vol1", bucket="bucket1"))


def test_open_keys_do_not_hold_a_bucket_back_and_cannot_be_committed_after():
    world = World().make()
    opened = world.session(CreateKey(volume="vol1", bucket="bucket1", key="k", size=10))
    world.do(DeleteBucket(volume="vol1", bucket="bucket1"))
    commit = CommitKey(volume="vol1", bucket="bucket1", key="k", session_id=opened.session_id, size=10)
    assert world.refusal(commit).status == "BUCKET_NOT_FOUND"
    world.do(SetVolumeProperty(volume="vol1", owner="bob"))
    world.do(CreateBucket(volume="vol1", bucket="bucket1"))
    error = world.refusal(commit)
    assert error.status == "KEY_NOT_FOUND"
    assert str(opened.session_id) in error.message
    assert len(world.tables.tables[OPEN_KEY_TABLE]) == 1
