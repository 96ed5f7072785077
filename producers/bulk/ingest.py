"""Ingest of a directory tree: each file becomes a key, by createKey and commitKey or, if it is small and its bytes are
written too, by one putKey (``stratolog ingest``).

What belongs here: the three phases and their summary. The first walks the tree to count its files and find the volumes
and buckets that they need. The second creates those that do not exist. The third reads, hashes, opens and commits the
files, many at a time. Paths become key names unchanged; ``tree_layout`` gives volume and bucket, and ``tree`` says what
is skipped. A file's modification time and SHA-256 go into the key's metadata.

With ``writers`` the files' bytes are written too, each file through the datanodes by a thread of its own; without them
only metadata is written. Repeating an ingest is safe: it replaces an existing key by an equal one. The summary names
the failures.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from producers.bulk.core.file_ingest import FileEnded, FileIngest, FileStep, OpenFile
from producers.bulk.histogram import Histogram
from producers.bulk.key_copy import copy
from producers.bulk.listing import metadata_of
from producers.bulk.tree import FileContent, FoundFile, Skipped, read_file, walk
from producers.bulk.tree_layout import LayoutRule, TreeLayout
from producers.errors import StratologError
from producers.requests.core.calls import Done, Outcome
from producers.requests.keys import Submitter, ensure_places, fit_blocks, session_of
from schemas.records.messages import CommitKey, CreateKey, RequestBody
from schemas.result_codes import INTERNAL_ERROR, INVALID_REQUEST

if TYPE_CHECKING:
    from producers.client import Client
    from producers.files.key_files import KeyOutput

NAMED_FAILURES = 100
"""Most failures, and most skipped files, that a summary names; it counts all."""
MAX_IN_FLIGHT = 1000
"""Default for the number of keys that are written at the same time."""
WRITERS = 16
"""Default for the number of files whose bytes are written at the same time."""
PROGRESS_INTERVAL_MS = 100
"""Shortest time between two reports of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of an ingest: files and bytes that are done (committed, skipped or failed), and their totals."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    requests: int
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A file that was not ingested, with the status of the request that failed."""

    relative_path: str
    status: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSummary:
    """Result of an ingest. ``requests`` are those for volumes, buckets, createKey, commitKey and putKey.

    Rates are those while keys were written, within ``seconds``: of requests, of files that became keys and of bytes
    that were written; the last is 0 if only metadata was. Latencies are those of createKey and commitKey; if bytes were
    written, those of whole files. ``failures`` and ``skipped`` name the first ones; ``failed_files`` and
    ``skipped_files`` count all.
    """

    keys: int
    bytes: int
    requests: int
    seconds: float
    requests_per_second: float
    files_per_second: float
    bytes_per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    places: list[tuple[str, str]]
    failed_files: int
    failures: list[Failure]
    skipped_files: int
    skipped: list[Skipped]

    @property
    def complete(self) -> bool:
        """Whether every file that can be ingested has been."""
        return self.failed_files == 0


def ingest(
    client: Submitter,
    root: str | os.PathLike[str],
    *,
    layout: LayoutRule | None = None,
    progress: Callable[[Progress], None] | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    leave_out: Collection[str] = (),
) -> IngestSummary:
    """Ingest the metadata of the tree below ``root`` with at most ``max_in_flight`` keys written at the same time.

    ``leave_out`` are directories in the tree that are skipped. ``progress`` is called on the calling thread. Raises
    OSError if ``root`` is not a directory, ValueError for an illegal ``max_in_flight``, one of ``producers.errors`` if
    a volume or bucket cannot be created. The summary holds the errors of single files.

    >>> with Client("127.0.0.1:9092") as client:  # doctest: +SKIP
    ...     print(ingest(client, "/usr/lib/python3").keys)
    4711
    """
    if max_in_flight < 1:
        raise ValueError(f"max_in_flight must be at least 1, not {max_in_flight}")
    run = _Ingest(client, root, layout or TreeLayout(), progress, max_in_flight, leave_out, with_bytes=False)
    return run.through(lambda content, place, size: _KeyWriter(run, content, place, size).begin())


def ingest_contents(
    client: Client,
    root: str | os.PathLike[str],
    *,
    layout: LayoutRule | None = None,
    progress: Callable[[Progress], None] | None = None,
    writers: int = WRITERS,
    leave_out: Collection[str] = (),
) -> IngestSummary:
    """Ingest the tree below ``root`` with its files' bytes, ``writers`` files at the same time; else as :func:`ingest`.

    >>> with Client("127.0.0.1:9092") as client:  # doctest: +SKIP
    ...     print(ingest_contents(client, "/usr/lib/python3").bytes)
    51234567
    """
    if writers < 1:
        raise ValueError(f"writers must be at least 1, not {writers}")
    # Twice as many files as writers are admitted, so that a writer that ends finds the next file hashed.
    run = _Ingest(client, root, layout or TreeLayout(), progress, 2 * writers, leave_out, with_bytes=True)
    with _pool(writers) as pool:

        def begin(content: FileContent, place: tuple[str, str], size: int) -> None:
            pool.submit(_write_contents, run, client, content, place, size)

        return run.through(begin)


@contextmanager
def _pool(writers: int) -> Iterator[ThreadPoolExecutor]:
    """Open a pool; its end waits for the threads, except after an interrupt."""
    pool = ThreadPoolExecutor(max_workers=writers, thread_name_prefix="ingest")
    try:
        yield pool
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    except BaseException:
        pool.shutdown()
        raise
    pool.shutdown()


Begin = Callable[[FileContent, tuple[str, str], int], None]
"""Begins to write a file that was read; gets its volume and bucket, and its size in the survey."""


class _Ingest:
    """One ingest. ``lock`` guards the counts of the client's thread; the calling thread owns everything else."""

    def __init__(
        self,
        client: Submitter,
        root: str | os.PathLike[str],
        layout: LayoutRule,
        progress: Callable[[Progress], None] | None,
        max_in_flight: int,
        leave_out: Collection[str],
        *,
        with_bytes: bool,
    ) -> None:
        self.client = client
        self.with_bytes = with_bytes
        self.leave_out = leave_out
        self.root = root
        self.layout = layout
        self.progress = progress
        self.max_in_flight = max_in_flight
        self.room = threading.Semaphore(max_in_flight)
        self.lock = threading.Lock()
        self.begun_s = time.monotonic()
        self.told_s = float("-inf")
        self.places: set[tuple[str, str]] = set()
        self.files_total = self.bytes_total = 0
        self.files = self.bytes_done = self.keys = self.key_bytes = self.requests = 0
        self.failed_files = self.skipped_files = 0
        self.failures: list[Failure] = []
        self.skipped: list[Skipped] = []
        self.histogram = Histogram()

    def through(self, begin: Begin) -> IngestSummary:
        """Run all three phases."""
        self.survey()
        self.create_places(self.places)
        before, begun_s = self.requests, time.monotonic()
        self.write_keys(begin)
        return self.summary(self.requests - before, time.monotonic() - begun_s)

    def survey(self) -> None:
        """Walk the tree for its size and the volumes and buckets that it needs."""
        for found in walk(self.root, self.leave_out):
            if isinstance(found, FoundFile):
                self.files_total += 1
                self.bytes_total += found.size
                self.places.add(self.layout.bucket_for(found.relative_path))

    def create_places(self, places: Collection[tuple[str, str]]) -> None:
        """Create volumes and buckets that do not exist yet."""
        requests = ensure_places(self.client, places)
        self.places.update(places)
        with self.lock:
            self.requests += requests

    def write_keys(self, begin: Begin) -> None:
        """Read and write each file; return when each has been committed, skipped or failed."""
        try:
            for found in walk(self.root, self.leave_out):
                self._write(found, begin)
                self.tell_progress()
        except KeyboardInterrupt:
            raise  # keys in flight end with the client: an interrupt does not wait for them
        except BaseException:
            self._await_written()
            raise
        self._await_written()
        self.tell_progress(last=True)

    def _await_written(self) -> None:
        """Wait until no key is in flight: until then callbacks count into this object."""
        for _ in range(self.max_in_flight):
            while not self.room.acquire(timeout=PROGRESS_INTERVAL_MS / 1000):
                self.tell_progress()

    def _write(self, found: FoundFile | Skipped, begin: Begin) -> None:
        if isinstance(found, Skipped):
            self.skip(found, surveyed=None)
            return
        content = read_file(self.root, found.relative_path)
        if isinstance(content, Skipped):
            self.skip(content, surveyed=found)
            return
        place = self.layout.bucket_for(content.relative_path)
        if place not in self.places:
            # The file appeared after the survey, in a directory that had no files.
            self.create_places([place])
        self.room.acquire()
        try:
            begin(content, place, found.size)
        except BaseException:
            self.room.release()
            raise

    def skip(self, skipped: Skipped, *, surveyed: FoundFile | None) -> None:
        """Count a skipped entry; ``surveyed`` if the survey counted it as a file."""
        self.skipped_files += 1
        if len(self.skipped) < NAMED_FAILURES:
            self.skipped.append(skipped)
        if surveyed is not None:
            with self.lock:
                self.files += 1
                self.bytes_done += surveyed.size

    def end(self, content: FileContent, surveyed_size: int, status: str | None, message: str = "") -> None:
        """Count a file as committed (``status`` None) or failed, and release its room."""
        with self.lock:
            self.files += 1
            self.bytes_done += surveyed_size
            if status is None:
                self.keys += 1
                self.key_bytes += content.size
            else:
                self.failed_files += 1
                if len(self.failures) < NAMED_FAILURES:
                    failure = Failure(relative_path=content.relative_path, status=status, message=message)
                    self.failures.append(failure)
        self.room.release()

    def tell_progress(self, *, last: bool = False) -> None:
        """Report the progress, unless the last report is too recent."""
        now_s = time.monotonic()
        if self.progress is None or (not last and now_s - self.told_s < PROGRESS_INTERVAL_MS / 1000):
            return
        self.told_s = now_s
        with self.lock:
            current = Progress(
                files=self.files,
                files_total=self.files_total,
                bytes=self.bytes_done,
                bytes_total=self.bytes_total,
                requests=self.requests,
                elapsed_s=now_s - self.begun_s,
            )
        self.progress(current)

    def summary(self, writing_requests: int, writing_s: float) -> IngestSummary:
        """Return the result; the arguments are of the time while keys were written."""
        seconds = max(writing_s, 1e-9)
        return IngestSummary(
            keys=self.keys,
            bytes=self.key_bytes,
            requests=self.requests,
            seconds=round(writing_s, 3),
            requests_per_second=round(writing_requests / seconds, 1),
            files_per_second=round(self.keys / seconds, 1),
            bytes_per_second=round(self.key_bytes / seconds, 1) if self.with_bytes else 0.0,
            p50_ms=round(self.histogram.percentile_ms(50), 3),
            p99_ms=round(self.histogram.percentile_ms(99), 3),
            max_ms=round(self.histogram.max_ms, 3),
            places=sorted(self.places),
            failed_files=self.failed_files,
            failures=self.failures,
            skipped_files=self.skipped_files,
            skipped=self.skipped,
        )


class _KeyWriter:
    """Writes one file: sends what :class:`FileIngest` says. Takes a place of the ingest's room and gives it back."""

    __slots__ = ("begun_s", "bucket", "content", "file", "run", "surveyed_size", "volume")

    def __init__(self, run: _Ingest, content: FileContent, place: tuple[str, str], surveyed_size: int) -> None:
        self.run = run
        self.content = content
        self.volume, self.bucket = place
        self.surveyed_size = surveyed_size
        self.file = FileIngest()
        self.begun_s: float

    def begin(self) -> None:
        """Open the key."""
        self._take(self.file.begin())

    def _take(self, step: FileStep) -> None:
        content = self.content
        if isinstance(step, FileEnded):
            self.run.end(content, self.surveyed_size, step.status, step.message)
        elif isinstance(step, OpenFile):
            create = CreateKey(
                volume=self.volume,
                bucket=self.bucket,
                key=content.relative_path,
                size=content.size,
                metadata=metadata_of(content),
            )
            self._submit(create, self._opened)
        else:
            commit = CommitKey(
                volume=self.volume,
                bucket=self.bucket,
                key=content.relative_path,
                session_id=step.session_id,
                size=content.size,
                blocks=list(step.blocks),
            )
            self._submit(commit, self._committed)

    def _submit(self, body: RequestBody, done: Done) -> None:
        self.begun_s = time.monotonic()
        try:
            self.run.client.submit_with(body, done)
        except StratologError as error:
            self._take(self.file.on_refused(error.status, str(error)))

    def _opened(self, outcome: Outcome) -> None:
        self._count(outcome)
        step: FileStep
        if isinstance(outcome, StratologError):
            step = self.file.on_refused(outcome.status, str(outcome))
        else:
            try:
                session = session_of(outcome)
                step = self.file.on_opened(session.session_id, fit_blocks(session.blocks, self.content.size))
            except (TypeError, ValueError) as error:
                step = self.file.on_refused(INTERNAL_ERROR, str(error))
        self._take(step)

    def _committed(self, outcome: Outcome) -> None:
        self._count(outcome)
        refused = isinstance(outcome, StratologError)
        self._take(self.file.on_refused(outcome.status, str(outcome)) if refused else self.file.on_committed())

    def _count(self, outcome: Outcome) -> None:
        latency_ms = (time.monotonic() - self.begun_s) * 1000
        with self.run.lock:
            self.run.requests += 1
            if not isinstance(outcome, StratologError):
                self.run.histogram.add(latency_ms)


def _write_contents(
    run: _Ingest, client: Client, content: FileContent, place: tuple[str, str], surveyed_size: int
) -> None:
    """Write one file with its bytes, on a thread of the pool. Abort the key if they have changed since the hash."""
    begun_s = time.monotonic()
    status, message = None, ""
    key: KeyOutput | None = None
    try:
        path = "/".join(("", *place, content.relative_path))
        local = os.path.join(os.fspath(run.root), content.relative_path)
        with (
            open(local, "rb", buffering=0) as source,
            client.open(path, "wb", size=content.size, metadata=metadata_of(content)) as key,
        ):
            if copy(source, key).sha256 != content.sha256:
                raise OSError(f"{content.relative_path} changed while it was read")
    except StratologError as error:
        status, message = error.status, str(error)
    except OSError as error:
        status, message = INVALID_REQUEST, str(error)
    except Exception as error:  # nobody reads the future: the failed file must be named
        status, message = INTERNAL_ERROR, f"{type(error).__name__}: {error}"
    with run.lock:
        # A small file is one request, and one that could not be opened was refused one.
        run.requests += 1 if key is None else key.requests
        if status is None:
            run.histogram.add((time.monotonic() - begun_s) * 1000)
    run.end(content, surveyed_size, status, message)
