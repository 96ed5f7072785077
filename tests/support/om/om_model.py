"""What an Object Manager should do, said a second time: plain dicts of objects, usage counted afresh from what is there.

Nothing of ``om_processors`` is used, so that a property test can hold the one against the other. The order of refusals is
part of it: the request itself (names, numbers), parents, the object, quotas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from schemas.records import messages as m

INLINE = 16 * 1024
"""Most bytes of an inline key."""
SMALL = 1024 * 1024
"""Most bytes of a reserved block."""
RESERVED = 64
"""Most blocks of a reservation, and of a key from one."""
BLOCK = 100
"""Size of a block in the tests that execute requests without a service."""
PREALLOCATED = 64
MAX = (1 << 63) - 1


class Refusal(Exception):
    """The status that the model expects."""


@dataclass
class Key:
    size: int
    owner: str
    blocks: int
    created_ms: int
    modified_ms: int
    born: int
    data: bytes = b""
    """The bytes of an inline key."""


@dataclass
class Session:
    name: str
    key: Key
    bucket_born: int
    lengths: list[int]
    """Of its blocks, those apart that came by AllocateBlock: they follow ``first``."""
    first: int
    named: set[tuple[int, int]] = field(default_factory=set)
    """Its blocks' containers and ids, as it was answered; asked for only where blocks are on datanodes."""
    left: dict[int, int] = field(default_factory=dict)
    """Of a reservation, which has no name: the lengths of the blocks that no key has taken, by their ids."""

    def used_by(self, size: int) -> int:
        """Return how many blocks hold the first ``size`` bytes."""
        return next(count for count in range(len(self.lengths) + 1) if sum(self.lengths[:count]) >= size)


@dataclass
class Snapshot:
    name: str
    index: int
    made_ms: int
    creator: str
    size: int
    keys: dict[int, int]
    """Blocks of its keys, by the index at which each was born: what it must be able to read."""
    properties: dict[str, str] = field(default_factory=dict)
    deleted_ms: int = 0


@dataclass
class Retired:
    """A row of deletedTable."""

    bucket: tuple[str, str]
    born: int
    at: int
    committed: bool
    """Whether it was a key that could be read: not an expired session, nor blocks that a commit has left over."""
    at_ms: int | None
    """When it was put there, if the row says so."""


@dataclass
class Bucket:
    owner: str
    bytes_quota: int
    keys_quota: int
    born: int
    keys: dict[str, Key] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)

    def used(self) -> int:
        return sum(key.size for key in self.keys.values())


@dataclass
class Volume:
    owner: str
    bytes_quota: int
    buckets_quota: int
    buckets: dict[str, Bucket] = field(default_factory=dict)

    def allotted(self) -> int:
        return sum(bucket.bytes_quota for bucket in self.buckets.values() if bucket.bytes_quota > 0)


def refuse_unless(condition: bool, status: str) -> None:
    if not condition:
        raise Refusal(status)


def legal(name: str) -> bool:
    label = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    return (
        3 <= len(name) <= 63 and bool(re.fullmatch(rf"{label}(\.{label})*", name)) and not re.fullmatch(r"[\d.]+", name)
    )


class Model:
    """``do(body, caller, index, now_ms)`` changes the model or raises Refusal; it returns the number of blocks handed out. Of shard 0."""

    def __init__(self, block_bytes: int = BLOCK, *, on_datanodes: bool = False) -> None:
        """``on_datanodes``: blocks are on datanodes, so a commit of bytes names the blocks that it has written."""
        self.block_bytes = block_bytes
        self.on_datanodes = on_datanodes
        self.volumes: dict[str, Volume] = {}
        self.sessions: dict[tuple[str, str, int], Session] = {}
        self.deleted: dict[bytes, int] = {}
        """Rows of deletedTable, by their key: how many blocks each leaves to be deleted."""
        self.retired: dict[bytes, Retired] = {}
        """The same rows: what they were."""
        self.level = 12
        """What the shard may do: pipelines and datanodes from level 3 on, open keys expire from level 4 on, a quota bounds what is allocated from
        level 5 on, pipelines are opened again from level 6 on, buckets have snapshots from level 7 on, keys are inline from level 8
        on, blocks are reserved from level 10 on, and rows of deletedTable say when they were put there, and datanodes in service have no
        row, from level 12 on."""
        self.now_ms = 0
        self.pipelines: dict[int, tuple[list[str], str, int]] = {}
        self.datanodes: dict[str, str] = {}
        self.changed_at_ms: dict[str, int] = {}
        """When the state of each of these began."""
        self.gone: frozenset[str] = frozenset()
        """The datanodes that every leader takes to be switched off."""

    def do(self, body: m.RequestBody, caller: str, index: int, now_ms: int) -> int:
        refuse_unless(not hasattr(body, "volume") or legal(body.volume), "INVALID_VOLUME_NAME")
        if hasattr(body, "bucket"):
            refuse_unless(legal(body.bucket), "INVALID_BUCKET_NAME")
        step = getattr(self, type(body).__name__)
        self.now_ms = now_ms
        return step(body, caller, index, now_ms) or 0

    # ---- parents

    def volume(self, body) -> Volume:
        refuse_unless(body.volume in self.volumes, "VOLUME_NOT_FOUND")
        return self.volumes[body.volume]

    def bucket(self, body) -> Bucket:
        buckets = self.volume(body).buckets
        refuse_unless(body.bucket in buckets, "BUCKET_NOT_FOUND")
        return buckets[body.bucket]

    def session(self, body) -> Session:
        """Return an open key; a request without a key's name is about a reservation."""
        bucket, name = self.bucket(body), getattr(body, "key", "")
        if isinstance(body, m.CommitReserved):
            name = ""
        session = self.sessions.get((body.volume, body.bucket, body.session_id))
        found = session is not None and session.name == name and session.bucket_born == bucket.born
        refuse_unless(found, "KEY_NOT_FOUND")
        assert session is not None
        return session

    def retire(self, body, born: int, blocks: int, index: int, *, committed: bool = True) -> None:
        """Leave blocks of the object that was born at an index."""
        self.leave((body.volume, body.bucket), body.key, born, blocks, index, committed=committed)

    def leave(self, bucket: tuple[str, str], key: str, born: int, blocks: int, index: int, *, committed: bool) -> None:
        if blocks:
            row = f"/{bucket[0]}/{bucket[1]}/{key}/{born << 8}".encode()
            self.deleted[row] = blocks
            self.retired[row] = Retired(bucket, born, index, committed, self.now_ms if self.level >= 12 else None)

    def deleted_rows(self) -> dict[bytes, tuple[int, int | None]]:
        """Return the blocks of each row of deletedTable, and when it was put there."""
        return {row: (blocks, self.retired[row].at_ms) for row, blocks in self.deleted.items()}

    # ---- snapshots

    def snapshots_of(self, bucket: tuple[str, str]) -> list[Snapshot]:
        volume = self.volumes.get(bucket[0])
        found = None if volume is None else volume.buckets.get(bucket[1])
        return [] if found is None else found.snapshots

    def is_needed(self, row: bytes) -> bool:
        """Whether a snapshot was made after a version was opened, and before it was retired."""
        it = self.retired[row]
        return it.committed and any(it.born < one.index <= it.at for one in self.snapshots_of(it.bucket))

    def snapshot(self, body) -> tuple[Bucket, Snapshot]:
        bucket = self.bucket(body)
        found = [one for one in bucket.snapshots if one.name == body.snapshot and not one.deleted_ms]
        refuse_unless(bool(found), "FILE_NOT_FOUND")
        return bucket, found[0]

    @staticmethod
    def has(bucket: Bucket, name: str) -> bool:
        return any(one.name == name and not one.deleted_ms for one in bucket.snapshots)

    def snapshot_rows(self) -> dict[bytes, Snapshot]:
        """Return what snapshotTable holds."""
        return {
            f"/{volume}/{bucket}/{f'#{one.index << 8}' if one.deleted_ms else one.name}".encode(): one
            for volume, its in self.volumes.items()
            for bucket, here in its.buckets.items()
            for one in here.snapshots
        }

    def lost_versions(self, there: set[int]) -> list[tuple[str, int]]:
        """Return what snapshots can read no more, by their names: versions that were born at an index which is not ``there``."""
        return [
            (one.name, born)
            for one in self.snapshot_rows().values()
            for born, blocks in one.keys.items()
            if blocks and born not in there
        ]

    def CreateSnapshot(self, body: m.CreateSnapshot, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(not body.snapshot or legal(body.snapshot), "INVALID_SNAPSHOT_ERROR")
        self.needs(7)
        bucket = self.bucket(body)
        refuse_unless(not self.has(bucket, body.snapshot), "FILE_ALREADY_EXISTS")
        name = body.snapshot
        if not name:
            stamp = f"{datetime.fromtimestamp(now_ms // 1000, UTC):s%Y%m%d-%H%M%S}.{now_ms % 1000:03}"
            name = next(one for one in (stamp, *(f"{stamp}-{n}" for n in range(2, 300))) if not self.has(bucket, one))
        keys = {key.born: key.blocks for key in bucket.keys.values()}
        bucket.snapshots.append(Snapshot(name, index, now_ms, caller, bucket.used(), keys))

    def DeleteSnapshot(self, body: m.DeleteSnapshot, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(legal(body.snapshot), "INVALID_SNAPSHOT_ERROR")
        self.needs(7)
        self.snapshot(body)[1].deleted_ms = now_ms

    def RenameSnapshot(self, body: m.RenameSnapshot, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(legal(body.snapshot) and legal(body.to), "INVALID_SNAPSHOT_ERROR")
        self.needs(7)
        bucket, found = self.snapshot(body)
        refuse_unless(not self.has(bucket, body.to), "FILE_ALREADY_EXISTS")
        found.name = body.to

    def SetSnapshotProperty(self, body: m.SetSnapshotProperty, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(legal(body.snapshot), "INVALID_SNAPSHOT_ERROR")
        refuse_unless(bool(body.properties) and "" not in body.properties, "INVALID_REQUEST")
        self.needs(7)
        found = self.snapshot(body)[1]
        found.properties = {name: value for name, value in {**found.properties, **body.properties}.items() if value}

    def PurgeSnapshots(self, body: m.PurgeSnapshots, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(1 <= len(body.rows) == len(set(body.rows)), "INVALID_REQUEST")
        refuse_unless(all(b"/#" in row for row in body.rows), "INVALID_REQUEST")
        refuse_unless(body.shard == 0, "WRONG_SHARD")
        self.needs(7)
        gone = [self.snapshot_rows().get(row) for row in body.rows]
        for volume in self.volumes.values():
            for bucket in volume.buckets.values():
                bucket.snapshots = [one for one in bucket.snapshots if one not in gone]

    # ---- datanodes

    def needs(self, level: int) -> None:
        refuse_unless(self.level >= level, "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION")

    def CreatePipeline(self, body: m.CreatePipeline, caller: str, index: int, now_ms: int) -> None:
        names = [member.datanode for member in body.members]
        refuse_unless(0 <= body.partition < 256 and len(names) == len(set(names)) >= 1, "INVALID_REQUEST")
        refuse_unless(all(names), "INVALID_REQUEST")
        self.needs(12 if body.generation else 3)
        generation = 1
        if body.partition in self.pipelines:
            known, state, before = self.pipelines[body.partition]
            again = state == "CLOSED" and set(known) == set(names) and self.level >= 6
            refuse_unless(again, "PIPELINE_ALREADY_EXISTS")
            names, generation = known, before + 1
        else:
            refuse_unless(self.level < 6 or set(range(body.partition)) <= self.pipelines.keys(), "INVALID_REQUEST")
        refuse_unless(body.generation in (0, generation), "INVALID_REQUEST")
        away = {name for name, state in self.datanodes.items() if state != "IN_SERVICE"}
        refuse_unless(not away & set(names), "INVALID_REQUEST")
        self.pipelines[body.partition] = (names, "OPEN", generation)

    def RetirePipeline(self, body: m.RetirePipeline, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(0 <= body.partition < 256, "INVALID_REQUEST")
        self.needs(12 if body.generation else 3)
        refuse_unless(body.partition in self.pipelines, "PIPELINE_NOT_FOUND")
        names, _, generation = self.pipelines[body.partition]
        refuse_unless(body.generation in (0, generation), "INVALID_REQUEST")
        self.pipelines[body.partition] = (names, "CLOSED", generation)

    def SetDatanodeState(self, body: m.SetDatanodeState, caller: str, index: int, now_ms: int) -> None:
        before = self.datanodes.get(body.datanode, "IN_SERVICE")
        asked_for = {"DECOMMISSIONED": "DECOMMISSIONING", "IN_MAINTENANCE": "ENTERING_MAINTENANCE"}
        known = {"IN_SERVICE", *asked_for, *asked_for.values()}
        refuse_unless(body.state in known and body.datanode != "", "INVALID_REQUEST")
        self.needs(12 if body.changed_at_ms else 3)
        refuse_unless(body.changed_at_ms in (0, self.changed_at_ms.get(body.datanode, 0)), "INVALID_REQUEST")
        if body.state == "IN_SERVICE" and self.level >= 12:
            self._forget_datanode(body.datanode)
        elif body.state != before:
            refuse_unless(asked_for.get(body.state, before) == before, "INVALID_REQUEST")
            self.datanodes[body.datanode], self.changed_at_ms[body.datanode] = body.state, now_ms

    def _forget_datanode(self, name: str) -> None:
        self.datanodes.pop(name, None)
        self.changed_at_ms.pop(name, None)

    def RemoveDatanode(self, body: m.RemoveDatanode, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(body.datanode in self.gone, "INVALID_REQUEST")
        self.needs(12)
        refuse_unless(self.datanodes.get(body.datanode) == "DECOMMISSIONED", "INVALID_REQUEST")
        named = [names for names, state, _ in self.pipelines.values() if state == "OPEN"]
        refuse_unless(all(body.datanode not in names for names in named), "INVALID_REQUEST")
        self._forget_datanode(body.datanode)

    def PurgeBlocks(self, body: m.PurgeBlocks, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(1 <= len(body.rows) == len(set(body.rows)), "INVALID_REQUEST")
        refuse_unless(body.shard == 0, "WRONG_SHARD")
        self.needs(3)
        for row in body.rows:
            if row in self.deleted and not self.is_needed(row):
                del self.deleted[row], self.retired[row]

    # ---- volumes and buckets

    @staticmethod
    def quotas(*values: int | None) -> None:
        for value in values:
            refuse_unless(value is None or value == -1 or value > 0, "INVALID_REQUEST")

    def CreateVolume(self, body: m.CreateVolume, caller: str, index: int, now_ms: int) -> None:
        self.quotas(body.quota_in_bytes, body.quota_in_namespace)
        refuse_unless(body.volume not in self.volumes, "VOLUME_ALREADY_EXISTS")
        self.volumes[body.volume] = Volume(body.owner or caller, body.quota_in_bytes, body.quota_in_namespace)

    def SetVolumeProperty(self, body: m.SetVolumeProperty, caller: str, index: int, now_ms: int) -> None:
        given = (body.owner, body.quota_in_bytes, body.quota_in_namespace)
        refuse_unless(any(value is not None for value in given) and body.owner != "", "INVALID_REQUEST")
        self.quotas(body.quota_in_bytes, body.quota_in_namespace)
        volume = self.volume(body)
        if body.quota_in_bytes is not None and body.quota_in_bytes > 0:
            refuse_unless(all(bucket.bytes_quota > 0 for bucket in volume.buckets.values()), "QUOTA_ERROR")
            refuse_unless(volume.allotted() <= body.quota_in_bytes, "QUOTA_EXCEEDED")
        if body.quota_in_namespace is not None and body.quota_in_namespace > 0:
            refuse_unless(len(volume.buckets) <= body.quota_in_namespace, "QUOTA_EXCEEDED")
        volume.owner = body.owner or volume.owner
        volume.bytes_quota = body.quota_in_bytes or volume.bytes_quota
        volume.buckets_quota = body.quota_in_namespace or volume.buckets_quota

    def DeleteVolume(self, body: m.DeleteVolume, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(not self.volume(body).buckets, "VOLUME_NOT_EMPTY")
        del self.volumes[body.volume]

    def CreateBucket(self, body: m.CreateBucket, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(body.layout == "OBJECT_STORE", "NOT_SUPPORTED_OPERATION")
        self.quotas(body.quota_in_bytes, body.quota_in_namespace)
        volume = self.volume(body)
        refuse_unless(body.bucket not in volume.buckets, "BUCKET_ALREADY_EXISTS")
        if volume.bytes_quota > 0:
            refuse_unless(body.quota_in_bytes > 0, "QUOTA_ERROR")
        if body.quota_in_bytes > 0:
            limit = volume.bytes_quota if volume.bytes_quota > 0 else MAX
            refuse_unless(volume.allotted() + body.quota_in_bytes <= limit, "QUOTA_EXCEEDED")
        if volume.buckets_quota > 0:
            refuse_unless(len(volume.buckets) < volume.buckets_quota, "QUOTA_EXCEEDED")
        volume.buckets[body.bucket] = Bucket(body.owner or caller, body.quota_in_bytes, body.quota_in_namespace, index)

    def SetBucketProperty(self, body: m.SetBucketProperty, caller: str, index: int, now_ms: int) -> None:
        given = (body.owner, body.quota_in_bytes, body.quota_in_namespace)
        refuse_unless(any(value is not None for value in given) and body.owner != "", "INVALID_REQUEST")
        self.quotas(body.quota_in_bytes, body.quota_in_namespace)
        bucket, volume = self.bucket(body), self.volume(body)
        if body.quota_in_bytes == -1:
            refuse_unless(volume.bytes_quota == -1, "QUOTA_ERROR")
        elif body.quota_in_bytes is not None:
            refuse_unless(bucket.used() <= body.quota_in_bytes, "QUOTA_ERROR")
            limit = volume.bytes_quota if volume.bytes_quota > 0 else MAX
            total = volume.allotted() - max(bucket.bytes_quota, 0) + body.quota_in_bytes
            refuse_unless(total <= limit, "QUOTA_EXCEEDED")
        if body.quota_in_namespace is not None and body.quota_in_namespace > 0:
            refuse_unless(len(bucket.keys) <= body.quota_in_namespace, "QUOTA_ERROR")
        bucket.owner = body.owner or bucket.owner
        bucket.bytes_quota = body.quota_in_bytes or bucket.bytes_quota
        bucket.keys_quota = body.quota_in_namespace or bucket.keys_quota

    def DeleteBucket(self, body: m.DeleteBucket, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(not self.bucket(body).keys, "BUCKET_NOT_EMPTY")
        refuse_unless(not self.bucket(body).snapshots, "CONTAINS_SNAPSHOT")
        del self.volumes[body.volume].buckets[body.bucket]

    # ---- keys

    @staticmethod
    def fits(bucket: Bucket, name: str, size: int) -> None:
        replaced = bucket.keys.get(name)
        used = bucket.used() - (replaced.size if replaced else 0) + size
        refuse_unless(bucket.bytes_quota == -1 or used <= bucket.bytes_quota, "QUOTA_EXCEEDED")
        keys = len(bucket.keys) + (replaced is None)
        refuse_unless(bucket.keys_quota == -1 or keys <= bucket.keys_quota, "QUOTA_EXCEEDED")

    def CreateKey(self, body: m.CreateKey, caller: str, index: int, now_ms: int) -> int:
        refuse_unless(body.key != "" and not (body.key + "/").startswith(".snapshot/"), "INVALID_KEY_NAME")
        refuse_unless(body.size >= 0 and body.replication == "RATIS/THREE", "INVALID_REQUEST")
        bucket = self.bucket(body)
        self.fits(bucket, body.key, body.size)
        blocks = min(PREALLOCATED, -(-body.size // self.block_bytes))
        key = Key(body.size, caller, blocks, now_ms, now_ms, index)
        self.sessions[body.volume, body.bucket, index << 8 | 255] = Session(
            body.key, key, bucket.born, [self.block_bytes] * blocks, blocks
        )
        return blocks

    def AllocateBlock(self, body: m.AllocateBlock, caller: str, index: int, now_ms: int) -> int:
        refuse_unless(body.key != "", "INVALID_KEY_NAME")
        session = self.session(body)
        bucket, length = self.bucket(body), self.block_bytes
        self.fits(bucket, body.key, session.key.size)
        if self.level >= 5 and bucket.bytes_quota > 0:
            replaced = bucket.keys.get(body.key)
            others = bucket.used() - (replaced.size if replaced else 0)
            first = sum(session.lengths[: session.first])
            given = min(session.key.size, first) + sum(session.lengths[session.first :])
            room = bucket.bytes_quota - others - given + (length if session.key.size else 0)
            refuse_unless(room > 0, "QUOTA_EXCEEDED")
            length = min(length, room)
        session.lengths.append(length)
        session.key.blocks += 1
        session.key.modified_ms = now_ms
        return 1

    def CommitKey(self, body: m.CommitKey, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(body.key != "", "INVALID_KEY_NAME")
        refuse_unless(body.size >= 0, "INVALID_REQUEST")
        refuse_unless(not self.on_datanodes or not body.size or bool(body.blocks), "INVALID_REQUEST")
        refuse_unless(not self.on_datanodes or all(block.bcs_id for block in body.blocks), "INVALID_REQUEST")
        session, bucket = self.session(body), self.bucket(body)
        if self.on_datanodes:
            named = {(block.container_id, block.local_id) for block in body.blocks}
            refuse_unless(named <= session.named, "INVALID_REQUEST")
        if body.blocks:
            refuse_unless(sum(block.length for block in body.blocks) == body.size, "INVALID_REQUEST")
        refuse_unless(body.size <= sum(session.lengths), "INVALID_REQUEST")
        self.fits(bucket, body.key, body.size)
        blocks = len(body.blocks) or session.used_by(body.size)
        replaced = bucket.keys.get(body.key)
        self.retire(body, index, session.key.blocks - blocks, index, committed=False)
        if replaced:
            self.retire(body, replaced.born, replaced.blocks, index)
        bucket.keys[body.key] = Key(
            body.size,
            replaced.owner if replaced else session.key.owner,
            blocks,
            replaced.created_ms if replaced else session.key.created_ms,
            now_ms,
            session.key.born,
        )
        del self.sessions[body.volume, body.bucket, body.session_id]

    def PutKey(self, body: m.PutKey, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(body.key != "" and not (body.key + "/").startswith(".snapshot/"), "INVALID_KEY_NAME")
        refuse_unless(body.replication == "RATIS/THREE", "INVALID_REQUEST")
        refuse_unless(len(body.data) <= INLINE, "INLINE_TOO_LARGE")
        self.needs(8)
        bucket, size = self.bucket(body), len(body.data)
        self.fits(bucket, body.key, size)
        replaced = bucket.keys.get(body.key)
        owner, created_ms = (replaced.owner, replaced.created_ms) if replaced else (caller, now_ms)
        if replaced:
            self.retire(body, replaced.born, replaced.blocks, index)
        bucket.keys[body.key] = Key(size, owner, 0, created_ms, now_ms, index, body.data)

    # ---- reservations

    def ReserveBlocks(self, body: m.ReserveBlocks, caller: str, index: int, now_ms: int) -> int:
        refuse_unless(1 <= body.count <= RESERVED, "INVALID_REQUEST")
        self.needs(10)
        bucket, length = self.bucket(body), min(self.block_bytes, SMALL)
        within = bucket.used() + body.count * length <= bucket.bytes_quota
        refuse_unless(bucket.bytes_quota == -1 or within, "QUOTA_EXCEEDED")
        self.sessions[body.volume, body.bucket, index << 8 | 255] = Session(
            "", Key(0, caller, body.count, now_ms, now_ms, index), bucket.born, [length] * body.count, body.count,
            left={index << 8 | number: length for number in range(1, body.count + 1)},
        )  # fmt: skip
        return body.count

    def CommitReserved(self, body: m.CommitReserved, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(body.key != "" and not (body.key + "/").startswith(".snapshot/"), "INVALID_KEY_NAME")
        refuse_unless(body.replication == "RATIS/THREE", "INVALID_REQUEST")
        refuse_unless(body.size > 0 and 1 <= len(body.blocks) <= RESERVED, "INVALID_REQUEST")
        refuse_unless(not self.on_datanodes or all(block.bcs_id for block in body.blocks), "INVALID_REQUEST")
        self.needs(10)
        session, bucket = self.session(body), self.bucket(body)
        ends = [sum(block.length for block in body.blocks[:count]) for count in range(len(body.blocks) + 1)]
        named = [block.local_id for block in body.blocks]
        refuse_unless(len(set(named)) == len(named) and set(named) <= session.left.keys(), "INVALID_REQUEST")
        if self.on_datanodes:
            places = {(block.container_id, block.local_id) for block in body.blocks}
            refuse_unless(places <= session.named, "INVALID_REQUEST")
        for block, offset in zip(body.blocks, ends, strict=False):
            fitting = 0 < block.length <= session.left[block.local_id] and block.offset == offset
            refuse_unless(fitting and block.bcs_id >= 0, "INVALID_REQUEST")
        refuse_unless(ends[-1] == body.size, "INVALID_REQUEST")
        self.fits(bucket, body.key, body.size)
        replaced = bucket.keys.get(body.key)
        owner, created_ms = (replaced.owner, replaced.created_ms) if replaced else (caller, now_ms)
        if replaced:
            self.retire(body, replaced.born, replaced.blocks, index)
        bucket.keys[body.key] = Key(body.size, owner, len(named), created_ms, now_ms, index)
        for local_id in named:
            del session.left[local_id]
        session.key.blocks = len(session.left)
        if not session.left:
            del self.sessions[body.volume, body.bucket, body.session_id]

    def ReleaseBlocks(self, body: m.ReleaseBlocks, caller: str, index: int, now_ms: int) -> None:
        self.needs(10)
        key = self.session(body).key
        self.leave((body.volume, body.bucket), "", key.born, key.blocks, index, committed=False)
        del self.sessions[body.volume, body.bucket, body.session_id]

    def open_rows(self) -> dict[bytes, Key]:
        """Return what openKeyTable holds: open keys and reservations."""
        return {
            f"/{volume}/{bucket}/{one.name}/{session_id}".encode(): one.key
            for (volume, bucket, session_id), one in self.sessions.items()
        }

    def inline_rows(self) -> dict[bytes, bytes]:
        """Return what inlineTable holds."""
        keys = (key for its in self.volumes.values() for one in its.buckets.values() for key in one.keys.values())
        return {str(key.born << 8).encode(): key.data for key in keys if key.data}

    def DeleteKey(self, body: m.DeleteKey, caller: str, index: int, now_ms: int) -> None:
        bucket = self.bucket(body)
        refuse_unless(body.key in bucket.keys, "KEY_NOT_FOUND")
        key = bucket.keys.pop(body.key)
        self.retire(body, key.born, key.blocks, index)

    def RenameKey(self, body: m.RenameKey, caller: str, index: int, now_ms: int) -> None:
        bucket = self.bucket(body)
        refuse_unless(body.to_key not in bucket.keys, "KEY_ALREADY_EXISTS")
        refuse_unless(body.from_key in bucket.keys, "KEY_NOT_FOUND")
        bucket.keys[body.to_key] = bucket.keys.pop(body.from_key)
        bucket.keys[body.to_key].modified_ms = now_ms

    def ExpireOpenKeys(self, body: m.ExpireOpenKeys, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(1 <= len(body.rows) == len(set(body.rows)), "INVALID_REQUEST")
        refuse_unless(body.shard == 0, "WRONG_SHARD")
        self.needs(4)
        refuse_unless(body.modified_before_ms <= now_ms, "INVALID_REQUEST")
        for (volume, bucket, session_id), session in list(self.sessions.items()):
            path = f"/{volume}/{bucket}/{session.name}"
            if f"{path}/{session_id}".encode() in body.rows and session.key.modified_ms < body.modified_before_ms:
                key = session.key
                self.leave((volume, bucket), session.name, key.born, key.blocks, index, committed=False)
                del self.sessions[volume, bucket, session_id]
