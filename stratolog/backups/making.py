"""Making a backup: every shard's checkpoint and log, then the manifest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from om_processors.execution.service import OM_FAMILIES
from replicated_db.core.applying.identity import Identity
from replicated_db.core.backup.kept_log import NotKept
from replicated_db.core.backup.manifest import BackupManifest, ShardBackup
from replicated_db.core.backup.new_log import TooManyRestores
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.core.errors import StopProcess
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell.backup.repository import BackupRepository, opened
from replicated_db.shell.backup.shard_backup import ShardSource, take_shard
from replicated_db.shell.backup.telling import Telling
from replicated_db.shell.bootstrap.peer_calls import PeerCalls
from replicated_db.shell.kafka.kafka_log import KafkaLog
from schemas.topics import OM_LOG
from stratolog.cluster.shard_log import topic_id
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.local.stack import Report

ASKER = "backup"
"""The name under which checkpoints are asked for."""


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


def make_backup(settings: Settings, folder: Path, *, name: str | None, report: Report) -> BackupManifest:
    """Make a backup of a running cluster in ``folder``; return its manifest.

    Raises UserError for a folder that cannot be used, Unavailable if brokers or nodes do not answer.
    """
    secret = settings.secret()
    with (
        as_user_errors(),
        opened(folder, cluster=settings.cluster, writes=True) as repository,
        Telling(report) as telling,
    ):
        chosen = name or new_name()
        repository.check_new_name(chosen)
        before = repository.backups()
        topic = topic_id(settings)
        calls = PeerCalls(secret)
        try:
            parts = tuple(
                _take(settings, shard, topic, repository, calls, before, telling) for shard in range(settings.shards)
            )
        finally:
            calls.close()
        manifest = BackupManifest(
            name=chosen, created_at_ms=now_ms(), cluster=settings.cluster, shards=settings.shards, parts=parts
        )  # fmt: skip
        repository.write_manifest(manifest)
        return manifest


def _take(
    settings: Settings, shard: int, topic: str, repository: BackupRepository, calls: PeerCalls,
    before: list[BackupManifest], telling: Telling,
) -> ShardBackup:  # fmt: skip
    identity = Identity(cluster=settings.cluster, shard=shard, shards=settings.shards, node=ASKER)
    log = KafkaLog(settings.bootstrap_servers, OM_LOG, shard, topic)
    peers = [ServingPeer(node.name, node.address) for node in settings.nodes]
    source = ShardSource(identity=identity, families=OM_FAMILIES, log=log, peers=peers)
    try:
        return take_shard(repository, source, calls, before, telling, now_ms)
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
        return manifests, repository.problems(manifests, telling.say)


def listed(folder: Path) -> list[BackupManifest]:
    """Return the backups in a folder, oldest first. Raises UserError."""
    with as_user_errors(), opened(folder, cluster=None, writes=False) as repository:
        return repository.backups()


def prune(folder: Path, keep: int) -> tuple[list[str], int]:
    """Remove all but the last ``keep`` backups; return their names, and the bytes that were freed. Raises UserError."""
    with as_user_errors(), opened(folder, cluster=None, writes=True) as repository:
        return repository.prune(keep)
