"""One node's HTTP API over a real database with real checkpoints, without brokers: rows come from the pure execution."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace import snapshots
from om_processors.serving.consistency import Consistency
from om_processors.serving.http_api import OMHttpApi, answered
from om_processors.serving.snapshot_reads import SnapshotReads
from om_processors.snapshots.checkpoints import CheckpointName, RocksCheckpoints
from om_processors.snapshots.open_snapshots import OpenSnapshots
from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.shell.rocks import RocksStore
from schemas.column_families import OM_COLUMN_FAMILIES
from schemas.records.messages import CommitKey, CreateKey, CreateSnapshot, DeleteSnapshot, RequestBody
from schemas.records.rows import SnapshotInfo
from tests.support.om.om_world import World


class SnapshotNode:
    """A node with one shard; ``get`` answers as its HTTP API does. Volume ``vol1`` with ``bucket1`` is there."""

    def __init__(self, folder: Path) -> None:
        self.world = World().make()
        self.path = folder / "shard-0"
        self.store = RocksStore(self.path, OM_FAMILIES.names, kept=snapshots.CHECKPOINT_PREFIX)
        identity = Identity(cluster="test", shard=0, shards=1, node="om1")
        self.replica = Replica(identity, OM_FAMILIES, self.store, threading.RLock())
        self.checkpoints = RocksCheckpoints({0: self.path}, OM_FAMILIES.names)
        self.opened = OpenSnapshots(self.checkpoints)
        self.failures: list[BaseException] = []
        replicas = {0: self.replica}
        consistency = Consistency(None, replicas, {}, self.failures.append)  # type: ignore[arg-type] # stale reads ask nobody
        reads = SnapshotReads("om1", replicas, self.opened)
        self.api = OMHttpApi(replicas, consistency, None, reads, self.failures.append)  # type: ignore[arg-type]

    def do(self, body: RequestBody) -> Any:
        """Execute a request, and write the rows as they are afterwards."""
        done = self.world.do(body)
        self.write()
        return done

    def write(self) -> None:
        """Write all rows of the execution into the store, and remove the others."""
        writes: list[tuple[str, bytes, bytes | None]] = []
        for family in OM_COLUMN_FAMILIES:
            rows = self.world.tables.tables[family]
            gone = [key for key, _ in self.store.iterate(family, b"") if key not in rows]
            writes += [(family, key, None) for key in gone]
            writes += [(family, key, value) for key, value in rows.items()]
        self.store.write(writes)

    def put(self, key: str, size: int = 1, bucket: str = "bucket1") -> None:
        """Write a key."""
        opened = self.world.session(CreateKey(volume="vol1", bucket=bucket, key=key, size=size))
        self.do(CommitKey(volume="vol1", bucket=bucket, key=key, session_id=opened.session_id, size=size))

    def snapshot(self, name: str, bucket: str = "bucket1") -> SnapshotInfo:
        """Take a checkpoint, and then write the row of the snapshot that names it."""
        self.write()
        self.world.do(CreateSnapshot(volume="vol1", bucket=bucket, snapshot=name))
        info = snapshots.require_snapshot(self.world.tables, "vol1", bucket, name)
        self.store.checkpoint(info.checkpoint)
        self.write()
        return info

    def delete(self, info: SnapshotInfo) -> None:
        """Delete a snapshot; its row waits to be purged, and its checkpoint stays."""
        self.do(DeleteSnapshot(volume=info.volume, bucket=info.bucket, snapshot=info.snapshot))

    def folder(self, info: SnapshotInfo) -> Path:
        """Return the directory of a snapshot's checkpoint."""
        return self.checkpoints.folder(CheckpointName(0, info.checkpoint))

    def get(self, page: str, *, bucket: str = "bucket1", snapshot: str | None = None, **query: str) -> Any:
        """Return status and body of ``keys``, ``key``, ``snapshots`` or ``snapshot`` of a bucket of ``vol1``."""
        handler = getattr(self.api, page)
        parts = {"volume": "vol1", "bucket": bucket} | ({} if snapshot is None else {"snapshot": snapshot})
        return asyncio.run(answered(lambda: handler({"consistency": "stale", **query}, **parts)))

    def close(self) -> None:
        """Close the databases; a failure that would have ended the process is an error here."""
        self.api.close()
        self.opened.close()
        self.store.close()
        assert self.failures == []
