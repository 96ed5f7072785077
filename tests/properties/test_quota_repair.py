"""Random histories: a repair never changes counters that are right, and puts right those that are wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from om_processors.errors import OMError
from om_processors.namespace import quota
from replicated_db.core.tables.merge import encode_int64
from schemas.column_families import USAGE_TABLE
from schemas.records import messages as m
from tests.properties.examples import examples
from tests.support.om.om_world import World

BUCKETS = ("bucket1", "bucket2")
PLACES = st.sampled_from([*BUCKETS, ""])
STEPS = st.one_of(
    st.builds(lambda bucket, key, size: ("put", bucket, key, size), st.sampled_from(BUCKETS), st.sampled_from("ab"),
              st.integers(0, 700)),
    st.builds(lambda bucket, key: ("delete", bucket, key), st.sampled_from(BUCKETS), st.sampled_from("ab")),
    st.builds(lambda key: ("rename", key), st.sampled_from("ab")),
    st.builds(lambda size: ("quota", size), st.sampled_from([-1, 5_000_000, 9_000_000])),
    st.sampled_from([("bucket", "bucket3"), ("no bucket", "bucket3")]),
)  # fmt: skip


def take(world: World, step: tuple[object, ...]) -> None:
    match step:
        case ("put", str() as bucket, str() as key, int() as size):
            opened = world.session(m.CreateKey(volume="vol1", bucket=bucket, key=key, size=size))
            world.do(m.CommitKey(volume="vol1", bucket=bucket, key=key, session_id=opened.session_id, size=size))
        case ("delete", str() as bucket, str() as key):
            world.do(m.DeleteKey(volume="vol1", bucket=bucket, key=key))
        case ("rename", str() as key):
            world.do(m.RenameKey(volume="vol1", bucket="bucket1", from_key=key, to_key=f"{key}{key}"))
        case ("quota", int() as size):
            world.do(m.SetBucketProperty(volume="vol1", bucket="bucket2", quota_in_bytes=size))
        case ("bucket", str() as bucket):
            world.do(m.CreateBucket(volume="vol1", bucket=bucket, quota_in_bytes=77))
        case ("no bucket", str() as bucket):
            world.do(m.DeleteBucket(volume="vol1", bucket=bucket))


def take_all(world: World, steps: list[tuple[object, ...]]) -> None:
    for step in steps:
        with suppress(OMError):  # what is not there, or is there already
            take(world, step)


def usage(world: World) -> dict[str, tuple[int, int, int, int]]:
    found = {place: quota.count(world.tables, "vol1", place) for place in ("", *BUCKETS)}
    return {
        place: (one.kept_bytes, one.counted_bytes, one.kept_names, one.counted_names) for place, one in found.items()
    }


@given(
    before=st.lists(STEPS, max_size=12), between=st.lists(STEPS, max_size=12), after=st.lists(STEPS, max_size=6),
    place=PLACES, off=st.tuples(st.integers(-9_999, 9_999), st.integers(-20, 20)) | st.just((0, 0)),
)  # fmt: skip
@settings(max_examples=examples(150), deadline=None)
def test_counters_are_right_after_a_repair_whatever_was_committed_since_the_count(before, between, after, place, off):
    world = World().make()
    world.do(m.CreateBucket(volume="vol1", bucket="bucket2"))
    take_all(world, before)
    for counter, by in zip(quota.counters("vol1", place), off, strict=True):
        world.tables.tables.setdefault(USAGE_TABLE, {})[counter] = encode_int64(quota.read(world.tables, counter) + by)
    body = m.RepairQuota(volume="vol1", bucket=place, **asdict(quota.count(world.tables, "vol1", place)))
    take_all(world, between)
    seen = usage(world)
    found = quota.count(world.tables, "vol1", place)
    if found.update_id != body.update_id:  # the bucket itself was changed
        assert world.refusal(body).status == "INDEX_MOVED"
        body = m.RepairQuota(volume="vol1", bucket=place, **asdict(found))
    world.do(body)
    if off == (0, 0):
        assert usage(world) == seen
    take_all(world, after)
    for kept_bytes, counted_bytes, kept_names, counted_names in usage(world).values():
        assert (kept_bytes, kept_names) == (counted_bytes, counted_names)
