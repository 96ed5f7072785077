"""The diff jobs of one node: at most MAX_DIFF_JOBS, one after the other on a thread of their own.

Rules:
    - Whoever asks again for the diff of the same two snapshots gets the job that is there. A diff with the present
      state is a new job each time.
    - A job that nobody asks about for KEPT_MS is forgotten, and its entries are removed from the disk. One that waits
      or runs is cancelled first.
    - For one job more than MAX_DIFF_JOBS, the finished one that was asked about longest ago makes room, if that was
      IDLE_MS ago. Otherwise the new one is refused.
    - What a node has left on the disk when it ended goes when it starts. The job is unknown then: its client asks for
      it anew.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition

from om_processors.snapdiff.core.job_states import UNFINISHED, JobEvent, JobState, RefusedEvent
from om_processors.snapdiff.diff_job import DiffJob, DiffRequest, DiffSource
from replicated_db.shell.process import Background

log = logging.getLogger("stratolog.snapdiff")

MAX_DIFF_JOBS = 10
"""Most diff jobs of a node that wait, run or are kept. Each has up to MAX_DIFF_BYTES on the disk."""
KEPT_MS = 600_000
"""How long a job is kept after it was last asked about."""
IDLE_MS = 60_000
"""How long nobody must have asked about a finished job before it makes room for another one."""
STOP_WAIT_S = 10.0
"""How long the end of the node waits for the job that runs."""
SWEEP_S = 30.0
"""How often jobs are looked through for those to forget."""


class DiffsBusy(Exception):
    """There are MAX_DIFF_JOBS jobs, and none makes room; ask again later."""


class UnknownDiff(Exception):
    """No such job is on this node: it was forgotten, or another node has it."""


class DiffJobs(Background):
    """Jobs by id; safe for threads. ``folder`` is theirs alone. ``now_ms`` is a clock that never runs backwards.

    The first job starts the thread. A failure of a job is the job's; one of the thread is ``fatal``.
    """

    end_wait_s = STOP_WAIT_S

    def __init__(
        self, folder: Path, families: Sequence[str], new_id: Callable[[], str], fatal: Callable[[BaseException], None],
        now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:  # fmt: skip
        super().__init__("snapshot-diff", fatal)
        self._folder = folder
        self._families = families
        self._new_id = new_id
        self._now_ms = now_ms
        self._changed = Condition()
        self._jobs: dict[str, DiffJob] = {}
        self._asked_ms: dict[str, int] = {}
        self._queue: list[DiffJob] = []
        shutil.rmtree(folder, ignore_errors=True)

    def submit(self, request: DiffRequest, source: DiffSource) -> DiffJob:
        """Return the job of a request, a new one or one that is there; raises DiffsBusy."""
        with self._changed:
            self._forget()
            for job in self._jobs.values():
                wanted = job.request.to_id is not None and _same(job.request, request)
                if wanted and job.state in (JobState.QUEUED, JobState.RUNNING, JobState.DONE):
                    self._asked_ms[job.job_id] = self._now_ms()
                    return job
            if self._stop.is_set() or (len(self._jobs) >= MAX_DIFF_JOBS and not self._make_room()):
                raise DiffsBusy(
                    f"{len(self._jobs)} snapshot diffs run, wait or are kept here, as many as are taken: ask again later"
                )
            job_id = self._new_id()
            job = DiffJob(job_id, request, source, self._folder / job_id, self._families)
            self._jobs[job_id] = job
            self._asked_ms[job_id] = self._now_ms()
            self._queue.append(job)
            if not self.is_begun:
                self.start()
            self._changed.notify_all()
        return job

    def job(self, job_id: str) -> DiffJob:
        """Return a job; raises UnknownDiff."""
        with self._changed:
            self._forget()
            if job_id not in self._jobs:
                raise UnknownDiff(f"no snapshot diff {job_id} here: it was forgotten, or never asked for")
            self._asked_ms[job_id] = self._now_ms()
            return self._jobs[job_id]

    def _make_room(self) -> bool:
        finished = [one for one, job in self._jobs.items() if job.state not in UNFINISHED]
        oldest = min(finished, key=lambda one: self._asked_ms[one], default=None)
        if oldest is None or self._now_ms() - self._asked_ms[oldest] < IDLE_MS:
            return False
        self._remove(oldest)
        return True

    def _forget(self) -> None:
        """Remove the jobs that nobody asks about."""
        now = self._now_ms()
        for job_id, asked in list(self._asked_ms.items()):
            if now - asked < KEPT_MS:
                continue
            job = self._jobs[job_id]
            _stop(job)
            if job.state not in UNFINISHED:
                self._remove(job_id)

    def _remove(self, job_id: str) -> None:
        del self._asked_ms[job_id]
        self._jobs.pop(job_id).close()

    def run(self) -> None:
        """Run the jobs that wait, one after the other, and forget old ones."""
        while True:
            with self._changed:
                self._forget()
                if not self._queue and not self._stop.is_set():
                    self._changed.wait(SWEEP_S)
                if self._stop.is_set():
                    return
                job = self._queue.pop(0) if self._queue else None
            if job is not None:
                _run(job)

    def close(self) -> None:
        """Stop the job that runs, and remove everything from the disk; a second call does nothing."""
        with self._changed:
            self._stop.set()
            for job in self._jobs.values():
                _stop(job)
            self._changed.notify_all()
        super().close()
        if self._thread.is_alive():
            return  # what is left goes at the next start
        with self._changed:
            for job_id in list(self._jobs):
                self._remove(job_id)
        shutil.rmtree(self._folder, ignore_errors=True)


def _same(one: DiffRequest, other: DiffRequest) -> bool:
    """Say whether two requests have the same answer: the snapshots' names may have changed."""
    return (one.volume, one.bucket, one.from_id, one.to_id) == (other.volume, other.bucket, other.from_id, other.to_id)


def _run(job: DiffJob) -> None:
    try:
        job.run()
    except Exception:
        log.exception("snapshot diff %s failed", job.job_id)


def _stop(job: DiffJob) -> None:
    """Cancel a job that has not ended."""
    with suppress(RefusedEvent):
        job.on(JobEvent.CANCEL)
