"""Request bodies from checked arguments of the clients' methods: one place for both clients.

Each function has the name of the method whose request it makes. It raises TypeError or InvalidArgument for an argument
that no request can carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from producers.errors import InvalidArgument
from producers.requests import arguments
from producers.requests.arguments import MAX_LONG, number, optional_quota, optional_text, quota, text
from schemas.access.acl import BUCKET, KEY, PREFIX, VOLUME, parse_acl
from schemas.access.credentials import Credentials
from schemas.records.identity import (
    CancelDelegationToken,
    ChangeAcl,
    GetDelegationToken,
    RenewDelegationToken,
)
from schemas.records.log import FORCED
from schemas.records.messages import (
    AllocateBlock,
    CommitKey,
    CreateBucket,
    CreateKey,
    CreateSnapshot,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    DeleteSnapshot,
    DeleteVolume,
    LogDigestBase,
    PutKey,
    RenameKey,
    RenameSnapshot,
    RepairQuota,
    RequestBody,
    Response,
    SetBucketProperty,
    SetSnapshotProperty,
    SetVolumeProperty,
)
from schemas.records.rows import Acl, BlockLocation
from schemas.sharding import MAX_SHARDS

MAX_INT = (1 << 31) - 1
"""Largest value of an Avro ``int``."""
_REQUESTS = frozenset(get_args(RequestBody))


def create_volume(volume: str, *, owner: str, quota_in_bytes: int, quota_in_namespace: int) -> CreateVolume:
    """Return a checked CreateVolume."""
    return CreateVolume(
        volume=text("volume", volume),
        owner=text("owner", owner),
        quota_in_bytes=quota("quota_in_bytes", quota_in_bytes),
        quota_in_namespace=quota("quota_in_namespace", quota_in_namespace),
    )


def set_volume_property(
    volume: str, *, owner: str | None, quota_in_bytes: int | None, quota_in_namespace: int | None
) -> SetVolumeProperty:
    """Return a checked SetVolumeProperty."""
    return SetVolumeProperty(
        volume=text("volume", volume),
        owner=optional_text("owner", owner),
        quota_in_bytes=optional_quota("quota_in_bytes", quota_in_bytes),
        quota_in_namespace=optional_quota("quota_in_namespace", quota_in_namespace),
    )


def delete_volume(volume: str) -> DeleteVolume:
    """Return a checked DeleteVolume."""
    return DeleteVolume(volume=text("volume", volume))


def create_bucket(
    volume: str, bucket: str, *, owner: str, quota_in_bytes: int, quota_in_namespace: int
) -> CreateBucket:
    """Return a checked CreateBucket."""
    return CreateBucket(
        volume=text("volume", volume),
        bucket=text("bucket", bucket),
        owner=text("owner", owner),
        quota_in_bytes=quota("quota_in_bytes", quota_in_bytes),
        quota_in_namespace=quota("quota_in_namespace", quota_in_namespace),
    )


def set_bucket_property(
    volume: str, bucket: str, *, owner: str | None, quota_in_bytes: int | None, quota_in_namespace: int | None
) -> SetBucketProperty:
    """Return a checked SetBucketProperty."""
    return SetBucketProperty(
        volume=text("volume", volume),
        bucket=text("bucket", bucket),
        owner=optional_text("owner", owner),
        quota_in_bytes=optional_quota("quota_in_bytes", quota_in_bytes),
        quota_in_namespace=optional_quota("quota_in_namespace", quota_in_namespace),
    )


def repair_quota(volume: str, bucket: str, count: Mapping[str, int]) -> RepairQuota:
    """Return the request that puts right what a count has found: the fields of ``producers.reads``' UsageView."""
    figures = {name: number(f"count.{name}", figure, -MAX_LONG - 1) for name, figure in count.items()}
    return RepairQuota(volume=text("volume", volume), bucket=text("bucket", bucket), **figures)


def delete_bucket(volume: str, bucket: str) -> DeleteBucket:
    """Return a checked DeleteBucket."""
    return DeleteBucket(volume=text("volume", volume), bucket=text("bucket", bucket))


def create_key(
    volume: str, bucket: str, key: str, *, size: int, replication: str, metadata: Mapping[str, str] | None
) -> CreateKey:
    """Return a checked CreateKey."""
    return CreateKey(
        volume=text("volume", volume),
        bucket=text("bucket", bucket),
        key=text("key", key),
        size=number("size", size, 0),
        replication=text("replication", replication),
        metadata=arguments.metadata("metadata", metadata),
    )


def allocate_block(
    volume: str, bucket: str, key: str, session_id: int, *, excluded_pipelines: Sequence[str]
) -> AllocateBlock:
    """Return a checked AllocateBlock."""
    return AllocateBlock(
        volume=text("volume", volume),
        bucket=text("bucket", bucket),
        key=text("key", key),
        session_id=number("session_id", session_id, 0),
        excluded_pipelines=arguments.texts("excluded_pipelines", excluded_pipelines),
    )


def commit_key(
    volume: str, bucket: str, key: str, session_id: int, *, size: int, blocks: Sequence[BlockLocation]
) -> CommitKey:
    """Return a checked CommitKey."""
    return CommitKey(
        volume=text("volume", volume),
        bucket=text("bucket", bucket),
        key=text("key", key),
        session_id=number("session_id", session_id, 0),
        size=number("size", size, 0),
        blocks=arguments.sequence("blocks", blocks, BlockLocation, "BlockLocation"),
    )


def put_key(
    volume: str, bucket: str, key: str, data: bytes, *, replication: str, metadata: Mapping[str, str] | None
) -> PutKey:
    """Return a checked PutKey."""
    return PutKey(
        volume=text("volume", volume),
        bucket=text("bucket", bucket),
        key=text("key", key),
        data=arguments.typed("data", data, bytes, "bytes"),
        replication=text("replication", replication),
        metadata=arguments.metadata("metadata", metadata),
    )


def delete_key(volume: str, bucket: str, key: str) -> DeleteKey:
    """Return a checked DeleteKey."""
    return DeleteKey(volume=text("volume", volume), bucket=text("bucket", bucket), key=text("key", key))


def rename_key(volume: str, bucket: str, from_key: str, to_key: str) -> RenameKey:
    """Return a checked RenameKey."""
    return RenameKey(
        volume=text("volume", volume),
        bucket=text("bucket", bucket),
        from_key=text("from_key", from_key),
        to_key=text("to_key", to_key),
    )


def create_snapshot(volume: str, bucket: str, snapshot: str) -> CreateSnapshot:
    """Return a checked CreateSnapshot."""
    return CreateSnapshot(
        volume=text("volume", volume), bucket=text("bucket", bucket), snapshot=text("snapshot", snapshot)
    )


def delete_snapshot(volume: str, bucket: str, snapshot: str) -> DeleteSnapshot:
    """Return a checked DeleteSnapshot."""
    return DeleteSnapshot(
        volume=text("volume", volume), bucket=text("bucket", bucket), snapshot=text("snapshot", snapshot)
    )


def rename_snapshot(volume: str, bucket: str, snapshot: str, to: str) -> RenameSnapshot:
    """Return a checked RenameSnapshot."""
    return RenameSnapshot(
        volume=text("volume", volume), bucket=text("bucket", bucket), snapshot=text("snapshot", snapshot),
        to=text("to", to),
    )  # fmt: skip


def set_snapshot_properties(
    volume: str, bucket: str, snapshot: str, properties: Mapping[str, str]
) -> SetSnapshotProperty:
    """Return a checked SetSnapshotProperty."""
    return SetSnapshotProperty(
        volume=text("volume", volume),
        bucket=text("bucket", bucket),
        snapshot=text("snapshot", snapshot),
        properties=arguments.texts_by_name("properties", properties),
    )


def change_acl(change: str, volume: str, bucket: str, key: str, prefix: str, acls: Sequence[str]) -> ChangeAcl:
    """Return a checked ChangeAcl of the object that is named: a key, a prefix, a bucket or a volume."""
    kind, name = acl_object(volume, bucket, key, prefix)
    entries: list[Acl] = []
    for one in arguments.sequence("acls", acls, str, "str"):
        try:
            entries.append(parse_acl(one))
        except ValueError as error:
            raise InvalidArgument("acls", str(error)) from error
    return ChangeAcl(kind=kind, volume=volume, bucket=bucket, name=name, change=change, acls=entries)


def acl_object(volume: str, bucket: str, key: str, prefix: str) -> tuple[str, str]:
    """Return what kind of object is named, and its name in the bucket; raises TypeError or InvalidArgument."""
    for name, value in (("volume", volume), ("bucket", bucket), ("key", key), ("prefix", prefix)):
        text(name, value)
    if key and prefix:
        raise InvalidArgument("prefix", "cannot be given together with a key")
    if (key or prefix) and not bucket:
        raise InvalidArgument("bucket", "must name the bucket of the key or prefix")
    if prefix:
        return PREFIX, prefix
    return (KEY, key) if key else (BUCKET if bucket else VOLUME, "")


def get_delegation_token(renewer: str) -> GetDelegationToken:
    """Return a checked GetDelegationToken."""
    return GetDelegationToken(renewer=text("renewer", renewer))


def renew_delegation_token(token: Credentials) -> RenewDelegationToken:
    """Return a checked RenewDelegationToken."""
    owner, number = _delegated(token)
    return RenewDelegationToken(owner=owner, number=number)


def cancel_delegation_token(token: Credentials) -> CancelDelegationToken:
    """Return a checked CancelDelegationToken."""
    owner, number = _delegated(token)
    return CancelDelegationToken(owner=owner, number=number)


def _delegated(token: Credentials) -> tuple[str, int]:
    if not isinstance(token, Credentials):
        raise TypeError(f"token must be Credentials, not {type(token).__name__}")
    if not token.name.number:
        raise InvalidArgument("token", f"must be a delegation token, not {token.user}'s own credentials")
    return token.user, token.name.number


def token_of(credentials: Credentials | None, response: Response) -> Credentials:
    """Return the delegation token that a response to GetDelegationToken has made: its secret is derived here."""
    if credentials is None:
        raise InvalidArgument("credentials", "must be given to the client: a delegation token is derived from them")
    return credentials.of_token(response.index)


def log_digest_base(
    shard: int, index: int, *, slots: Sequence[int], sums: Sequence[int], basis: str, force: bool
) -> LogDigestBase:
    """Return a checked LogDigestBase."""
    given = text("basis", basis)
    return LogDigestBase(
        shard=number("shard", shard, 0, MAX_SHARDS - 1),
        index=number("index", index, 0),
        slots=arguments.numbers("slots", slots, 0, MAX_INT),
        sums=arguments.numbers("sums", sums, -MAX_LONG - 1, MAX_LONG),
        # Only a real bool is taken for "force": otherwise words such as "no" would count as True.
        basis=FORCED + given if arguments.typed("force", force, bool, "a bool") else given,
    )


def request(body: RequestBody) -> RequestBody:
    """Return ``body`` if it is a request; raises TypeError."""
    if type(body) not in _REQUESTS:
        raise TypeError(f"body must be a request, as stratolog.CreateVolume is one, not {type(body).__name__}")
    return body
