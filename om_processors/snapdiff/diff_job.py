"""One job: from two checkpoints on the disk to the entries of a diff, on the disk too."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from om_processors.namespace.tables import bucket_prefix, prefix_stop
from om_processors.snapdiff.core.entries import DiffEntry, finish, match_rows, report
from om_processors.snapdiff.core.job_states import UNFINISHED, JobEvent, JobState, next_state
from replicated_db.core.diffing.file_plan import KeyRange
from replicated_db.core.diffing.sweep import CHECKED_ROWS
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.diffing.checkpoint_diff import CheckpointDiff
from replicated_db.shell.diffing.scratch import DiskScratch, ScratchFull
from schemas.column_families import KEY_TABLE
from schemas.result_codes import DIFF_TOO_LARGE, FILE_NOT_FOUND, INTERNAL_ERROR, SNAPSHOT_UNREADABLE

MAX_DIFF_BYTES = 1024 * 1024 * 1024
"""Most bytes of keys and values that one diff writes to the disk: some 2 to 5 million entries. A larger one fails."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Most bytes of the names in one page of entries; a page has at least one entry."""


class SnapshotLost(Exception):
    """A snapshot of the job was deleted while it ran."""


class DiffStopped(Exception):
    """The job has been cancelled, or its node ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRequest:
    """What is compared with what. ``to_snapshot`` and ``to_id`` None stand for the bucket as it is now."""

    volume: str
    bucket: str
    from_snapshot: str
    from_id: int
    to_snapshot: str | None
    to_id: int | None


class DiffSource(NamedTuple):
    """Where a job's rows come from.

    ``older`` is the directory of a checkpoint, and so is ``newer``. If that is None, ``copy_now`` makes a checkpoint of
    the present state in the directory that it is given. ``lost`` says which snapshot is gone meanwhile; None if none.
    """

    older: Path
    newer: Path | None
    copy_now: Callable[[Path], None]
    lost: Callable[[], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffProgress:
    """How far a job is.

    ``steps`` are ranges of keys and files, ``rows`` those that were read. ``entries`` counts what was found, by kind;
    it is empty until the job is done. ``code`` and ``error`` say why it failed.
    """

    state: JobState
    steps: int
    steps_done: int
    rows: int
    entries: dict[str, int]
    code: str
    error: str


class EntryPage(NamedTuple):
    """A page of entries; ``next_after`` is the place to go on from, None behind the last entry."""

    entries: Sequence[DiffEntry]
    next_after: bytes | None


class DiffJob:
    """One job in ``folder``, a new directory of its own. :meth:`run` is for one thread, the rest for any."""

    def __init__(
        self, job_id: str, request: DiffRequest, source: DiffSource, folder: Path, families: Sequence[str]
    ) -> None:
        self.job_id = job_id
        self.request = request
        self._source = source
        self._folder = folder
        self._families = families
        self._lock = Lock()
        self._state = JobState.QUEUED
        self._code = self._error = ""
        self._diff: CheckpointDiff | None = None
        self._steps = self._steps_done = self._rows = 0
        self._entries: Counter[str] = Counter()
        self._scratch: DiskScratch | None = None
        self._reading = Lock()

    @property
    def state(self) -> JobState:
        """The job's state."""
        return self._state

    def on(self, event: JobEvent, code: str = "", error: str = "") -> None:
        """Take an event; a failure comes with its code and a message. Raises RefusedEvent."""
        with self._lock:
            before, self._state = self._state, next_state(self._state, event)
            if event is JobEvent.FAIL and self._state is JobState.FAILED and before is not JobState.FAILED:
                self._code, self._error = code, error

    def progress(self) -> DiffProgress:
        """Return how far the job is."""
        with self._lock:
            diff = self._diff
            return DiffProgress(
                state=self._state,
                steps=self._steps if diff is None else diff.plan.steps,
                steps_done=self._steps_done if diff is None else diff.steps_done,
                rows=self._rows, entries=dict(self._entries), code=self._code, error=self._error,
            )  # fmt: skip

    def run(self, max_bytes: int = MAX_DIFF_BYTES) -> None:
        """Do the job, unless it has been cancelled before. Its state says what came out; nothing is raised."""
        with self._lock:
            if self._state is not JobState.QUEUED:
                return
            self._state = next_state(self._state, JobEvent.START)
        try:
            self._make_entries(max_bytes)
        except DiffStopped:
            self.on(JobEvent.FAIL, INTERNAL_ERROR, "the job was stopped")
        except ScratchFull as error:
            self.on(JobEvent.FAIL, DIFF_TOO_LARGE, f"the snapshots differ too much: their diff takes {error} of disk")
        except SnapshotLost as error:
            self.on(JobEvent.FAIL, FILE_NOT_FOUND, str(error))
        except StoreFailure as error:
            if (lost := self._source.lost()) is not None:
                self.on(JobEvent.FAIL, FILE_NOT_FOUND, lost)
            else:
                self.on(JobEvent.FAIL, SNAPSHOT_UNREADABLE, f"a snapshot cannot be read on this node: {error}")
        except Exception as error:
            self.on(JobEvent.FAIL, INTERNAL_ERROR, f"{type(error).__name__}: {error}")
            raise
        else:
            self.on(JobEvent.FINISH)
        finally:
            if self._state is not JobState.DONE:
                self.close()

    def _make_entries(self, max_bytes: int) -> None:
        request, source = self.request, self._source
        newer = source.newer
        if newer is None:
            newer = self._folder / "now"
            self._folder.mkdir(parents=True, exist_ok=True)
            source.copy_now(newer)
        prefix = bucket_prefix(request.volume, request.bucket)
        self._scratch = scratch = DiskScratch(self._folder / "rows", max_bytes)
        take = match_rows(prefix, scratch)
        wanted = KeyRange(prefix, prefix_stop(prefix))
        with closing(CheckpointDiff(source.older, newer, self._families, KEY_TABLE, wanted)) as diff:
            self._diff = diff
            for row in diff.rows(self._on_rows):
                take(row)
            with self._lock:
                self._steps, self._steps_done, self._diff = diff.plan.steps, diff.steps_done, None
        if source.newer is None:
            shutil.rmtree(newer, ignore_errors=True)
        check = _EveryThousandth(self._stop_if_told)
        finish(scratch, check)
        entries: Counter[str] = Counter()
        for _, entry in report(scratch):
            check()
            entries[entry.kind] += 1
        if (lost := source.lost()) is not None:
            raise SnapshotLost(lost)
        self._entries = entries

    def _on_rows(self, rows: int) -> None:
        self._rows += rows
        self._stop_if_told()

    def _stop_if_told(self) -> None:
        if self._state is not JobState.RUNNING:
            raise DiffStopped

    def page(self, start_after: bytes, limit: int) -> EntryPage:
        """Return up to ``limit`` entries after a place; none if the job is not done."""
        with self._reading:
            if self._scratch is None or self._state is not JobState.DONE:
                return EntryPage((), None)
            entries: list[DiffEntry] = []
            size, last = 0, b""
            for place, entry in islice(report(self._scratch, start_after), limit + 1):
                size += len(place) + len(entry.to_key or "")
                if len(entries) == limit or (entries and size > MAX_PAGE_BYTES):
                    return EntryPage(entries, last)
                entries.append(entry)
                last = place
            return EntryPage(entries, None)

    def check_snapshots(self) -> None:
        """Fail if a snapshot of the job is gone; its entries are removed."""
        if self._state in {JobState.FAILED, JobState.CANCELLED} or (lost := self._source.lost()) is None:
            return
        was_done = self._state not in UNFINISHED
        self.on(JobEvent.FAIL, FILE_NOT_FOUND, lost)
        if was_done:
            self.close()

    def close(self) -> None:
        """Remove what the job has on the disk; a second call does nothing. A job that runs must have stopped."""
        with self._reading:
            scratch, self._scratch = self._scratch, None
            if scratch is not None:
                scratch.close()
            shutil.rmtree(self._folder, ignore_errors=True)


class _EveryThousandth:
    """Calls something at each CHECKED_ROWS-th call."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        if self._count % CHECKED_ROWS == 0:
            self._call()
