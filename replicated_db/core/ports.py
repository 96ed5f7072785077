"""What the core needs from outside: a store, a log, a clock, identities. Each port has an in-memory twin (``memory``).

A twin passes the same tests as the real adapter (``tests/**/test_ports_*``). A port's methods raise only the errors
named here, so code above a port never sees an exception of RocksDB's or Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Write = tuple[str, bytes, bytes | None]
"""Column family, key, new value (None = remove the row)."""


MAX_CHECKPOINTS = 4
"""How many checkpoints of one store are kept, beside those that are kept until they are dropped."""

NO_PREFIX = "/"
"""Begins no checkpoint's name: a store that is opened with it keeps none beyond MAX_CHECKPOINTS."""


class StoreView(Protocol):
    """A readable state of the store."""

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None if it is absent."""

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over (key, value) in key order from ``start`` (inclusive) to ``stop`` (exclusive; None = the end)."""


class StoreSnapshot(StoreView, Protocol):
    """A view that does not change; close it to let the store reclaim space."""

    def close(self) -> None:
        """Release the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPage:
    """Rows of one family in key order.

    ``more``: there may be rows behind these, even if ``rows`` is empty; ask again a little later.
    """

    rows: Sequence[tuple[bytes, bytes]]
    more: bool


class Store(StoreView, Protocol):
    """A key-value store with column families. Every method raises StoreFailure if the store fails."""

    def write(self, writes: Iterable[Write]) -> None:
        """Write all rows atomically. Every read that begins afterwards sees them."""

    def page(self, cf: str, start: bytes, limit: int) -> RowPage:
        """Return up to ``limit`` rows from ``start`` on. It stops after many removed rows: for walks that ask again."""

    def sync(self) -> None:
        """Make everything written so far survive a loss of power; without this call the last writes may not."""

    def snapshot(self, families: Iterable[str] | None = None) -> StoreSnapshot:
        """Return a snapshot of all families, or of some. It is exact only if nobody writes (hold the apply lock)."""

    def checkpoint(self, name: str) -> None:
        """Create a checkpoint of everything written so far; replaces one of the same name.

        A checkpoint whose name begins with the prefix that the store was opened with is kept until it is dropped. Of
        the others the youngest MAX_CHECKPOINTS are kept.
        """

    def checkpoint_names(self) -> Sequence[str]:
        """Return the names of the checkpoints that there are, in any order. A half-made one is not among them."""

    def drop_checkpoint(self, name: str) -> None:
        """Remove a checkpoint; does nothing if there is none of that name."""

    @property
    def doubt(self) -> str:
        """Why rows may be missing that were written; "" if there is no reason to think so. It stays until trusted."""

    def trust(self) -> None:
        """Take the doubt away, durably: all rows have been scanned."""

    def close(self) -> None:
        """Close the store; further calls raise StoreFailure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A record as read from the log; ``timestamp_ms`` is the broker's append time."""

    offset: int
    timestamp_ms: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReport:
    """What became of an append: its offset and the broker's append time, or an error (outcome unknown)."""

    token: int
    offset: int
    timestamp_ms: int
    error: str | None


class Appender(Protocol):
    """Appends records under one claim, in order, several in flight. It serves one claim and is then closed."""

    def append(self, token: int, value: bytes) -> None:
        """Hand over a record; its report carries ``token``. Never blocks; raises AppendRefused if the queue is full."""

    def poll(self, wait_s: float) -> Sequence[DeliveryReport]:
        """Return the reports that have arrived; wait at most ``wait_s`` seconds for the first."""

    def close(self) -> None:
        """Give up what is in flight; its outcome stays unknown."""


class AppendRefused(Exception):
    """The appender's queue is full; nothing was appended."""


ANSWER_WAIT_S = 10.0
"""How long a log may take to answer before it raises LogUnavailable, unless the caller gives a time."""


class LogBounds(NamedTuple):
    """Where a log begins and ends: the first offset kept, and the next one to be written."""

    first: int
    end: int


class Log(Protocol):
    """One shard's log: a partition. Methods raise LogUnavailable while the brokers cannot answer."""

    def topic_id(self) -> str:
        """Return the id of the topic's incarnation; a recreated topic has another id."""

    def bounds(self) -> LogBounds:
        """Return where the log begins and ends, as the broker that answers knows it."""

    def read(self, offset: int, limit: int, wait_s: float) -> Sequence[Entry]:
        """Return up to ``limit`` entries from ``offset`` on, in order; empty if none arrives within ``wait_s``.

        Raises OffsetOutOfRange if ``offset`` is below the first one kept or beyond the end, BrokenLog if the next
        record fails its checksum.
        """

    def rest(self) -> None:
        """Keep nothing ready for another :meth:`read`: none is to be expected soon. For the thread that reads."""

    def appender(self) -> Appender:
        """Return a fresh appender."""


class LogUnavailable(Exception):
    """No answer from the brokers; try again."""


class OffsetOutOfRange(Exception):
    """The offset is not in the log."""


class Clock(Protocol):
    """Time, in milliseconds."""

    def elapsed_ms(self) -> int:
        """Return time since boot, suspended time included; never runs backwards."""

    def wall_ms(self) -> int:
        """Return the wall clock since the epoch; may jump."""


class Ids(Protocol):
    """Randomness."""

    def nonce(self) -> bytes:
        """Return 16 fresh random bytes."""
