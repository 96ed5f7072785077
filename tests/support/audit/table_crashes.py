"""A program: tables are written through a crash after each of their commits, and must be as if there had been none.

python -m tests.support.audit.table_crashes FOLDER

It has a Spark session of its own with Delta, which a process of tests may not have. Prints one JSON object: for each
crash (after so many commits of the crashed start) whether all tables are those of an undisturbed run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from om_processors.namespace import ids
from schemas.records import messages as m
from spark_streaming.records.batch_gate import BatchGate
from spark_streaming.records.session import build_session
from spark_streaming.tables.definitions import TABLES
from spark_streaming.tables.delta_tables import DeltaTables
from spark_streaming.tables.keeping import table_settings
from spark_streaming.tables.sink import TableSink
from stratolog.local.jars import delta_jars, spark_jars
from tests.support.om.late_world import LateWorld

COMMITS = 5
"""Of a micro-batch that changes every table."""


class Crashed(Exception):
    """The process is gone, as it were."""


class CrashingTables(DeltaTables):
    """Crashes when so many commits have been made."""

    def __init__(self, session: SparkSession, root: Path, commits: int) -> None:
        super().__init__(session, root)
        self.left = commits

    def _commit(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crashed

    def append(self, name: str, rows: DataFrame, metadata: str) -> None:
        super().append(name, rows, metadata)
        self._commit()

    def overwrite(self, name: str, rows: DataFrame, metadata: str) -> None:
        super().overwrite(name, rows, metadata)
        self._commit()

    def merge(self, name: str, rows: DataFrame, clauses: str, on: Any, metadata: str) -> None:
        super().merge(name, rows, clauses, on, metadata)
        self._commit()


def values() -> list[bytes]:
    """A leader's log: keys of several sizes, overwritten, deleted, renamed, and a bucket that is made again."""
    random, world = Random(5), LateWorld(force="leader")
    world.do(m.CreateVolume(volume="vol1"))
    for bucket in ("bucket1", "bucket2"):
        world.do(m.CreateBucket(volume="vol1", bucket=bucket))
    for step in range(60):
        place: Any = {"volume": "vol1", "bucket": random.choice(["bucket1", "bucket2"])}
        key = f"key{random.randrange(8)}"
        size = random.choice([0, 900, 5_000])
        index = world.leader.index + 1
        world.submit(world.request(m.CreateKey(**place, key=key, size=size)))
        session = ids.session_id(ids.object_id(0, index))
        world.submit(world.request(m.CommitKey(**place, key=key, session_id=session, size=size)))
        if step % 3 == 0:
            world.submit(world.request(m.RenameKey(**place, from_key=key, to_key=f"moved{step}")))
        if step % 4 == 0:
            world.submit(world.request(m.DeleteKey(**place, key=f"key{random.randrange(8)}")))
        if step % 5 == 0:
            world.settle()
    world.do(m.CreateBucket(volume="vol1", bucket="bucket3"))
    world.do(m.DeleteBucket(volume="vol1", bucket="bucket3"))
    world.do(m.CreateBucket(volume="vol1", bucket="bucket3"))
    return [entry.value for entry in world.log.entries]


class Keeper:
    """Writes micro-batches of one log into the tables of a folder, from where they are."""

    def __init__(self, session: SparkSession, root: Path, log: Sequence[bytes]) -> None:
        self.session = session
        self.root = root
        self.log = log

    def write(self, until: Sequence[int], crash_after: int = 0) -> None:
        """Write micro-batches that end at these offsets; ``crash_after`` so many commits, 0 for never."""
        tables = CrashingTables(self.session, self.root, crash_after)
        for definition in TABLES:
            tables.open(definition)
        sink = TableSink(tables, BatchGate(), lambda _positions, _operations: None)
        for end in until:
            held = sink.positions.get(0)
            start = 0 if held is None else held.reading.next_offset
            rows = [(0, offset, bytearray(self.log[offset])) for offset in range(start, end)]
            if rows:
                sink(self.session.createDataFrame(rows, "shard int, offset long, value binary"), 0)

    def content(self) -> dict[str, list[str]]:
        tables = DeltaTables(self.session, self.root)
        return {
            one.name: sorted(json.dumps(row.asDict(recursive=True), default=str) for row in tables.read(one.name).collect())
            for one in TABLES
        }  # fmt: skip


def main(folder: str) -> int:
    """Crash after each commit of the second micro-batch; go on with smaller and with larger ones."""
    root = Path(folder)
    session = build_session(table_settings((*spark_jars(), *delta_jars()), root / "spark", master="local[1]"))
    log = values()
    half, most = len(log) // 2, 3 * len(log) // 4
    whole = Keeper(session, root / "whole", log)
    whole.write([half, most, len(log)])
    expected = whole.content()
    found = {}
    for crash in range(1, COMMITS + 1):
        keeper = Keeper(session, root / f"crash-{crash}", log)
        keeper.write([half])
        try:
            keeper.write([most], crash_after=crash)
        except Crashed:
            pass
        keeper.write([(half + most) // 2, len(log)] if crash % 2 else [len(log)])
        content = keeper.content()
        found[crash] = [name for name, rows in expected.items() if content[name] != rows]
    rows = {name: len(rows) for name, rows in expected.items()}
    print(json.dumps({"differing": found, "rows": rows, "records": len(log)}))
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
