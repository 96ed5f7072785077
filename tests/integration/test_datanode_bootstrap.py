"""A datanode whose pipeline's database is gone, or lies before its log's start, installs a member's: real processes, real Kafka."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import httpx
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from schemas import stream_errors as codes
from schemas.records.datanode import BlockId, DeleteBlocks
from schemas.records.packets import CELL_BYTES
from schemas.topics import DN_LOG
from tests.support.datanodes.datanodes import Block, Datanodes
from tests.support.datanodes.refusals import refused
from tests.support.faults.datanode_faults import Ledger
from tests.support.local.secret import SECRET
from tests.support.local.stack import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.chaos]
VICTIM = "dn3"
PARTITION = 0

numbers = count(1)


@pytest.fixture(scope="module")
def nodes(lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datanodes]:
    folder = tmp_path_factory.mktemp("datanodes")
    with Datanodes(folder, lease_kafka(), count=3, barrier_interval_ms=200) as started:
        started.open_pipeline(PARTITION)
        yield started


class Writing:
    """Blocks written all the time while the context lasts; those that were watched by a majority are in the ledger."""

    def __init__(self, nodes: Datanodes, ledger: Ledger) -> None:
        self._nodes, self._ledger = nodes, ledger
        self._stop = Event()
        self._thread = Thread(target=self._run)
        self.written = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_more(self, more: int) -> None:
        wanted = self.written + more
        self._nodes.wait(f"{more} more blocks are written", lambda: self.written >= wanted)

    def _run(self) -> None:
        nodes = self._nodes
        while not self._stop.is_set():
            data = os.urandom(CELL_BYTES + 100)
            up = [name for name in nodes.names if name != VICTIM]
            block = nodes.block(PARTITION, next(numbers))
            nodes.send(block, data, primary=up[0], routes=nodes.routes(up[0], PARTITION, among=up))
            nodes.commit(block, data)
            assert all(one.satisfied for one in nodes.watch(block, len(data), names=up))
            self._ledger.add(block, data)
            self.written += 1


def database(nodes: Datanodes) -> Path:
    return nodes.data_dir(VICTIM) / "pipelines" / str(PARTITION)


def trim(nodes: Datanodes) -> int:
    """Delete all records before the leader's position, as an operator of Kafka may; return the log's first offset."""
    first = int(nodes.pipeline(nodes.wait_leader(PARTITION), PARTITION)["applied_offset"])
    place = TopicPartition(DN_LOG, PARTITION, first)
    deleted = nodes.kafka.admin.delete_records([place])[place].result()
    assert deleted.low_watermark == first
    return first


def trim_by_rule(nodes: Datanodes) -> int:
    """Have the pipeline's leader log a base and trim to it, with the victim left behind; return the first offset."""

    def ask(do: str) -> dict[str, Any]:
        url = f"http://{nodes.http_address(nodes.wait_leader(PARTITION))}/v1/shards/{PARTITION}/trim"
        wish = {"do": do, "leave_behind": VICTIM, "without_audit": "true"}
        answer = httpx.post(url, params=wish, auth=SECRET.sign, trust_env=False, timeout=30)
        return dict(answer.json())

    nodes.wait("a base is logged", lambda: ask("base").get("asked"))
    done = nodes.wait("the log is trimmed", lambda: found if (found := ask("trim")).get("records") else None)
    place = TopicPartition(DN_LOG, PARTITION)
    assert nodes.kafka.admin.list_offsets({place: OffsetSpec.earliest()})[place].result().offset == done["offset"]
    return int(done["offset"])


def installed(nodes: Datanodes) -> dict[str, Any]:
    """Wait until the victim follows the pipeline again, and return what it has installed."""
    found = nodes.wait("the victim follows", lambda: nodes.pipeline(VICTIM, PARTITION))
    assert found["installed"], found
    return dict(found["installed"])


def scanned(nodes: Datanodes) -> set[tuple[int, str]]:
    nodes.wait_converged(PARTITION)
    found = [nodes.get(name, f"/v1/shards/{PARTITION}/digest", scrub="true") for name in nodes.names]
    for one in found:
        assert one["digest"] == one["incremental"]["digest"]
    return {(one["index"], one["digest"]) for one in found}


def test_a_database_that_is_deleted_under_load_comes_back(nodes: Datanodes, ledger: Ledger) -> None:
    """The other pipelines of the datanode are followed meanwhile; its blocks are read afterwards."""
    nodes.open_pipeline(1)
    with Writing(nodes, ledger) as writing:
        writing.wait_more(5)
        nodes.kill(VICTIM)
        shutil.rmtree(database(nodes))
        writing.wait_more(5)
        first = trim(nodes)
        nodes.start(VICTIM)
        nodes.wait("its other pipeline is followed", lambda: nodes.pipeline(VICTIM, 1))
        writing.wait_more(3)
        found = installed(nodes)
        assert found["peer"] in nodes.names
        assert found["offset"] >= first
        assert found["fetched_bytes"] > 0
        writing.wait_more(3)
    assert len(scanned(nodes)) == 1
    assert not list(database(nodes).parent.glob("*.candidate"))


@pytest.mark.slow
def test_a_member_that_is_left_behind_by_the_rule(nodes: Datanodes, ledger: Ledger) -> None:
    """The leader logs a base under load and trims to it; the member's position lies before the log's start then."""
    with Writing(nodes, ledger) as writing:
        writing.wait_more(3)
        nodes.stop(VICTIM)
        writing.wait_more(3)
        first = trim_by_rule(nodes)
        nodes.start(VICTIM)
        assert installed(nodes)["offset"] >= first
        writing.wait_more(3)
    assert len(scanned(nodes)) == 1


@pytest.mark.slow
def test_blocks_come_back_with_the_rows(nodes: Datanodes, ledger: Ledger) -> None:
    """The datanode's whole disk is gone. The Object Manager's word opens the pipeline, and members give rows and bytes."""
    with Writing(nodes, ledger) as writing:
        writing.wait_more(3)
    nodes.kill(VICTIM)
    shutil.rmtree(nodes.data_dir(VICTIM))
    trim(nodes)
    nodes.start(VICTIM)
    assert nodes.status(VICTIM) is not None
    for partition in list(nodes.pipelines):
        nodes.open_pipeline(partition, wait=False)
    installed(nodes)
    status = nodes.status(VICTIM) or {}
    assert (status["installing"], status["pipelines"][0]["flagged"]) == ([], False)
    assert len(scanned(nodes)) == 1


@pytest.mark.slow
def test_it_waits_for_a_member_that_serves(nodes: Datanodes, ledger: Ledger) -> None:
    """Nobody is there at first: the datanode runs, says what it waits for, and refuses what concerns the pipeline."""
    nodes.kill(VICTIM)
    shutil.rmtree(database(nodes))
    trim(nodes)
    others = [name for name in nodes.names if name != VICTIM]
    for name in others:
        nodes.kill(name)
    nodes.start(VICTIM)
    waiting = nodes.wait("it tells", lambda: (nodes.status(VICTIM) or {}).get("installing"))
    assert (waiting[0]["shard"], waiting[0]["own_offset"]) == (PARTITION, -1)
    nodes.wait("its health tells", lambda: "is being installed" in str(nodes.get(VICTIM, "/health")))
    answer = httpx.post(
        f"http://{nodes.http_address(VICTIM)}/v1/shards/{PARTITION}/durable-position", auth=SECRET.sign, trust_env=False
    )
    assert answer.status_code == 400
    block = Block(PARTITION, 256 + PARTITION, 1)
    assert refused(lambda: nodes.read(VICTIM, block, 1)).code == codes.NOT_COMMITTED
    deletion = DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=block.container_id, local_id=1)])
    assert refused(lambda: nodes.ask(VICTIM, deletion)).code == codes.NOT_COMMITTED
    for name in others:
        nodes.start(name)
    installed(nodes)
    nodes.wait_leader(PARTITION)
    assert len(scanned(nodes)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.05, 0.2, 0.5, 1.0, 1.5, 2.0])
def test_killed_while_it_installs(nodes: Datanodes, ledger: Ledger, after_s: float) -> None:
    with Writing(nodes, ledger) as writing:
        writing.wait_more(2)
        nodes.kill(VICTIM)
        shutil.rmtree(database(nodes), ignore_errors=True)
        trim(nodes)
        nodes.start(VICTIM, wait=False)
        nodes.wait("a lock is taken", lambda: database(nodes).with_name(f"{PARTITION}.lock").exists())
        Event().wait(after_s)
        nodes.kill(VICTIM)
        nodes.start(VICTIM)
        installed(nodes)
        writing.wait_more(2)
    assert len(scanned(nodes)) == 1
