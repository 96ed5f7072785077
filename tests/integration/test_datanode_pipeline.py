"""Pipelines on real datanode processes: the metadata path through dn.log, with leaders that die, hang and come back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from crc32c import crc32c

from datanode_processors.errors import BlockError
from schemas import stream_errors as codes
from schemas.codecs.codec import decode
from schemas.privilege import ClusterSecret
from schemas.records.datanode import (
    BlockCommitted,
    BlockId,
    BlockReport,
    ChunkWritten,
    CloseContainer,
    ClosePipeline,
    DeleteBlocks,
    FetchContainer,
    ListContainer,
    OpenPipeline,
    PutBlock,
    Route,
    WriteChunk,
)
from schemas.records.packets import CELL_BYTES
from schemas.topics import DN_AUDIT
from tests.support.datanodes.datanodes import Block, Datanodes
from tests.support.datanodes.refusals import refused
from tests.support.local.secret import SECRET
from tests.support.local.stack import LocalKafka

pytestmark = pytest.mark.integration

numbers = count(1)


@pytest.fixture(scope="module")
def nodes(lease_kafka: Callable[[], LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datanodes]:
    """Three datanodes with a pipeline on partition 0."""
    with Datanodes(tmp_path_factory.mktemp("datanodes"), lease_kafka(), count=3) as started:
        started.open_pipeline(0)
        yield started


def settle(nodes: Datanodes) -> None:
    """Have all datanodes run, and one of them lead."""
    for name in nodes.paused():
        nodes.resume(name)
    for name in nodes.names:
        if name not in nodes.processes:
            nodes.start(name, wait=False)
    for name in nodes.names:
        nodes.wait_up(name)
    nodes.wait_leader(0)


@pytest.fixture
def block(nodes: Datanodes) -> Block:
    settle(nodes)
    return nodes.block(0, next(numbers))


def test_the_first_of_the_list_leads_first(nodes: Datanodes):
    nodes.wait("dn2 follows dn1", lambda: nodes.pipeline("dn2", 0)["leader"] == "dn1")
    assert nodes.pipeline("dn2", 0)["leader_address"] == nodes.address("dn1")


def test_a_block_is_committed_watched_and_read_on_every_member(nodes: Datanodes, block: Block):
    data = os.urandom(3 * CELL_BYTES + 100)
    committed = nodes.write(block, data)
    assert (committed.length, committed.container_id, committed.local_id) == (
        len(data),
        block.container_id,
        block.local_id,
    )
    assert committed.bcs_id > 0
    assert committed.log_offset > 0
    watched = nodes.watch(block, len(data), bcs_id=committed.bcs_id)
    assert [(one.satisfied, one.datanode) for one in watched] == [(True, name) for name in nodes.names]
    for name in nodes.names:
        assert nodes.read(name, block, len(data), bcs_id=committed.bcs_id) == data
        found = nodes.info(name, block)
        assert found is not None
        assert (found.length, found.bcs_id, found.stored_length) == (len(data), committed.bcs_id, len(data))
    nodes.wait_converged(0)


def test_any_member_sends_a_putblock_on_to_the_leader(nodes: Datanodes, block: Block):
    data = os.urandom(1000)
    nodes.send(block, data)
    leader = nodes.wait_leader(0)
    other = next(name for name in nodes.names if name != leader)
    before = (nodes.status(other) or {})["forwarded_requests"]
    assert nodes.commit(block, data, to=other).length == len(data)
    assert (nodes.status(other) or {})["forwarded_requests"] == before + 1


def test_an_early_answer_carries_the_index_that_the_entry_gets(nodes: Datanodes, block: Block):
    data = os.urandom(CELL_BYTES)
    nodes.send(block, data)
    early = nodes.commit(block, data, wait_effective=False)
    assert early.log_offset == -1
    assert all(one.satisfied for one in nodes.watch(block, len(data), bcs_id=early.bcs_id))
    found = nodes.info("dn1", block)
    assert found is not None
    assert found.bcs_id == early.bcs_id


def test_a_watch_for_an_entry_that_is_not_in_the_log_is_refused_at_once(nodes: Datanodes, block: Block):
    data = os.urandom(2 * CELL_BYTES)
    committed = nodes.write(block, data[:CELL_BYTES])
    watched = nodes.watch(block, len(data), bcs_id=committed.bcs_id, timeout_ms=20_000)
    assert [one.satisfied for one in watched] == [False, False, False]
    assert {one.length for one in watched} == {CELL_BYTES}


def test_other_checksums_are_refused_and_nothing_changes(nodes: Datanodes, block: Block):
    data = os.urandom(2 * CELL_BYTES)
    nodes.write(block, data)
    other = data[:CELL_BYTES] + os.urandom(CELL_BYTES)
    assert refused(lambda: nodes.commit(block, other)).code == codes.CHECKSUM_MISMATCH
    longer = os.urandom(CELL_BYTES) + data
    assert refused(lambda: nodes.commit(block, longer)).code == codes.CHECKSUM_MISMATCH
    assert nodes.commit(block, data[: CELL_BYTES + 7]).length == len(data), "a shorter one answers the committed state"
    assert nodes.read("dn2", block, len(data)) == data


def test_a_deleted_block_stays_deleted(nodes: Datanodes, block: Block):
    data = os.urandom(CELL_BYTES)
    nodes.write(block, data)
    nodes.watch(block, len(data))
    request = DeleteBlocks(partition=0, blocks=[BlockId(container_id=block.container_id, local_id=block.local_id)])
    nodes.ask("dn3", request)
    assert refused(lambda: nodes.commit(block, data + data)).code == codes.BLOCK_DELETED
    for name in nodes.names:
        file = nodes.block_file(name, block)
        nodes.wait(f"{name} deletes the file", lambda file=file: not file.exists())  # type: ignore[misc]
        assert refused(partial(nodes.read, name, block, 1)).code == codes.BLOCK_DELETED
    assert refused(lambda: nodes.send(block, data)).code in (codes.BLOCK_DELETED, codes.DOWNSTREAM_FAILED)
    nodes.wait_converged(0)


def test_a_request_that_is_wrong_names_its_input(nodes: Datanodes, block: Block):
    wrong = Block(partition=0, container_id=block.container_id + 1, local_id=block.local_id)
    error = refused(lambda: nodes.commit(wrong, b"x" * 10))
    assert error.code == codes.INVALID_REQUEST
    assert str(wrong.container_id) in error.message
    put = nodes.put_block(block, b"x" * 10)
    short = PutBlock(
        partition=0, container_id=put.container_id, local_id=put.local_id, length=10, bytes_per_checksum=CELL_BYTES,
        checksums=b"", wait_effective=True,
    )  # fmt: skip
    assert refused(lambda: nodes.ask("dn1", short)).code == codes.INVALID_REQUEST
    elsewhere = Block(partition=5, container_id=256 + 5, local_id=1)
    assert refused(lambda: nodes.commit(elsewhere, b"x", to="dn1")).code == codes.NO_SUCH_PIPELINE


def test_a_member_without_the_bytes_fetches_them_before_its_watch(nodes: Datanodes, block: Block):
    data = os.urandom(40 * CELL_BYTES + 5)
    routes = [
        Route(datanode="dn1", address=nodes.address("dn1"), children=["dn2"]),
        Route(datanode="dn2", address=nodes.address("dn2"), children=[]),
    ]
    nodes.send(block, data, routes=routes)
    nodes.commit(block, data)
    assert [one.satisfied for one in nodes.watch(block, len(data), names=["dn3"])] == [True]
    assert nodes.block_file("dn3", block).read_bytes() == data
    assert nodes.read("dn3", block, len(data)) == data


def test_a_closed_container_takes_nothing_more(nodes: Datanodes):
    settle(nodes)
    block = nodes.block(0, next(numbers), container=9)
    data = os.urandom(CELL_BYTES)
    nodes.write(block, data)
    nodes.ask("dn2", CloseContainer(partition=0, container_id=block.container_id))
    assert nodes.commit(block, data).length == len(data), "what is committed is answered all the same"
    assert refused(lambda: nodes.commit(block, data + data)).code == codes.CONTAINER_CLOSED
    another = nodes.block(0, next(numbers), container=9)
    assert refused(lambda: nodes.commit(another, data)).code == codes.CONTAINER_CLOSED
    assert nodes.read("dn1", block, len(data)) == data
    nodes.wait_converged(0)


def chunk(block: Block, data: bytes, offset: int) -> WriteChunk:
    return WriteChunk(
        partition=block.partition, container_id=block.container_id, local_id=block.local_id, offset=offset, data=data,
        checksum=crc32c(data),
    )  # fmt: skip


def test_chunks_through_the_log_make_the_block_everywhere(nodes: Datanodes, block: Block):
    data = os.urandom(3 * 1024 * 1024 + 77)
    parts = [(offset, data[offset : offset + 1024 * 1024]) for offset in range(0, len(data), 1024 * 1024)]
    leader = nodes.wait_leader(0)
    for offset, part in [parts[1], parts[0], *parts[2:], parts[3]]:  # out of order, and one of them twice
        assert isinstance(nodes.ask(leader, chunk(block, part, offset)), ChunkWritten)
    assert refused(lambda: nodes.ask(leader, chunk(block, b"other", parts[2][0]))).code == codes.INVALID_REQUEST
    committed = nodes.commit(block, data)
    assert isinstance(committed, BlockCommitted)
    assert all(one.satisfied for one in nodes.watch(block, len(data), bcs_id=committed.bcs_id))
    for name in nodes.names:
        assert nodes.read(name, block, len(data)) == data
    nodes.wait_converged(0)
    digests = {nodes.get(name, "/v1/shards/0/digest", scrub="true")["digest"] for name in nodes.names}
    assert len(digests) == 1


# -- leaders that die, hang and come back ------------------------------------------------------------------------------


def commit_until_taken(nodes: Datanodes, block: Block, data: bytes) -> BlockCommitted:
    """PutBlock as a client sends it: to any member, again after whatever may pass."""
    answers: list[BlockCommitted] = []

    def taken() -> bool:
        for name in nodes.names:
            if name in nodes.processes and name not in nodes.paused():
                try:
                    answers.append(nodes.commit(block, data, to=name))
                except BlockError as error:
                    if error.code not in (codes.NOT_LEADER, codes.FAILED, codes.TIMED_OUT):
                        raise
                else:
                    return True
        return False

    nodes.wait("a member takes the PutBlock", taken)
    return answers[0]


def test_the_next_in_the_list_leads_when_the_leader_is_killed(nodes: Datanodes, block: Block):
    before = {nodes.block(0, next(numbers)): os.urandom(2000) for _ in range(5)}
    for one, data in before.items():
        nodes.write(one, data)
    leader = nodes.wait_leader(0)
    following = nodes.names[(nodes.names.index(leader) + 1) % 3]
    nodes.kill(leader)
    assert nodes.wait_leader(0, other_than=leader) == following
    late = os.urandom(5000)
    routes = nodes.routes(following, 0)
    routes = [
        Route(datanode=route.datanode, address=route.address, children=[child for child in route.children if child != leader])
        for route in routes
        if route.datanode != leader
    ]  # fmt: skip
    nodes.send(block, late, routes=routes)
    commit_until_taken(nodes, block, late)
    nodes.start(leader)
    nodes.wait_converged(0)
    for one, data in {**before, block: late}.items():
        assert all(watched.satisfied for watched in nodes.watch(one, len(data))), one
        for name in nodes.names:
            assert nodes.read(name, one, len(data)) == data
    assert nodes.wait_leader(0) == following, "a member that comes back does not take the leadership"


def test_what_a_leader_that_hung_writes_is_void(nodes: Datanodes, block: Block):
    data = os.urandom(3 * CELL_BYTES)
    nodes.send(block, data)
    leader = nodes.wait_leader(0)
    nodes.pause(leader)
    other = nodes.wait_leader(0, other_than=leader)
    committed = nodes.commit(block, data, to=other)
    nodes.resume(leader)
    nodes.wait("it sees that it leads no more", lambda: nodes.pipeline(leader, 0).get("role") == "follower")
    nodes.wait_converged(0)
    assert nodes.leader(0) == other
    # What it thinks of the term that it missed: it sends requests on, and knows the same rows.
    assert commit_until_taken(nodes, block, data).bcs_id == committed.bcs_id
    assert all(one.satisfied for one in nodes.watch(block, len(data), bcs_id=committed.bcs_id))


def test_a_follower_that_was_paused_does_not_take_the_leadership(nodes: Datanodes, block: Block):
    leader = nodes.wait_leader(0)
    following = nodes.names[(nodes.names.index(leader) + 1) % 3]
    term = nodes.pipeline(leader, 0)["term"]
    nodes.pause(following)
    data = os.urandom(1000)
    at_least = nodes.pipeline(leader, 0)["records_applied"] + 12  # Ticks: three time-outs and more
    nodes.wait("time goes by", lambda: nodes.pipeline(leader, 0)["records_applied"] >= at_least)
    nodes.resume(following)
    nodes.write(block, data)
    assert all(one.satisfied for one in nodes.watch(block, len(data)))
    assert nodes.pipeline(following, 0)["term"] == term


def test_all_are_killed_and_start_again(nodes: Datanodes, block: Block):
    data = os.urandom(5 * CELL_BYTES + 1)
    committed = nodes.write(block, data)
    nodes.watch(block, len(data), bcs_id=committed.bcs_id)
    before = nodes.wait_converged(0)
    for name in nodes.names:
        nodes.kill(name)
    for name in nodes.names:
        nodes.start(name, wait=False)
    for name in nodes.names:
        nodes.wait_up(name)
    nodes.wait_leader(0)
    assert all(one.satisfied for one in nodes.watch(block, len(data), bcs_id=committed.bcs_id))
    for name in nodes.names:
        assert nodes.read(name, block, len(data)) == data
    assert nodes.wait_converged(0)["applied_index"] >= before["applied_index"]
    more = data + os.urandom(100)
    nodes.send(block, more[len(data) :], offset=len(data))
    nodes.commit(block, more)
    assert all(one.satisfied for one in nodes.watch(block, len(more)))


@pytest.mark.slow
def test_a_stop_hands_over_and_a_lost_file_is_fetched_at_the_next_start(nodes: Datanodes, block: Block):
    data = os.urandom(7 * CELL_BYTES)
    nodes.write(block, data)
    assert all(one.satisfied for one in nodes.watch(block, len(data)))
    nodes.stop("dn3")
    nodes.block_file("dn3", block).unlink()
    nodes.start("dn3")
    assert [one.satisfied for one in nodes.watch(block, len(data), names=["dn3"])] == [True]
    assert nodes.block_file("dn3", block).read_bytes() == data
    nodes.wait("dn3 is healthy", lambda: nodes.pipeline("dn3", 0)["unhealthy_blocks"] == 0)


def test_bytes_damaged_on_the_disk_are_never_read_and_are_repaired(nodes: Datanodes, block: Block):
    data = os.urandom(4 * CELL_BYTES)
    nodes.write(block, data)
    assert all(one.satisfied for one in nodes.watch(block, len(data)))
    with nodes.block_file("dn2", block).open("r+b") as file:
        file.seek(CELL_BYTES + 17)
        file.write(b"damaged!")
    assert refused(lambda: nodes.read("dn2", block, len(data))).code in (codes.CHECKSUM_MISMATCH, codes.NOT_COMMITTED)
    nodes.wait("dn2 repairs it", lambda: nodes.block_file("dn2", block).read_bytes() == data)
    nodes.wait("dn2 is healthy", lambda: nodes.pipeline("dn2", 0)["unhealthy_blocks"] == 0)
    assert nodes.read("dn2", block, len(data)) == data


def test_pipelines_opened_later_have_leaders_of_their_own(nodes: Datanodes):
    settle(nodes)
    assert nodes.open_pipeline(1, ["dn2", "dn3", "dn1"]) == "dn2"
    assert nodes.open_pipeline(2, ["dn3"]) == "dn3"
    one, two = nodes.block(1, 1), nodes.block(2, 1)
    data = os.urandom(100_000)
    nodes.write(one, data)
    nodes.write(two, data)
    assert all(watched.satisfied for watched in [*nodes.watch(one, len(data)), *nodes.watch(two, len(data))])
    assert refused(lambda: nodes.commit(two, data, to="dn1")).code == codes.NO_SUCH_PIPELINE
    nodes.wait_converged(1)
    nodes.ask("dn1", ClosePipeline(partition=1, generation=1))
    assert refused(lambda: nodes.commit(nodes.block(1, 2), data)).code == codes.PIPELINE_CLOSED
    assert nodes.read("dn1", one, len(data)) == data


@pytest.mark.slow
def test_a_pipeline_is_opened_again_and_has_what_it_had(nodes: Datanodes):
    """Its members were away, the Object Manager has retired it, and they are back."""
    settle(nodes)
    leader = nodes.open_pipeline(4)
    old, late, data = nodes.block(4, 1), nodes.block(4, 2), os.urandom(150_000)
    nodes.write(old, data)
    nodes.ask(leader, ClosePipeline(partition=4, generation=1))
    assert refused(lambda: nodes.write(late, data)).code == codes.PIPELINE_CLOSED
    other = next(name for name in nodes.names if name != leader)
    nodes.stop(other)
    nodes.start(other)
    nodes.open_pipeline(4, generation=2)

    def opened() -> bool:
        found = [nodes.pipeline(name, 4) for name in nodes.names]
        return all((one.get("generation"), one.get("state")) == (2, "OPEN") for one in found)

    nodes.wait("all members have the second generation", opened)
    new = nodes.block(4, 3, container=2)
    nodes.write(new, data)
    assert all(one.satisfied for one in nodes.watch(new, len(data)))
    assert refused(lambda: nodes.write(late, data)).code == codes.CONTAINER_CLOSED
    stale = OpenPipeline(pipeline="pipeline-4", partition=4, generation=1, members=nodes.members())
    assert refused(lambda: nodes.ask(leader, stale)).code == codes.INVALID_REQUEST
    assert refused(lambda: nodes.ask(leader, ClosePipeline(partition=4, generation=1))).code == codes.INVALID_REQUEST
    nodes.stop(leader)
    nodes.start(leader)
    nodes.wait("all members have it", opened)
    for name in nodes.names:
        assert nodes.read(name, old, len(data)) == nodes.read(name, new, len(data)) == data
    nodes.wait_converged(4)
    leader = nodes.wait_leader(4)
    nodes.ask(leader, ClosePipeline(partition=4, generation=2))
    nodes.ask(leader, OpenPipeline(pipeline="pipeline-4", partition=4, generation=2, members=nodes.members()))
    assert nodes.pipeline(leader, 4)["state"] == "CLOSED", "of a closed one only its members' addresses are told"


@pytest.mark.slow
def test_a_closed_container_is_copied_to_a_datanode_that_is_no_member(nodes: Datanodes):
    settle(nodes)
    assert nodes.open_pipeline(3, ["dn1", "dn2"]) == "dn1"
    blocks = {nodes.block(3, number): os.urandom(number * 50_000) for number in (1, 2, 3)}
    for one, data in blocks.items():
        nodes.write(one, data)
    gone = nodes.block(3, 3)
    nodes.ask("dn1", DeleteBlocks(partition=3, blocks=[BlockId(container_id=gone.container_id, local_id=3)]))
    fetch = FetchContainer(partition=3, container_id=gone.container_id, sources=[nodes.address("dn2")])
    assert refused(lambda: nodes.ask("dn3", fetch)).code == codes.NOT_COMMITTED, "it is not closed yet"
    nodes.ask("dn1", CloseContainer(partition=3, container_id=gone.container_id))
    nodes.wait(
        "dn2 closes it", lambda: nodes.ask("dn2", ListContainer(partition=3, container_id=gone.container_id)).closed
    )
    nodes.ask("dn3", fetch)
    assert nodes.read("dn3", nodes.block(3, 2), 100_000) == blocks[nodes.block(3, 2)]
    assert refused(lambda: nodes.read("dn3", gone, 1)).code == codes.BLOCK_DELETED
    again = FetchContainer(partition=3, container_id=gone.container_id, sources=[nodes.address("dn3")])
    assert "already" in nodes.ask("dn3", again).detail
    # Deleted from the copy, as the Object Manager has it done before it forgets a block.
    folder = nodes.block_file("dn3", nodes.block(3, 1)).parent
    kept = sorted(path.name for path in folder.iterdir())
    first, second = (BlockId(container_id=gone.container_id, local_id=number) for number in (1, 2))
    nodes.ask("dn3", DeleteBlocks(partition=3, blocks=[first]))
    assert len(list(folder.iterdir())) == len(kept) - 1
    assert refused(lambda: nodes.read("dn3", nodes.block(3, 1), 1)).code == codes.BLOCK_DELETED
    assert nodes.read("dn3", nodes.block(3, 2), 100_000) == blocks[nodes.block(3, 2)]
    nodes.stop("dn3")
    nodes.start("dn3")
    assert refused(lambda: nodes.read("dn3", nodes.block(3, 1), 1)).code == codes.BLOCK_DELETED
    nodes.ask("dn3", DeleteBlocks(partition=3, blocks=[first, second]))
    assert not folder.exists()
    assert refused(lambda: nodes.ask("dn3", DeleteBlocks(partition=3, blocks=[second]))).code == codes.NO_SUCH_PIPELINE
    assert nodes.read("dn2", nodes.block(3, 2), 100_000) == blocks[nodes.block(3, 2)], "its pipeline has it still"


def test_members_report_equal_digests_of_what_their_disks_hold(nodes: Datanodes, block: Block):
    data = os.urandom(3 * CELL_BYTES + 9)
    nodes.write(block, data)
    assert all(one.satisfied for one in nodes.watch(block, len(data)))
    nodes.kill(nodes.wait_leader(0))  # a new claim begins with a scrub
    settle(nodes)
    consumer = Consumer(
        {"bootstrap.servers": nodes.kafka.bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(DN_AUDIT, 0, OFFSET_BEGINNING)])
    found: dict[int, dict[str, object]] = {}

    def all_three() -> bool:
        for message in consumer.consume(1000, 0.5):
            value = decode(message.value() or b"")
            if isinstance(value, BlockReport):
                found.setdefault(value.index, {})[value.datanode] = (value.log_offset, value.complete, value.containers)
        return any(len(reports) >= 2 and index > 0 for index, reports in found.items())

    try:
        nodes.wait("reports of one index", all_three)
    finally:
        consumer.close()
    for reports in found.values():
        assert len({repr(report) for report in reports.values()}) == 1


@pytest.mark.slow
def test_prepared_for_an_upgrade_everything_is_closed(lease_kafka: Callable[[], LocalKafka], tmp_path: Path):
    with Datanodes(tmp_path, lease_kafka(), count=1) as one:
        one.open_pipeline(0)
        block, data = one.block(0, 1), os.urandom(1000)
        one.write(block, data)
        url = f"http://{one.http_address('dn1')}/v1/prepare-upgrade"
        for strangers in (None, ClusterSecret(b"of another cluster" * 2).sign):
            answer = httpx.post(url, timeout=60, trust_env=False, auth=strangers)
            assert (answer.status_code, answer.json()["error"]) == (403, "PERMISSION_DENIED")
        assert not (one.status("dn1") or {})["upgrade_prepared"]
        answer = httpx.post(url, timeout=60, trust_env=False, auth=SECRET.sign)
        assert (answer.status_code, answer.json()["pipelines"]) == (200, ["pipeline-0"])
        assert (one.status("dn1") or {})["upgrade_prepared"]
        assert refused(lambda: one.commit(one.block(0, 2), data)).code == codes.PIPELINE_CLOSED
        one.stop("dn1")
        one.start("dn1")
        assert (one.status("dn1") or {})["upgrade_prepared"]
        assert one.read("dn1", block, len(data)) == data


@pytest.mark.slow
def test_a_datanode_that_is_stopped_as_soon_as_it_answers_ends(nodes: Datanodes):
    """Its consumer is just joining its group then, and does not hear of it."""
    settle(nodes)
    last = nodes.names[-1]
    nodes.kill(last)
    for _ in range(3):
        nodes.start(last)
        nodes.stop(last)
