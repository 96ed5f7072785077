"""Who is asked for a commit, who is waited for, and which refusal ends the wait; over real stream servers."""

import threading
import time

import pytest

from datanode_processors.errors import BlockError
from producers.blocks.block_commit import BlockCommitter
from producers.blocks.stream_options import CommitWay
from producers.errors import DatanodeError, StratologError
from schemas import stream_errors
from schemas.records.datanode import PutBlock, WatchBlock, WriteChunk
from schemas.records.rows import BlockLocation
from tests.support.local.waiting import eventually
from tests.support.sdk.datanodes import KIB
from tests.support.sdk.written import some_bytes

WAIT_S = 30.0


def heard(world, kind, answer=None):
    """Return the list of datanodes that are sent requests of a kind; ``answer`` is called with each, and may raise."""
    names = []

    def listen(node):
        handle = node.pipelines.handle

        def handled(request):
            if isinstance(request, kind):
                names.append(node.name)
                if answer is not None:
                    answer(node, request)
            return handle(request)

        node.pipelines.handle = handled

    for node in world.members():
        listen(node)
    return names


def committer(world):
    """Return the committer of a block, with the members in their order."""
    view = world.client.streams.directory.pipeline("pipeline-1")
    location = BlockLocation(container_id=257, local_id=1, offset=0, length=KIB, pipeline="pipeline-1")
    streams = world.client.streams
    return BlockCommitter(location, view, list(view.members), streams.datanodes, world.options, set())


def put(one, *lengths):
    for length in lengths:
        one.put(length, b"", time.monotonic() + WAIT_S)


def test_the_nearest_member_is_asked_first_and_then_who_accepted(make):
    world = make()
    world.logs[1].forwards = False
    asked = heard(world, PutBlock)
    one = committer(world)
    put(one, 1, 2, 3)
    assert asked == ["dn11"] * 3, "it leads"
    assert one.puts == 3


def test_a_commit_follows_the_leader_that_is_named_and_stays_with_it(make):
    world = make()
    world.logs[1].forwards = False
    world.logs[1].leader = "dn13"
    asked = heard(world, PutBlock)
    put(committer(world), 1, 2, 3)
    assert asked == ["dn11", "dn13", "dn13", "dn13"]


@pytest.mark.parametrize("code", [stream_errors.BLOCK_DELETED, stream_errors.INVALID_REQUEST])
def test_a_watch_that_a_majority_refuses_for_good_ends_at_once(make, code):
    world = make(watch_timeout_ms=100)

    def refuse(node, _):
        if node.name != "dn13":
            raise BlockError(code, "as if")

    heard(world, WatchBlock, refuse)
    one = committer(world)
    put(one, 1)
    with pytest.raises(DatanodeError) as caught:
        one.watch(1, 1, time.monotonic())
    assert caught.value.status == code


def test_a_watch_that_one_member_refuses_is_held_by_the_others(make):
    world = make()

    def refuse(node, _):
        if node.name == "dn12":
            raise BlockError(stream_errors.BLOCK_DELETED, "as if")

    heard(world, WatchBlock, refuse)
    statistics = world.put(data := some_bytes(300 * KIB))
    assert world.get() == data
    assert statistics.failed_blocks == 0


def test_an_interrupt_ends_the_wait_for_a_chunks_answer(make):
    """The old way: each chunk is a request to the leader, here one that does not answer."""
    world = make(commit_way=0)
    waits, at_last, ended = threading.Event(), threading.Event(), []

    def wait(*_):
        waits.set()
        at_last.wait(WAIT_S)

    heard(world, WriteChunk, wait)
    file = world.client.open("/v/b/k", "wb")

    def write():
        try:
            file.write(some_bytes(900 * KIB))
            file.close()
        except StratologError as error:
            ended.append(error)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    assert waits.wait(WAIT_S)
    file.interrupt("enough")
    writing.join(WAIT_S / 3)
    alive = writing.is_alive()
    at_last.set()
    writing.join(WAIT_S)
    assert not alive, "it waited for the datanode"
    assert "enough" in str(ended[0])


def test_a_hsync_waits_for_the_block_before_too(make, monkeypatch):
    world = make()
    data = some_bytes(1024 * KIB + 10)
    begun, at_last = threading.Event(), threading.Event()
    real = BlockCommitter.make_durable

    def make_durable(self, length, *arguments, **more):
        if length == 1024 * KIB:
            begun.set()
            at_last.wait(WAIT_S)
        return real(self, length, *arguments, **more)

    monkeypatch.setattr(BlockCommitter, "make_durable", make_durable)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data)
        assert begun.wait(WAIT_S)
        later = threading.Timer(0.3, at_last.set)
        later.start()
        file.hsync()
        assert [block.length for block in file.locations()] == [1024 * KIB, 10]
    assert world.get() == data


def test_a_commit_that_nobody_takes_ends_with_the_last_refusal(make):
    world = make(commit_timeout_ms=300)

    def refuse(_put):
        raise BlockError(stream_errors.OVERLOADED, "as if")

    world.logs[1].refuse = refuse
    file = world.client.open("/v/b/k", "wb")
    file.write(some_bytes(10))
    with pytest.raises(DatanodeError) as caught:
        file.close()
    assert caught.value.status == stream_errors.OVERLOADED


@pytest.mark.parametrize("way", [CommitWay.SEPARATE, CommitWay.EARLY_CLOSE])
def test_only_an_early_close_does_not_wait_until_the_commit_is_effective(make, way):
    world = make(commit_way=way)
    waits = []
    heard(world, PutBlock, lambda _, request: waits.append(request.wait_effective))
    world.put(data := some_bytes(300 * KIB))
    assert set(waits) == {way is CommitWay.SEPARATE}
    assert world.get() == data


def test_a_block_that_was_given_up_keeps_no_stream_open(make):
    world = make(pipelines=2, commit_timeout_ms=300)
    data = some_bytes(300 * KIB)

    def refuse(_put):
        raise BlockError(stream_errors.CONTAINER_CLOSED, "as if")

    with world.client.open("/v/b/k", "wb") as file:
        file.write(data[: 100 * KIB])
        file.flush()
        failing = world.cluster.allocated[0].container_id % 256
        assert streams(world, failing) > 0
        world.logs[failing].refuse = refuse
        file.hsync()
        assert file.statistics().failed_blocks == 1
        eventually(lambda: streams(world, failing) == 0)
        file.write(data[100 * KIB :])
    assert world.get() == data


def streams(world, partition):
    return sum(node.server.snapshot().streams for node in world.members(partition))
