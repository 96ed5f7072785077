"""Opening a replica when a process starts: finish or forget what a former process began, check it, install if needed.

A replica installs a peer's checkpoint in three cases:

1. Its position lies before the log's first record, or it is empty and the log no longer begins at 0. It cannot do
   without: if no peer serves, the process stops, and says what an operator can do.
2. It is empty, and the log has more than ``records`` records. If no peer serves, it reads the log.
3. The log no longer has its last counting record, only claims behind it: it could follow, but not lead. If no peer
   serves, it follows.

A process that serves other replicas meanwhile looks first (``look_at``) and installs later (``catch_up``).

What belongs here is only the order of these steps; ``bootstrap.py`` has the run itself. All of them move folders that
RocksDB's own lock does not guard. So a process first locks ``DB.lock``, for the rest of its life.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from replicated_db.core.applying.identity import Identity
from replicated_db.core.applying.replica import Replica
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import NeedsCheckpoint, StoreFailure
from replicated_db.core.ports import Log
from replicated_db.core.tables.column_families import Families
from replicated_db.shell.bootstrap.bootstrap import (
    SEARCHES,
    NoPeerServes,
    Note,
    Target,
    Terms,
    bootstrap,
    forget_candidate,
)
from replicated_db.shell.bootstrap.candidate_check import MakeReader, reaches_anchor
from replicated_db.shell.bootstrap.install import finish
from replicated_db.shell.bootstrap.transfer_desk import remove_transfers
from replicated_db.shell.process import when_brokers_answer
from replicated_db.shell.rocks import RocksReader
from replicated_db.shell.startup import check_beginning, check_replica
from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls

_LOCKS: dict[Path, IO[str]] = {}
"""The lock files of this process, by database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPolicy:
    """From whom this process may take checkpoints, and how long a log an empty replica reads by itself.

    ``stopping`` says whether the process is about to end: a run then ends too.
    """

    peers: Callable[[], Sequence[ServingPeer]]
    secret: ClusterSecret | None
    tls: ProcessTls | None = None
    records: int
    searches: int = SEARCHES
    stopping: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaToOpen:
    """A replica on the disk: its database, how it is opened (``make``, as often as needed), its log, its reader."""

    database: Path
    make: Callable[[], Replica]
    log: Log
    reader: MakeReader = RocksReader


@dataclass(frozen=True, slots=True, kw_only=True)
class WantsCheckpoint:
    """A replica, closed again, for which a peer's checkpoint at ``least_offset`` or behind it is worth fetching.

    ``must`` says whether it cannot do without one, ``why`` for what reason, ``own_offset`` where it stands.
    """

    identity: Identity
    families: Families
    own_offset: int
    least_offset: int
    must: bool
    why: str


def open_replica(place: ReplicaToOpen, policy: BootstrapPolicy, note: Note) -> Replica:
    """Return a replica that is checked against its log. Raises what ``look_at`` and ``catch_up`` raise."""
    found = look_at(place, policy.records, note)
    return found if isinstance(found, Replica) else catch_up(place, found, policy, note)


def look_at(place: ReplicaToOpen, records: int, note: Note) -> Replica | WantsCheckpoint:
    """Return the replica, open and checked against its log, or in which way it wants a peer's checkpoint.

    Raises what ``make`` and ``check_replica`` raise.
    """
    database = place.database
    _lock(database)
    remove_transfers(database)
    if finish(database):
        note(f"{database}: what a former process had begun to install is in order now")
    replica = place.make()
    try:
        wants = _wanted(replica, place.log, records, note)
        if wants is None:
            forget_candidate(database)
            return replica
    except BaseException:
        replica.store.close()
        raise
    replica.store.close()
    return wants


def catch_up(place: ReplicaToOpen, wants: WantsCheckpoint, policy: BootstrapPolicy, note: Note) -> Replica:
    """Install a peer's checkpoint, and return the replica, open and checked.

    Raises NoPeerServes if it cannot do without one; then the next call goes on where this one ended. Raises what
    ``make``, ``check_replica`` and ``bootstrap`` raise.
    """
    target = Target(
        database=place.database, identity=wants.identity, families=wants.families, log=place.log, reader=place.reader
    )
    terms = Terms(
        peers=policy.peers, secret=policy.secret, tls=policy.tls, own_offset=wants.own_offset, least_offset=wants.least_offset,
        searches=policy.searches if wants.must else 1, stopping=policy.stopping,
    )  # fmt: skip
    try:
        when_brokers_answer(partial(bootstrap, target, terms, note))
    except NoPeerServes as error:
        if wants.must:
            raise
        note(f"shard {wants.identity.shard}: no peer gives a checkpoint, so this replica reads the log: {error}")
    replica = place.make()
    try:
        when_brokers_answer(partial(check_replica, replica, place.log, note))
        when_brokers_answer(partial(check_beginning, replica, place.log))
    except BaseException:
        replica.store.close()
        raise
    return replica


def _wanted(replica: Replica, log: Log, records: int, note: Note) -> WantsCheckpoint | None:
    """Return in which way a replica wants a checkpoint, None if none is worth fetching."""

    def wants(least_offset: int, why: str, *, must: bool) -> WantsCheckpoint:
        return WantsCheckpoint(
            identity=replica.identity, families=replica.families, own_offset=replica.position.offset,
            least_offset=least_offset, must=must, why=why,
        )  # fmt: skip

    try:
        when_brokers_answer(partial(check_replica, replica, log, note))
        when_brokers_answer(partial(check_beginning, replica, log))
    except NeedsCheckpoint as error:
        note(str(error))
        return wants(0, str(error), must=True)
    if replica.position.offset >= 0:
        if when_brokers_answer(partial(reaches_anchor, replica, log)):
            return None
        return wants(0, "the log no longer has its last counting record: it could not lead", must=False)
    end = when_brokers_answer(log.bounds).end
    return wants(records, f"it is empty, and the log has {end:,} records", must=False) if end > records else None


def lock_of(database: Path) -> Path | None:
    """Return the file by which this process keeps others away from a database, None if it does not."""
    return _lock_file(database) if database in _LOCKS else None


def _lock_file(database: Path) -> Path:
    return database.with_name(database.name + ".lock")


def _lock(database: Path) -> None:
    """Keep other processes away from a database and the folders beside it, until this process ends.

    Raises StoreFailure if another process has them.
    """
    if database in _LOCKS:
        return
    path = _lock_file(database)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise StoreFailure(f"{path}: {error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StoreFailure(f"{database}: another process uses it, for it has locked {path.name}") from error
    _LOCKS[database] = file
