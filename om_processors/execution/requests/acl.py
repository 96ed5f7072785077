"""Access control lists: add, remove, set (decision 0072). Lists are in the rows of what they are about.

As in Ozone a prefix may get a list before any key begins with it. Its row is gone with the last entry, and with the
bucket.
"""

from __future__ import annotations

from dataclasses import replace

from om_processors.errors import OMError
from om_processors.namespace import prefixes, tables
from om_processors.namespace.context import AnyHandler, RequestHandler, RequestPreparation, RowTransaction
from om_processors.namespace.names import check_bucket_name, check_key_name, check_volume_name, shown
from schemas.access.acl import ACL_CHANGES, ACL_OBJECTS, BUCKET, KEY, MAX_ACLS, PREFIX, SET, VOLUME, acl_fault, changed
from schemas.column_families import PREFIX_TABLE
from schemas.records.identity import ChangeAcl, PrefixInfo
from schemas.records.rows import Acl
from schemas.result_codes import INVALID_REQUEST, KEY_NOT_FOUND


def check_acl_place(kind: str, volume: str, bucket: str, name: str) -> None:
    """Raise OMError unless these name something that can have a list."""
    if kind not in ACL_OBJECTS:
        raise OMError(INVALID_REQUEST, f"{shown(kind)} has no access control list: {', '.join(ACL_OBJECTS)} have")
    check_volume_name(volume)
    if kind != VOLUME:
        check_bucket_name(bucket)
    if kind in (KEY, PREFIX):
        check_key_name(name)
    if (bucket and kind == VOLUME) or (name and kind in (VOLUME, BUCKET)):
        raise OMError(INVALID_REQUEST, f"a {kind} is named by less than {shown(bucket)} and {shown(name)}")
    if kind != PREFIX:
        return
    if not name.endswith("/"):
        raise OMError(INVALID_REQUEST, f"prefix {shown(name)} has no slash at its end")
    if len(name.encode()) > prefixes.MAX_PREFIX_BYTES:
        raise OMError(INVALID_REQUEST, f"prefix {shown(name)} has over {prefixes.MAX_PREFIX_BYTES} bytes")


def _check(body: ChangeAcl) -> None:
    check_acl_place(body.kind, body.volume, body.bucket, body.name)
    if body.change not in ACL_CHANGES:
        raise OMError(INVALID_REQUEST, f"{shown(body.change)} is none of {', '.join(ACL_CHANGES)}")
    if len(body.acls) > MAX_ACLS or (not body.acls and body.change != SET):
        raise OMError(INVALID_REQUEST, f"{len(body.acls)} access control entries; 1 to {MAX_ACLS} are taken")
    for acl in body.acls:
        if (fault := acl_fault(acl)) is not None:
            raise OMError(INVALID_REQUEST, fault)


def _after(body: ChangeAcl, acls: list[Acl]) -> list[Acl]:
    after = changed(acls, body.change, body.acls)
    if len(after) > MAX_ACLS:
        raise OMError(INVALID_REQUEST, f"a list of {len(after)} access control entries; at most {MAX_ACLS} are kept")
    return after


def _apply(body: ChangeAcl, prepared: RequestPreparation, tx: RowTransaction) -> None:
    if body.kind == VOLUME:
        volume = tables.require_volume(tx, body.volume)
        tables.put_volume(tx, replace(volume, acls=_after(body, volume.acls), update_id=prepared.index))
        return
    bucket = tables.require_bucket(tx, body.volume, body.bucket)
    if body.kind == BUCKET:
        tables.put_bucket(tx, replace(bucket, acls=_after(body, bucket.acls), update_id=prepared.index))
    elif body.kind == KEY:
        row = tables.key_key(body.volume, body.bucket, body.name)
        info = tables.get_key(tx, row)
        if info is None:
            raise OMError(KEY_NOT_FOUND, f"no key /{body.volume}/{body.bucket}/{shown(body.name)}")
        tables.put_key(tx, row, replace(info, acls=_after(body, info.acls), update_id=prepared.index))
    else:
        _apply_to_prefix(body, prepared, tx)


def _apply_to_prefix(body: ChangeAcl, prepared: RequestPreparation, tx: RowTransaction) -> None:
    bucket = tables.require_bucket(tx, body.volume, body.bucket)
    found = prefixes.get_prefix(tx, body.volume, body.bucket, body.name)
    after = _after(body, [] if found is None else found.acls)
    if after:
        if found is None and bucket.prefixes >= prefixes.MAX_PREFIXES_PER_BUCKET:
            raise OMError(
                INVALID_REQUEST,
                f"bucket /{body.volume}/{body.bucket} has {bucket.prefixes} prefixes with a list: that is the most",
            )
        made = PrefixInfo(
            volume=body.volume, bucket=body.bucket, prefix=body.name, acls=after,
            object_id=prepared.object_id if found is None else found.object_id, update_id=prepared.index,
        )  # fmt: skip
        prefixes.put_prefix(tx, made)
    elif found is not None:
        tx.delete(PREFIX_TABLE, tables.key_key(body.volume, body.bucket, body.name))
    if (more := bool(after) - (found is not None)) != 0:
        tables.put_bucket(tx, replace(bucket, prefixes=bucket.prefixes + more, update_id=prepared.index))


HANDLERS: tuple[AnyHandler, ...] = (RequestHandler(body=ChangeAcl, check=_check, apply=_apply),)
