"""Connections for requests: how many are kept, and what becomes of one on which a request fails."""

import socket

import pytest
from crc32c import crc32c

from datanode_processors.errors import BlockError
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.server import StreamServer
from producers.blocks.datanodes import BlocksInParts
from producers.errors import UNREACHABLE, DatanodeError
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.records.datanode import BlocksWritten, BlockWatched, Member, OpenBlocks, WatchBlock, WriteBlocks
from schemas.records.packets import CELL_BYTES
from tests.support.local.waiting import eventually
from tests.support.sdk.datanodes import CLUSTER
from transport.datanodes.connection import MAX_PARTS, Buffer, DatanodeConnection
from transport.datanodes.kept import MAX_KEPT_PER_ADDRESS

WATCH = WatchBlock(partition=1, container_id=257, local_id=1, length=1, bcs_id=0, timeout_ms=0)


@pytest.fixture
def world(make):
    return make(replicas=1)


@pytest.fixture
def node(world):
    return world.members()[0]


@pytest.fixture
def member(node):
    return Member(datanode=node.name, address=node.address, http_address="", rack="/r")


@pytest.fixture
def datanodes(world):
    return world.client.streams.datanodes


def come_back(node):
    """Have a datanode end its connections, and listen again where it was."""
    node.server.stop()
    node.server = StreamServer(
        name=node.name, cluster=CLUSTER, host="127.0.0.1", port=int(node.address.split(":")[1]), blocks=node.blocks.store,
        pipelines=node.pipelines, note=lambda *_, **__: None, limits=WireLimits(stop_grace_s=0.0, linger_s=0.2),
    )  # fmt: skip


def keep(datanodes, member, count):
    """Have so many connections made at once, and kept."""
    made = [datanodes.connect(member) for _ in range(count)]
    for connection in made:
        datanodes.kept.give_back(connection)
    return made


def connections(node):
    return node.server.snapshot().connections


def test_so_many_connections_are_kept_and_the_rest_is_closed(node, member, datanodes):
    made = keep(datanodes, member, MAX_KEPT_PER_ADDRESS + 2)
    eventually(lambda: connections(node) == MAX_KEPT_PER_ADDRESS)
    taken = [datanodes.kept.take(member.address, member.datanode) for _ in range(MAX_KEPT_PER_ADDRESS + 1)]
    assert [connection in made for connection in taken] == [True] * MAX_KEPT_PER_ADDRESS + [False]
    for connection in taken[:-1]:
        connection.close()


def test_a_connection_that_comes_back_after_the_end_is_closed(node, member, datanodes):
    taken = datanodes.connect(member)
    datanodes.close()
    datanodes.kept.give_back(taken)
    eventually(lambda: connections(node) == 0)


def test_a_refusal_leaves_the_connection_for_the_next_request(node, member, datanodes):
    handle, refused = node.pipelines.handle, list[WatchBlock]()

    def refuse(request):
        if not refused:
            refused.append(request)
            raise BlockError(stream_errors.OVERLOADED, "as if")
        return handle(request)

    node.pipelines.handle = refuse
    with pytest.raises(DatanodeError):
        datanodes.ask(member, WATCH, BlockWatched)
    datanodes.ask(member, WATCH, BlockWatched)
    assert connections(node) == 1


def test_a_kept_connection_that_has_ended_costs_no_request(node, member, datanodes):
    keep(datanodes, member, 2)
    datanodes.ask(member, WATCH, BlockWatched)
    come_back(node)
    for _ in range(2):
        assert not datanodes.ask(member, WATCH, BlockWatched).satisfied
    assert connections(node) == 1, "and the others, just as old, are not tried"


def test_a_datanode_that_ends_each_connection_is_asked_twice(node, member, datanodes):
    asked = []

    def end(request):
        asked.append(request)
        node.server.stop()
        raise BlockError(stream_errors.STOPPING, "as if")

    datanodes.ask(member, WATCH, BlockWatched)
    node.pipelines.handle = end
    with pytest.raises(DatanodeError):
        datanodes.ask(member, WATCH, BlockWatched)
    assert len(asked) == 1


def small_blocks(world):
    """Return an exchange that the node answers, whatever becomes of its blocks."""
    opening = OpenBlocks(partition=1, bytes_per_checksum=CELL_BYTES, watch_timeout_ms=0, blocks=[], routes=[])
    return BlocksInParts(encode(opening), [])


def test_blocks_in_parts_are_the_bytes_of_the_record():
    cases: list[list[Buffer]] = [
        [], [b"x"], [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]], [bytes(70_000)] * 3
    ]  # fmt: skip
    for parts in cases:
        whole = WriteBlocks(opening=b"opening", data=b"".join(parts))
        assert b"".join(BlocksInParts(b"opening", parts).payload()) == encode(whole)


def test_more_parts_than_one_call_takes_arrive_in_order(world, member, datanodes):
    data = [b"%d" % number for number in range(3 * MAX_PARTS)]
    connection = datanodes.connect(member)
    heard = []

    def header(*_, length, crc, **__):
        heard.append((length, crc))
        return b""

    connection.talk.header = header
    connection._socket.close()
    connection._socket, other = socket.socketpair()
    request = BlocksInParts(b"opening", data)
    connection.send_encoded(request.payload())
    connection.close()
    payload = b"".join(request.payload())
    assert other.makefile("rb").read() == payload
    assert heard == [(len(payload), crc32c(payload))]
    other.close()


@pytest.fixture
def exchanged(monkeypatch):
    """Return a list of the connections over which small blocks were sent, and a dict of what each then raises."""
    sent: list[DatanodeConnection] = []
    fails: dict[object, str] = {}

    def send(connection, parts, **_):
        sent.append(connection)
        if status := fails.get(connection) or fails.get(""):
            raise DatanodeError(status, "no")

    answer = BlocksWritten(datanode="dn11", leader="", outcomes=[], watched=[])
    monkeypatch.setattr(DatanodeConnection, "send_encoded", send)
    monkeypatch.setattr(DatanodeConnection, "receive_patiently", lambda *_, **__: answer)
    monkeypatch.setattr(DatanodeConnection, "answered", lambda _, event: event)
    return sent, fails, answer


def test_small_blocks_that_meet_a_kept_connection_that_has_ended_are_sent_once_more(
    world, member, datanodes, exchanged
):
    sent, fails, answer = exchanged
    kept = keep(datanodes, member, 2)
    fails |= dict.fromkeys(kept, UNREACHABLE)
    assert datanodes.ask_small(member, small_blocks(world)) is answer
    assert len(sent) == 2, "once on a kept one, then on a new one, though another is kept"
    assert sent[1] not in kept
    assert all(connection.fileno() < 0 for connection in kept), "the others are as old"


@pytest.mark.parametrize(
    ("status", "times"), [(UNREACHABLE, 2), (stream_errors.STOPPING, 2), (stream_errors.TIMED_OUT, 1)]
)
def test_small_blocks_are_sent_twice_at_most(world, member, datanodes, exchanged, status, times):
    sent, fails, _ = exchanged
    fails[""] = status
    keep(datanodes, member, 1)
    with pytest.raises(DatanodeError, match="no"):
        datanodes.ask_small(member, small_blocks(world))
    assert len(sent) == times
    assert all(connection.fileno() < 0 for connection in sent), "a connection that failed is not kept"


def test_a_new_connection_that_fails_is_not_tried_again(world, member, datanodes, exchanged):
    sent, fails, _ = exchanged
    fails[""] = UNREACHABLE
    with pytest.raises(DatanodeError, match="no"):
        datanodes.ask_small(member, small_blocks(world))
    assert len(sent) == 1
    with datanodes.turn():
        pass  # and its turn is over
