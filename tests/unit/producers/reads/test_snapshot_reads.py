"""Reads of snapshots through the SDK, from a node's real HTTP answers over real checkpoints."""

import shutil

import pytest

from producers.errors import NotFound, RequestFailed, RetryableError
from producers.reads.reads import Reads
from tests.support.om.snapshot_node import SnapshotNode
from tests.support.sdk.snapshot_server import SnapshotServer


@pytest.fixture(name="nodes")
def _nodes(tmp_path):
    served = []
    for name in ("om1", "om2"):
        folder = tmp_path / name
        folder.mkdir()
        node = SnapshotNode(folder)
        for key in ("a", "dir/b", "ü/ß?&=#%2F+"):
            node.put(key)
        served.append(SnapshotServer(node))
    yield served
    for server in served:
        server.close()
        server.served.close()


@pytest.fixture(name="reads")
def _reads(nodes):
    reads = Reads([node.address for node in nodes], deadline_ms=2_000)
    yield reads
    reads.close()


def snapshot(nodes, name):
    return [node.served.snapshot(name) for node in nodes]


def test_keys_of_a_snapshot_are_read_and_listed(nodes, reads):
    snapshot(nodes, "snap1")
    for node in nodes:
        node.served.put("a", size=9)
        node.served.put("new")
    listed = [found.key for found in reads.list_keys("vol1", "bucket1", prefix=".snapshot/snap1/", consistency="stale")]
    assert listed == [".snapshot/snap1/" + key for key in ("a", "dir/b", "ü/ß?&=#%2F+")]
    for name in listed:
        info = reads.key_info("vol1", "bucket1", name, consistency="stale").info
        assert (info.key, info.size, len(info.blocks)) == (name, 1, 1)
    paged, after = [], ""
    while page := list(
        reads.list_keys(
            "vol1", "bucket1", prefix=".snapshot/snap1", start_after=after, limit=1, consistency="stale"
        )
    ):  # fmt: skip
        paged += [found.key for found in page]
        after = paged[-1]
    assert paged == listed


def test_snapshots_are_listed_and_described(nodes, reads):
    info = snapshot(nodes, "snap1")[0]
    snapshot(nodes, "snap2")
    found = list(reads.list_snapshots("vol1", "bucket1", consistency="stale"))
    assert [one.snapshot for one in found] == ["snap1", "snap2"]
    assert found[0] == info
    assert [one.snapshot for one in reads.list_snapshots("vol1", "bucket1", limit=1, consistency="stale")] == ["snap1"]
    view = reads.snapshot_info("vol1", "bucket1", "snap1", consistency="stale")
    assert view.info == info
    assert set(view.usage) == {"disk_files", "disk_bytes", "only_disk_bytes"}
    assert view.usage["disk_bytes"] > 0


def test_a_node_without_the_checkpoint_is_followed_by_the_next(nodes, reads):
    first, second = snapshot(nodes, "snap1")
    shutil.rmtree(nodes[0].served.folder(first))
    assert reads.key_info("vol1", "bucket1", ".snapshot/snap1/a", consistency="stale").info.size == 1
    assert reads.snapshot_info("vol1", "bucket1", "snap1", consistency="stale").usage["disk_files"] > 0
    shutil.rmtree(nodes[1].served.folder(second))
    with pytest.raises(RetryableError, match="om1 cannot read its checkpoint of snapshot") as caught:
        reads.key_info("vol1", "bucket1", ".snapshot/snap1/a", consistency="stale")
    assert caught.value.status == "SNAPSHOT_UNREADABLE"


def test_what_is_missing_is_named(nodes, reads):
    snapshot(nodes, "snap1")
    with pytest.raises(NotFound, match=r"FILE_NOT_FOUND: snapshot 'snap9' of bucket /vol1/bucket1 does not exist"):
        reads.key_info("vol1", "bucket1", ".snapshot/snap9/a", consistency="stale")
    with pytest.raises(NotFound, match="snapshot 'snap9' of bucket /vol1/bucket1 does not exist"):
        list(reads.list_keys("vol1", "bucket1", prefix=".snapshot/snap9/", consistency="stale"))
    with pytest.raises(NotFound, match="snapshot 'snap9' of bucket /vol1/bucket1 does not exist"):
        reads.snapshot_info("vol1", "bucket1", "snap9", consistency="stale")
    with pytest.raises(NotFound, match="key '.snapshot/snap1/nosuch' in bucket /vol1/bucket1 does not exist"):
        reads.key_info("vol1", "bucket1", ".snapshot/snap1/nosuch", consistency="stale")
    with pytest.raises(RequestFailed, match="names no snapshot"):
        list(reads.list_keys("vol1", "bucket1", prefix=".snapshot/", consistency="stale"))
    with pytest.raises(RequestFailed, match="INVALID_SNAPSHOT_ERROR: illegal snapshot name ''"):
        reads.snapshot_info("vol1", "bucket1", "", consistency="stale")
