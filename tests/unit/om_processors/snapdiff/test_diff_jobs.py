"""The diff jobs of a node, on real checkpoints: their life, their bounds, what they leave on the disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from om_processors.namespace.tables import key_key
from om_processors.snapdiff import diff_job
from om_processors.snapdiff.core.entries import CREATE, DELETE, MODIFY, RENAME, DiffEntry, Scratch, finish
from om_processors.snapdiff.core.job_states import TABLE, JobEvent, JobState, RefusedEvent, next_state
from om_processors.snapdiff.diff_job import DiffJob, DiffRequest, DiffSource, DiffStopped
from om_processors.snapdiff.diff_jobs import IDLE_MS, KEPT_MS, MAX_DIFF_JOBS, DiffJobs, DiffsBusy, UnknownDiff
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.rocks import RocksStore
from schemas.codecs.codec import encode
from schemas.column_families import KEY_TABLE, OM_COLUMN_FAMILIES
from schemas.records.rows import KeyInfo

REQUEST = DiffRequest(volume="v", bucket="b", from_snapshot="s1", from_id=1, to_snapshot="s2", to_id=2)
NOW = replace(REQUEST, to_snapshot=None, to_id=None)
TIMEOUT_S = 30


def key(name: str, object_id: int, update_id: int = 1) -> tuple[str, bytes, bytes]:
    info = KeyInfo(
        volume="v", bucket="b", key=name, owner="ann", object_id=object_id, update_id=update_id, size=0,
        replication="RATIS/THREE", blocks=[], metadata={}, creation_time_ms=1, modification_time_ms=update_id,
    )  # fmt: skip
    return KEY_TABLE, key_key("v", "b", name), encode(info)


class Case:
    """A database with two checkpoints, and the jobs over it. ``lost`` is what the next look at the snapshots finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = RocksStore(folder / "shard-0", OM_COLUMN_FAMILIES)
        self.store.write([key(f"k{number:04}", number) for number in range(1, 3001)])
        self.store.copy_to(folder / "s1")
        self.store.write(
            [
                key("new", 9001, 2), key("k0003", 9003, 2), key("k0004", 4, 2), key("moved", 5, 2),
                *((KEY_TABLE, key_key("v", "b", name), None) for name in ("k0001", "k0005")),
            ]
        )  # fmt: skip
        self.store.copy_to(folder / "s2")
        self.now_ms = 1_000
        self.lost: str | None = None
        self.failures: list[BaseException] = []
        self.ids = count(1)
        self.jobs = self.opened()

    def opened(self) -> DiffJobs:
        return DiffJobs(
            self.folder / "diffs", OM_COLUMN_FAMILIES, lambda: f"job-{next(self.ids)}", self.failures.append,
            lambda: self.now_ms,
        )  # fmt: skip

    def source(self, newer: str | None = "s2") -> DiffSource:
        return DiffSource(
            self.folder / "s1", None if newer is None else self.folder / newer, self.store.copy_to, lambda: self.lost
        )

    def submit(self, request: DiffRequest = REQUEST) -> DiffJob:
        return self.jobs.submit(request, self.source(None if request.to_id is None else "s2"))

    def on_disk(self) -> list[str]:
        folder = self.folder / "diffs"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    case.jobs.close()
    case.store.close()
    assert case.failures == []


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline, "not reached"
        time.sleep(0.005)


def ended(job: DiffJob) -> DiffJob:
    until(lambda: job.state not in (JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING))
    return job


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold the job that runs at its first rows until the event is set."""
    go = threading.Event()
    check = DiffJob._on_rows

    def on_rows(self: DiffJob, rows: int) -> None:
        assert go.wait(TIMEOUT_S)
        check(self, rows)

    monkeypatch.setattr(DiffJob, "_on_rows", on_rows)
    yield go
    go.set()


ENTRIES = [
    DiffEntry(kind=DELETE, key="k0001"),
    DiffEntry(kind=RENAME, key="k0005", to_key="moved"),
    DiffEntry(kind=CREATE, key="new"),
    DiffEntry(kind=MODIFY, key="k0003"),
    DiffEntry(kind=MODIFY, key="k0004"),
]


@pytest.mark.parametrize("request_", [REQUEST, NOW])
def test_a_job_finds_the_entries(case: Case, request_: DiffRequest):
    job = ended(case.submit(request_))
    progress = job.progress()
    assert progress.state is JobState.DONE, progress.error
    assert progress.entries == {DELETE: 1, RENAME: 1, CREATE: 1, MODIFY: 2}
    assert progress.steps_done == progress.steps > 0
    assert progress.rows > 0
    assert job.page(b"", 100) == (ENTRIES, None)
    assert case.on_disk() == [job.job_id]
    assert [path.name for path in (case.folder / "diffs" / job.job_id).iterdir()] == ["rows"]


def test_a_thread_that_fails_ends_the_process(case: Case, monkeypatch: pytest.MonkeyPatch):
    """It died in silence, and every later job waited for ever."""

    def no_entry(_: DiffJob) -> None:
        raise OSError("the disk is gone")

    ended(case.submit())
    case.now_ms += KEPT_MS
    monkeypatch.setattr(DiffJob, "close", no_entry)
    case.jobs._changed.acquire()
    case.jobs._changed.notify_all()
    case.jobs._changed.release()
    until(lambda: bool(case.failures))
    assert [str(error) for error in case.failures] == ["the disk is gone"]
    case.failures.clear()
    monkeypatch.undo()


def test_now_is_the_present_state(case: Case):
    case.store.write([key("later", 9999, 3)])
    found = ended(case.submit(NOW)).page(b"", 100).entries
    assert DiffEntry(kind=CREATE, key="later") in found
    assert len(found) == len(ENTRIES) + 1


def test_pages(case: Case, monkeypatch: pytest.MonkeyPatch):
    job = ended(case.submit())
    found: list[DiffEntry] = []
    after: bytes | None = b""
    while after is not None:
        page = job.page(after, 2)
        assert 1 <= len(page.entries) <= 2
        found += page.entries
        after = page.next_after
    assert found == ENTRIES
    monkeypatch.setattr(diff_job, "MAX_PAGE_BYTES", 1)
    assert len(job.page(b"", 100).entries) == 1  # at least one, however long


def test_the_same_diff_is_made_once(case: Case):
    first = case.submit()
    assert case.submit(replace(REQUEST, from_snapshot="renamed")) is first
    ended(first)
    assert case.submit() is first
    assert case.submit(replace(REQUEST, to_id=3)) is not first
    assert case.submit(NOW) is not case.submit(NOW)


def test_a_job_is_cancelled_while_it_runs(case: Case, held: threading.Event):
    job = case.submit()
    until(lambda: job.state is JobState.RUNNING)
    job.on(JobEvent.CANCEL)
    job.on(JobEvent.CANCEL)
    assert job.state is JobState.CANCELLING
    held.set()
    assert ended(job).state is JobState.CANCELLED
    assert job.page(b"", 10) == ((), None)
    until(lambda: case.on_disk() == [])
    assert ended(case.submit()).state is JobState.DONE  # it is asked for anew


def test_a_job_is_cancelled_before_it_runs(case: Case, held: threading.Event):
    running, waiting = case.submit(), case.submit(replace(REQUEST, to_id=3))
    waiting.on(JobEvent.CANCEL)
    held.set()
    assert ended(running).state is JobState.DONE
    assert waiting.state is JobState.CANCELLED
    assert waiting.progress().rows == 0


def test_a_job_that_is_done_cannot_be_cancelled(case: Case):
    job = ended(case.submit())
    with pytest.raises(RefusedEvent, match="DONE takes no on_cancel"):
        job.on(JobEvent.CANCEL)


def test_a_snapshot_that_is_deleted_meanwhile_fails_the_job(case: Case, held: threading.Event):
    job = case.submit()
    until(lambda: job.state is JobState.RUNNING)
    case.lost = "snapshot s1 was deleted"
    held.set()
    assert ended(job).progress().error == "snapshot s1 was deleted"
    until(lambda: case.on_disk() == [])


def test_a_snapshot_that_is_deleted_fails_the_job_that_is_asked_about(case: Case, held: threading.Event):
    job = case.submit()
    until(lambda: job.state is JobState.RUNNING)
    case.lost = "snapshot s1 was deleted"
    job.check_snapshots()
    assert job.state is JobState.FAILED
    held.set()
    until(lambda: case.on_disk() == [])
    assert job.progress().error == "snapshot s1 was deleted"


def test_a_snapshot_that_is_deleted_afterwards_takes_the_entries_with_it(case: Case):
    job = ended(case.submit())
    case.lost = "snapshot s2 was deleted"
    job.check_snapshots()
    assert job.progress().error == "snapshot s2 was deleted"
    assert job.page(b"", 10) == ((), None)
    assert case.on_disk() == []


def test_a_checkpoint_that_is_not_there_is_named(case: Case):
    source = case.source()._replace(older=case.folder / "absent")
    job = ended(case.jobs.submit(REQUEST, source))
    assert job.state is JobState.FAILED
    assert "absent" in job.progress().error
    until(lambda: case.on_disk() == [])


def test_a_diff_that_is_too_large_fails(case: Case):
    job = DiffJob("large", REQUEST, case.source(), case.folder / "large", OM_COLUMN_FAMILIES)
    job.run(max_bytes=100)
    assert job.state is JobState.FAILED
    assert "more than 100 bytes of disk" in job.progress().error
    assert not (case.folder / "large").exists()


def test_jobs_are_bounded(case: Case):
    jobs = [ended(case.submit(replace(REQUEST, to_id=number))) for number in range(10, 10 + MAX_DIFF_JOBS)]
    with pytest.raises(DiffsBusy, match=f"{MAX_DIFF_JOBS} snapshot diffs"):
        case.submit(NOW)
    case.now_ms += IDLE_MS
    case.jobs.job(jobs[0].job_id)  # somebody reads it
    case.submit(NOW)
    case.jobs.job(jobs[0].job_id)
    with pytest.raises(UnknownDiff, match=jobs[1].job_id):
        case.jobs.job(jobs[1].job_id)


def test_waiting_jobs_make_no_room(case: Case, held: threading.Event):
    for number in range(MAX_DIFF_JOBS):
        case.submit(replace(REQUEST, to_id=number + 10))
    case.now_ms += IDLE_MS
    with pytest.raises(DiffsBusy):
        case.submit(NOW)
    held.set()


def test_a_job_that_nobody_asks_about_is_forgotten(case: Case):
    job = ended(case.submit())
    case.now_ms += KEPT_MS - 1
    assert case.jobs.job(job.job_id) is job
    case.now_ms += KEPT_MS
    with pytest.raises(UnknownDiff):
        case.jobs.job(job.job_id)
    assert case.on_disk() == []


def test_a_job_that_runs_and_that_nobody_asks_about_is_cancelled(case: Case, held: threading.Event):
    job = case.submit()
    until(lambda: job.state is JobState.RUNNING)
    case.now_ms += KEPT_MS
    case.jobs.job(case.submit(NOW).job_id)
    assert job.state is JobState.CANCELLING
    held.set()
    assert ended(job).state is JobState.CANCELLED


def test_what_a_node_has_left_goes_when_it_starts(case: Case):
    left = case.folder / "diffs" / "job-0" / "rows"
    left.mkdir(parents=True)
    case.jobs.close()
    left.mkdir(parents=True)
    case.jobs = case.opened()
    assert case.on_disk() == []


def test_the_end_of_the_node_stops_the_job_that_runs(case: Case, held: threading.Event):
    job = case.submit()
    until(lambda: job.state is JobState.RUNNING)
    threading.Timer(0.05, held.set).start()
    case.jobs.close()
    assert job.state is JobState.CANCELLED
    assert case.on_disk() == []
    with pytest.raises(DiffsBusy):
        case.submit()
    case.jobs.close()


def test_a_defect_fails_the_job_and_no_other(case: Case, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(diff_job, "match_rows", broken)
        job = ended(case.submit())
    assert job.progress().error == "ZeroDivisionError: a defect"
    assert ended(case.submit(NOW)).state is JobState.DONE


@pytest.mark.parametrize("error", [DiffStopped(), ZeroDivisionError("a defect"), StoreFailure("the disk is full")])
def test_an_error_while_entries_are_matched_leaves_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    """The database of the job is being read then."""

    def failing(scratch: Scratch, on_row: Callable[[], None]) -> None:
        def fail() -> None:
            raise error

        finish(scratch, fail)

    with monkeypatch.context() as patch:
        patch.setattr(diff_job, "finish", failing)
        job = ended(case.submit())
        assert job.state is JobState.FAILED
        until(lambda: case.on_disk() == [])
    assert ended(case.submit(NOW)).state is JobState.DONE


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("event", JobEvent)
def test_each_event_in_each_state(state: JobState, event: JobEvent):
    """The module's table in its docstring, read back."""
    lines = next_state.__globals__["__doc__"].splitlines()
    header = next(line for line in lines if line.startswith("state "))
    row = next(line for line in lines if line.startswith(f"{state.value} "))
    at = header.index(event.value)
    written = row[at:].split(" ")[0] if len(row) > at else ""
    assert TABLE[state].get(event) == (JobState[written] if written else None)
    if not written:
        with pytest.raises(RefusedEvent):
            next_state(state, event)
    else:
        assert next_state(state, event) is JobState[written]
