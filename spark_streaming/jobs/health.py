"""The health file: a small JSON object, replaced atomically, with which a job shows its state to its parent.

    {"status": "starting" | "running" | "stopped" | "failed", "pid", "updated_at_ms", "batch_id", "error",
     "metrics": "host:port" of the metrics, "offsets": {topic: {partition: next offset}},
     "verdicts": {"[<log>/]<shard>/<node>/<basis>": main fields of the last Verdict; om.log's have no "<log>/"}}

The status is ``running`` once the first micro-batch is written.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.records.messages import Verdict
from schemas.topics import OM_LOG

MAX_VERDICTS = 4096
"""Most entries of ``verdicts``: far more than shards times replicas times bases of one cluster."""


class JobHealth:
    """Keeps and writes the health file; thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {
            "status": "starting", "pid": os.getpid(), "batch_id": None, "error": None, "offsets": {}, "verdicts": {},
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        self.update()

    def update(self, **changed: Any) -> None:
        """Set fields and write the file."""
        with self._lock:
            self._state |= changed
            self._state["updated_at_ms"] = time.time_ns() // 1_000_000
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(json.dumps(self._state))
            temporary.replace(self._path)

    def on_written(self, batch_id: int, verdicts: Sequence[Verdict]) -> None:
        """Note a micro-batch that has been written."""
        self._note(verdicts)
        self.update(status="running", batch_id=batch_id)

    def on_named(self, verdict: Verdict) -> None:
        """Note a verdict whose keys have been named, unless a later one has been given."""
        with self._lock:
            known = self._state["verdicts"].get(_subject(verdict))
        if known is not None and known["barrier_offset"] <= verdict.barrier_offset:
            self._note([verdict])
            self.update()

    def _note(self, verdicts: Sequence[Verdict]) -> None:
        with self._lock:
            latest: dict[str, Any] = self._state["verdicts"]
            for verdict in verdicts:
                latest[_subject(verdict)] = brief(verdict)
            while len(latest) > MAX_VERDICTS:
                latest.pop(next(iter(latest)))


def _subject(verdict: Verdict) -> str:
    log = "" if verdict.log == OM_LOG else f"{verdict.log}/"
    return f"{log}{verdict.shard}/{verdict.node}/{verdict.basis}"


def brief(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict's main fields."""
    names = (
        "log",
        "shard",
        "node",
        "barrier_offset",
        "index",
        "verdict",
        "basis",
        "differing_slots",
        "reason",
        "decided_at_ms",
    )
    return {name: getattr(verdict, name) for name in names}
