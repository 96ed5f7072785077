"""Restoring a backup: rows first, then the new log on the brokers, then the nodes' databases.

What a person sees is in docs/backup.md; why the new log begins as it does, in decision 0048.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from om_processors.execution.late import OMExecutor
from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace.context import Contexts
from om_processors.namespace.snapshots import CHECKPOINT_PREFIX
from replicated_db.core.applying.identity import Identity
from replicated_db.core.applying.replica import Replica
from replicated_db.core.backup.kept_log import RestoreMoment, backup_for, kept_range
from replicated_db.core.backup.manifest import BackupManifest
from replicated_db.core.backup.new_log import NewLog
from replicated_db.core.log.position import POSITION_KEY, Position
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, disk, opened
from replicated_db.shell.backup.shard_restore import (
    MakeReplica,
    RestoredRows,
    begin_log,
    check_log_is,
    move_to_log,
    put_in_place,
    restore_rows,
)
from replicated_db.shell.bootstrap.install import finish
from replicated_db.shell.bootstrap.telling import Telling
from replicated_db.shell.database.database import replica_of
from replicated_db.shell.kafka.kafka_log import KafkaLog
from replicated_db.shell.process import when_brokers_answer
from replicated_db.shell.rocks import RocksReader, RocksStore
from replicated_db.shell.trimming.kafka_records import KafkaRecords
from schemas import features
from schemas.codecs.block_rows import block_of_key, decode_block_row
from schemas.codecs.codec import decode_as
from schemas.column_families import DATANODE_TABLE, PIPELINE_TABLE
from schemas.records.datanode import PipelineRow
from schemas.records.rows import BlockLocation
from schemas.topics import OM_LOG
from stratolog.backups.block_files import BlockFiles
from stratolog.backups.block_lists import needed_blocks, read_list
from stratolog.backups.block_modes import NONE, REFERENCE
from stratolog.backups.block_restore import PlacedBlocks, place_blocks, rows_for
from stratolog.backups.making import as_user_errors, mode_of
from stratolog.cluster.shard_log import topic_id
from stratolog.configuration.settings import Settings, default_datanodes
from stratolog.errors import UsageError, UserError
from stratolog.local import stack
from stratolog.local.stack import Report
from stratolog.local.state import read_state
from stratolog.security.private_files import private_umask

NODE_NAME = "restore"
STAGE = "restore"
"""Folder in the data directory in which a restore puts databases together. It goes when the restore is done."""

LOCK_FILE = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreWish:
    """What is to be restored: a backup by its name, or the last one; to its checkpoints, or to moments by shard.

    ``moments``: an index for each of some shards; ``time_ms``: a time for all; ``to_end``: all that is kept. ``nodes``:
    the nodes whose databases are put in place, all of the settings if empty. ``datanodes``: how many new ones.
    ``disks``: folders of old datanodes, from which blocks are read. ``without_blocks``: none are restored;
    ``accept_missing``: go on without those that are not to be had.
    """

    backup: str | None = None
    indexes: Mapping[int, int] | None = None
    time_ms: int | None = None
    to_end: bool = False
    nodes: tuple[str, ...] = ()
    datanodes: int | None = None
    disks: tuple[Path, ...] = ()
    without_blocks: bool = False
    accept_missing: bool = False

    @property
    def replays(self) -> bool:
        """Whether the kept log is applied."""
        return bool(self.indexes) or self.time_ms is not None or self.to_end

    def moments(self, shards: int) -> list[RestoreMoment]:
        """Return the moment of each shard. A shard without an index of its own goes to the end of what is kept."""
        indexes = self.indexes or {}
        return [RestoreMoment(index=indexes.get(shard), time_ms=self.time_ms) for shard in range(shards)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredCluster:
    """What a restore has made: the settings that reach it, the backup, and each shard's rows."""

    settings: Settings
    backup: str
    shards: tuple[RestoredRows, ...]
    placed: tuple[str, ...]
    blocks: PlacedBlocks
    missing_blocks: int


def restore_stack(
    settings: Settings, folder: Path, wish: RestoreWish, *, detached: bool = True, report: Report
) -> RestoredCluster:  # fmt: skip
    """Restore a backup into a new local stack, and start it.

    Raises UserError for a backup that cannot be used, UsageError for settings that do not fit it or a data directory
    that holds a cluster; Unavailable if something does not start.
    """
    _check_empty(settings)
    with _working(settings, folder, report) as (repository, telling):
        restoring = _Restoring(settings, repository, wish, telling)
        restoring.stage()
        settings = _with_new_datanodes(restoring.settings, wish.datanodes)
        effective = stack.up(settings, detached=detached, report=telling.at, before_nodes=restoring.begin)
        return restoring.finished(effective)


def restore_onto(settings: Settings, folder: Path, wish: RestoreWish, *, report: Report) -> RestoredCluster:
    """Restore a backup onto the brokers of the settings, whose topics exist, and into nodes' folders; start nothing.

    Raises as :func:`restore_stack`.
    """
    with _working(settings, folder, report) as (repository, telling):
        restoring = _Restoring(settings, repository, wish, telling)
        restoring.stage()
        own = restoring.settings
        own = _with_new_datanodes(own, None if own.datanodes else 0)
        restoring.begin(own)
        return restoring.finished(own)


@contextmanager
def _working(settings: Settings, folder: Path, report: Report) -> Iterator[tuple[BackupRepository, Telling]]:
    """Open the backups, and keep other restores out of the data directory; raises UserError if one is at work."""
    with (
        private_umask(), as_user_errors(), opened(folder, cluster=None, writes=False) as repository,
        Telling(report) as telling,
    ):  # fmt: skip
        path = _stage(settings) / LOCK_FILE
        with disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError(f"another restore is at work in {settings.data_dir}") from error
            yield repository, telling


class _Restoring:
    """One restore: :meth:`stage` needs the backups alone, :meth:`begin` the brokers too."""

    def __init__(self, settings: Settings, repository: BackupRepository, wish: RestoreWish, telling: Telling) -> None:
        self._repository = repository
        self._wish = wish
        self._telling = telling
        self._manifest = chosen_backup(repository, wish)
        self.settings = fitting(settings, self._manifest, wish)
        self._rows: list[RestoredRows] = []
        self._blocks: dict[bytes, bytes] = {}
        self._missing = 0
        self._placed_blocks = PlacedBlocks()
        self._placed: tuple[str, ...] = ()

    def stage(self) -> None:
        """Put the databases together, and see which blocks they need."""
        self._rows = _stage_rows(self.settings, self._repository, self._manifest, self._wish, self._telling)
        self._blocks, self._missing = _blocks_for(self.settings, self._repository, self._manifest, self._wish)

    def begin(self, settings: Settings) -> None:
        """Place the blocks, begin the new logs, and put the databases in place.

        Everything is looked at before anything is changed.
        """
        manifest, telling = self._manifest, self._telling
        names = self._wish.nodes or tuple(node.name for node in settings.nodes)
        members = [node.name for node in settings.nodes]
        topic = topic_id(settings)
        begun = {
            shard: move_to_log(
                _staged(settings, shard), _maker(settings, shard), topic, members, manifest.name, manifest.created_at_ms
            )
            for shard in range(manifest.shards)
        }  # fmt: skip
        for shard, records in begun.items():
            telling.at(f"shard {shard}: looks at {OM_LOG}/{shard}")
            when_brokers_answer(partial(_check_log, settings, shard, topic, records))
        for name in names:
            _check_places(settings, name, manifest.shards)
        self._placed_blocks = place_blocks(settings, self._repository, self._blocks, self._wish.disks, telling)
        for shard, records in begun.items():
            telling.at(f"shard {shard}: begins {OM_LOG}/{shard}")
            when_brokers_answer(partial(_begin_log, settings, shard, topic, records))
        record = json.dumps({"restored_from": manifest.name, "created_at_ms": manifest.created_at_ms})
        for name in names:
            for shard in begun:
                target = settings.node_folder(name) / f"shard-{shard}"
                if not _is_placed(settings, shard, target):
                    put_in_place(_staged(settings, shard), target, record, telling, shard)
        self._placed = names

    def finished(self, settings: Settings) -> RestoredCluster:
        """Remove what was staged; return what was made."""
        shutil.rmtree(_stage(settings), ignore_errors=True)
        return RestoredCluster(
            settings=settings, backup=self._manifest.name, shards=tuple(self._rows), placed=self._placed,
            blocks=self._placed_blocks, missing_blocks=self._missing,
        )  # fmt: skip


def chosen_backup(repository: BackupRepository, wish: RestoreWish) -> BackupManifest:
    """Return the backup to restore: the named one, else the last one that is not from after the moment."""
    if wish.backup is not None:
        return repository.backup(wish.backup)
    manifests = repository.backups()
    if not manifests:
        raise BackupFailed(f"{repository.folder}: there are no whole backups in it")
    if not wish.replays:
        return manifests[-1]
    same = [one for one in manifests if one.shards == manifests[-1].shards]
    return backup_for(same, wish.moments(manifests[-1].shards))


def fitting(settings: Settings, manifest: BackupManifest, wish: RestoreWish) -> Settings:
    """Return the settings with the backup's cluster and shards; raises UsageError if other ones were given.

    Raises UserError for a backup of later software.
    """
    for name, own in (("cluster", manifest.cluster), ("shards", manifest.shards)):
        given = getattr(settings, name)
        if given != own and name in settings.explicit:
            raise UsageError(f"setting '{name}' is {given!r}, and backup {manifest.name} is of {name} {own!r}")
    if (level := max(part.level for part in manifest.parts)) > features.LATEST:
        raise UserError(
            f"backup {manifest.name} is of feature level {level}; this software knows levels up to {features.LATEST}: "
            "upgrade it"
        )
    if wrong := [shard for shard in wish.indexes or {} if not 0 <= shard < manifest.shards]:
        raise UsageError(f"no shard {wrong[0]}; backup {manifest.name} has 0..{manifest.shards - 1}")
    for name in wish.nodes:
        settings.node(name)
    return replace(settings, cluster=manifest.cluster, shards=manifest.shards)


def _check_empty(settings: Settings) -> None:
    """Raise UsageError if a stack runs in the data directory, or nodes have databases in it that nobody restored."""
    known = read_state(settings.data_dir)
    if known is not None and known.running():
        names = ", ".join(member.name for member in known.running())
        raise UsageError(
            f"a stack runs in {settings.data_dir} ({names}): restore into another data directory "
            "(STRATOLOG_DATA_DIR=OTHER stratolog restore ...)"
        )
    databases = sorted(settings.data_dir.glob("nodes/*/shard-*"))
    if databases and not _stage(settings).exists():
        raise UsageError(f"{databases[0]} is there already: restore into another data directory")


# -- the steps ---------------------------------------------------------------------------------------------------------


def _stage_rows(
    settings: Settings, repository: BackupRepository, manifest: BackupManifest, wish: RestoreWish, telling: Telling
) -> list[RestoredRows]:  # fmt: skip
    everything = [one for one in repository.backups() if one.shards == manifest.shards]
    moments = wish.moments(manifest.shards)
    rows = []
    for part in manifest.parts:
        parts = [one.part(part.shard) for one in everything]
        kept = kept_range(parts, part) if wish.replays else None
        moment = moments[part.shard]
        if moment.is_after(part.index, part.timestamp_ms):
            raise BackupFailed(
                f"{moment} lies before backup {manifest.name}: its shard {part.shard} is at index {part.index}, time "
                f"{part.timestamp_ms} ms"
            )
        database = _staged(settings, part.shard)
        rows.append(restore_rows(repository, part, kept, moment, database, _maker(settings, part.shard), telling))
    return rows


def _check_log(settings: Settings, shard: int, topic: str, begun: NewLog) -> None:
    log = KafkaLog(settings.connection, OM_LOG, shard, topic)
    try:
        check_log_is(f"{OM_LOG}/{shard}", log, begun)
    finally:
        log.close()


def _begin_log(settings: Settings, shard: int, topic: str, begun: NewLog) -> None:
    log = KafkaLog(settings.connection, OM_LOG, shard, topic)
    records = KafkaRecords(settings.connection, OM_LOG, shard, topic)
    try:
        begin_log(f"{OM_LOG}/{shard}", log, begun, records.delete_before)
    finally:
        records.close()
        log.close()


def _check_places(settings: Settings, name: str, shards: int) -> None:
    for shard in range(shards):
        target = settings.node_folder(name) / f"shard-{shard}"
        finish(target)
        if target.exists() and not _is_placed(settings, shard, target):
            raise BackupFailed(f"{target}: node {name} has a database already; a restore needs empty folders")


def _is_placed(settings: Settings, shard: int, target: Path) -> bool:
    """Whether a node's database is the restored one, which an interrupted restore has put there."""
    return target.exists() and _position_of(target) == _position_of(_staged(settings, shard))


def _position_of(database: Path) -> Position:
    reader = RocksReader(database, OM_FAMILIES.names)
    try:
        stored = reader.get(TRANSACTION_INFO, POSITION_KEY)
        return Position() if stored is None else Position.decode(stored)
    finally:
        reader.close()


def _stage(settings: Settings) -> Path:
    return settings.data_dir / STAGE


def _staged(settings: Settings, shard: int) -> Path:
    return _stage(settings) / f"shard-{shard}"


def _maker(settings: Settings, shard: int) -> MakeReplica:
    """Return a function that opens the replica of a shard in any folder."""
    identity = Identity(cluster=settings.cluster, shard=shard, shards=settings.shards, node=NODE_NAME)
    executor = OMExecutor(Contexts(shard=shard, shards=settings.shards, pipelines=settings.pipelines))

    def make(database: Path) -> Replica:
        store = partial(RocksStore, database, OM_FAMILIES.names, kept=CHECKPOINT_PREFIX)
        return replica_of(identity, OM_FAMILIES, store, executor)

    return make


def _blocks_for(
    settings: Settings, repository: BackupRepository, manifest: BackupManifest, wish: RestoreWish
) -> tuple[dict[bytes, bytes], int]:  # fmt: skip
    """Return the rows of the blocks that the restored rows need and that are to be had, and how many others there are.

    Raises BackupFailed for others, unless they are accepted.
    """
    mode = mode_of(manifest)
    if mode == NONE or wish.without_blocks:
        return {}, 0
    if mode == REFERENCE and not wish.disks:
        raise UsageError(
            f"backup {manifest.name} has its blocks by reference: name the folders of the old datanodes (--disk), or "
            "restore --without-blocks"
        )
    needed: dict[bytes, BlockLocation] = {}
    for shard in range(manifest.shards):
        with closing(RocksReader(_staged(settings, shard), OM_FAMILIES.names)) as reader:
            needed |= needed_blocks(reader)
    files = BlockFiles(repository.folder)
    lists = (read_list(repository, content) for one in repository.backups() for content in one.service_files)
    found, wanting = rows_for(needed, lists)
    rows = {key: row for key, row in found.items() if wish.disks or files.has(key, decode_block_row(row))}
    missing = sorted({*wanting, *(found.keys() - rows.keys())})
    if missing and not wish.accept_missing:
        container_id, local_id = block_of_key(missing[0])
        raise BackupFailed(
            f"{len(missing)} of {len(needed)} blocks are not in the backups, block {container_id}/{local_id} among "
            "them: keys that were written after the last backup have none there. Restore to an earlier moment, or "
            "--accept-missing-blocks"
        )
    return rows, len(missing)


# -- datanodes ---------------------------------------------------------------------------------------------------------


def known_datanodes(database: Path) -> set[str]:
    """Return the names of all datanodes that the rows of shard 0 know."""
    reader = RocksReader(database, OM_FAMILIES.names)
    try:
        names = {key.decode() for key, _ in reader.iterate(DATANODE_TABLE, b"")}
        rows = [decode_as(PipelineRow, value) for _, value in reader.iterate(PIPELINE_TABLE, b"")]
        return names | {member.datanode for row in rows for member in row.members}
    finally:
        reader.close()


def _with_new_datanodes(settings: Settings, wanted: int | None) -> Settings:
    """Return the settings with datanodes whose names the backup does not know.

    A name stands for a disk. Pipelines of the backup have members of the old names, whose log is not there any more.
    Raises UsageError for a name that the backup knows.
    """
    known = known_datanodes(_staged(settings, 0))
    if settings.datanodes and wanted is None:
        if taken := sorted(known.intersection(node.name for node in settings.datanodes)):
            raise UsageError(
                f"datanode {taken[0]} is known to the backup, and its pipelines' log is not restored: give the new "
                "datanodes other names"
            )
        return settings
    count = len(known) if wanted is None else wanted
    free = [node for node in default_datanodes(count + len(known)) if node.name not in known]
    return replace(settings, datanodes=tuple(free[:count]))
