"""Reads of snapshots from a state directory: it has their rows, and not what they hold."""

import pytest

from producers.errors import NotFound, RequestFailed
from stratolog.configuration.state_directory import ShardPosition, reads_at, write_manifest
from tests.support.om.snapshot_node import SnapshotNode


@pytest.fixture(name="reads")
def _reads(tmp_path):
    node = SnapshotNode(tmp_path)
    node.put("a")
    node.put(".snapshots/of-cats")
    node.snapshot("snap1")
    node.delete(node.snapshot("snap2"))
    node.close()
    position = ShardPosition(index=9, offset=20, digest="00")
    write_manifest(tmp_path, cluster="test", shards=1, as_of="now", positions={0: position})
    with reads_at(tmp_path) as reads:
        yield reads


def test_snapshots_are_listed_and_described(reads):
    assert [found.snapshot for found in reads.list_snapshots("vol1", "bucket1")] == ["snap1"]
    view = reads.snapshot_info("vol1", "bucket1", "snap1")
    assert (view.info.state, view.info.referenced_keys, dict(view.usage)) == ("ACTIVE", 2, {})
    with pytest.raises(NotFound, match="FILE_NOT_FOUND"):
        reads.snapshot_info("vol1", "bucket1", "snap2")


def test_keys_of_snapshots_are_refused_in_words(reads):
    with pytest.raises(RequestFailed, match=r"rows of snapshots, and not what they hold: '.snapshot/snap1/a'"):
        reads.key_info("vol1", "bucket1", ".snapshot/snap1/a")
    with pytest.raises(RequestFailed, match=r"nothing is listed below '.snapshot/snap1/'"):
        list(reads.list_keys("vol1", "bucket1", prefix=".snapshot/snap1/"))
    assert [found.key for found in reads.list_keys("vol1", "bucket1", prefix=".snapshot")] == [".snapshots/of-cats"]
