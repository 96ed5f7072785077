"""Deletion of blocks that nothing refers to: each shard's leader reads deletedTable, has datanodes delete, purges rows.

Rules:
    - A row is purged (PurgeBlocks, through the log) only after the pipelines of all its blocks have committed the
      deletion. DeleteBlocks leaves a tombstone, so a later PutBlock is void. Datanodes that hold a copy of the
      container without being members are told too.
    - Deletions under way are remembered by row, not in the log. A new leader does them again, which changes nothing.
    - A row is looked at again in the turn after an answer about it, wherever the walk is. So rows are purged however
      many there are: what is remembered never has to last until the walk comes round. If there is too much of it, the
      rows that were answered longest ago are forgotten, and their blocks deleted again.
    - Rows whose grace is not over are left alone (``core/deletion_grace.py``): no datanode hears of them.
    - Rows that a snapshot needs are left alone: no datanode hears of them. The rows are read first and the snapshots
      afterwards, so a row that is not needed then is needed by no later snapshot, however long the deletion takes
      (``om_processors/namespace/snapshots.py``). PurgeBlocks asks the same question once more.
    - If no member of a pipeline lives, its rows stay. Blocks of the settings' pipelines are on no datanode, so nobody
      deletes them.
    - Bounds: MAX_ROWS rows a turn, and up to MAX_PAGES pages of as many that are left alone; MAX_BLOCKS blocks a
      request, MAX_PURGE_BYTES of names a purge, MAX_DONE rows of which something is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import accumulate, groupby, islice
from operator import itemgetter
from threading import Lock
from typing import Any

from om_processors.execution.requests.fleet import MAX_PURGED_ROWS, pipeline_name
from om_processors.fleet.core import placement
from om_processors.fleet.core.deletion_grace import DeletionGrace
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
"""Pages of MAX_ROWS rows that one turn looks at, as long as all rows of a page are left alone."""
MAX_BLOCKS = 1000
MAX_PURGE_BYTES = 256 * 1024
"""Bytes of row keys that one request purges, so that the request and its operations stay below their limits."""
MAX_DONE = 10_000
REST_MS = 2_000
"""Pause after the table had nothing to do."""
ALL = -1
"""Instead of a number of blocks: all that a row has in a place."""


Place = tuple[int, str, int]
"""A place where blocks are deleted. For a pipeline: its partition, an empty name and -1. For a copy: the pipeline's
partition, the name of a datanode that holds the copy without being a member, and the container.

Each container of a copy is a place of its own, so that a damaged one does not hold up the others.
"""


class BlockDeletion:
    """Deletes the unreferenced blocks of one shard, while this node leads it."""

    def __init__(
        self, shard: int, replica: Replica, proposer: Proposer, courier: Courier, clock: Clock, note: Note,
        grace_ms: int, log_time_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """``log_time_ms`` returns the present time of the shard's log."""
        self._shard = shard
        self._replica = replica
        self._store = replica.store
        self._grace = DeletionGrace(grace_ms)
        self._log_time_ms = log_time_ms
        self._proposer = proposer
        self._courier = courier
        self._clock = clock
        self._note = note
        self._lock = Lock()
        self._deleted: OrderedDict[bytes, dict[Place, int]] = OrderedDict()
        """By row and place: how many of its blocks are deleted there, ALL of them or the first ones. The row that was
        answered last is the last.
        """
        self._answered: dict[bytes, None] = {}
        """Those of these rows that the next turns look at again, first come first served."""
        self._cursor = RowCursor(replica.store, DELETED_TABLE)
        """Goes on behind the last row it returned: rows that cannot be purged yet must not hide the rows
        behind them.
        """
        self._rest_until_ms = 0
        self._found = False
        """Whether this walk through the table has found a row that is not left alone."""

    def turn(self, picture: Picture) -> None:
        """Look at the next rows: ask for deletions, and propose to purge the rows whose blocks are deleted."""
        index = self._replica.position.index  # before the time: by then all up to it was applied
        self._grace.stands_at(index, self._log_time_ms())
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
            left = [(place, block) for block in blocks for place in places(picture, block) if done.get(place) != ALL]
            for place, block in left:
                wanted.setdefault(place, []).append((key, block))
            if not left:
                gone.append(key)
        for place, found in wanted.items():
            self._delete(picture, place, found)
        if gone:
            self._purge(gone)

    def _next_rows(self) -> list[tuple[bytes, list[BlockLocation]]]:
        """Return the next rows that are not left alone, and the blocks of each that datanodes hold.

        A row that is purged meanwhile is purged once more, which changes nothing.
        """
        again = self._rows_again()
        for _ in range(MAX_PAGES):
            found = dict(self._cursor.next_rows(MAX_ROWS - len(again))) if len(again) < MAX_ROWS else {}
            page = [(key, tables.decode_key(value)) for key, value in (again | found).items()]
            needed = NeededVersions(self._store)  # of the snapshots that there are now, after the rows
            rows = [
                (key, [block for block in info.blocks if is_on_datanodes(block)])
                for key, info in page
                if self._grace.is_over(info) and not needed.include(info)
            ]
            if rows or not page or self._cursor.at_end:
                return rows
            again = {}
        return []

    def _rows_again(self) -> dict[bytes, bytes]:
        """Read up to MAX_ROWS of the rows with an answer since the last turn; what is gone is forgotten."""
        with self._lock:
            keys = list(islice(self._answered, MAX_ROWS))
            for key in keys:
                del self._answered[key]
        rows = {key: self._store.get(DELETED_TABLE, key) for key in keys}
        self._forget([key for key, value in rows.items() if value is None])
        return {key: value for key, value in rows.items() if value is not None}

    def _forget(self, rows: list[bytes]) -> None:
        with self._lock:
            for key in rows:
                self._deleted.pop(key, None)
                self._answered.pop(key, None)

    def _done_of(self, key: bytes) -> dict[Place, int]:
        with self._lock:
            return dict(self._deleted.get(key, {}))

    def _delete(self, picture: Picture, place: Place, found: list[tuple[bytes, BlockLocation]]) -> None:
        """Have blocks deleted in one place: as many whole rows as MAX_BLOCKS allows; a row with more blocks goes in
        parts.
        """
        rows = [(key, [block for _, block in its]) for key, its in groupby(found, key=itemgetter(0))]
        key, first = rows[0]
        if len(first) > MAX_BLOCKS:
            begun = self._done_of(key).get(place, 0)
            keys, blocks = (key,), first[begun : begun + MAX_BLOCKS]
            count = begun + len(blocks) if begun + len(blocks) < len(first) else ALL
        else:
            sizes = accumulate(len(its) for _, its in rows)
            chosen = rows[: sum(size <= MAX_BLOCKS for size in sizes)]
            keys, count = tuple(key for key, _ in chosen), ALL
            blocks = [block for _, its in chosen for block in its]
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
            done=partial(self._were_deleted, place, keys, count),
        )  # fmt: skip

    def _were_deleted(
        self, place: Place, rows: tuple[bytes, ...], count: int,
        answer: Any,  # noqa: ARG002 - it is committed
    ) -> None:  # fmt: skip
        """Remember how many blocks of each row are deleted in a place."""
        with self._lock:
            for key in rows:
                self._deleted.setdefault(key, {})[place] = count
                self._deleted.move_to_end(key)
                self._answered[key] = None
            while len(self._deleted) > MAX_DONE:
                oldest, _ = self._deleted.popitem(last=False)
                self._answered.pop(oldest, None)

    def _purge(self, rows: list[bytes]) -> None:
        """Propose to purge the first of these rows; the others, or all of them, are looked at again."""
        some = fitting(rows[:MAX_PURGED_ROWS])
        proposed = self._proposer.propose(
            ("purge", self._shard, some[0], len(some)), PurgeBlocks(shard=self._shard, rows=some)
        )
        if proposed:
            self._note(f"{len(some)} rows of {DELETED_TABLE} are to be purged", shard=self._shard)
            self._forget(some)  # if the purge is lost, a later walk finds the rows again and deletes them again
        with self._lock:
            self._answered |= {key: None for key in rows if key in self._deleted}


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
