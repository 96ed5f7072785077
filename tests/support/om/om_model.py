"""What an Object Manager should do, said a second time: plain dicts of objects, usage counted afresh from what is there.

Nothing of ``om_processors`` is used, so that a property test can hold the one against the other. The order of refusals is
part of it: the request itself (names, numbers), parents, the object, quotas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from schemas.records import messages as m

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

    def used_by(self, size: int) -> int:
        """Return how many blocks hold the first ``size`` bytes."""
        return next(count for count in range(len(self.lengths) + 1) if sum(self.lengths[:count]) >= size)


@dataclass
class Bucket:
    owner: str
    bytes_quota: int
    keys_quota: int
    born: int
    keys: dict[str, Key] = field(default_factory=dict)

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
        self.level = 6
        """What the shard may do: pipelines and datanodes from level 3 on, open keys expire from level 4 on, a quota bounds what is allocated from
        level 5 on, pipelines are opened again from level 6 on."""
        self.pipelines: dict[int, tuple[list[str], str, int]] = {}
        self.datanodes: dict[str, str] = {}

    def do(self, body: m.RequestBody, caller: str, index: int, now_ms: int) -> int:
        refuse_unless(not hasattr(body, "volume") or legal(body.volume), "INVALID_VOLUME_NAME")
        if hasattr(body, "bucket"):
            refuse_unless(legal(body.bucket), "INVALID_BUCKET_NAME")
        step = getattr(self, type(body).__name__)
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
        bucket = self.bucket(body)
        session = self.sessions.get((body.volume, body.bucket, body.session_id))
        found = session is not None and session.name == body.key and session.bucket_born == bucket.born
        refuse_unless(found, "KEY_NOT_FOUND")
        assert session is not None
        return session

    def retire(self, body, born: int, blocks: int) -> None:
        """Leave blocks of the object that was born at an index."""
        self.leave(f"/{body.volume}/{body.bucket}/{body.key}", born, blocks)

    def leave(self, path: str, born: int, blocks: int) -> None:
        if blocks:
            self.deleted[f"{path}/{born << 8}".encode()] = blocks

    # ---- datanodes

    def needs(self, level: int) -> None:
        refuse_unless(self.level >= level, "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION")

    def CreatePipeline(self, body: m.CreatePipeline, caller: str, index: int, now_ms: int) -> None:
        names = [member.datanode for member in body.members]
        refuse_unless(0 <= body.partition < 256 and len(names) == len(set(names)) >= 1, "INVALID_REQUEST")
        refuse_unless(all(names), "INVALID_REQUEST")
        self.needs(3)
        generation = 1
        if body.partition in self.pipelines:
            known, state, before = self.pipelines[body.partition]
            again = state == "CLOSED" and set(known) == set(names) and self.level >= 6
            refuse_unless(again, "PIPELINE_ALREADY_EXISTS")
            names, generation = known, before + 1
        else:
            refuse_unless(self.level < 6 or set(range(body.partition)) <= self.pipelines.keys(), "INVALID_REQUEST")
        away = {name for name, state in self.datanodes.items() if state != "IN_SERVICE"}
        refuse_unless(not away & set(names), "INVALID_REQUEST")
        self.pipelines[body.partition] = (names, "OPEN", generation)

    def RetirePipeline(self, body: m.RetirePipeline, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(0 <= body.partition < 256, "INVALID_REQUEST")
        self.needs(3)
        refuse_unless(body.partition in self.pipelines, "PIPELINE_NOT_FOUND")
        names, _, generation = self.pipelines[body.partition]
        self.pipelines[body.partition] = (names, "CLOSED", generation)

    def SetDatanodeState(self, body: m.SetDatanodeState, caller: str, index: int, now_ms: int) -> None:
        before = self.datanodes.get(body.datanode, "IN_SERVICE")
        asked_for = {"DECOMMISSIONED": "DECOMMISSIONING", "IN_MAINTENANCE": "ENTERING_MAINTENANCE"}
        known = {"IN_SERVICE", *asked_for, *asked_for.values()}
        refuse_unless(body.state in known and body.datanode != "", "INVALID_REQUEST")
        self.needs(3)
        if body.state != before:
            refuse_unless(asked_for.get(body.state, before) == before, "INVALID_REQUEST")
            self.datanodes[body.datanode] = body.state

    def PurgeBlocks(self, body: m.PurgeBlocks, caller: str, index: int, now_ms: int) -> None:
        refuse_unless(1 <= len(body.rows) == len(set(body.rows)), "INVALID_REQUEST")
        refuse_unless(body.shard == 0, "WRONG_SHARD")
        self.needs(3)
        for row in body.rows:
            self.deleted.pop(row, None)

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
        self.retire(body, index, session.key.blocks - blocks)
        if replaced:
            self.retire(body, replaced.born, replaced.blocks)
        bucket.keys[body.key] = Key(
            body.size,
            replaced.owner if replaced else session.key.owner,
            blocks,
            replaced.created_ms if replaced else session.key.created_ms,
            now_ms,
            session.key.born,
        )
        del self.sessions[body.volume, body.bucket, body.session_id]

    def DeleteKey(self, body: m.DeleteKey, caller: str, index: int, now_ms: int) -> None:
        bucket = self.bucket(body)
        refuse_unless(body.key in bucket.keys, "KEY_NOT_FOUND")
        key = bucket.keys.pop(body.key)
        self.retire(body, key.born, key.blocks)

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
                self.leave(path, session.key.born, session.key.blocks)
                del self.sessions[volume, bucket, session_id]
