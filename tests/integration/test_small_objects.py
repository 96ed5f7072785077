"""Small objects in the row on a real stack without datanodes: files, commands, snapshots, replacing, kills, digests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from om_processors.namespace.tables import inline_key
from producers import Client, NotFound, RequestFailed, StreamOptions
from producers.errors import StratologError
from producers.reads.reads import Consistency
from schemas.column_families import DELETED_TABLE, INLINE_TABLE
from schemas.features import LATEST
from schemas.small_objects import DEFAULT_INLINE_BYTES
from tests.support.command import warm
from tests.support.local.stack import TestStack
from tests.support.sdk.written import fresh_bytes

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PLACE = ("small", "bucket")
SIZES = (0, 1, 4095, 4096, DEFAULT_INLINE_BYTES)
"""Around the size from which on a value lies in a blob file, and the limit."""
CONSISTENCIES: tuple[Consistency, ...] = ("stale", "session", "linearizable")
WRITES = 200


@pytest.fixture(scope="module")
def stack(make_stack: Callable[..., TestStack]) -> TestStack:
    return make_stack(nodes=3, shards=1, barrier_interval_ms=100)


@pytest.fixture(scope="module")
def client(stack: TestStack) -> Iterator[Client]:
    with stack.client(caller="tester") as opened:
        opened.create_volume(PLACE[0])
        opened.create_bucket(*PLACE)
        yield opened


@pytest.fixture
def direct(stack: TestStack, client: Client) -> Iterator[Client]:
    del client
    with Client(nodes=[f"{node.host}:{node.port}" for node in stack.settings.nodes]) as opened:
        yield opened


def write(client: Client, key: str, data: bytes) -> None:
    with client.open(f"/small/bucket/{key}", "wb") as file:
        file.write(data)


def read(client: Client, key: str, consistency: Consistency = "linearizable") -> bytes:
    with client.open(f"/small/bucket/{key}", consistency=consistency) as file:
        return bytes(file.read())


def row_of(stack: TestStack, node: str, cf: str, row: bytes) -> str | None:
    found: str | None = stack.get(node, "/v1/shards/0/row", cf=cf, key=row.hex()).json()["value"]
    return found


def scans_are_right(stack: TestStack) -> None:
    """Each node's rows, read in full, have the digest that all agree on."""
    stack.wait_converged()
    answers = [stack.get(node, "/v1/shards/0/digest", scrub="true").json() for node in stack.nodes]
    assert len({answer["digest"] for answer in answers}) == 1, answers
    assert {answer["digest"] for answer in answers} == {stack.shard(node, 0)["digest"] for node in stack.nodes}


def test_files_of_either_door(stack: TestStack, client: Client, direct: Client) -> None:
    assert stack.shard("om1", 0)["feature_level"] == LATEST
    for door, writer in (("brokers", client), ("direct", direct)):
        for size in SIZES:
            data, key = fresh_bytes(size), f"{door}/{size}"
            write(writer, key, data)
            for reader in (client, direct):
                assert read(reader, key) == data
            for consistency in CONSISTENCIES[1:]:
                assert read(writer, key, consistency) == data
            stack.wait_converged()
            assert read(client, key, "stale") == read(direct, key, "stale") == data
            info = direct.key_info(*PLACE, key).info
            assert (info.size, info.inline, info.blocks) == (size, size > 0, [])
            assert client.key_info(*PLACE, key).info == info
            kept = {row_of(stack, node, INLINE_TABLE, inline_key(info.object_id)) for node in stack.nodes}
            assert kept == ({data.hex()} if size else {None})
    scans_are_right(stack)


def test_what_is_refused(client: Client, direct: Client) -> None:
    for opened in (client, direct):
        with pytest.raises(RequestFailed, match=r"INLINE_TOO_LARGE.* has 16385 bytes; at most 16384 are"):
            opened.put_key(*PLACE, "large", bytes(DEFAULT_INLINE_BYTES + 1))
        with pytest.raises(NotFound, match="BUCKET_NOT_FOUND"):
            opened.put_key("small", "none", "k", b"x")
        with pytest.raises(NotFound, match="BUCKET_NOT_FOUND"), opened.open("/small/none/k", "wb") as file:
            file.write(b"x")
        with pytest.raises(NotFound):
            read(opened, "large")
    client.create_bucket("small", "narrow", quota_in_bytes=10)
    with pytest.raises(RequestFailed, match="QUOTA_EXCEEDED"):
        client.put_key("small", "narrow", "k", bytes(11))
    client.put_key("small", "narrow", "k", bytes(10))
    assert client.bucket_info("small", "narrow").usage == {"used_bytes": 10, "used_namespace": 1}
    client.delete_key("small", "narrow", "k")
    assert client.bucket_info("small", "narrow").usage == {"used_bytes": 0, "used_namespace": 0}


def test_snapshots_keep_the_bytes_of_then(stack: TestStack, client: Client, direct: Client) -> None:
    then, now = fresh_bytes(5000), fresh_bytes(6000)
    for key in ("kept", "replaced", "renamed", "deleted"):
        write(client, f"snap/{key}", then)
    client.create_snapshot(*PLACE, "before")
    write(client, "snap/replaced", now)
    client.rename_key(*PLACE, "snap/renamed", "snap/moved")
    client.delete_key(*PLACE, "snap/deleted")
    stack.wait_converged()
    for opened in (client, direct):
        assert [read(opened, f"snap/{key}") for key in ("kept", "moved", "replaced")] == [then, then, now]
        for key in ("kept", "replaced", "renamed", "deleted"):
            assert read(opened, f".snapshot/before/snap/{key}") == then, key
    found = {(entry.kind, entry.key) for entry in client.snapshot_diff(*PLACE, "before")}
    assert found == {("DELETE", "snap/deleted"), ("RENAME", "snap/renamed"), ("MODIFY", "snap/replaced")}
    client.delete_snapshot(*PLACE, "before")


def test_replacing_and_deleting_leave_nothing(stack: TestStack, client: Client) -> None:
    objects = []
    for number in range(3):
        write(client, "versions", b"version %d" % number)
        objects.append(client.key_info(*PLACE, "versions").info.object_id)
    session = client.create_key(*PLACE, "versions", size=0)  # and now as CommitKey does it
    client.commit_key(*PLACE, "versions", session.session_id, size=0, blocks=[])
    write(client, "versions", b"the last")
    objects.append(client.key_info(*PLACE, "versions").info.object_id)
    client.delete_key(*PLACE, "versions")
    stack.wait_converged()
    for node in stack.nodes:
        assert [row_of(stack, node, INLINE_TABLE, inline_key(found)) for found in objects] == [None] * 4
        count = stack.get(node, "/v1/shards/0/count", cf=DELETED_TABLE).json()
        assert count["rows"] == 0, count
    scans_are_right(stack)


def test_commands_put_and_get(stack: TestStack, client: Client, tmp_path: Path) -> None:
    del client
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(fresh_bytes(3000))
    environment = {
        "STRATOLOG_CONFIG": str(stack.settings_file), "COLUMNS": "200", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin",
    }  # fmt: skip

    def key(*arguments: str) -> bytes:
        done = warm.raw("sh", "key", *arguments, env=environment, cwd=ROOT)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    key("put", "/small/bucket/by/command", str(source))
    key("get", "/small/bucket/by/command", str(target))
    assert target.read_bytes() == source.read_bytes()
    assert key("cat", "/small/bucket/by/command", "--offset", "10", "--length", "20") == source.read_bytes()[10:30]
    assert b"inline" in key("info", "/small/bucket/by/command")


def test_readers_of_a_key_that_is_replaced_get_one_version(stack: TestStack, client: Client, direct: Client) -> None:
    """Each version has a length and bytes of its own: a row and another version's bytes would not fit together."""

    def version(number: int) -> bytes:
        return (b"%d," % number) * (number % 97 + 1)

    whole = {version(number) for number in range(WRITES)}
    write(client, "busy", version(0))
    wrong: list[object] = []
    done = threading.Event()

    def reading(opened: Client, consistency: Consistency) -> None:
        while not done.is_set():
            try:
                found = read(opened, "busy", consistency)
            except StratologError as error:
                wrong.append(error)
                return
            if found not in whole:
                wrong.append(found)

    readers = [
        threading.Thread(target=reading, args=(opened, consistency))
        for opened in (client, direct)
        for consistency in CONSISTENCIES
    ]
    for reader in readers:
        reader.start()
    for number in range(WRITES):
        write(direct if number % 2 else client, "busy", version(number))
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert read(client, "busy") == version(WRITES - 1)
    scans_are_right(stack)


def test_every_acknowledged_key_is_there_after_kills(stack: TestStack, client: Client, direct: Client) -> None:
    written = {}
    for round_number in range(2):
        for number in range(50):
            data, key = fresh_bytes(100 * number), f"kills/{round_number}/{number}"
            write(direct if number % 2 else client, key, data)
            written[key] = data
            if number == 25:
                leader = stack.wait_leader(0)
                stack.kill_node(leader)
        stack.start_node(leader)
    stack.wait_led()
    for key, data in written.items():
        assert read(client, key) == data
    scans_are_right(stack)


def test_a_client_may_have_a_limit_of_its_own(stack: TestStack) -> None:
    """Without datanodes, what is not put into the tables cannot be written."""
    with stack.client(streams=StreamOptions(inline_bytes=100, commit_timeout_ms=3_000)) as opened:
        write(opened, "own-limit", bytes(100))
        assert read(opened, "own-limit") == bytes(100)
        with pytest.raises(StratologError):
            write(opened, "over", bytes(101))
        with pytest.raises(NotFound):
            read(opened, "over")
