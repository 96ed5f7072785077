"""One node's pages about snapshot diffs, over a real database with real checkpoints, without brokers."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from pathlib import Path
from typing import Any

from om_processors.execution.service import OM_FAMILIES
from om_processors.serving.consistency import Consistency
from om_processors.serving.http_api import answered
from om_processors.serving.snapshot_diff_api import SnapshotDiffApi
from om_processors.snapdiff.diff_jobs import DiffJobs
from schemas.records.messages import DeleteKey, RenameKey
from schemas.records.rows import SnapshotInfo
from tests.support.om.snapshot_node import SnapshotNode

TIMEOUT_S = 30
Answer = tuple[int, dict[str, Any]]

ENTRIES = [
    {"kind": "DELETE", "key": "b"},
    {"kind": "RENAME", "key": "a", "to_key": "a2"},
    {"kind": "CREATE", "key": "d"},
    {"kind": "MODIFY", "key": "c"},
]
"""What :meth:`DiffNode.change` leaves, from snapshot ``one`` to now."""


class DiffNode:
    """The API of one node; each method returns status and body."""

    def __init__(self, folder: Path, name: str = "om1") -> None:
        self.folder = folder
        self.node = SnapshotNode(folder)
        # Two nodes of one test never give the same id.
        first, ids = int.from_bytes(name.encode(), "big") << 32, count()
        self.jobs = DiffJobs(
            folder / "diffs", OM_FAMILIES.names, lambda: f"{first + next(ids):032x}", self.node.failures.append
        )
        replicas = {0: self.node.replica}
        consistency = Consistency(None, replicas, {}, self.node.failures.append)  # type: ignore[arg-type] # stale reads ask nobody
        self.api = SnapshotDiffApi(name, replicas, consistency, self.jobs)

    def change(self) -> SnapshotInfo:
        """Take snapshot ``one`` of three keys; then rename one, delete one, overwrite one, and make a fourth."""
        for name in ("a", "b", "c"):
            self.node.put(name)
        info = self.node.snapshot("one")
        self.node.do(RenameKey(volume="vol1", bucket="bucket1", from_key="a", to_key="a2"))
        self.node.do(DeleteKey(volume="vol1", bucket="bucket1", key="b"))
        self.node.put("c")
        self.node.put("d")
        return info

    def begin(self, bucket: str = "bucket1", **query: str) -> Answer:
        given = {"consistency": "stale", **{name.rstrip("_"): value for name, value in query.items()}}
        return asyncio.run(answered(lambda: self.api.begin(given, "vol1", bucket)))

    def look(self, job: str, **query: str) -> Answer:
        return asyncio.run(answered(lambda: self.api.look(query, job)))

    def cancel(self, job: str) -> Answer:
        return asyncio.run(answered(lambda: self.api.cancel(job)))

    def ended(self, begun: Answer) -> dict[str, Any]:
        """Wait for the end of a job that was begun; return what is said of it."""
        status, body = begun
        assert status == 200, body
        deadline = time.monotonic() + TIMEOUT_S
        while body["state"] in ("QUEUED", "RUNNING", "CANCELLING"):
            assert time.monotonic() < deadline
            time.sleep(0.005)
            status, body = self.look(body["job"])
            assert status == 200
        return body

    def close(self) -> None:
        self.api.close()
        self.jobs.close()
        self.node.close()
