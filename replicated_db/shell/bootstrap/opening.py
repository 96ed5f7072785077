"""Opening a replica when a process starts: finish or forget what a former process began, check it, install if needed.

A replica installs a peer's checkpoint in three cases:

1. Its position lies before the log's first record, or it is empty and the log no longer begins at 0. It cannot do
   without: if no peer serves, the process stops, and says what an operator can do.
2. It is empty, and the log has more than ``records`` records. If no peer serves, it reads the log.
3. The log no longer has its last counting record, only claims behind it: it could follow, but not lead. If no peer
   serves, it follows.

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

from replicated_db.core.applying.replica import Replica
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import NeedsCheckpoint, StoreFailure
from replicated_db.core.ports import Log
from replicated_db.shell.bootstrap.bootstrap import (
    SEARCHES,
    NoPeerServes,
    Note,
    Target,
    Terms,
    bootstrap,
    forget_candidate,
)
from replicated_db.shell.bootstrap.candidate_check import reaches_anchor
from replicated_db.shell.bootstrap.install import finish
from replicated_db.shell.bootstrap.transfer_desk import remove_transfers
from replicated_db.shell.process import when_brokers_answer
from replicated_db.shell.startup import check_beginning, check_replica
from schemas.privilege import ClusterSecret

_LOCKS: dict[Path, IO[str]] = {}
"""The lock files of this process, by database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPolicy:
    """From whom this process may take checkpoints, and how long a log an empty replica reads by itself."""

    peers: Callable[[], Sequence[ServingPeer]]
    secret: ClusterSecret | None
    records: int
    searches: int = SEARCHES


def open_replica(
    database: Path, make: Callable[[], Replica], log: Log, policy: BootstrapPolicy, note: Note
) -> Replica:  # fmt: skip
    """Return a replica that is checked against its log.

    ``make`` opens the database in ``database``; it is called as often as needed. Raises NoPeerServes, and what
    ``make``, ``check_replica`` and ``bootstrap`` raise.
    """
    _lock(database)
    remove_transfers(database)
    if finish(database):
        note(f"{database}: what a former process had begun to install is in order now")
    replica = make()
    try:
        least_offset, must = _needed(replica, log, policy.records, note)
        if least_offset is None:
            forget_candidate(database)
            return replica
    except BaseException:
        replica.store.close()
        raise
    own_offset = replica.position.offset
    replica.store.close()
    target = Target(database=database, identity=replica.identity, families=replica.families, log=log)
    terms = Terms(
        peers=policy.peers, secret=policy.secret, own_offset=own_offset, least_offset=least_offset,
        searches=policy.searches if must else 1,
    )  # fmt: skip
    try:
        when_brokers_answer(partial(bootstrap, target, terms, note))
    except NoPeerServes as error:
        if must:
            raise
        note(f"shard {replica.identity.shard}: no peer gives a checkpoint, so this replica reads the log: {error}")
    replica = make()
    try:
        when_brokers_answer(partial(check_replica, replica, log, note))
        when_brokers_answer(partial(check_beginning, replica, log))
    except BaseException:
        replica.store.close()
        raise
    return replica


def _needed(replica: Replica, log: Log, records: int, note: Note) -> tuple[int | None, bool]:
    """Return from which offset on a checkpoint is worth fetching, None if none is, and whether one is a must."""
    try:
        when_brokers_answer(partial(check_replica, replica, log, note))
        when_brokers_answer(partial(check_beginning, replica, log))
    except NeedsCheckpoint as error:
        note(str(error))
        return 0, True
    if replica.position.offset >= 0:
        leads_one_day = when_brokers_answer(partial(reaches_anchor, replica, log))
        return (None if leads_one_day else 0), False
    end = when_brokers_answer(log.bounds).end
    return (records, False) if end > records else (None, False)


def _lock(database: Path) -> None:
    """Keep other processes away from a database and the folders beside it, until this process ends.

    Raises StoreFailure if another process has them.
    """
    if database in _LOCKS:
        return
    path = database.with_name(database.name + ".lock")
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
