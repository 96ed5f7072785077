"""Lookups of keys by the direct door: many share one read index and one snapshot.

Lookups that may be answered now are answered at once. The others wait for a *turn* of their shard: one wait, for a read
index or for the highest index that their sessions name, answers all that had arrived when it began.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from om_processors.errors import OMError
from om_processors.namespace import tables
from om_processors.namespace.context import ReadView
from om_processors.namespace.names import check_bucket_name, check_key_name, check_volume_name
from om_processors.serving.consistency import LINEARIZABLE, SESSION, STALE, Consistency, NotReadable
from om_processors.snapshots.core.snapshot_paths import place_of
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import StoreFailure
from schemas.column_families import BUCKET_TABLE, KEY_TABLE
from schemas.door.frames import MAX_READ_KEYS
from schemas.records.door import DoorRead, DoorRows
from schemas.result_codes import INVALID_REQUEST, NOT_SUPPORTED_OPERATION, OK, OVERLOADED
from schemas.sharding import shard_of

MAX_ROWS_BYTES = 4 * 1024 * 1024
"""Most bytes of rows, and of inline keys, in one answer: whoever asks for more is told to ask for fewer keys."""
MAX_WAITING = 20_000
"""Most lookups of a shard that wait."""
AT_ONCE_KEYS = 1_000
"""Most keys that are looked up without a pause, if they are of several lookups."""

Told = Callable[[DoorRows], None]


@dataclass(frozen=True, slots=True)
class _Lookup:
    read: DoorRead
    told: Told
    is_gone: Callable[[], bool]
    """Whether nobody waits for the answer any more."""


def weight_of(read: DoorRead) -> int:
    """Return what a lookup counts for: its keys."""
    return max(1, len(read.keys))


def refused(status: str, message: str) -> DoorRows:
    """Return the answer to a lookup that was not made."""
    return DoorRows(status=status, message=message, shard=-1, index=-1, rows=[])


def found_rows(view: ReadView, read: DoorRead, shard: int, index: int) -> DoorRows:
    """Look up keys in a consistent view of a shard whose last applied index is ``index``; pure."""
    try:
        check_volume_name(read.volume)
        check_bucket_name(read.bucket)
        for key in read.keys:
            check_key_name(key)
        if view.get(BUCKET_TABLE, tables.bucket_key(read.volume, read.bucket)) is None:
            tables.require_bucket(view, read.volume, read.bucket)
    except OMError as error:
        return refused(error.status, error.message)
    rows: list[bytes | None] = []
    data: list[bytes | None] = []
    size = 0
    for key in read.keys:
        rows.append(row := view.get(KEY_TABLE, tables.key_key(read.volume, read.bucket, key)))
        size += len(row or b"")
        if read.with_bytes:
            data.append(found := None if row is None else tables.get_inline(view, tables.decode_key(row)))
            size += len(found or b"")
        if size > MAX_ROWS_BYTES and len(rows) > 1:
            return refused(INVALID_REQUEST, f"the rows of {len(read.keys)} keys have over {MAX_ROWS_BYTES} bytes")
    return DoorRows(status=OK, message="", shard=shard, index=index, rows=rows, data=data)


class DoorLookups:
    """Answers lookups of every shard of this node; for the event loop's thread. ``fatal`` gets a store's error."""

    def __init__(
        self, replicas: Mapping[int, Replica], consistency: Consistency, fatal: Callable[[BaseException], None]
    ) -> None:
        self._replicas = replicas
        self._consistency = consistency
        self._fatal = fatal
        self._waiting: dict[int, list[_Lookup]] = {shard: [] for shard in replicas}
        self._turns: dict[int, asyncio.Task[None]] = {}
        self._slow: deque[tuple[int, _Lookup]] = deque()
        """Lookups that may be answered, behind others with many keys."""
        self._answering: asyncio.Task[None] | None = None

    def ask(self, reads: Sequence[tuple[DoorRead, Told]], is_gone: Callable[[], bool] = lambda: False) -> None:
        """Answer lookups that arrived together, each by its callback: now, or when its shard may be read.

        Those that wait are dropped if ``is_gone`` says that their client has gone.
        """
        now: dict[int, list[_Lookup]] = {}
        for read, told in reads:
            lookup = _Lookup(read, told, is_gone)
            if (fault := self._fault_of(read)) is not None:
                told(refused(INVALID_REQUEST, fault))
                continue
            if self._is_of_snapshot(read):
                told(refused(NOT_SUPPORTED_OPERATION, "keys of snapshots are read over HTTP"))
                continue
            shard = shard_of(read.volume, len(self._replicas))
            if self._may_answer(shard, read):
                now.setdefault(shard, []).append(lookup)
            else:
                self._wait(shard, lookup)
        for shard, lookups in now.items():
            self._answer_soon(shard, lookups)

    @staticmethod
    def _fault_of(read: DoorRead) -> str | None:
        if read.consistency not in (LINEARIZABLE, SESSION, STALE):
            return f"consistency {read.consistency!r} is not linearizable, session or stale"
        if not 1 <= len(read.keys) <= MAX_READ_KEYS:
            return f"a lookup of {len(read.keys)} keys; 1 to {MAX_READ_KEYS} are taken"
        return None

    @staticmethod
    def _is_of_snapshot(read: DoorRead) -> bool:
        return any(place_of(key) is not None for key in read.keys)

    def _may_answer(self, shard: int, read: DoorRead) -> bool:
        if read.consistency == SESSION:
            return self._replicas[shard].position.index >= read.index
        return read.consistency == STALE

    def _wait(self, shard: int, lookup: _Lookup) -> None:
        waiting = self._waiting[shard]
        if len(waiting) + len(self._slow) >= MAX_WAITING:
            lookup.told(refused(OVERLOADED, f"{MAX_WAITING} lookups of shard {shard} wait"))
            return
        waiting.append(lookup)
        if shard not in self._turns:
            self._turns[shard] = asyncio.get_running_loop().create_task(self._take_turns(shard))

    async def _take_turns(self, shard: int) -> None:
        try:
            while lookups := self._waiting[shard]:
                self._waiting[shard] = []
                await self._turn(shard, lookups)
        finally:
            del self._turns[shard]

    async def _turn(self, shard: int, lookups: Sequence[_Lookup]) -> None:
        try:
            if any(one.read.consistency == LINEARIZABLE for one in lookups):
                await self._consistency.ready(shard, LINEARIZABLE, {})
            wanted = max((one.read.index for one in lookups if one.read.consistency == SESSION), default=0)
            await self._consistency.ready(shard, SESSION, {shard: wanted})
        except NotReadable as error:
            for one in lookups:
                one.told(refused(error.code, str(error)))
            return
        self._answer_soon(shard, lookups)

    def _answer_soon(self, shard: int, lookups: Sequence[_Lookup]) -> None:
        """Answer lookups that may be answered: those with the fewest keys now, the others behind those that wait."""
        at_once: list[_Lookup] = []
        weight = 0
        for one in sorted(lookups, key=lambda lookup: weight_of(lookup.read)):
            weight += weight_of(one.read)
            if weight <= AT_ONCE_KEYS:
                at_once.append(one)
            else:
                self._slow.append((shard, one))
        if at_once:
            self._answer(shard, at_once)
        if self._slow and self._answering is None:
            self._answering = asyncio.get_running_loop().create_task(self._answer_slow())

    async def _answer_slow(self) -> None:
        try:
            while self._slow:
                shard, some = self._some_slow()
                if wanted := [one for one in some if not one.is_gone()]:
                    self._answer(shard, wanted)
                    await asyncio.sleep(0)
        finally:
            self._answering = None

    def _some_slow(self) -> tuple[int, Sequence[_Lookup]]:
        """Take the next lookups of one shard, with at most AT_ONCE_KEYS keys together unless it is one lookup."""
        shard, first = self._slow.popleft()
        some, weight = [first], weight_of(first.read)
        while self._slow and self._slow[0][0] == shard:
            weight += weight_of(self._slow[0][1].read)
            if weight > AT_ONCE_KEYS:
                break
            some.append(self._slow.popleft()[1])
        return shard, some

    def _answer(self, shard: int, lookups: Sequence[_Lookup]) -> None:
        replica = self._replicas[shard]
        try:
            self._consistency.refuse_flagged(shard)
            index, rows = replica.moment()
            try:
                answers = [found_rows(rows, one.read, shard, index) for one in lookups]
            finally:
                rows.close()
            self._consistency.refuse_flagged(shard)
        except NotReadable as error:
            answers = [refused(error.code, str(error))] * len(lookups)
        except StoreFailure as error:
            self._fatal(error)
            raise
        for one, answer in zip(lookups, answers, strict=True):
            one.told(answer)

    def close(self) -> None:
        """End the turns; whoever waits gets no answer, as its connection ends."""
        for turn in self._turns.values():
            turn.cancel()
        if self._answering is not None:
            self._answering.cancel()
