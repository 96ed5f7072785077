"""Who may do what: the rule for every request and every read (decision 0072). Pure.

Rules:

1. Without a standing nobody has checked who calls (``auth = none``, or a member's own request): everything is allowed.
2. Administrators may do everything. The owner of a volume may do everything in it; the owner of a bucket likewise.
3. Everybody else needs a right on the object, and a right on what it is in: READ on the volume; for a key also the
   right of IN_BUCKET on its bucket, and on the longest prefix of its name that has a list. The owner of a key has all
   rights on the key itself.
4. A request type that is not in RULES is for administrators. So what is new is denied until somebody says who may.

A parent that does not exist is told as such. The handlers tell what else is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from om_processors.errors import OMError
from om_processors.namespace import prefixes, tables
from om_processors.namespace.context import ReadView, RequestPreparation
from om_processors.namespace.names import shown
from schemas.access.acl import (
    BUCKET,
    CREATE,
    DELETE,
    KEY,
    LIST,
    READ,
    READ_ACL,
    VOLUME,
    WRITE,
    WRITE_ACL,
    allows,
    right_names,
)
from schemas.records.identity import TOKEN_REQUESTS, ChangeAcl
from schemas.records.messages import (
    SNAPSHOT_REQUESTS,
    AllocateBlock,
    CommitKey,
    CommitReserved,
    CreateBucket,
    CreateKey,
    DeleteBucket,
    DeleteKey,
    DeleteVolume,
    PutKey,
    ReleaseBlocks,
    RenameKey,
    ReserveBlocks,
    SetBucketProperty,
    SetVolumeProperty,
)
from schemas.records.record import record
from schemas.records.rows import NO_KEY, BucketInfo, KeyInfo, VolumeInfo
from schemas.result_codes import PERMISSION_DENIED

IN_BUCKET: Mapping[int, int] = {
    CREATE: CREATE, WRITE: WRITE, DELETE: WRITE, READ: READ, READ_ACL: READ, WRITE_ACL: READ,
}  # fmt: skip
"""The right on a bucket, and on a prefix, that goes with a right on a key."""


@record
class Caller:
    """Who asks, as a signature has proved it."""

    user: str
    administrator: bool
    groups: Collection[str]


class AclAuthorizer:
    """The authorizer of requests."""

    def authorize(self, prepared: RequestPreparation, view: ReadView) -> None:
        """Raise OMError PERMISSION_DENIED if the caller may not; VOLUME_ or BUCKET_NOT_FOUND without a parent."""
        standing = prepared.standing
        if standing is None or standing.administrator:
            return
        caller = Caller(user=prepared.caller, administrator=False, groups=standing.groups)
        rule = RULES.get(type(prepared.body))
        if rule is None:
            raise _denied(caller, f"{type(prepared.body).__name__} is for administrators")
        rule(view, caller, prepared.body)


ACCESS_RULES = AclAuthorizer()


def _denied(caller: Caller, why: str) -> OMError:
    return OMError(PERMISSION_DENIED, f"user {caller.user}: {why}")


def _lacking(caller: Caller, right: int, where: str) -> OMError:
    return _denied(caller, f"no right {right_names(right)} on {where}")


def _has(caller: Caller, info: VolumeInfo | BucketInfo | KeyInfo, right: int) -> bool:
    return info.owner == caller.user or (bool(info.acls) and allows(info.acls, caller.user, caller.groups, right))


# ---- what a caller may do with a volume, a bucket, a key


def may_see_volume(caller: Caller, info: VolumeInfo) -> bool:
    """Say whether a listing of all volumes names this one."""
    return caller.administrator or _has(caller, info, READ) or _has(caller, info, LIST)


def require_on_volume(view: ReadView, caller: Caller, volume: str, right: int) -> None:
    """Raise OMError unless the caller has a right on a volume."""
    info = tables.require_volume(view, volume)
    if not (caller.administrator or _has(caller, info, right)):
        raise _lacking(caller, right, f"volume /{volume}")


def require_on_bucket(view: ReadView, caller: Caller, volume: str, bucket: str, right: int) -> None:
    """Raise OMError unless the caller has a right on a bucket."""
    info = tables.require_bucket(view, volume, bucket)
    if not (_owns(view, caller, info) or _has(caller, info, right)):
        raise _lacking(caller, right, f"bucket /{volume}/{bucket}")


def require_ownership(view: ReadView, caller: Caller, volume: str, bucket: str) -> None:
    """Raise OMError unless the caller owns a bucket or its volume."""
    info = tables.require_bucket(view, volume, bucket)
    if not _owns(view, caller, info):
        raise _denied(caller, f"that is for the owners of bucket /{volume}/{bucket}, of its volume, and administrators")


def require_on_key(
    view: ReadView, caller: Caller, volume: str, bucket: str, key: str, right: int, rows: ReadView | None = None,
    known: prefixes.BucketPrefixes | None = None,
) -> None:  # fmt: skip
    """Raise OMError unless the caller has a right on a key that exists; for CREATE, on one that does not.

    ``rows`` has the rows of keys and prefixes if they are not in ``view``: those of a snapshot. What a missing key is
    asked for is judged as if it had no list. ``known``: the bucket's prefixes, if they have been read.
    """
    info = tables.require_bucket(view, volume, bucket)
    if _owns(view, caller, info):
        return
    there = view if rows is None else rows
    needed = IN_BUCKET[right]
    if not _has(caller, info, needed):
        raise _lacking(caller, needed, f"bucket /{volume}/{bucket}")
    # A snapshot has the prefixes of its own time, which its own row of the bucket counts.
    of = info if rows is None else tables.require_bucket(rows, volume, bucket)
    nearest = next(iter(prefixes.prefixes_of(there, of, key)), None) if known is None else known.nearest(key)
    if nearest is not None and not allows(nearest.acls, caller.user, caller.groups, needed):
        raise _lacking(caller, needed, f"prefix /{volume}/{bucket}/{shown(nearest.prefix)}")
    if right == CREATE:
        return
    found = tables.get_key(there, tables.key_key(volume, bucket, key))
    if found is not None and not _has(caller, found, right):
        raise _lacking(caller, right, f"key /{volume}/{bucket}/{shown(key)}")


def _owns(view: ReadView, caller: Caller, info: BucketInfo) -> bool:
    """Say whether everything in a bucket is the caller's; raises OMError if it may not even read the volume."""
    if caller.administrator or info.owner == caller.user:
        return True
    volume = tables.require_volume(view, info.volume)
    if volume.owner == caller.user:
        return True
    if not _has(caller, volume, READ):
        raise _lacking(caller, READ, f"volume /{info.volume}")
    return False


def require_on_acl(view: ReadView, caller: Caller, place: ChangeAcl | AclPlace, right: int) -> None:
    """Raise OMError unless the caller may read or change an access control list."""
    if place.kind == VOLUME:
        require_on_volume(view, caller, place.volume, right)
    elif place.kind == BUCKET:
        require_on_bucket(view, caller, place.volume, place.bucket, right)
    elif place.kind == KEY:
        require_on_key(view, caller, place.volume, place.bucket, place.name, right)
    else:
        _require_on_prefix(view, caller, place, right)


@record
class AclPlace:
    """What an access control list is of, as in ChangeAcl."""

    kind: str
    volume: str
    bucket: str
    name: str


def _require_on_prefix(view: ReadView, caller: Caller, place: ChangeAcl | AclPlace, right: int) -> None:
    info = tables.require_bucket(view, place.volume, place.bucket)
    if _owns(view, caller, info) or _has(caller, info, right):
        return
    found = prefixes.get_prefix(view, place.volume, place.bucket, place.name)
    if found is None or not allows(found.acls, caller.user, caller.groups, right):
        raise _lacking(caller, right, f"prefix /{place.volume}/{place.bucket}/{shown(place.name)}")


# ---- requests


def _create_bucket(view: ReadView, caller: Caller, body: CreateBucket) -> None:
    require_on_volume(view, caller, body.volume, CREATE)
    if body.owner not in ("", caller.user) and tables.require_volume(view, body.volume).owner != caller.user:
        raise _denied(caller, f"a bucket of another owner is for the owner of volume /{body.volume}")


def _changes_quotas(body: SetVolumeProperty | SetBucketProperty) -> bool:
    return body.quota_in_bytes is not None or body.quota_in_namespace is not None


def _set_volume(view: ReadView, caller: Caller, body: SetVolumeProperty) -> None:
    right = (WRITE if _changes_quotas(body) else 0) | (0 if body.owner is None else WRITE_ACL)
    require_on_volume(view, caller, body.volume, right)


def _set_bucket(view: ReadView, caller: Caller, body: SetBucketProperty) -> None:
    """As in Ozone: a user who may write keys is held by the quotas, and does not lift them."""
    if _changes_quotas(body):
        require_ownership(view, caller, body.volume, body.bucket)
    else:
        require_on_bucket(view, caller, body.volume, body.bucket, 0 if body.owner is None else WRITE_ACL)


def _write_key(view: ReadView, caller: Caller, body: CreateKey | PutKey | CommitKey | CommitReserved) -> None:
    row = tables.key_key(body.volume, body.bucket, body.key)
    right = CREATE if tables.get_key(view, row) is None else WRITE
    require_on_key(view, caller, body.volume, body.bucket, body.key, right)


def require_on_session(
    view: ReadView, caller: Caller, volume: str, bucket: str, key: str, session_id: int
) -> None:  # fmt: skip
    """Refuse another user's session of an open key, unless the caller owns the bucket; raises OMError."""
    info = tables.require_bucket(view, volume, bucket)
    opened = tables.get_open_key(view, tables.open_key_key(volume, bucket, key, session_id))
    if opened is not None and opened.owner != caller.user and not _owns(view, caller, info):
        what = f"session {session_id} of key {shown(key)}" if key else f"reservation {session_id}"
        raise _denied(caller, f"{what} is another user's")


def _session(view: ReadView, caller: Caller, body: AllocateBlock | CommitKey) -> None:
    require_on_session(view, caller, body.volume, body.bucket, body.key, body.session_id)


def _commit(view: ReadView, caller: Caller, body: CommitKey) -> None:
    _session(view, caller, body)
    _write_key(view, caller, body)


def _reservation(view: ReadView, caller: Caller, body: CommitReserved | ReleaseBlocks) -> None:
    require_on_session(view, caller, body.volume, body.bucket, NO_KEY, body.session_id)


def _commit_reserved(view: ReadView, caller: Caller, body: CommitReserved) -> None:
    _reservation(view, caller, body)
    _write_key(view, caller, body)


def _rename(view: ReadView, caller: Caller, body: RenameKey) -> None:
    require_on_key(view, caller, body.volume, body.bucket, body.from_key, DELETE)
    require_on_key(view, caller, body.volume, body.bucket, body.to_key, CREATE)


Rule = Callable[[ReadView, Caller, Any], None]

RULES: Mapping[type, Rule] = {
    SetVolumeProperty: _set_volume,
    DeleteVolume: lambda view, caller, body: require_on_volume(view, caller, body.volume, DELETE),
    CreateBucket: _create_bucket,
    SetBucketProperty: _set_bucket,
    DeleteBucket: lambda view, caller, body: require_on_bucket(view, caller, body.volume, body.bucket, DELETE),
    CreateKey: _write_key,
    PutKey: _write_key,
    AllocateBlock: _session,
    CommitKey: _commit,
    ReserveBlocks: lambda view, caller, body: require_on_bucket(view, caller, body.volume, body.bucket, CREATE),
    CommitReserved: _commit_reserved,
    ReleaseBlocks: _reservation,
    DeleteKey: lambda view, caller, body: require_on_key(view, caller, body.volume, body.bucket, body.key, DELETE),
    RenameKey: _rename,
    ChangeAcl: lambda view, caller, body: require_on_acl(view, caller, body, WRITE_ACL),
    **{body: lambda view, caller, body: require_ownership(view, caller, body.volume, body.bucket)
       for body in SNAPSHOT_REQUESTS},
    # Their handlers know the tokens, and say whose they are.
    **{body: lambda _view, _caller, _body: None for body in TOKEN_REQUESTS},
}  # fmt: skip
"""What each request needs, of callers who are no administrators."""
