"""What volumes and buckets have in common: an owner and two quotas, checked by the body alone; counters put right.

RepairQuota (Ozone's ``ozone repair om quota``): somebody counts the rows of a bucket in one view (``quota.count``), and
sends what was counted and what the counters said there. Every request changes rows and counters by the same. So the
counters are off by the same at any later index, whatever was committed meanwhile, and no leader scans while it
executes. Two things would end that: another repair, and another bucket of the same name. Both write the bucket's row,
so the request names the index that has written the row: a later one is refused, and the rows are counted again.
"""

from __future__ import annotations

from dataclasses import replace

from om_processors.errors import OMError
from om_processors.namespace import quota, tables
from om_processors.namespace.context import AnyHandler, RequestHandler, RequestPreparation, RowTransaction
from om_processors.namespace.names import check_bucket_name, check_text, check_volume_name
from schemas.records.messages import CreateBucket, CreateVolume, RepairQuota, SetBucketProperty, SetVolumeProperty
from schemas.result_codes import INDEX_MOVED, INVALID_REQUEST


def check_quotas(where: str, body: CreateVolume | CreateBucket | SetVolumeProperty | SetBucketProperty) -> None:
    """Raise OMError unless both quotas are legal; ``where`` is as in ``bucket /v/b``."""
    quota.check_value(where, "quota_in_bytes", body.quota_in_bytes)
    quota.check_value(where, "quota_in_namespace", body.quota_in_namespace)


def check_change(where: str, body: SetVolumeProperty | SetBucketProperty) -> None:
    """Raise OMError unless a request sets something, and only what is legal; ``where`` is as in ``bucket /v/b``."""
    if body.owner is None and body.quota_in_bytes is None and body.quota_in_namespace is None:
        raise OMError(INVALID_REQUEST, f"nothing to set on {where}: no owner, no quota")
    if body.owner is not None:
        check_text("owner", body.owner)
        if not body.owner:
            raise OMError(INVALID_REQUEST, f"an empty owner for {where}")
    check_quotas(where, body)


# ---- RepairQuota


def _check_repair(body: RepairQuota) -> None:
    check_volume_name(body.volume)
    if body.bucket:
        check_bucket_name(body.bucket)
    if min(body.counted_bytes, body.counted_names) < 0:
        raise OMError(INVALID_REQUEST, f"rows of {_where(body)} were counted as less than 0")


def _repair(body: RepairQuota, prepared: RequestPreparation, tx: RowTransaction) -> None:
    if body.bucket:
        bucket = tables.require_bucket(tx, body.volume, body.bucket)
        _check_seen(body, bucket.update_id)
        tables.put_bucket(tx, replace(bucket, update_id=prepared.index))
    else:
        volume = tables.require_volume(tx, body.volume)
        _check_seen(body, volume.update_id)
        tables.put_volume(tx, replace(volume, update_id=prepared.index))
    bytes_counter, names_counter = quota.counters(body.volume, body.bucket)
    for counter, off in (
        (bytes_counter, body.counted_bytes - body.kept_bytes),
        (names_counter, body.counted_names - body.kept_names),
    ):
        right = quota.read(tx, counter) + off
        if not 0 <= right <= quota.MAX_COUNT or abs(off) > quota.MAX_COUNT:
            raise OMError(INVALID_REQUEST, f"the counter {counter.decode()} would become {right}: count the rows again")
        quota.add(tx, counter, off)


def _check_seen(body: RepairQuota, update_id: int) -> None:
    if update_id != body.update_id:
        raise OMError(
            INDEX_MOVED,
            f"{_where(body)} was changed at index {update_id}, after its rows were counted: count them again",
        )


def _where(body: RepairQuota) -> str:
    return f"bucket /{body.volume}/{body.bucket}" if body.bucket else f"volume /{body.volume}"


HANDLERS: tuple[AnyHandler, ...] = (RequestHandler(body=RepairQuota, check=_check_repair, apply=_repair),)
