from __future__ import annotations

import pytest

from om_processors.namespace import quota, tables
from schemas.codecs.codec import decode
from schemas.column_families import USAGE_TABLE, VOLUME_TABLE
from schemas.records.messages import (
    CreateBucket,
    CreateVolume,
    DeleteBucket,
    DeleteVolume,
    SetBucketProperty,
    SetVolumeProperty,
)
from schemas.records.rows import VolumeInfo
from tests.support.om.om_world import World


def volume_of(world: World, volume: str = "vol1") -> VolumeInfo:
    row = world.tables.get(VOLUME_TABLE, tables.volume_key(volume))
    assert row is not None
    info = decode(row)
    assert isinstance(info, VolumeInfo)
    return info


def test_create_writes_the_row_and_counters_at_zero():
    world = World()
    assert world.do(CreateVolume(volume="vol1", quota_in_bytes=1000, quota_in_namespace=5)) is None
    assert volume_of(world) == VolumeInfo(
        volume="vol1", owner="ann", creator="ann", object_id=1 << 8, update_id=1, quota_in_bytes=1000,
        quota_in_namespace=5, creation_time_ms=1010, modification_time_ms=1010,
    )  # fmt: skip
    assert world.tables.tables[USAGE_TABLE] == {b"/vol1/#usedNamespace": bytes(8), b"/vol1/#allottedBytes": bytes(8)}


def test_create_for_another_owner():
    world = World()
    world.do(CreateVolume(volume="vol1", owner="bob"))
    assert (volume_of(world).owner, volume_of(world).creator) == ("bob", "ann")


def test_create_twice():
    error = World().make(bucket=None).refusal(CreateVolume(volume="vol1"))
    assert (error.status, error.message) == ("VOLUME_ALREADY_EXISTS", "volume /vol1 exists")


@pytest.mark.parametrize("quota_value", [0, -2, -(1 << 63)])
@pytest.mark.parametrize("field", ["quota_in_bytes", "quota_in_namespace"])
def test_illegal_quotas(quota_value, field):
    world = World()
    error = world.refusal(CreateVolume(volume="vol1", **{field: quota_value}))
    assert error.status == "INVALID_REQUEST"
    assert f"illegal {field} {quota_value} for volume /vol1" in error.message
    world.do(CreateVolume(volume="vol1"))
    assert world.refusal(SetVolumeProperty(volume="vol1", **{field: quota_value})).status == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "body", [CreateVolume, DeleteVolume, lambda volume: SetVolumeProperty(volume=volume, owner="bob")]
)
def test_illegal_names_are_refused_by_every_command(body):
    assert World().refusal(body(volume="No")).status == "INVALID_VOLUME_NAME"


@pytest.mark.parametrize("body", [DeleteVolume(volume="vol9"), SetVolumeProperty(volume="vol9", owner="bob")])
def test_missing_volume(body):
    error = World().make().refusal(body)
    assert (error.status, error.message) == ("VOLUME_NOT_FOUND", "no volume /vol9")


def test_set_changes_what_is_given_and_nothing_else():
    world = World().make(bucket=None)
    before = volume_of(world)
    world.do(SetVolumeProperty(volume="vol1", owner="bob"), caller="carl")
    after = volume_of(world)
    assert (after.owner, after.creator, after.quota_in_bytes, after.object_id) == ("bob", "ann", -1, before.object_id)
    assert (after.update_id, after.creation_time_ms, after.modification_time_ms) == (2, 1010, 1020)
    world.do(SetVolumeProperty(volume="vol1", quota_in_bytes=10, quota_in_namespace=3))
    assert (volume_of(world).quota_in_bytes, volume_of(world).quota_in_namespace, volume_of(world).owner) == (
        10,
        3,
        "bob",
    )
    world.do(SetVolumeProperty(volume="vol1", quota_in_bytes=-1, quota_in_namespace=-1))
    assert (volume_of(world).quota_in_bytes, volume_of(world).quota_in_namespace) == (-1, -1)


@pytest.mark.parametrize("body", [SetVolumeProperty(volume="vol1"), SetVolumeProperty(volume="vol1", owner="")])
def test_set_needs_something_to_set(body):
    assert World().make().refusal(body).status == "INVALID_REQUEST"


def test_byte_quota_needs_buckets_with_quotas_that_fit():
    world = World().make()
    error = world.refusal(SetVolumeProperty(volume="vol1", quota_in_bytes=100))
    assert error.status == "QUOTA_ERROR"
    assert "bucket1 has none" in error.message
    world.do(SetBucketProperty(volume="vol1", bucket="bucket1", quota_in_bytes=101))
    error = world.refusal(SetVolumeProperty(volume="vol1", quota_in_bytes=100))
    assert error.status == "QUOTA_EXCEEDED"
    assert "101" in error.message
    world.do(SetVolumeProperty(volume="vol1", quota_in_bytes=101))
    error = world.refusal(SetVolumeProperty(volume="vol1", quota_in_bytes=100))
    assert error.status == "QUOTA_EXCEEDED"


def test_namespace_quota_below_the_number_of_buckets():
    world = World().make()
    world.do(CreateBucket(volume="vol1", bucket="bucket2"))
    error = world.refusal(SetVolumeProperty(volume="vol1", quota_in_namespace=1))
    assert (error.status, error.message) == ("QUOTA_EXCEEDED", "volume /vol1 holds 2 buckets, more than 1")
    world.do(SetVolumeProperty(volume="vol1", quota_in_namespace=2))


def test_quota_with_a_neighbour_whose_name_is_longer():
    world = World().make("vol1", None).make("vol1-x", "bucket1")
    world.do(SetVolumeProperty(volume="vol1", quota_in_bytes=1))
    world.do(DeleteVolume(volume="vol1"))


def test_delete_needs_an_empty_volume_and_leaves_nothing():
    world = World().make()
    error = world.refusal(DeleteVolume(volume="vol1"))
    assert (error.status, error.message) == ("VOLUME_NOT_EMPTY", "volume /vol1 has buckets")
    world.do(DeleteBucket(volume="vol1", bucket="bucket1"))
    assert world.do(DeleteVolume(volume="vol1")) is None
    assert world.tables.rows() == {}


def test_created_again_it_is_another_object():
    world = World().make(bucket=None)
    first = volume_of(world).object_id
    world.do(DeleteVolume(volume="vol1"))
    world.do(CreateVolume(volume="vol1"))
    assert volume_of(world).object_id > first
    assert quota.read(world.tables, tables.used_buckets_key("vol1")) == 0


@pytest.mark.parametrize(
    "body", [CreateVolume(volume="vol2", owner="\ud800"), SetVolumeProperty(volume="vol1", owner="\ud800")]
)
def test_an_owner_is_a_text_that_can_be_stored(body):
    error = World().make(bucket=None).refusal(body)
    assert (error.status, "illegal owner" in error.message) == ("INVALID_REQUEST", True)
