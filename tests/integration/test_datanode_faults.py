"""Datanodes that die, hang or are slow while a client streams; connections that damage bytes; clients that vanish.

Real processes, sockets, files and a real broker. After every case all that was acknowledged is compared on every replica
(:class:`tests.support.faults.datanode_faults.Ledger`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire.wire import WireClosed
from producers.files.key_files import KeyOutput
from schemas import stream_errors as codes
from schemas.records.packets import CELL_BYTES, Kind
from tests.support.datanodes.datanodes import CLUSTER, Datanodes
from tests.support.datanodes.streams import Client, Proxy
from tests.support.faults.datanode_faults import (
    Ledger,
    client_bytes,
    move_leadership,
    paused,
    resident_bytes,
    sent_since,
    streams_of,
)
from tests.support.local.stack import LocalKafka
from tests.support.sdk.key_world import KIB, MIB, KeyWorld
from tests.support.sdk.written import fresh_bytes
from transport.datanodes.connection import SILENCE_MS

pytestmark = pytest.mark.integration

PARTITION = 1
HERE, THERE = "/here", "/there"
DATA_BYTES = 6 * MIB + 11
HALF = 2 * MIB + MIB // 2
names = count(1)
numbers = count(1)


@pytest.fixture(scope="module")
def nodes(lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datanodes]:
    """Four datanodes; pipeline 1 is dn1 to dn3, pipeline 2 dn4, dn3, dn2."""
    with Datanodes(tmp_path_factory.mktemp("datanodes"), lease_kafka(), count=4) as started:
        started.open_pipeline(1, ["dn1", "dn2", "dn3"])
        started.open_pipeline(2, ["dn4", "dn3", "dn2"])
        yield started


@pytest.fixture
def make_world(nodes: Datanodes) -> Iterator[Callable[..., KeyWorld]]:
    made: list[KeyWorld] = []

    def make(primary: str = "", **options: Any) -> KeyWorld:
        """A client to which ``primary`` is the nearest, and whose first block goes to pipeline 1."""
        racks = {name: HERE if name == primary else THERE for name in nodes.names} if primary else {}
        made.append(KeyWorld(nodes, racks=racks, rack=HERE, **options))
        made[-1].only(PARTITION)
        return made[-1]

    yield make
    for world in made:
        world.close()


def write(file: KeyOutput, data: bytes) -> None:
    for at in range(0, len(data), 100 * KIB):
        file.write(data[at : at + 100 * KIB])


def others(nodes: Datanodes, *excluded: str) -> list[str]:
    return [name for name in nodes.pipelines[PARTITION] if name not in excluded]


@pytest.mark.slow  # one in each way: test_datanode_client.py
@pytest.mark.parametrize("way", [1, 2, 3])
@pytest.mark.parametrize("who", ["follower", "primary", "leader"])
def test_one_dies_in_mid_stream(
    nodes: Datanodes, ledger: Ledger, make_world: Callable[..., KeyWorld], who: str, way: int, fault_round: int
) -> None:
    leader = nodes.wait_leader(PARTITION)
    primary, follower = others(nodes, leader)
    world = make_world(primary, commit_way=way)
    key, data = f"{who}-{way}-{fault_round}", fresh_bytes(DATA_BYTES)
    with world.client.open(f"/v/b/{key}", "wb") as file:
        write(file, data[:HALF])
        file.flush()
        victim = {"follower": follower, "primary": primary, "leader": leader}[who]
        before = client_bytes(nodes)
        if who == "primary":
            nodes.kill(victim)
            write(file, data[HALF:])
        else:
            write(file, data[HALF : HALF + MIB])  # some of it is on its way
            nodes.kill(victim)
            write(file, data[HALF + MIB :])
    found = file.statistics()
    assert (found.blocks, found.failed_blocks) == (1, 0)
    assert found.resumed_streams >= 1
    assert found.watches_by_majority >= 1
    if who == "primary":
        # Resumed from what was acknowledged: nothing below is sent again.
        assert sent_since(nodes, before) < (len(data) - HALF) * 1.2
    ledger.add_key(world, key, data)


def test_leadership_moves_and_nothing_is_sent_again(
    nodes: Datanodes, ledger: Ledger, make_world: Callable[..., KeyWorld], fault_round: int
) -> None:
    world = make_world("dn1")
    key, data = f"moves-{fault_round}", fresh_bytes(DATA_BYTES)
    leader = nodes.wait_leader(PARTITION)
    before = client_bytes(nodes)
    with world.client.open(f"/v/b/{key}", "wb") as file:
        write(file, data[:HALF])
        move_leadership(nodes, PARTITION, heir := others(nodes, leader)[0])
        write(file, data[HALF:])
    assert nodes.wait_leader(PARTITION) == heir
    found = file.statistics()
    assert (found.blocks, found.failed_blocks, found.resumed_streams) == (1, 0, 0)
    assert len(data) < sent_since(nodes, before) < len(data) * 1.05
    ledger.add_key(world, key, data)


def test_two_die_and_the_rest_goes_through_another_pipeline(
    nodes: Datanodes, ledger: Ledger, make_world: Callable[..., KeyWorld], fault_round: int
) -> None:
    world = make_world("dn1")
    key, data = f"two-{fault_round}", fresh_bytes(DATA_BYTES)
    with world.client.open(f"/v/b/{key}", "wb") as file:
        write(file, data[: HALF + 100])
        file.hsync()
        write(file, data[HALF + 100 : HALF + MIB])
        nodes.kill("dn1")
        nodes.kill("dn2")
        write(file, data[HALF + MIB :])
    assert file.statistics().failed_blocks >= 1
    first, *rest = world.blocks(key)
    assert first.pipeline == "pipeline-1"
    assert HALF + 100 <= first.length < len(data)
    assert {block.pipeline for block in rest} == {"pipeline-2"}
    ledger.add_key(world, key, data)


def test_a_stream_that_fails_commits_what_is_acknowledged_by_majority(
    nodes: Datanodes, ledger: Ledger, make_world: Callable[..., KeyWorld], fault_round: int
) -> None:
    """dn2 takes no stream beyond its packet n, though it follows the log, and dn3 is dead: no stream of a majority is left."""
    proxy = Proxy(nodes.address("dn2"), cut_at=MIB + 5 * CELL_BYTES)
    try:
        world = make_world("dn1", addresses={"dn2": proxy.address}, flush_bytes=64 * MIB, client_buffer_bytes=64 * MIB)
        key, data = f"fails-{fault_round}", fresh_bytes(DATA_BYTES)
        with world.client.open(f"/v/b/{key}", "wb") as file:
            write(file, data[:MIB])
            file.flush()
            nodes.kill("dn3")
            write(file, data[MIB:])
        assert file.statistics().failed_blocks >= 1
        first = world.blocks(key)[0]
        assert first.pipeline == "pipeline-1"
        assert MIB <= first.length < len(data)
        assert first.length % CELL_BYTES == 0, "the end of a packet"
        assert file.statistics().watches_by_majority >= 1
        ledger.add_key(world, key, data)
    finally:
        proxy.close()


def test_a_member_that_hangs_is_watched_by_majority(
    nodes: Datanodes, ledger: Ledger, make_world: Callable[..., KeyWorld], fault_round: int
) -> None:
    world = make_world("dn1", flush_bytes=64 * MIB, client_buffer_bytes=64 * MIB)
    follower = others(nodes, nodes.wait_leader(PARTITION))[-1]
    key, data = f"hangs-{fault_round}", fresh_bytes(DATA_BYTES)
    with world.client.open(f"/v/b/{key}", "wb") as file:
        write(file, data[:HALF])
        file.flush()  # all have it
        with paused(nodes, follower):
            began = time.monotonic()
            file.hsync()
            assert time.monotonic() - began < SILENCE_MS / 1000, "more than the watch's time-out was waited for"
            assert file.statistics().watches_by_majority == 1
        write(file, data[HALF:])
    ledger.add_key(world, key, data)


@pytest.mark.parametrize("way", [*(pytest.param(way, marks=pytest.mark.slow) for way in (1, 2)), 3])
def test_a_leader_that_hangs_is_replaced(
    nodes: Datanodes, ledger: Ledger, make_world: Callable[..., KeyWorld], way: int, fault_round: int
) -> None:
    """It hangs until the key is closed: with all bytes streamed, only the commit meets it."""
    leader = nodes.wait_leader(PARTITION)
    world = make_world(leader, commit_way=way, flush_bytes=64 * MIB, client_buffer_bytes=64 * MIB)
    key, data = f"hung-leader-{way}-{fault_round}", fresh_bytes(DATA_BYTES)
    file = world.client.open(f"/v/b/{key}", "wb")
    write(file, data)
    file.flush()
    with paused(nodes, leader):
        began = time.monotonic()
        file.close()
        seconds = time.monotonic() - began
    assert seconds < SILENCE_MS / 1000, "nobody else was asked meanwhile"
    assert file.statistics().watches_by_majority >= 1
    ledger.add_key(world, key, data)


@pytest.mark.parametrize("where", ["client to primary", "between datanodes"])
def test_damaged_packets_reach_no_disk(
    nodes: Datanodes, ledger: Ledger, make_world: Callable[..., KeyWorld], where: str, fault_round: int
) -> None:
    """A link that turns a bit over on each connection: the datanode behind it is left out, and fetches by itself."""
    behind = "dn1" if where == "client to primary" else "dn2"
    proxy = Proxy(nodes.address(behind), flip_at=700_000)
    try:
        world = make_world("dn1", addresses={behind: proxy.address})
        key, data = f"damaged-{behind}-{fault_round}", fresh_bytes(DATA_BYTES)
        failed = streams_of(nodes, behind)["failed"]
        with world.client.open(f"/v/b/{key}", "wb") as file:
            write(file, data)
        found = file.statistics()
        assert (found.blocks, found.failed_blocks) == (1, 0)
        assert found.resumed_streams >= 1
        assert streams_of(nodes, behind)["failed"] > failed
        ledger.add_key(world, key, data)
    finally:
        proxy.close()


def failovers_of_reading(world: KeyWorld, written: dict[str, bytes]) -> int:
    """Read keys and compare them; return how often another replica had to be asked."""
    failovers = 0
    for key, data in written.items():
        with world.client.open(f"/v/b/{key}", "rb") as file:
            assert file.read() == data
            failovers += file.failovers
    return failovers


@pytest.mark.parametrize(
    ("who", "how"),
    [
        ("root", "killed"), ("follower", "killed"), ("leader", "killed"), ("follower", "hangs"),
        pytest.param("root", "hangs", marks=pytest.mark.slow), pytest.param("leader", "hangs", marks=pytest.mark.slow),
        ("follower", "a damaged link"),
    ],
)  # fmt: skip
def test_small_blocks_of_many_keys_while_a_member_fails(
    nodes: Datanodes, ledger: Ledger, make_world: Callable[..., KeyWorld], who: str, how: str, fault_round: int
) -> None:
    """Writers go on through it, every key that was closed is on every replica, and exchanges are tried again later.

    Keys are read meanwhile, and those who read do not wait for a member that hangs again and again.
    """
    leader = nodes.wait_leader(PARTITION)
    root, follower = others(nodes, leader)
    victim = {"root": root, "follower": follower, "leader": leader}[who]
    proxy = Proxy(nodes.address(victim), flip_at=300_000) if how == "a damaged link" else None
    world = make_world(root, addresses={victim: proxy.address} if proxy else {})
    written: dict[str, bytes] = {}
    failing, stop = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def keep_writing(number: int) -> None:
        try:
            turn = 0
            while not stop.is_set():
                key, data = f"small-{who}-{how}-{fault_round}-{number}-{turn}", fresh_bytes(20 * KIB + 7 * number)
                with world.client.open(f"/v/b/{key}", "wb") as file:
                    file.write(data)
                written[key] = data
                turn += 1
                if len(written) > 40:
                    failing.set()
        except BaseException as error:
            errors.append(error)
            failing.set()

    threads = [threading.Thread(target=keep_writing, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        assert failing.wait(60)
        assert not errors, errors
        assert how != "killed" or world.client.streams.small_blocks.written > 0
        before = len(written)
        if how == "killed":
            nodes.kill(victim)
        elif how == "hangs":
            with paused(nodes, victim):
                nodes.wait("writers go on", lambda: len(written) > before + 40 or errors, timeout_s=60)
                assert failovers_of_reading(world, dict(list(written.items())[:20])) <= 2
        nodes.wait("writers go on", lambda: len(written) > before + 40 or errors, timeout_s=60)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        if proxy is not None:
            proxy.close()
    assert not errors, errors
    for key, data in list(written.items())[:: max(len(written) // 60, 1)]:
        ledger.add_key(world, key, data)


def test_a_client_that_vanishes_leaves_its_block_to_another_stream(
    nodes: Datanodes, ledger: Ledger, fault_round: int
) -> None:
    block, data = nodes.block(PARTITION, next(numbers)), fresh_bytes(DATA_BYTES)
    reclaimed = {name: streams_of(nodes, name)["reclaimed"] for name in nodes.pipelines[PARTITION]}
    client = Client(nodes.address("dn2"), CLUSTER)
    client.open(
        nodes.routes("dn2", PARTITION), block=block.local_id, container_id=block.container_id, partition=PARTITION
    )
    client.data(data[: 10 * CELL_BYTES], offset=0)
    client.until_end()
    assert all(streams_of(nodes, name)["active"] == 1 for name in nodes.pipelines[PARTITION])
    client.send(Kind.DATA, data[10 * CELL_BYTES : 11 * CELL_BYTES], offset=10 * CELL_BYTES)
    client.close()
    for name in nodes.pipelines[PARTITION]:
        nodes.wait(
            f"{name} reclaims the stream",
            lambda name=name: streams_of(nodes, name)["active"] == 0,  # type: ignore[misc]
        )
        assert streams_of(nodes, name)["reclaimed"] == reclaimed[name] + 1
    nodes.send(block, data[10 * CELL_BYTES :], offset=10 * CELL_BYTES, primary="dn1")
    nodes.commit(block, data)
    assert all(one.satisfied for one in nodes.watch(block, len(data)))
    ledger.add(block, data)


def test_a_client_that_comes_back_takes_its_block_over(nodes: Datanodes, ledger: Ledger, fault_round: int) -> None:
    """The old stream has not ended: the host of its client lost its power."""
    block, data = nodes.block(PARTITION, next(numbers)), fresh_bytes(2 * MIB)
    client = Client(nodes.address("dn1"), CLUSTER)
    client.open(
        nodes.routes("dn1", PARTITION), block=block.local_id, container_id=block.container_id, partition=PARTITION
    )
    client.data(data[:MIB], offset=0)
    client.until_end()
    nodes.send(block, data[MIB:], offset=MIB, primary="dn2")

    def go_on() -> None:
        client.data(data[MIB : MIB + CELL_BYTES], offset=MIB)
        client.until_end()

    with pytest.raises((BlockError, WireClosed)) as caught:
        go_on()
    told = caught.value if isinstance(caught.value, BlockError) else None
    assert told is None or told.code in {codes.OUT_OF_ORDER, codes.DOWNSTREAM_FAILED}
    client.close()
    nodes.commit(block, data)
    assert all(one.satisfied for one in nodes.watch(block, len(data)))
    ledger.add(block, data)


SLOW_CLIENTS, SLOW_BYTES_PER_S = 4, 1.5 * MIB
MEMORY_BYTES = 16 * MIB
"""Half of what the slow clients have on their way."""


@pytest.mark.slow
def test_a_slow_datanode_slows_its_own_client_and_no_other(
    nodes: Datanodes, ledger: Ledger, make_world: Callable[..., KeyWorld], fault_round: int
) -> None:
    """All clients stream through the same three datanodes; four of them reach dn3 over a slow link."""
    proxy = Proxy(nodes.address("dn3"), bytes_per_s=SLOW_BYTES_PER_S)
    try:
        held_back = {"client_buffer_bytes": 64 * MIB, "flush_bytes": 64 * MIB, "window_bytes": 16 * MIB}
        slow = make_world("dn1", addresses={"dn3": proxy.address}, topology="star", **held_back)
        fast = make_world("dn1", topology="star")
        slow.logs = {PARTITION: nodes.pipelines[PARTITION]}
        warm = fresh_bytes(4 * MIB)
        with fast.client.open(f"/v/b/warm-{fault_round}", "wb") as file:
            write(file, warm)
        contents = [fresh_bytes(8 * MIB) for _ in range(SLOW_CLIENTS)]
        seconds: list[float] = []

        def write_slowly(number: int) -> None:
            began = time.monotonic()
            with slow.client.open(f"/v/b/slow{number}-{fault_round}", "wb") as file:
                write(file, contents[number])
            seconds.append(time.monotonic() - began)

        resident = {name: resident_bytes(nodes, name) for name in nodes.pipelines[PARTITION]}
        peak = dict(resident)
        threads = [threading.Thread(target=write_slowly, args=(number,)) for number in range(SLOW_CLIENTS)]
        for thread in threads:
            thread.start()
        quick: list[float] = []
        data = fresh_bytes(8 * MIB)
        while all(thread.is_alive() for thread in threads):
            began = time.monotonic()
            fast.only(PARTITION)
            key = f"fast{len(quick)}-{fault_round}"
            with fast.client.open(f"/v/b/{key}", "wb") as file:
                write(file, data)
            quick.append(time.monotonic() - began)
            peak = {name: max(before, resident_bytes(nodes, name)) for name, before in peak.items()}
        for thread in threads:
            thread.join()
        assert len(seconds) == SLOW_CLIENTS
        assert len(quick) >= 3, "others were held up by the slow ones"
        assert sorted(quick)[len(quick) // 2] < min(seconds) / 2
        grown = {name: peak[name] - resident[name] for name in peak}
        assert max(grown.values()) < MEMORY_BYTES, grown
        for number, content in enumerate(contents):
            ledger.add_key(slow, f"slow{number}-{fault_round}", content)
        ledger.add_key(fast, key, data)
    finally:
        proxy.close()
