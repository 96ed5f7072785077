from __future__ import annotations

import json

import pytest

from om_processors.errors import OMError
from om_processors.namespace import tables
from om_processors.serving import queries
from schemas.records.messages import CommitKey, CreateBucket, CreateKey, CreateVolume
from schemas.records.rows import BlockLocation, KeyInfo
from tests.support.om.om_world import World

KEYS = ["a", "a/1", "a/2", "a0", "b", "ä", "🗝"]


@pytest.fixture(name="world")
def _world() -> World:
    world = World().make()
    world.do(CreateVolume(volume="vol1-x", quota_in_bytes=1000, quota_in_namespace=4))
    world.do(CreateVolume(volume="vol2"))
    world.do(CreateBucket(volume="vol1", bucket="bucket2", quota_in_bytes=500))
    world.do(CreateBucket(volume="vol1", bucket="other"))
    world.do(CreateBucket(volume="vol1-x", bucket="bucket1", quota_in_bytes=300))
    for key in KEYS:
        opened = world.session(CreateKey(volume="vol1", bucket="bucket1", key=key, size=120, metadata={"m": "1"}))
        world.do(CommitKey(volume="vol1", bucket="bucket1", key=key, session_id=opened.session_id, size=120))
    world.session(CreateKey(volume="vol1", bucket="bucket1", key="open", size=1))
    return world


def names(listing, field):
    return [entry[field] for entry in listing["entries"]]


def test_volume_info(world):
    info = queries.volume_info(world.tables, "vol1-x")
    assert json.loads(json.dumps(info)) == {
        "volume": "vol1-x", "owner": "ann", "creator": "ann", "object_id": 3 << 8, "update_id": 3,
        "quota_in_bytes": 1000, "quota_in_namespace": 4, "creation_time_ms": 1030, "modification_time_ms": 1030,
        "usage": {"used_namespace": 1, "allotted_bytes": 300},
    }  # fmt: skip


def test_bucket_info(world):
    info = queries.bucket_info(world.tables, "vol1", "bucket1")
    assert info["usage"] == {"used_bytes": 120 * len(KEYS), "used_namespace": len(KEYS)}
    assert (info["volume"], info["bucket"], info["layout"]) == ("vol1", "bucket1", "OBJECT_STORE")
    json.dumps(info)


def test_key_info(world):
    info = queries.key_info(world.tables, "vol1", "bucket1", "a/1")
    assert (info["key"], info["size"], info["metadata"]) == ("a/1", 120, {"m": "1"})
    assert [(block["offset"], block["length"]) for block in info["blocks"]] == [(0, 100), (100, 20)]
    assert set(info["blocks"][0]) == {"container_id", "local_id", "offset", "length", "pipeline", "bcs_id"}
    json.dumps(info)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        (lambda view: queries.volume_info(view, "NO"), "INVALID_VOLUME_NAME"),
        (lambda view: queries.volume_info(view, "vol9"), "VOLUME_NOT_FOUND"),
        (lambda view: queries.bucket_info(view, "NO", "bucket1"), "INVALID_VOLUME_NAME"),
        (lambda view: queries.bucket_info(view, "vol1", "NO"), "INVALID_BUCKET_NAME"),
        (lambda view: queries.bucket_info(view, "vol9", "bucket1"), "VOLUME_NOT_FOUND"),
        (lambda view: queries.bucket_info(view, "vol1", "bucket9"), "BUCKET_NOT_FOUND"),
        (lambda view: queries.key_info(view, "NO", "bucket1", "a"), "INVALID_VOLUME_NAME"),
        (lambda view: queries.key_info(view, "vol1", "NO", "a"), "INVALID_BUCKET_NAME"),
        (lambda view: queries.key_info(view, "vol1", "bucket1", ""), "INVALID_KEY_NAME"),
        (lambda view: queries.key_info(view, "vol9", "bucket1", "a"), "VOLUME_NOT_FOUND"),
        (lambda view: queries.key_info(view, "vol1", "bucket9", "a"), "BUCKET_NOT_FOUND"),
        (lambda view: queries.key_info(view, "vol1", "bucket1", "open"), "KEY_NOT_FOUND"),
        (lambda view: queries.snapshot_info(view, "NO", "bucket1", "snap1"), "INVALID_VOLUME_NAME"),
        (lambda view: queries.snapshot_info(view, "vol1", "NO", "snap1"), "INVALID_BUCKET_NAME"),
        (lambda view: queries.snapshot_info(view, "vol1", "bucket1", "\udcff"), "INVALID_REQUEST"),
        (lambda view: queries.snapshot_info(view, "vol9", "bucket1", "snap1"), "VOLUME_NOT_FOUND"),
        (lambda view: queries.snapshot_info(view, "vol1", "bucket9", "snap1"), "BUCKET_NOT_FOUND"),
        (lambda view: queries.snapshot_info(view, "vol1", "bucket1", "snap1"), "FILE_NOT_FOUND"),
        (lambda view: queries.list_buckets(view, "NO"), "INVALID_VOLUME_NAME"),
        (lambda view: queries.list_buckets(view, "vol9"), "VOLUME_NOT_FOUND"),
        (lambda view: queries.list_keys(view, "NO", "bucket1"), "INVALID_VOLUME_NAME"),
        (lambda view: queries.list_keys(view, "vol9", "bucket1"), "VOLUME_NOT_FOUND"),
        (lambda view: queries.list_keys(view, "vol1", "NO"), "INVALID_BUCKET_NAME"),
        (lambda view: queries.list_keys(view, "vol1", "bucket9"), "BUCKET_NOT_FOUND"),
        (lambda view: queries.list_volumes(view, limit=0), "INVALID_REQUEST"),
        (lambda view: queries.list_volumes(view, limit=1001), "INVALID_REQUEST"),
        (lambda view: queries.list_keys(view, "vol1", "bucket1", limit=-1), "INVALID_REQUEST"),
        (lambda view: queries.list_keys(view, "vol1", "bucket1", prefix="\udcff"), "INVALID_REQUEST"),
        (lambda view: queries.list_keys(view, "vol1", "bucket1", start_after="\udcff"), "INVALID_REQUEST"),
    ],
)
def test_refusals(world, query, status):
    with pytest.raises(OMError) as refusal:
        query(world.tables)
    assert refusal.value.status == status


def test_list_volumes(world):
    assert names(queries.list_volumes(world.tables), "volume") == ["vol1", "vol1-x", "vol2"]
    assert names(queries.list_volumes(world.tables, prefix="vol1"), "volume") == ["vol1", "vol1-x"]
    assert names(queries.list_volumes(world.tables, start_after="vol1"), "volume") == ["vol1-x", "vol2"]
    assert queries.list_volumes(world.tables)["entries"][1] == queries.volume_info(world.tables, "vol1-x")
    assert queries.list_volumes(World().tables) == {"entries": [], "truncated": False}


def test_list_buckets(world):
    assert names(queries.list_buckets(world.tables, "vol1"), "bucket") == ["bucket1", "bucket2", "other"]
    assert names(queries.list_buckets(world.tables, "vol1", prefix="b", start_after="bucket1"), "bucket") == ["bucket2"]
    assert names(queries.list_buckets(world.tables, "vol2"), "bucket") == []


def test_list_keys_in_byte_order(world):
    listing = queries.list_keys(world.tables, "vol1", "bucket1")
    assert names(listing, "key") == sorted(KEYS, key=str.encode)
    assert listing["truncated"] is False
    assert listing["entries"][0] == queries.key_info(world.tables, "vol1", "bucket1", "a") | {"blocks": []}


@pytest.mark.parametrize("prefix", ["", "a", "a/", "ä", "🗝", "c", "\U0010ffff"])
@pytest.mark.parametrize("start_after", ["", "0", "a", "a/", "a/1", "a/15", "b", "ä", "🗝", "🗝z", "a\x00"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_any_listing_of_keys(world, prefix, start_after, limit):
    wanted = [
        key for key in sorted(KEYS, key=str.encode) if key.startswith(prefix) and key.encode() > start_after.encode()
    ]
    listing = queries.list_keys(world.tables, "vol1", "bucket1", prefix, start_after, limit)
    assert names(listing, "key") == wanted[:limit]
    assert listing["truncated"] == (len(wanted) > limit)


def test_paging_reaches_everything(world):
    seen: list[str] = []
    while True:
        listing = queries.list_keys(world.tables, "vol1", "bucket1", start_after=seen[-1] if seen else "", limit=2)
        seen += names(listing, "key")
        if not listing["truncated"]:
            break
    assert seen == sorted(KEYS, key=str.encode)


def test_listings_of_shards_are_joined():
    left, right = World().make("vol-a", None).make("vol-d", None), World().make("vol-b", None).make("vol-c", None)

    def joined(limit: int, start_after: str = ""):
        return queries.merge_listings(
            [queries.list_volumes(world.tables, start_after=start_after, limit=limit) for world in (left, right)], limit
        )

    assert names(joined(10), "volume") == ["vol-a", "vol-b", "vol-c", "vol-d"]
    assert joined(10)["truncated"] is False
    assert names(joined(3), "volume") == ["vol-a", "vol-b", "vol-c"]
    assert joined(3)["truncated"] is True
    assert names(joined(1, "vol-a"), "volume") == ["vol-b"]
    assert joined(1, "vol-c") == {"entries": [queries.volume_info(left.tables, "vol-d")], "truncated": False}


def large_keys(count: int, blocks: int) -> World:
    """A bucket of keys with many blocks: their rows alone, as it would take long to write them."""
    world = World().make()
    tx = world.begin()
    for number in range(count):
        key = f"k{number:04}"
        placed = [
            BlockLocation(container_id=n, local_id=n + 1, offset=n, length=1, pipeline="pipeline-17", bcs_id=9)
            for n in range(blocks)
        ]
        info = KeyInfo(
            volume="vol1", bucket="bucket1", key=key, owner="o", object_id=number + 1, update_id=1, size=blocks,
            replication="RATIS/THREE", blocks=placed, metadata={}, creation_time_ms=1, modification_time_ms=1,
        )  # fmt: skip
        tables.put_key(tx, tables.key_key("vol1", "bucket1", key), info)
    tx.commit()
    return world


def test_a_page_of_keys_has_no_blocks_and_ends_where_its_rows_have_enough_bytes():
    world = large_keys(count=200, blocks=4096)
    row_bytes = len(world.tables.get("keyTable", b"/vol1/bucket1/k0000") or b"")
    seen: list[str] = []
    pages = 0
    while True:
        listing = queries.list_keys(world.tables, "vol1", "bucket1", "", seen[-1] if seen else "", 1000)
        assert len(json.dumps(listing)) < 100_000
        assert 0 < len(listing["entries"]) * row_bytes <= queries.MAX_PAGE_BYTES
        seen += names(listing, "key")
        pages += 1
        if not listing["truncated"]:
            break
        assert listing["next_after"] == seen[-1]
    assert seen == [f"k{number:04}" for number in range(200)]
    assert pages == -(-200 // (queries.MAX_PAGE_BYTES // (row_bytes + len("/vol1/bucket1/k0000"))))
    assert len(queries.key_info(world.tables, "vol1", "bucket1", "k0000")["blocks"]) == 4096


def test_a_row_that_is_larger_than_a_page_is_one_of_its_own(monkeypatch):
    monkeypatch.setattr(queries, "MAX_PAGE_BYTES", 10)
    world = large_keys(count=3, blocks=1)
    listing = queries.list_keys(world.tables, "vol1", "bucket1")
    assert (names(listing, "key"), listing["truncated"], listing["next_after"]) == (["k0000"], True, "k0000")
    listing = queries.list_keys(world.tables, "vol1", "bucket1", start_after="k0001")
    assert (names(listing, "key"), listing["truncated"]) == (["k0002"], False)
    assert "next_after" not in listing


def test_pages_of_shards_that_end_early_skip_nothing():
    """A shard whose page ends at its bytes must not be passed by another's names."""
    left, right = World(), World()
    for number in range(9):
        left.make(f"vol-{number}a", None)
        right.make(f"vol-{number}b", None)
    seen: list[str] = []
    for _ in range(40):
        after = seen[-1] if seen else ""
        pages = [
            queries.list_volumes(left.tables, "", after, 5, 1), queries.list_volumes(right.tables, "", after, 5, 300),
        ]  # fmt: skip
        merged = queries.merge_listings(pages, 5)
        seen += names(merged, "volume")
        if not merged["truncated"]:
            break
        assert merged["next_after"] == seen[-1]
    assert seen == sorted([f"vol-{number}{side}" for number in range(9) for side in "ab"])
