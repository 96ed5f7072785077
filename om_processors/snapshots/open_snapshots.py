"""Checkpoints that are open for reading, a bounded number of them, for all threads of a node.

A snapshot that is read is *borrowed*: it stays open until its last reader has given it back. Rules:

1. A snapshot is opened once, by its first reader; others that want it meanwhile wait. Nothing here is for the event
   loop: opening takes a while.
2. At most ``limit`` are open. For one more, the least recently used that nobody reads is closed. If all are read, the
   reader is refused with :class:`SnapshotsBusy`.
3. A snapshot whose directory was removed, or made anew, is *leaving*: no reader gets it any more, and it is closed
   after its last reader. RocksDB keeps reading the files that it has open, whatever became of their names.
4. A reader never sees an error of the store's, which would end the process: an unreadable checkpoint is
   :class:`CheckpointUnreadable`.

States of an entry, and what may follow::

    OPENING  one thread opens it, others wait    OPEN, or gone with an error
    OPEN     0 or more readers                   LEAVING, or closed when it has none
    LEAVING  1 or more readers, no new ones      closed with the last one
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from threading import Condition

from om_processors.snapshots.checkpoints import CheckpointName, Checkpoints, CheckpointUnreadable
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import StoreSnapshot

MAX_OPEN_SNAPSHOTS = 10
"""Most snapshots that a node has open, as in Ozone.

Each takes 0.7 MiB of memory and up to ``READER_OPEN_FILES`` file descriptors (``replicated_db/shell/rocks.py``). The
blocks of all of them share SNAPSHOT_CACHE_BYTES.
"""

log = logging.getLogger("stratolog.snapshots")


class SnapshotsBusy(Exception):
    """As many snapshots are being read as may be open; ask again."""


class _State(Enum):
    OPENING = "opening"
    OPEN = "open"
    LEAVING = "leaving"


@dataclass(slots=True)
class _Entry:
    which: CheckpointName
    state: _State = _State.OPENING
    view: StoreSnapshot | None = None
    identity: object = None
    readers: int = 1
    unwanted: bool = False
    """Whether it is to leave as soon as it has been opened."""


class BorrowedView:
    """A snapshot's rows, for one reader, until it gives the snapshot back; raises CheckpointUnreadable afterwards."""

    def __init__(self, which: CheckpointName, view: StoreSnapshot) -> None:
        self._which = which
        self._view: StoreSnapshot | None = view

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None."""
        try:
            return self._open().get(cf, key)
        except StoreFailure as error:
            raise self._unreadable(error) from error

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop)."""
        rows = self._open().iterate(cf, start, stop)
        try:
            for row in rows:
                yield row
                self._open()
        except StoreFailure as error:
            raise self._unreadable(error) from error

    def end(self) -> None:
        """Refuse further reads."""
        self._view = None

    def _open(self) -> StoreSnapshot:
        if self._view is None:
            raise CheckpointUnreadable(f"shard {self._which.shard}: {self._which.name} was given back")
        return self._view

    def _unreadable(self, error: StoreFailure) -> CheckpointUnreadable:
        return CheckpointUnreadable(f"shard {self._which.shard}: {self._which.name}: {error}")


class OpenSnapshots:
    """The open ones among ``checkpoints``, ``limit`` at most; safe to share between threads."""

    def __init__(self, checkpoints: Checkpoints, limit: int = MAX_OPEN_SNAPSHOTS) -> None:
        self.checkpoints = checkpoints
        self._limit = limit
        self._changed = Condition()
        self._entries: OrderedDict[CheckpointName, _Entry] = OrderedDict()
        """Those that are opening or open, the least recently used first."""
        self._leaving: list[_Entry] = []
        self._ended = False

    @contextmanager
    def reading(self, which: CheckpointName) -> Iterator[BorrowedView]:
        """Read a snapshot within the block. Raises SnapshotsBusy, CheckpointUnreadable; blocks while it is opened."""
        entry = self._borrow(which)
        assert entry.view is not None  # noqa: S101 - what is borrowed is open
        view = BorrowedView(which, entry.view)
        try:
            yield view
        finally:
            view.end()
            self._give_back(entry)

    def drop(self, which: CheckpointName, wait_s: float = 0.0) -> bool:
        """Give a snapshot to nobody any more, and close it once nobody reads it: its checkpoint is to be removed.

        Wait at most ``wait_s`` seconds for its readers. Return whether none is left. A reader that comes later opens
        what is there then.
        """
        self._let_leave(which)
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_read(which), wait_s)

    def close(self) -> None:
        """Refuse new readers, and close what nobody reads; the rest is closed with its last reader."""
        with self._changed:
            self._ended = True
            idle = [left for entry in list(self._entries.values()) for left in self._leave(entry)]
            self._changed.notify_all()
        _close(idle)

    def names(self) -> list[CheckpointName]:
        """Return which snapshots are open, the least recently used first."""
        with self._changed:
            return [entry.which for entry in self._entries.values() if entry.state is _State.OPEN]

    def _is_read(self, which: CheckpointName) -> bool:
        return which in self._entries or any(entry.which == which for entry in self._leaving)

    def _let_leave(self, which: CheckpointName) -> None:
        with self._changed:
            entry = self._entries.get(which)
            idle = [] if entry is None else self._leave(entry)
        _close(idle)

    def _borrow(self, which: CheckpointName) -> _Entry:
        while True:
            try:
                identity = self.checkpoints.identity(which)
            except CheckpointUnreadable:
                self._let_leave(which)
                raise
            with self._changed:
                if self._ended:
                    raise SnapshotsBusy("this node is ending")
                entry = self._entries.get(which)
                if entry is not None and entry.state is _State.OPENING:
                    self._changed.wait()
                    continue
                if entry is not None and entry.identity == identity:
                    entry.readers += 1
                    self._entries.move_to_end(which)
                    return entry
                idle = [] if entry is None else self._leave(entry)
                idle += self._make_room()
                fresh = None
                if len(self._entries) + len(self._leaving) < self._limit:
                    fresh = self._entries[which] = _Entry(which, identity=identity)
            _close(idle)
            if fresh is None:
                raise SnapshotsBusy(f"{self._limit} snapshots are being read here, as many as may be open: ask again")
            return self._opened(fresh)

    def _opened(self, entry: _Entry) -> _Entry:
        """Open the checkpoint of an entry that this thread has made; other threads wait."""
        try:
            entry.view = self.checkpoints.open(entry.which)
        except BaseException:
            with self._changed:
                del self._entries[entry.which]
                self._changed.notify_all()
            raise
        with self._changed:
            entry.state = _State.OPEN
            if entry.unwanted:
                self._leave(entry)
            self._changed.notify_all()
        return entry

    def _make_room(self) -> list[_Entry]:
        """Let the snapshots leave that are gone, and one more if that is not enough. Return what is to be closed."""
        idle = [left for entry in list(self._entries.values()) if self._is_gone(entry) for left in self._leave(entry)]
        if len(self._entries) + len(self._leaving) >= self._limit:
            unread = next((entry for entry in self._entries.values() if not entry.readers), None)
            idle += [] if unread is None else self._leave(unread)
        return idle

    def _is_gone(self, entry: _Entry) -> bool:
        """Whether an open snapshot's directory is not the one that was opened: it would only keep dead files."""
        if entry.state is not _State.OPEN:
            return False
        with suppress(CheckpointUnreadable):
            return self.checkpoints.identity(entry.which) != entry.identity
        return True

    def _leave(self, entry: _Entry) -> list[_Entry]:
        """Take an entry from those that readers get; return it if it is to be closed now."""
        if entry.state is not _State.OPEN:
            entry.unwanted = True
            return []
        del self._entries[entry.which]
        entry.state = _State.LEAVING
        if not entry.readers:
            return [entry]
        self._leaving.append(entry)
        return []

    def _give_back(self, entry: _Entry) -> None:
        with self._changed:
            entry.readers -= 1
            last = entry.state is _State.LEAVING and not entry.readers
            if last:
                self._leaving.remove(entry)
        if last:
            _close([entry])
            with self._changed:
                self._changed.notify_all()


def _close(entries: list[_Entry]) -> None:
    for entry in entries:
        view, entry.view = entry.view, None
        try:
            if view is not None:
                view.close()
        except Exception as error:
            log.warning("shard %s: %s does not close: %s", entry.which.shard, entry.which.name, error)
