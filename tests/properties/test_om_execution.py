"""Random request sequences against an independent model: statuses, visible state and counters are equal after each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from om_processors.namespace.context import Result
from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE, SNAPSHOT_TABLE
from schemas.datanode_states import DATANODE_STATES
from schemas.records import messages as m
from schemas.records.datanode import Member
from schemas.records.rows import BlockLocation
from tests.properties.examples import examples
from tests.support.om.modelled_world import ModelledWorld

VOLUMES = st.sampled_from(["vol1"] * 4 + ["vol1-x"])
BUCKETS = st.sampled_from(["bucket1"] * 4 + ["bucket1-x"])
KEYS = st.sampled_from(["a", "b", "a/1023", "ключ"])
"""1023 is the session of the third request: a key that looks like an open one."""
SNAPSHOTS = st.sampled_from(["snap1"] * 3 + ["snap2", "1-x", "No"])
PROPERTIES = st.dictionaries(st.sampled_from(["a", "b", ""]), st.sampled_from(["", "1", "ключ"]), max_size=2)
CALLERS = st.sampled_from(["ann", "bob"])
SIZES = st.sampled_from([0, 1, 99, 100, 101, 250, 700]) | st.integers(-1, 7000)
DATA = st.sampled_from([b"", b"x", b"y" * 99, b"z" * 300, b"w" * 16_385])
WRONG_COMMITS = ["size", "length", "offset", "index", "session", "bucket", "twice", "no blocks"]
BYTE_QUOTAS = st.sampled_from([-1] * 6 + [100, 250, 500, 1000, 1000, 0, -7, (1 << 63) - 1])
GENERATIONS = st.sampled_from([0, 0, 0, 1, 2, -1])
COUNT_QUOTAS = st.sampled_from([-1] * 5 + [1, 2, 3, 0])


def maybe(strategy):
    return st.none() | strategy


class Execution(RuleBasedStateMachine):
    """Few names, and a bucket to begin with: most requests must meet something, or nothing is tested."""

    def __init__(self) -> None:
        super().__init__()
        self.both = ModelledWorld()
        self.world, self.model = self.both.world, self.both.model
        self.world.gone = self.model.gone = frozenset({"dn1"})
        self.opened: list[tuple[str, str, str, m.KeySession]] = []
        self.reserved: list[tuple[str, str, m.KeySession]] = []

    def place(self, data) -> tuple[str, str]:
        """Draw a volume and a bucket, which mostly exist."""
        there = [(volume, bucket) for volume in self.model.volumes for bucket in self.model.volumes[volume].buckets]
        places = st.sampled_from(there * 4 + [("vol1", "bucket1"), ("vol1", "bucket1-x"), ("vol1-x", "bucket1")])
        volume, bucket = data.draw(places)
        return volume, bucket

    def do(self, body: m.RequestBody, caller: str = "ann") -> Result:
        return self.both.do(body, caller)

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

    @rule(
        data=st.data(), key=st.sampled_from(["a", "b", "a/1023", "", ".snapshot/x"]), value=DATA,
        replication=st.sampled_from(["RATIS/THREE"] * 5 + ["NONE"]), caller=CALLERS,
    )  # fmt: skip
    def put_small_key(self, data, key, value, replication, caller):
        volume, bucket = self.place(data)
        self.do(m.PutKey(volume=volume, bucket=bucket, key=key, data=value, replication=replication), caller)

    @rule(data=st.data(), count=st.sampled_from([1, 2, 2, 3, 5, 64, 0, 65, -1]), caller=CALLERS)
    def reserve_blocks(self, data, count, caller):
        volume, bucket = self.place(data)
        result = self.do(m.ReserveBlocks(volume=volume, bucket=bucket, count=count), caller)
        if isinstance(result, m.KeySession):
            self.reserved.append((volume, bucket, result))

    @precondition(lambda self: self.reserved)
    @rule(
        data=st.data(), key=st.sampled_from(["a", "b", "a/1023", "", ".snapshot/x"]), caller=CALLERS,
        wrong=st.sampled_from([""] * 8 + WRONG_COMMITS),
    )  # fmt: skip
    def commit_reserved(self, data, key, caller, wrong):
        """Mostly with blocks that are left; else with those that are gone, or of another reservation."""
        volume, bucket, session = data.draw(st.sampled_from(self.reserved))
        known = self.model.sessions.get((volume, bucket, session.session_id))
        others = [block for *_, other in self.reserved[-3:] for block in other.blocks[:3]]
        left = [block for block in session.blocks if known is not None and block.local_id in known.left]
        there = data.draw(st.sampled_from([left[:8]] * 5 + [session.blocks[:8], others])) or session.blocks
        chosen = data.draw(st.lists(st.sampled_from(there), min_size=1, unique_by=lambda b: b.local_id, max_size=3))
        blocks: list[BlockLocation] = []
        size = 0
        for block in chosen:
            length = data.draw(st.integers(1, block.length))
            blocks.append(replace(block, offset=size, length=length, bcs_id=data.draw(st.sampled_from([0, 1, 9]))))
            size += length
        body = m.CommitReserved(
            volume=volume, bucket=bucket, key=key, session_id=session.session_id, size=size, blocks=blocks
        )
        if wrong == "size":
            body = replace(body, size=size + data.draw(st.sampled_from([1, -1, -size])))
        elif wrong == "length":
            blocks[-1] = replace(blocks[-1], length=101)
            body = replace(body, size=sum(block.length for block in blocks))
        elif wrong == "offset":
            blocks[-1] = replace(blocks[-1], offset=blocks[-1].offset + 1)
        elif wrong == "index":
            blocks[0] = replace(blocks[0], bcs_id=-1)
        elif wrong == "session":
            body = replace(body, session_id=body.session_id + 256)
        elif wrong == "bucket":
            body = replace(body, bucket=self.place(data)[1])
        elif wrong == "twice":
            body = replace(body, blocks=[*blocks, replace(blocks[0], offset=size)], size=size + blocks[0].length)
        elif wrong == "no blocks":
            body = replace(body, blocks=[])
        self.do(body, caller)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), wrong=st.sampled_from(["", "", "", "session", "bucket", "no reservation"]))
    def release_blocks(self, data, wrong):
        volume, bucket, session = data.draw(st.sampled_from(self.reserved))
        body = m.ReleaseBlocks(volume=volume, bucket=bucket, session_id=session.session_id)
        if wrong == "session":
            body = replace(body, session_id=body.session_id + 256)
        elif wrong == "bucket":
            body = replace(body, bucket=self.place(data)[1])
        elif wrong == "no reservation" and self.opened:
            body = replace(body, session_id=data.draw(st.sampled_from(self.opened))[3].session_id)
        self.do(body)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), body=st.sampled_from(["AllocateBlock", "CommitKey"]))
    def open_a_reservation(self, data, body):
        """No request about open keys reaches it."""
        volume, bucket, session = data.draw(st.sampled_from(self.reserved))
        more = {"size": 1, "blocks": [replace(session.blocks[0], length=1)]} if body == "CommitKey" else {}
        self.do(getattr(m, body)(volume=volume, bucket=bucket, key="", session_id=session.session_id, **more))

    @rule(data=st.data(), key=KEYS)
    def delete_key(self, data, key):
        volume, bucket = self.place(data)
        self.do(m.DeleteKey(volume=volume, bucket=bucket, key=key))

    @rule(data=st.data(), from_key=KEYS, to_key=KEYS)
    def rename_key(self, data, from_key, to_key):
        volume, bucket = self.place(data)
        self.do(m.RenameKey(volume=volume, bucket=bucket, from_key=from_key, to_key=to_key))

    @rule(
        partition=st.sampled_from([0, 1, 2, -1]),
        names=st.lists(st.sampled_from(["dn1", "dn2", "dn3"]), max_size=3),
        generation=GENERATIONS,
    )
    def create_pipeline(self, partition, names, generation):
        members = [Member(datanode=name, address="a:1", http_address="a:2", rack="/r") for name in names]
        self.do(m.CreatePipeline(partition=partition, members=members, generation=generation))

    @rule(partition=st.sampled_from([0, 1, 2, 256]), generation=GENERATIONS)
    def retire_pipeline(self, partition, generation):
        self.do(m.RetirePipeline(partition=partition, reason="a test", generation=generation))

    @rule(
        name=st.sampled_from(["dn1", "dn2"]),
        state=st.sampled_from([*DATANODE_STATES, "GONE"]),
        named=st.sampled_from(["", "", "present", "passed"]),
    )
    def set_datanode_state(self, name, state, named):
        since_ms = self.model.changed_at_ms.get(name, 0)
        changed_at_ms = {"": 0, "present": since_ms, "passed": since_ms + 1}[named]
        self.do(m.SetDatanodeState(datanode=name, state=state, changed_at_ms=changed_at_ms))

    @rule(name=st.sampled_from(["dn1", "dn1", "dn2", ""]))
    def remove_datanode(self, name):
        self.do(m.RemoveDatanode(datanode=name))

    @rule(name=st.sampled_from(["dn1", "dn2"]))
    def decommission_and_remove(self, name):
        for state in ("DECOMMISSIONING", "DECOMMISSIONED"):
            self.do(m.SetDatanodeState(datanode=name, state=state))
        self.do(m.RemoveDatanode(datanode=name))

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

    @rule(data=st.data(), name=SNAPSHOTS | st.sampled_from(["", "", "s"]), caller=CALLERS)
    def create_snapshot(self, data, name, caller):
        volume, bucket = self.place(data)
        self.do(m.CreateSnapshot(volume=volume, bucket=bucket, snapshot=name), caller)

    @rule(data=st.data(), name=SNAPSHOTS)
    def delete_snapshot(self, data, name):
        volume, bucket = self.place(data)
        self.do(m.DeleteSnapshot(volume=volume, bucket=bucket, snapshot=name))

    @rule(data=st.data(), name=SNAPSHOTS, to=SNAPSHOTS)
    def rename_snapshot(self, data, name, to):
        volume, bucket = self.place(data)
        self.do(m.RenameSnapshot(volume=volume, bucket=bucket, snapshot=name, to=to))

    @rule(data=st.data(), name=SNAPSHOTS, properties=PROPERTIES)
    def set_snapshot(self, data, name, properties):
        volume, bucket = self.place(data)
        self.do(m.SetSnapshotProperty(volume=volume, bucket=bucket, snapshot=name, properties=properties))

    @rule(data=st.data(), more=st.sampled_from([[], [], [b"/vol1/bucket1/#1"], [b"/vol1/bucket1/snap1"]]))
    def purge_snapshots(self, data, more):
        there = sorted(key for key in self.world.tables.tables[SNAPSHOT_TABLE] if b"/#" in key)
        rows = data.draw(st.lists(st.sampled_from(there), unique=True, max_size=3)) if there else []
        self.do(m.PurgeSnapshots(shard=0, rows=rows + more))

    # ---- what must be equal

    @invariant()
    def visible_state(self):
        self.both.assert_visible_state()

    @invariant()
    def snapshots(self):
        self.both.assert_snapshots()

    @invariant()
    def pipelines_and_datanodes(self):
        self.both.assert_pipelines_and_datanodes()

    @invariant()
    def quotas_hold(self):
        self.both.assert_quotas_hold()

    @invariant()
    def nothing_is_left_behind(self):
        self.both.assert_nothing_is_left_behind()

    def teardown(self):
        self.both.assert_every_row_is_encoded_one_way()


TestExecution = Execution.TestCase
TestExecution.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
