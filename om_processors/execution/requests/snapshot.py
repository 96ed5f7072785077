"""Snapshots of buckets: create, delete, rename, set properties, and purge.

CreateSnapshot takes a checkpoint of the whole shard, before everything else of its batch, and writes a row that names
it. The checkpoint holds exactly the rows of all indexes below the request's own. A deleted snapshot keeps its row, and
what it needs, until the leader's PurgeSnapshots; its name is free at once (``om_processors/namespace/snapshots.py``).

As in Ozone: names follow the rules of buckets' names; without a name, one is made of the time; codes are Ozone's.
Unlike Ozone, a time that is taken already gets a number behind it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import count, islice

from om_processors.errors import OMError
from om_processors.namespace import quota, snapshots, tables
from om_processors.namespace.context import AnyHandler, RequestHandler, RequestPreparation, RowTransaction
from om_processors.namespace.names import check_bucket_name, check_snapshot_name, check_volume_name, shown
from schemas.column_families import SNAPSHOT_TABLE
from schemas.records.messages import (
    CreatedSnapshot,
    CreateSnapshot,
    DeleteSnapshot,
    PurgeSnapshots,
    RenameSnapshot,
    SetSnapshotProperty,
    SnapshotRequest,
)
from schemas.records.rows import ACTIVE, DELETED, SnapshotInfo
from schemas.result_codes import FILE_ALREADY_EXISTS, INVALID_REQUEST, TOO_MANY_SNAPSHOTS

MAX_SNAPSHOTS_PER_BUCKET = 256
"""Most snapshots of one bucket; deleted ones count until they are purged."""
MAX_SNAPSHOTS = 1_000
"""Most snapshots of one shard: each is a directory with a link to every file that the database had."""
MAX_PROPERTIES = 64
"""Most properties of one snapshot."""
MAX_PROPERTIES_BYTES = 16 * 1024
"""Most bytes of one snapshot's properties: their names and values in UTF-8."""
MAX_PURGED_SNAPSHOTS = 100
"""Most rows of one PurgeSnapshots."""


_MONTH_DAYS = (31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 29)
"""Days of the months from March to February."""


def _check_place(body: SnapshotRequest) -> None:
    check_volume_name(body.volume)
    check_bucket_name(body.bucket)


def _check_named(body: DeleteSnapshot | RenameSnapshot | SetSnapshotProperty) -> None:
    _check_place(body)
    check_snapshot_name(body.snapshot)


# ---- CreateSnapshot


def _check_create(body: CreateSnapshot) -> None:
    _check_place(body)
    if body.snapshot:
        check_snapshot_name(body.snapshot)


def _create(body: CreateSnapshot, prepared: RequestPreparation, tx: RowTransaction) -> CreatedSnapshot:
    bucket = tables.require_bucket(tx, body.volume, body.bucket)
    there = snapshots.snapshots_of(tx, body.volume, body.bucket)
    active = {info.snapshot for info in there if info.state == ACTIVE}
    name = body.snapshot or generated_name(prepared.now_ms, active)
    where = f"/{body.volume}/{body.bucket}"
    if name in active:
        raise OMError(FILE_ALREADY_EXISTS, f"snapshot {name} of bucket {where} exists")
    if len(there) >= MAX_SNAPSHOTS_PER_BUCKET:
        raise OMError(
            TOO_MANY_SNAPSHOTS,
            f"bucket {where} has {len(there)} snapshots, those included that wait to be purged: that is the most",
        )
    if sum(1 for _ in islice(tx.iterate(SNAPSHOT_TABLE, b""), MAX_SNAPSHOTS)) >= MAX_SNAPSHOTS:
        raise OMError(
            TOO_MANY_SNAPSHOTS,
            f"no snapshot of bucket {where}: its shard has {MAX_SNAPSHOTS} already, those included that wait to be "
            "purged: that is the most",
        )
    info = SnapshotInfo(
        volume=body.volume,
        bucket=body.bucket,
        snapshot=name,
        snapshot_id=prepared.object_id,
        bucket_object_id=bucket.object_id,
        state=ACTIVE,
        checkpoint=snapshots.checkpoint_name(prepared.object_id),
        index=prepared.index,
        creation_time_ms=prepared.now_ms,
        deletion_time_ms=0,
        creator=prepared.caller,
        referenced_bytes=quota.read(tx, tables.used_bytes_key(body.volume, body.bucket)),
        referenced_keys=quota.read(tx, tables.used_keys_key(body.volume, body.bucket)),
        properties={},
    )
    tx.checkpoint(info.checkpoint)
    snapshots.put_snapshot(tx, info)
    return CreatedSnapshot(snapshot=name, snapshot_id=info.snapshot_id)


def generated_name(now_ms: int, taken: Collection[str]) -> str:
    """Return a name made of a time in ms since the epoch, in UTC; with a number behind it if the name is taken.

    >>> generated_name(1795428672345, ())
    's20261123-101112.345'
    >>> generated_name(1795428672345, {"s20261123-101112.345"})
    's20261123-101112.345-2'
    """
    seconds, ms = divmod(now_ms, 1000)
    days, second = divmod(seconds, 86_400)
    name = f"s{_date(days)}-{second // 3600:02}{second // 60 % 60:02}{second % 60:02}.{ms:03}"
    if name not in taken:
        return name
    return next(other for number in count(2) if (other := f"{name}-{number}") not in taken)


def _date(days: int) -> str:
    """Return the date, YYYYMMDD, so many days after 1970-01-01.

    This folder is pure, so it has no module of times. The calendar repeats after 400 years of 146,097 days. Counted
    from a 1st of March, a leap day is the last day of its year, and months have the lengths of :data:`_MONTH_DAYS`.

    >>> _date(0), _date(59), _date(11_016), _date(20_780)
    ('19700101', '19700301', '20000229', '20261123')
    """
    cycles, day = divmod(days + 719_468, 146_097)  # days from 0000-03-01 to 1970-01-01
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = 3
    for length in _MONTH_DAYS:
        if day < length:
            break
        day -= length
        month += 1
    later, month = divmod(month - 1, 12)
    return f"{400 * cycles + year + later:04}{month + 1:02}{day + 1:02}"


# ---- DeleteSnapshot


def _delete(body: DeleteSnapshot, prepared: RequestPreparation, tx: RowTransaction) -> None:
    info = _required(body, tx)
    tx.delete(SNAPSHOT_TABLE, snapshots.key_of(info))
    snapshots.put_snapshot(tx, replace(info, state=DELETED, deletion_time_ms=prepared.now_ms))


def _required(body: DeleteSnapshot | RenameSnapshot | SetSnapshotProperty, tx: RowTransaction) -> SnapshotInfo:
    tables.require_bucket(tx, body.volume, body.bucket)
    return snapshots.require_snapshot(tx, body.volume, body.bucket, body.snapshot)


# ---- RenameSnapshot


def _check_rename(body: RenameSnapshot) -> None:
    _check_named(body)
    check_snapshot_name(body.to)


def _rename(body: RenameSnapshot, _prepared: RequestPreparation, tx: RowTransaction) -> None:
    info = _required(body, tx)
    if snapshots.get_snapshot(tx, body.volume, body.bucket, body.to) is not None:
        raise OMError(FILE_ALREADY_EXISTS, f"snapshot {body.to} of bucket /{body.volume}/{body.bucket} exists")
    tx.delete(SNAPSHOT_TABLE, snapshots.key_of(info))
    snapshots.put_snapshot(tx, replace(info, snapshot=body.to))


# ---- SetSnapshotProperty


def _check_set(body: SetSnapshotProperty) -> None:
    _check_named(body)
    where = f"snapshot {body.snapshot} of bucket /{body.volume}/{body.bucket}"
    if not body.properties:
        raise OMError(INVALID_REQUEST, f"nothing to set on {where}: no properties")
    if "" in body.properties:
        raise OMError(INVALID_REQUEST, f"a property of {where} has an empty name")
    _check_size(where, body.properties)


def _check_size(where: str, properties: dict[str, str]) -> None:
    if len(properties) > MAX_PROPERTIES:
        raise OMError(INVALID_REQUEST, f"{len(properties)} properties of {where}; at most {MAX_PROPERTIES} are allowed")
    size_bytes = sum(len(text.encode()) for item in properties.items() for text in item)
    if size_bytes > MAX_PROPERTIES_BYTES:
        raise OMError(
            INVALID_REQUEST,
            f"the properties of {where} have {size_bytes} bytes; at most {MAX_PROPERTIES_BYTES} are allowed",
        )


def _set(body: SetSnapshotProperty, _prepared: RequestPreparation, tx: RowTransaction) -> None:
    info = _required(body, tx)
    properties = {name: value for name, value in (info.properties | body.properties).items() if value}
    # Sorted: every replica, and every order of setting them, makes the same bytes of the same properties.
    properties = dict(sorted(properties.items()))
    _check_size(f"snapshot {body.snapshot} of bucket /{body.volume}/{body.bucket}", properties)
    snapshots.put_snapshot(tx, replace(info, properties=properties))


# ---- PurgeSnapshots


def _check_purge(body: PurgeSnapshots) -> None:
    if not 1 <= len(body.rows) <= MAX_PURGED_SNAPSHOTS:
        raise OMError(
            INVALID_REQUEST, f"1 to {MAX_PURGED_SNAPSHOTS} snapshots are purged at once, not {len(body.rows)}"
        )
    if len(set(body.rows)) != len(body.rows):
        raise OMError(INVALID_REQUEST, "a snapshot to be purged is named twice")
    for row in body.rows:
        if snapshots.DELETED_MARK not in row:
            named = shown(row.decode(errors="replace"))
            raise OMError(INVALID_REQUEST, f"{named} is no row of a deleted snapshot: only those are purged")


def _purge(body: PurgeSnapshots, _prepared: RequestPreparation, tx: RowTransaction) -> None:
    for row in body.rows:
        if tx.get(SNAPSHOT_TABLE, row) is not None:
            tx.delete(SNAPSHOT_TABLE, row)


HANDLERS: tuple[AnyHandler, ...] = (
    RequestHandler(body=CreateSnapshot, check=_check_create, apply=_create),
    RequestHandler(body=DeleteSnapshot, check=_check_named, apply=_delete),
    RequestHandler(body=RenameSnapshot, check=_check_rename, apply=_rename),
    RequestHandler(body=SetSnapshotProperty, check=_check_set, apply=_set),
    RequestHandler(body=PurgeSnapshots, check=_check_purge, apply=_purge),
)
