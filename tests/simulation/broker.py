"""The brokers of a simulated cluster: the log's partition with what is on its way to it, and the requests' partition.

An append lies in flight until the scheduler settles it. The wrong ways are those that a real broker and client have: never
appended, appended with the report lost or late or without an offset, appended twice, overtaken. What a closed appender left in flight
may still arrive (``orphans``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xxhash import xxh3_128_digest

from om_processors.intake.gateway import Received
from replicated_db.core.ports import AppendRefused, DeliveryReport, Entry, LogBounds, OffsetOutOfRange
from schemas.records.log import RequestPosition
from tests.simulation.scheduler import Scheduler
from tests.support.local.secret import SECRET

MAX_QUEUED = 64
"""More than any leader has in flight."""

EVER_MS = 1 << 60


@dataclass(slots=True, eq=False)
class LogPartition:
    """``om.log``: what is in it, and what may still arrive. ``on_append`` is told of each record as it lands."""

    scheduler: Scheduler
    clock: Callable[[], int]
    on_append: Callable[[Entry], None]
    identity: str = "topic-1"
    entries: list[Entry] = field(default_factory=list)
    appenders: list[Appender] = field(default_factory=list)
    orphans: list[bytes] = field(default_factory=list)
    first: int = 0
    """The first offset that readers may have. ``entries`` keeps what was trimmed, for the judge alone."""

    def trim(self, first: int) -> None:
        self.first = max(self.first, first)

    def append(self, value: bytes) -> int:
        entry = Entry(offset=len(self.entries), timestamp_ms=self.clock(), value=value)
        self.entries.append(entry)
        self.on_append(entry)
        return entry.offset

    def cut(self, end: int) -> None:
        """Lose the tail. A producer whose records went with it is out of sequence from now on, as Kafka's idempotent ones are."""
        del self.entries[end:]
        for appender in self.appenders:
            if appender.last_offset >= end:
                appender.out_of_sequence = True


@dataclass(slots=True, eq=False)
class Appender:
    """Twin of ``KafkaAppender``; one for each claim."""

    partition: LogPartition
    node: str
    in_flight: list[tuple[int, bytes]] = field(default_factory=list)
    held: list[DeliveryReport] = field(default_factory=list)
    arrived: list[DeliveryReport] = field(default_factory=list)
    claim_offset: int = -1
    last_offset: int = -1
    out_of_sequence: bool = False
    most_in_flight: int = 0

    def append(self, token: int, value: bytes) -> None:
        if len(self.in_flight) >= MAX_QUEUED:
            raise AppendRefused(f"{MAX_QUEUED} records wait")
        self.in_flight.append((token, value))
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight) + len(self.held) + len(self.arrived))

    def poll(self, wait_s: float) -> Sequence[DeliveryReport]:
        self.partition.scheduler.wait(lambda: self.arrived, wait_s * 1000)
        reports, self.arrived = self.arrived, []
        return reports

    def close(self) -> None:
        if not self.out_of_sequence:
            self.partition.orphans += [value for _, value in self.in_flight]
        self.in_flight.clear()
        if self in self.partition.appenders:
            self.partition.appenders.remove(self)

    # What the scheduler does with it.

    def land(self, number: int = 0) -> tuple[int, int]:
        """Append a record in flight; return its token and offset (-1 if the broker refuses it)."""
        token, value = self.in_flight.pop(number)
        if self.out_of_sequence:
            return token, -1
        self.last_offset = offset = self.partition.append(value)
        if self.claim_offset < 0:
            self.claim_offset = offset
        return token, offset

    def report(self, token: int, offset: int, error: str | None = None, *, held: bool = False) -> None:
        stamp = self.partition.entries[offset].timestamp_ms if 0 <= offset < len(self.partition.entries) else 0
        if offset < 0 and error is None and self.out_of_sequence:
            error = "out of sequence"
        report = DeliveryReport(token=token, offset=offset, timestamp_ms=stamp, error=error)
        (self.held if held else self.arrived).append(report)

    def deliver(self, number: int = 0) -> None:
        self.report(*self.land(number))


class LogView:
    """Twin of ``KafkaLog``: the log as one node reads it. With ``end`` set its broker is cut off and serves an old end."""

    def __init__(self, partition: LogPartition, node: str) -> None:
        self.partition = partition
        self.node = node
        self.end: int | None = None
        self.read_to = -1
        """The last offset that was ever handed to this node."""

    def _end(self) -> int:
        end = len(self.partition.entries)
        return end if self.end is None else min(self.end, end)

    def topic_id(self) -> str:
        return self.partition.identity

    def bounds(self) -> LogBounds:
        self.partition.scheduler.wait()
        return LogBounds(self.partition.first, self._end())

    def read(self, offset: int, limit: int, wait_s: float) -> Sequence[Entry]:
        self.partition.scheduler.wait(lambda: self._end() > offset, wait_s * 1000)
        if not self.partition.first <= offset <= self._end():
            raise OffsetOutOfRange(f"offset {offset} is not in {self.partition.first}..{self._end()}")
        entries = self.partition.entries[offset : min(offset + limit, self._end())]
        if entries:
            self.read_to = max(self.read_to, entries[-1].offset)
        return entries

    def rest(self) -> None:
        pass  # nothing is kept ready

    def appender(self) -> Appender:
        appender = Appender(self.partition, self.node)
        self.partition.appenders.append(appender)
        return appender


@dataclass(slots=True, eq=False)
class RequestPartition:
    """``om.requests``: may lose its tail or its head; offsets go on."""

    clock: Callable[[], int]
    first: int = 0
    epoch: int = 0
    records: list[tuple[int, Received]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    def append(self, value: bytes) -> None:
        position = RequestPosition(offset=self.end + 1, leader_epoch=self.epoch, hash=xxh3_128_digest(value))
        self.records.append((self.clock(), self.received(value, offset=self.end, position=position)))

    def received(self, value: bytes, **more: Any) -> Received:
        """Return a request as a leader takes it, with the proof that a member would send."""
        return Received(value=value, key=SECRET.proof(value), **more)

    def at(self, offset: int) -> Received | None:
        return self.records[offset - self.first][1] if self.first <= offset < self.end else None

    def since(self, time_ms: int) -> int | None:
        """Return the first offset at or after a time, as ``offsets_for_times`` does."""
        return next((received.offset for stamp, received in self.records if stamp >= time_ms), None)

    def cut(self, end: int) -> None:
        del self.records[max(0, end - self.first) :]
        self.epoch += 1

    def trim(self, first: int) -> None:
        dropped = max(0, min(first, self.end) - self.first)
        del self.records[:dropped]
        self.first += dropped
