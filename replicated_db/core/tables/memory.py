"""In-memory twins of the ports, for the simulation and for fast tests. They keep every promise of ``ports``.

All replicas of a simulated shard share one :class:`MemoryLog`. An appended record lies in flight until the test (or the
simulation's scheduler) settles it: delivered, lost, or delivered with the report lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from sortedcontainers import SortedDict

from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import (
    MAX_CHECKPOINTS,
    NO_PREFIX,
    DeliveryReport,
    Entry,
    LogBounds,
    OffsetOutOfRange,
    RowPage,
    Write,
)
from replicated_db.core.tables.column_families import LOCAL_FAMILIES


class MemoryView:
    """Rows of each family in key order."""

    def __init__(self, tables: dict[str, SortedDict]) -> None:
        self._tables = tables

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None."""
        value: bytes | None = self._table(cf).get(key)
        return value

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop)."""
        table = self._table(cf)
        yield from [(key, table[key]) for key in table.irange(start, stop, inclusive=(True, False))]

    def _table(self, cf: str) -> SortedDict:
        if cf not in self._tables:
            raise StoreFailure(f"no column family {cf!r}")
        return self._tables[cf]

    def close(self) -> None:
        """Release the rows; further calls raise StoreFailure."""
        self._tables = {}


class MemoryStore(MemoryView):
    """Twin of ``rocks.RocksStore``."""

    def __init__(self, families: Iterable[str], kept: str = NO_PREFIX) -> None:
        """``kept`` begins the names of checkpoints that stay until they are dropped."""
        super().__init__({name: SortedDict() for name in (*families, *LOCAL_FAMILIES)})
        self.kept = kept
        self.checkpoints: dict[str, MemoryView] = {}
        """By name, the oldest first."""

    def write(self, writes: Iterable[Write]) -> None:
        """Write all rows atomically."""
        self._check_open()
        checked = [(self._table(cf), key, value) for cf, key, value in writes]
        for table, key, value in checked:
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value

    def page(self, cf: str, start: bytes, limit: int) -> RowPage:
        """Return up to ``limit`` rows from ``start`` on."""
        rows = list(islice(self.iterate(cf, start), limit + 1))
        return RowPage(rows=rows[:limit], more=len(rows) > limit)

    def sync(self) -> None:
        """Do nothing: memory does not survive a loss of power."""
        self._check_open()

    def snapshot(self, families: Iterable[str] | None = None) -> MemoryView:
        """Return a copy, of some families or of all, that does not change."""
        self._check_open()
        names = self._tables if families is None else families
        return MemoryView({name: self._tables[name].copy() for name in names})

    def checkpoint(self, name: str) -> None:
        """Keep a copy under ``name``."""
        copy = self.snapshot()
        self.checkpoints.pop(name, None)
        self.checkpoints[name] = copy
        others = [other for other in self.checkpoints if not other.startswith(self.kept)]
        for old in others[:-MAX_CHECKPOINTS]:
            del self.checkpoints[old]

    def checkpoint_names(self) -> list[str]:
        """Return the names of the checkpoints."""
        self._check_open()
        return list(self.checkpoints)

    def drop_checkpoint(self, name: str) -> None:
        """Forget a checkpoint."""
        self._check_open()
        self.checkpoints.pop(name, None)

    @property
    def doubt(self) -> str:
        """Return "": memory loses no rows."""
        return ""

    def trust(self) -> None:
        """Do nothing: nothing is in doubt."""
        self._check_open()

    def _check_open(self) -> None:
        if not self._tables:
            raise StoreFailure("the store is closed")


@dataclass(slots=True)
class MemoryAppender:
    """Twin of ``kafka_log.KafkaAppender``; with ``auto`` every append is delivered at once."""

    log: MemoryLog
    auto: bool = True
    in_flight: list[tuple[int, bytes]] = field(default_factory=list)
    reports: list[DeliveryReport] = field(default_factory=list)

    def append(self, token: int, value: bytes) -> None:
        """Hand over a record."""
        self.in_flight.append((token, value))
        if self.auto:
            self.deliver()

    def deliver(self) -> None:
        """Append the oldest record in flight and report it."""
        token, value = self.in_flight.pop(0)
        offset = self.log.append(value)
        stamp = self.log.entries[offset].timestamp_ms
        self.reports.append(DeliveryReport(token=token, offset=offset, timestamp_ms=stamp, error=None))

    def fail(self, *, appended: bool) -> None:
        """Report an error for the oldest record in flight; with ``appended``, the record is in the log all the same."""
        token, value = self.in_flight.pop(0)
        if appended:
            self.log.append(value)
        self.reports.append(DeliveryReport(token=token, offset=-1, timestamp_ms=0, error="timed out"))

    def poll(self, wait_s: float) -> Sequence[DeliveryReport]:  # noqa: ARG002 - time does not pass in memory
        """Return the reports that have arrived."""
        reports, self.reports = self.reports, []
        return reports

    def close(self) -> None:
        """Give up what is in flight."""
        self.in_flight.clear()


@dataclass(slots=True)
class MemoryLog:
    """Twin of ``kafka_log.KafkaLog``: a list of entries; ``clock``'s wall time stamps each."""

    clock: ManualClock
    identity: str = "memory-topic-1"
    entries: list[Entry] = field(default_factory=list)
    auto: bool = True
    first: int = 0

    def trim(self, first: int) -> None:
        """Remove the entries before ``first``, as Kafka's DeleteRecords does."""
        self.first = max(self.first, first)

    def append(self, value: bytes) -> int:
        """Append a record, whoever wrote it, and return its offset."""
        self.entries.append(Entry(offset=len(self.entries), timestamp_ms=self.clock.wall_ms(), value=value))
        return len(self.entries) - 1

    def topic_id(self) -> str:
        """Return the identity of this incarnation."""
        return self.identity

    def bounds(self) -> LogBounds:
        """Return the first offset kept, 0 unless the log was trimmed, and the end."""
        return LogBounds(self.first, len(self.entries))

    def read(self, offset: int, limit: int, wait_s: float) -> Sequence[Entry]:  # noqa: ARG002 - time does not pass
        """Return up to ``limit`` entries from ``offset`` on."""
        if not self.first <= offset <= len(self.entries):
            raise OffsetOutOfRange(f"offset {offset} is not in {self.first}..{len(self.entries)}")
        return self.entries[offset : offset + limit]

    def rest(self) -> None:
        """Do nothing: nothing is kept ready."""

    def appender(self) -> MemoryAppender:
        """Return a fresh appender."""
        return MemoryAppender(self, auto=self.auto)


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to; wall and elapsed time are independent."""

    now_ms: int = 1_000_000
    elapsed: int = 0

    def elapsed_ms(self) -> int:
        """Return time since boot."""
        return self.elapsed

    def wall_ms(self) -> int:
        """Return the wall clock."""
        return self.now_ms

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass on both clocks."""
        self.elapsed += ms
        self.now_ms += ms


@dataclass(slots=True)
class SequenceIds:
    """Nonces that count up from ``seed``: distinct, and the same in every run."""

    seed: int = 0
    count: int = 0

    def nonce(self) -> bytes:
        """Return the next nonce."""
        self.count += 1
        return (self.seed << 64 | self.count).to_bytes(16, "big")
