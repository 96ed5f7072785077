"""Buckets: create, set property, delete; the OBJECT_STORE layout.

Only an empty bucket can be deleted, which as in Ozone means no row in keyTable: open keys do not prevent it. They stay
in openKeyTable, and their sessions end with the bucket (``key.py`` says how), even if a bucket of the same name is
created again. Snapshots prevent it, deleted ones until they are purged. Unlike Ozone, a missing volume is
VOLUME_NOT_FOUND for every command here.
"""

from __future__ import annotations

from dataclasses import replace

from om_processors.errors import OMError
from om_processors.execution.requests.properties import check_change, check_quotas
from om_processors.namespace import quota, tables
from om_processors.namespace.context import AnyHandler, RequestHandler, RequestPreparation, RowTransaction
from om_processors.namespace.names import check_bucket_name, check_text, check_volume_name, shown
from schemas.access.acl import inherited
from schemas.column_families import BUCKET_TABLE, KEY_TABLE, PREFIX_TABLE, SNAPSHOT_TABLE
from schemas.records.messages import UNLIMITED, CreateBucket, DeleteBucket, SetBucketProperty
from schemas.records.rows import BucketInfo
from schemas.result_codes import BUCKET_ALREADY_EXISTS, BUCKET_NOT_EMPTY, CONTAINS_SNAPSHOT, NOT_SUPPORTED_OPERATION

LAYOUT = "OBJECT_STORE"


def _check_create(body: CreateBucket) -> None:
    check_volume_name(body.volume)
    check_bucket_name(body.bucket)
    check_text("owner", body.owner)
    if body.layout != LAYOUT:
        raise OMError(NOT_SUPPORTED_OPERATION, f"bucket layout {shown(body.layout)}: only {LAYOUT} is supported")
    check_quotas(f"bucket /{body.volume}/{body.bucket}", body)


def _create(body: CreateBucket, prepared: RequestPreparation, tx: RowTransaction) -> None:
    volume = tables.require_volume(tx, body.volume)
    if tx.get(BUCKET_TABLE, tables.bucket_key(body.volume, body.bucket)) is not None:
        raise OMError(BUCKET_ALREADY_EXISTS, f"bucket /{body.volume}/{body.bucket} exists")
    quota.check_bucket_bytes(tx, volume, body.bucket, UNLIMITED, body.quota_in_bytes)
    quota.admit_bucket(tx, volume)
    info = BucketInfo(
        volume=body.volume,
        bucket=body.bucket,
        owner=body.owner or prepared.caller,
        layout=body.layout,
        object_id=prepared.object_id,
        update_id=prepared.index,
        quota_in_bytes=body.quota_in_bytes,
        quota_in_namespace=body.quota_in_namespace,
        creation_time_ms=prepared.now_ms,
        modification_time_ms=prepared.now_ms,
        acls=inherited(volume.acls, passes_on=True),
    )
    tables.put_bucket(tx, info)
    quota.create(tx, tables.used_bytes_key(body.volume, body.bucket), tables.used_keys_key(body.volume, body.bucket))
    quota.add(tx, tables.used_buckets_key(body.volume), 1)
    quota.add(tx, tables.allotted_bytes_key(body.volume), quota.allotted(body.quota_in_bytes))


def _check_set(body: SetBucketProperty) -> None:
    check_volume_name(body.volume)
    check_bucket_name(body.bucket)
    check_change(f"bucket /{body.volume}/{body.bucket}", body)


def _set(body: SetBucketProperty, prepared: RequestPreparation, tx: RowTransaction) -> None:
    info = tables.require_bucket(tx, body.volume, body.bucket)
    quota_in_bytes, quota_in_namespace = info.quota_in_bytes, info.quota_in_namespace
    if body.quota_in_bytes is not None:
        volume = tables.require_volume(tx, body.volume)
        quota.check_bucket_usage(tx, info, body.quota_in_bytes, UNLIMITED)
        quota.check_bucket_bytes(tx, volume, body.bucket, info.quota_in_bytes, body.quota_in_bytes)
        quota_in_bytes = body.quota_in_bytes
    if body.quota_in_namespace is not None:
        quota.check_bucket_usage(tx, info, UNLIMITED, body.quota_in_namespace)
        quota_in_namespace = body.quota_in_namespace
    tables.put_bucket(
        tx,
        replace(
            info,
            owner=info.owner if body.owner is None else body.owner,
            quota_in_bytes=quota_in_bytes,
            quota_in_namespace=quota_in_namespace,
            update_id=prepared.index,
            modification_time_ms=prepared.now_ms,
        ),
    )
    more_allotted = quota.allotted(quota_in_bytes) - quota.allotted(info.quota_in_bytes)
    quota.add(tx, tables.allotted_bytes_key(body.volume), more_allotted)


def _check_delete(body: DeleteBucket) -> None:
    check_volume_name(body.volume)
    check_bucket_name(body.bucket)


def _delete(body: DeleteBucket, _prepared: RequestPreparation, tx: RowTransaction) -> None:
    info = tables.require_bucket(tx, body.volume, body.bucket)
    if not tables.is_empty(tx, KEY_TABLE, tables.bucket_prefix(body.volume, body.bucket)):
        raise OMError(BUCKET_NOT_EMPTY, f"bucket /{body.volume}/{body.bucket} has keys")
    if not tables.is_empty(tx, SNAPSHOT_TABLE, tables.bucket_prefix(body.volume, body.bucket)):
        raise OMError(
            CONTAINS_SNAPSHOT,
            f"bucket /{body.volume}/{body.bucket} has snapshots, or deleted ones that wait to be purged",
        )
    if info.prefixes:
        prefix = tables.bucket_prefix(body.volume, body.bucket)
        for row, _ in list(tx.iterate(PREFIX_TABLE, prefix, tables.prefix_stop(prefix))):
            tx.delete(PREFIX_TABLE, row)
    tx.delete(BUCKET_TABLE, tables.bucket_key(body.volume, body.bucket))
    quota.remove(tx, tables.used_bytes_key(body.volume, body.bucket), tables.used_keys_key(body.volume, body.bucket))
    quota.add(tx, tables.used_buckets_key(body.volume), -1)
    quota.add(tx, tables.allotted_bytes_key(body.volume), -quota.allotted(info.quota_in_bytes))


HANDLERS: tuple[AnyHandler, ...] = (
    RequestHandler(body=CreateBucket, check=_check_create, apply=_create),
    RequestHandler(body=SetBucketProperty, check=_check_set, apply=_set),
    RequestHandler(body=DeleteBucket, check=_check_delete, apply=_delete),
)
