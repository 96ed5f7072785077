"""Datanodes for tests of reading, copies and repair: real pipelines, stores and stream servers; only a pipeline's replica is a dict."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import block_row, container_key
from datanode_processors.pipelines import Pipelines
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.server import StreamServer
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, encode_block_row
from schemas.codecs.codec import encode
from schemas.column_families import BLOCK_TABLE, CONTAINER_TABLE
from schemas.records.datanode import (
    BlockRow,
    BlockWatched,
    ContainerRow,
    OpenPipeline,
    PipelineReport,
    ReadBlock,
    SalvageBlock,
    WatchBlock,
)
from tests.support.datanodes.checksums import checksums_of
from tests.support.datanodes.hosts import LocalHost
from tests.support.om.dict_transaction import DictTables

CELL = 4096
PARTITION, CONTAINER, BLOCK = 3, 256 + 3, 7
KEY = block_key(CONTAINER, BLOCK)
BCS_ID = 40
DATA = random.Random(1).randbytes(12 * CELL + 100)
CELLS = 13
TIMEOUT_S = 30.0
Request = ReadBlock | SalvageBlock


def row_of(data: bytes = DATA, *, deleted: bool = False) -> BlockRow:
    checksums = checksums_of(data, CELL)
    return BlockRow(bcs_id=BCS_ID, length=len(data), bytes_per_checksum=CELL, checksums=checksums, deleted=deleted)


class Replica:
    """A pipeline as this member sees it: what pipelines and verifier ask of ``pipeline.Pipeline``."""

    def __init__(self) -> None:
        self.partition = PARTITION
        self.store = DictTables()
        self.store.tables |= {BLOCK_TABLE: {}, CONTAINER_TABLE: {}}
        self.replica = SimpleNamespace(position=SimpleNamespace(index=BCS_ID))
        self.unhealthy: dict[bytes, str] = {}
        self.opened = OpenPipeline(pipeline="pipeline-3", partition=PARTITION, generation=1, members=[])

    def put(self, row: BlockRow, local_id: int = BLOCK) -> None:
        self.store.tables[BLOCK_TABLE][block_key(CONTAINER, local_id)] = encode_block_row(row)

    def close(self) -> None:
        """Have the container closed, as far as the rows say."""
        row = ContainerRow(container_id=CONTAINER, closed=True)
        self.store.tables[CONTAINER_TABLE][container_key(CONTAINER)] = encode(row)

    def watch(self, request: WatchBlock) -> BlockWatched:
        row = self.block(request.container_id, request.local_id)
        if row is not None and row.deleted:
            raise BlockError(codes.BLOCK_DELETED, "deleted")
        return BlockWatched(datanode="", bcs_id=BCS_ID, length=row.length if row else 0, satisfied=True)

    def block(self, container_id: int, local_id: int) -> BlockRow | None:
        return block_row(self.store, block_key(container_id, local_id))

    @property
    def members(self) -> list[str]:
        return [member.datanode for member in self.opened.members]

    def report(self) -> PipelineReport:
        return PipelineReport(
            partition=self.partition, generation=1, leading=False, applied_index=BCS_ID, healthy=not self.unhealthy,
            fault=next(iter(self.unhealthy.values()), ""),
        )  # fmt: skip

    def on_verified(self, key: bytes, length: int) -> None:
        assert length >= 0
        self.unhealthy.pop(key, None)

    def on_all_verified(self, blocks: Sequence[tuple[bytes, int]]) -> None:
        for key, length in blocks:
            self.on_verified(key, length)

    def on_failed(self, key: bytes, reason: str) -> None:
        self.unhealthy[key] = reason

    def forget(self, key: bytes) -> None:
        self.unhealthy.pop(key, None)


class Node:
    """A datanode that is a member of the pipeline, or has nothing but a copy."""

    def __init__(
        self, name: str, folder: Path, *, member: bool = True, fatal: Callable[[BaseException], None] | None = None
    ) -> None:  # fmt: skip
        """``fatal`` is told what would end the process; without it, that is raised where it happens."""
        self.name = name
        self.notes: list[str] = []
        self.store = BlockStore(folder / name)
        self.replica = Replica()
        self.config = DatanodeConfig(
            node=name,
            cluster="test",
            host="127.0.0.1",
            port=0,
            http_port=0,
            bootstrap_servers="",
            data_dir=folder / name,
        )
        host = LocalHost(self.config, note=self._note, fatal=fatal)
        self.pipelines = Pipelines(self.config, self.store, host, opened=lambda: None)
        if member:
            self.replica.put(row_of())
            replica: Any = self.replica
            self.pipelines.table.put(PARTITION, replica)
        self.server = StreamServer(
            name=name, cluster="test", host="127.0.0.1", port=0, blocks=self.store, pipelines=self.pipelines,
            note=self._note, limits=WireLimits(stop_grace_s=0.2),
        )  # fmt: skip
        self.address = f"127.0.0.1:{self.server.port}"
        self.path = self.store.container_folder(CONTAINER) / f"{BLOCK}.block"

    def _note(self, message: str, **_: Any) -> None:
        self.notes.append(message)

    def write(self, data: bytes = DATA, local_id: int = BLOCK) -> None:
        with self.store.open_writer(CONTAINER, local_id, 0, CELL) as writer:
            writer.write(0, data)
            writer.flush()

    def damage(self, *cells: int) -> None:
        """Turn a byte of each cell over on the disk."""
        descriptor = os.open(self.path, os.O_RDWR)
        for cell in cells:
            at = cell * CELL + 9
            os.pwrite(descriptor, bytes([os.pread(descriptor, 1, at)[0] ^ 1]), at)
        os.close(descriptor)

    def ask(self, request: Request) -> tuple[bytes, BlockError | None]:
        """Return the bytes that came, and the error that ended the answer. Every cell that comes must be the right one."""
        found = bytearray()
        with Peer(self.address, own="dn9", cluster="test", timeout_s=TIMEOUT_S) as peer:
            try:
                for at, data, _ in peer.read_block(request):
                    assert data == DATA[at : at + len(data)], f"wrong bytes at {at}"
                    found += data
            except BlockError as error:
                return bytes(found), error
        return bytes(found), None

    def read(self, offset: int = 0, length: int = len(DATA), **changes: Any) -> tuple[bytes, BlockError | None]:
        return self.ask(
            ReadBlock(
                **{
                    "partition": PARTITION, "container_id": CONTAINER, "local_id": BLOCK, "offset": offset,
                    "length": length, "bcs_id": BCS_ID, "committed_only": True, **changes,
                }
            )
        )  # fmt: skip

    def salvage(
        self, offset: int = 0, length: int = len(DATA), bcs_id: int = BCS_ID
    ) -> tuple[bytes, BlockError | None]:
        return self.ask(
            SalvageBlock(
                partition=PARTITION, container_id=CONTAINER, local_id=BLOCK, offset=offset, length=length, bcs_id=bcs_id
            )
        )

    def stop(self) -> None:
        self.server.stop()
