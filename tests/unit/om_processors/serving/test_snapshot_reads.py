"""Reads through ``.snapshot/NAME/``, and of snapshots, on real checkpoints."""

import shutil
from base64 import b64decode

import pytest

from om_processors.fleet.snapshot_cleanup import SnapshotCheckpoints
from om_processors.namespace import snapshots
from om_processors.snapshots.checkpoints import CheckpointName, CheckpointUnreadable
from replicated_db.core.errors import StoreFailure
from schemas.column_families import BUCKET_TABLE
from schemas.records.messages import (
    CreateBucket,
    DeleteKey,
    PurgeSnapshots,
    PutKey,
    RenameKey,
    RenameSnapshot,
    SetSnapshotProperty,
)
from tests.support.om.snapshot_node import SnapshotNode


@pytest.fixture(name="node")
def _node(tmp_path):
    node = SnapshotNode(tmp_path)
    for key in ("a", "dir/b", "dir/c", "z"):
        node.put(key)
    yield node
    node.close()


def names(body, field="key"):
    return [entry[field] for entry in body["entries"]]


def test_keys_are_as_they_were_under_their_names_in_the_snapshot(node):
    node.snapshot("snap1")
    node.put("a", size=7)
    node.do(DeleteKey(volume="vol1", bucket="bucket1", key="dir/b"))
    node.do(RenameKey(volume="vol1", bucket="bucket1", from_key="dir/c", to_key="moved"))
    status, body = node.get("key", name=".snapshot/snap1/a")
    assert (status, body["key"], body["size"], body["positions"]) == (200, ".snapshot/snap1/a", 1, {"0": 0})
    assert len(body["blocks"]) == 1
    assert node.get("key", name="a")[1]["size"] == 7
    every = [".snapshot/snap1/" + key for key in ("a", "dir/b", "dir/c", "z")]
    assert names(node.get("keys", prefix=".snapshot/snap1/")[1]) == every
    assert names(node.get("keys", prefix=".snapshot/snap1")[1]) == every
    assert names(node.get("keys", prefix=".snapshot/snap1/dir/")[1]) == every[1:3]
    assert names(node.get("keys")[1]) == ["a", "moved", "z"]
    for key in every:
        assert node.get("key", name=key)[0] == 200


def test_a_listing_goes_on_after_the_name_that_it_gave(node):
    node.snapshot("snap1")
    found, after = [], ""
    while True:
        status, body = node.get("keys", prefix=".snapshot/snap1/", limit="1", start_after=after)
        assert status == 200
        found += names(body)
        if not body["truncated"]:
            break
        after = body["next_after"]
        assert after == found[-1]
    assert found == [".snapshot/snap1/" + key for key in ("a", "dir/b", "dir/c", "z")]
    assert names(node.get("keys", prefix=".snapshot/snap1/", start_after=".snapshot/a")[1]) == found
    assert node.get("keys", prefix=".snapshot/snap1/", start_after=".snapshot/snap2/a")[1]["entries"] == []
    assert node.get("keys", prefix=".snapshot/snap1/", start_after="z")[1]["entries"] == []


@pytest.mark.parametrize(
    ("page", "query", "status", "code", "words"),
    [
        ("key", {"name": ".snapshot/nosuch/a"}, 404, "FILE_NOT_FOUND", "nosuch"),
        ("key", {"name": ".snapshot/snap1/nosuch"}, 404, "KEY_NOT_FOUND", ".snapshot/snap1/nosuch"),
        ("key", {"name": ".snapshot/snap1/"}, 400, "INVALID_KEY_NAME", "names a snapshot, not a key"),
        ("key", {"name": ".snapshot/snap1"}, 400, "INVALID_KEY_NAME", "names a snapshot, not a key"),
        ("key", {"name": ".snapshot/"}, 400, "INVALID_KEY_NAME", "names no snapshot"),
        ("key", {"name": ".snapshot"}, 400, "INVALID_KEY_NAME", "names no snapshot"),
        ("key", {"name": ".snapshot//a"}, 400, "INVALID_KEY_NAME", "names no snapshot"),
        ("key", {"name": ".snapshot/snap1/" + "x" * 5000}, 400, "INVALID_KEY_NAME", "5000 bytes"),
        ("key", {"name": ".snapshot/#12/a"}, 404, "FILE_NOT_FOUND", "#12"),
        ("key", {"name": ".snapshot/\ud800/a"}, 400, "INVALID_REQUEST", "no Unicode"),
        ("key", {"name": ".snapshot/snap1/a", "bucket": "bucket9"}, 404, "BUCKET_NOT_FOUND", "bucket9"),
        ("key", {"name": ".snapshot/snap1/a", "bucket": "NO"}, 400, "INVALID_BUCKET_NAME", "NO"),
        ("keys", {"prefix": ".snapshot/"}, 400, "INVALID_REQUEST", "names no snapshot"),
        ("keys", {"prefix": ".snapshot/nosuch/"}, 404, "FILE_NOT_FOUND", "nosuch"),
        ("keys", {"prefix": ".snapshot/snap1/", "limit": "0"}, 400, "INVALID_REQUEST", "limit"),
        ("keys", {"prefix": ".snapshot/snap1/", "start_after": "\ud800"}, 400, "INVALID_REQUEST", "start_after"),
        ("snapshot", {"snapshot": "nosuch"}, 404, "FILE_NOT_FOUND", "nosuch"),
        ("snapshot", {"snapshot": "snap1", "bucket": "bucket9"}, 404, "BUCKET_NOT_FOUND", "bucket9"),
        ("snapshots", {"bucket": "bucket9"}, 404, "BUCKET_NOT_FOUND", "bucket9"),
        ("snapshots", {"start_after": "\ud800"}, 400, "INVALID_REQUEST", "start_after"),
        ("snapshots", {"limit": "1001"}, 400, "INVALID_REQUEST", "limit"),
    ],
)
def test_what_is_wrong_is_refused_in_words(node, page, query, status, code, words):
    node.snapshot("snap1")
    found, body = node.get(page, **query)
    assert (found, body["error"]) == (status, code)
    assert words in body["message"]


def test_keys_whose_names_only_begin_like_the_reserved_word_are_keys_of_the_bucket(node):
    node.put(".snapshots/of-cats")
    assert names(node.get("keys", prefix=".snapshot")[1]) == [".snapshots/of-cats"]
    assert names(node.get("keys", prefix=".snapshots/")[1]) == [".snapshots/of-cats"]
    assert node.get("key", name=".snapshots/of-cats")[0] == 200


def test_snapshots_are_listed_by_name_and_deleted_ones_are_not(node):
    node.do(CreateBucket(volume="vol1", bucket="bucket1-x"))
    one, two = node.snapshot("snap1"), node.snapshot("snap2")
    node.snapshot("snap3", bucket="bucket1-x")
    status, body = node.get("snapshots")
    assert (status, names(body, "snapshot"), body["truncated"]) == (200, ["snap1", "snap2"], False)
    node.do(SetSnapshotProperty(volume="vol1", bucket="bucket1", snapshot="snap1", properties={"why": "test"}))
    assert node.get("snapshots")[1]["entries"][0]["properties"] == {"why": "test"}
    first = node.get("snapshots", limit="1")[1]
    assert (names(first, "snapshot"), first["next_after"]) == (["snap1"], "snap1")
    assert names(node.get("snapshots", start_after="snap1")[1], "snapshot") == ["snap2"]
    assert names(node.get("snapshots", prefix="snap2")[1], "snapshot") == ["snap2"]
    node.delete(one)
    assert names(node.get("snapshots")[1], "snapshot") == ["snap2"]
    assert names(node.get("snapshots", prefix="#")[1], "snapshot") == []
    assert names(node.get("snapshots", start_after="!")[1], "snapshot") == ["snap2"]
    assert node.get("snapshot", snapshot="snap1")[1]["error"] == "FILE_NOT_FOUND"
    assert node.get("snapshot", snapshot=f"#{one.snapshot_id}")[1]["error"] == "FILE_NOT_FOUND"
    assert node.get("snapshot", snapshot="snap2")[1]["snapshot_id"] == two.snapshot_id


def test_info_says_what_a_snapshot_takes_and_what_it_holds_alone(node):
    info = node.snapshot("snap1")
    status, body = node.get("snapshot", snapshot="snap1")
    files = list(node.folder(info).glob("*.sst"))
    assert status == 200
    assert (body["checkpoint"], body["creator"], body["state"]) == (info.checkpoint, "ann", "ACTIVE")
    assert body["usage"]["disk_files"] == len(files) > 0
    assert body["usage"]["disk_bytes"] == sum(file.stat().st_size for file in files)
    assert body["usage"]["only_disk_bytes"] <= body["usage"]["disk_bytes"]


def test_a_missing_checkpoint_of_an_active_snapshot_sends_the_reader_to_another_node(node):
    info = node.snapshot("snap1")
    shutil.rmtree(node.folder(info))
    for page, query in (
        ("key", {"name": ".snapshot/snap1/a"}), ("keys", {"prefix": ".snapshot/snap1/"}), ("snapshot", {"snapshot": "snap1"}),
    ):  # fmt: skip
        status, body = node.get(page, **query)
        assert (status, body["error"]) == (503, "SNAPSHOT_UNREADABLE")
        assert "node om1 cannot read its checkpoint of snapshot /vol1/bucket1/.snapshot/snap1/" in body["message"]
    assert names(node.get("snapshots")[1], "snapshot") == ["snap1"]
    assert not node.folder(info).exists()


def test_a_checkpoint_that_lost_its_files_ends_no_process(node):
    info = node.snapshot("snap1")
    for file in node.folder(info).glob("*.sst"):
        file.unlink()
    status, body = node.get("key", name=".snapshot/snap1/a")
    assert (status, body["error"]) == (503, "SNAPSHOT_UNREADABLE")
    assert node.failures == []


def test_a_snapshot_that_is_deleted_while_it_is_read_is_not_found(node):
    info = node.snapshot("snap1")
    identity = node.checkpoints.identity

    def removed_meanwhile(which):
        node.delete(info)
        shutil.rmtree(node.folder(info), ignore_errors=True)
        raised = None
        try:
            identity(which)
        except CheckpointUnreadable as error:
            raised = error
        assert raised is not None
        raise raised

    node.checkpoints.identity = removed_meanwhile
    status, body = node.get("key", name=".snapshot/snap1/a")
    assert (status, body["error"]) == (404, "FILE_NOT_FOUND")


def test_a_new_snapshot_of_the_same_name_is_another_one(node):
    old = node.snapshot("snap1")
    node.put("a", size=7)
    assert node.get("key", name=".snapshot/snap1/a")[1]["size"] == 1
    node.delete(old)
    assert node.get("key", name=".snapshot/snap1/a")[1]["error"] == "FILE_NOT_FOUND"
    node.snapshot("snap1")
    assert node.get("key", name=".snapshot/snap1/a")[1]["size"] == 7


def test_a_renamed_snapshot_is_read_by_its_new_name_alone(node):
    node.snapshot("snap1")
    assert node.get("key", name=".snapshot/snap1/a")[0] == 200
    node.do(RenameSnapshot(volume="vol1", bucket="bucket1", snapshot="snap1", to="weekly"))
    assert node.get("key", name=".snapshot/snap1/a")[1]["error"] == "FILE_NOT_FOUND"
    assert node.get("key", name=".snapshot/weekly/a")[1]["key"] == ".snapshot/weekly/a"
    assert len(node.opened.names()) == 1


def test_a_purged_snapshots_checkpoint_is_removed_and_no_open_file_keeps_its_place(node):
    info, other = node.snapshot("snap1"), node.snapshot("snap2")
    for snapshot in ("snap1", "snap2"):
        assert node.get("key", name=f".snapshot/{snapshot}/a")[0] == 200

    def on_removed(shard, name):
        node.opened.drop(CheckpointName(shard, name))

    cleanup = SnapshotCheckpoints(node.replica, lambda text, **_: None, on_removed)
    node.delete(info)
    cleanup.turn()
    assert node.folder(info).is_dir()
    node.do(PurgeSnapshots(shard=0, rows=[snapshots.deleted_snapshot_key("vol1", "bucket1", info.snapshot_id)]))
    SnapshotCheckpoints(node.replica, lambda text, **_: None, on_removed).turn()
    assert not node.folder(info).exists()
    assert [which.name for which in node.opened.names()] == [other.checkpoint]
    assert node.get("key", name=".snapshot/snap1/a")[1]["error"] == "FILE_NOT_FOUND"
    assert node.get("key", name=".snapshot/snap2/a")[0] == 200


def test_one_more_snapshot_than_may_be_open_is_refused_for_now(node):
    info = node.snapshot("snap1")
    node.opened._limit = 0
    status, body = node.get("key", name=".snapshot/snap1/a")
    assert (status, body["error"]) == (503, "OVERLOADED")
    node.opened._limit = 1
    assert node.get("key", name=".snapshot/snap1/a")[0] == 200
    assert [which.name for which in node.opened.names()] == [info.checkpoint]


def test_a_read_that_is_refused_leaves_no_view_of_the_database_open(node, monkeypatch):
    """An open view keeps files on the disk that RocksDB would remove."""
    views = []
    take = node.store.snapshot

    def snapshot():
        views.append(take())
        return views[-1]

    monkeypatch.setattr(node.store, "snapshot", snapshot)
    shutil.rmtree(node.folder(node.snapshot("snap1")))
    assert node.get("key", name=".snapshot/snap1/a")[0] == 503
    assert len(views) > 1, "the reason was looked up in a view of its own"
    for view in views:
        with pytest.raises(StoreFailure):
            view.get(BUCKET_TABLE, b"")


def put(node, key, data):
    node.do(PutKey(volume="vol1", bucket="bucket1", key=key, data=data))


def test_bytes_of_an_inline_key_come_if_they_are_asked_for(node):
    put(node, "small", bytes(range(256)))
    status, body = node.get("key", name="small", bytes="true")
    assert (status, body["inline"], body["blocks"], body["size"]) == (200, True, [], 256)
    assert b64decode(body["data"]) == bytes(range(256))
    assert "data" not in node.get("key", name="small")[1]
    assert node.get("key", name="a", bytes="true")[1]["data"] is None, "its bytes are in blocks"
    assert all("data" not in entry for entry in node.get("keys")[1]["entries"])


def test_bytes_of_an_inline_key_in_a_snapshot_are_those_of_then(node):
    put(node, "small", b"then")
    put(node, "gone", b"gone since")
    node.snapshot("snap1")
    put(node, "small", b"now")
    node.do(DeleteKey(volume="vol1", bucket="bucket1", key="gone"))

    def data(name):
        return b64decode(node.get("key", name=name, bytes="true")[1]["data"])

    assert data("small") == b"now"
    assert data(".snapshot/snap1/small") == b"then"
    assert data(".snapshot/snap1/gone") == b"gone since"
    assert "data" not in node.get("key", name=".snapshot/snap1/small")[1]
