"""Lookups and listings of keys by the direct door: many share one read index.

Lookups that may be answered now are answered at once. Linearizable ones wait for a *turn* of their shard: one wait for
a read index answers all that had arrived when it began, and MAX_TURNS may be under way. Those of a session wait for
their own index, each for itself and for READ_DEADLINE_S at most: whoever names an index that never comes holds up
nobody else.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from om_processors.errors import OMError
from om_processors.namespace import tables
from om_processors.namespace.access import Caller, require_on_bucket, require_on_key
from om_processors.namespace.context import ReadView
from om_processors.namespace.names import check_bucket_name, check_key_name, check_volume_name
from om_processors.namespace.prefixes import BucketPrefixes
from om_processors.serving.consistency import (
    LINEARIZABLE,
    READ_DEADLINE_S,
    SESSION,
    STALE,
    STEP_S,
    Consistency,
    NotReadable,
)
from om_processors.snapshots.core.snapshot_paths import is_reserved
from replicated_db.core.applying.replica import Replica
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.logs import log
from schemas.access.acl import LIST, READ
from schemas.codecs.codec import encode
from schemas.column_families import BUCKET_TABLE, INLINE_TABLE, KEY_TABLE, PREFIX_TABLE, VOLUME_TABLE
from schemas.door.frames import MAX_READ_KEYS
from schemas.records.door import DoorRead, DoorRows
from schemas.records.record import made_in_c
from schemas.result_codes import INTERNAL_ERROR, INVALID_REQUEST, NOT_SUPPORTED_OPERATION, OK, OVERLOADED
from schemas.sharding import shard_of
from transport.waiting.deadline import Deadline

NOT_CAUGHT_UP = "NOT_CAUGHT_UP"
MAX_INDEX = 2**63 - 1
SPARE_ENTRIES = 1_000
"""So many lookups that were answered may still be in a list of those that wait."""
MAX_ROWS_BYTES = 4 * 1024 * 1024
"""Most bytes of rows, and of inline keys, in one answer: whoever asks for more is told to ask for fewer keys."""
MAX_HELD_KEYS = 16
"""Most keys of a lookup during which nothing is applied; a lookup of more takes a snapshot."""
FEW_SLASHES = 64
"""Of a lookup's names, together: with more, all prefixes of the bucket are read once."""
READ_FAMILIES = (VOLUME_TABLE, BUCKET_TABLE, KEY_TABLE, INLINE_TABLE, PREFIX_TABLE)
MAX_TURNS = 2
"""Turns of a shard that may be under way: while one waits for its read index, the next may gather and ask."""
MAX_WAITING = 20_000
"""Most lookups of a shard that wait."""
AT_ONCE_KEYS = 1_000
"""Most keys that are looked up without a pause, if they are of several lookups."""

Told = Callable[[DoorRows], None]


@made_in_c
@dataclass(frozen=True, slots=True)
class _Lookup:
    read: DoorRead
    told: Told
    reader: Caller | None
    """Whose rights are judged; None: they are not."""
    is_gone: Callable[[], bool]
    """Whether nobody waits for the answer any more."""


@dataclass(order=True, slots=True)
class _Later:
    """A lookup of a session that waits for its index, until the deadline."""

    index: int
    number: int
    deadline: Deadline = field(compare=False)
    lookup: _Lookup = field(compare=False)
    done: bool = field(compare=False, default=False)


class _Sessions:
    """Lookups of one shard that wait for the indexes of their sessions, by index and by age."""

    def __init__(self) -> None:
        self._by_index: list[_Later] = []
        self._by_age: deque[_Later] = deque()
        self._number = 0
        self._waiting = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._waiting

    def add(self, lookup: _Lookup) -> None:
        """Let a lookup wait."""
        self._number += 1
        self._waiting += 1
        later = _Later(lookup.read.index, self._number, Deadline.after_s(READ_DEADLINE_S), lookup)
        heapq.heappush(self._by_index, later)
        self._by_age.append(later)

    def reached(self, index: int) -> list[_Lookup]:
        """Take what waits for no more than an index."""
        found = []
        while self._by_index and (self._by_index[0].done or self._by_index[0].index <= index):
            later = heapq.heappop(self._by_index)
            if not later.done:
                found.append(self._take(later))
        return found

    def late(self) -> list[_Lookup]:
        """Take what has waited for too long."""
        found = []
        while self._by_age and (self._by_age[0].done or self._by_age[0].deadline.has_passed):
            later = self._by_age.popleft()
            if not later.done:
                found.append(self._take(later))
        if len(self._by_index) > 2 * self._waiting + SPARE_ENTRIES:  # those that were late, and whose index never came
            self._by_index = [later for later in self._by_index if not later.done]
            heapq.heapify(self._by_index)
        return found

    def _take(self, later: _Later) -> _Lookup:
        later.done = True
        self._waiting -= 1
        return later.lookup


def weight_of(read: DoorRead) -> int:
    """Return what a lookup or a listing counts for: its keys."""
    return max(1, len(read.keys), read.limit)


def refused(status: str, message: str) -> DoorRows:
    """Return the answer to a lookup that was not made."""
    return DoorRows(status=status, message=message, shard=-1, index=-1, rows=[])


def found_rows(view: ReadView, read: DoorRead, shard: int, index: int, reader: Caller | None = None) -> DoorRows:
    """Look up or list keys in a consistent view of a shard whose last applied index is ``index``; pure.

    A ``reader`` needs the right READ on each key that is looked up, and LIST on the bucket that is listed; None: rights
    are not judged.
    """
    try:
        check_volume_name(read.volume)
        check_bucket_name(read.bucket)
        for key in read.keys:
            check_key_name(key)
        if view.get(BUCKET_TABLE, tables.bucket_key(read.volume, read.bucket)) is None:
            tables.require_bucket(view, read.volume, read.bucket)
        if reader is not None:
            if read.limit:
                require_on_bucket(view, reader, read.volume, read.bucket, LIST)
            known = _prefixes_of(view, read)
            for key in read.keys:
                require_on_key(view, reader, read.volume, read.bucket, key, READ, known=known)
    except OMError as error:
        return refused(error.status, error.message)
    if read.limit:
        return _listed(view, read, shard, index, reader)
    rows: list[bytes | None] = []
    data: list[bytes | None] = []
    size = 0
    for key in read.keys:
        row = view.get(KEY_TABLE, tables.key_key(read.volume, read.bucket, key))
        rows.append(row if reader is None or row is None else _without_acls(row))
        size += len(row or b"")
        if read.with_bytes:
            data.append(found := None if row is None else tables.get_inline(view, tables.decode_key(row)))
            size += len(found or b"")
        if size > MAX_ROWS_BYTES and len(rows) > 1:
            return refused(INVALID_REQUEST, f"the rows of {len(read.keys)} keys have over {MAX_ROWS_BYTES} bytes")
    return DoorRows(status=OK, message="", shard=shard, index=index, rows=rows, data=data)


def _prefixes_of(view: ReadView, read: DoorRead) -> BucketPrefixes | None:
    """Return all prefixes of a bucket if the names that are looked up have many slashes; None: few are looked for."""
    slashes = sum(key.count("/") for key in read.keys)
    return BucketPrefixes(view, read.volume, read.bucket) if slashes > FEW_SLASHES else None


def _listed(view: ReadView, read: DoorRead, shard: int, index: int, reader: Caller | None) -> DoorRows:
    """Return a page of a bucket's keys, as ``serving/queries`` does, with the rows as they are stored."""
    base = tables.bucket_prefix(read.volume, read.bucket)
    start = base + read.prefix.encode()
    stop = tables.prefix_stop(start)
    if read.start_after:
        start = max(start, base + read.start_after.encode() + b"\x00")
    rows: list[bytes | None] = []
    size, more = 0, False
    for _, value in view.iterate(KEY_TABLE, start, stop) if start < stop else ():
        size += len(value)
        if more := len(rows) == read.limit or (bool(rows) and size > MAX_ROWS_BYTES):
            break
        rows.append(value if reader is None else _without_acls(value))
    return DoorRows(status=OK, message="", shard=shard, index=index, rows=rows, more=more)


def _without_acls(row: bytes) -> bytes:
    """Return a key's row without its access control list, which needs a right of its own."""
    info = tables.decode_key(row)
    return encode(replace(info, acls=[])) if info.acls else row


class DoorLookups:
    """Answers lookups of every shard of this node; for the event loop's thread. ``fatal`` gets a store's error."""

    def __init__(
        self, replicas: Mapping[int, Replica], consistency: Consistency, fatal: Callable[[BaseException], None]
    ) -> None:
        self._replicas = replicas
        self._consistency = consistency
        self._fatal = fatal
        self._waiting: dict[int, list[_Lookup]] = {shard: [] for shard in replicas}
        self._turns: dict[int, set[asyncio.Task[None]]] = {shard: set() for shard in replicas}
        self._sessions: dict[int, _Sessions] = {shard: _Sessions() for shard in replicas}
        self._session_turns: dict[int, asyncio.Task[None]] = {}
        self._slow: deque[tuple[int, _Lookup]] = deque()
        """Lookups that may be answered, behind others with many keys."""
        self._answering: asyncio.Task[None] | None = None

    def ask(
        self,
        reads: Sequence[tuple[DoorRead, Told]],
        reader: Caller | None = None,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        """Answer lookups of a ``reader`` that arrived together, each by its callback: now, or when its shard is ready.

        Those that wait are dropped if ``is_gone`` says that their client has gone.
        """
        now: dict[int, list[_Lookup]] = {}
        for read, told in reads:
            lookup = _Lookup(read, told, reader, is_gone)
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
        if read.limit:
            return DoorLookups._fault_of_listing(read)
        if not 1 <= len(read.keys) <= MAX_READ_KEYS:
            return f"a lookup of {len(read.keys)} keys; 1 to {MAX_READ_KEYS} are taken"
        if read.prefix or read.start_after:
            return "a prefix or a start without a limit; a listing has one"
        return None

    @staticmethod
    def _fault_of_listing(read: DoorRead) -> str | None:
        if not 1 <= read.limit <= MAX_READ_KEYS:
            return f"a listing of {read.limit} keys; 1 to {MAX_READ_KEYS} are given at a time"
        if read.keys or read.with_bytes:
            return "a listing that names keys or wants bytes; it gives rows alone"
        return None

    @staticmethod
    def _is_of_snapshot(read: DoorRead) -> bool:
        return is_reserved(read.prefix) or any(is_reserved(key) for key in read.keys)

    def _may_answer(self, shard: int, read: DoorRead) -> bool:
        if read.consistency == SESSION:
            return self._replicas[shard].position.index >= read.index
        return read.consistency == STALE

    def _wait(self, shard: int, lookup: _Lookup) -> None:
        waiting, sessions = self._waiting[shard], self._sessions[shard]
        if len(waiting) + len(sessions) + len(self._slow) >= MAX_WAITING:
            lookup.told(refused(OVERLOADED, f"{MAX_WAITING} lookups of shard {shard} wait"))
            return
        if lookup.read.consistency == SESSION:
            sessions.add(lookup)
            self._consistency.hurry()
            if shard not in self._session_turns:
                self._session_turns[shard] = asyncio.get_running_loop().create_task(self._take_sessions(shard))
            return
        waiting.append(lookup)
        turns = self._turns[shard]
        if len(turns) < MAX_TURNS:
            turns.add(asyncio.get_running_loop().create_task(self._take_turns(shard)))

    async def _take_turns(self, shard: int) -> None:
        try:
            while lookups := self._waiting[shard]:
                self._waiting[shard] = []
                await self._turn(shard, lookups)
        finally:
            # At once: a lookup that comes before the task counts as done must find that nobody takes it.
            self._turns[shard] -= {asyncio.current_task()}

    async def _turn(self, shard: int, lookups: Sequence[_Lookup]) -> None:
        try:
            await self._consistency.ready(shard, LINEARIZABLE, {})
        except Exception as error:
            answer = self._failed(shard, error)
            for one in lookups:
                one.told(answer)
            return
        self._answer_soon(shard, lookups)

    def _failed(self, shard: int, error: Exception) -> DoorRows:
        """Return the answer to lookups that an error ended; whoever asks is told, whatever the error is."""
        if isinstance(error, NotReadable):
            return refused(error.code, str(error))
        if isinstance(error, StoreFailure):
            self._fatal(error)
        log.error("lookups of shard %d failed", shard, exc_info=error)
        return refused(INTERNAL_ERROR, f"shard {shard}: {type(error).__name__}: {error}")

    async def _take_sessions(self, shard: int) -> None:
        """Answer lookups of sessions as the replica comes to their indexes; refuse those that wait for too long."""
        replica, sessions = self._replicas[shard], self._sessions[shard]
        try:
            while sessions:
                # A flagged replica never comes to an index: who waits is told at once, as by ``_answer``.
                flagged = replica.evidence is not None
                ready = sessions.reached(MAX_INDEX if flagged else replica.position.index)
                if wanted := [one for one in ready if not one.is_gone()]:
                    self._answer_soon(shard, wanted)
                for one in sessions.late():
                    one.told(refused(NOT_CAUGHT_UP, f"shard {shard}: not caught up within {READ_DEADLINE_S} s"))
                if sessions:
                    await asyncio.sleep(STEP_S)
        finally:
            del self._session_turns[shard]

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
        try:
            self._consistency.refuse_flagged(shard)
            answers = self._found(shard, lookups)
            self._consistency.refuse_flagged(shard)
        except Exception as error:
            answers = [self._failed(shard, error)] * len(lookups)
        for one, answer in zip(lookups, answers, strict=True):
            one.told(answer)

    def _found(self, shard: int, lookups: Sequence[_Lookup]) -> list[DoorRows]:
        """Look up keys: a few while the replica is held still, many in one snapshot, which takes longer to make."""
        replica = self._replicas[shard]
        if all(not one.read.limit and len(one.read.keys) <= MAX_HELD_KEYS for one in lookups):
            return [self._held(replica, shard, one) for one in lookups]
        index, rows = replica.moment(READ_FAMILIES)
        try:
            return [found_rows(rows, one.read, shard, index, one.reader) for one in lookups]
        finally:
            rows.close()

    @staticmethod
    def _held(replica: Replica, shard: int, lookup: _Lookup) -> DoorRows:
        with replica.held() as (index, held):
            return found_rows(held, lookup.read, shard, index, lookup.reader)

    def close(self) -> None:
        """End the turns; whoever waits gets no answer, as its connection ends."""
        for turn in (*chain.from_iterable(self._turns.values()), *self._session_turns.values()):
            turn.cancel()
        if self._answering is not None:
            self._answering.cancel()
