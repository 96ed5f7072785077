"""Who is asked for a commit, who is waited for, and which refusal ends the wait; over real stream servers."""

import threading
from types import SimpleNamespace

import pytest

from datanode_processors.errors import BlockError
from producers.blocks import block_commit
from producers.blocks.block_commit import FIRST_PAUSE_MS, LAST_PAUSE_MS, BlockCommitter
from producers.blocks.stream_options import CommitWay
from producers.errors import DatanodeError, StratologError
from schemas import stream_errors
from schemas.records.datanode import PutBlock, WatchBlock, WriteChunk
from schemas.records.rows import BlockLocation
from tests.support.local.waiting import eventually
from tests.support.sdk.datanodes import KIB
from tests.support.sdk.written import some_bytes
from transport.waiting.deadline import Deadline

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
        one.put(length, b"", Deadline.after_s(WAIT_S))


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
        one.watch(1, 1, Deadline.after_s(0))
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


def test_members_that_refuse_are_asked_in_turn_with_growing_pauses(make, monkeypatch):
    world = make()
    pauses: list[float] = []
    monkeypatch.setattr(block_commit, "time", SimpleNamespace(sleep=pauses.append))

    def refuse(*_):
        if len(asked) < 7:
            raise BlockError(stream_errors.OVERLOADED, "as if")

    asked = heard(world, PutBlock, refuse)
    put(committer(world), 1)
    assert asked == ["dn11", "dn12", "dn13"] * 2 + ["dn11"]
    assert [pause * 1000 for pause in pauses] == [min(FIRST_PAUSE_MS * 2**number, LAST_PAUSE_MS) for number in range(6)]


def test_those_that_are_known_to_fail_are_asked_last(make):
    world = make()
    asked = heard(world, PutBlock, lambda *_: None)
    one = committer(world)
    one._failing |= {"dn11", "dn12"}
    put(one, 1)
    assert asked == ["dn13"]


def watched(world, *, deaf=(), failing=(), seconds=0.0):
    """Return (whether a watch of a committed block is held, how often by a majority only, who fails then, who was asked)."""
    for name in deaf:
        world.nodes[name].pipelines.deaf = True
    world.put(some_bytes(KIB))
    (block,) = world.key().blocks
    one = committer(world)
    one._location = block
    one._failing |= set(failing)
    asked = heard(world, WatchBlock)
    held = one.watch(KIB, block.bcs_id, Deadline.after_s(seconds))
    return held, one.fell_to_majority, set(one._failing), sorted(asked)


ALL = ["dn11", "dn12", "dn13"]


def test_a_watch_that_all_hold_is_no_fall_to_a_majority(make):
    assert watched(make()) == (True, 0, set(), ALL)


def test_a_member_that_is_too_slow_is_done_without_and_not_waited_for_again(make):
    assert watched(make(watch_timeout_ms=50), deaf=["dn12"]) == (True, 1, {"dn12"}, ALL)


def test_a_watch_without_those_that_fail_is_one_by_majority(make):
    assert watched(make(), failing=["dn13"]) == (True, 1, {"dn13"}, ["dn11", "dn12"])


def test_where_too_many_fail_all_are_asked_while_there_is_time(make):
    assert watched(make(), failing=["dn12", "dn13"]) == (False, 0, {"dn12", "dn13"}, [])
    held, fell, _, asked = watched(make(), failing=["dn12", "dn13"], seconds=30)
    assert (held, fell) == (True, 1)
    assert len(asked) >= 2, "it ends with a majority"


def test_a_watch_that_no_majority_holds_is_not_held(make):
    world = make(watch_timeout_ms=50, commit_timeout_ms=200)
    world.put(some_bytes(KIB))
    (block,) = world.key().blocks
    for name in ("dn11", "dn13"):
        world.nodes[name].pipelines.deaf = True
    one = committer(world)
    one._location = block
    asked = heard(world, WatchBlock)
    assert not one.watch(KIB, block.bcs_id, Deadline.after_s(30))
    assert sorted(asked) == sorted(ALL * 2)
    assert (one.fell_to_majority, one._failing) == (0, set())
    checksums = world.logs[1].puts[0].checksums
    with pytest.raises(DatanodeError, match=f"no majority of replicas holds {KIB} bytes .* after 200 ms") as caught:
        one.make_durable(KIB, checksums, timeout_ms=200)
    assert caught.value.status == stream_errors.TIMED_OUT


@pytest.mark.parametrize(("left_s", "asked_ms"), [(2.0, 2_000), (0.0004, 1), (9.0, 5_000)])
def test_a_watch_of_all_members_takes_no_longer_than_there_is_time(make, left_s, asked_ms):
    world = make(watch_timeout_ms=5_000)
    world.put(some_bytes(KIB))
    (block,) = world.key().blocks
    one = committer(world)
    one._location = block
    one._failing |= {"dn12", "dn13"}
    timeouts = set()
    heard(world, WatchBlock, lambda _, request: timeouts.add(request.timeout_ms))
    one.watch(KIB, block.bcs_id, Deadline.after_s(left_s, lambda: 100.0))
    assert timeouts == {asked_ms}
