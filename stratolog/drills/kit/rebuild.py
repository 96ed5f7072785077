"""A replica rebuilt in a directory of its own, from the log's first record or from a copy of a checkpoint.

The rebuilt replica runs the nodes' own apply over a real RocksDB, and takes part in nothing. It joins no group,
publishes nothing, and reads no other replica's files but the checkpoint that it copies.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from om_processors.execution.late import OMExecutor
from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace.context import Contexts
from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.errors import StopProcess, StoreFailure
from replicated_db.core.log.position import POSITION_KEY, Position
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.shell.rocks import RocksStore
from stratolog.cluster.shard_log import first_offset, read_entries, topic_id
from stratolog.configuration.settings import Settings
from stratolog.drills.core.log_digest import Sums, unsigned
from stratolog.drills.core.report import CouldNotRun, StepFailed
from stratolog.drills.kit.session import Session

NODE_NAME = "drill"
FOLDER = "drills"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenCheckpoint:
    """A checkpoint that a replica has.

    ``offset`` is the offset of the batch that took it; its state is from before that batch.
    """

    node: str
    name: str
    path: Path
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The outcome of a rebuild: the running digest, the digest of a full scan, and the evidence found, in words."""

    offset: int
    index: int
    applied: int
    incremental: Sums
    scrubbed: Sums
    evidence: str | None


# -- checkpoints -------------------------------------------------------------------------------------------------------


def checkpoints_of(settings: Settings, shard: int, logged: Mapping[str, int]) -> list[TakenCheckpoint]:
    """Return a shard's checkpoints in the nodes' directories, if the log has them: ``logged`` is name -> offset."""
    found = []
    for node in settings.nodes:
        folder = settings.node_folder(node.name) / f"shard-{shard}.checkpoints"
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        found += [
            TakenCheckpoint(node=node.name, name=path.name, path=path, offset=logged[path.name])
            for path in paths
            if path.name in logged
        ]
    return found


def bases_for(start: int, taken: Sequence[TakenCheckpoint]) -> list[TakenCheckpoint]:
    """Return the checkpoints that a replay from offset ``start`` can begin at, the nearest first. Pure.

    Raises CouldNotRun if there is none: a bare replay from the middle of a log proves nothing.
    """
    usable = sorted((one for one in taken if one.offset <= start), key=lambda one: one.offset, reverse=True)
    if usable:
        return usable
    there = ", ".join(f"{one.name} at offset {one.offset}" for one in taken) or "none at all"
    raise CouldNotRun(
        f"a bare replay from offset {start} is refused: a digest is a sum over all rows, and those written before "
        f"are not in the records from there on. It needs a checkpoint taken at or before offset {start}; there is: "
        f"{there}. Replay from offset 0, or have one taken for later drills: 'stratolog admin prepare', then "
        "'stratolog admin prepare --cancel'"
    )


# -- rebuilding --------------------------------------------------------------------------------------------------------


@contextmanager
def scratch(session: Session, settings: Settings, drill: str) -> Iterator[Path]:
    """Make a directory of the drill's own in the stack's data directory, and remove it at the end."""
    parent = settings.data_dir / FOLDER
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{drill}-", dir=parent))

    def remove() -> str:
        shutil.rmtree(folder, ignore_errors=True)
        return f"{folder} is deleted"

    removed = session.touching(f"directory {folder}, of this drill's own", remove)
    yield folder
    removed()


def copy_base(
    settings: Settings, shard: int, folder: Path, bases: Sequence[TakenCheckpoint], until: int
) -> TakenCheckpoint | None:
    """Copy the nearest checkpoint with a state up to ``until`` to the place of a replica's database in ``folder``."""
    for base in bases:
        target = _database(folder, shard)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(base.path, target)
        with opened_replica(settings, shard, folder) as replica:
            if replica.position.offset < base.offset and replica.position.offset <= until:
                return base
        shutil.rmtree(target)
    return None


def rebuild(
    settings: Settings, shard: int, folder: Path, until: int, progress: Callable[[int], None] = lambda _: None
) -> Rebuilt:  # fmt: skip
    """Have the replica in ``folder`` apply the log up to and with offset ``until``, and scan it in full.

    Raises StepFailed if its position is not in the log, or a record cannot be applied.
    """
    with opened_replica(settings, shard, folder) as replica:
        begun = replica.position.offset
        if (first := first_offset(settings, shard)) > begun + 1:
            raise CouldNotRun(
                f"the log of shard {shard} was trimmed and begins at offset {first}: a replica at offset {begun} cannot "
                "be rebuilt from it. It needs a checkpoint taken later: 'stratolog admin prepare', then "
                "'stratolog admin prepare --cancel'"
            )
        evidence = None
        try:
            _adopt(settings, shard, replica)
            for entry in read_entries(settings, shard, begun + 1, until):
                outcome = replica.offer(entry.offset, entry.value)
                evidence = evidence or outcome.evidence
                if outcome.snapshot is not None:
                    outcome.snapshot.close()
                progress(entry.offset)
        except StopProcess as error:
            raise StepFailed(f"the rebuilt replica stopped: {error}") from error
        position, incremental, snapshot = replica.snapshot()
        try:
            scrubbed = replica.scan(snapshot)
        finally:
            snapshot.close()
        applied = replica.records_applied
    shutil.rmtree(_database(folder, shard).with_name(f"shard-{shard}.checkpoints"), ignore_errors=True)
    return Rebuilt(
        offset=position.offset, index=position.index, applied=applied, incremental=unsigned(*incremental.slots()),
        scrubbed=unsigned(*scrubbed.slots()),
        evidence=None if evidence is None else f"{evidence.cf} {evidence.key!r} at index {evidence.index}",
    )  # fmt: skip


def _adopt(settings: Settings, shard: int, replica: Replica) -> None:
    """Check that the log is the one that the replica has read, as a node does when it starts."""
    offset = replica.position.offset
    at_position = None
    if offset >= 0:
        at_position = next((entry.value for entry in read_entries(settings, shard, offset, offset)), None)
    replica.adopt_topic(topic_id(settings), at_position)


def database_of(settings: Settings, node: str, shard: int) -> Path:
    """Return where a node keeps a shard's RocksDB."""
    return _database(settings.node_folder(node), shard)


@contextmanager
def opened_store(database: Path) -> Iterator[RocksStore]:
    """Open a replica's database, whose node does not run; raises StepFailed if it does not open, or fails."""
    try:
        store = RocksStore(database, OM_FAMILIES.names)
        try:
            yield store
        finally:
            store.close()
    except StoreFailure as error:
        raise StepFailed(f"{database}: {error}") from error


def stored_offset(store: RocksStore) -> int:
    """Return the offset of the last record that a replica has stored, -1 if none."""
    row = store.get(TRANSACTION_INFO, POSITION_KEY)
    return -1 if row is None else Position.decode(row).offset


@contextmanager
def opened_replica(settings: Settings, shard: int, folder: Path) -> Iterator[Replica]:
    """Open the replica in ``folder``; raises StepFailed if it does not open."""
    identity = Identity(cluster=settings.cluster, shard=shard, shards=settings.shards, node=NODE_NAME)
    executor = OMExecutor(Contexts(shard=shard, shards=settings.shards, pipelines=settings.pipelines))
    try:
        store = RocksStore(_database(folder, shard), OM_FAMILIES.names)
        try:
            yield Replica(identity, OM_FAMILIES, store, executor=executor)
        finally:
            store.close()
    except StopProcess as error:
        raise StepFailed(f"the rebuilt replica: {error}") from error


def _database(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard}"
