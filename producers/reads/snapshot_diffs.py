"""What changed in a bucket between two snapshots: a job of one node, its progress, and its entries page by page.

What belongs here: the life of such a job as its client sees it. ``producers.reads.reads`` asks the nodes. The rules:

1. Any node can do the job. The node that takes it keeps it: everything after goes to that node.
2. The client waits as long as the node answers. Whoever gives ``on_progress`` is told how far the job is; otherwise a
   wait of more than two seconds is logged.
3. If the job is lost (the node was restarted, cannot be reached, or its entries have expired), another one is begun,
   MAX_BEGINS in all. Two snapshots differ in the same entries in the same order whoever compares them, so reading goes
   on where it was. A bucket as it is *now* is another one later: there the loss after the first page is an error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from producers.errors import InvalidArgument, NotConnected, RequestFailed, RetryableError, failure
from producers.reads.read_views import PAGE_ENTRIES, Page, SnapshotDiffEntry
from producers.requests import arguments
from producers.waiting import SlowWait
from schemas.result_codes import (
    INTERNAL_ERROR,
    SNAPSHOT_DIFF_CANCELLED,
    SNAPSHOT_DIFF_NOT_FOUND,
    SNAPSHOT_UNREADABLE,
)
from transport.waiting.core.backoff import Backoff

MAX_BEGINS = 3
"""How often a diff is begun, if jobs are lost."""
MAX_FAILED_LOOKS = 5
"""How often in a row the node of a job may fail to answer before the job counts as lost."""
LOOKS = Backoff(first_s=0.02, last_s=1.0)
"""Shortest and longest pause between two looks at a job that runs."""

JOBS: Final = "/v1/snapshot-diffs"
JOB: Final = re.compile(r"[0-9a-f]{32}")
QUEUED, RUNNING, CANCELLING, DONE, CANCELLED = "QUEUED", "RUNNING", "CANCELLING", "DONE", "CANCELLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDiffProgress:
    """How far a job is.

    ``job`` is its id, ``node`` who does it, ``state`` QUEUED, RUNNING, CANCELLING, DONE, FAILED or CANCELLED. ``steps``
    are the ranges of keys to compare, ``rows`` the rows read. ``found`` counts the entries by kind, once it is DONE.
    """

    job: str
    node: str
    state: str
    steps: int
    steps_done: int
    rows: int
    found: Mapping[str, int]

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.state}, {self.steps_done} of {self.steps} ranges, {self.rows} rows read on {self.node}"


OnProgress = Callable[[SnapshotDiffProgress], None]
"""Takes how far a job is, at each look at it. What it raises ends the waiting, and leaves the job alone."""


class DiffNodes(Protocol):
    """How nodes are asked."""

    def post_to_any(self, path: str, parameters: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        """Ask the nodes in turn; return the address of the one that took it, and its answer."""

    def ask_at(self, method: str, address: str, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Ask one node once; raises RetryableError, NotConnected among them, and RequestFailed."""


class SnapshotDiff:
    """One diff. ``path`` is that of the bucket's diffs, ``parameters`` say of which snapshots. For one thread."""

    def __init__(
        self, nodes: DiffNodes, path: str, parameters: Mapping[str, str], what: str, *, page_size: int = PAGE_ENTRIES,
        on_progress: OnProgress | None = None, pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._nodes = nodes
        self._path = path
        self._parameters = parameters
        self._what = what
        self._page_size = arguments.number("page_size", page_size, 1, PAGE_ENTRIES)
        self._on_progress = on_progress
        self._pause = pause
        self._is_repeatable = "to" in parameters
        self._address = ""
        self._job = ""
        self._begun = 0

    def page(self, start_after: str, limit: int) -> Page[SnapshotDiffEntry]:
        """Return up to ``limit`` entries after a place; wait until they are there. The first place is ``""``."""
        while True:
            if not self._job:
                self._begin()
            try:
                return self._waited(start_after, min(limit, self._page_size))
            except RetryableError as error:
                self._on_lost(error, start_after)
            except RequestFailed as error:
                if error.status != SNAPSHOT_DIFF_NOT_FOUND:
                    raise
                self._on_lost(error, start_after)

    def _begin(self) -> None:
        self._begun += 1
        self._address, answer = self._nodes.post_to_any(self._path, self._parameters)
        self._job = progress_of(answer).job

    def _on_lost(self, error: RetryableError | RequestFailed, start_after: str) -> None:
        """Forget the job, so that another one is begun; raises RetryableError if that is of no use."""
        self._job = ""
        if start_after and not self._is_repeatable:
            raise RetryableError(
                error.status, f"{self._what}: the job is lost, and the bucket has changed since: {error.message}"
            ) from error
        if self._begun >= MAX_BEGINS:
            raise RetryableError(
                error.status, f"{self._what}: {self._begun} jobs were lost, the last one: {error.message}"
            ) from error

    def _waited(self, start_after: str, limit: int) -> Page[SnapshotDiffEntry]:
        path = f"{JOBS}/{self._job}"
        parameters = {"limit": str(limit)} | ({"start_after": start_after} if start_after else {})
        patience, looks = SlowWait(self._what), 0
        while True:
            answer = self._looked(path, parameters)
            progress = progress_of(answer)
            if self._on_progress is not None:
                self._on_progress(progress)
            if progress.state == DONE:
                return _page(answer)
            if progress.state not in {QUEUED, RUNNING, CANCELLING}:
                raise _failed(progress, answer, self._what)
            if self._on_progress is None:
                patience.still(progress)
            looks += 1
            self._pause(LOOKS.pause_s(looks))

    def _looked(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Look at the job; raises the last RetryableError after MAX_FAILED_LOOKS."""
        for attempt in range(1, MAX_FAILED_LOOKS + 1):
            try:
                return self._nodes.ask_at("GET", self._address, path, parameters)
            except RetryableError as error:
                if attempt == MAX_FAILED_LOOKS:
                    # A copy that says what is lost; NotConnected stays NotConnected.
                    raise type(error)(error.status, f"{self._what}: {error.message}") from error
            self._pause(LOOKS.pause_s(2 * attempt - 1))
        raise NotConnected(INTERNAL_ERROR, self._what)  # unreachable: there is at least one attempt


def progress_of(answer: Mapping[str, Any]) -> SnapshotDiffProgress:
    """Return how far a job is, from a node's answer."""
    try:
        return SnapshotDiffProgress(
            job=str(answer["job"]), node=str(answer["node"]), state=str(answer["state"]),
            steps=int(answer["steps"]), steps_done=int(answer["steps_done"]), rows=int(answer["rows"]),
            found=dict(answer["found"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise RequestFailed(INTERNAL_ERROR, f"a node's answer about a snapshot diff lacks {error}") from error


def _page(answer: Mapping[str, Any]) -> Page[SnapshotDiffEntry]:
    try:
        entries = [
            SnapshotDiffEntry(kind=str(one["kind"]), key=str(one["key"]), to_key=one.get("to_key"))
            for one in answer["entries"]
        ]
        return Page(entries=entries, next_after=answer["next_after"] if answer["truncated"] else None, positions={})
    except (KeyError, TypeError, AttributeError) as error:
        raise RequestFailed(INTERNAL_ERROR, f"a node's entries of a snapshot diff lack {error}") from error


def _failed(progress: SnapshotDiffProgress, answer: Mapping[str, Any], what: str) -> RequestFailed | RetryableError:
    if progress.state == CANCELLED:
        return RequestFailed(SNAPSHOT_DIFF_CANCELLED, f"{what}: job {progress.job} was cancelled")
    code = str(answer.get("error") or INTERNAL_ERROR)
    message = f"{what}: {answer.get('message')}"
    # Another node may have what this one lacks.
    return RetryableError(code, message) if code == SNAPSHOT_UNREADABLE else failure(code, message)


def check_job(job: str) -> None:
    """Raise TypeError or InvalidArgument unless ``job`` may be the id of a diff."""
    if not JOB.fullmatch(arguments.text("job", job)):
        raise InvalidArgument("job", f"{arguments.shown(job)} is no id of a snapshot diff: those are 32 of 0-9a-f")


def cancel(nodes: DiffNodes, addresses: list[str], job: str) -> SnapshotDiffProgress:
    """Cancel a job by its id, on whichever of these nodes it is.

    Raises NotFound if all of them say that they do not have it, NotConnected if some of them could not say, and
    RequestFailed if it has ended.
    """
    unasked: RetryableError | None = None
    for address in addresses:
        try:
            return progress_of(nodes.ask_at("POST", address, f"{JOBS}/{job}/cancel", {}))
        except RetryableError as error:
            unasked = error
        except RequestFailed as error:
            if error.status != SNAPSHOT_DIFF_NOT_FOUND:
                raise
    if unasked is not None:
        raise NotConnected(unasked.status, f"no node that answers has snapshot diff {job}; {unasked.message}")
    raise failure(SNAPSHOT_DIFF_NOT_FOUND, f"no node has a snapshot diff {job}")
