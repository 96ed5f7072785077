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
    put_at_once,
)
from om_processors.namespace import tables
from om_processors.namespace.context import (
    AnyHandler,
    PreExecuteContext,
    RequestHandler,
    RequestPreparation,
    RowTransaction,
)
from om_processors.namespace.names import check_new_key_name, check_place, shown
from schemas.records.messages import PutKey
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
    put_at_once(tx, bucket, body, prepared, size=len(body.data), blocks=[], data=body.data)


HANDLERS: tuple[AnyHandler, ...] = (RequestHandler(body=PutKey, check=_check, apply=_put, admit=_admit),)
