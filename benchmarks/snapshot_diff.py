"""Time of a snapshot diff: told by table files against a comparison of all rows, before and after a compaction.

    python -m benchmarks.snapshot_diff [--folder DIR] [--keys 1000000] [--changes 1000] [--rounds 3] [--costs]

A bucket of `--keys` keys is loaded and compacted, and a snapshot is made. Then `--changes` keys, drawn at random, are
overwritten, renamed or deleted, and a second snapshot is made (`before`). Then the database is compacted, and a third
one is made (`after`). Between the first and the second, and the first and the third, the whole job runs: open the
checkpoints, find the rows that differ, match them, write the entries. `files` is the product; `all rows` compares all.
`kept file` is what a backup of the files before the compaction would allow: the changed files are read although the
database has them no more. `neighbour` diffs a bucket of a tenth of the size that nothing has changed in.
Every figure is the median of `--rounds`. All ways find the same number of entries, or the program fails. Prints a
table, and one JSON object a line.

`--costs` measures instead what a row of a sweep and an entry of a listed file cost (`LISTED_COST`).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace.ids import object_id
from om_processors.namespace.tables import bucket_prefix, key_key, prefix_stop
from om_processors.snapdiff import diff_job
from om_processors.snapdiff.diff_job import DiffJob, DiffRequest, DiffSource
from replicated_db.core.diffing.file_plan import DiffPlan, FileRanges, KeyRange
from replicated_db.core.diffing.sweep import look_up, sweep
from replicated_db.core.ports import Write
from replicated_db.shell.diffing.checkpoint_diff import CheckpointDiff
from replicated_db.shell.rocks import RocksReader, RocksStore
from schemas.codecs.codec import encode
from schemas.column_families import KEY_TABLE
from schemas.records.rows import BlockLocation, KeyInfo

BATCH = 1_000
BUCKET, NEIGHBOUR = "bucket1", "bucket2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One case: median seconds of the job and of the processor, rows read, entries found."""

    case: str
    way: str
    seconds: float
    cpu_seconds: float
    rows: int
    steps: int
    entries: int


def row(bucket: str, name: str, number: int, update: int) -> Write:
    """Return a key of one block, as a commit writes it."""
    block = BlockLocation(container_id=number >> 10, local_id=number, offset=0, length=1 << 20, pipeline="pipeline-1")
    info = KeyInfo(
        volume="vol1", bucket=bucket, key=name, owner="benchmark", object_id=object_id(0, number), update_id=update,
        size=1 << 20, replication="RATIS/THREE", blocks=[block], metadata={},
        creation_time_ms=1_700_000_000_000 + number, modification_time_ms=1_700_000_000_000 + update,
    )  # fmt: skip
    return KEY_TABLE, key_key("vol1", bucket, name), encode(info)


def name_of(number: int) -> str:
    return f"dir-{number * 7919 % 1000:03}/file-{number:08}.parquet"


def load(store: RocksStore, keys: int) -> None:
    """Write the keys in the order of their creation, which is not that of their names."""
    batch: list[Write] = []
    for bucket, count in ((BUCKET, keys), (NEIGHBOUR, keys // 10)):
        for number in range(1, count + 1):
            batch.append(row(bucket, name_of(number), number, number))
            if len(batch) == BATCH:
                store.write(batch)
                batch = []
    store.write(batch)


def change(store: RocksStore, keys: int, changes: int) -> None:
    """Overwrite, rename and delete keys, a third of the changes each, one write each."""
    chosen = random.Random(1).sample(range(1, keys + 1), changes)
    for index, number in enumerate(chosen, start=keys + 1):
        name = name_of(number)
        if index % 3 == 0:
            store.write([row(BUCKET, name, index, index)])
        elif index % 3 == 1:
            store.write([(KEY_TABLE, key_key("vol1", BUCKET, name), None), row(BUCKET, f"moved/{name}", number, index)])
        else:
            store.write([(KEY_TABLE, key_key("vol1", BUCKET, name), None)])


def compact(store: RocksStore) -> None:
    store._tables[KEY_TABLE].compact_range(None, None)


def run(folder: Path, older: Path, newer: Path, bucket: str) -> tuple[float, float, DiffJob]:
    """Run the job; return its seconds, those of the processor, and the job. Close it."""
    request = DiffRequest(volume="vol1", bucket=bucket, from_snapshot="a", from_id=1, to_snapshot="b", to_id=2)
    source = DiffSource(older, newer, lambda _: None, lambda: None)
    job = DiffJob("job", request, source, folder / "job", OM_FAMILIES.names)
    cpu, began = time.process_time(), time.perf_counter()
    job.run()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    if job.progress().error:
        raise SystemExit(job.progress().error)
    return took, used, job


class AllRows(CheckpointDiff):
    """A comparison of all rows."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments, use_files=False)  # type: ignore[arg-type]


class KeptFiles(CheckpointDiff):
    """A diff whose plan is that of two other checkpoints: what a backup of compacted files would allow."""

    kept: DiffPlan

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.plan = self.kept


def planned(older: Path, newer: Path) -> DiffPlan:
    prefix = bucket_prefix("vol1", BUCKET)
    wanted = KeyRange(prefix, prefix_stop(prefix))
    with closing(CheckpointDiff(older, newer, OM_FAMILIES.names, KEY_TABLE, wanted)) as diff:
        return diff.plan


def measure(folder: Path, keys: int, changes: int, rounds: int) -> Iterator[Figures]:
    """Load, change, compact; run all cases."""
    store = RocksStore(folder / "store", OM_FAMILIES.names)
    load(store, keys)
    compact(store)
    one, before, after = folder / "one", folder / "before", folder / "after"
    store.copy_to(one)
    change(store, keys, changes)
    store.copy_to(before)
    compact(store)
    store.copy_to(after)
    store.close()
    KeptFiles.kept = planned(one, before)
    cases: list[tuple[str, str, Path, str, type[CheckpointDiff]]] = [
        ("before", "files", before, BUCKET, CheckpointDiff),
        ("before", "all rows", before, BUCKET, AllRows),
        ("after", "files", after, BUCKET, CheckpointDiff),
        ("after", "all rows", after, BUCKET, AllRows),
        ("after", "kept file", after, BUCKET, KeptFiles),
        ("neighbour, before", "files", before, NEIGHBOUR, CheckpointDiff),
        ("neighbour, after", "files", after, NEIGHBOUR, CheckpointDiff),
    ]
    found: dict[str, set[int]] = {}
    for case, way, newer, bucket, diff in cases:
        vars(diff_job)["CheckpointDiff"] = diff
        times: list[float] = []
        cpu_times: list[float] = []
        for _ in range(rounds):
            took, used, job = run(folder, one, newer, bucket)
            times.append(took)
            cpu_times.append(used)
            progress = job.progress()
            job.close()
        entries = sum(progress.entries.values())
        found.setdefault(bucket, set()).add(entries)
        yield Figures(
            case=case, way=way, seconds=round(statistics.median(times), 4),
            cpu_seconds=round(statistics.median(cpu_times), 4), rows=progress.rows, steps=progress.steps,
            entries=entries,
        )  # fmt: skip
    if any(len(counts) != 1 for counts in found.values()):
        raise SystemExit(f"the ways do not agree: {found}")


def costs(folder: Path, keys: int) -> None:
    """Print what a row of a sweep costs, and an entry of a listed file."""
    store = RocksStore(folder / "store", OM_FAMILIES.names)
    load(store, keys)
    compact(store)
    store.copy_to(folder / "one")
    store.close()
    prefix = bucket_prefix("vol1", BUCKET)
    wanted = KeyRange(prefix, prefix_stop(prefix))
    with (
        closing(RocksReader(folder / "one", OM_FAMILIES.names)) as one,
        closing(RocksReader(folder / "one", OM_FAMILIES.names)) as other,
        closing(CheckpointDiff(folder / "one", folder / "one", OM_FAMILIES.names, KEY_TABLE, wanted)) as diff,
    ):
        swept = timed(lambda: list(sweep(one, other, KEY_TABLE, *wanted, lambda _: None))) / (2 * keys)
        files = _files_of(one, folder / "one", wanted)
        diff.plan = DiffPlan(swept=[], listed=[FileRanges(file, [wanted]) for file in files])
        listed = timed(lambda: list(diff.rows(lambda _: None))) / keys
        some = [key_key("vol1", BUCKET, name_of(number)) for number in random.Random(1).sample(range(1, keys), 5000)]
        looked = timed(lambda: [look_up(one, other, KEY_TABLE, key) for key in sorted(some)]) / len(some)
    print(
        json.dumps(
            {
                "us_per_swept_row": round(swept * 1e6, 2), "us_per_listed_entry": round(listed * 1e6, 2),
                "us_per_scattered_look_up": round(looked * 1e6, 2),
            }
        )
    )  # fmt: skip


def _files_of(reader: RocksReader, folder: Path, wanted: KeyRange) -> list:  # type: ignore[type-arg]
    from replicated_db.shell.diffing.checkpoint_diff import _files

    return list(_files(reader, folder, KEY_TABLE, {}, wanted))


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the databases go (without: a temporary folder)")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--costs", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="snapshot-diff-", dir=given.folder))
    try:
        if given.costs:
            costs(folder, given.keys)
            return
        table = Table(title=f"Snapshot diff: {given.keys} keys, {given.changes} changes")
        for column in ("second snapshot", "way", "seconds", "processor s", "rows read", "steps", "entries"):
            table.add_column(column)
        for figures in measure(folder, given.keys, given.changes, given.rounds):
            print(json.dumps(asdict(figures)), flush=True)
            table.add_row(*map(str, asdict(figures).values()))
        Console().print(table)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
