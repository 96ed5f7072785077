"""The stream server over real sockets and files: trees, failures of every kind, limits, reads."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.blocks.fsync import CLOSE
from datanode_processors.errors import BlockError
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire import WireClosed, connect, read_error, read_record
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.records.datanode import Accepted, BlockCommitted, CloseContainer, GetBlock, Hello, PutBlock, ReadBlock
from schemas.records.packets import HEADER_BYTES, MAX_PACKET_BYTES, VERSION, Kind, encode_frame
from tests.support.datanodes.refusals import refused
from tests.support.datanodes.streams import (
    CELL,
    CLUSTER,
    CONTAINER,
    PARTITION,
    TIMEOUT_S,
    Behind,
    Client,
    Datanode,
    NodeProcess,
    Proxy,
    checksums_of,
    put_block,
    routes_of,
    write_block,
)
from tests.support.local.pausing import pause
from tests.support.local.waiting import eventually
from tests.support.sdk.written import some_bytes

MIB = 1024 * 1024

Start = Callable[..., list[Datanode]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Datanode] = []

    def begin(count: int, limits: WireLimits | None = None) -> list[Datanode]:
        first = len(nodes) + 1
        nodes.extend(Datanode(f"dn{first + number}", tmp_path, limits) for number in range(count))
        return nodes[-count:]

    yield begin
    for node in nodes:
        node.server.stop()


def trees(count: int) -> dict[str, list[list[int]]]:
    """Return spanning trees of ``count`` nodes: who the children of each are."""
    star: list[list[int]] = [list(range(1, count)), *([] for _ in range(count - 1))]
    chain = [[number + 1] if number + 1 < count else [] for number in range(count)]
    binary = [[child for child in (2 * number + 1, 2 * number + 2) if child < count] for number in range(count)]
    return {"star": star, "chain": chain, "two children": binary}


SHAPES = [(count, name, tree) for count in range(1, 8) for name, tree in trees(count).items()]


@pytest.mark.parametrize(("count", "name", "tree"), SHAPES, ids=[f"{name}-{count}" for count, name, _ in SHAPES])
def test_bytes_arrive_on_every_replica_of_every_tree(
    start: Start, count: int, name: str, tree: Sequence[Sequence[int]]
) -> None:
    nodes = start(count)
    data = some_bytes(MIB + 12345)
    committed = write_block(nodes[0].address, routes_of(nodes, tree), data, put=True)
    assert committed.length == len(data)
    assert [node.bytes_of(1) == data for node in nodes] == [True] * count
    assert nodes[0].pipelines.committed[1] == put_block(data, 1)
    assert [node.pipelines.committed for node in nodes[1:]] == [{}] * (count - 1), "only the primary commits"
    assert {node.store.stored_length(CONTAINER, 1) for node in nodes} == {len(data)}
    assert {node.store.checksums(CONTAINER, 1, len(data)) for node in nodes} == {checksums_of(data)}
    eventually(lambda: {node.server.snapshot().streams_completed for node in nodes} == {1})


CHAIN3: list[list[int]] = [[1], [2], []]
STAR3: list[list[int]] = [[1, 2], [], []]


@pytest.mark.parametrize("packet", [1, 1000, CELL, 3 * CELL + 7, MAX_PACKET_BYTES])
def test_packets_of_any_size_make_the_same_block(start: Start, packet: int) -> None:
    nodes = start(2)
    data = some_bytes(5000 if packet == 1 else 5 * MIB + 1)
    write_block(nodes[0].address, routes_of(nodes, [[1], []]), data, packet=packet)
    assert [node.bytes_of() == data for node in nodes] == [True, True]
    assert nodes[1].store.checksums(CONTAINER, 1, len(data)) == checksums_of(data)


def small_packets(count: int, size: int) -> tuple[bytes, list[bytes]]:
    """Return the bytes and the frames of ``count`` packets of stream 1, the first one's sequence number being 2."""
    data = some_bytes(count * size)
    frames = [
        encode_frame(Kind.DATA, data[at : at + size], stream=1, sequence=2 + number, offset=at)
        for number, at in enumerate(range(0, len(data), size))
    ]
    return data, frames


def test_small_packets_that_come_together_and_end_behind_them(start: Start) -> None:
    nodes = start(3)
    data, frames = small_packets(40, 1000)
    client = Client(nodes[0].address)
    client.open(routes_of(nodes, CHAIN3))
    client.sequence = 2 + len(frames)
    end = encode_frame(Kind.END, stream=1, sequence=client.sequence, offset=len(data))
    client.wire.wait_send(b"".join(frames) + end, timeout_s=TIMEOUT_S)
    client.until_end()
    client.close()
    assert client.acknowledged == len(data)
    assert [node.bytes_of() == data for node in nodes] == [True] * 3
    assert {node.store.checksums(CONTAINER, 1, len(data)) for node in nodes} == {checksums_of(data)}


@pytest.mark.parametrize("wrong", ["payload", "header", "kind"])
def test_what_is_wrong_among_packets_that_come_together_does_not_take_those_before_it(start: Start, wrong: str) -> None:
    nodes = start(2)
    data, frames = small_packets(10, 1000)
    bad = bytearray(frames[6] if wrong != "kind" else encode_frame(Kind.HELLO, stream=1, sequence=8, offset=6000))
    if wrong != "kind":
        bad[-1 if wrong == "payload" else 10] ^= 1
    client = Client(nodes[0].address)
    client.open(routes_of(nodes, [[1], []]))
    client.wire.wait_send(b"".join([*frames[:6], bad, *frames[7:]]), timeout_s=TIMEOUT_S)
    error = refused(client.until_end)
    client.close()
    assert error.code == (stream_errors.OUT_OF_ORDER if wrong == "kind" else stream_errors.BAD_FRAME)
    assert 0 <= error.offset <= 6000
    eventually(lambda: all(node.server.snapshot().streams == 0 for node in nodes))
    assert nodes[0].bytes_of() == data[:6000]
    stored = nodes[1].bytes_of()
    assert stored == data[: len(stored)]


def test_one_connection_carries_streams_and_requests_one_after_another(start: Start) -> None:
    nodes = start(3)
    client = Client(nodes[0].address)
    for block in (1, 2, 3):
        data = some_bytes(300_000, block)
        client.open(routes_of(nodes, STAR3), block=block)
        client.data(data, offset=0)
        client.send(Kind.END, encode(put_block(data, block)), offset=len(data))
        assert isinstance(client.until_end(), BlockCommitted)
        assert client.request(GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=block)).header.kind is (
            Kind.ERROR
        )
        assert [node.bytes_of(block) == data for node in nodes] == [True] * 3
    client.close()


def test_sixteen_clients_through_every_primary_at_once(start: Start) -> None:
    nodes = start(3)
    failures: list[BaseException] = []

    def write(block: int) -> None:
        turned = [nodes[(block + number) % 3] for number in range(3)]
        try:
            data = some_bytes(MIB + block, block)
            write_block(turned[0].address, routes_of(turned, (CHAIN3, STAR3)[block % 2]), data, block=block, put=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(block,)) for block in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert failures == []
    for block in range(16):
        assert {node.bytes_of(block) for node in nodes} == {some_bytes(MIB + block, block)}
    eventually(lambda: all(node.server.snapshot().connections == 0 for node in nodes))
    assert sum(node.server.snapshot().streams_completed for node in nodes) == 48


def test_an_empty_stream_and_a_flush_in_the_middle(start: Start) -> None:
    nodes = start(3)
    client = Client(nodes[0].address)
    client.open(routes_of(nodes, CHAIN3))
    client.data(bytes(100), offset=0)
    while client.acknowledged < 100:
        client.acknowledged = client.answer().header.offset
    assert [node.store.written_length(CONTAINER, 1) for node in nodes] == [100] * 3, "acknowledged, so everyone has it"
    client.data(b"x" * 50, offset=100)
    client.send(Kind.END, offset=150)
    assert client.until_end() is None
    client.open(routes_of(nodes, CHAIN3), block=2)
    client.send(Kind.END, offset=0)
    assert client.until_end() is None
    client.close()


# --------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("tree", [CHAIN3, STAR3], ids=["chain", "star"])
def test_a_child_that_cannot_be_reached_is_named(start: Start, tree: list[list[int]]) -> None:
    nodes = start(3)
    nodes[2].stop()
    with pytest.raises(BlockError) as caught:
        write_block(nodes[0].address, routes_of(nodes, tree), some_bytes(1000))
    assert (caught.value.code, caught.value.datanode) == (stream_errors.DOWNSTREAM_FAILED, "dn3")
    eventually(lambda: nodes[0].server.snapshot().streams == 0 == nodes[1].server.snapshot().streams)
    assert nodes[0].server.snapshot().streams_failed == 1


@pytest.mark.parametrize("tree", [CHAIN3, STAR3], ids=["chain", "star"])
def test_a_child_that_dies_is_named_with_what_all_have_and_another_primary_completes(
    tmp_path: Path, tree: list[list[int]]
) -> None:
    nodes = [NodeProcess(f"dn{number}", tmp_path) for number in (1, 2, 3)]
    try:
        data = some_bytes(24 * MIB)
        client = Client(nodes[0].address)
        client.open(routes_of(nodes, tree))
        error = None
        for at in range(0, len(data), MIB):
            if at == 8 * MIB:
                nodes[2].stop()
            client.data(data[at : at + MIB], offset=at)
            while error is None and client.acknowledged < at + MIB:
                frame = client.answer()
                if frame.header.kind is Kind.ERROR:
                    error = read_error(frame)
                else:
                    client.acknowledged = frame.header.offset
            if error is not None:
                break
        assert error is not None
        assert (error.code, error.datanode) == (stream_errors.DOWNSTREAM_FAILED, "dn3")
        assert client.acknowledged <= error.offset <= 9 * MIB
        assert error.offset >= 8 * MIB
        client.close()
        left = [nodes[1], nodes[0]]
        write_block(left[0].address, routes_of(left, [[1], []]), data, offset=error.offset)
        assert [node.bytes_of() == data for node in left] == [True, True]
    finally:
        for node in nodes:
            node.stop()


def test_the_primary_dies_and_the_stream_goes_on_through_another(tmp_path: Path) -> None:
    nodes = [NodeProcess(f"dn{number}", tmp_path) for number in (1, 2, 3)]
    try:
        data = some_bytes(16 * MIB)
        client = Client(nodes[0].address)
        client.open(routes_of(nodes, CHAIN3))
        client.data(data[: 4 * MIB], offset=0)
        while client.acknowledged < 3 * MIB:
            client.acknowledged = client.answer().header.offset
        nodes[0].stop()
        write_block(nodes[1].address, routes_of(nodes[1:], [[1], []]), data, offset=client.acknowledged)
        assert [node.bytes_of() == data for node in nodes[1:]] == [True, True]
        client.close()
    finally:
        for node in nodes:
            node.stop()


def test_a_child_that_hangs_is_noticed_by_the_one_above_and_the_client_sees_life_until_then(
    start: Start, tmp_path: Path
) -> None:
    nodes = start(2, WireLimits(stall_timeout_s=4.0, alive_s=0.1, stop_grace_s=0.2))
    hanging = NodeProcess("hanging", tmp_path)
    try:
        client = Client(nodes[0].address)
        client.open(routes_of([*nodes, hanging], CHAIN3))
        pause(hanging.process.pid)
        client.data(bytes(CELL), offset=0)
        signs = 0
        while (frame := client.answer()).header.kind is Kind.ACK:
            assert frame.header.offset == 0
            signs += 1
        error = read_error(frame)
        assert (error.code, error.datanode, error.hint, error.offset) == (
            stream_errors.DOWNSTREAM_FAILED, "hanging", stream_errors.TIMED_OUT, 0,
        )  # fmt: skip
        assert signs >= 1
        client.close()
    finally:
        hanging.stop()


@pytest.mark.parametrize("hop", [0, 1, 2])
def test_a_bit_that_flips_on_the_wire_is_neither_stored_nor_acknowledged(start: Start, hop: int) -> None:
    nodes = start(3)
    data = some_bytes(2 * MIB)
    proxy = Proxy(nodes[hop].address, flip_at=MIB + 4321)
    reached: list[Datanode | Behind] = [*nodes]
    reached[hop] = Behind(nodes[hop], proxy)
    with pytest.raises(BlockError) as caught:
        write_block(reached[0].address, routes_of(reached, CHAIN3), data)
    error = caught.value
    assert error.code == (stream_errors.BAD_FRAME if hop == 0 else stream_errors.DOWNSTREAM_FAILED)
    assert error.hint == ("" if hop == 0 else stream_errors.BAD_FRAME)
    assert error.datanode == nodes[hop].name
    assert 0 <= error.offset <= MIB + 4321
    eventually(lambda: all(node.server.snapshot().streams == 0 for node in nodes))
    for node in nodes:
        stored = node.bytes_of()
        assert stored == data[: len(stored)]
        assert len(stored) >= error.offset
    assert len(nodes[hop].bytes_of()) <= MIB + 4321
    write_block(nodes[0].address, routes_of(nodes, CHAIN3), data, offset=error.offset)
    assert [node.bytes_of() == data for node in nodes] == [True] * 3
    proxy.close()


def test_a_slow_follower_slows_its_own_client_and_no_other(start: Start) -> None:
    nodes = start(2)
    data = some_bytes(48 * MIB)
    proxy = Proxy(nodes[1].address, bytes_per_s=MIB)
    slow = threading.Thread(
        target=lambda: write_block(
            nodes[0].address, routes_of([nodes[0], Behind(nodes[1], proxy)], [[1], []]), data[: 24 * MIB], block=1
        ),
        daemon=True,
    )
    slow.start()
    eventually(lambda: proxy.forwarded > MIB // 4)
    write_block(nodes[0].address, routes_of(nodes, [[1], []]), data, block=2)
    assert slow.is_alive(), "the throttled stream cannot have ended before"
    assert [node.bytes_of(2) == data for node in nodes] == [True, True]
    # What the throttled stream holds in the datanode and in the kernel's buffers is bounded, whatever its client would send.
    assert nodes[0].store.written_length(CONTAINER, 1) < 24 * MIB
    proxy.bytes_per_s = 0
    slow.join(TIMEOUT_S)
    assert not slow.is_alive()
    assert [node.bytes_of(1) == data[: 24 * MIB] for node in nodes] == [True, True]
    proxy.close()


@pytest.mark.parametrize("tree", [CHAIN3, STAR3], ids=["chain", "star"])
def test_a_client_that_vanishes_leaves_nothing_open(start: Start, tree: list[list[int]]) -> None:
    nodes = start(3)
    client = Client(nodes[0].address)
    client.open(routes_of(nodes, tree))
    client.data(some_bytes(10 * CELL), offset=0)
    client.close()
    eventually(lambda: all(node.server.snapshot().streams == 0 for node in nodes))
    eventually(lambda: all(node.server.snapshot().connections == 0 for node in nodes))
    assert [node.server.snapshot().streams_reclaimed for node in nodes] == [1] * 3
    write_block(nodes[0].address, routes_of(nodes, tree), some_bytes(10 * CELL))


def test_a_newer_stream_takes_over_from_one_whose_client_is_silent(start: Start) -> None:
    nodes = start(1, WireLimits(takeover_silence_s=0.3, takeover_wait_s=2.0, stop_grace_s=0.2))
    old = Client(nodes[0].address)
    old.open(routes_of(nodes, [[]]))
    old.data(bytes(CELL), offset=0)
    data = some_bytes(2 * CELL)
    write_block(nodes[0].address, routes_of(nodes, [[]]), data)
    assert nodes[0].bytes_of() == data
    old.data(bytes(CELL), offset=CELL)
    assert refused(old.until_end).code == stream_errors.OUT_OF_ORDER
    assert nodes[0].bytes_of() == data
    old.close()


def test_a_second_stream_of_a_block_that_is_being_written_is_refused(start: Start) -> None:
    nodes = start(1, WireLimits(takeover_silence_s=60, takeover_wait_s=0.1, stop_grace_s=0.2))
    first, second = Client(nodes[0].address), Client(nodes[0].address)
    first.open(routes_of(nodes, [[]]))
    with pytest.raises(BlockError) as caught:
        second.open(routes_of(nodes, [[]]))
    assert caught.value.code == stream_errors.OVERLOADED
    first.close()
    second.close()


@pytest.mark.parametrize("full", [0, 1, 2])
def test_a_full_disk_ends_the_stream_and_names_the_datanode(start: Start, full: int) -> None:
    nodes = start(3)
    nodes[full].store.space.reserve_bytes = 2**62
    with pytest.raises(BlockError) as caught:
        write_block(nodes[0].address, routes_of(nodes, CHAIN3), some_bytes(MIB))
    error = caught.value
    assert error.code == (stream_errors.DISK_FULL if full == 0 else stream_errors.DOWNSTREAM_FAILED)
    assert error.datanode == nodes[full].name
    assert error.offset == 0
    if full:
        assert error.hint == stream_errors.DISK_FULL


@pytest.mark.parametrize("closed", [0, 2])
def test_an_error_of_the_block_comes_up_as_it_is(start: Start, closed: int) -> None:
    nodes = start(3)
    nodes[closed].pipelines.closed.add(CONTAINER)
    with pytest.raises(BlockError) as caught:
        write_block(nodes[0].address, routes_of(nodes, CHAIN3), some_bytes(MIB))
    assert (caught.value.code, caught.value.datanode) == (stream_errors.CONTAINER_CLOSED, nodes[closed].name)


# -------------------------------------------------------------------------------------------- what is refused


def frames_that_do_not_fit() -> list[tuple[str, Kind, dict[str, int], str]]:
    return [
        ("END below what was sent", Kind.END, {"offset": CELL - 1}, stream_errors.OUT_OF_ORDER),
        ("END above what was sent", Kind.END, {"offset": CELL + 1}, stream_errors.OUT_OF_ORDER),
        ("a gap", Kind.DATA, {"offset": CELL + 1}, stream_errors.OUT_OF_ORDER),
        ("a packet again", Kind.DATA, {"offset": 0}, stream_errors.OUT_OF_ORDER),
        ("a hello", Kind.HELLO, {}, stream_errors.OUT_OF_ORDER),
        ("a request", Kind.REQUEST, {}, stream_errors.OUT_OF_ORDER),
        ("an acknowledgement", Kind.ACK, {"offset": CELL}, stream_errors.OUT_OF_ORDER),
    ]


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [case[1:] for case in frames_that_do_not_fit()],
    ids=[case[0] for case in frames_that_do_not_fit()],
)
def test_what_does_not_fit_ends_the_stream(start: Start, kind: Kind, fields: dict[str, int], code: str) -> None:
    nodes = start(2)
    client = Client(nodes[0].address)
    client.open(routes_of(nodes, [[1], []]))
    client.data(bytes(CELL), offset=0)
    while client.acknowledged < CELL:
        client.acknowledged = client.answer().header.offset
    client.send(kind, b"x" if kind is Kind.DATA else b"", **fields)
    error = refused(client.until_end)
    assert error.code == code
    assert error.offset <= CELL
    with pytest.raises(WireClosed):
        client.answer()
    client.close()
    assert {len(node.bytes_of()) for node in nodes} == {CELL}


def test_sequence_numbers_rise_and_a_stream_keeps_its_number(start: Start) -> None:
    nodes = start(1)
    for stream, sequence in ((1, 1), (2, 9)):
        client = Client(nodes[0].address)
        client.open(routes_of(nodes, [[]]))
        client.wire.wait_send(encode_frame(Kind.DATA, b"x", stream=stream, sequence=sequence), timeout_s=TIMEOUT_S)
        assert refused(client.until_end).code == stream_errors.OUT_OF_ORDER
        client.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"window_bytes": 0},
        {"window_bytes": 2**40},
        {"bytes_per_checksum": 0},
        {"bytes_per_checksum": 2**30},
        {"offset": 2**41},
        {"container_id": -1},
        {"local_id": -1},
        {"partition": 99},
    ],
    ids=str,
)
def test_an_open_that_is_wrong_is_refused_and_names_what(start: Start, changes: dict[str, Any]) -> None:
    nodes = start(1)
    client = Client(nodes[0].address)
    with pytest.raises(BlockError) as caught:
        client.open(routes_of(nodes, [[]]), **changes)
    if "partition" in changes:
        assert caught.value.code == stream_errors.NO_SUCH_PIPELINE
    else:
        assert caught.value.code == stream_errors.INVALID_REQUEST
        assert next(iter(changes)) in caught.value.message
    client.close()
    assert list(nodes[0].store.containers()) == []


def test_offset_of_open_beyond_what_is_stored_is_refused(start: Start) -> None:
    nodes = start(2)
    with pytest.raises(BlockError) as caught:
        write_block(nodes[0].address, routes_of(nodes, [[1], []]), some_bytes(MIB), offset=CELL)
    assert caught.value.code == stream_errors.OUT_OF_ORDER


def test_more_than_the_window_ends_the_stream(start: Start, tmp_path: Path) -> None:
    nodes = start(2)
    proxy = Proxy(nodes[1].address)
    client = Client(nodes[0].address)
    client.open(routes_of([nodes[0], Behind(nodes[1], proxy)], [[1], []]), window_bytes=CELL)
    proxy.answering.clear()
    client.data(bytes(MAX_PACKET_BYTES + 2 * CELL), offset=0, packet=CELL)
    assert refused(client.until_end).code == stream_errors.OUT_OF_ORDER
    client.close()
    proxy.close()


def test_another_cluster_and_another_version_are_refused(start: Start) -> None:
    node = start(1)[0]
    with pytest.raises(BlockError) as caught:
        Peer(node.address, own="x", cluster="other", timeout_s=TIMEOUT_S)
    assert caught.value.code == stream_errors.WRONG_CLUSTER
    wire = connect(node.address, TIMEOUT_S)
    hello = Hello(peer="client", cluster="other", min_version=1, max_version=1, max_payload_bytes=1)
    wire.wait_send(encode_frame(Kind.HELLO, encode(hello)), timeout_s=TIMEOUT_S)
    assert wire.wait_frame(TIMEOUT_S).header.kind is Kind.HELLO
    assert read_error(wire.wait_frame(TIMEOUT_S)).code == stream_errors.WRONG_CLUSTER
    wire.close()
    wire = connect(node.address, TIMEOUT_S)
    hello = Hello(peer="client", cluster=CLUSTER, min_version=VERSION + 1, max_version=9, max_payload_bytes=1)
    wire.wait_send(encode_frame(Kind.HELLO, encode(hello)), timeout_s=TIMEOUT_S)
    wire.wait_frame(TIMEOUT_S)
    assert read_error(wire.wait_frame(TIMEOUT_S)).code == stream_errors.UNSUPPORTED_VERSION
    wire.close()


def test_a_child_that_is_somebody_else_is_refused(start: Start) -> None:
    nodes = start(2)
    nodes[1].name = "dn9"
    with pytest.raises(BlockError) as caught:
        write_block(nodes[0].address, routes_of(nodes, [[1], []]), b"x")
    assert caught.value.code == stream_errors.DOWNSTREAM_FAILED
    assert caught.value.datanode == "dn9"


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(HEADER_BYTES), bytes(HEADER_BYTES), encode_frame(Kind.ACK)],
    ids=["http", "zeros", "no hello"],
)
def test_what_is_no_frame_is_told_and_closed(start: Start, data: bytes) -> None:
    node = start(1)[0]
    wire = connect(node.address, TIMEOUT_S)
    wire.wait_send(data, timeout_s=TIMEOUT_S)
    assert wire.wait_frame(TIMEOUT_S).header.kind is Kind.HELLO
    assert read_error(wire.wait_frame(TIMEOUT_S)).code == stream_errors.BAD_FRAME
    with pytest.raises(WireClosed):
        wire.wait_frame(TIMEOUT_S)
    wire.close()


def test_the_limit_of_streams_and_of_connections(start: Start) -> None:
    node = start(1, WireLimits(max_streams=1, max_connections=2, stop_grace_s=0.2))[0]
    first, second = Client(node.address), Client(node.address)
    first.open(routes_of([node], [[]]))
    with pytest.raises(BlockError) as caught:
        Client(node.address)
    assert caught.value.code == stream_errors.OVERLOADED
    with pytest.raises(BlockError) as caught:
        second.open(routes_of([node], [[]]), block=2)
    assert caught.value.code == stream_errors.OVERLOADED
    first.send(Kind.END, offset=0)
    first.until_end()
    first.close()
    second.close()
    eventually(lambda: node.server.snapshot().connections == 0)
    write_block(node.address, routes_of([node], [[]]), b"x")


def test_silence_ends_what_waits_for_a_peer(start: Start) -> None:
    node = start(1, WireLimits(handshake_timeout_s=0.2, idle_timeout_s=0.5, stop_grace_s=0.2))[0]
    silent = socket.create_connection(("127.0.0.1", node.server.port))
    idle, streaming = Client(node.address), Client(node.address)
    streaming.open(routes_of([node], [[]]))
    assert refused(streaming.until_end).code == stream_errors.TIMED_OUT
    with pytest.raises(WireClosed):
        idle.answer()
    eventually(lambda: node.server.snapshot().connections == 0)
    silent.close()


def test_a_stop_tells_streams_and_waits_for_those_that_end(start: Start) -> None:
    node = start(1, WireLimits(stop_grace_s=1.0))[0]
    ending, going_on = Client(node.address), Client(node.address)
    ending.open(routes_of([node], [[]]))
    going_on.open(routes_of([node], [[]]), block=2)
    stopping = threading.Thread(target=node.stop)
    stopping.start()
    ending.data(b"the last", offset=0)
    ending.send(Kind.END, offset=8)
    assert ending.until_end() is None
    assert refused(going_on.until_end).code == stream_errors.STOPPING
    going_on.close()
    ending.close()
    stopping.join(TIMEOUT_S)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", node.server.port))


# ------------------------------------------------------------------------------------------- PutBlock and requests


def test_a_putblock_on_end_must_be_the_streams(start: Start) -> None:
    node = start(1)[0]
    data = some_bytes(1000)
    right = put_block(data, 1)
    fields = {name: getattr(right, name) for name in PutBlock.__slots__}  # type: ignore[attr-defined]
    for wrong in ({"length": 999}, {"local_id": 2}, {"container_id": 1}, {"partition": 1}):
        client = Client(node.address)
        client.open(routes_of([node], [[]]))
        client.data(data, offset=0)
        client.send(Kind.END, encode(PutBlock(**{**fields, **wrong})), offset=1000)
        assert refused(client.until_end).code == stream_errors.INVALID_REQUEST
        client.close()
    assert node.pipelines.committed == {}


def test_requests_are_answered_with_their_number_and_errors_leave_the_connection_open(start: Start) -> None:
    node = start(1)[0]
    client = Client(node.address)
    answer = client.request(CloseContainer(partition=PARTITION, container_id=5))
    assert (answer.header.kind, answer.header.sequence) == (Kind.REPLY, client.sequence)
    assert read_record(answer, Accepted).detail == "closed"
    answer = client.request(GetBlock(partition=PARTITION, container_id=5, local_id=1))
    assert (answer.header.kind, answer.header.sequence) == (Kind.ERROR, client.sequence)
    assert read_error(answer).code == stream_errors.INVALID_REQUEST
    answer = client.request(Accepted(detail="has the pipeline raise"))
    assert read_error(answer).code == stream_errors.FAILED
    assert any("a defect" in note for note in node.notes)
    client.sequence += 1
    client.wire.wait_send(encode_frame(Kind.REQUEST, b"no record", sequence=client.sequence), timeout_s=TIMEOUT_S)
    assert read_error(client.answer()).code == stream_errors.INVALID_REQUEST
    assert client.request(CloseContainer(partition=PARTITION, container_id=5)).header.kind is Kind.REPLY
    client.close()


# --------------------------------------------------------------------------------------------------- reading


def read_request(offset: int, length: int, block: int = 1) -> ReadBlock:
    return ReadBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=block, offset=offset, length=length, bcs_id=0,
        committed_only=True,
    )  # fmt: skip


def read_all(peer: Peer, offset: int, length: int) -> tuple[int, bytes]:
    cells = [(at, bytes(data)) for at, data, _ in peer.read_block(read_request(offset, length))]
    return (cells[0][0] if cells else offset), b"".join(data for _, data in cells)


def test_any_range_is_read_as_whole_cells(start: Start) -> None:
    node = start(1)[0]
    data = some_bytes(5 * CELL + 100)
    write_block(node.address, routes_of([node], [[]]), data, put=True)
    with Peer(node.address, own="dn9", cluster=CLUSTER, timeout_s=TIMEOUT_S) as peer:
        assert peer.name == "dn1"
        chance = random.Random(5)
        ranges = [(0, len(data)), (0, 1), (len(data) - 1, 1), (CELL, CELL), (len(data), 10), (3, 0), (0, 2**40)]
        ranges += [(chance.randrange(len(data)), chance.randrange(3 * CELL)) for _ in range(20)]
        for offset, length in ranges:
            at, found = read_all(peer, offset, length)
            assert found == data[at : at + len(found)]
            if length and offset < len(data):
                assert at == offset // CELL * CELL
                assert at + len(found) >= min(len(data), offset + length)
                assert (at + len(found)) % CELL == 0 or at + len(found) == len(data)
            else:
                assert found == b""
        for offset, length in ((len(data) + 1, 1), (-1, 5), (0, -1)):
            with pytest.raises(BlockError) as caught:
                read_all(peer, offset, length)
            assert caught.value.code == stream_errors.INVALID_REQUEST
        with pytest.raises(BlockError) as caught:
            list(peer.read_block(read_request(0, 1, block=77)))
        assert caught.value.code == stream_errors.NO_SUCH_BLOCK
        assert isinstance(peer.request(CloseContainer(partition=PARTITION, container_id=5)), Accepted)


def test_a_cell_that_rotted_is_told_with_its_offset_and_never_sent(start: Start) -> None:
    node = start(1)[0]
    data = some_bytes(4 * CELL)
    write_block(node.address, routes_of([node], [[]]), data, put=True)
    with node.path().open("r+b") as file:
        file.seek(2 * CELL + 7)
        file.write(bytes([data[2 * CELL + 7] ^ 1]))
    with Peer(node.address, own="dn9", cluster=CLUSTER, timeout_s=TIMEOUT_S) as peer:
        cells = peer.read_block(read_request(0, len(data)))
        for start_of_cell in (0, CELL):
            at, cell, _ = next(cells)
            assert (at, bytes(cell)) == (start_of_cell, data[at : at + CELL])
        with pytest.raises(BlockError) as caught:
            next(cells)
        assert (caught.value.code, caught.value.offset) == (stream_errors.CHECKSUM_MISMATCH, 2 * CELL)
        assert f"{CONTAINER}/1" in caught.value.message
        assert node.pipelines.corrupt == [(CONTAINER, 1, 2 * CELL)]
        assert read_all(peer, 3 * CELL, CELL) == (3 * CELL, data[3 * CELL :]), "the connection goes on"


def test_a_reader_that_goes_away_in_the_middle_ends_its_connection(start: Start) -> None:
    node = start(1)[0]
    data = some_bytes(32 * MIB)
    write_block(node.address, routes_of([node], [[]]), data, put=True)
    peer = Peer(node.address, own="dn9", cluster=CLUSTER, timeout_s=TIMEOUT_S)
    next(iter(peer.read_block(read_request(0, len(data)))))
    peer.close()
    eventually(lambda: node.server.snapshot().connections == 0)


def test_counters_know_whom_bytes_came_from_and_went_to(start: Start) -> None:
    nodes = start(3)
    data = some_bytes(MIB)
    write_block(nodes[0].address, routes_of(nodes, STAR3), data)
    eventually(lambda: nodes[0].server.snapshot().connections == 0)
    counts = nodes[0].server.snapshot()
    assert counts.packets == MIB // CELL
    assert counts.bytes_in["client"] > MIB
    assert counts.bytes_out["dn2"] > MIB
    assert counts.bytes_out["dn3"] > MIB
    assert counts.bytes_out["client"] < 10_000
    assert nodes[1].server.snapshot().bytes_in["dn1"] == counts.bytes_out["dn2"]


def test_fsync_on_close_happens_before_the_last_acknowledgement(tmp_path: Path) -> None:
    node = Datanode("dn1", tmp_path, fsync=CLOSE)
    try:
        write_block(node.address, routes_of([node], [[]]), some_bytes(MIB))
        assert node.store.fsyncs.files == 1
        assert node.store.stored_length(CONTAINER, 1) == MIB
    finally:
        node.stop()
