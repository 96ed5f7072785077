"""Which request of a batch changed which row: from operations and results to one target for each request. Pure.

A batch holds the operations of its requests in the order of their execution, and no operation names its request. But:

1. A row of a volume, a bucket or a key names the index of the request that wrote it (``update_id``).
2. A request of a kind in ``DELETING`` that was answered OK deletes exactly one row of its table, and nothing else does.
   So the n-th Delete in a table belongs to the n-th such request. (PurgeSnapshots deletes rows of deleted snapshots
   alone, whose keys say so.)
3. In the same way the n-th Put of snapshotTable belongs to the n-th request of a kind in ``SNAPSHOT_WRITING``.

If the numbers differ, a kind of request is unknown here: the deletions of that table then have a target of their own,
without a request. No change of a key is ever left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.codecs.codec import Undecodable, decode_as
from schemas.column_families import BUCKET_TABLE, KEY_TABLE, OPEN_KEY_TABLE, SNAPSHOT_TABLE, VOLUME_TABLE
from schemas.records.log import Batch, Delete, Put, Result
from schemas.records.messages import Response
from schemas.records.rows import BucketInfo, KeyInfo, SnapshotInfo, VolumeInfo

OK = "OK"
DELETING = {
    KEY_TABLE: ("DeleteKey", "RenameKey"),
    BUCKET_TABLE: ("DeleteBucket",),
    VOLUME_TABLE: ("DeleteVolume",),
    SNAPSHOT_TABLE: ("DeleteSnapshot", "RenameSnapshot"),
}
"""The kinds of requests that delete one row of a table."""

SNAPSHOT_WRITING = ("CreateSnapshot", "DeleteSnapshot", "RenameSnapshot", "SetSnapshotProperty")
UPDATED: dict[str, type[VolumeInfo | BucketInfo | KeyInfo]] = {
    VOLUME_TABLE: VolumeInfo,
    BUCKET_TABLE: BucketInfo,
    KEY_TABLE: KeyInfo,
    OPEN_KEY_TABLE: KeyInfo,
}
"""Tables whose rows name the request that wrote them, and what they hold."""

_OF_DELETED_SNAPSHOT = b"/#"
_UNREADABLE = "?"
"""Status of a response that cannot be decoded."""


class RequestAnswer(NamedTuple):
    """What a result says: its status is OK or a code of ``schemas/result_codes.py``."""

    result: Result
    status: str
    message: str


@dataclass(slots=True)
class RequestTarget:
    """What one request changed. ``index`` is the request's; for a change of no known request it is the batch's last.

    ``at``: position in the batch of its last operation on a key, -1 if it has none. A request that renames has
    ``to_key``; its ``key`` is gone. ``row``: what a key's row is afterwards, None where it is gone or no key is meant.
    """

    index: int
    at: int = -1
    volume: str | None = None
    bucket: str | None = None
    key: str | None = None
    to_key: str | None = None
    snapshot: str | None = None
    row: KeyInfo | None = None
    removes_key: bool = False
    is_known: bool = True


def answers_of(batch: Batch) -> list[RequestAnswer]:
    """Return a batch's results with their statuses, in the order of their indexes."""
    return [_answer(result) for result in sorted(batch.results, key=lambda result: result.index)]


def _answer(result: Result) -> RequestAnswer:
    try:
        response = decode_as(Response, result.response)
    except Undecodable as error:
        return RequestAnswer(result, _UNREADABLE, str(error))
    return RequestAnswer(result, response.status, response.message)


def targets_of(batch: Batch, answers: Sequence[RequestAnswer]) -> list[RequestTarget]:
    """Return what the requests of a batch changed, in the order of its operations; raises Undecodable for a row."""
    return _Targets(batch, answers).walk()


@dataclass
class _Targets:
    batch: Batch
    answers: Sequence[RequestAnswer]
    found: dict[int, RequestTarget] = field(default_factory=dict)
    strangers: list[RequestTarget] = field(default_factory=list)

    def walk(self) -> list[RequestTarget]:
        deleting = {cf: self._requests(kinds, self._deletes(cf)) for cf, kinds in DELETING.items()}
        puts = [op for op in self.batch.operations if isinstance(op, Put) and op.cf == SNAPSHOT_TABLE]
        snapshots = self._requests(SNAPSHOT_WRITING, puts)
        for at, operation in enumerate(self.batch.operations):
            if isinstance(operation, Delete) and _counts(operation):
                self._delete(operation, self._target(next(deleting[operation.cf], None)), at)
            elif isinstance(operation, Put) and operation.cf == SNAPSHOT_TABLE:
                self._put_snapshot(operation, self._target(next(snapshots, None)))
            elif isinstance(operation, Put) and operation.cf in UPDATED:
                self._put(operation, at)
        return sorted([*self.found.values(), *self.strangers], key=lambda target: target.at)

    def _deletes(self, cf: str) -> list[Delete]:
        return [op for op in self.batch.operations if isinstance(op, Delete) and op.cf == cf and _counts(op)]

    def _requests(self, kinds: Iterable[str], changes: Sequence[Put | Delete]) -> Iterator[int]:
        """Return the indexes of the requests of some kinds; none unless there are as many as changes."""
        indexes = [one.result.index for one in self.answers if one.status == OK and one.result.request_type in kinds]
        return iter(indexes if len(indexes) == len(changes) else ())

    def _target(self, index: int | None) -> RequestTarget:
        if index is not None:
            return self.found.setdefault(index, RequestTarget(index))
        self.strangers.append(RequestTarget(self.batch.last_index, is_known=False))
        return self.strangers[-1]

    def _delete(self, operation: Delete, target: RequestTarget, at: int) -> None:
        _, volume, *rest = [*operation.key.decode(errors="replace").split("/", 3), None, None]
        target.volume, target.bucket = volume, rest[0]
        if operation.cf == KEY_TABLE:
            target.key, target.removes_key, target.at = rest[1], True, at
        elif operation.cf == SNAPSHOT_TABLE:
            target.snapshot = rest[1]

    def _put(self, operation: Put, at: int) -> None:
        row = decode_as(UPDATED[operation.cf], operation.value)
        target = self._target(row.update_id)
        target.volume = row.volume
        if isinstance(row, BucketInfo):
            target.bucket = row.bucket
        if isinstance(row, KeyInfo):
            target.bucket = row.bucket
            if operation.cf == KEY_TABLE:
                target.row, target.at = row, at
                target.key, target.to_key = (target.key, row.key) if target.removes_key else (row.key, None)
            elif target.at < 0:  # else it is what is left of a reservation from which the key has its blocks
                target.key = row.key or None  # a reservation has no key's name

    def _put_snapshot(self, operation: Put, target: RequestTarget) -> None:
        row = decode_as(SnapshotInfo, operation.value)
        target.volume, target.bucket = row.volume, row.bucket
        renamed = target.snapshot is not None and target.snapshot != row.snapshot
        target.snapshot, target.to_key = (target.snapshot, row.snapshot) if renamed else (row.snapshot, None)


def _counts(operation: Delete) -> bool:
    purged = operation.cf == SNAPSHOT_TABLE and _OF_DELETED_SNAPSHOT in operation.key
    return operation.cf in DELETING and not purged
