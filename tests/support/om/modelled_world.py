"""The Object Manager in memory beside its model: both are given the same requests, and must agree on all that can be seen."""

from __future__ import annotations

from base64 import b64decode

from om_processors.errors import OMError
from om_processors.namespace import tables
from om_processors.namespace.context import Result
from om_processors.serving import queries
from replicated_db.core.tables.merge import decode_int64
from schemas.codecs.codec import decode, encode
from schemas.column_families import (
    DELETED_TABLE,
    INLINE_TABLE,
    KEY_TABLE,
    OPEN_KEY_TABLE,
    SNAPSHOT_TABLE,
    USAGE_TABLE,
)
from schemas.records import messages as m
from tests.support.om.om_model import Model, Refusal
from tests.support.om.om_world import World


class ModelledWorld:
    """A world and the model of it. ``do`` compares the answers; the assertions compare what is there."""

    def __init__(self) -> None:
        self.world = World()
        self.model = Model()
        self.status = "OK"
        """Status of the last request."""

    def do(self, body: m.RequestBody, caller: str = "ann") -> Result:
        """Execute on both; they must agree on the status and on how many blocks there are. Return None if refused."""
        world = self.world
        before = world.tables.rows()
        expected, blocks = "OK", 0
        try:
            blocks = self.model.do(body, caller, world.index + 1, world.now_ms + 10)
        except Refusal as refusal:
            expected = str(refusal)
        status, result = "OK", None
        try:
            result = world.do(body, caller)
        except OMError as error:
            status = error.status
        assert status == "OK" or world.tables.rows() == before
        assert status == expected, (body, status, expected)
        self.status = status
        if status == "OK":
            handed_out = getattr(result, "blocks", [result.block] if isinstance(result, m.AllocatedBlock) else [])
            assert len(handed_out) == blocks
        return result

    def assert_visible_state(self) -> None:
        view, model = self.world.tables, self.model
        volumes = queries.list_volumes(view)["entries"]
        assert [entry["volume"] for entry in volumes] == sorted(model.volumes)
        for entry in volumes:
            volume = model.volumes[entry["volume"]]
            assert (entry["owner"], entry["quota_in_bytes"], entry["quota_in_namespace"], entry["usage"]) == (
                volume.owner, volume.bytes_quota, volume.buckets_quota,
                {"used_namespace": len(volume.buckets), "allotted_bytes": volume.allotted()},
            )  # fmt: skip
            buckets = queries.list_buckets(view, entry["volume"])["entries"]
            assert [row["bucket"] for row in buckets] == sorted(volume.buckets)
            for row in buckets:
                bucket = volume.buckets[row["bucket"]]
                assert (row["owner"], row["quota_in_bytes"], row["quota_in_namespace"], row["usage"]) == (
                    bucket.owner, bucket.bytes_quota, bucket.keys_quota,
                    {"used_bytes": bucket.used(), "used_namespace": len(bucket.keys)},
                )  # fmt: skip
                keys = queries.list_keys(view, entry["volume"], row["bucket"])["entries"]
                assert [key["key"] for key in keys] == sorted(bucket.keys, key=str.encode)
                assert not any(key["blocks"] for key in keys), "listed keys come without them"
                for listed in keys:
                    key = queries.key_info(view, entry["volume"], row["bucket"], listed["key"], with_bytes=True)
                    expected = bucket.keys[key["key"]]
                    assert (
                        key["size"], key["owner"], len(key["blocks"]), key["creation_time_ms"],
                        key["modification_time_ms"], key["object_id"],
                    ) == (
                        expected.size, expected.owner, expected.blocks, expected.created_ms,
                        expected.modified_ms, expected.born << 8,
                    )  # fmt: skip
                    data = b64decode(key["data"]) if key["inline"] else b""
                    assert (data, key["inline"]) == (expected.data, bool(expected.data))
                    assert sum(block["length"] for block in key["blocks"]) + len(data) == key["size"]

    def assert_pipelines_and_datanodes(self) -> None:
        view, model = self.world.tables, self.model
        rows = {
            row.partition: ([one.datanode for one in row.members], row.state, row.generation)
            for row in tables.pipelines(view)
        }
        assert rows == model.pipelines
        assert {row.datanode: row.state for row in tables.datanodes(view)} == model.datanodes

    def assert_quotas_hold(self) -> None:
        for volume in self.model.volumes.values():
            assert volume.bytes_quota == -1 or volume.allotted() <= volume.bytes_quota
            assert volume.buckets_quota == -1 or len(volume.buckets) <= volume.buckets_quota
            for bucket in volume.buckets.values():
                assert bucket.bytes_quota == -1 or bucket.used() <= bucket.bytes_quota
                assert bucket.keys_quota == -1 or len(bucket.keys) <= bucket.keys_quota

    def assert_nothing_is_left_behind(self) -> None:
        rows = self.world.tables.tables
        opened = {key: decode(value) for key, value in rows[OPEN_KEY_TABLE].items()}
        assert {
            key: (row.size, row.owner, len(row.blocks), row.modification_time_ms) for key, row in opened.items()
        } == {key: (one.size, one.owner, one.blocks, one.modified_ms) for key, one in self.model.open_rows().items()}
        assert rows[INLINE_TABLE] == self.model.inline_rows()
        buckets = sum(len(volume.buckets) for volume in self.model.volumes.values())
        assert len(rows[USAGE_TABLE]) == 2 * (len(self.model.volumes) + buckets)
        assert all(decode_int64(value) >= 0 for value in rows[USAGE_TABLE].values())
        assert {
            key: (len(row.blocks), None if row.creation_time_ms else row.modification_time_ms)
            for key, row in ((key, decode(value)) for key, value in rows[DELETED_TABLE].items())
        } == self.model.deleted_rows()
        reclaimed = [block for value in rows[DELETED_TABLE].values() for block in decode(value).blocks]
        assert len({block.local_id for block in reclaimed}) == len(reclaimed)

    def assert_snapshots(self) -> None:
        """Their rows are as they should be, and each can still read what it could when it was made."""
        view = self.world.tables
        rows = {key: decode(value) for key, value in view.iterate(SNAPSHOT_TABLE, b"")}
        assert {
            key: (
                row.snapshot, row.state, row.snapshot_id, row.checkpoint, row.index, row.creation_time_ms,
                row.deletion_time_ms, row.creator, row.referenced_bytes, row.referenced_keys, row.properties,
                row.bucket_object_id,
            )
            for key, row in rows.items()
        } == {
            key: (
                one.name, "DELETED" if one.deleted_ms else "ACTIVE", one.index << 8, f"snapshot-{one.index << 8}",
                one.index, one.made_ms, one.deleted_ms, one.creator, one.size, len(one.keys), one.properties,
                self.born(key) << 8,
            )
            for key, one in self.model.snapshot_rows().items()
        }  # fmt: skip
        there = {
            decode(value).object_id >> 8 for cf in (KEY_TABLE, DELETED_TABLE) for _, value in view.iterate(cf, b"")
        }
        assert self.model.lost_versions(there) == []

    def born(self, row: bytes) -> int:
        """Return the index at which the bucket of a row was born."""
        _, volume, bucket, _ = row.decode().split("/")
        return self.model.volumes[volume].buckets[bucket].born

    def assert_every_row_is_encoded_one_way(self) -> None:
        for (cf, _), value in self.world.tables.rows().items():
            assert cf in (USAGE_TABLE, INLINE_TABLE) or encode(decode(value)) == value
