"""Bytes through the whole stack: Object Manager nodes, datanodes, brokers; by the command and by the SDK."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from om_processors.namespace import ids, tables
from producers import AsyncClient, Client, RequestFailed, StreamOptions
from producers.bulk.key_copy import put_file
from schemas.column_families import DELETED_TABLE, INLINE_TABLE, OPEN_KEY_TABLE
from schemas.records.rows import BlockLocation
from schemas.sharding import shard_of
from tests.support.command import warm
from tests.support.local.stack import TestStack
from tests.support.sdk.small_files import check_written, write_until_reserved
from tests.support.sdk.written import fresh_bytes

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
KIB, MIB = 1024, 1024 * 1024
GRACE_MS = 15_000
OPTIONS = StreamOptions(flush_bytes=MIB, client_buffer_bytes=4 * MIB, block_bytes=4 * MIB, watch_timeout_ms=3_000)


@pytest.fixture(scope="module")
def stack(make_stack: Callable[..., TestStack]) -> TestStack:
    started = make_stack(
        nodes=3, datanodes=4, block_bytes=4 * MIB, flush_bytes=MIB, client_buffer_bytes=4 * MIB,
        deleted_block_grace_ms=GRACE_MS,
    )  # fmt: skip
    started.wait_pipeline()
    return started


@pytest.fixture(scope="module")
def client(stack: TestStack) -> Iterator[Client]:
    with stack.client(streams=OPTIONS) as opened:
        opened.create_volume("bytes")
        opened.create_bucket("bytes", "bucket")
        yield opened


class Command:
    def __init__(self, stack: TestStack) -> None:
        self._stack = stack

    def __call__(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {
            "STRATOLOG_CONFIG": str(self._stack.settings_file), "COLUMNS": "200", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin",
        }  # fmt: skip
        return warm.raw("sh", "key", *arguments, env=environment, cwd=ROOT, stdin=stdin, timeout_s=120)

    def json(self, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
        done = self(*arguments, "--json", stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def key(stack: TestStack, client: Client) -> Command:
    """The command, once there is a bucket."""
    return Command(stack)


def test_put_get_cat_and_cp_keep_every_byte(key: Command, client: Client, tmp_path: Path) -> None:
    data = fresh_bytes(9 * MIB + 17)
    digest = hashlib.sha256(data).hexdigest()
    source = tmp_path / "source.bin"
    source.write_bytes(data)
    done = key.json("put", "/bytes/bucket/a/b.bin", str(source), "--metadata", "colour=red")
    assert (done["bytes"], done["sha256"], done["address"]) == (len(data), digest, "/bytes/bucket/a/b.bin")
    info = client.key_info("bytes", "bucket", "a/b.bin").info
    assert (info.size, info.metadata, len(info.blocks)) == (len(data), {"colour": "red"}, 3)
    assert all(block.bcs_id > 0 for block in info.blocks)
    target = tmp_path / "target.bin"
    assert key.json("get", "/bytes/bucket/a/b.bin", str(target))["sha256"] == digest
    assert target.read_bytes() == data
    again = key("get", "/bytes/bucket/a/b.bin", str(target))
    assert (again.returncode, b"exists; --force replaces it" in again.stderr) == (2, True)
    assert key("get", "/bytes/bucket/a/b.bin", str(target), "--force").returncode == 0
    assert key("get", "/bytes/bucket/a/b.bin", str(tmp_path)).returncode == 0
    assert (tmp_path / "b.bin").read_bytes() == data
    assert key("cat", "/bytes/bucket/a/b.bin").stdout == data
    assert key("cat", "/bytes/bucket/a/b.bin", "--offset", "4MB", "--length", "1000").stdout == data[4 * MIB :][:1000]
    assert key.json("cp", "/bytes/bucket", "a/b.bin", "copy")["sha256"] == digest
    assert client.key_info("bytes", "bucket", "copy").info.metadata == {"colour": "red"}
    assert key("cat", "/bytes/bucket/copy").stdout == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.bin", "source.bin", "target.bin"]


@pytest.mark.slow
def test_from_standard_input_in_every_way(key: Command, client: Client) -> None:
    for way, topology in enumerate(["chain", "star", "tree", "chain"]):
        data = fresh_bytes(5 * MIB + way)
        address = f"/bytes/bucket/way{way}"
        done = key.json("put", address, "-", "--way", str(way), "--topology", topology, stdin=data)
        assert done["sha256"] == hashlib.sha256(data).hexdigest()
        assert key("cat", address).stdout == data


@pytest.mark.slow
def test_errors_name_what_is_wrong(key: Command, tmp_path: Path) -> None:
    cases = [
        (("put", "/bytes/bucket/k", str(tmp_path / "none")), 1, "No such file or directory"),
        (("put", "/bytes/bucket/k", str(tmp_path)), 2, "is a directory"),
        (("put", "/bytes/none/k", "-"), 1, "BUCKET_NOT_FOUND"),
        (("get", "/bytes/bucket/none", str(tmp_path / "x")), 1, "KEY_NOT_FOUND"),
        (("cat", "/bytes/bucket/none"), 1, "KEY_NOT_FOUND"),
        (("cat", "/bytes/bucket"), 2, "is not the address of a key"),
        (("put", "/bytes/bucket/k", "-", "--topology", "ring"), 2, "topology"),
    ]
    for arguments, code, message in cases:
        done = key(*arguments)
        assert (done.returncode, message in done.stderr.decode()) == (code, True), (arguments, done.stderr.decode())
    assert list(tmp_path.iterdir()) == []


def test_the_sdk_writes_a_local_file_and_reads_it_awaited(stack: TestStack, client: Client, tmp_path: Path) -> None:
    data = fresh_bytes(6 * MIB)
    source = tmp_path / "file"
    source.write_bytes(data)
    assert put_file(client, "/bytes/bucket/file", source).sha256 == hashlib.sha256(data).hexdigest()

    async def run() -> None:
        nodes = [stack.address(name) for name in stack.names]
        async with AsyncClient(stack.settings.bootstrap_servers, read_from=nodes, streams=OPTIONS) as opened:
            async with opened.open("/bytes/bucket/file") as file:
                assert await file.read() == data
            async with opened.open("/bytes/bucket/awaited", "wb") as file:
                await file.write(data)
                await file.hsync()

    asyncio.run(run())
    with client.open("/bytes/bucket/awaited") as file:
        assert file.read() == data


def test_many_small_files_are_one_request_each_and_leave_nothing(stack: TestStack, client: Client) -> None:
    """The blocks that were reserved for more files are given back when their client is closed."""
    before = open_rows(stack)
    nodes = [stack.address(name) for name in stack.names]
    with stack.client(nodes=nodes) as own:
        written = write_until_reserved(own, "/bytes/bucket/small")
        stack.wait("some blocks are reserved", lambda: open_rows(stack) > before)
        check_written(client, written)
    stack.wait("they are given back", lambda: open_rows(stack) == before)
    check_written(client, written)


def open_rows(stack: TestStack) -> int:
    """Return the number of rows of openKeyTable on one node."""
    counted = [
        stack.get(stack.names[0], f"/v1/shards/{shard}/count", cf=OPEN_KEY_TABLE).json()
        for shard in range(stack.settings.shards)
    ]
    return sum(int(one["rows"]) for one in counted)


@pytest.mark.slow
def test_a_key_moves_from_the_tables_to_datanodes_and_back(stack: TestStack, client: Client) -> None:
    """Each overwriting leaves nothing of the version before: no row with bytes, no block to be deleted, no file."""
    found = []
    for data in (fresh_bytes(1_000), fresh_bytes(5 * MIB), fresh_bytes(2_000)):
        with client.open("/bytes/bucket/moves", "wb") as file:
            file.write(data)
        with client.open("/bytes/bucket/moves", consistency="linearizable") as read:
            assert read.read() == data
        found.append(info := client.key_info("bytes", "bucket", "moves", consistency="linearizable").info)
        assert info.size == len(data)
        stack.wait_converged()
        kept = [holders(stack, INLINE_TABLE, tables.inline_key(one.object_id)) for one in found]
        assert kept == [[]] * (len(found) - 1) + [list(stack.nodes) if info.inline else []]
        if info.blocks:
            assert files_of(stack, info.blocks), "the files of the blocks are found as they are looked for below"
    assert [(info.inline, len(info.blocks)) for info in found] == [(True, 0), (False, 2), (True, 0)]
    between = found[1]
    deleted = tables.deleted_key("bytes", "bucket", "moves", between.object_id)
    stack.wait("the blocks are forgotten", lambda: not holders(stack, DELETED_TABLE, deleted))
    stack.wait("their files are deleted", lambda: not files_of(stack, between.blocks))
    with client.open("/bytes/bucket/moves") as read:
        assert read.read() == data


@pytest.mark.slow
def test_who_has_a_key_open_reads_on_when_it_is_replaced_or_deleted(stack: TestStack, client: Client) -> None:
    """A reader died two seconds later with BLOCK_DELETED: a file of the SDK, and the slow end of ``key cat | …``."""
    data = fresh_bytes(13 * MIB)
    with client.open("/bytes/bucket/replaced", "wb") as file:
        file.write(data)
    with client.open("/bytes/bucket/deleted", "wb") as file:
        file.write(data)
    environment = os.environ | {"STRATOLOG_CONFIG": str(stack.settings_file), "PYTHONPATH": str(ROOT)}
    cat = [sys.executable, "-m", "stratolog", "sh", "key", "cat", "/bytes/bucket/replaced"]
    with (
        subprocess.Popen(cat, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as download,
        client.open("/bytes/bucket/replaced") as replaced,
        client.open("/bytes/bucket/deleted") as deleted,
    ):
        assert download.stdout is not None
        assert [source.read(MIB) for source in (download.stdout, replaced, deleted)] == [data[:MIB]] * 3
        with client.open("/bytes/bucket/replaced", "wb") as file:
            file.write(b"another")
        client.delete_key("bytes", "bucket", "deleted")
        # The blocks of a session that committed nothing need no grace: once they have gone, these could have gone too.
        given = client.create_key("bytes", "bucket", "empty", size=4 * MIB)
        client.commit_key("bytes", "bucket", "empty", given.session_id, size=0, blocks=[])
        info = client.key_info("bytes", "bucket", "empty", consistency="linearizable").info
        made = ids.object_id(shard_of("bytes", stack.settings.shards), info.update_id)
        unused = tables.deleted_key("bytes", "bucket", "empty", made)
        stack.wait("what was never committed has gone", lambda: not holders(stack, DELETED_TABLE, unused))
        assert deleted.pread(100, 12 * MIB) == data[12 * MIB :][:100]
        assert [source.read() for source in (replaced, deleted, download.stdout)] == [data[MIB:]] * 3
    assert download.returncode == 0


def holders(stack: TestStack, cf: str, row: bytes) -> list[str]:
    """Return the nodes that hold a row, in whichever shard."""

    def has(node: str, shard: int) -> bool:
        return stack.get(node, f"/v1/shards/{shard}/row", cf=cf, key=row.hex()).json()["value"] is not None

    return [node for node in stack.nodes if any(has(node, shard) for shard in range(stack.settings.shards))]


def files_of(stack: TestStack, blocks: Sequence[BlockLocation]) -> list[Path]:
    """Return the files of blocks on all datanodes."""
    files = (stack.settings.data_dir / "datanodes").rglob("*.block")
    names = {f"{block.container_id}/{block.local_id}.block" for block in blocks}
    return [path for path in files if f"{path.parent.name}/{path.name}" in names]


EXAMPLES = {
    "write_and_read": ["hello, world", "world", "13 bytes in 1 block(s), English"],
    "list_pages": [
        "entry-000 to entry-019: 20", "entry-020 to entry-039: 20", "entry-040 to entry-044: 5", "45 keys in all",
        "/examples/pages: 45 keys are counted",
    ],
    "handle_errors": [
        "not found: VOLUME_NOT_FOUND", "exists: VOLUME_ALREADY_EXISTS", "exists: VOLUME_ALREADY_EXISTS",
        "the same request fails again: INVALID_BUCKET_NAME", "wrong argument: quota_in_bytes",
    ],
    "with_asyncio": ["already there: VOLUME_ALREADY_EXISTS", "10 keys of 55 bytes"],
}  # fmt: skip


def test_the_examples_run_with_the_address_of_a_broker_alone(stack: TestStack) -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)
    for name, lines in EXAMPLES.items():
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / f"{name}.py", stack.settings.bootstrap_servers],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.stdout.splitlines(), done.stderr, done.returncode) == (lines, "", 0), done


def test_names_that_look_like_paths_are_read_by_their_own(client: Client) -> None:
    for key in (".", "..", "a/../b", "//a//", "a%2Fb", "%2e%2e", "a?b#c&name=x"):
        path = f"/bytes/bucket/{key}"
        with client.open(path, "wb") as file:
            file.write(key.encode())
        with client.open(path) as found:
            assert found.read() == key.encode()
        assert [one.key for one in client.list_keys("bytes", "bucket", prefix=key, limit=1)] == [key]
        client.delete_key("bytes", "bucket", key)
    for name in ("", ".", "..", "a/b", "vol1/buckets/b1", "%2e%2e", "A"):
        with pytest.raises(RequestFailed, match="INVALID_VOLUME_NAME"):
            client.bucket_info(name, "bucket")
        with pytest.raises(RequestFailed, match="INVALID_BUCKET_NAME"):
            client.bucket_info("bytes", name)


def test_a_datanode_dies_while_a_key_is_written(stack: TestStack, client: Client) -> None:
    data = fresh_bytes(10 * MIB)
    with client.open("/bytes/bucket/survives", "wb") as file:
        file.write(data[: 3 * MIB])
        file.flush()
        stack.kill_datanode("dn2")
        file.write(data[3 * MIB :])
    with client.open("/bytes/bucket/survives") as file:
        assert file.read() == data
    stack.start_datanode("dn2")
    stack.wait_pipeline()


def test_an_abort_leaves_no_key(client: Client) -> None:
    def fail() -> None:
        with client.open("/bytes/bucket/aborted", "wb") as file:
            file.write(fresh_bytes(2 * MIB))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    with pytest.raises(RequestFailed, match="KEY_NOT_FOUND"):
        client.open("/bytes/bucket/aborted")
