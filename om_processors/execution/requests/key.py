"""Keys in the OBJECT_STORE layout: create (open), allocate block, commit, delete, rename; expire abandoned open keys.

A key is written in a *session*: CreateKey puts it into openKeyTable under its session id, CommitKey moves it to
keyTable and ends the session. Where Ozone leaves a choice or a gap:

- A committed key replaces the key of the same name. It has its own object id and metadata; as in Ozone, it takes
  creation time and owner from the old key (Ozone also keeps the object id, and has to invent another one for
  deletedTable).
- deletedTable gets the blocks to reclaim: those of deleted and replaced keys and, under an id of their own with size 0,
  those that were allocated and not committed. Keys without blocks vanish, as in Ozone, and the bytes of inline keys
  (``put_key``) with them. A row says when it was put there (``tables.retired``): committed blocks have a grace, by
  which open readers go on (``om_processors/fleet/core/deletion_grace.py``).
- A session belongs to the bucket in which it was opened. Object ids ascend, so a session that is older than the bucket
  of its name was opened in a deleted bucket: KEY_NOT_FOUND. (Ozone would commit it into the new bucket.)
- Committed blocks that were not allocated to the session are refused (Ozone drops them with a warning). Where there are
  datanodes, bytes without blocks are refused too, and so are blocks without a committed index: a writer that has
  written none must say so (``schemas.records.rows.NEVER_WRITTEN``).
- Renaming leaves open sessions alone: they commit under the name with which they were opened.
- An expired session (ExpireOpenKeys, from the shard's leader: ``open_key_cleanup``) is gone like a committed one. Its
  blocks stay in deletedTable under the session's object id. No other row there has that id, because the session was
  never committed. Its bucket may be gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from om_processors.errors import OMError
from om_processors.execution.requests.blocks import allocate, check_written, settle
from om_processors.namespace import quota, tables
from om_processors.namespace.context import (
    AnyHandler,
    PreExecuteContext,
    RequestHandler,
    RequestPreparation,
    RowTransaction,
)
from om_processors.namespace.names import (
    check_key_name,
    check_new_key_name,
    check_place,
    shown,
)
from om_processors.namespace.prefixes import acls_of_new_key
from schemas.column_families import KEY_TABLE, OPEN_KEY_TABLE
from schemas.features import DELETION_GRACE, SESSION_QUOTA
from schemas.records.messages import (
    AllocateBlock,
    AllocatedBlock,
    CommitKey,
    CommitReserved,
    CreateKey,
    DeleteKey,
    ExpireOpenKeys,
    KeySession,
    PutKey,
    RenameKey,
)
from schemas.records.rows import BlockLocation, BucketInfo, KeyInfo
from schemas.result_codes import INVALID_REQUEST, KEY_ALREADY_EXISTS, KEY_NOT_FOUND
from schemas.small_objects import SMALL_FILE_BYTES

REPLICATIONS = ("RATIS/THREE", "RATIS/ONE", "STAND_ALONE/ONE")
PREALLOCATED_BLOCKS = 64
"""Most blocks that CreateKey allocates (Ozone's ``ozone.key.preallocation.max.blocks``); AllocateBlock gives more."""
MAX_BLOCKS_PER_KEY = 4096
"""Most blocks of a key: 1 TiB of Ozone's 256 MiB blocks. A row holds all blocks of its key and must fit in a batch."""
MAX_METADATA_BYTES = 768 * 1024
"""Most bytes of names and values in UTF-8, so that a key that can be opened can be committed.

The rest of a commit's operations (4096 blocks, the key's name a few times) must fit beside them
(``replicated_db.core.execution.service.MAX_REQUEST_BYTES``).
"""
MAX_EXPIRED_ROWS = 500
"""Most rows of one ExpireOpenKeys: their operations must fit in a batch."""


# ---- CreateKey


def _check_create(body: CreateKey) -> None:
    check_place(body.volume, body.bucket)
    check_new_key_name(body.key)
    if body.size < 0:
        raise OMError(INVALID_REQUEST, f"negative size {body.size} of key {shown(body.key)}")
    check_kept(body)


def check_kept(body: CreateKey | PutKey | CommitReserved) -> None:
    """Raise OMError INVALID_REQUEST for metadata or a replication that no key can have."""
    if body.metadata and (size_bytes := metadata_bytes(body.metadata)) > MAX_METADATA_BYTES:
        raise OMError(
            INVALID_REQUEST,
            f"the metadata of key {shown(body.key)} has {size_bytes} bytes; at most {MAX_METADATA_BYTES} are allowed",
        )
    if body.replication not in REPLICATIONS:
        raise OMError(INVALID_REQUEST, f"replication {shown(body.replication)} is none of {', '.join(REPLICATIONS)}")


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """Return how many bytes names and values of metadata have in UTF-8."""
    return sum(len(text.encode()) for item in metadata.items() for text in item)


def _blocks_for_create(body: CreateKey, context: PreExecuteContext, object_id: int) -> list[BlockLocation]:
    if not body.size:
        return []
    count = min(PREALLOCATED_BLOCKS, -(-body.size // context.block_size_bytes))
    return allocate(context, object_id, count, small=body.size <= SMALL_FILE_BYTES)


def _create(body: CreateKey, prepared: RequestPreparation, tx: RowTransaction) -> KeySession:
    bucket = tables.require_bucket(tx, body.volume, body.bucket)
    quota.admit_open_key(tx, bucket, body.key, body.size)
    info = KeyInfo(
        volume=body.volume,
        bucket=body.bucket,
        key=body.key,
        owner=prepared.caller,
        object_id=prepared.object_id,
        update_id=prepared.index,
        size=body.size,
        replication=body.replication,
        blocks=prepared.blocks,
        metadata=body.metadata,
        creation_time_ms=prepared.now_ms,
        modification_time_ms=prepared.now_ms,
    )
    session_id = prepared.session_id
    tables.put_open_key(tx, tables.open_key_key(body.volume, body.bucket, body.key, session_id), info)
    return KeySession(session_id=session_id, object_id=prepared.object_id, blocks=prepared.blocks)


# ---- AllocateBlock


def _check_allocate(body: AllocateBlock) -> None:
    check_place(body.volume, body.bucket)
    check_key_name(body.key)


def _block_for_allocate(body: AllocateBlock, context: PreExecuteContext, object_id: int) -> list[BlockLocation]:
    return allocate(context, object_id, 1, body.excluded_pipelines)


def _allocate(body: AllocateBlock, prepared: RequestPreparation, tx: RowTransaction) -> AllocatedBlock:
    bucket = tables.require_bucket(tx, body.volume, body.bucket)
    row = tables.open_key_key(body.volume, body.bucket, body.key, body.session_id)
    info = _session(tx, bucket, body, row)
    if len(info.blocks) >= MAX_BLOCKS_PER_KEY:
        raise OMError(
            INVALID_REQUEST, f"key {shown(body.key)} has {MAX_BLOCKS_PER_KEY} blocks, the most that are allowed"
        )
    quota.admit_open_key(tx, bucket, body.key, info.size)
    block = replace(prepared.blocks[0], offset=sum(block.length for block in info.blocks))
    if tx.feature_level >= SESSION_QUOTA:
        block = replace(block, length=quota.admit_block(tx, bucket, info, block.length))
    grown = replace(info, blocks=[*info.blocks, block], update_id=prepared.index, modification_time_ms=prepared.now_ms)
    tables.put_open_key(tx, row, grown)
    return AllocatedBlock(block=block)


def _session(tx: RowTransaction, bucket: BucketInfo, body: AllocateBlock | CommitKey, row: bytes) -> KeyInfo:
    """Return the open key; raises OMError KEY_NOT_FOUND naming the session."""
    info = tables.get_open_key(tx, row)
    if info is None or info.object_id < bucket.object_id:
        where = f"/{body.volume}/{body.bucket}/{shown(body.key)}"
        raise OMError(KEY_NOT_FOUND, f"no open key {where} in session {body.session_id}")
    return info


# ---- CommitKey


def _check_commit(body: CommitKey) -> None:
    check_place(body.volume, body.bucket)
    check_key_name(body.key)
    if body.size < 0:
        raise OMError(INVALID_REQUEST, f"negative size {body.size} of key {shown(body.key)}")
    if len(body.blocks) > MAX_BLOCKS_PER_KEY:
        raise OMError(
            INVALID_REQUEST,
            f"{len(body.blocks)} blocks of key {shown(body.key)}; at most {MAX_BLOCKS_PER_KEY} are allowed",
        )


def _commit(body: CommitKey, prepared: RequestPreparation, tx: RowTransaction) -> None:
    volume, bucket_name, key = body.volume, body.bucket, body.key
    bucket = tables.require_bucket(tx, volume, bucket_name)
    open_row = tables.open_key_key(volume, bucket_name, key, body.session_id)
    opened = _session(tx, bucket, body, open_row)
    blocks, unused = settle(body, opened.blocks)
    row = tables.key_key(volume, bucket_name, key)
    replaced = tables.get_key(tx, row)
    quota.admit_key(tx, bucket, body.size, replaced)
    info = KeyInfo(
        volume=volume,
        bucket=bucket_name,
        key=key,
        owner=opened.owner if replaced is None else replaced.owner,
        object_id=opened.object_id,
        update_id=prepared.index,
        size=body.size,
        replication=opened.replication,
        blocks=blocks,
        metadata=opened.metadata,
        creation_time_ms=opened.creation_time_ms if replaced is None else replaced.creation_time_ms,
        modification_time_ms=prepared.now_ms,
        acls=acls_of_new_key(tx, bucket, key) if replaced is None else replaced.acls,
    )
    tx.delete(OPEN_KEY_TABLE, open_row)
    tables.put_key(tx, row, info)
    if unused:
        retire(tx, replace(info, object_id=prepared.object_id, size=0, blocks=unused), prepared)
    succeed(tx, info, replaced, prepared)


def put_at_once(
    tx: RowTransaction, bucket: BucketInfo, body: PutKey | CommitReserved, prepared: RequestPreparation, *,
    size: int, blocks: list[BlockLocation], data: bytes = b"",
) -> None:  # fmt: skip
    """Create and commit a key in one request, as CreateKey and CommitKey of the same caller would.

    ``data`` are the bytes of an inline key. Raises OMError QUOTA_EXCEEDED.
    """
    row = tables.key_key(body.volume, body.bucket, body.key)
    replaced = tables.get_key(tx, row)
    quota.admit_key(tx, bucket, size, replaced)
    info = KeyInfo(
        volume=body.volume,
        bucket=body.bucket,
        key=body.key,
        owner=prepared.caller if replaced is None else replaced.owner,
        object_id=prepared.object_id,
        update_id=prepared.index,
        size=size,
        replication=body.replication,
        blocks=blocks,
        metadata=body.metadata,
        creation_time_ms=prepared.now_ms if replaced is None else replaced.creation_time_ms,
        modification_time_ms=prepared.now_ms,
        inline=bool(data),
        acls=acls_of_new_key(tx, bucket, body.key) if replaced is None else replaced.acls,
    )
    tables.put_key(tx, row, info)
    if data:
        tables.put_inline(tx, info.object_id, data)
    succeed(tx, info, replaced, prepared)


def succeed(tx: RowTransaction, info: KeyInfo, replaced: KeyInfo | None, prepared: RequestPreparation) -> None:
    """Count a version of a key that was put in place of ``replaced``, if that is not None, and retire that one."""
    if replaced is None:
        quota.add_key_usage(tx, info.volume, info.bucket, info.size, 1)
    else:
        retire(tx, replaced, prepared)
        quota.add_key_usage(tx, info.volume, info.bucket, info.size - replaced.size, 0)


def retire(tx: RowTransaction, info: KeyInfo, prepared: RequestPreparation) -> None:
    """Remove the bytes of an inline key; leave a key's blocks, if it has any, in deletedTable."""
    if info.inline:
        tables.delete_inline(tx, info.object_id)
    if info.blocks:
        # Without the metadata, which nobody needs any more: it would make a commit twice as large as its CreateKey.
        metadata = info.metadata if tx.feature_level < SESSION_QUOTA else {}
        left = replace(info, update_id=prepared.index, metadata=metadata, acls=[])
        tables.put_deleted(tx, left if tx.feature_level < DELETION_GRACE else tables.retired(left, prepared.now_ms))


# ---- DeleteKey


def _check_delete(body: DeleteKey) -> None:
    check_place(body.volume, body.bucket)
    check_key_name(body.key)


def _delete(body: DeleteKey, prepared: RequestPreparation, tx: RowTransaction) -> None:
    tables.require_bucket(tx, body.volume, body.bucket)
    row, info = _key(tx, body, body.key)
    tx.delete(KEY_TABLE, row)
    retire(tx, info, prepared)
    quota.add_key_usage(tx, body.volume, body.bucket, -info.size, -1)


def _key(tx: RowTransaction, body: DeleteKey | RenameKey, key: str) -> tuple[bytes, KeyInfo]:
    """Return a committed key and where it is; raises OMError KEY_NOT_FOUND."""
    row = tables.key_key(body.volume, body.bucket, key)
    info = tables.get_key(tx, row)
    if info is None:
        raise OMError(KEY_NOT_FOUND, f"no key /{body.volume}/{body.bucket}/{shown(key)}")
    return row, info


# ---- RenameKey


def _check_rename(body: RenameKey) -> None:
    check_place(body.volume, body.bucket)
    check_key_name(body.from_key)
    check_new_key_name(body.to_key)


def _rename(body: RenameKey, prepared: RequestPreparation, tx: RowTransaction) -> None:
    tables.require_bucket(tx, body.volume, body.bucket)
    target = tables.key_key(body.volume, body.bucket, body.to_key)
    if tx.get(KEY_TABLE, target) is not None:
        raise OMError(KEY_ALREADY_EXISTS, f"key /{body.volume}/{body.bucket}/{shown(body.to_key)} exists")
    row, info = _key(tx, body, body.from_key)
    tx.delete(KEY_TABLE, row)
    renamed = replace(info, key=body.to_key, update_id=prepared.index, modification_time_ms=prepared.now_ms)
    tables.put_key(tx, target, renamed)


# ---- ExpireOpenKeys


def _check_expire(body: ExpireOpenKeys) -> None:
    if not 1 <= len(body.rows) <= MAX_EXPIRED_ROWS:
        raise OMError(INVALID_REQUEST, f"1 to {MAX_EXPIRED_ROWS} open keys expire at once, not {len(body.rows)}")
    if len(set(body.rows)) != len(body.rows):
        raise OMError(INVALID_REQUEST, "an open key that is to expire is named twice")


def _expire(body: ExpireOpenKeys, prepared: RequestPreparation, tx: RowTransaction) -> None:
    # Only a node whose wall clock is wrong asks for that, and it would end the sessions of live clients.
    if body.modified_before_ms > prepared.now_ms:
        raise OMError(
            INVALID_REQUEST,
            f"open keys modified before {body.modified_before_ms} cannot expire yet: it is {prepared.now_ms} ms",
        )
    for row in body.rows:
        info = tables.get_open_key(tx, row)
        # Since the leader looked, the key may have been committed, or a live client may have got a block for it.
        if info is not None and info.modification_time_ms < body.modified_before_ms:
            tx.delete(OPEN_KEY_TABLE, row)
            # Without the metadata, which nobody needs any more: even a row of the largest size must be able to expire.
            retire(tx, replace(info, size=0, metadata={}), prepared)


HANDLERS: tuple[AnyHandler, ...] = (
    RequestHandler(body=CreateKey, check=_check_create, apply=_create, blocks=_blocks_for_create),
    RequestHandler(body=AllocateBlock, check=_check_allocate, apply=_allocate, blocks=_block_for_allocate),
    RequestHandler(body=CommitKey, check=_check_commit, apply=_commit, admit=check_written),
    RequestHandler(body=DeleteKey, check=_check_delete, apply=_delete),
    RequestHandler(body=RenameKey, check=_check_rename, apply=_rename),
    RequestHandler(body=ExpireOpenKeys, check=_check_expire, apply=_expire),
)
