"""The Object Manager's side of datanodes on real processes: pipelines made, retired and replaced, datanodes taken away, blocks deleted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire.peer import Peer
from producers.client import Client
from schemas.records.datanode import BlockId, ReadBlock
from schemas.records.messages import RetirePipeline, SetDatanodeState
from schemas.stream_errors import CHECKSUM_MISMATCH
from stratolog.cluster.connection import client_of
from stratolog.configuration.node_configs import datanode_config
from stratolog.local.ports import free_ports
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BLOCK_BYTES = 256 * 1024
TIMEOUT_MS = 5_000
DATANODES = 4


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[TestStack]:
    with TestStack(
        tmp_path, datanodes=DATANODES, datanode_timeout_ms=TIMEOUT_MS, block_bytes=BLOCK_BYTES, shards=2,
        racks=(("dn1", "/r1"), ("dn2", "/r1"), ("dn3", "/r2"), ("dn4", "/r2")),
    ) as running:  # fmt: skip
        yield running


def write(client: Client, key: str, size: int = 3 * BLOCK_BYTES - 7) -> bytes:
    data = os.urandom(size)
    with client.open(f"vol1/bucket1/{key}", "wb") as file:
        file.write(data)
    return data


def read(client: Client, key: str) -> bytes:
    with client.open(f"vol1/bucket1/{key}", "rb") as file:
        found: bytes = file.read()
    return found


def begin(client: Client) -> None:
    client.create_volume("vol1")
    client.create_bucket("vol1", "bucket1")


def members(row: dict[str, Any]) -> set[str]:
    return {one["datanode"] for one in row["members"]}


def usable(stack: TestStack) -> list[dict[str, Any]]:
    return [row for row in stack.pipelines() if row["usable"]]


def block_files(stack: TestStack, *names: str) -> list[Path]:
    folders = [stack.settings.data_dir / "datanodes" / name for name in names or [f"dn{n}" for n in range(1, 5)]]
    return [path for folder in folders for path in folder.rglob("*.block")]


def holding(stack: TestStack, container: int) -> list[str]:
    found = stack.get(next(iter(stack.nodes)), f"/v1/containers/{container}")
    replicas = found.json().get("replicas", ()) if found.status_code == 200 else ()
    return sorted(one["datanode"] for one in replicas if one["closed"] and one["healthy"])


def wait_copied(stack: TestStack, container: int, replicas: int) -> None:
    stack.wait(f"container {container} on {replicas}", lambda: len(holding(stack, container)) == replicas)


def test_pipelines_appear_and_a_killed_datanode_is_replaced(stack: TestStack) -> None:
    stack.wait("pipelines that take blocks", lambda: len(usable(stack)) >= 2)
    for row in stack.pipelines():
        assert len(members(row)) == 3
        assert len({one["rack"] for one in row["members"]}) == 2
    with client_of(stack.settings, operator=True) as client:
        begin(client)
        data = write(client, "k1")
        info = client.key_info("vol1", "bucket1", "k1").info
        assert all(block.bcs_id > 0 for block in info.blocks)
        assert read(client, "k1") == data
        victim = min(members(next(row for row in stack.pipelines() if row["pipeline"] == info.blocks[0].pipeline)))
        lost = [row["partition"] for row in stack.pipelines() if victim in members(row)]
        held = {block.container_id for block in info.blocks if (block.container_id & 255) in lost}
        stack.kill_datanode(victim)

        def replaced() -> bool:
            rows = {row["partition"]: row for row in stack.pipelines()}
            closed = all(rows[number]["state"] == "CLOSED" for number in lost)
            return closed and any(victim not in members(row) for row in usable(stack))

        stack.wait("its pipelines closed, and another that takes blocks", replaced)
        stack.wait_pipeline()
        again = write(client, "k2")
        assert read(client, "k2") == again
        for number in held:
            wait_copied(stack, number, 3)
            assert victim not in holding(stack, number)
        assert read(client, "k1") == data
        assert stack.datanode(victim)["health"] == "DEAD"
        block = next(block for block in info.blocks if block.container_id in held)
        check_damaged_copy(stack, victim, BlockId(container_id=block.container_id, local_id=block.local_id))
        check_missed_deletion(stack, client, victim, block.container_id)


def holders(stack: TestStack, container: int) -> tuple[str, list[str]]:
    """Return the holder of a copy, and the living members that have the container."""
    row = pipeline_of(stack, container)
    found = holding(stack, container)
    (copier,) = set(found) - members(row)
    return copier, sorted(set(found) & members(row))


def flip(stack: TestStack, name: str, block: BlockId) -> None:
    """Turn a byte of a block over on a datanode's disk."""
    folder = stack.settings.data_dir / "datanodes" / name / "containers" / str(block.container_id)
    with (folder / f"{block.local_id}.block").open("r+b") as file:
        file.seek(99)
        byte = file.read(1)[0]
        file.seek(99)
        file.write(bytes([byte ^ 0xFF]))


def touch(stack: TestStack, name: str, block: BlockId) -> str:
    """Read a block's first bytes at one datanode; return the code of the refusal, empty if they came."""
    request = ReadBlock(
        partition=block.container_id & 255, container_id=block.container_id, local_id=block.local_id, offset=0, length=1,
        bcs_id=0, committed_only=True,
    )  # fmt: skip
    address = stack.datanode(name)["address"]
    try:
        with Peer(address, own="test", cluster=stack.settings.cluster, timeout_s=10) as peer:
            return "" if list(peer.read_block(request)) else "EMPTY"
    except BlockError as error:
        return error.code


def check_damaged_copy(stack: TestStack, victim: str, block: BlockId) -> None:
    """A cell that is wrong on every living datanode: the copy counts for nothing. One that is right again mends it."""
    copier, others = holders(stack, block.container_id)
    assert victim not in (copier, *others)
    for name in (copier, *others):
        flip(stack, name, block)
    assert touch(stack, copier, block) == CHECKSUM_MISMATCH
    stack.wait("the copy does not count", lambda: copier not in holding(stack, block.container_id))
    assert f"the copy of container {block.container_id} is damaged" in stack.datanode(copier)["faults"]
    flip(stack, others[0], block)
    stack.wait("all are right again", lambda: holding(stack, block.container_id) == sorted([copier, *others]))
    stack.wait("it can be read", lambda: touch(stack, copier, block) == "")


def check_missed_deletion(stack: TestStack, client: Client, victim: str, container: int) -> None:
    """The holder of a copy dies, the container's blocks are deleted and forgotten; when it is back it deletes them, too."""
    stack.start_datanode(victim)
    stack.wait("it is back", lambda: stack.datanode(victim)["health"] == "HEALTHY")
    copier = next(name for name in holding(stack, container) if name not in members(pipeline_of(stack, container)))
    folder = stack.settings.data_dir / "datanodes" / copier / "containers" / str(container)
    stack.kill_datanode(copier)
    stack.wait("it is missed", lambda: stack.datanode(copier)["health"] == "DEAD")
    client.delete_key("vol1", "bucket1", "k1")
    stack.wait("nobody else has any of it", lambda: holding(stack, container) == [], 90)
    assert list(folder.glob("*.block"))
    stack.start_datanode(copier)
    stack.wait("its copy is gone", lambda: not list(folder.glob("*.block")))


def pipeline_of(stack: TestStack, container: int) -> dict[str, Any]:
    return next(row for row in stack.pipelines() if row["partition"] == container & 255)


def test_a_datanode_is_decommissioned_while_the_leader_dies(stack: TestStack) -> None:
    stack.wait("pipelines that take blocks", lambda: len(usable(stack)) >= 2)
    with client_of(stack.settings, operator=True) as client:
        begin(client)
        data = write(client, "k1")
        containers = {block.container_id for block in client.key_info("vol1", "bucket1", "k1").info.blocks}
        client.call(SetDatanodeState(datanode="dn1", state="DECOMMISSIONING"))
        stack.kill_node(stack.wait_leader(0))
        stack.wait("dn1 decommissioned", lambda: stack.datanode("dn1").get("state") == "DECOMMISSIONED", 120)
        assert all("dn1" not in members(row) for row in stack.pipelines() if row["state"] == "OPEN")
        for number in containers:
            others = set(holding(stack, number)) - {"dn1"}
            assert len(others) == 3 or number not in {
                int(path.parent.name) for path in block_files(stack, "dn1")
            }  # those that dn1 never held
        stack.stop_datanode("dn1")
        assert read(client, "k1") == data
        stack.wait_pipeline()
        assert read_back(client)


def read_back(client: Client) -> bool:
    data = write(client, "k2")
    return read(client, "k2") == data


def test_blocks_are_deleted_down_to_their_files_whoever_leads(stack: TestStack) -> None:
    stack.wait("pipelines that take blocks", lambda: len(usable(stack)) >= 2)
    with client_of(stack.settings, operator=True) as client:
        begin(client)
        for number in range(6):
            write(client, f"k{number}")
        assert len(block_files(stack)) == 6 * 3 * 3
        kept = read(client, "k5")
        for number in range(3):
            client.delete_key("vol1", "bucket1", f"k{number}")
        stack.kill_node(stack.wait_leader(0))
        write(client, "k3")  # replaced: the old blocks go, too
        client.delete_key("vol1", "bucket1", "k4")
        stack.wait("only the blocks of two keys are left", lambda: len(block_files(stack)) == 2 * 3 * 3, 90)
        assert read(client, "k5") == kept

        def purged() -> bool:
            rows = [
                stack.get(name, f"/v1/shards/{shard}/rows", cf="deletedTable", bucket=bucket).json()["rows"]
                for name in stack.nodes
                for shard in range(2)
                for bucket in range(256)
            ]
            return not any(rows)

        stack.wait("deletedTable is empty on every node", purged)
        stack.wait_converged()


def test_maintenance_and_an_operators_close(stack: TestStack) -> None:
    stack.wait("pipelines that take blocks", lambda: len(usable(stack)) >= 2)
    with client_of(stack.settings, operator=True) as client:
        begin(client)
        data = write(client, "k1")
        before = {(row["partition"], row["generation"]) for row in usable(stack)}
        client.call(RetirePipeline(partition=usable(stack)[0]["partition"], reason="a test"))
        stack.wait(
            "another generation, or another, in its place",
            lambda: {(row["partition"], row["generation"]) for row in usable(stack)} - before,
        )
        assert read(client, "k1") == data
        assert read_back(client)
        client.call(SetDatanodeState(datanode="dn2", state="ENTERING_MAINTENANCE"))
        stack.wait("dn2 in maintenance", lambda: stack.datanode("dn2").get("state") == "IN_MAINTENANCE")
        stack.stop_datanode("dn2")
        stack.wait("it is missed", lambda: stack.datanode("dn2").get("health") == "DEAD")
        assert read(client, "k1") == data
        stack.wait_pipeline()
        assert read_back(client)
        stack.start_datanode("dn2")
        stack.wait("it is back", lambda: stack.datanode("dn2").get("health") == "HEALTHY")
        client.call(SetDatanodeState(datanode="dn2", state="IN_SERVICE"))
        # The others are members of as many pipelines as they may be: one has to go before dn2 gets its turn.
        client.call(RetirePipeline(partition=usable(stack)[0]["partition"], reason="a test"))
        stack.wait("it takes blocks again", lambda: any("dn2" in members(row) for row in usable(stack)))
        assert read(client, "k1") == data


def test_datanodes_that_start_at_each_others_ports_are_found(stack: TestStack) -> None:
    """And at new ones: nobody is asked where it was when its pipeline was opened, least of all whoever is there now."""
    stack.wait("pipelines that take blocks", lambda: len(usable(stack)) >= 2)
    with client_of(stack.settings) as client:
        begin(client)
        written = {f"k{number}": write(client, f"k{number}") for number in range(4)}
    before = {one["datanode"]: one["address"] for row in stack.pipelines() for one in row["members"]}
    for name in list(stack.datanodes):
        stack.stop_datanode(name)
    datanodes = stack.settings.datanodes
    ports = [datanodes[1].port, datanodes[2].port, *free_ports(len(datanodes) - 2)]
    moved = tuple(replace(one, port=port) for one, port in zip(datanodes, ports, strict=True))
    stack.settings = replace(stack.settings, datanodes=moved)
    stack.settings_file.write_text(stack.settings.to_toml())
    for one in moved:
        stack.start_datanode(one.name)
    found = {one.name: one.address for one in moved}

    def all_named() -> bool:
        rows = [row for name in stack.nodes for row in stack.pipelines(name)]
        return all(found[one["datanode"]] == one["address"] for row in rows for one in row["members"])

    stack.wait("every node names the new addresses", all_named)
    assert not set(before.items()) & set(found.items())
    stack.wait("pipelines that take blocks", lambda: len(usable(stack)) >= 2)
    with client_of(stack.settings) as client:
        for key, data in written.items():
            assert read(client, key) == data
        written["after"] = write(client, "after")
        assert read(client, "after") == written["after"]
    # A member fetches what it lacks from the others, where they are now.
    stack.stop_datanode("dn1")
    files = {path: path.read_bytes() for path in datanode_config(stack.settings, "dn1").data_dir.rglob("*.block")}
    assert files
    for path in files:
        path.unlink()
    stack.start_datanode("dn1")
    stack.wait("it has its blocks again", lambda: all(path.exists() for path in files))
    stack.wait("and they are right", lambda: {path: path.read_bytes() for path in files} == files)
