"""PutKey: a small key, created and committed with all its bytes in one request (design, section 11).

The bytes become a row of inlineTable under the object id, the key's row says that it is ``inline`` and has no blocks.
Both are put, and later deleted, in one batch. So whoever reads both in one view finds both or neither. Rules:

- A key without bytes has no row in inlineTable, and is not inline: its row is the one that CommitKey would write.
- The leader takes what its setting ``inline_bytes`` allows. Replicas do not ask what theirs allows: what lies in the
  log was taken.
- Owner, creation time, quota and usage are those that CreateKey and CommitKey of the same size would come to.
- Whatever ends a version removes its bytes (``key.retire``). Renaming keeps the object id, and so the bytes.
"""

from __future__ import annotations

from om_processors.errors import OMError
from om_processors.execution.requests.key import (
    MAX_METADATA_BYTES,
    check_kept,
    metadata_bytes,
    succeed,
)
from om_processors.namespace import quota, tables
from om_processors.namespace.context import (
    AnyHandler,
    PreExecuteContext,
    RequestHandler,
    RequestPreparation,
    RowTransaction,
)
from om_processors.namespace.names import check_new_key_name, check_place, shown
from om_processors.namespace.prefixes import acls_of_new_key
from schemas.records.messages import PutKey
from schemas.records.rows import KeyInfo
from schemas.result_codes import INLINE_TOO_LARGE
from schemas.small_objects import MAX_INLINE_BYTES


def _check(body: PutKey) -> None:
    check_place(body.volume, body.bucket)
    check_new_key_name(body.key)
    check_kept(body)
    _check_size(body, MAX_INLINE_BYTES)
    # Both are written in one batch, in which a request may have as much as metadata alone may be.
    if (size_bytes := len(body.data) + metadata_bytes(body.metadata)) > MAX_METADATA_BYTES:
        raise OMError(
            INLINE_TOO_LARGE,
            f"key {shown(body.key)} has {size_bytes} bytes with its metadata; at most {MAX_METADATA_BYTES} are kept "
            "in the tables",
        )


def _admit(body: PutKey, context: PreExecuteContext) -> None:
    _check_size(body, context.inline_bytes)


def _check_size(body: PutKey, limit_bytes: int) -> None:
    if len(body.data) > limit_bytes:
        raise OMError(
            INLINE_TOO_LARGE,
            f"key {shown(body.key)} has {len(body.data)} bytes; at most {limit_bytes} are kept in the tables "
            "(inline_bytes)",
        )


def _put(body: PutKey, prepared: RequestPreparation, tx: RowTransaction) -> None:
    bucket = tables.require_bucket(tx, body.volume, body.bucket)
    row = tables.key_key(body.volume, body.bucket, body.key)
    replaced = tables.get_key(tx, row)
    quota.admit_key(tx, bucket, len(body.data), replaced)
    info = KeyInfo(
        volume=body.volume,
        bucket=body.bucket,
        key=body.key,
        owner=prepared.caller if replaced is None else replaced.owner,
        object_id=prepared.object_id,
        update_id=prepared.index,
        size=len(body.data),
        replication=body.replication,
        blocks=[],
        metadata=body.metadata,
        creation_time_ms=prepared.now_ms if replaced is None else replaced.creation_time_ms,
        modification_time_ms=prepared.now_ms,
        inline=bool(body.data),
        acls=acls_of_new_key(tx, bucket, body.key) if replaced is None else replaced.acls,
    )
    tables.put_key(tx, row, info)
    if body.data:
        tables.put_inline(tx, info.object_id, body.data)
    succeed(tx, info, replaced, prepared)


HANDLERS: tuple[AnyHandler, ...] = (RequestHandler(body=PutKey, check=_check, apply=_put, admit=_admit),)
