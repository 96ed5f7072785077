"""Property test: a diff by table files finds what a comparison of all rows finds.

A history writes, removes, flushes, compacts, and makes checkpoints of a real RocksDB whose files are small. Each pair of
checkpoints is then compared in both ways. The comparison of all rows is the oracle.
"""

from __future__ import annotations

import shutil
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replicated_db.core.diffing import file_plan
from replicated_db.core.diffing.file_plan import KeyRange, TableFile, make_plan
from replicated_db.core.diffing.sweep import RowChange
from replicated_db.shell.diffing.checkpoint_diff import CheckpointDiff
from replicated_db.shell.rocks import RocksStore
from tests.properties.examples import examples

FAMILIES = ["things", "others"]
EXAMPLES = 25
KEYS = st.integers(0, 400).map(lambda number: b"/v/%03d" % number)
RANGES = st.tuples(KEYS, KEYS).map(lambda ends: KeyRange(*sorted(ends)))

Step = tuple[Any, ...]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(FAMILIES), KEYS, st.integers(1, 60), st.integers(0, 3)),
    st.tuples(st.just("remove"), st.sampled_from(FAMILIES), KEYS, st.integers(1, 20)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("compact"), RANGES),
    st.tuples(st.just("compact all")),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("reopen")),
)


def run(store: RocksStore, step: Step, checkpoints: list[Path]) -> RocksStore:
    """Do one step of a history; return the store, which may have been opened anew."""
    match step:
        case ("put", cf, first, count, version):
            start = int(first[3:])
            value = (b"value %d" % version).ljust(200, b".")
            store.write([(cf, b"/v/%03d" % number, value + b"%d" % number) for number in range(start, start + count)])
        case ("remove", cf, first, count):
            start = int(first[3:])
            store.write([(cf, b"/v/%03d" % number, None) for number in range(start, start + count)])
        case ("flush",):
            flush(store)
        case ("compact", wanted):
            table(store).compact_range(wanted.start, wanted.stop)
        case ("compact all",):
            table(store).compact_range(None, None)
        case ("checkpoint",):
            target = store.path.with_name(f"checkpoint-{len(checkpoints)}")
            store.copy_to(target)
            checkpoints.append(target)
        case ("reopen",):
            store.close()
            return RocksStore(store.path, FAMILIES)
    return store


def table(store: RocksStore) -> Any:
    """Return rocksdict's handle of the family: a history decides when files are written."""
    store.write([("things", b"/u", b"1")])  # the family exists once it has a row
    return store._tables["things"]


def flush(store: RocksStore) -> None:
    table(store).flush()


def compared(older: Path, newer: Path, wanted: KeyRange, *, use_files: bool) -> set[RowChange]:
    diff = CheckpointDiff(older, newer, FAMILIES, "things", wanted, use_files=use_files)
    try:
        found = set(diff.rows(lambda _: None))
        assert diff.steps_done == diff.plan.steps
    finally:
        diff.close()
    return found


@given(steps=st.lists(STEPS, min_size=2, max_size=25), wanted=RANGES, listed_cost=st.sampled_from([0, 1, 12]))
@settings(max_examples=examples(EXAMPLES), deadline=None)
def test_files_tell_what_all_rows_tell(steps: list[Step], wanted: KeyRange, listed_cost: int) -> None:
    # Few rows would always be swept: a low cost makes the plan list files, too.
    before, file_plan.LISTED_COST = file_plan.LISTED_COST, listed_cost
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-diff-"))
    checkpoints: list[Path] = []
    store = RocksStore(folder / "store", FAMILIES)
    try:
        for step in [("checkpoint",), *steps, ("checkpoint",)]:
            store = run(store, step, checkpoints)
        for one, other in combinations(checkpoints[-4:], 2):
            for older, newer in ((one, other), (other, one)):
                assert compared(older, newer, wanted, use_files=True) == compared(older, newer, wanted, use_files=False)
    finally:
        file_plan.LISTED_COST = before
        store.close()
        shutil.rmtree(folder)


FILES = st.builds(
    lambda identity, ends, entries, fences, listable: TableFile(
        identity=identity, path=str(identity), first=min(ends), last=max(ends), entries=entries, listable=listable,
        fences=sorted(fence for fence in fences if min(ends) <= fence <= max(ends)),
    ),
    st.integers(0, 30), st.tuples(KEYS, KEYS), st.integers(0, 500_000), st.lists(KEYS, max_size=5), st.booleans(),
)  # fmt: skip


@given(files=st.lists(FILES, max_size=12, unique_by=lambda file: file.identity), data=st.data(), wanted=RANGES)
@settings(max_examples=examples(300), deadline=None)
def test_a_plan_reads_every_key_of_every_differing_file_once(
    files: list[TableFile], data: st.DataObject, wanted: KeyRange
) -> None:
    sides = data.draw(st.lists(st.sampled_from(["old", "new", "both"]), min_size=len(files), max_size=len(files)))
    old = [file for file, side in zip(files, sides, strict=True) if side != "new"]
    new = [file for file, side in zip(files, sides, strict=True) if side != "old"]
    plan = make_plan(old, new, wanted)
    assert all(one.start < one.stop for one in plan.swept)
    assert all(one.stop <= other.start for one, other in zip(plan.swept, plan.swept[1:], strict=False))
    listed = {found.file.identity: found.ranges for found in plan.listed}
    assert all(found.file.listable for found in plan.listed)
    for number in range(401):
        key = b"/v/%03d" % number
        swept = sum(one.start <= key < one.stop for one in plan.swept)
        assert swept <= 1
        assert not swept or wanted.start <= key < wanted.stop
        for file, side in zip(files, sides, strict=True):
            ranges = listed.get(file.identity, [])
            times = sum(one.start <= key < one.stop for one in ranges)
            may_hold = wanted.start <= key < wanted.stop and file.first <= key <= file.last
            assert times == (1 if may_hold and side != "both" and not swept else 0)
