"""``restore``: a cluster is backed up twice under load, destroyed, and restored onto new brokers and nodes.

The drill runs on a stack of its own, because it destroys it. The second backup must not send again what the first one
has. The restored replicas must have the backup's digest, list the keys that it holds, and take writes; then their
digests are compared with the new log's, by the auditor's rule, as after any fault.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from replicated_db.core.backup.manifest import BackupManifest
from replicated_db.core.bootstrap.pace import size_words
from schemas.settings.values import NodeAddress
from stratolog.backups.making import make_backup, verify
from stratolog.backups.restoring import RestoredCluster, RestoreWish, restore_stack
from stratolog.configuration.settings import Settings
from stratolog.drills.core import install_findings
from stratolog.drills.kit.aftermath import judge_load, scan_all
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.core import write_findings
from stratolog.drills.kit.core.journal import Journal
from stratolog.drills.kit.load import BUCKET, Load, client_of, listed, put_key, volume_name
from stratolog.drills.kit.own_stack import SHARD, own_stack, to_be_deleted
from stratolog.drills.kit.session import Session
from stratolog.drills.kit.taps import ReportTap
from stratolog.local import stack
from stratolog.local.ports import free_ports

DRILL = "restore"
WRITES = 150
MADE = ("first", "second")


def run(session: Session, cluster: Cluster) -> None:
    """Run the drill."""
    with own_stack(session, cluster.settings, DRILL, detached=cluster.detached) as own:
        backups = own.settings.data_dir.parent / "backups"
        volume = volume_name(DRILL, SHARD, own.settings.shards)
        with client_of(own.settings) as client:
            load = Load(client, [volume]).start()
            try:
                made = [_back_up(session, own.settings, backups, load, which) for which in MADE]
            finally:
                load.give_up()
            load.stop()
        session.find(install_findings.saved({"saved_bytes": made[1].parts[SHARD].saved_bytes}))
        with session.step("stop the stack, and delete all that it has stored"):
            stack.down(own.settings, remove_data=True)
        with _restored(session, own, backups) as (restored, found):
            _judge_rows(session, restored, found, made[1], load.journal, volume)
            _judge_writes(session, restored, volume)


def _back_up(session: Session, settings: Settings, backups: Path, load: Load, which: str) -> BackupManifest:
    load.wait_more(WRITES)
    with session.step(f"make the {which} backup, under load") as found:
        begun_s = time.monotonic()
        made = make_backup(settings, backups, name=which, report=lambda _: None)
        part = made.parts[SHARD]
        session.figures[f"{which}_backup_s"] = round(time.monotonic() - begun_s, 3)
        session.figures[f"{which}_sent_bytes"] = float(part.fetched_bytes)
        session.figures[f"{which}_saved_bytes"] = float(part.saved_bytes)
        found(
            f"index {part.index}, digest {part.digest}: {size_words(part.fetched_bytes)} sent, "
            f"{size_words(part.saved_bytes)} saved by exclusion"
        )
    return made


@contextmanager
def _restored(session: Session, own: Cluster, backups: Path) -> Iterator[tuple[Cluster, RestoredCluster]]:
    """Restore the last backup into a new stack beside the destroyed one; stop and delete it at the end."""
    kafka, *nodes = free_ports(1 + len(own.names))
    wanted = replace(
        own.settings, data_dir=own.settings.data_dir.with_name("restored"), bootstrap_servers=f"127.0.0.1:{kafka}",
        nodes=tuple(NodeAddress(name=name, host="127.0.0.1", port=port) for name, port in zip(own.names, nodes, strict=True)),
        explicit=frozenset(),
    )  # fmt: skip
    stopped = to_be_deleted(session, wanted, "a second stack of this drill's own", "the restored stack")
    with session.step("read every file of both backups") as found:
        _, problems = verify(backups, lambda _: None)
        found(problems[0] if problems else "all are whole")
    with session.step("restore the second backup onto new brokers and nodes") as found:
        begun_s = time.monotonic()
        made = restore_stack(
            wanted, backups, RestoreWish(datanodes=0), detached=own.detached, report=lambda _: None
        )  # fmt: skip
        session.figures["restore_s"] = round(time.monotonic() - begun_s, 3)
        found(f"index {made.shards[SHARD].index}, digest {made.shards[SHARD].digest}")
    yield Cluster(settings=made.settings, detached=own.detached), made
    with session.step("stop and delete the restored stack"):
        stopped()


def _judge_rows(
    session: Session, restored: Cluster, found: RestoredCluster, made: BackupManifest, journal: Journal, volume: str
) -> None:  # fmt: skip
    part = made.parts[SHARD]
    held = journal.as_of(part.index)
    with session.step("scan every restored replica, and list its keys"):
        scans = scan_all(restored, SHARD)
        listings = {name: listed(restored, name, volume) for name in restored.names}
    session.find(
        install_findings.restored(part.digest, found.shards[SHARD].digest, scans),
        install_findings.scans_equal(scans),
        *write_findings.writes_hold(held, listings),
    )
    session.figures["keys_in_the_backup"] = len(held.acknowledged)


def _judge_writes(session: Session, restored: Cluster, volume: str) -> None:
    """Write to the restored stack: to the old volume, and a load of its own."""
    before = restored.wait_caught_up(restored.wait_leader(SHARD), SHARD)
    with (
        client_of(restored.settings) as client,
        ReportTap(restored.settings.connection, SHARD) as reports,
    ):
        with session.step("write on, to the old volume and to a new one"):
            put_key(client, volume, BUCKET, "after-the-restore", 1)
            load = Load(client, [volume_name(DRILL, SHARD, restored.settings.shards)]).start()
            try:
                load.wait_more(WRITES)
            finally:
                load.give_up()
        judge_load(session, restored, SHARD, load, reports, before)
