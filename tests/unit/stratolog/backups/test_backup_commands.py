"""Which backup is restored, what is refused before anything starts, and what the commands say of a directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from replicated_db.core.backup.kept_log import NotKept
from replicated_db.core.backup.manifest import BackupManifest, ShardBackup
from replicated_db.core.bootstrap.listing import Content, ListedFile, ListedPosition, Listing
from replicated_db.shell.backup.repository import BackupFailed, BackupRepository, opened
from schemas import features
from stratolog.backups.making import make_backup, mode_of
from stratolog.backups.restoring import RestoreWish, chosen_backup, fitting, restore_stack
from stratolog.cli import build_app
from stratolog.configuration.cluster_secret import make_secret
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError, UserError

CLUSTER = "stratolog"


def part(shard: int, index: int, content: Content, level: int = 1) -> ShardBackup:
    listing = Listing(
        transfer="0" * 32, node="om1", cluster=CLUSTER, shard=shard, shards=2, leader="om1",
        position=ListedPosition(term=1, index=index, offset=index, record_hash=bytes(16)),
        files=(ListedFile("db/CURRENT", content),), links=(), kept=frozenset(), remove=frozenset(),
    )  # fmt: skip
    return ShardBackup(
        listing=listing, digest="0" * 16, timestamp_ms=index * 1000, topic_id="t", members=("om1",), level=level,
        log=(), log_end=index + 1, log_end_ms=index * 1000, fetched_bytes=content.size, saved_bytes=0,
    )  # fmt: skip


def manifest(name: str, index: int, content: Content, level: int = 1) -> BackupManifest:
    return BackupManifest(
        name=name, created_at_ms=index, cluster=CLUSTER, shards=2,
        parts=(part(0, index, content, level), part(1, index + 1, content, level)),
        service={"blocks": {"mode": "none", "blocks": 0, "fetched_bytes": 0, "saved_bytes": 0}},
    )  # fmt: skip


def fill(folder: Path) -> Content:
    """Two backups that share one file; return its content."""
    with opened(folder, cluster=CLUSTER, writes=True) as made:
        path = made.scratch / "x"
        path.parent.mkdir()
        path.write_bytes(b"MANIFEST-000004\n")
        content = made.keep_file(path)
        for name, index in (("early", 10), ("late", 20)):
            made.write_manifest(manifest(name, index, content))
    return content


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[BackupRepository]:
    fill(tmp_path / "b")
    with opened(tmp_path / "b", cluster=None, writes=False) as found:
        yield found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(load_settings(environment={}), data_dir=tmp_path / "data")


def test_the_backup_that_is_restored(repository: BackupRepository):
    assert chosen_backup(repository, RestoreWish()).name == "late"
    assert chosen_backup(repository, RestoreWish(backup="early")).name == "early"
    assert chosen_backup(repository, RestoreWish(indexes={0: 19})).name == "early"
    assert chosen_backup(repository, RestoreWish(time_ms=21_000)).name == "late"
    assert chosen_backup(repository, RestoreWish(time_ms=20_999)).name == "early", "shard 1 is of a later time"
    assert chosen_backup(repository, RestoreWish(to_end=True)).name == "late"
    with pytest.raises(NotKept, match="before the first backup"):
        chosen_backup(repository, RestoreWish(indexes={1: 3}))
    with pytest.raises(BackupFailed, match="there is no backup 'x'; there are: early, late"):
        chosen_backup(repository, RestoreWish(backup="x"))


def test_settings_take_what_the_backup_fixes(repository: BackupRepository, settings: Settings):
    found = fitting(replace(settings, shards=7), repository.backup("late"), RestoreWish())
    assert (found.cluster, found.shards) == (CLUSTER, 2)
    for given, said in (
        (settings.with_values(shards=7), "setting 'shards' is 7, and backup late is of shards 2"),
        (
            settings.with_values(cluster="mine"),
            "setting 'cluster' is 'mine', and backup late is of cluster 'stratolog'",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            fitting(given, repository.backup("late"), RestoreWish())
    with pytest.raises(UsageError, match="no shard 2"):
        fitting(settings, repository.backup("late"), RestoreWish(indexes={2: 1}))
    with pytest.raises(UsageError, match="no node 'om9'"):
        fitting(settings, repository.backup("late"), RestoreWish(nodes=("om9",)))


def test_a_backup_of_later_software_is_refused(settings: Settings):
    later = manifest("later", 5, Content("0" * 32, 1), level=features.LATEST + 1)
    with pytest.raises(UserError, match="upgrade it"):
        fitting(settings, later, RestoreWish())
    with pytest.raises(BackupFailed, match="upgrade it"):
        mode_of(replace(later, service={"blocks": {"mode": "in-orbit"}}))
    assert mode_of(replace(later, service={})) == "none"


def test_a_data_directory_with_databases_is_left_alone(settings: Settings, tmp_path: Path):
    database = settings.data_dir / "nodes" / "om1" / "shard-0"
    database.mkdir(parents=True)
    with pytest.raises(UsageError, match=f"{database} is there already"):
        restore_stack(settings, tmp_path / "b", RestoreWish(), report=lambda _: None)
    assert list(database.parent.iterdir()) == [database]


def test_a_directory_without_backups_is_none(settings: Settings, tmp_path: Path):
    with pytest.raises(UserError, match="it holds no backups"):
        restore_stack(settings, tmp_path / "b", RestoreWish(), report=lambda _: None)
    with opened(tmp_path / "b", cluster=CLUSTER, writes=True):
        pass
    with pytest.raises(UserError, match="no whole backups"):
        restore_stack(settings, tmp_path / "b", RestoreWish(), report=lambda _: None)


def test_a_backup_needs_the_clusters_secret(settings: Settings, tmp_path: Path):
    with pytest.raises(UsageError, match="cluster_secret_file"):
        make_backup(settings, tmp_path / "b", name=None, report=lambda _: None)
    assert not (tmp_path / "b").exists()


def test_a_backup_and_its_folder_are_for_their_owner_alone(settings: Settings, tmp_path: Path):
    make_secret(settings.secret_file)
    folder = tmp_path / "b"

    def for_others(own: Settings) -> list[Path]:
        before = os.umask(0o022)
        try:
            with pytest.raises(UserError, match="name"):
                make_backup(own, folder, name="no/name", report=lambda _: None)
            assert os.umask(0o022) == 0o022, "the command's own files are made as before"
        finally:
            os.umask(before)
        return [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]

    assert for_others(settings) == []
    assert len(list(folder.iterdir())) >= 3
    for path in (*folder.rglob("*"), folder):  # as an older release has left it
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert len(for_others(settings)) >= 4
    assert for_others(replace(settings, tls_ca_file=tmp_path / "ca.pem")) == []


def said(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(build_app(words), words)
    return found.exit_code, found.stdout


def test_the_commands_of_a_directory(tmp_path: Path):
    folder = tmp_path / "b"
    content = fill(folder)
    status, listed = said("backup", str(folder), "--list", "--json")
    assert (status, [one["name"] for one in json.loads(listed)]) == (0, ["early", "late"])
    assert "10 11" in said("backup", str(folder), "--list")[1]
    assert said("backup", str(folder), "--verify") == (0, "2 backups: every file is whole\n")
    path = folder / "content" / content.digest[:2] / content.digest
    path.unlink()
    status, found = said("backup", str(folder), "--verify", "--json")
    assert (status, json.loads(found)["problems"]) == (
        1, [f"{path}: missing; backup {name} needs it" for name in ("early", "late")]
    )  # fmt: skip
    assert said("backup", str(folder), "--prune", "1")[1].startswith("removed: early;")
    assert said("backup", str(folder), "--prune", "1")[1].startswith("nothing to remove;")
