"""Random request sequences against an independent model: statuses, visible state and counters are equal after each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from om_processors.errors import OMError
from om_processors.namespace import tables
from om_processors.serving import queries
from replicated_db.core.tables.merge import decode_int64
from schemas.codecs.codec import decode, encode
from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE, USAGE_TABLE
from schemas.datanode_states import DATANODE_STATES
from schemas.records import messages as m
from schemas.records.datanode import Member
from schemas.records.rows import BlockLocation
from tests.support.om.om_model import Model, Refusal
from tests.support.om.om_world import World

VOLUMES = st.sampled_from(["vol1"] * 4 + ["vol1-x"])
BUCKETS = st.sampled_from(["bucket1"] * 4 + ["bucket1-x"])
KEYS = st.sampled_from(["a", "b", "a/1023", "ключ"])
"""1023 is the session of the third request: a key that looks like an open one."""
CALLERS = st.sampled_from(["ann", "bob"])
SIZES = st.sampled_from([0, 1, 99, 100, 101, 250, 700]) | st.integers(-1, 7000)
BYTE_QUOTAS = st.sampled_from([-1] * 6 + [100, 250, 500, 1000, 1000, 0, -7, (1 << 63) - 1])
COUNT_QUOTAS = st.sampled_from([-1] * 5 + [1, 2, 3, 0])


def maybe(strategy):
    return st.none() | strategy


class Execution(RuleBasedStateMachine):
    """Few names, and a bucket to begin with: most requests must meet something, or nothing is tested."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model = Model()
        self.status = "OK"
        """Status of the last request."""
        self.opened: list[tuple[str, str, str, m.KeySession]] = []

    def place(self, data) -> tuple[str, str]:
        """Draw a volume and a bucket, which mostly exist."""
        there = [(volume, bucket) for volume in self.model.volumes for bucket in self.model.volumes[volume].buckets]
        places = st.sampled_from(there * 4 + [("vol1", "bucket1"), ("vol1", "bucket1-x"), ("vol1-x", "bucket1")])
        volume, bucket = data.draw(places)
        return volume, bucket

    def do(self, body: m.RequestBody, caller: str = "ann") -> m.KeySession | m.AllocatedBlock | None:
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
            handed_out = result.blocks if isinstance(result, m.KeySession) else [result.block] if result else []
            assert len(handed_out) == blocks
        return result

    # ---- requests

    @initialize(size=BYTE_QUOTAS, count=COUNT_QUOTAS)
    def begin(self, size, count):
        self.do(m.CreateVolume(volume="vol1"))
        self.do(m.CreateBucket(volume="vol1", bucket="bucket1", quota_in_bytes=size, quota_in_namespace=count))

    @rule(
        place=st.sampled_from(
            [("NO", "bucket1"), ("10.0.0.1", "bucket1"), ("v.-l", "b"), ("vol1", "b_t"), ("vol1", "b/c")]
        ),
        body=st.sampled_from(["CreateBucket", "DeleteBucket", "CreateKey", "DeleteKey"]),
    )
    def illegal_names(self, place, body):
        fields: dict[str, dict[str, Any]] = {"CreateKey": {"key": "k", "size": 1}, "DeleteKey": {"key": "k"}}
        more = fields.get(body, {})
        self.do(getattr(m, body)(volume=place[0], bucket=place[1], **more))

    @rule(volume=VOLUMES, owner=st.sampled_from(["", "carl"]), size=BYTE_QUOTAS, count=COUNT_QUOTAS, caller=CALLERS)
    def create_volume(self, volume, owner, size, count, caller):
        self.do(m.CreateVolume(volume=volume, owner=owner, quota_in_bytes=size, quota_in_namespace=count), caller)

    @rule(
        volume=VOLUMES,
        owner=maybe(st.sampled_from(["", "dora"])),
        size=maybe(BYTE_QUOTAS),
        count=maybe(COUNT_QUOTAS),
    )
    def set_volume(self, volume, owner, size, count):
        self.do(m.SetVolumeProperty(volume=volume, owner=owner, quota_in_bytes=size, quota_in_namespace=count))

    @rule(volume=st.sampled_from(["vol1", "vol1-x"]))
    def delete_volume(self, volume):
        self.do(m.DeleteVolume(volume=volume))

    @rule(volume=VOLUMES, bucket=BUCKETS, size=BYTE_QUOTAS, count=COUNT_QUOTAS, caller=CALLERS)
    def create_bucket(self, volume, bucket, size, count, caller):
        self.do(m.CreateBucket(volume=volume, bucket=bucket, quota_in_bytes=size, quota_in_namespace=count), caller)

    @rule(
        data=st.data(),
        owner=maybe(st.just("dora")),
        size=maybe(BYTE_QUOTAS),
        count=maybe(COUNT_QUOTAS),
    )
    def set_bucket(self, data, owner, size, count):
        volume, bucket = self.place(data)
        body = m.SetBucketProperty(
            volume=volume, bucket=bucket, owner=owner, quota_in_bytes=size, quota_in_namespace=count
        )
        self.do(body)

    @rule(data=st.data())
    def delete_bucket(self, data):
        volume, bucket = self.place(data)
        self.do(m.DeleteBucket(volume=volume, bucket=bucket))

    @rule(data=st.data(), key=KEYS | st.sampled_from(["", ".snapshot"]), size=SIZES, caller=CALLERS)
    def create_key(self, data, key, size, caller):
        volume, bucket = self.place(data)
        result = self.do(m.CreateKey(volume=volume, bucket=bucket, key=key, size=size), caller)
        if isinstance(result, m.KeySession):
            self.opened.append((volume, bucket, key, replace(result, blocks=list(result.blocks))))

    @rule(data=st.data(), key=KEYS, size=SIZES)
    def put_key(self, data, key, size):
        volume, bucket = self.place(data)
        result = self.do(m.CreateKey(volume=volume, bucket=bucket, key=key, size=size))
        if isinstance(result, m.KeySession):
            self.do(m.CommitKey(volume=volume, bucket=bucket, key=key, session_id=result.session_id, size=size))

    @precondition(lambda self: self.opened)
    @rule(data=st.data())
    def allocate_block(self, data):
        volume, bucket, key, session = data.draw(st.sampled_from(self.opened))
        result = self.do(m.AllocateBlock(volume=volume, bucket=bucket, key=key, session_id=session.session_id))
        if isinstance(result, m.AllocatedBlock):
            session.blocks.append(result.block)

    @precondition(lambda self: self.opened)
    @rule(data=st.data(), size=SIZES, wrong=st.sampled_from(["", "", "", "key", "session", "bucket"]))
    def commit_key(self, data, size, wrong):
        volume, bucket, key, session = data.draw(st.sampled_from(self.opened))
        body = m.CommitKey(volume=volume, bucket=bucket, key=key, session_id=session.session_id, size=size)
        if wrong == "key":
            body = replace(body, key=key + "/x")
        elif wrong == "session":
            body = replace(body, session_id=body.session_id + 256)
        elif wrong == "bucket":
            body = replace(body, bucket=self.place(data)[1])
        self.do(body)

    @precondition(lambda self: any(session.blocks for *_, session in self.opened))
    @rule(data=st.data(), surplus=st.sampled_from([0, 0, 0, 1, -1]))
    def commit_written_blocks(self, data, surplus):
        choices = [place for place in self.opened if place[3].blocks]
        volume, bucket, key, session = data.draw(st.sampled_from(choices))
        chosen = data.draw(
            st.lists(st.sampled_from(session.blocks), min_size=1, unique_by=lambda b: b.local_id, max_size=5)
        )
        written: list[BlockLocation] = []
        size = 0
        for block in chosen:
            length = data.draw(st.integers(1, block.length))
            written.append(replace(block, offset=size, length=length))
            size += length
        body = m.CommitKey(
            volume=volume, bucket=bucket, key=key, session_id=session.session_id, size=size + surplus, blocks=written
        )
        self.do(body)

    @rule(data=st.data(), key=KEYS)
    def delete_key(self, data, key):
        volume, bucket = self.place(data)
        self.do(m.DeleteKey(volume=volume, bucket=bucket, key=key))

    @rule(data=st.data(), from_key=KEYS, to_key=KEYS)
    def rename_key(self, data, from_key, to_key):
        volume, bucket = self.place(data)
        self.do(m.RenameKey(volume=volume, bucket=bucket, from_key=from_key, to_key=to_key))

    @rule(partition=st.sampled_from([0, 1, 2, -1]), names=st.lists(st.sampled_from(["dn1", "dn2", "dn3"]), max_size=3))
    def create_pipeline(self, partition, names):
        members = [Member(datanode=name, address="a:1", http_address="a:2", rack="/r") for name in names]
        self.do(m.CreatePipeline(partition=partition, members=members))

    @rule(partition=st.sampled_from([0, 1, 2, 256]))
    def retire_pipeline(self, partition):
        self.do(m.RetirePipeline(partition=partition, reason="a test"))

    @rule(name=st.sampled_from(["dn1", "dn2"]), state=st.sampled_from([*DATANODE_STATES, "GONE"]))
    def set_datanode_state(self, name, state):
        self.do(m.SetDatanodeState(datanode=name, state=state))

    @rule(data=st.data(), more=st.sampled_from([[], [b"/vol1/none"], [b"x", b"x"]]))
    def purge_blocks(self, data, more):
        there = sorted(self.world.tables.tables[DELETED_TABLE])
        rows = data.draw(st.lists(st.sampled_from(there), unique=True, max_size=3)) if there else []
        self.do(m.PurgeBlocks(shard=0, rows=rows + more))

    @rule(
        data=st.data(),
        age_ms=st.sampled_from([0, 10, 50, 200, -11]),
        more=st.sampled_from([[], [b"/vol1/none"], [b"x", b"x"]]),
    )
    def expire_open_keys(self, data, age_ms, more):
        there = sorted(self.world.tables.tables[OPEN_KEY_TABLE])
        rows = data.draw(st.lists(st.sampled_from(there), unique=True, max_size=3)) if there else []
        before_ms = self.world.now_ms - age_ms
        self.do(m.ExpireOpenKeys(shard=0, modified_before_ms=before_ms, rows=rows + more))

    # ---- what must be equal

    @invariant()
    def visible_state(self):
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
                    key = queries.key_info(view, entry["volume"], row["bucket"], listed["key"])
                    expected = bucket.keys[key["key"]]
                    assert (
                        key["size"], key["owner"], len(key["blocks"]), key["creation_time_ms"],
                        key["modification_time_ms"], key["object_id"],
                    ) == (
                        expected.size, expected.owner, expected.blocks, expected.created_ms,
                        expected.modified_ms, expected.born << 8,
                    )  # fmt: skip
                    assert sum(block["length"] for block in key["blocks"]) == key["size"]

    @invariant()
    def pipelines_and_datanodes(self):
        view, model = self.world.tables, self.model
        rows = {
            row.partition: ([one.datanode for one in row.members], row.state, row.generation)
            for row in tables.pipelines(view)
        }
        assert rows == model.pipelines
        assert {row.datanode: row.state for row in tables.datanodes(view)} == model.datanodes

    @invariant()
    def quotas_hold(self):
        for volume in self.model.volumes.values():
            assert volume.bytes_quota == -1 or volume.allotted() <= volume.bytes_quota
            assert volume.buckets_quota == -1 or len(volume.buckets) <= volume.buckets_quota
            for bucket in volume.buckets.values():
                assert bucket.bytes_quota == -1 or bucket.used() <= bucket.bytes_quota
                assert bucket.keys_quota == -1 or len(bucket.keys) <= bucket.keys_quota

    @invariant()
    def nothing_is_left_behind(self):
        rows = self.world.tables.tables
        assert len(rows[OPEN_KEY_TABLE]) == len(self.model.sessions)
        buckets = sum(len(volume.buckets) for volume in self.model.volumes.values())
        assert len(rows[USAGE_TABLE]) == 2 * (len(self.model.volumes) + buckets)
        assert all(decode_int64(value) >= 0 for value in rows[USAGE_TABLE].values())
        assert {key: len(decode(value).blocks) for key, value in rows[DELETED_TABLE].items()} == self.model.deleted
        reclaimed = [block for value in rows[DELETED_TABLE].values() for block in decode(value).blocks]
        assert len({block.local_id for block in reclaimed}) == len(reclaimed)

    def teardown(self):
        for (cf, _), value in self.world.tables.rows().items():
            assert cf == USAGE_TABLE or encode(decode(value)) == value


TestExecution = Execution.TestCase
TestExecution.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
