"""Making a backup: every shard's checkpoint and log, then the manifest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from om_processors.execution.service import OM_FAMILIES
from replicated_db.core.applying.identity import Identity
from replicated_db.core.backup.kept_log import NotKept
from replicated_db.core.backup.manifest import BackupManifest, ShardBackup
from replicated_db.core.backup.new_log import TooManyRestores
from replicated_db.core.bootstrap.listing import Content
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import LogUnavailable, StoreView
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, opened
from replicated_db.shell.backup.shard_backup import ShardSource, take_shard
from replicated_db.shell.bootstrap.peer_calls import PeerCalls
from replicated_db.shell.bootstrap.telling import Telling
from replicated_db.shell.kafka.kafka_log import KafkaLog
from schemas.codecs.block_rows import decode_block_row
from schemas.records.rows import BlockLocation
from schemas.topics import OM_LOG
from stratolog.backups.block_backup import ASKER, BlocksGone, BlockTaking
from stratolog.backups.block_files import BlockFiles
from stratolog.backups.block_lists import needed_blocks, read_list, write_list
from stratolog.backups.block_modes import MODES, NONE, WHOLE
from stratolog.cluster.shard_log import topic_id
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.local.stack import Report
from stratolog.security.private_files import private_umask, tighten

ATTEMPTS = 3
"""How often a shard is taken if blocks that its keys name are deleted meanwhile."""


def new_name() -> str:
    """Return the name of a backup that is made now."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turn the errors of backups and restores into those that a command shows."""
    try:
        yield
    except LogUnavailable as error:
        raise Unavailable(f"the brokers: {error}") from error
    except (StopProcess, NotKept, TooManyRestores) as error:
        raise UserError(str(error)) from error


def make_backup(
    settings: Settings, folder: Path, *, name: str | None, blocks: str = NONE, report: Report
) -> BackupManifest:  # fmt: skip
    """Make a backup of a running cluster in ``folder``; return its manifest. ``blocks`` is one of MODES.

    Raises UserError for a folder that cannot be used, Unavailable if brokers or nodes do not answer.
    """
    secret = settings.secret()
    if settings.tls_ca_file is not None:
        tighten(folder)
    with (
        private_umask(),
        as_user_errors(),
        opened(folder, cluster=settings.cluster, writes=True) as repository,
        Telling(report) as telling,
    ):
        chosen = name or new_name()
        repository.check_new_name(chosen)
        calls = PeerCalls(secret, tls=settings.tls())
        taking = BlockTaking(settings, repository, blocks, telling)
        making = _Making(settings, repository, calls, taking, telling, topic_id(settings), blocks)
        try:
            taken = [making.shard(shard) for shard in range(settings.shards)]
        finally:
            calls.close()
            taking.close()
        manifest = BackupManifest(
            name=chosen, created_at_ms=now_ms(), cluster=settings.cluster, shards=settings.shards,
            parts=tuple(part for part, _ in taken), service={"blocks": {"mode": blocks, **asdict(taking.counts)}},
            service_files=tuple(found for _, found in taken if found is not None),
        )  # fmt: skip
        repository.write_manifest(manifest)
        return manifest


class _Making:
    """One backup at work."""

    def __init__(
        self, settings: Settings, repository: BackupRepository, calls: PeerCalls, taking: BlockTaking,
        telling: Telling, topic: str, blocks: str,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._repository = repository
        self._calls = calls
        self._taking = taking
        self._telling = telling
        self._topic = topic
        self._blocks = blocks
        self._before = repository.backups()

    def shard(self, shard: int) -> tuple[ShardBackup, Content | None]:
        """Take a shard, and its blocks' list if blocks are kept; anew, if a block has gone meanwhile."""
        for attempt in range(1, ATTEMPTS + 1):
            needed: dict[bytes, BlockLocation] = {}

            def look(view: StoreView, found: dict[bytes, BlockLocation] = needed) -> None:
                if self._blocks != NONE:
                    found.update(needed_blocks(view))

            part = self._take(shard, look)
            if self._blocks == NONE:
                return part, None
            try:
                return part, write_list(self._repository, shard, self._taking.take(shard, needed))
            except BlocksGone as error:
                if attempt == ATTEMPTS:
                    raise
                self._telling.say(f"shard {shard} is taken anew: {error}")
        raise RuntimeError("no attempt was made")

    def _take(self, shard: int, look: Callable[[StoreView], None]) -> ShardBackup:
        settings = self._settings
        identity = Identity(cluster=settings.cluster, shard=shard, shards=settings.shards, node=ASKER)
        log = KafkaLog(settings.connection, OM_LOG, shard, self._topic)
        peers = [ServingPeer(node.name, node.address) for node in settings.nodes]
        source = ShardSource(identity=identity, families=OM_FAMILIES, log=log, peers=peers)
        try:
            return take_shard(
                self._repository, source, self._calls, self._before, self._telling, now_ms, look
            )  # fmt: skip
        finally:
            log.close()


def now_ms() -> int:
    """Return the time of this machine's clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def verify(folder: Path, report: Report) -> tuple[list[BackupManifest], list[str]]:
    """Read every file of every backup; return the backups, and what is missing or damaged. Raises UserError."""
    read = 0

    def on_read(count: int) -> None:
        nonlocal read
        read += count

    with (
        as_user_errors(),
        opened(folder, cluster=None, writes=False, on_read=on_read) as repository,
        Telling(report) as telling,
    ):
        manifests = repository.backups()
        telling.at(lambda: f"reads the files of the backups, {read} bytes so far")
        problems = repository.problems(manifests, telling.say)
        return manifests, problems + _block_problems(repository, manifests)


def _block_problems(repository: BackupRepository, manifests: list[BackupManifest]) -> list[str]:
    """Return which blocks' bytes are missing or damaged, in words. Damaged lists are told already."""
    files, found = BlockFiles(repository.folder), dict[Path, str]()
    for manifest in manifests:
        if mode_of(manifest) != WHOLE:
            continue
        for content in filter(repository.is_right, manifest.service_files):
            for key, value in read_list(repository, content).items():
                row = decode_block_row(value)
                if (path := files.path_of(key, row)) not in found and not files.is_right(key, row):
                    found[path] = (
                        f"{path}: {'damaged' if path.exists() else 'missing'}; backup {manifest.name} needs it"
                    )
    return list(found.values())


def mode_of(manifest: BackupManifest) -> str:
    """Return what a backup keeps of blocks: one of MODES."""
    blocks = manifest.service.get("blocks")
    mode = blocks.get("mode") if isinstance(blocks, Mapping) else NONE
    if mode not in MODES:
        raise BackupFailed(f"backup {manifest.name} keeps blocks in a way that this software does not know: upgrade it")
    return str(mode)


def listed(folder: Path) -> list[BackupManifest]:
    """Return the backups in a folder, oldest first. Raises UserError."""
    with as_user_errors(), opened(folder, cluster=None, writes=False) as repository:
        return repository.backups()


def prune(folder: Path, keep: int) -> tuple[list[str], int]:
    """Remove all but the last ``keep`` backups; return their names, and the bytes that were freed. Raises UserError."""
    with as_user_errors(), opened(folder, cluster=None, writes=True) as repository:
        names, freed = repository.prune(keep)
        left = repository.backups()
        rows = (row for one in left for content in one.service_files for row in read_list(repository, content).items())
        return names, freed + BlockFiles(repository.folder).remove_unused(rows)
