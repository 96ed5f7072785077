"""Snapshots of a bucket on a real cluster: every node's checkpoint holds the same rows, through a kill in the middle, and goes when deleted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace.snapshots import CHECKPOINT_PREFIX, checkpoint_name, decode_snapshot
from producers import Client, CreatedSnapshot, Exists, NotFound, RequestFailed
from producers.bulk.load import LoadSpec, run_load
from replicated_db.core.log.position import POSITION_KEY, Position
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.core.tables.digests import digest_of_rows
from replicated_db.shell.rocks import WORK_FOLDER, RocksReader
from schemas.column_families import KEY_TABLE, SNAPSHOT_TABLE
from stratolog.drills.kit.load import BUCKET, Load
from tests.support.faults.stack_faults import (
    assert_all_agree,
    assert_log_agrees,
    bystander,
    fresh_volume,
)
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.usefixtures("all_nodes_run")]

STACK = {"nodes": 3, "shards": 1, "barrier_interval_ms": 200}
MORE_KEYS = 20
MANY_KEYS = 2_500
"""Each makes at least four entries of the store's memory: together more than PREPARED_ROWS."""
TRIES = 40
"""Snapshots that are made until a node is stopped in the middle of one."""
CATCH_S = 3.0

Sums = tuple[list[int], list[int]]


def folder_of(stack: TestStack, node: str) -> Path:
    return stack.settings.node_folder(node) / "shard-0.checkpoints"


def kept(stack: TestStack) -> dict[str, set[str]]:
    """Return the checkpoints of snapshots by node."""
    return {node: {path.name for path in folder_of(stack, node).glob(f"{CHECKPOINT_PREFIX}*")} for node in stack.names}


def read(stack: TestStack, node: str, name: str, copies: Path) -> tuple[Sums, int, set[bytes], set[str]]:
    """Return of a node's checkpoint: its digest by a full scan, its index, the rows of keyTable, the names of its snapshots."""
    copy = copies / f"{node}-{name}-{time.monotonic_ns()}"
    shutil.copytree(folder_of(stack, node) / name, copy)
    with closing(RocksReader(copy, OM_FAMILIES.names)) as reader:
        rows = ((cf, key, value) for cf in OM_FAMILIES.names for key, value in reader.iterate(cf, b""))
        sums = digest_of_rows(OM_FAMILIES, rows).slots()
        position = Position.decode(reader.get(TRANSACTION_INFO, POSITION_KEY) or b"")
        keys = {key for key, _ in reader.iterate(KEY_TABLE, b"")}
        names = {decode_snapshot(value).snapshot for _, value in reader.iterate(SNAPSHOT_TABLE, b"")}
    shutil.rmtree(copy)
    return (list(sums[0]), list(sums[1])), position.index, keys, names


def assert_same_on_all(stack: TestStack, made: CreatedSnapshot, copies: Path) -> tuple[set[bytes], set[str]]:
    name = checkpoint_name(made.snapshot_id)
    stack.wait(f"every node has {name}", lambda: all(name in there for there in kept(stack).values()))
    found = [read(stack, node, name, copies) for node in stack.names]
    assert all(one == found[0] for one in found), f"{name} differs between {stack.names}"
    assert found[0][1] == (made.snapshot_id >> 8) - 1, "it holds the rows of all indexes below its own"
    return found[0][2:]


def test_three_snapshots_under_load_are_the_same_on_every_node(
    stack: TestStack, client: Client, tmp_path: Path
) -> None:
    volume = fresh_volume(0, 1)
    load = Load(client, [volume])
    acknowledged: list[set[str]] = []
    made: list[CreatedSnapshot] = []
    with load:
        for number in range(3):
            load.wait_more(MORE_KEYS, volume)
            acknowledged.append(set(load.journals[volume].acknowledged))
            made.append(client.create_snapshot(volume, BUCKET, f"snap-{number}" if number else ""))
        load.wait_more(MORE_KEYS, volume)
        with pytest.raises(Exists, match="FILE_ALREADY_EXISTS"):
            client.create_snapshot(volume, BUCKET, "snap-1")
        client.rename_snapshot(volume, BUCKET, "snap-1", "renamed")
        client.set_snapshot_properties(volume, BUCKET, "renamed", {"why": "a test"})
    before: set[bytes] = set()
    for number, one in enumerate(made):
        keys, names = assert_same_on_all(stack, one, tmp_path)
        assert keys >= {f"/{volume}/{BUCKET}/{key}".encode() for key in acknowledged[number]}
        assert keys > before
        assert names == {earlier.snapshot for earlier in made[:number]}, "not of its own row"
        before = keys
    assert_all_agree(stack, load)
    with pytest.raises(RequestFailed, match="BUCKET_NOT_EMPTY"):
        client.delete_bucket(volume, BUCKET)
    client.delete_snapshot(volume, BUCKET, "renamed")
    with pytest.raises(NotFound, match="FILE_NOT_FOUND"):
        client.delete_snapshot(volume, BUCKET, "renamed")
    gone, *left = (checkpoint_name(one.snapshot_id) for one in (made[1], made[0], made[2]))
    stack.wait("every node has removed one", lambda: all(gone not in there for there in kept(stack).values()))
    assert all(there >= set(left) for there in kept(stack).values())
    for one in (made[0], made[2]):
        client.delete_snapshot(volume, BUCKET, one.snapshot)
    stack.wait("every node has removed all", lambda: not any(kept(stack).values()))
    stack.wait_converged()
    assert_log_agrees(stack, 0)


def test_many_new_rows_are_written_before_a_snapshot_and_all_of_them_are_in_it(
    stack: TestStack, client: Client, tmp_path: Path
) -> None:
    volume = fresh_volume(0, 1)
    client.create_volume(volume)
    client.create_bucket(volume, "bucket")
    spec = LoadSpec(volume=volume, bucket="bucket", in_flight=500, pairs=MANY_KEYS, seconds=60, warm_up_seconds=0)
    assert run_load(client, spec).failures == {}
    leader = stack.wait_leader(0)
    made = client.create_snapshot(volume, "bucket", "after-many")
    assert "new rows are written to files before a snapshot" in stack.log_file(leader).read_text()
    keys, _ = assert_same_on_all(stack, made, tmp_path)
    assert sum(key.startswith(f"/{volume}/bucket/load/".encode()) for key in keys) == MANY_KEYS
    client.delete_snapshot(volume, "bucket", "after-many")


def test_a_bucket_goes_once_its_snapshots_are_purged(stack: TestStack, client: Client) -> None:
    volume = fresh_volume(0, 1)
    client.create_volume(volume)
    client.create_bucket(volume, "bucket")
    client.create_snapshot(volume, "bucket", "snap")
    with pytest.raises(RequestFailed, match="CONTAINS_SNAPSHOT"):
        client.delete_bucket(volume, "bucket")
    client.delete_snapshot(volume, "bucket", "snap")

    def deleted() -> bool:
        try:
            client.delete_bucket(volume, "bucket")
        except RequestFailed as error:
            if error.status != "CONTAINS_SNAPSHOT":
                raise
            return False
        return True

    stack.wait("the leader has purged the snapshot", deleted)


@pytest.mark.slow
def test_a_node_that_is_killed_while_it_makes_a_checkpoint_makes_the_same(
    stack: TestStack, client: Client, tmp_path: Path
) -> None:
    """A node is stopped when something lies in its work folder, and killed if that still lies there then."""
    volume, victim = fresh_volume(0, 1), bystander(stack)
    work = folder_of(stack, victim) / WORK_FOLDER
    load = Load(client, [volume])
    with load, ThreadPoolExecutor(1) as pool:
        load.wait_more(MORE_KEYS, volume)
        for number in range(TRIES):
            future: Future[CreatedSnapshot] = pool.submit(client.create_snapshot, volume, BUCKET, f"try-{number}")
            if caught(work):
                stack.pause_node(victim)
                if not is_empty(work):
                    break
                stack.resume_node(victim)
            future.result()
        else:
            raise AssertionError(f"{victim} was never stopped in the middle of a checkpoint")
        stack.kill_node(victim)
        made = future.result()
        assert checkpoint_name(made.snapshot_id) not in kept(stack)[victim], "what has the name is whole"
        assert not is_empty(work), "what the killed process has left"
        load.wait_more(MORE_KEYS, volume)
        stack.start_node(victim)
    assert_same_on_all(stack, made, tmp_path)
    assert is_empty(work)
    stack.wait_converged()
    assert_log_agrees(stack, 0)


def is_empty(work: Path) -> bool:
    return not work.is_dir() or not any(work.iterdir())


def caught(work: Path, now_s: Callable[[], float] = time.monotonic) -> bool:
    """Wait until something is being made; a snapshot may also be made between two looks."""
    until_s = now_s() + CATCH_S
    while is_empty(work):
        if now_s() > until_s:
            return False
    return True
