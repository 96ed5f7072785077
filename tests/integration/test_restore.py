"""Backups of real stacks, restored onto new brokers, nodes and datanodes; real processes, real Kafka, real blocks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from producers import Client, RequestFailed
from replicated_db.core.backup.manifest import BackupManifest
from schemas.settings.values import NodeAddress
from schemas.sharding import shard_of
from stratolog.backups.making import make_backup, prune, verify
from stratolog.backups.restoring import RestoredCluster, RestoreWish, restore_onto, restore_stack
from stratolog.configuration.cluster_secret import make_secret
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.local import stack as local
from stratolog.local.ports import free_ports
from stratolog.local.topics import ensure_topics
from tests.support.local.stack import LocalKafka, TestStack

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(500)]
KIB = 1024
NODES = 3
DATANODES = 3
PATIENCE_MS = 60_000


def quiet(_: str) -> None:
    """Nobody reads along."""


def put(client: Client, key: str, data: bytes) -> None:
    with client.open(f"/vol1/bucket/{key}", "wb") as file:
        file.write(data)


def got(client: Client, key: str) -> bytes:
    with client.open(f"/vol1/bucket/{key}", "rb") as file:
        return bytes(file.read())


def settings_beside(settings: Settings, folder: Path) -> Settings:
    """The same cluster elsewhere: other ports, another data directory, datanodes yet to be named."""
    kafka, *nodes = free_ports(1 + len(settings.nodes))
    return replace(
        settings, data_dir=folder, bootstrap_servers=f"127.0.0.1:{kafka}", audit=False, datanodes=(),
        nodes=tuple(
            NodeAddress(name=node.name, host="127.0.0.1", port=port)
            for node, port in zip(settings.nodes, nodes, strict=True)
        ),
        cluster_secret_file=None, cache_dir=load_settings(environment={}).cache_dir, explicit=frozenset(),
    )  # fmt: skip


def client_of(settings: Settings) -> Client:
    return Client(
        settings.bootstrap_servers, read_from=[node.address for node in settings.nodes], deadline_ms=PATIENCE_MS
    )


def digests(stack: TestStack, shard: int) -> set[tuple[int, str]]:
    stack.wait_converged()
    found = [stack.get(name, f"/v1/shards/{shard}/digest", scrub="true").json() for name in stack.names]
    assert all(one["digest"] == one["incremental"]["digest"] for one in found)
    return {(one["index"], one["digest"]) for one in found}


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Two backups of a cluster that is gone: its bytes, a snapshot, and a time between the two."""
    folder, backups = tmp_path_factory.mktemp("old"), tmp_path_factory.mktemp("backups") / "b"
    first, second = b"first" * 40 * KIB, b"second" * 7 * KIB  # larger than a key in its row may be
    with TestStack(folder, nodes=NODES, datanodes=DATANODES, shards=2, barrier_interval_ms=200) as stack:
        with stack.client() as client:
            client.create_volume("vol1")
            client.create_bucket("vol1", "bucket")
            put(client, "a", first)
            put(client, "b", second)
            client.create_snapshot("vol1", "bucket", "monday")
            put(client, "b", first)
            made = [make_backup(stack.settings, backups, name="one", blocks="whole", report=quiet)]
            put(client, "c", second)
            time.sleep(0.1)  # batch time goes by the leader's clock, which is behind this one
            client.delete_key("vol1", "bucket", "a")
            made.append(make_backup(stack.settings, backups, name="two", blocks="whole", report=quiet))
            make_backup(stack.settings, folder / "named", name="named", blocks="reference", report=quiet)
        disks = [folder / "disks" / node.name for node in stack.settings.datanodes]
        for disk in disks:
            stack.kill_datanode(disk.name)
            shutil.copytree(folder / "datanodes" / disk.name, disk)
        yield {
            "backups": backups, "made": made, "first": first, "second": second,
            "between": made[1].part(shard_of("vol1", 2)).timestamp_ms - 1,
            "settings": stack.settings, "disks": tuple(disks), "named": folder / "named",
        }  # fmt: skip


def test_the_second_backup_sends_what_is_new(backed_up: dict[str, Any]) -> None:
    one, two = (made.service["blocks"] for made in backed_up["made"])
    assert one["fetched_bytes"] == 2 * len(backed_up["first"]) + len(backed_up["second"])
    assert two["saved_bytes"] >= len(backed_up["first"])
    assert two["fetched_bytes"] == len(backed_up["second"])
    assert sum(part.saved_bytes for part in backed_up["made"][1].parts) > 0
    found, problems = verify(backed_up["backups"], quiet)
    assert ([made.name for made in found], problems) == (["one", "two"], [])


def restored(settings: Settings, backed_up: dict[str, Any], wish: RestoreWish) -> RestoredCluster:
    return restore_stack(settings, backed_up["backups"], wish, detached=False, report=quiet)


def test_a_new_cluster_has_it_all_and_goes_on(backed_up: dict[str, Any], tmp_path: Path) -> None:
    wanted = settings_beside(backed_up["settings"], tmp_path / "new")
    try:
        made = restored(wanted, backed_up, RestoreWish())
        manifest: BackupManifest = backed_up["made"][1]
        assert [(one.index, one.digest) for one in made.shards] == [
            (part.index, part.digest) for part in manifest.parts
        ]
        assert [node.name for node in made.settings.datanodes] == [f"dn{DATANODES + 1 + n}" for n in range(DATANODES)]
        assert made.missing_blocks == 0
        with client_of(made.settings) as client:
            assert [entry.key for entry in client.list_keys("vol1", "bucket")] == ["b", "c"]
            assert got(client, "b") == backed_up["first"]
            assert got(client, "c") == backed_up["second"]
            assert got(client, ".snapshot/monday/a") == backed_up["first"]
            assert got(client, ".snapshot/monday/b") == backed_up["second"]
            put(client, "d", b"after" * 100)
            assert got(client, "d") == b"after" * 100
            client.delete_key("vol1", "bucket", "c")
        with pytest.raises(UsageError, match="a stack runs in"):
            restored(wanted, backed_up, RestoreWish())
        local.down(made.settings)
        with pytest.raises(UsageError, match="shard-0 is there already"):
            restored(wanted, backed_up, RestoreWish())
    finally:
        local.down(wanted, remove_data=True)


def test_a_moment_between_two_backups(backed_up: dict[str, Any], tmp_path: Path) -> None:
    wanted = settings_beside(backed_up["settings"], tmp_path / "new")
    try:
        made = restored(wanted, backed_up, RestoreWish(time_ms=backed_up["between"]))
        assert made.backup == "one"
        assert sum(one.applied for one in made.shards) > 0
        with client_of(made.settings) as client:
            assert [entry.key for entry in client.list_keys("vol1", "bucket")] == ["a", "b", "c"]
            assert got(client, "c") == backed_up["second"], "its block came with the second backup"
    finally:
        local.down(wanted, remove_data=True)


def test_blocks_that_lie_on_old_disks(backed_up: dict[str, Any], tmp_path: Path) -> None:
    wanted = settings_beside(backed_up["settings"], tmp_path / "new")
    with pytest.raises(UsageError, match="has its blocks by reference"):
        restore_stack(wanted, backed_up["named"], RestoreWish(), detached=False, report=quiet)
    try:
        wish = RestoreWish(disks=backed_up["disks"], datanodes=1)
        made = restore_stack(wanted, backed_up["named"], wish, detached=False, report=quiet)
        assert made.blocks.bytes == 2 * len(backed_up["first"]) + 2 * len(backed_up["second"])
        with client_of(made.settings) as client:
            assert got(client, "b") == backed_up["first"]
            assert got(client, ".snapshot/monday/b") == backed_up["second"]
    finally:
        local.down(wanted, remove_data=True)


def test_onto_brokers_of_others_node_by_node(backed_up: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is started; one node gets its databases, and the others take checkpoints from it."""
    wanted = settings_beside(backed_up["settings"], tmp_path / "new")
    with LocalKafka(tmp_path / "kafka") as kafka:
        settings = replace(wanted, bootstrap_servers=kafka.bootstrap_servers)
        ensure_topics(settings.bootstrap_servers, local.topic_plan(settings))
        make_secret(settings.secret_file)
        wish = RestoreWish(nodes=("om1",), without_blocks=True)
        made = restore_onto(settings, backed_up["backups"], wish, report=quiet)
        assert made.placed == ("om1",)
        again = restore_onto(settings, backed_up["backups"], wish, report=quiet)
        assert again.shards == made.shards, "the same command again finds all done"
        with TestStack(tmp_path / "new", nodes=NODES, kafka=kafka, shards=2, barrier_interval_ms=200) as stack:
            manifest: BackupManifest = backed_up["made"][1]
            for part in manifest.parts:
                assert {digest for _, digest in digests(stack, part.shard)} == {part.digest}
            assert stack.shard("om2", 0)["installed"]["peer"] in ("om1", "om3")
            with stack.client() as client:
                assert [entry.key for entry in client.list_keys("vol1", "bucket")] == ["b", "c"]
                with pytest.raises(RequestFailed, match="bucket"):
                    client.create_bucket("vol1", "bucket")


def test_pruned_to_the_last_backup(backed_up: dict[str, Any]) -> None:
    """The last test here: the first backup goes, with the bytes that only it needs."""
    names, freed = prune(backed_up["backups"], 1)
    assert names == ["one"]
    assert freed > 0
    assert verify(backed_up["backups"], quiet)[1] == []
