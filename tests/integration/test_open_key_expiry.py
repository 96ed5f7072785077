"""A client opens a key, writes, and is killed: its session ends on every replica, and its blocks go from the datanodes' disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from om_processors.namespace import tables
from producers import Client, RequestFailed
from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
BLOCK_BYTES = 256 * 1024
THRESHOLD_MS = 4_000

WRITER = f"""
import sys, time
from producers import Client, StreamOptions
client = Client(sys.argv[1], read_from=sys.argv[2:], streams=StreamOptions(inline_bytes=0))
file = client.open("expiry/bucket/vanished", "wb")
file.write(bytes({BLOCK_BYTES} + 1000))
file.hsync()
print(file._writer.session_id, flush=True)
time.sleep(600)
"""


STACK = {
    "nodes": 3, "shards": 1, "datanodes": 3, "block_bytes": BLOCK_BYTES, "open_key_expire_threshold_ms": THRESHOLD_MS,
    "barrier_interval_ms": 100,
}  # fmt: skip


def open_row(key: str, session_id: int) -> bytes:
    return tables.open_key_key("expiry", "bucket", key, session_id)


def has(stack: TestStack, node: str, cf: str, row: bytes) -> bool:
    answer: dict[str, Any] = stack.get(node, "/v1/shards/0/row", cf=cf, key=row.hex()).json()
    return answer["value"] is not None


def holders(stack: TestStack, cf: str, row: bytes) -> list[str]:
    """Return the nodes whose replica holds a row."""
    return [node for node in stack.nodes if has(stack, node, cf, row)]


def block_files(stack: TestStack) -> list[Path]:
    return list((stack.settings.data_dir / "datanodes").rglob("*.block"))


def killed_writer(stack: TestStack) -> int:
    """Have a process open a key and write two blocks of it, then kill it; return the key's session."""
    words = [
        sys.executable, "-c", WRITER, stack.settings.bootstrap_servers, *(stack.address(name) for name in stack.names),
    ]  # fmt: skip
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        session_id = int(process.stdout.readline())
        process.kill()
    return session_id


@pytest.mark.slow
def test_a_vanished_clients_key_expires_and_a_touched_one_commits(stack: TestStack, client: Client) -> None:
    client.create_volume("expiry")
    client.create_bucket("expiry", "bucket")
    alive = client.create_key("expiry", "bucket", "alive", size=10)
    vanished = open_row("vanished", killed_writer(stack))
    assert holders(stack, OPEN_KEY_TABLE, vanished) == list(stack.nodes)
    assert len(block_files(stack)) == 6, "two blocks on three datanodes"

    def expired() -> bool:
        client.allocate_block("expiry", "bucket", "alive", alive.session_id)
        return holders(stack, OPEN_KEY_TABLE, vanished) == []

    stack.wait("the vanished client's key expired on all replicas", expired)
    assert holders(stack, OPEN_KEY_TABLE, open_row("alive", alive.session_id)) == list(stack.nodes)
    session_id = int(vanished.rpartition(b"/")[2])
    with pytest.raises(RequestFailed, match="KEY_NOT_FOUND"):
        client.commit_key("expiry", "bucket", "vanished", session_id, size=0, blocks=[])
    client.commit_key("expiry", "bucket", "alive", alive.session_id, size=0, blocks=[])
    assert [info.key for info in client.list_keys("expiry", "bucket")] == ["alive"]

    left = tables.deleted_key("expiry", "bucket", "vanished", session_id & ~255)
    stack.wait("the vanished client's blocks deleted and forgotten", lambda: not holders(stack, DELETED_TABLE, left))
    stack.wait("no block file is left", lambda: block_files(stack) == [])
    views = stack.wait_converged()
    assert (
        views[0]["digest"] == stack.get(next(iter(stack.nodes)), "/v1/shards/0/digest", scrub="true").json()["digest"]
    )
