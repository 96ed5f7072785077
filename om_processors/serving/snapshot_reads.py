"""Reads of snapshots: their keys, by names such as ``.snapshot/NAME/KEY``, and what they take on this node's disk.

Each read first looks up the snapshot's row, in a consistent view of the shard as it is now. Then it reads the rows of
the checkpoint that this row names; those never change. A snapshot without an active row is FILE_NOT_FOUND, also if it
was deleted while it was being read. If the row is there but this node cannot read the checkpoint, the answer is
:class:`NotReadable`: another node has it.

These methods open databases and read files. They run on threads of their own (``http_api``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from om_processors.errors import OMError
from om_processors.namespace.access import Caller, require_on_bucket, require_on_key
from om_processors.namespace.context import ReadView
from om_processors.namespace.names import check_text, shown
from om_processors.serving import queries
from om_processors.serving.consistency import NotReadable
from om_processors.serving.views import Json, snapshot_json
from om_processors.snapshots.checkpoints import CheckpointName, CheckpointUnreadable
from om_processors.snapshots.core.snapshot_paths import SnapshotPlace, after_in, beginning
from om_processors.snapshots.open_snapshots import OpenSnapshots
from replicated_db.core.applying.replica import Replica
from schemas.access.acl import READ
from schemas.records.rows import SnapshotInfo
from schemas.result_codes import INVALID_KEY_NAME, INVALID_REQUEST, KEY_NOT_FOUND

MAX_SNAPSHOT_READS = 256
"""Most reads of snapshots that run or wait."""

NO_CHECKPOINT = "SNAPSHOT_UNREADABLE"
"""Code of a node that cannot read the checkpoint of an active snapshot; another node can."""

Found = TypeVar("Found")


def _after(allow: Callable[[ReadView], None], ask: Callable[[ReadView], Json], rows: ReadView) -> Json:
    allow(rows)
    return ask(rows)


class SnapshotReads:
    """What one node reads of snapshots. ``opened`` has the checkpoints, ``replicas`` the rows as they are now."""

    def __init__(self, node: str, replicas: Mapping[int, Replica], opened: OpenSnapshots) -> None:
        self._node = node
        self._replicas = replicas
        self._opened = opened

    def key(
        self, shard: int, volume: str, bucket: str, place: SnapshotPlace, view: ReadView, *, with_bytes: bool = False,
        reader: Caller | None = None,
    ) -> Json:  # fmt: skip
        """Return a key as it was, under its name in the snapshot; raises OMError, NotReadable, SnapshotsBusy.

        ``with_bytes`` as in ``queries.key_info``. A ``reader`` needs the right READ: on volume and bucket as they are
        now, on the key and its prefix as they are in the snapshot.
        """
        name = beginning(place.snapshot) + place.rest
        if not place.snapshot or not place.rest:
            what = "a snapshot, not a key in it" if place.snapshot else "no snapshot"
            asked = shown(name if place.snapshot else ".snapshot/")
            raise OMError(INVALID_KEY_NAME, f"{asked} names {what}: '.snapshot/NAME/KEY' names a key of a snapshot")
        if reader is not None:
            require_on_bucket(view, reader, volume, bucket, READ)
        info = queries.find_snapshot(view, volume, bucket, place.snapshot)
        try:
            ask: Callable[[ReadView], Json] = partial(
                queries.key_info, volume=volume, bucket=bucket, key=place.rest, with_bytes=with_bytes
            )
            if reader is not None:
                allow = partial(require_on_key, view, reader, volume, bucket, place.rest, READ)
                ask = partial(_after, allow, ask)
            found = self._read(shard, info, ask)
        except OMError as error:
            if error.status != KEY_NOT_FOUND:
                raise
            raise OMError(KEY_NOT_FOUND, f"no key /{volume}/{bucket}/{shown(name)}") from error
        return {**found, "key": name}

    def keys(
        self, shard: int, volume: str, bucket: str, place: SnapshotPlace, start_after: str, limit: int, view: ReadView
    ) -> Json:
        """List a snapshot's keys under their names in the snapshot; raises as :meth:`key`."""
        if not place.snapshot:
            raise OMError(
                INVALID_REQUEST,
                "prefix '.snapshot/' names no snapshot: '.snapshot/NAME/' lists the keys of one, and the list of the "
                f"snapshots of bucket /{volume}/{bucket} says which there are",
            )
        queries.check_limit(limit)
        check_text("start_after", start_after)
        info = queries.find_snapshot(view, volume, bucket, place.snapshot)
        after = after_in(place.snapshot, start_after)
        if after is None:
            return {"entries": [], "truncated": False}
        page = self._read(
            shard, info, lambda rows: queries.list_keys(rows, volume, bucket, place.rest, after, limit)
        )  # fmt: skip
        first = beginning(place.snapshot)
        page["entries"] = [{**entry, "key": first + entry["key"]} for entry in page["entries"]]
        if page["truncated"]:
            page["next_after"] = first + page["next_after"]
        return page

    def info(self, shard: int, volume: str, bucket: str, snapshot: str, view: ReadView) -> Json:
        """Return a snapshot with what its checkpoint takes on this node's disk; raises as :meth:`key`."""
        info = queries.find_snapshot(view, volume, bucket, snapshot)
        which = CheckpointName(shard, info.checkpoint)
        try:
            used = self._opened.checkpoints.disk_use(which)
        except CheckpointUnreadable as error:
            raise self._reason(shard, info, error) from error
        usage = {"disk_files": used.files, "disk_bytes": used.total_bytes, "only_disk_bytes": used.only_bytes}
        return {**snapshot_json(info), "usage": usage}

    def _read(self, shard: int, info: SnapshotInfo, read: Callable[[ReadView], Found]) -> Found:
        try:
            with self._opened.reading(CheckpointName(shard, info.checkpoint)) as rows:
                return read(rows)
        except CheckpointUnreadable as error:
            raise self._reason(shard, info, error) from error

    def _reason(self, shard: int, info: SnapshotInfo, error: CheckpointUnreadable) -> OMError | NotReadable:
        """Return why a checkpoint cannot be read: its snapshot was deleted meanwhile, or it is missing here."""
        _, _, now = self._replicas[shard].snapshot()
        try:
            found = queries.find_snapshot(now, info.volume, info.bucket, info.snapshot)
        except OMError as gone:
            return gone
        finally:
            now.close()
        path = f"/{info.volume}/{info.bucket}/{beginning(info.snapshot)}"
        if found.snapshot_id != info.snapshot_id:
            return NotReadable(NO_CHECKPOINT, f"snapshot {path} was just replaced by another one: ask again")
        return NotReadable(NO_CHECKPOINT, f"node {self._node} cannot read its checkpoint of snapshot {path}: {error}")
