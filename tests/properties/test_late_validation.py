"""Late validation and leader-side execution come to the same rows and answers, for every request type, whatever switches between.

Three worlds get the same random steps: one executes on the leader, one logs every request for late validation, one switches request
types back and forth. The steps cover every request type, valid and not, repeated and reused calls, expired ones, changes of the
leader, failed appends, kills of replicas with an unflushed cache, and flushes that are cut in the middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_processors.execution.requests import LATE_REQUEST_TYPES
from om_processors.execution.requests.blocks import reserve
from om_processors.namespace import ids, snapshots, tables
from om_processors.namespace.context import Contexts
from schemas.codecs.codec import decode, decode_as
from schemas.column_families import DELETED_TABLE, KEY_TABLE, OPEN_KEY_TABLE
from schemas.datanode_states import DATANODE_STATES
from schemas.records import identity as i
from schemas.records import messages as m
from schemas.records.datanode import Member
from schemas.records.log import LATE_MODE, LEADER_MODE, REQUEST_MODES, Mode
from schemas.records.messages import Response
from schemas.records.rows import Acl, BlockLocation
from tests.support.om.late_world import NODES, PIPELINES, START_MS, LateNode, LateWorld

VOLUMES = st.sampled_from(["vol1"] * 5 + ["vol2", "NO"])
BUCKETS = st.sampled_from(["bucket1"] * 5 + ["bucket2", "b_"])
KEYS = st.sampled_from(["a", "b", "a/b", ""])
SNAPSHOTS = st.sampled_from(["snap1", "snap1", "snap2", "s"])
QUOTAS = st.none() | st.sampled_from([-1, 100, 500, 1_000_000_000, 0])
COUNTS = st.none() | st.sampled_from([-1, 1, 2, 0])
SIZES = st.sampled_from([0, 1, 99, 400, 300_000_000, -1])
DATA = st.sampled_from([b"", b"x", b"y" * 90, b"z" * 500, b"w" * 16_385])
PARTITIONS = st.sampled_from([0, 0, 1, 2, 256])
DATANODES = st.sampled_from(["dn1", "dn2", ""])
GENERATIONS = st.sampled_from([0, 0, 0, 1, 2, -1])
MEMBERS = st.lists(
    st.builds(lambda name: Member(datanode=name, address=f"{name}:1", http_address=f"{name}:2", rack="/r"), DATANODES),
    max_size=3,
)
BACK = st.integers(0, 12)
"""How many requests ago the session began that a request is for."""

USERS = st.sampled_from(["ann", "ann", "ben", "operator"])
ACLS = st.builds(
    Acl, type=st.sampled_from(["USER", "GROUP", "WORLD"]), name=st.sampled_from(["", "ann", "ben", "g"]),
    rights=st.sampled_from([0, 1, 2, 4, 7, 127, 128]), scope=st.sampled_from(["ACCESS", "ACCESS", "DEFAULT"]),
)  # fmt: skip
CALLERS: st.SearchStrategy[tuple[str, i.ProvenCaller | None]] = st.sampled_from(
    [
        ("ann", None), ("ann", None), ("ben", None),
        *((name, i.ProvenCaller(administrator=False, groups=groups, generation=3, token=token))
          for name in ("ann", "ben") for groups in ([], ["g"]) for token in (0, 9)),
        ("ann", i.ProvenCaller(administrator=True, groups=[], generation=4, token=0)),
    ]
)  # fmt: skip
"""Who asks, and what the leader knows of it: nothing, if nobody signs; a user, or an administrator."""
Step = Callable[[LateWorld], None]
BODIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "CreateVolume": st.fixed_dictionaries(
        {
            "volume": VOLUMES,
            "quota_in_bytes": st.just(-1) | st.just(1000),
            "quota_in_namespace": st.just(-1) | st.just(1),
        }
    ),
    "SetVolumeProperty": st.fixed_dictionaries(
        {
            "volume": VOLUMES,
            "owner": st.none() | st.just("dora"),
            "quota_in_bytes": QUOTAS,
            "quota_in_namespace": COUNTS,
        }
    ),
    "DeleteVolume": st.fixed_dictionaries({"volume": st.sampled_from(["vol2", "vol2", "vol1"])}),
    "CreateBucket": st.fixed_dictionaries(
        {
            "volume": VOLUMES,
            "bucket": BUCKETS,
            "quota_in_bytes": st.just(-1) | st.just(600),
            "quota_in_namespace": st.just(-1),
        }
    ),
    "SetBucketProperty": st.fixed_dictionaries(
        {"volume": VOLUMES, "bucket": BUCKETS, "quota_in_bytes": QUOTAS, "quota_in_namespace": COUNTS}
    ),
    "DeleteBucket": st.fixed_dictionaries({"volume": VOLUMES, "bucket": BUCKETS}),
    "RepairQuota": st.fixed_dictionaries(
        {
            "volume": VOLUMES,
            "bucket": BUCKETS | st.just(""),
            "written": BACK,
            "kept_bytes": st.integers(-5, 5),
            "counted_bytes": st.integers(-1, 5),
            "kept_names": st.integers(0, 3),
            "counted_names": st.integers(0, 3),
        }
    ),
    "CreateKey": st.fixed_dictionaries({"volume": VOLUMES, "bucket": BUCKETS, "key": KEYS, "size": SIZES}),
    "AllocateBlock": st.fixed_dictionaries({"volume": VOLUMES, "bucket": BUCKETS, "key": KEYS, "session": BACK}),
    "CommitKey": st.fixed_dictionaries(
        {"volume": VOLUMES, "bucket": BUCKETS, "key": KEYS, "session": BACK, "size": SIZES}
    ),
    "PutKey": st.fixed_dictionaries({"volume": VOLUMES, "bucket": BUCKETS, "key": KEYS, "data": DATA}),
    "ReserveBlocks": st.fixed_dictionaries(
        {"volume": VOLUMES, "bucket": BUCKETS, "count": st.sampled_from([1, 2, 3, 3, 64, 0, 65])}
    ),
    "CommitReserved": st.fixed_dictionaries(
        {
            "volume": VOLUMES,
            "bucket": BUCKETS,
            "key": KEYS,
            "session": BACK,
            "surplus": st.sampled_from([0, 0, 0, 1]),
            "reserved": st.lists(st.integers(0, 3), max_size=3),
            "length": st.sampled_from([1, 1, 99, 1 << 20, (1 << 20) + 1]),
        }
    ),
    "ReleaseBlocks": st.fixed_dictionaries({"volume": VOLUMES, "bucket": BUCKETS, "session": BACK}),
    "DeleteKey": st.fixed_dictionaries({"volume": VOLUMES, "bucket": BUCKETS, "key": KEYS}),
    "RenameKey": st.fixed_dictionaries({"volume": VOLUMES, "bucket": BUCKETS, "from_key": KEYS, "to_key": KEYS}),
    "CreatePipeline": st.fixed_dictionaries({"partition": PARTITIONS, "members": MEMBERS, "generation": GENERATIONS}),
    "RetirePipeline": st.fixed_dictionaries(
        {"partition": PARTITIONS, "reason": st.just("a test"), "generation": GENERATIONS}
    ),
    "SetDatanodeState": st.fixed_dictionaries(
        {
            "datanode": DATANODES,
            "state": st.sampled_from([*DATANODE_STATES, "GONE"]),
            "changed_at_ms": st.sampled_from([0, 0, 0, START_MS]),
        }
    ),
    "RemoveDatanode": st.fixed_dictionaries({"datanode": DATANODES}),
    "PurgeBlocks": st.fixed_dictionaries(
        {"shard": st.sampled_from([0, 0, 0, 1]), "purged": st.lists(BACK, max_size=4)}
    ),
    "ExpireOpenKeys": st.fixed_dictionaries(
        {
            "shard": st.sampled_from([0, 0, 0, 1]),
            "age_ms": st.sampled_from([0, 0, 1, 1000, -1]),
            "opened": st.lists(BACK, max_size=4),
        }
    ),
    "DeleteSnapshot": st.fixed_dictionaries({"volume": VOLUMES, "bucket": BUCKETS, "snapshot": SNAPSHOTS}),
    "RenameSnapshot": st.fixed_dictionaries(
        {"volume": VOLUMES, "bucket": BUCKETS, "snapshot": SNAPSHOTS, "to": SNAPSHOTS}
    ),
    "SetSnapshotProperty": st.fixed_dictionaries(
        {
            "volume": VOLUMES,
            "bucket": BUCKETS,
            "snapshot": SNAPSHOTS,
            "properties": st.dictionaries(st.sampled_from("ab"), st.sampled_from(["", "1"]), max_size=2),
        }
    ),
    "PurgeSnapshots": st.fixed_dictionaries(
        {"shard": st.sampled_from([0, 0, 0, 1]), "taken": st.lists(BACK, max_size=4, unique=True)}
    ),
}
BODIES |= {
    "CreateUser": st.fixed_dictionaries(
        {"user": USERS, "administrator": st.booleans(), "groups": st.lists(st.sampled_from(["g", "h"]), max_size=2)}
    ),
    "RotateUser": st.fixed_dictionaries({"user": USERS, "overlap_ms": st.sampled_from([0, 1000, -1])}),
    "RemoveUser": st.fixed_dictionaries({"user": USERS}),
    "GetDelegationToken": st.fixed_dictionaries({"renewer": st.sampled_from(["", "ben", "a b"])}),
    "RenewDelegationToken": st.fixed_dictionaries({"owner": USERS, "token": BACK}),
    "CancelDelegationToken": st.fixed_dictionaries({"owner": USERS, "token": BACK}),
    "ChangeAcl": st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["VOLUME", "BUCKET", "KEY", "PREFIX", "ROLE"]), "volume": VOLUMES,
            "place": st.sampled_from(["", "bucket1", "bucket1", "b_"]), "name": st.sampled_from(["", "a", "a/", "b/", "a/b"]),
            "change": st.sampled_from(["ADD", "ADD", "REMOVE", "SET", "TAKE"]), "acls": st.lists(ACLS, max_size=3),
        }
    ),
}  # fmt: skip
"""What is drawn for each request type; ``token`` becomes the number of a token some way back; ``session`` becomes the session of a request some way back, ``purged`` what those left behind,
``written`` an index some way back, ``opened`` the open keys that those made, ``taken`` the snapshots that those made,
``reserved`` some of the blocks that those reserved."""


def test_every_request_type_is_drawn():
    assert set(BODIES) == set(LATE_REQUEST_TYPES)


def send(
    kind: str, fields: dict[str, Any], sent_ms: int, who: tuple[str, i.ProvenCaller | None] = ("ann", None)
) -> Step:
    def step(world: LateWorld) -> None:
        found = dict(fields)
        if kind == "ChangeAcl":
            found["bucket"] = found.pop("place")
        if "token" in found:
            found["number"] = max(0, world.leader.index - found.pop("token"))
        if "reserved" in found:
            index = max(0, world.leader.index - found["session"])
            blocks = written(index, found.pop("reserved"), found.pop("length"))
            found["blocks"], found["size"] = blocks, sum(block.length for block in blocks) + found.pop("surplus")
        if "session" in found:
            found["session_id"] = world.session_at(max(0, world.leader.index - found.pop("session")))
        if "written" in found:
            found["update_id"] = max(0, world.leader.index - found.pop("written"))
        if "purged" in found:
            indexes = [max(0, world.leader.index - back) for back in found.pop("purged")]
            found["rows"] = [
                tables.deleted_key("vol1", "bucket1", key, ids.object_id(0, index))
                for key in ("a", "b", "")
                for index in indexes
            ]
        if "taken" in found:
            indexes = [max(0, world.leader.index - back) for back in found.pop("taken")]
            found["rows"] = [
                snapshots.deleted_snapshot_key("vol1", "bucket1", ids.object_id(0, index)) for index in indexes
            ]
        if "opened" in found:
            sessions = [world.session_at(max(0, world.leader.index - back)) for back in found.pop("opened")]
            found["rows"] = [
                tables.open_key_key("vol1", "bucket1", key, session) for key in ("a", "b", "") for session in sessions
            ]
            now_ms = world.leader.timestamp_ms(world.clock.elapsed_ms())
            found["modified_before_ms"] = now_ms - found.pop("age_ms")
        body = getattr(i if hasattr(i, kind) else m, kind)(**found)
        world.submit(world.request(body, sent_ms=sent_ms, caller=who[0], standing=who[1]))

    return step


def put_key(key: str, size: int) -> Step:
    """Open a key and commit it, so that sequences get somewhere."""

    def step(world: LateWorld) -> None:
        place: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1", "key": key}
        world.submit(world.request(m.CreateKey(**place, size=size)))
        session_id = world.session_at(world.leader.index)
        world.submit(world.request(m.AllocateBlock(**place, session_id=session_id)))
        world.submit(world.request(m.CommitKey(**place, session_id=session_id, size=size)))

    return step


def written(index: int, chosen: list[int], length: int) -> list[BlockLocation]:
    """Return blocks of the reservation of an index, as their writer names them; no answer is needed for that."""
    context = Contexts(shard=0, shards=1, pipelines=PIPELINES).at(0, index)
    blocks = reserve(context, ids.object_id(0, index), 4)
    return [
        replace(blocks[place], offset=number * length, length=length, bcs_id=number)
        for number, place in enumerate(chosen)
    ]


def use_reservation(key: str, count: int, *, released: bool) -> Step:
    """Reserve blocks where there is room for them, write keys with some, rename one; give back the others, or not."""

    def step(world: LateWorld) -> None:
        place: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
        world.submit(world.request(m.SetBucketProperty(**place, quota_in_bytes=1_000_000_000)))
        world.submit(world.request(m.ReserveBlocks(**place, count=count)))
        index = world.leader.index
        session_id = world.session_at(index)
        for name, chosen in ((key, [1, 0]), (key + "/b", [2]), (key + "/d", [1])):  # the last one: of what is taken
            blocks = written(index, chosen, 70)
            body = m.CommitReserved(
                **place, key=name, session_id=session_id, size=70 * len(chosen), blocks=blocks, metadata={"a": "b"}
            )
            world.submit(world.request(body))
        world.submit(world.request(m.RenameKey(**place, from_key=key + "/b", to_key=key + "/c" if released else key)))
        if released:
            world.submit(world.request(m.ReleaseBlocks(**place, session_id=session_id)))
        else:
            world.submit(world.request(m.DeleteBucket(**place)))

    return step


def reuse(back: int) -> Step:
    def step(world: LateWorld) -> None:
        call = 1 + (len(world.sent) - 1 - back) % len(world.sent)
        world.submit(world.request(m.CreateVolume(volume="stolen"), call=call))

    return step


def restart(node: str) -> Step:
    """Kill the follower, whatever is in its cache."""

    def step(world: LateWorld) -> None:
        if node != world.leading:
            world.nodes[node] = world.nodes[node].restart()

    return step


def cut_flush(node: str, records: int) -> Step:
    """A group is written while applying goes on; the process dies before the cache hears of it."""

    def step(world: LateWorld) -> None:
        if node == world.leading:
            return
        found = world.nodes[node]
        late = found.replica.late
        if late.unwritten:
            with ExitStack() as writing:
                group = late.begin_flush(found.replica._local_rows(), writing)
            before = found.replica.read_offset
            late.write(group)
            assert found.replica.read_offset == before
            if records:
                late.end_flush(group)
                found.read(records)
        world.nodes[node] = found.restart()

    return step


def change_leader(node: str, *, killed: bool, failed: bool) -> Step:
    """Another claim, after everything has been appended; the old leader may be killed with its cache."""

    def step(world: LateWorld) -> None:
        if failed:
            place: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
            world.fail(
                m.CreateKey(**place, key="f", size=1), m.DeleteKey(**place, key="a"), m.DeleteKey(**place, key="b")
            )
        else:
            world.settle()
        if killed:
            world.nodes[world.leading] = world.nodes[world.leading].restart()
        world.lead(node)

    return step


SENT_MS = st.sampled_from([0] * 8 + [-299_999, -300_000, 300_000, 400_000])
STEPS = st.one_of(
    *(
        st.builds(send, st.just(kind), fields, SENT_MS, CALLERS)
        for kind, fields in BODIES.items()
    ),
    *(
        st.builds(send, st.just("CreateSnapshot"), st.fixed_dictionaries({"volume": VOLUMES, "bucket": BUCKETS, "snapshot": SNAPSHOTS | st.just("")}), SENT_MS)
        for _ in range(2)
    ),
    st.builds(put_key, st.sampled_from(["a", "b"]), st.sampled_from([1, 99, 400])),
    st.builds(put_key, st.sampled_from(["a", "b"]), st.sampled_from([1, 99, 400])),
    st.builds(use_reservation, st.sampled_from(["a", "b"]), st.sampled_from([2, 3, 4]), released=st.booleans()),
    st.builds(lambda kind, mode: lambda world: world.command(kind, mode), st.sampled_from(LATE_REQUEST_TYPES), st.sampled_from(REQUEST_MODES)),
    st.builds(lambda back: lambda world: world.repeat(-1 - back % len(world.sent)), BACK),
    st.builds(reuse, BACK),
    st.just(LateWorld.settle),
    st.just(LateWorld.seal),
    st.builds(lambda ms: lambda world: world.pass_time(ms), st.sampled_from([1, 1000, 100_000])),
    st.builds(restart, st.sampled_from(NODES)),
    st.builds(cut_flush, st.sampled_from(NODES), st.integers(0, 3)),
    st.builds(lambda node, count: lambda world: node == world.leading or world.nodes[node].read(count), st.sampled_from(NODES), st.integers(1, 4)),
    st.builds(lambda node: lambda world: world.nodes[node].replica.flush_behind(), st.sampled_from(NODES)),
    st.builds(change_leader, st.sampled_from(NODES), killed=st.booleans(), failed=st.booleans()),
)  # fmt: skip


def begun(force: str | None) -> LateWorld:
    world = LateWorld(force)
    world.submit(world.request(m.CreateVolume(volume="vol1")))
    world.submit(world.request(m.CreateBucket(volume="vol1", bucket="bucket1", quota_in_bytes=600)))
    return world


def assert_checkpoints(world: LateWorld) -> None:
    """What replicas keep of one snapshot is the same, in every mode; a kill may have come before a flush, so some may lack it."""
    copies = [
        {name: node.replica.scan(view) for name, view in node.store.checkpoints.items()}
        for node in world.nodes.values()
    ]
    for name in set.intersection(*(set(found) for found in copies)):
        assert all(found[name] == copies[0][name] for found in copies), name
    seen["checkpoints"] += sum(map(len, copies))


def object_ids(world: LateWorld) -> Counter[int]:
    """Ids of everything that a CreateKey, CreateBucket or CreateVolume has made, as the tables hold them."""
    found: Counter[int] = Counter()
    for (cf, _), value in world.nodes["n1"].rows().items():
        if cf in (KEY_TABLE, OPEN_KEY_TABLE, DELETED_TABLE):
            info = tables.decode_key(value)
            found.update({block.local_id for block in info.blocks})
        elif cf in ("volumeTable", "bucketTable"):
            found.update([decode(value).object_id])
    return found


def assert_equal_state(one: LateWorld, other: LateWorld) -> None:
    rows = one.nodes["n1"].rows()
    for world in (one, other):
        for node in world.nodes.values():
            assert node.rows() == rows
            assert node.replica.position.index == one.leader.index
            assert node.replica.evidence is None
    assert one.answers == other.answers


seen: Counter[str] = Counter()


SEQUENCES = st.lists(STEPS, min_size=20, max_size=80)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(steps=SEQUENCES)
def test_modes_come_to_the_same_state_and_answers(steps: list[Step]):
    compare(steps)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(steps=SEQUENCES)
def test_modes_come_to_the_same_state_and_answers_over_fresh_sequences(steps: list[Step]):
    compare(steps)


def compare(steps: list[Step]) -> None:
    worlds = {force: begun(force) for force in (LEADER_MODE, LATE_MODE, None)}
    for step in steps:
        for world in worlds.values():
            step(world)
    for world in worlds.values():
        world.settle()
        for node in world.nodes.values():
            node.read()
    executed, late, mixed = worlds.values()
    assert not executed.late_records()
    assert_equal_state(executed, late)
    assert_equal_state(executed, mixed)
    for world in worlds.values():
        assert_checkpoints(world)
        assert all(count == 1 for count in object_ids(world).values()), "an id was used twice"
        from_the_log = LateNode(log=world.log, name="n3")
        from_the_log.read()
        assert from_the_log.rows() == world.nodes["n1"].rows()
    seen["late requests"] += sum(len(record.requests) for record in late.late_records())
    seen["invalid"] += late.nodes["n1"].replica.late.invalid
    seen["switches"] += sum(isinstance(decode(entry.value), Mode) for entry in mixed.log.entries)
    for number, answer in late.answers.items():
        status = decode_as(Response, answer).status
        seen.update([status, f"{late.sent[number - 1].request_type}: {status}"])


def test_the_sequences_got_somewhere():
    """Guards the property above: what was never reached was never compared."""
    wanted = {"late requests", "invalid", "switches", "OK", "REQUEST_EXPIRED", "CALL_ID_REUSED", "KEY_NOT_FOUND", "QUOTA_EXCEEDED",
              "INVALID_REQUEST", "INVALID_VOLUME_NAME", "VOLUME_NOT_EMPTY", "BUCKET_NOT_EMPTY", "KEY_ALREADY_EXISTS",
              "PIPELINE_NOT_FOUND", "WRONG_SHARD", "ReserveBlocks: OK", "ReserveBlocks: QUOTA_EXCEEDED",
              "CommitReserved: OK", "CommitReserved: KEY_NOT_FOUND", "CommitReserved: INVALID_REQUEST", "ReleaseBlocks: OK",
              "ReleaseBlocks: KEY_NOT_FOUND"}  # fmt: skip
    assert {name for name in wanted if not seen[name]} == set()
