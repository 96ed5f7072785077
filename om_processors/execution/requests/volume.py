"""Volumes: create, set property, delete.

A volume's counters are created at 0 with it and deleted with it. Only an empty volume (no bucket) can be deleted.
"""

from __future__ import annotations

from dataclasses import replace

from om_processors.errors import OMError
from om_processors.execution.requests.properties import check_change, check_quotas
from om_processors.namespace import quota, tables
from om_processors.namespace.context import AnyHandler, RequestHandler, RequestPreparation, RowTransaction
from om_processors.namespace.names import check_text, check_volume_name
from schemas.column_families import BUCKET_TABLE, VOLUME_TABLE
from schemas.records.messages import CreateVolume, DeleteVolume, SetVolumeProperty
from schemas.records.rows import VolumeInfo
from schemas.result_codes import VOLUME_ALREADY_EXISTS, VOLUME_NOT_EMPTY


def _check_create(body: CreateVolume) -> None:
    check_volume_name(body.volume)
    check_text("owner", body.owner)
    check_quotas(f"volume /{body.volume}", body)


def _create(body: CreateVolume, prepared: RequestPreparation, tx: RowTransaction) -> None:
    if tx.get(VOLUME_TABLE, tables.volume_key(body.volume)) is not None:
        raise OMError(VOLUME_ALREADY_EXISTS, f"volume /{body.volume} exists")
    info = VolumeInfo(
        volume=body.volume,
        owner=body.owner or prepared.caller,
        creator=prepared.caller,
        object_id=prepared.object_id,
        update_id=prepared.index,
        quota_in_bytes=body.quota_in_bytes,
        quota_in_namespace=body.quota_in_namespace,
        creation_time_ms=prepared.now_ms,
        modification_time_ms=prepared.now_ms,
    )
    tables.put_volume(tx, info)
    quota.create(tx, tables.used_buckets_key(body.volume), tables.allotted_bytes_key(body.volume))


def _check_set(body: SetVolumeProperty) -> None:
    check_volume_name(body.volume)
    check_change(f"volume /{body.volume}", body)


def _set(body: SetVolumeProperty, prepared: RequestPreparation, tx: RowTransaction) -> None:
    info = tables.require_volume(tx, body.volume)
    if body.quota_in_bytes is not None:
        quota.check_volume_bytes(tx, info, body.quota_in_bytes)
    if body.quota_in_namespace is not None:
        quota.check_volume_buckets(tx, info, body.quota_in_namespace)
    tables.put_volume(
        tx,
        replace(
            info,
            owner=info.owner if body.owner is None else body.owner,
            quota_in_bytes=info.quota_in_bytes if body.quota_in_bytes is None else body.quota_in_bytes,
            quota_in_namespace=info.quota_in_namespace if body.quota_in_namespace is None else body.quota_in_namespace,
            update_id=prepared.index,
            modification_time_ms=prepared.now_ms,
        ),
    )


def _check_delete(body: DeleteVolume) -> None:
    check_volume_name(body.volume)


def _delete(body: DeleteVolume, _prepared: RequestPreparation, tx: RowTransaction) -> None:
    tables.require_volume(tx, body.volume)
    if not tables.is_empty(tx, BUCKET_TABLE, tables.volume_prefix(body.volume)):
        raise OMError(VOLUME_NOT_EMPTY, f"volume /{body.volume} has buckets")
    tx.delete(VOLUME_TABLE, tables.volume_key(body.volume))
    quota.remove(tx, tables.used_buckets_key(body.volume), tables.allotted_bytes_key(body.volume))


HANDLERS: tuple[AnyHandler, ...] = (
    RequestHandler(body=CreateVolume, check=_check_create, apply=_create),
    RequestHandler(body=SetVolumeProperty, check=_check_set, apply=_set),
    RequestHandler(body=DeleteVolume, check=_check_delete, apply=_delete),
)
