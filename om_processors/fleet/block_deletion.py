"""Deletion of blocks that nothing refers to: each shard's leader reads deletedTable, has datanodes delete, purges rows.

Rules:
    - A row is purged (PurgeBlocks, through the log) only after the pipelines of all its blocks have committed the
      deletion. DeleteBlocks leaves a tombstone, so a later PutBlock is void. Datanodes that hold a copy of the
      container without being members are told too.
    - Deletions under way are remembered by row, not in the log. A new leader does them again, which changes nothing.
    - Rows that a snapshot needs are left alone: no datanode hears of them. The rows are read first and the snapshots
      afterwards, so a row that is not needed then is needed by no later snapshot, however long the deletion takes
      (``om_processors/namespace/snapshots.py``). PurgeBlocks asks the same question once more.
    - If no member of a pipeline lives, its rows stay. Blocks of the settings' pipelines are on no datanode, so nobody
      deletes them.
    - Bounds: MAX_ROWS rows a turn, and up to MAX_PAGES pages of as many that snapshots need; MAX_BLOCKS blocks a
      request, MAX_PURGE_BYTES of names a purge, MAX_DONE rows whose purge has still to wait.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate, groupby
from operator import itemgetter
from threading import Lock
from typing import Any

from om_processors.execution.requests.fleet import MAX_PURGED_ROWS, pipeline_name
from om_processors.fleet.core import placement
from om_processors.fleet.core.fleet import Datanode, Picture
from om_processors.fleet.datanode_client import Courier
from om_processors.fleet.proposer import Proposer
from om_processors.fleet.row_cursor import RowCursor
from om_processors.namespace import tables
from om_processors.namespace.snapshots import NeededVersions
from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import Clock
from replicated_db.shell.logs import Note
from schemas.column_families import DELETED_TABLE
from schemas.records.datanode import BlockId, DeleteBlocks
from schemas.records.messages import PurgeBlocks
from schemas.records.rows import BlockLocation
from schemas.sharding import pipeline_of

MAX_ROWS = 500
MAX_PAGES = 10
"""Pages of MAX_ROWS rows that one turn looks at, as long as snapshots need all rows of a page."""
MAX_BLOCKS = 1000
MAX_PURGE_BYTES = 256 * 1024
"""Bytes of row keys that one request purges, so that the request and its operations stay below their limits."""
MAX_DONE = 10_000
REST_MS = 2_000
"""Pause after the table had nothing to do."""


Place = tuple[int, str, int]
"""A place where blocks are deleted. For a pipeline: its partition, an empty name and -1. For a copy: the pipeline's
partition, the name of a datanode that holds the copy without being a member, and the container.

Each container of a copy is a place of its own, so that a damaged one does not hold up the others.
"""


class BlockDeletion:
    """Deletes the unreferenced blocks of one shard, while this node leads it."""

    def __init__(
        self, shard: int, replica: Replica, proposer: Proposer, courier: Courier, clock: Clock, note: Note
    ) -> None:
        self._shard = shard
        self._store = replica.store
        self._proposer = proposer
        self._courier = courier
        self._clock = clock
        self._note = note
        self._lock = Lock()
        self._deleted: dict[bytes, set[Place]] = {}
        """By row: where its blocks have been deleted."""
        self._parts: dict[tuple[bytes, Place], int] = {}
        """Of rows deleted in parts: how many of their blocks are deleted in a place."""
        self._cursor = RowCursor(replica.store, DELETED_TABLE)
        """Goes on behind the last row it returned: rows that cannot be purged yet must not hide the rows
        behind them.
        """
        self._rest_until_ms = 0
        self._found = False
        """Whether this walk through the table has found a row that no snapshot needs."""

    def turn(self, picture: Picture) -> None:
        """Look at the next rows: ask for deletions, and propose to purge the rows whose blocks are deleted."""
        now_ms = self._clock.elapsed_ms()
        if now_ms < self._rest_until_ms or not picture.settled:  # some holders of copies may not have been heard yet
            return
        rows = self._next_rows()
        self._found = self._found or bool(rows)
        if self._cursor.at_end:
            if not self._found:
                self._rest_until_ms = now_ms + REST_MS
            self._found = False
        if not rows:
            return
        wanted: dict[Place, list[tuple[bytes, BlockLocation]]] = {}
        gone: list[bytes] = []
        for key, blocks in rows:
            done = self._done_of(key)
            left = [(place, block) for block in blocks for place in places(picture, block) if place not in done]
            for place, block in left:
                wanted.setdefault(place, []).append((key, block))
            if not left:
                gone.append(key)
        for place, found in wanted.items():
            self._delete(picture, place, found)
        if gone:
            self._purge(fitting(gone[:MAX_PURGED_ROWS]))

    def _next_rows(self) -> list[tuple[bytes, list[BlockLocation]]]:
        """Return the next rows that no snapshot needs, and the blocks of each that datanodes hold.

        A row that is purged meanwhile is purged once more, which changes nothing.
        """
        for _ in range(MAX_PAGES):
            page = [(key, tables.decode_key(value)) for key, value in self._cursor.next_rows(MAX_ROWS)]
            needed = NeededVersions(self._store)  # of the snapshots that there are now, after the rows
            rows = [
                (key, [block for block in info.blocks if is_on_datanodes(block)])
                for key, info in page
                if not needed.include(info)
            ]
            if rows or not page or self._cursor.at_end:
                return rows
        return []

    def _done_of(self, key: bytes) -> set[Place]:
        with self._lock:
            return set(self._deleted.get(key, ()))

    def _delete(self, picture: Picture, place: Place, found: list[tuple[bytes, BlockLocation]]) -> None:
        """Have blocks deleted in one place: as many whole rows as MAX_BLOCKS allows; a row with more blocks goes in
        parts.
        """
        rows = [(key, [block for _, block in its]) for key, its in groupby(found, key=itemgetter(0))]
        key, first = rows[0]
        if len(first) > MAX_BLOCKS:
            with self._lock:
                begun = self._parts.get((key, place), 0)
            blocks = first[begun : begun + MAX_BLOCKS]
            rest = begun + len(blocks) if begun + len(blocks) < len(first) else 0
            done = partial(self._part_was_deleted, place, key, rest)
        else:
            sizes = accumulate(len(its) for _, its in rows)
            chosen = rows[: sum(size <= MAX_BLOCKS for size in sizes)]
            blocks = [block for _, its in chosen for block in its]
            done = partial(self._was_deleted, place, tuple(key for key, _ in chosen))
        partition, name, _ = place
        row = next((row for row in picture.pipelines if row.partition == partition), None)
        if name:
            member: Datanode | None = picture.member(name)
        else:
            member = None if row is None else placement.spokesman(picture, row)
        if member is None or member.heartbeat is None:
            return
        named = [BlockId(container_id=block.container_id, local_id=block.local_id) for block in blocks]
        self._courier.send(
            ("delete", self._shard, *place), member.heartbeat.address,
            DeleteBlocks(partition=partition, blocks=named), datanode=member.name,
            done=done,
        )  # fmt: skip

    def _part_was_deleted(self, place: Place, key: bytes, rest: int, answer: Any) -> None:
        """Remember how many blocks of a large row are deleted in a place; ``rest`` is 0 after the last of them."""
        with self._lock:
            self._parts.pop((key, place), None)
            if rest and len(self._parts) < MAX_DONE:
                self._parts[key, place] = rest
        if not rest:
            self._was_deleted(place, (key,), answer)

    def _was_deleted(
        self, place: Place, rows: tuple[bytes, ...],
        answer: Any,  # noqa: ARG002 - it is committed
    ) -> None:  # fmt: skip
        with self._lock:
            if len(self._deleted) >= MAX_DONE:
                self._deleted.clear()
            for key in rows:
                self._deleted.setdefault(key, set()).add(place)

    def _purge(self, rows: list[bytes]) -> None:
        body = PurgeBlocks(shard=self._shard, rows=rows)
        if self._proposer.propose(("purge", self._shard, rows[0], len(rows)), body):
            self._note(f"{len(rows)} rows of {DELETED_TABLE} are to be purged", shard=self._shard)
            with self._lock:
                # If the purge is lost, a later walk finds the rows again and deletes them again.
                for key in rows:
                    self._deleted.pop(key, None)


def fitting(keys: list[bytes]) -> list[bytes]:
    """Return the first keys of up to MAX_PURGE_BYTES, at least one; the next walk finds the others."""
    sizes = accumulate(map(len, keys))
    return keys[: max(1, sum(size <= MAX_PURGE_BYTES for size in sizes))]


def places(picture: Picture, block: BlockLocation) -> list[Place]:
    """Return where to delete a block: in its pipeline, and on living datanodes that hold a copy of its container."""
    partition = partition_of(block)
    row = next((row for row in picture.pipelines if row.partition == partition), None)
    found = picture.containers.get(block.container_id)
    if row is None or found is None:
        return [(partition, "", -1)]
    copies = found.held_by - {one.datanode for one in row.members}
    return [(partition, "", -1), *((partition, name, block.container_id) for name in sorted(copies))]


def partition_of(block: BlockLocation) -> int:
    """Return the number of a block's pipeline."""
    return pipeline_of(block.container_id)


def is_on_datanodes(block: BlockLocation) -> bool:
    """Return whether datanodes may hold a block: pipelines of the settings have other names."""
    return block.pipeline == pipeline_name(partition_of(block))
