"""Which bytes go to which block, what CommitKey names, and what each call does; failures of blocks are in ``test_key_files``.

Over real stream servers, as for all tests of this room.
"""

import array
import threading
from itertools import pairwise

import pytest

from datanode_processors.errors import BlockError
from om_processors.errors import OMError
from producers.errors import ClientClosed, RequestFailed, RetryableError, StratologError
from producers.files.key_writer import NO_PIPELINE, KeyWriter
from schemas.records.messages import AllocateBlock, CommitKey, CreateKey
from schemas.result_codes import FAILED_TO_FIND_ACTIVE_PIPELINE, QUOTA_EXCEEDED
from tests.support.sdk.datanodes import KIB
from tests.support.sdk.written import some_bytes

BLOCK = 1024 * KIB


@pytest.fixture
def begin(make):
    """Return a factory of (world, writer of a new key); settings are the world's, ``size`` and such the writer's."""
    writers = []

    def start(*, size=0, replication="RATIS/THREE", metadata=None, **settings):
        world = make(block_bytes=BLOCK, **settings)
        given = {"size": size, "replication": replication, "metadata": metadata, "options": world.options}
        writers.append(KeyWriter(world.client, world.client.streams, ("v", "b", "k"), **given))
        return world, writers[-1]

    yield start
    for writer in writers:
        writer.abort()


@pytest.fixture
def asked(begin, monkeypatch):
    """Return a factory as ``begin``; (world, writer, bodies that the writer sends from now on)."""

    def start(**settings):
        world, writer = begin(**settings)
        real, bodies = world.client.submit, []

        def submit(body):
            bodies.append(body)
            return real(body)

        monkeypatch.setattr(world.client, "submit", submit)
        return world, writer, bodies

    return start


def closed(_put):
    raise BlockError("PIPELINE_CLOSED", "closed")


def shape(locations):
    return [(block.offset, block.length) for block in locations]


# -- blocks


def test_bytes_fill_one_block_after_the_other_and_the_commit_names_them_in_order(asked):
    world, writer, bodies = asked(pipelines=2)
    data = some_bytes(2 * BLOCK + 5 * KIB)
    assert writer.write(data) == len(data)
    writer.close()
    commit = bodies[-1]
    assert isinstance(commit, CommitKey)
    assert [type(body) for body in bodies[:-1]] == [AllocateBlock] * 3
    assert (commit.volume, commit.bucket, commit.key, commit.size) == ("v", "b", "k", len(data))
    assert commit.session_id == writer.session_id
    assert shape(commit.blocks) == [(0, BLOCK), (BLOCK, BLOCK), (2 * BLOCK, 5 * KIB)]
    assert all(block.bcs_id > 0 for block in commit.blocks)
    assert world.get() == data
    found = writer.statistics()
    assert (found.bytes, found.blocks, found.failed_blocks, found.resumed_streams) == (len(data), 3, 0, 0)


def test_a_key_without_bytes_has_no_blocks(asked):
    world, writer, bodies = asked()
    assert writer.write(b"") == 0
    assert (writer.written, writer.held_bytes, writer.locations()) == (0, 0, [])
    writer.flush()
    writer.hsync()
    writer.close()
    assert [(type(body), body.blocks, body.size) for body in bodies] == [(CommitKey, [], 0)]
    assert world.key().size == 0


def test_the_key_is_created_as_it_was_asked_for(begin):
    world, writer = begin(size=3, replication="RATIS/ONE", metadata={"owner": "me"})
    assert writer.path == "/v/b/k"
    writer.write(b"abc")
    writer.close()
    assert world.key().metadata == {"owner": "me"}
    assert world.key().replication == "RATIS/ONE"


def test_what_is_written_counts_as_bytes_whatever_its_items_are(begin):
    world, writer = begin()
    numbers = array.array("Q", range(1000))
    assert writer.write(memoryview(numbers)) == 8000
    assert writer.written == 8000
    writer.close()
    assert world.get() == numbers.tobytes()


def test_two_blocks_together_hold_no_more_than_the_buffer(begin, monkeypatch):
    """The first one's watch is still waited for while the second one is filled."""
    world, writer = begin(client_buffer_bytes=512 * KIB, flush_bytes=512 * KIB, watch_timeout_ms=100)
    world.members()[0].pipelines.deaf = True  # each watch takes its whole time
    most, steps = 0, []
    real = writer._write_some

    def write_some(view, *, keep):
        nonlocal most
        steps.append(real(view, keep=keep))
        most = max(most, writer.held_bytes)
        return steps[-1]

    monkeypatch.setattr(writer, "_write_some", write_some)
    data = some_bytes(2 * BLOCK)
    for at in range(0, len(data), 200 * KIB):
        writer.write(data[at : at + 200 * KIB])
    assert 0 < most <= world.options.client_buffer_bytes
    assert 0 in steps, "the buffer was full"
    assert all(sum(pair) > 0 for pair in pairwise(steps)), "who waited for room then has it"
    writer.close()
    assert writer.held_bytes == 0
    assert writer.statistics().watches_by_majority >= 2
    assert world.get() == data


def test_blocks_that_came_with_the_key_are_not_asked_for_again(asked):
    world, writer, bodies = asked(size=2 * BLOCK)
    writer.write(some_bytes(2 * BLOCK))
    writer.close()
    assert [type(body) for body in bodies] == [CommitKey]
    assert len(world.cluster.allocated) == 2


def test_a_block_that_came_with_the_key_is_not_used_on_a_pipeline_that_has_failed(asked):
    """Of its three blocks the first and the third are on pipeline 1, which closes."""
    world, writer, bodies = asked(pipelines=2, size=3 * BLOCK)
    world.logs[1].closed = True
    world.logs[1].refuse = closed
    data = some_bytes(3 * BLOCK)
    writer.write(data)
    writer.close()
    assert {block.pipeline for block in world.key().blocks} == {"pipeline-2"}
    more = [body for body in bodies if isinstance(body, AllocateBlock)]
    assert [body.excluded_pipelines for body in more] == [["pipeline-1"]] * len(more)
    assert more, "the third block had to be another"
    assert writer.statistics().failed_blocks == 1
    assert world.get() == data


def test_when_only_pipelines_are_left_that_failed_before_any_will_do(asked):
    world, writer, bodies = asked()
    data = some_bytes(400 * KIB)
    writer.write(data[: 100 * KIB])
    writer.flush()
    refusals = [True]

    def refuse_once(put):
        if refusals.pop() if refusals else False:
            closed(put)

    def apply(body, real=world.cluster.apply):
        if isinstance(body, AllocateBlock) and body.excluded_pipelines:
            raise OMError(FAILED_TO_FIND_ACTIVE_PIPELINE, "there is no other")
        return real(body)

    world.logs[1].refuse = refuse_once
    world.cluster.apply = apply
    writer.write(data[100 * KIB :])
    writer.close()
    excluded = [body.excluded_pipelines for body in bodies if isinstance(body, AllocateBlock)]
    assert excluded == [[], ["pipeline-1"], []]
    assert world.get() == data


# -- waiting for a pipeline


def no_pipeline(world, kind, status=FAILED_TO_FIND_ACTIVE_PIPELINE):
    """Have requests of a kind refused; return the list that gets them."""
    refused = []

    def apply(body, real=world.cluster.apply):
        if isinstance(body, kind):
            refused.append(body)
            raise OMError(status, "none takes blocks")
        return real(body)

    world.cluster.apply = apply
    return refused


def test_who_waits_for_a_pipeline_gives_up_at_the_commit_timeout(make):
    world = make(commit_timeout_ms=round(4 * NO_PIPELINE.pause_ms(1)))
    refused = no_pipeline(world, CreateKey)
    with pytest.raises(RequestFailed, match="FAILED_TO_FIND_ACTIVE_PIPELINE: CreateKey /v/b/k: none takes blocks"):
        KeyWriter(world.client, world.client.streams, ("v", "b", "k"), size=BLOCK, options=world.options)
    assert 1 <= len(refused) <= 3, "the pauses are 50 and 100 ms, and the third would end too late"


def test_any_other_refusal_of_a_block_is_told_at_once_and_ends_the_key(begin):
    world, writer = begin()
    refused = no_pipeline(world, AllocateBlock, QUOTA_EXCEEDED)
    with pytest.raises(RequestFailed, match="QUOTA_EXCEEDED"):
        writer.write(b"x")
    assert len(refused) == 1
    assert writer.ended
    assert writer.written == 0
    with pytest.raises(StratologError, match="/v/b/k is not committed"):
        writer.close()


def test_who_waits_for_a_pipeline_is_interrupted(begin):
    world, writer = begin(commit_timeout_ms=60_000)
    refused = no_pipeline(world, AllocateBlock)
    caught = []

    def write():
        with pytest.raises(RetryableError, match="it was cancelled") as found:
            writer.write(b"x")
        caught.append(found.value)

    thread = threading.Thread(target=write)
    thread.start()
    while not refused:
        thread.join(0.01)
    writer.interrupt("it was cancelled")
    thread.join(30)
    assert not thread.is_alive()
    assert len(caught) == 1
    assert ("v", "b", "k") not in world.cluster.keys


# -- what each call does


def test_a_flush_sends_and_hsync_commits(begin):
    world, writer = begin()
    data = some_bytes(100 * KIB + 1)
    writer.write(data)
    writer.flush()
    block = world.cluster.allocated[-1]
    assert all(node.blocks.bytes_of(block) == data for node in world.members())
    assert (writer.locations(), world.logs[1].puts) == ([], [])
    writer.hsync()
    assert shape(writer.locations()) == [(0, len(data))]
    assert [put.length for put in world.logs[1].puts] == [len(data)]


def test_locations_have_their_offsets_across_blocks(begin):
    world, writer = begin()
    writer.write(some_bytes(BLOCK + 100 * KIB))
    writer.hsync()
    assert shape(writer.locations()) == [(0, BLOCK), (BLOCK, 100 * KIB)]
    writer.write(some_bytes(7))
    assert shape(writer.locations()) == [(0, BLOCK), (BLOCK, 100 * KIB)], "seven bytes are not committed"
    writer.close()
    assert shape(world.key().blocks) == [(0, BLOCK), (BLOCK, 100 * KIB + 7)]


@pytest.mark.parametrize("end", [KeyWriter.close, KeyWriter.abort])
def test_after_the_end_a_second_one_does_nothing_and_all_else_is_refused(asked, end):
    world, writer, bodies = asked()
    writer.write(b"abc")
    assert not writer.ended
    end(writer)
    assert writer.ended
    sent = len(bodies)
    writer.close()
    writer.abort()
    for call in (lambda: writer.write(b"d"), writer.flush, writer.hsync):
        with pytest.raises(ClientClosed, match="/v/b/k is closed"):
            call()
    assert len(bodies) == sent
    assert (("v", "b", "k") in world.cluster.keys) == (end is KeyWriter.close)


def test_an_aborted_key_lets_its_blocks_go(begin):
    world, writer = begin()
    writer.write(some_bytes(BLOCK + 10))
    writer.abort()
    assert writer._live == []
    with pytest.raises(ClientClosed):
        writer.write(b"x")
    assert world.cluster.keys == {}


def test_an_interrupt_between_two_calls_fails_the_next_one_and_the_key(begin):
    world, writer = begin()
    writer.write(b"abc")
    writer.interrupt("the upload was cancelled")
    assert writer.ended
    for call in (lambda: writer.write(b"d"), writer.flush, writer.hsync, writer.close):
        with pytest.raises(RetryableError, match="not committed.*the upload was cancelled"):
            call()
    assert writer._live == [], "its blocks' streams have ended"
    assert world.cluster.keys == {}
