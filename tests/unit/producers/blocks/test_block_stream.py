"""Streams of one block by themselves, over real stream servers; with their failures they are in ``test_key_files``."""

import time
from functools import partial

import pytest
from crc32c import crc32c

from producers.blocks.block_commit import BlockCommitter
from producers.blocks.block_stream import CHUNK_CONNECTIONS, ChunkStream
from producers.blocks.core.stream_window import Packet
from producers.blocks.core.write_ways import CommitWay
from producers.errors import DatanodeError
from schemas.records.datanode import BlockCommitted, WriteChunk
from schemas.stream_errors import BAD_FRAME
from tests.support.sdk.datanodes import KIB
from tests.support.sdk.written import some_bytes

DATA = some_bytes(10 * KIB)


def packets(size=KIB):
    for at in range(0, len(DATA), size):
        data = DATA[at : at + size]
        yield Packet(offset=at, data=data, crc=crc32c(data), cell_crc=0)


@pytest.fixture
def world(make):
    return make(replicas=1)


@pytest.fixture
def stream(world):
    (member,) = world.client.streams.directory.pipeline("pipeline-1").members
    made = ChunkStream(
        partial(world.client.streams.datanodes.connect, member), partition=1, container_id=257, local_id=1,
        silence_ms=30_000,
    )  # fmt: skip
    yield made
    made.close()


def test_chunks_go_over_some_connections_and_their_ends_are_acknowledged_in_order(world, stream):
    stream.begin(0)
    assert len(stream._connections) == 1
    assert stream.acknowledged(wait=True) is None, "nothing is under way"
    stream.send(list(packets()))
    assert len(stream._connections) == CHUNK_CONNECTIONS
    ends: list[int] = []
    assert stream.end(len(DATA), None, ends.append) is None
    assert ends == sorted(ends)
    assert ends[-1] == len(DATA)
    chunks = world.logs[1].chunks
    assert sorted((chunk.offset, chunk.data) for chunk in chunks) == [(one.offset, one.data) for one in packets()]
    assert world.nodes["dn11"].blocks.store.written_length(257, 1) == len(DATA)
    assert stream.acknowledged(wait=True) is None


def test_what_has_been_answered_is_taken_at_once(stream):
    stream.begin(0)
    first, *_ = packets()
    stream.send([first])
    deadline_s = time.monotonic() + 30
    found = None
    while found is None and time.monotonic() < deadline_s:
        found = stream.acknowledged(wait=False)
    assert found == first.end
    assert stream.acknowledged(wait=False) is None


def test_another_answer_than_that_to_a_chunk_is_a_bad_frame(world, stream):
    pipelines = world.nodes["dn11"].pipelines
    real = pipelines.handle

    def handle(request):
        if isinstance(request, WriteChunk):
            return BlockCommitted(container_id=1, local_id=1, length=1, bcs_id=1, log_offset=1)
        return real(request)

    pipelines.handle = handle
    stream.begin(0)
    stream.send(list(packets())[:1])
    with pytest.raises(DatanodeError, match="WriteChunk was answered with a BlockCommitted") as caught:
        stream.acknowledged(wait=True)
    assert caught.value.status == BAD_FRAME


def test_a_closed_stream_has_no_connection_left(stream):
    stream.begin(0)
    stream.send(list(packets()))
    stream.end(len(DATA), None, lambda _: None)
    stream.close()
    stream.close()
    with pytest.raises(DatanodeError):
        stream.send(list(packets())[:1])


@pytest.mark.parametrize("hsync", [True, False])
def test_bytes_that_are_being_committed_already_are_committed_once(make, hsync):
    world = make(replicas=1, flush_bytes=64 * KIB)
    began_s: list[float] = []

    def slow(_put):
        began_s.append(time.monotonic())
        time.sleep(0.1)

    world.logs[1].refuse = slow
    with world.client.open("/v/b/k", "wb") as file:
        file.write(some_bytes(64 * KIB))
        file.flush()
        if hsync:
            file.hsync()
            assert len(began_s) == 1
    assert len(world.logs[1].puts) == 1


@pytest.mark.parametrize("way", [CommitWay.SEPARATE, CommitWay.ON_STREAM])
def test_a_commit_goes_with_the_end_of_the_stream_if_that_is_the_way(make, monkeypatch, way):
    world = make(replicas=1, commit_way=way)
    asked: list[int] = []
    real = BlockCommitter.put

    def put(self, length, *arguments, **more):
        asked.append(length)
        return real(self, length, *arguments, **more)

    monkeypatch.setattr(BlockCommitter, "put", put)
    world.put(some_bytes(10 * KIB))
    assert asked == ([] if way is CommitWay.ON_STREAM else [10 * KIB])
    assert len(world.logs[1].puts) == 1


@pytest.mark.parametrize("way", [CommitWay.SEPARATE, CommitWay.ON_STREAM])
def test_what_is_watched_is_not_committed_again_at_the_end(make, way):
    world = make(replicas=1, commit_way=way)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(some_bytes(10 * KIB))
        file.hsync()
    assert len(world.logs[1].puts) == 1
