"""The pages of a node's HTTP API about differences between snapshots of a bucket.

``POST /v1/volumes/{v}/buckets/{b}/snapshot-diffs?from=S[&to=T]``   begin; without ``to``, compare S with the present
``GET /v1/snapshot-diffs/{job}?start_after=&limit=``                how far it is; once it is DONE, a page of entries
``POST /v1/snapshot-diffs/{job}/cancel``                            stop a job that waits or runs

Beginning takes ``consistency`` as reads do: the snapshots are looked up, and the present is compared, as they are then.
A job lives on the node that was asked. Nothing here changes rows, so nobody needs the cluster's secret
(:data:`OPEN_POSTS`); a job's id is a random number, so who has not begun it cannot stop it. How many jobs there may be,
and for how long: ``snapdiff/diff_jobs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faust
from faust.web import View

from om_processors.errors import OMError
from om_processors.identity.readers import question_of, reader_in
from om_processors.namespace import snapshots, tables
from om_processors.namespace.access import Caller, require_on_bucket
from om_processors.namespace.context import ReadView
from om_processors.namespace.names import check_bucket_name, check_snapshot_name, check_volume_name
from om_processors.serving import queries
from om_processors.serving.consistency import (
    LINEARIZABLE,
    SESSION,
    STALE,
    Consistency,
    NotReadable,
    parse_session,
)
from om_processors.serving.http_api import Answer, answered
from om_processors.serving.views import Json
from om_processors.snapdiff.core.entries import DiffEntry
from om_processors.snapdiff.core.job_states import JobEvent, JobState, RefusedEvent
from om_processors.snapdiff.diff_job import DiffJob, DiffRequest, DiffSource
from om_processors.snapdiff.diff_jobs import DiffJobs, DiffsBusy, UnknownDiff
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.rocks import RocksStore
from replicated_db.shell.web import shard_pages
from replicated_db.shell.web.scan_threads import ScanThreads
from schemas.access.acl import LIST
from schemas.column_families import BUCKET_TABLE, VOLUME_TABLE
from schemas.records.rows import ACTIVE, SnapshotInfo
from schemas.result_codes import INVALID_REQUEST, OVERLOADED, SNAPSHOT_DIFF_NOT_FOUND, SNAPSHOT_UNREADABLE
from schemas.sharding import shard_of

OPEN_POSTS = re.compile(
    r"/v1/volumes/[^/?#]+/buckets/[^/?#]+/snapshot-diffs(\?[^#]*)?|/v1/snapshot-diffs/[0-9a-f]{32}/cancel"
)
"""The targets of POSTs here: they change nothing of the cluster's data."""
MAX_PLACE_CHARACTERS = 16_384
"""Longest ``start_after`` that is looked at: more than any place in a report."""


MAX_LOOKS = 64
"""Most pages of diffs that are read, or wait for that."""


class _Look(NamedTuple):
    """A look at a job. It holds nothing that would have to be released."""

    job: DiffJob

    def close(self) -> None:
        """Do nothing."""


class SnapshotDiffApi:
    """Handlers; :meth:`attach` gives them their paths. Who makes it closes it: it reads pages on threads of its own."""

    def __init__(
        self, node: str, replicas: Mapping[int, Replica], consistency: Consistency, jobs: DiffJobs
    ) -> None:  # fmt: skip
        self._node = node
        self._replicas = replicas
        self._consistency = consistency
        self._jobs = jobs
        self._looks = ScanThreads("page of a snapshot diff", MAX_LOOKS)

    def close(self) -> None:
        """Let the threads end behind the pages that are being read."""
        self._looks.close()

    def attach(self, app: faust.App) -> None:
        """Register all pages."""
        api = self

        @app.page("/v1/volumes/{volume}/buckets/{bucket}/snapshot-diffs")
        class BeginDiffPage(View):
            async def post(view, request: Any, volume: str, bucket: str) -> Any:  # noqa: N805 - Faust's signature
                status, body = await answered(partial(api.begin, question_of(request), volume, bucket))
                return view.json(body, status=status)

        @app.page("/v1/snapshot-diffs/{job}")
        class DiffPage(View):
            async def get(view, request: Any, job: str) -> Any:  # noqa: N805 - Faust's signature
                status, body = await answered(partial(api.look, question_of(request), job))
                return view.json(body, status=status)

        @app.page("/v1/snapshot-diffs/{job}/cancel")
        class CancelDiffPage(View):
            async def post(view, request: Any, job: str) -> Any:  # noqa: N805 - Faust's signature
                status, body = await answered(partial(api.cancel, job, reader_in(question_of(request))))
                return view.json(body, status=status)

    async def begin(self, query: Any, volume: str, bucket: str) -> Answer:
        """Begin a job, or find the one that there is for these snapshots."""
        check_volume_name(volume)
        check_bucket_name(bucket)
        older, newer = query.get("from", ""), query.get("to")
        for name in [older] if newer is None else [older, newer]:
            check_snapshot_name(name)
        consistency = query.get("consistency", LINEARIZABLE)
        if consistency not in (LINEARIZABLE, SESSION, STALE):
            raise OMError(INVALID_REQUEST, f"consistency {consistency!r} is not linearizable, session or stale")
        shard = shard_of(volume, len(self._replicas))
        await self._consistency.ready(shard, consistency, parse_session(query.get("session", "")))
        replica = self._replicas[shard]
        position, _, snapshot = replica.snapshot()
        try:
            self._consistency.refuse_flagged(shard)
            if (reader := reader_in(query)) is not None:
                require_on_bucket(snapshot, reader, volume, bucket, LIST)
            request, rows = _request(snapshot, volume, bucket, older, newer)
        finally:
            snapshot.close()
        source = self._source(replica, request, rows)
        try:
            job = self._jobs.submit(request, source)
        except DiffsBusy as error:
            raise NotReadable(OVERLOADED, str(error)) from error
        return 200, {**self._described(job), "positions": {str(shard): position.index}}

    def _source(self, replica: Replica, request: DiffRequest, rows: list[SnapshotInfo]) -> DiffSource:
        store = replica.store
        if not isinstance(store, RocksStore):
            raise NotReadable(SNAPSHOT_UNREADABLE, f"{self._node} keeps no checkpoints: its store is in memory")
        folders = [store.checkpoint_folder(row.checkpoint) for row in rows]
        for row, folder in zip(rows, folders, strict=True):
            if not folder.is_dir():
                what = f"snapshot {row.snapshot} of bucket /{row.volume}/{row.bucket}"
                raise NotReadable(SNAPSHOT_UNREADABLE, f"{what} has no checkpoint on {self._node}")
        newer = None if request.to_id is None else folders[1]
        return DiffSource(folders[0], newer, partial(_copy, replica, store), partial(_lost, store, rows))

    async def look(self, query: Any, job_id: str) -> Answer:
        """Say how far a job is; of one that is done, return a page of entries."""
        limit = shard_pages.number(query, "limit", queries.DEFAULT_LIMIT, 1, queries.MAX_LIMIT)
        start_after = _place(query.get("start_after", ""))
        job = self._job(job_id)
        self._require_list(job, reader_in(query))
        read = partial(self._looked_at, start_after=start_after, limit=limit)
        return 200, await self._looks.run(_Look(job), lambda look: read(look.job))

    def _looked_at(self, job: DiffJob, *, start_after: bytes, limit: int) -> Json:
        job.check_snapshots()
        page = job.page(start_after, limit)
        # The state last: entries of a job that has failed since are not shown as those of one that is done.
        described = self._described(job)
        if described["state"] != JobState.DONE.value:
            return {**described, "entries": [], "truncated": False}
        answer = {**described, "entries": [entry_json(entry) for entry in page.entries]}
        if page.next_after is None:
            return {**answer, "truncated": False}
        return {**answer, "truncated": True, "next_after": page.next_after.hex()}

    async def cancel(self, job_id: str, reader: Caller | None = None) -> Answer:
        """Stop a job; raises OMError if it has ended, or if the ``reader`` may not list the bucket (None: anybody)."""
        job = self._job(job_id)
        self._require_list(job, reader)
        try:
            job.on(JobEvent.CANCEL)
        except RefusedEvent as error:
            raise OMError(INVALID_REQUEST, f"snapshot diff {job_id} cannot be cancelled: {error}") from error
        return 200, self._described(job)

    def _require_list(self, job: DiffJob, reader: Caller | None) -> None:
        """Judge again, by the rows as they are now: a job may be another's, and a right may be gone."""
        if reader is None:
            return
        request = job.request
        _, rows = self._replicas[shard_of(request.volume, len(self._replicas))].moment((VOLUME_TABLE, BUCKET_TABLE))
        try:
            require_on_bucket(rows, reader, request.volume, request.bucket, LIST)
        finally:
            rows.close()

    def _job(self, job_id: str) -> DiffJob:
        try:
            return self._jobs.job(job_id)
        except UnknownDiff as error:
            raise OMError(SNAPSHOT_DIFF_NOT_FOUND, f"{self._node}: {error}") from error

    def _described(self, job: DiffJob) -> Json:
        request, progress = job.request, job.progress()
        return {
            "job": job.job_id, "node": self._node,
            "volume": request.volume, "bucket": request.bucket,
            "from_snapshot": request.from_snapshot, "to_snapshot": request.to_snapshot,
            "state": progress.state.value, "steps": progress.steps, "steps_done": progress.steps_done,
            "rows": progress.rows, "found": progress.entries,
            "error": progress.code, "message": progress.error,
        }  # fmt: skip


def entry_json(entry: DiffEntry) -> Json:
    """Return an entry as JSON; ``to_key`` is there for a renaming alone."""
    found: Json = {"kind": entry.kind, "key": entry.key}
    return found if entry.to_key is None else {**found, "to_key": entry.to_key}


def _request(
    view: ReadView, volume: str, bucket: str, older: str, newer: str | None
) -> tuple[DiffRequest, list[SnapshotInfo]]:
    tables.require_bucket(view, volume, bucket)
    rows = [snapshots.require_snapshot(view, volume, bucket, older)]
    if newer is not None:
        rows.append(snapshots.require_snapshot(view, volume, bucket, newer))
    request = DiffRequest(
        volume=volume, bucket=bucket, from_snapshot=older, from_id=rows[0].snapshot_id,
        to_snapshot=newer, to_id=None if newer is None else rows[1].snapshot_id,
    )  # fmt: skip
    return request, rows


def _copy(replica: Replica, store: RocksStore, target: Path) -> None:
    """Make a checkpoint of all that the replica has applied, with every row in a table file.

    Rows in its write-ahead log alone would have all rows compared. So nobody may write meanwhile; most of the work is
    done before.
    """
    replica.flush()
    store.write_files()
    with replica.lock:
        replica.flush()
        store.copy_to(target)


def _lost(store: RocksStore, rows: list[SnapshotInfo]) -> str | None:
    """Say which snapshot is not ACTIVE any more; None if all are."""
    try:
        there = snapshots.snapshots_of(store, rows[0].volume, rows[0].bucket)
    except StoreFailure as error:
        return f"the snapshots cannot be looked up: {error}"
    active = {row.snapshot_id for row in there if row.state == ACTIVE}
    for row in rows:
        if row.snapshot_id not in active:
            return f"snapshot {row.snapshot} of bucket /{row.volume}/{row.bucket} has been deleted"
    return None


def _place(text: str) -> bytes:
    try:
        if len(text) <= MAX_PLACE_CHARACTERS:
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise OMError(INVALID_REQUEST, f"start_after {text[:40]!r} is not a place in a report: give next_after of a page")
