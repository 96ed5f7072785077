"""A pipeline's log, rows and reports of stored bytes, beside a model of each member's disk.

Blocks are real bytes: a row holds the CRC32C of each cell of what was written, a member's report those of what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from datanode_processors.blocks.core.digests import container_digest
from schemas.codecs.block_rows import block_key, encode_block_row
from schemas.column_families import BLOCK_TABLE, CONTAINER_TABLE, DN_COLUMN_FAMILIES
from schemas.records.datanode import BlockReport, BlockRow, ContainerDigest
from schemas.records.log import Merge
from tests.support.logs.logbuilder import CLUSTER, At, LogBuilder

MEMBERS = ("dn1", "dn2", "dn3")
CELL = 512
Disk = Mapping[tuple[int, int], bytes]
"""Bytes of each block, by container id and local id."""


def cells(data: bytes) -> bytes:
    return b"".join(crc32c(data[at : at + CELL]).to_bytes(4, "big") for at in range(0, len(data), CELL))


def block_row(data: bytes, *, bcs_id: int = 1, deleted: bool = False) -> bytes:
    row = BlockRow(
        bcs_id=bcs_id, length=len(data), bytes_per_checksum=CELL, checksums=b"" if deleted else cells(data),
        deleted=deleted,
    )  # fmt: skip
    return encode_block_row(row)


@dataclass
class PipelineLog(LogBuilder):
    """A LogBuilder with a pipeline's column families and members; ``disk`` is what every healthy member has."""

    families: tuple[str, ...] = DN_COLUMN_FAMILIES
    replicas: tuple[str, ...] = MEMBERS
    disk: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def put_block(self, container_id: int, local_id: int, data: bytes) -> Merge:
        """A PutBlock; of several of one block, the longest counts."""
        block = (container_id, local_id)
        if len(data) > len(self.disk.get(block, b"")):
            self.disk[block] = data
        return self.merge_max(block_key(*block), block_row(data, bcs_id=self.index + 1))

    def delete_block(self, container_id: int, local_id: int) -> Merge:
        self.disk.pop((container_id, local_id), None)
        return self.merge_max(block_key(container_id, local_id), block_row(b"", deleted=True))

    def block_report(self, at: At, datanode: str, disk: Disk | None = None) -> BlockReport:
        """What a member with ``disk`` reports; a block that is missing there, or is not as committed, is named."""
        held = self.disk if disk is None else disk
        containers = []
        for container in sorted({block[0] for block in self.disk}):
            blocks = sorted(block for block in self.disk if block[0] == container)
            found = [(block[1], len(held.get(block, b"")), cells(held.get(block, b""))) for block in blocks]
            damaged = [block_key(*block) for block in blocks if held.get(block) != self.disk[block]]
            containers.append(
                ContainerDigest(
                    container_id=container, blocks=len(blocks), used_bytes=sum(len(self.disk[block]) for block in blocks),
                    digest=container_digest(container, found), unreadable=damaged,
                )
            )  # fmt: skip
        return BlockReport(
            cluster=CLUSTER, datanode=datanode, partition=self.shard, index=at.index, log_offset=at.offset,
            containers=containers, complete=True, reported_at_ms=self.timestamp_ms,
        )  # fmt: skip


def ordinary_pipeline(shard: int = 0, blocks: int = 12) -> PipelineLog:
    """Blocks in two containers that grow, PutBlocks out of order and sent twice, deletions with late PutBlocks, a change of leader."""
    log = PipelineLog(shard=shard, shards=256).start()
    base = (shard + 1) * 1000
    for n in range(blocks):
        container, data = base + n % 2, bytes([n]) * (300 * n + 1)
        operations = [log.put_block(container, n, data[: len(data) // 2]), log.put_block(container, n, data)]
        operations.append(log.put_block(container, n, data[: len(data) // 3]))
        operations.append(log.put_block(container, n, data))
        log.batch(*operations, results=1, recorded=False)
        if n % 4 == 3:
            log.batch(log.delete_block(base + (n - 1) % 2, n - 1), results=1, recorded=False)
            # A void PutBlock after the deletion: the model's disk takes nothing of it.
            late = log.merge_max(block_key(base + (n - 1) % 2, n - 1), block_row(b"late" * 500))
            log.batch(late, log.put(CONTAINER_TABLE, base.to_bytes(8, "big"), b"closed"), results=1, recorded=False)
            log.barrier()
        if n == blocks // 2:
            old = log.nonce
            log.lost_claim()
            log.claim("dn2")
            stale = log.batch_of([log_only(container, n)], [], 1)
            log.append(replace(stale, term=log.term - 1, nonce=old))
    log.barrier(scrub=True)
    return log


def log_only(container: int, local_id: int) -> Merge:
    """A PutBlock that changes no model, for records that do not count."""
    return Merge(
        cf=BLOCK_TABLE, key=block_key(container, local_id), operator="max_bytes", operand=block_row(b"stale" * 999),
        prev=None, next=1,
    )  # fmt: skip
