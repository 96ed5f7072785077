"""Who may do what, said a second time: owners and lists as plain sets, and what each request needs of them (decision 0072).

Nothing of ``om_processors`` is used, so that a test can hold the one against the other. A request is judged first, then done: its
status is that of the first thing that is wrong. Administrators are ROOT.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from schemas.records import identity as i
from schemas.records import messages as m
from schemas.records.rows import Acl

READ, WRITE, CREATE, LIST, DELETE, READ_ACL, WRITE_ACL = (1 << bit for bit in range(7))
ROOT = "root"
GROUPS = {"ann": ["red"], "ben": ["red", "blue"], "cyd": []}
"""The users, and their groups."""

Entries = dict[tuple[str, str, str], set[int]]
"""Rights by scope, type and name."""


class Refused(Exception):
    """The status that the model expects."""


def refuse_if(wrong: bool, status: str = "PERMISSION_DENIED") -> None:
    if wrong:
        raise Refused(status)


def bits(rights: int) -> set[int]:
    return {1 << bit for bit in range(7) if rights >> bit & 1}


def properties(body: m.SetVolumeProperty | m.SetBucketProperty) -> list[int]:
    """Return the rights that a change of properties needs."""
    quotas = body.quota_in_bytes is not None or body.quota_in_namespace is not None
    return [*([WRITE] if quotas else []), *([WRITE_ACL] if body.owner is not None else [])]


@dataclass
class Listed:
    """Something with an owner and a list."""

    owner: str
    entries: Entries = field(default_factory=dict)

    def gives(self, who: str, right: int) -> bool:
        return self.owner == who or right in rights_of(self.entries, who)


@dataclass
class ListedBucket(Listed):
    keys: dict[str, Listed] = field(default_factory=dict)
    prefixes: dict[str, Entries] = field(default_factory=dict)


@dataclass
class ListedVolume(Listed):
    buckets: dict[str, ListedBucket] = field(default_factory=dict)


def rights_of(entries: Entries, who: str) -> set[int]:
    mine = [
        ("ACCESS", "USER", who),
        ("ACCESS", "WORLD", ""),
        *(("ACCESS", "GROUP", one) for one in GROUPS.get(who, [])),
    ]
    if entries.get(mine[0]) == set():
        return set()
    return set().union(*(entries.get(one, set()) for one in mine))


def passed_on(entries: Entries, *, further: bool) -> Entries:
    """What something new inherits."""
    found: Entries = {}
    for (scope, kind, name), rights in entries.items():
        if scope == "DEFAULT":
            found["ACCESS", kind, name] = set(rights)
            if further:
                found["DEFAULT", kind, name] = set(rights)
    return found


def change(entries: Entries, how: str, acls: list[Acl]) -> Entries:
    found = {} if how == "SET" else {place: set(rights) for place, rights in entries.items()}
    for acl in acls:
        place = (acl.scope, acl.type, acl.name)
        if how != "REMOVE":
            found[place] = found.get(place, set()) | bits(acl.rights) if acl.rights else set()
        elif place in found:
            found[place] -= bits(acl.rights)
            if not found[place]:
                del found[place]
    return found


class RightsModel:
    """Who may do what, in sets."""

    def __init__(self) -> None:
        self.volumes: dict[str, ListedVolume] = {}
        self.sessions: dict[int, tuple[str, str, str, str]] = {}
        """Whose they are, and of what: a reservation's key has no name."""
        self.left: dict[int, int] = {}
        """How many blocks a reservation has."""
        self.stale: set[int] = set()
        """Sessions of buckets that were deleted: their rows are there, and of no use."""

    # ---- rights

    def volume(self, name: str) -> ListedVolume:
        refuse_if(name not in self.volumes, "VOLUME_NOT_FOUND")
        return self.volumes[name]

    def bucket(self, volume: str, bucket: str) -> ListedBucket:
        refuse_if(bucket not in self.volume(volume).buckets, "BUCKET_NOT_FOUND")
        return self.volumes[volume].buckets[bucket]

    def owns(self, who: str, volume: str, bucket: str) -> bool:
        """Whether everything in a bucket is somebody's; who owns nothing must at least read the volume."""
        owned = who in (ROOT, self.bucket(volume, bucket).owner, self.volumes[volume].owner)
        refuse_if(not owned and not self.volumes[volume].gives(who, READ))
        return owned

    def need_on_volume(self, who: str, volume: str, right: int) -> None:
        refuse_if(not (self.volume(volume).gives(who, right) or who == ROOT))

    def need_on_bucket(self, who: str, volume: str, bucket: str, right: int) -> None:
        refuse_if(not (self.owns(who, volume, bucket) or self.bucket(volume, bucket).gives(who, right)))

    def need_on_key(self, who: str, volume: str, bucket: str, key: str, right: int) -> None:
        there = self.bucket(volume, bucket)
        if self.owns(who, volume, bucket):
            return
        around = {DELETE: WRITE, READ_ACL: READ, WRITE_ACL: READ}.get(right, right)
        refuse_if(not there.gives(who, around))
        nearest = max((one for one in there.prefixes if key.startswith(one)), key=len, default=None)
        refuse_if(nearest is not None and around not in rights_of(there.prefixes[nearest], who))
        refuse_if(right != CREATE and key in there.keys and not there.keys[key].gives(who, right))

    def need_to_write(self, who: str, volume: str, bucket: str, key: str) -> None:
        there = self.bucket(volume, bucket)
        self.need_on_key(who, volume, bucket, key, WRITE if key in there.keys else CREATE)

    # ---- requests

    def do(self, who: str, body: Any, index: int) -> None:
        """Judge and do any request of the namespace; raises Refused."""
        match body:
            case m.CreateVolume():
                self.create_volume(who, body.volume, body.owner)
            case m.SetVolumeProperty():
                self.set_volume(who, body)
            case m.DeleteVolume():
                self.delete_volume(who, body.volume)
            case m.CreateBucket():
                self.create_bucket(who, body.volume, body.bucket, body.owner)
            case m.SetBucketProperty():
                self.set_bucket(who, body)
            case m.DeleteBucket():
                self.delete_bucket(who, body.volume, body.bucket)
            case m.PutKey():
                self.put_key(who, body.volume, body.bucket, body.key)
            case m.CreateKey():
                self.create_key(who, body.volume, body.bucket, body.key, index << 8 | 255)
            case m.AllocateBlock():
                self.need_of_session(who, body, body.key)
            case m.CommitKey():
                self.commit_key(who, body)
            case m.ReserveBlocks():
                self.reserve(who, body, index << 8 | 255)
            case m.CommitReserved():
                self.commit_reserved(who, body)
            case m.ReleaseBlocks():
                self.release(who, body)
            case m.DeleteKey():
                self.delete_key(who, body.volume, body.bucket, body.key)
            case m.RenameKey():
                self.rename_key(who, body.volume, body.bucket, body.from_key, body.to_key)
            case i.ChangeAcl():
                self.change_acl(who, body)
            case m.CreateSnapshot() | m.DeleteSnapshot() | m.RenameSnapshot() | m.SetSnapshotProperty():
                refuse_if(not self.owns(who, body.volume, body.bucket))
            case _:
                refuse_if(who != ROOT)

    def create_volume(self, who: str, volume: str, owner: str) -> None:
        refuse_if(who != ROOT)
        refuse_if(volume in self.volumes, "VOLUME_ALREADY_EXISTS")
        self.volumes[volume] = ListedVolume(owner or who)

    def delete_volume(self, who: str, volume: str) -> None:
        self.need_on_volume(who, volume, DELETE)
        refuse_if(bool(self.volumes[volume].buckets), "VOLUME_NOT_EMPTY")
        del self.volumes[volume]

    def set_volume(self, who: str, body: m.SetVolumeProperty) -> None:
        for right in properties(body):
            self.need_on_volume(who, body.volume, right)
        there = self.volume(body.volume)
        there.owner = body.owner or there.owner

    def create_bucket(self, who: str, volume: str, bucket: str, owner: str) -> None:
        self.need_on_volume(who, volume, CREATE)
        there = self.volumes[volume]
        refuse_if(owner not in ("", who) and who not in (ROOT, there.owner))
        refuse_if(bucket in there.buckets, "BUCKET_ALREADY_EXISTS")
        there.buckets[bucket] = ListedBucket(owner or who, passed_on(there.entries, further=True))

    def set_bucket(self, who: str, body: m.SetBucketProperty) -> None:
        for right in properties(body):
            self.need_on_bucket(who, body.volume, body.bucket, right)
        there = self.bucket(body.volume, body.bucket)
        there.owner = body.owner or there.owner

    def delete_bucket(self, who: str, volume: str, bucket: str) -> None:
        self.need_on_bucket(who, volume, bucket, DELETE)
        refuse_if(bool(self.bucket(volume, bucket).keys), "BUCKET_NOT_EMPTY")
        del self.volumes[volume].buckets[bucket]
        self.stale |= {session for session, found in self.sessions.items() if found[1:3] == (volume, bucket)}

    def put_key(self, who: str, volume: str, bucket: str, key: str) -> None:
        self.need_to_write(who, volume, bucket, key)
        self.write(who, volume, bucket, key)

    def write(self, who: str, volume: str, bucket: str, key: str) -> None:
        there = self.bucket(volume, bucket)
        if key in there.keys:
            return
        above = [one for one in there.prefixes if key.startswith(one) and passed_on(there.prefixes[one], further=False)]
        from_where = there.prefixes[max(above, key=len)] if above else there.entries
        there.keys[key] = Listed(who, passed_on(from_where, further=False))

    def create_key(self, who: str, volume: str, bucket: str, key: str, session: int) -> None:
        self.need_to_write(who, volume, bucket, key)
        self.sessions[session] = (who, volume, bucket, key)

    def need_of_session(
        self, who: str, body: m.CommitKey | m.AllocateBlock | m.CommitReserved | m.ReleaseBlocks, key: str
    ) -> tuple[str, str, str, str] | None:
        """Return the session, which must be the caller's unless the bucket is; None if there is none."""
        self.bucket(body.volume, body.bucket)
        found = self.sessions.get(body.session_id)
        if found is None or found[1:] != (body.volume, body.bucket, key):
            return None
        refuse_if(found[0] != who and not self.owns(who, body.volume, body.bucket))
        return found

    def commit_key(self, who: str, body: m.CommitKey) -> None:
        found = self.need_of_session(who, body, body.key)
        self.need_to_write(who, body.volume, body.bucket, body.key)
        refuse_if(found is None or body.session_id in self.stale, "KEY_NOT_FOUND")
        assert found is not None
        self.write(*found)
        del self.sessions[body.session_id]

    def reserve(self, who: str, body: m.ReserveBlocks, session: int) -> None:
        self.need_on_bucket(who, body.volume, body.bucket, CREATE)
        self.sessions[session] = (who, body.volume, body.bucket, "")
        self.left[session] = body.count

    def commit_reserved(self, who: str, body: m.CommitReserved) -> None:
        """What it names are blocks of the reservation."""
        found = self.need_of_session(who, body, "")
        self.need_to_write(who, body.volume, body.bucket, body.key)
        refuse_if(found is None or body.session_id in self.stale, "KEY_NOT_FOUND")
        self.write(who, body.volume, body.bucket, body.key)
        self.left[body.session_id] -= len(body.blocks)
        if not self.left[body.session_id]:
            del self.sessions[body.session_id]

    def release(self, who: str, body: m.ReleaseBlocks) -> None:
        found = self.need_of_session(who, body, "")
        refuse_if(found is None or body.session_id in self.stale, "KEY_NOT_FOUND")
        del self.sessions[body.session_id]

    def delete_key(self, who: str, volume: str, bucket: str, key: str) -> None:
        self.need_on_key(who, volume, bucket, key, DELETE)
        refuse_if(key not in self.bucket(volume, bucket).keys, "KEY_NOT_FOUND")
        del self.bucket(volume, bucket).keys[key]

    def rename_key(self, who: str, volume: str, bucket: str, key: str, to: str) -> None:
        self.need_on_key(who, volume, bucket, key, DELETE)
        self.need_on_key(who, volume, bucket, to, CREATE)
        keys = self.bucket(volume, bucket).keys
        refuse_if(to in keys, "KEY_ALREADY_EXISTS")
        refuse_if(key not in keys, "KEY_NOT_FOUND")
        keys[to] = keys.pop(key)

    def change_acl(self, who: str, body: i.ChangeAcl) -> None:
        volume, bucket, name = body.volume, body.bucket, body.name
        if body.kind == "VOLUME":
            self.need_on_volume(who, volume, WRITE_ACL)
            there: Listed = self.volumes[volume]
        elif body.kind == "BUCKET":
            self.need_on_bucket(who, volume, bucket, WRITE_ACL)
            there = self.bucket(volume, bucket)
        elif body.kind == "KEY":
            self.need_on_key(who, volume, bucket, name, WRITE_ACL)
            refuse_if(name not in self.bucket(volume, bucket).keys, "KEY_NOT_FOUND")
            there = self.bucket(volume, bucket).keys[name]
        else:
            prefixes = self.bucket(volume, bucket).prefixes
            if not self.owns(who, volume, bucket) and not self.bucket(volume, bucket).gives(who, WRITE_ACL):
                refuse_if(WRITE_ACL not in rights_of(prefixes.get(name, {}), who))
            if after := change(prefixes.get(name, {}), body.change, body.acls):
                prefixes[name] = after
            else:
                prefixes.pop(name, None)
            return
        there.entries = change(there.entries, body.change, body.acls)


def entries_of(acls: list[Acl]) -> Entries:
    """Return a list as the model has it; an entry occurs once."""
    found = {(acl.scope, acl.type, acl.name): bits(acl.rights) for acl in acls}
    assert len(found) == len(acls), "an entry occurs once"
    return found
