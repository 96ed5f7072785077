"""Restoring one shard: rows of the backup, its log up to a moment, and the beginning of a new log (decision 0048).

Steps, each of which can be done again after a kill:

1. :func:`restore_rows` puts the checkpoint together in a folder, file by file compared with its digest, scans it, and
   applies the kept log up to the moment, by the code of every replica.
2. :func:`move_to_log` has it applied the first records of the new log, which are not written yet.
3. :func:`begin_log` writes those records to the brokers, or finds that they are there, and trims the log to the base.
4. :func:`put_in_place` installs the folder as a node's database, as a bootstrap does.

The log comes before the databases: a node that starts in between finds a trimmed log and an empty folder, and waits for
a peer. The other way round it would begin another log.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from replicated_db.core.applying.replica import SCAN_STEP_ROWS, Offered, Replica
from replicated_db.core.backup.kept_log import KeptRange, RestoreMoment, check_reached
from replicated_db.core.backup.manifest import ShardBackup
from replicated_db.core.backup.new_log import BASE_OFFSET, NewLog, new_log
from replicated_db.core.bootstrap.listing import CHECKPOINTS, DATABASE
from replicated_db.core.errors import StopProcess
from replicated_db.core.log.position import (
    ANCHOR_KEY,
    BARRIER_KEY,
    BASES_KEY,
    FLAG_KEY,
    INSTALLED_KEY,
    KEY_INDEX_KEY,
    POSITION_KEY,
    REQUEST_KEY,
    UNFLAGGED_KEY,
)
from replicated_db.core.log.reading import judge
from replicated_db.core.ports import DeliveryReport, Log, LogUnavailable
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.shell.backup.log_files import kept_entries
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, disk
from replicated_db.shell.backup.tree import build_tree, copy_trees, sync_tree
from replicated_db.shell.bootstrap.candidate import candidate_folder
from replicated_db.shell.bootstrap.install import finish, install
from replicated_db.shell.bootstrap.telling import Telling
from replicated_db.shell.bootstrap.transfer_desk import checkpoints_folder
from schemas.codecs.codec import decode
from schemas.records.log import Batch, RequestBatch

APPEND_WAIT_S = 30.0
"""How long one record may take to be acknowledged."""

READ_WAIT_S = 10.0

MakeReplica = Callable[[Path], Replica]
"""Opens the replica in a database's folder, whatever service it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredRows:
    """A shard as it was at the moment: index and time of its last batch, its digest, records applied to get there."""

    shard: int
    index: int
    timestamp_ms: int
    digest: str
    applied: int


def restore_rows(
    repository: BackupRepository, part: ShardBackup, kept: KeptRange | None, moment: RestoreMoment, database: Path,
    make: MakeReplica, telling: Telling,
) -> RestoredRows:  # fmt: skip
    """Put a shard's database and checkpoints in ``database``, at the checkpoint or (with ``kept``) at the moment.

    Raises BackupFailed, NotKept for a moment that the kept log does not reach, StopProcess for one that breaks it.
    """
    name = f"shard {part.shard}"
    telling.at(f"{name}: puts the checkpoint of index {part.index} together")
    _clear(database)
    tree = database.with_name(database.name + ".tree")
    build_tree(repository, part.listing, tree, linked=False)
    with disk(database):
        (tree / DATABASE).rename(database)
        (tree / CHECKPOINTS).rename(checkpoints_folder(database))
        tree.rmdir()
    with _open(make, database) as replica:
        found = f"{replica.digests.total():016x}"
        if found != part.digest or replica.position.index != part.index:
            raise BackupFailed(
                f"{name}: the rows of the backup are of index {replica.position.index}, digest {found}; its manifest "
                f"says {part.index}, {part.digest}"
            )
        _scan(replica, name, telling)
        if kept is not None:
            _replay(repository, kept, moment, replica, name, telling)
            _scan(replica, name, telling)
        position = replica.position
        return RestoredRows(
            shard=part.shard, index=position.index, timestamp_ms=position.timestamp_ms,
            digest=f"{replica.digests.total():016x}", applied=replica.records_applied,
        )  # fmt: skip


def _replay(
    repository: BackupRepository, kept: KeptRange, moment: RestoreMoment, replica: Replica, name: str, telling: Telling
) -> None:  # fmt: skip
    telling.at(
        lambda: f"{name}: applies the kept log, {replica.records_applied} records, index {replica.position.index}"
    )
    passed = False
    for entry in kept_entries(repository, kept.pieces, kept.first):
        record = decode(entry.value)
        if isinstance(record, Batch | RequestBatch) and moment.is_after(record.last_index, record.timestamp_ms):
            passed = judge(replica.position, record).takes_effect
            if passed:
                break
        _judge_offered(replica.offer(entry.offset, entry.value), name)
    replica.flush()
    check_reached(replica.identity.shard, moment, kept, replica.position.index, passed=passed)


def _judge_offered(outcome: Offered, name: str) -> None:
    if outcome.snapshot is not None:
        outcome.snapshot.close()
    if outcome.evidence is not None:
        evidence = outcome.evidence
        raise BackupFailed(
            f"{name}: the rows contradict the log at index {evidence.index}, {evidence.cf} {evidence.key!r}"
        )


def _scan(replica: Replica, name: str, telling: Telling) -> None:
    rows = 0

    def on_rows() -> None:
        nonlocal rows
        rows += SCAN_STEP_ROWS

    telling.at(lambda: f"{name}: scans the rows, {rows} so far")
    snapshot = replica.store.snapshot()
    try:
        scanned = replica.scan(snapshot, on_rows)
    finally:
        snapshot.close()
    if scanned != replica.digests:
        raise BackupFailed(
            f"{name}: the rows have the digest {scanned.total():016x}, and {replica.digests.total():016x} is stored"
        )


def move_to_log(
    database: Path, make: MakeReplica, topic_id: str, members: Sequence[str], backup: str, created_at_ms: int
) -> NewLog:  # fmt: skip
    """Have a restored database applied the first records of a new log; return them.

    It stands behind them afterwards, and remembers nothing of the old log's offsets. Raises BackupFailed.
    """
    with _open(make, database) as replica:
        position, sums = replica.position, replica.digests.slots()
        begun = new_log(
            position, sums, members, topic_id=topic_id, backup=backup, created_at_ms=created_at_ms,
            level=replica.state.feature_level,
        )  # fmt: skip
        gone = (ANCHOR_KEY, BARRIER_KEY, BASES_KEY, REQUEST_KEY, FLAG_KEY, UNFLAGGED_KEY, INSTALLED_KEY)
        replica.store.write(
            [
                (TRANSACTION_INFO, POSITION_KEY, begun.before.encode()),
                (TRANSACTION_INFO, KEY_INDEX_KEY, begun.before.key_index()),
                *((TRANSACTION_INFO, key, None) for key in gone),
            ]
        )
        replica.store.sync()
    with _open(make, database) as replica:
        for offset, value in enumerate(begun.values):
            _judge_offered(replica.offer(offset, value), f"shard {replica.identity.shard}")
        if replica.position.offset != len(begun.values) - 1 or replica.evidence is not None:
            raise BackupFailed(f"shard {replica.identity.shard}: the new log's first records did not count")
        replica.store.sync()
    return begun


def begin_log(name: str, log: Log, begun: NewLog, delete_before: Callable[[int], object]) -> bool:
    """Write the first records of a new log and trim it to its base; return False if that was done before.

    ``name`` is the topic and partition, for people; ``delete_before`` trims the log. Raises BackupFailed if the log
    holds other records, LogUnavailable.
    """
    first, end = log.bounds()
    check_log_is(name, log, begun)
    for offset in range(end, len(begun.values)):
        _append(name, log, offset, begun.values[offset])
    if first < BASE_OFFSET:
        delete_before(BASE_OFFSET)
    return (first, end) != (BASE_OFFSET, len(begun.values))


def check_log_is(name: str, log: Log, begun: NewLog) -> None:
    """Raise BackupFailed unless a log is empty, or holds nothing but the beginning of ``begun``."""
    first, end = log.bounds()
    if end == 0:
        return
    values = begun.values
    same = first <= BASE_OFFSET and end <= len(values)
    offset = first
    while same and offset < end:
        entries = log.read(offset, end - offset, READ_WAIT_S)
        if not entries:
            raise LogUnavailable(f"{name}: offset {offset} of {end} is not served")
        same = all(entry.value == values[entry.offset] for entry in entries)
        offset = entries[-1].offset + 1
    if not same:
        raise BackupFailed(
            f"{name} has records already (offsets {first} to {end - 1}), and they are not those of this "
            "restore: a restore needs brokers with an empty log"
        )


def _append(name: str, log: Log, offset: int, value: bytes) -> None:
    appender = log.appender()
    try:
        appender.append(offset, value)
        reports: list[DeliveryReport] = []
        for _ in range(int(APPEND_WAIT_S)):
            reports += appender.poll(1.0)
            if reports:
                break
    finally:
        appender.close()
    if not reports or reports[0].error is not None:
        raise LogUnavailable(f"{name}: {reports[0].error if reports else 'no acknowledgement'}")
    if reports[0].offset != offset:
        raise BackupFailed(
            f"{name}: a record came to lie at offset {reports[0].offset}, not at {offset}: somebody else "
            "writes there. Stop it, and restore onto other brokers"
        )


def put_in_place(source: Path, database: Path, record: str, telling: Telling, shard: int) -> None:
    """Install a restored database, with its checkpoints, in the place of a node's; ``source`` stays as it is.

    Raises BackupFailed if there is a database already.
    """
    telling.at(f"shard {shard}: copies the database to {database}")
    finish(database)
    if database.exists():
        raise BackupFailed(f"{database}: there is a database already; a restore needs an empty folder")
    candidate = candidate_folder(database)
    coming, tree = candidate / "coming", candidate / "tree"
    with disk(tree):
        shutil.rmtree(candidate, ignore_errors=True)
        copy_trees({source: coming / DATABASE, checkpoints_folder(source): coming / CHECKPOINTS})
        sync_tree(candidate)
        coming.rename(tree)
    install(database, record)
    with disk(tree):
        shutil.rmtree(candidate)


def _clear(database: Path) -> None:
    with disk(database):
        for path in (database, checkpoints_folder(database), database.with_name(database.name + ".tree")):
            shutil.rmtree(path, ignore_errors=True)
        database.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _open(make: MakeReplica, database: Path) -> Iterator[Replica]:
    try:
        replica = make(database)
    except (StopProcess, ValueError) as error:
        raise BackupFailed(f"{database}: {error}") from error
    try:
        yield replica
    finally:
        replica.store.close()
