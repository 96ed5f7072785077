"""Reservations: blocks that are allocated before their keys have names, and the keys that use them (decision 0085).

A client that writes many small keys reserves blocks for them in advance. Each key is then one request when its block is
written, where CreateKey and CommitKey are two. Rules:

- A reservation is a row of openKeyTable, as an open key's is, but without a key's name; no key can have an empty
  one. Its object id and session are those of its ReserveBlocks. So it expires as an open key does, and its blocks
  are reclaimed as those of one.
- Its blocks are of one pipeline, because only such blocks travel together (decision 0067), and each has room for a
  small file (SMALL_FILE_BYTES).
- CommitReserved takes the blocks that it names out of the reservation. The key is a new object, with the request's
  object id. Owner, creation time, quota and usage are those that CreateKey and CommitKey of the same size and caller
  would come to.
- The last blocks take the row with them. ReleaseBlocks ends it earlier.
- A reservation counts against the quota in bytes by itself, as each session does, with the length of all its blocks.
"""

from __future__ import annotations

from dataclasses import replace

from om_processors.errors import OMError
from om_processors.execution.requests.blocks import check_written, match, reserve
from om_processors.execution.requests.key import check_kept, put_at_once, retire
from om_processors.namespace import quota, tables
from om_processors.namespace.context import (
    AnyHandler,
    PreExecuteContext,
    RequestHandler,
    RequestPreparation,
    RowTransaction,
)
from om_processors.namespace.names import check_new_key_name, check_place, shown
from schemas.column_families import OPEN_KEY_TABLE
from schemas.records.messages import CommitReserved, KeySession, ReleaseBlocks, ReserveBlocks
from schemas.records.rows import NO_KEY, BlockLocation, BucketInfo, KeyInfo
from schemas.result_codes import INVALID_REQUEST, KEY_NOT_FOUND
from schemas.small_objects import MAX_RESERVED_BLOCKS


def _check_reserve(body: ReserveBlocks) -> None:
    check_place(body.volume, body.bucket)
    if not 1 <= body.count <= MAX_RESERVED_BLOCKS:
        raise OMError(INVALID_REQUEST, f"1 to {MAX_RESERVED_BLOCKS} blocks are reserved at once, not {body.count}")


def _blocks_to_reserve(body: ReserveBlocks, context: PreExecuteContext, object_id: int) -> list[BlockLocation]:
    return reserve(context, object_id, body.count)


def _reserve(body: ReserveBlocks, prepared: RequestPreparation, tx: RowTransaction) -> KeySession:
    bucket = tables.require_bucket(tx, body.volume, body.bucket)
    quota.admit_reservation(tx, bucket, sum(block.length for block in prepared.blocks))
    info = KeyInfo(
        volume=body.volume,
        bucket=body.bucket,
        key=NO_KEY,
        owner=prepared.caller,
        object_id=prepared.object_id,
        update_id=prepared.index,
        size=0,
        replication="",
        blocks=prepared.blocks,
        metadata={},
        creation_time_ms=prepared.now_ms,
        modification_time_ms=prepared.now_ms,
    )
    session_id = prepared.session_id
    tables.put_open_key(tx, tables.open_key_key(body.volume, body.bucket, NO_KEY, session_id), info)
    return KeySession(session_id=session_id, object_id=prepared.object_id, blocks=prepared.blocks)


def _reservation(tx: RowTransaction, bucket: BucketInfo, body: CommitReserved | ReleaseBlocks) -> tuple[bytes, KeyInfo]:
    """Return a reservation and where it is; raises OMError KEY_NOT_FOUND."""
    row = tables.open_key_key(body.volume, body.bucket, NO_KEY, body.session_id)
    info = tables.get_open_key(tx, row)
    if info is None or info.object_id < bucket.object_id:  # as for open keys: of a deleted bucket
        raise OMError(KEY_NOT_FOUND, f"no reservation {body.session_id} in /{body.volume}/{body.bucket}")
    return row, info


def _check_commit(body: CommitReserved) -> None:
    check_place(body.volume, body.bucket)
    check_new_key_name(body.key)
    check_kept(body)
    if body.size <= 0 or not 1 <= len(body.blocks) <= MAX_RESERVED_BLOCKS:
        raise OMError(
            INVALID_REQUEST,
            f"key {shown(body.key)} of {body.size} bytes in {len(body.blocks)} reserved blocks: it has at least 1 byte, "
            f"in 1 to {MAX_RESERVED_BLOCKS} blocks",
        )


def _commit(body: CommitReserved, prepared: RequestPreparation, tx: RowTransaction) -> None:
    bucket = tables.require_bucket(tx, body.volume, body.bucket)
    reserved_row, reserved = _reservation(tx, bucket, body)
    blocks, left = match(body, reserved.blocks)
    put_at_once(tx, bucket, body, prepared, size=body.size, blocks=blocks)
    if left:
        # Its time of modification stays: a client uses a reservation for a minute, not for as long as it lives.
        tables.put_open_key(tx, reserved_row, replace(reserved, blocks=left, update_id=prepared.index))
    else:
        tx.delete(OPEN_KEY_TABLE, reserved_row)


def _check_release(body: ReleaseBlocks) -> None:
    check_place(body.volume, body.bucket)


def _release(body: ReleaseBlocks, prepared: RequestPreparation, tx: RowTransaction) -> None:
    bucket = tables.require_bucket(tx, body.volume, body.bucket)
    row, info = _reservation(tx, bucket, body)
    tx.delete(OPEN_KEY_TABLE, row)
    retire(tx, info, prepared)


HANDLERS: tuple[AnyHandler, ...] = (
    RequestHandler(body=ReserveBlocks, check=_check_reserve, apply=_reserve, blocks=_blocks_to_reserve),
    RequestHandler(body=CommitReserved, check=_check_commit, apply=_commit, admit=check_written),
    RequestHandler(body=ReleaseBlocks, check=_check_release, apply=_release),
)
