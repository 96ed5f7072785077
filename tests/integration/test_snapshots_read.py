"""A snapshot's keys and bytes on the real stack, whatever becomes of the bucket; and what is left when it is deleted."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from om_processors.namespace import tables
from producers import Client, NotFound, RequestFailed, RetryableError
from producers.reads.reads import Reads
from schemas.column_families import DELETED_TABLE
from tests.support.command import warm
from tests.support.local.stack import TestStack
from tests.support.sdk.written import fresh_bytes

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
BLOCK_BYTES = 256 * 1024
STACK = {"nodes": 3, "shards": 1, "datanodes": 3, "block_bytes": BLOCK_BYTES, "barrier_interval_ms": 100}
PLACE = ("snaps", "bucket")
INSIDE = ".snapshot/before/"


def write(client: Client, key: str, size: int = 100_000) -> bytes:
    data = fresh_bytes(size)
    with client.open(f"/snaps/bucket/{key}", "wb") as file:
        file.write(data)
    return data


def read(client: Client, key: str) -> bytes:
    with client.open(f"/snaps/bucket/{key}") as file:
        return file.read()


def deleted_row(client: Client, key: str) -> str:
    """Return the row that the present version of a key will have among the deleted ones."""
    return tables.deleted_key(*PLACE, key, client.key_info(*PLACE, key).info.object_id).hex()


def is_deleted(stack: TestStack, row: str) -> list[str]:
    """Return the nodes whose replica still has the row of a deleted version."""
    answers: dict[str, Any] = {
        node: stack.get(node, "/v1/shards/0/row", cf=DELETED_TABLE, key=row).json() for node in stack.nodes
    }
    return [node for node, answer in answers.items() if answer["value"] is not None]


def block_files(stack: TestStack) -> int:
    return len(list((stack.settings.data_dir / "datanodes").rglob("*.block")))


def checkpoints(stack: TestStack) -> list[Path]:
    return list((stack.settings.data_dir / "nodes").glob("*/shard-0.checkpoints/snapshot-*"))


def shell(stack: TestStack, *words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {
        "STRATOLOG_CONFIG": str(stack.settings_file), "COLUMNS": "200", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    return warm.raw("sh", *words, env=environment, cwd=ROOT, timeout_s=120)


def said(stack: TestStack, *words: str) -> list[dict[str, Any]]:
    done = shell(stack, *words, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(stack: TestStack, *words: str) -> str:
    done = shell(stack, *words)
    assert done.returncode == 1, done.stdout.decode()
    return done.stderr.decode()


@pytest.mark.slow
def test_old_bytes_are_read_until_the_snapshot_is_deleted(stack: TestStack, client: Client) -> None:
    client.create_volume("snaps")
    client.create_bucket(*PLACE)
    names = ["dir/moved", "gone", "overwritten", "same"]
    old = {key: write(client, key) for key in names} | {"two-blocks": write(client, "two-blocks", BLOCK_BYTES + 5000)}
    needed = [deleted_row(client, key) for key in ("overwritten", "gone", "two-blocks")]

    made = said(stack, "snapshot", "create", "/snaps/bucket", "before")[0]
    assert (made["done"], made["address"], made["snapshot"]) == ("created", "/snaps/bucket/.snapshot/before", "before")
    assert len(checkpoints(stack)) >= 1, "the node that answered has it"

    new = write(client, "overwritten")
    client.delete_key(*PLACE, "gone")
    client.delete_key(*PLACE, "two-blocks")
    client.rename_key(*PLACE, "dir/moved", "elsewhere")
    write(client, "outside")
    outside = deleted_row(client, "outside")
    client.delete_key(*PLACE, "outside")

    # Blocks that no snapshot needs go; the others stay, and their rows with them.
    stack.wait("the deletion of what the snapshot does not need", lambda: not is_deleted(stack, outside))
    stack.wait("its block files", lambda: block_files(stack) == 3 * 7)
    assert [len(is_deleted(stack, row)) for row in needed] == [3, 3, 3]

    assert {key: read(client, INSIDE + key) for key in old} == old
    assert read(client, "overwritten") == new
    with pytest.raises(NotFound, match="KEY_NOT_FOUND"):
        client.key_info(*PLACE, INSIDE + "outside")
    assert [found.key for found in client.list_keys(*PLACE, prefix=INSIDE)] == [INSIDE + key for key in sorted(old)]
    assert [found.key for found in client.list_keys(*PLACE, prefix=INSIDE + "dir/")] == [INSIDE + "dir/moved"]
    with pytest.raises(RequestFailed, match="INVALID_KEY_NAME"):
        client.create_key(*PLACE, INSIDE + "new", size=1)

    # By the command, and by each node.
    target = stack.folder / "target"
    assert shell(stack, "key", "get", f"/snaps/bucket/{INSIDE}gone", str(target)).returncode == 0
    assert target.read_bytes() == old["gone"]
    assert shell(stack, "key", "get", f"/snaps/bucket/{INSIDE}gone", "-").stdout == old["gone"]
    said(stack, "key", "cp", "/snaps/bucket", INSIDE + "gone", "restored")
    assert read(client, "restored") == old["gone"]
    assert [one["snapshot"] for one in said(stack, "snapshot", "list", "/snaps/bucket")] == ["before"]
    assert [one["key"] for one in said(stack, "key", "list", "/snaps/bucket", "--prefix", INSIDE)][1] == INSIDE + "gone"
    for node in stack.names:
        info = said(stack, "snapshot", "info", "/snaps/bucket", "before", "--node", node)[0]
        assert (info["referenced_keys"], info["referenced_bytes"]) == (5, sum(map(len, old.values())))
        assert info["usage"]["disk_bytes"] >= info["usage"]["only_disk_bytes"] >= 0
    stack.wait("a checkpoint on every node", lambda: len(checkpoints(stack)) == 3)
    assert "KEY_NOT_FOUND" in refused(stack, "key", "info", f"/snaps/bucket/{INSIDE}nosuch")
    assert "snapshot 'nosuch' of bucket /snaps/bucket does not exist" in refused(
        stack, "snapshot", "info", "/snaps/bucket", "nosuch"
    )

    # A replica whose checkpoint somebody removed says so; other nodes answer.
    victim = "om2"
    removed = next((stack.settings.data_dir / "nodes" / victim / "shard-0.checkpoints").glob("snapshot-*"))
    shutil.rmtree(removed)
    alone = Reads([f"http://{stack.address(victim)}"], deadline_ms=2_000)
    with pytest.raises(RetryableError, match="om2 cannot read its checkpoint of snapshot"):
        alone.key_info(*PLACE, INSIDE + "gone")
    assert all(read(client, INSIDE + "gone") == old["gone"] for _ in range(3))

    # Killed, and rebuilt from the log, it has the checkpoint again.
    stack.kill_node(victim)
    database = stack.settings.data_dir / "nodes" / victim / "shard-0"
    database.rename(database.with_name("shard-0.moved"))
    stack.start_node(victim)
    stack.wait("the rebuilt replica's checkpoint", removed.is_dir)
    stack.wait_led()
    stack.wait_converged()
    assert alone.key_info(*PLACE, INSIDE + "gone", consistency="session").info.size == len(old["gone"])
    assert [found.key for found in alone.list_keys(*PLACE, prefix=INSIDE)] == [INSIDE + key for key in sorted(old)]
    alone.close()

    said(stack, "snapshot", "set", "/snaps/bucket", "before", "why=test", "by=me")
    assert client.snapshot_info(*PLACE, "before").info.properties == {"why": "test", "by": "me"}
    said(stack, "snapshot", "rename", "/snaps/bucket", "before", "renamed")
    assert read(client, ".snapshot/renamed/gone") == old["gone"]
    with pytest.raises(NotFound, match="FILE_NOT_FOUND"):
        read(client, INSIDE + "gone")

    # The snapshot goes, and with it what it alone needed.
    said(stack, "snapshot", "delete", "/snaps/bucket", "renamed")
    with pytest.raises(NotFound, match="snapshot 'renamed' of bucket /snaps/bucket does not exist"):
        read(client, ".snapshot/renamed/gone")
    assert said(stack, "snapshot", "list", "/snaps/bucket") == []
    stack.wait("deleted versions forgotten", lambda: not any(is_deleted(stack, row) for row in needed))
    stack.wait("block files of the bucket alone", lambda: block_files(stack) == 3 * 4)
    stack.wait("checkpoints removed on every node", lambda: not checkpoints(stack))
    assert read(client, "overwritten") == new
    assert read(client, "elsewhere") == old["dir/moved"]
    stack.wait_converged()
