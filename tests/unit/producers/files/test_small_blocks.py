"""Keys whose blocks are small: one exchange for many of them, and streams where that does not go well."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from datanode_processors.wire.core.limits import WireLimits
from producers.blocks.core.small_batches import CLOSED_S
from producers.errors import RetryableError
from schemas.conversation import conversation
from tests.support.sdk.datanodes import KIB, World

Make = Callable[..., World]


@pytest.fixture
def make(tmp_path):
    made: list[World] = []

    def make_world(**options: Any) -> World:
        made.append(World(tmp_path / f"world{len(made)}", small=True, **options))
        return made[-1]

    yield make_world
    for world in made:
        world.close()


def counts(world: World) -> tuple[int, int]:
    small = world.client.streams.small_blocks
    return small.written, small.batches


@pytest.mark.parametrize("size", [1, 1000, 64 * KIB, 64 * KIB + 1, 500 * KIB, 512 * KIB])
def test_a_small_block_is_one_exchange(make: Make, size: int) -> None:
    world = make()
    data = os.urandom(size)
    statistics = world.put(data)
    assert counts(world) == (1, 1)
    assert (statistics.blocks, statistics.resumed_streams, statistics.watches_by_majority) == (1, 0, 0)
    assert world.get() == data
    world.check_replicas(data)
    assert [block.bcs_id for block in world.key().blocks] == [1]


def test_what_is_larger_is_a_stream_and_its_last_block_may_be_small(make: Make) -> None:
    world = make(small_block_bytes=100 * KIB, block_bytes=300 * KIB)
    data = os.urandom(650 * KIB)
    assert world.put(data).blocks == 3
    assert counts(world) == (1, 1)
    assert world.get() == data
    world.check_replicas(data)


def test_bytes_that_were_flushed_are_on_the_datanodes_and_go_on_as_a_stream(make: Make) -> None:
    world = make()
    with world.client.open("/v/b/k", "wb") as file:
        file.write(b"first ")
        file.flush()
        block = world.cluster.allocated[0]
        assert [node.blocks.bytes_of(block) for node in world.members()] == [b"first "] * 3
        file.write(b"second")
        file.hsync()
        assert [one.length for one in file.locations()] == [12]
    assert counts(world) == (0, 0)
    assert world.get() == b"first second"


def test_many_writers_share_exchanges(make: Make) -> None:
    world = make()
    log = world.logs[1]
    log.refuse = lambda _put: time.sleep(0.01)
    data = {f"k{number}": os.urandom(20 * KIB + number) for number in range(40)}

    def write(name: str) -> None:
        world.put(data[name], f"/v/b/{name}")

    threads = [threading.Thread(target=write, args=(name,)) for name in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written, batches = counts(world)
    assert written == 40
    assert batches < 40
    for name, expected in data.items():
        assert world.get(f"/v/b/{name}") == expected
        world.check_replicas(expected, name)


def test_a_dead_member_makes_it_a_stream_and_the_way_is_closed_for_a_while(make: Make) -> None:
    world = make()
    world.put(b"before")
    world.nodes["dn13"].stop()
    data = os.urandom(200 * KIB)
    assert world.put(data, "/v/b/two").watches_by_majority == 1
    assert world.get("/v/b/two") == data
    tried = counts(world)[1]
    world.put(data, "/v/b/three")
    assert counts(world) == (1, tried)
    assert CLOSED_S >= 1


def test_a_watch_that_not_all_satisfy_is_the_clients_own_and_falls_to_a_majority(make: Make) -> None:
    world = make()
    world.nodes["dn12"].pipelines.deaf = True
    data = os.urandom(10 * KIB)
    assert world.put(data).watches_by_majority == 1
    assert counts(world) == (0, 1)
    assert world.get() == data


def test_a_datanode_of_an_older_version_gets_a_stream(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    own_hello = conversation.own_hello
    monkeypatch.setattr(
        "datanode_processors.wire.connection.own_hello",
        lambda name, cluster: replace(own_hello(name, cluster), max_version=1),
    )
    world = make()
    data = os.urandom(10 * KIB)
    world.put(data)
    assert counts(world)[0] == 0
    assert world.get() == data


def test_a_block_that_is_refused_goes_elsewhere(make: Make) -> None:
    world = make(pipelines=2)
    world.logs[1].closed = True
    data = os.urandom(30 * KIB)
    world.put(data)
    assert [block.pipeline for block in world.key().blocks] == ["pipeline-2"]
    assert world.get() == data


def test_a_datanode_that_came_back_is_written_to_again(make: Make) -> None:
    world = make(limits=WireLimits(stop_grace_s=0.0, linger_s=0.2))
    world.put(b"one", "/v/b/one")
    before = counts(world)
    for connection in world.client.streams.datanodes.kept.connections():
        connection.interrupt()
    world.put(b"two", "/v/b/two")
    assert counts(world)[0] == before[0] + 1
    assert world.get("/v/b/two") == b"two"


def test_a_writer_that_waits_can_be_interrupted(make: Make) -> None:
    world = make(commit_timeout_ms=60_000)
    begun, going = threading.Event(), threading.Event()

    def stall(_put: Any) -> None:
        begun.set()
        going.wait(20)

    world.logs[1].refuse = stall
    file = world.client.open("/v/b/k", "wb")
    file.write(b"data")
    raised: list[BaseException] = []

    def close() -> None:
        try:
            file.close()
        except RetryableError as error:
            raised.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    assert begun.wait(10)
    file.interrupt("no longer wanted")
    thread.join(5)
    alive = thread.is_alive()
    going.set()
    thread.join()
    assert not alive
    assert "no longer wanted" in str(raised[0])
    assert ("v", "b", "k") not in world.cluster.keys
