"""Requests that wait for the leader: on the real leader loop over the in-memory log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.pipeline import proposals as limits_of
from datanode_processors.pipeline.core.block_service import BlockService, LogPipelineBase
from datanode_processors.pipeline.core.block_tables import DN_FAMILIES
from datanode_processors.pipeline.proposals import HandedOver, Proposals
from replicated_db.core.applying.replica import Identity, Offered, Replica
from replicated_db.core.leading.leader import LeaderLimits, claim_for
from replicated_db.core.tables.memory import ManualClock, MemoryAppender, MemoryLog, MemoryStore, SequenceIds
from replicated_db.shell.leader_loop import LeaderLoop
from schemas import stream_errors as codes
from schemas.codecs.codec import encode
from schemas.records.datanode import (
    BlockCommitted,
    CloseContainer,
    Member,
    OpenPipeline,
    PutBlock,
    PutBlocks,
    WholeBlock,
    WriteChunk,
)
from schemas.sharding import MAX_PIPELINES
from tests.support.datanodes.checksums import checksums_of

WAIT_S = 20.0
OPENING = OpenPipeline(
    pipeline="pipeline-0", partition=0, generation=1,
    members=[Member(datanode="dn1", address="x:1", http_address="x:2", rack="/r")],
)  # fmt: skip


def put(local_id: int, length: int = 10, *, wait_effective: bool = True) -> PutBlock:
    return PutBlock(
        partition=0, container_id=256, local_id=local_id, length=length, bytes_per_checksum=512,
        checksums=checksums_of(b"x" * length, 512), wait_effective=wait_effective,
    )  # fmt: skip


def wrong(local_id: int, *, wait_effective: bool = True) -> PutBlock:
    """As ``put``, with other bytes."""
    return PutBlock(
        partition=0, container_id=256, local_id=local_id, length=10, bytes_per_checksum=512, checksums=b"oops",
        wait_effective=wait_effective,
    )  # fmt: skip


class Ignored:
    def publish(self, replica: Replica, outcome: Offered) -> None:
        if outcome.snapshot is not None:
            outcome.snapshot.close()


class HeldAppender(MemoryAppender):
    """Delivers the claim and Genesis, and what was appended before ``held`` was set."""

    def append(self, token: int, value: bytes) -> None:
        self.in_flight.append((token, value))

    def poll(self, wait_s: float) -> Any:
        while self.in_flight and not self.log.held:  # type: ignore[attr-defined]
            self.deliver()
        return super().poll(wait_s)


class HeldLog(MemoryLog):
    held = False

    def appender(self) -> MemoryAppender:
        return HeldAppender(self)


class World:
    def __init__(self) -> None:
        clock = ManualClock()
        self.log = HeldLog(clock)
        identity = Identity(cluster="test", shard=0, shards=MAX_PIPELINES, node="dn1")
        self.replica = Replica(identity, DN_FAMILIES, MemoryStore(DN_FAMILIES.names), threading.RLock())
        self.replica.adopt_topic(self.log.topic_id(), None)
        self.proposals = Proposals(BlockService(partition=0, node="dn1"), Ignored(), first=lambda: OPENING)
        self.loop = LeaderLoop(
            self.replica, HandedOver(self.log, self.proposals.handed_over), self.proposals, LeaderLimits(), clock=clock,
            ids=SequenceIds(), address="x:1", outbox=self.proposals, intake=self.proposals.begin,
            replicas=["dn1"],
        )  # fmt: skip
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._lead, daemon=True)

    def _lead(self) -> None:
        self.ended = self.loop.lead(self.stop)


@contextmanager
def leading() -> Iterator[World]:
    world = World()
    world.thread.start()
    try:
        while not world.loop.leading:
            assert world.thread.is_alive()
        yield world
    finally:
        world.log.held = False
        world.stop.set()
        world.thread.join(WAIT_S)
        assert not world.thread.is_alive()


def test_nobody_leads_before_the_claim():
    with pytest.raises(BlockError) as caught:
        World().proposals.submit(put(1))
    assert caught.value.code == codes.NOT_LEADER


def test_an_answer_tells_index_and_offset():
    with leading() as world:
        first = world.proposals.submit(put(1)).result(WAIT_S)
        second = world.proposals.submit(put(2)).result(WAIT_S)
        assert isinstance(first, BlockCommitted)
        assert (first.bcs_id, second.bcs_id) == (2, 3), "PipelineOpened is the first"
        assert 0 < first.log_offset < second.log_offset == world.replica.position.offset
        with pytest.raises(BlockError) as caught:
            world.proposals.submit(wrong(1)).result(WAIT_S)
        assert caught.value.code == codes.CHECKSUM_MISMATCH


def test_an_early_answer_does_not_wait_for_the_log():
    with leading() as world:
        world.proposals.submit(put(1)).result(WAIT_S)
        world.log.held = True
        early = world.proposals.submit(put(2, wait_effective=False)).result(WAIT_S)
        assert (early.bcs_id, early.log_offset) == (3, -1)
        assert world.replica.position.index == 2, "it is not effective"
        late = world.proposals.submit(put(3))
        world.log.held = False
        assert late.result(WAIT_S).bcs_id == 4
        assert world.replica.position.index >= 3


def test_a_refusal_is_not_early():
    with leading() as world:
        world.proposals.submit(put(1)).result(WAIT_S)
        world.log.held = True
        answer = world.proposals.submit(wrong(1, wait_effective=False))
        with pytest.raises(TimeoutError):
            answer.result(0.2)
        world.log.held = False
        with pytest.raises(BlockError):
            answer.result(WAIT_S)


def test_what_is_unanswered_when_the_leadership_ends_is_told_so():
    with leading() as world:
        world.proposals.submit(put(1)).result(WAIT_S)
        world.log.held = True
        lost = world.proposals.submit(put(2))
        while not world.proposals._waiting or world.proposals._queue.qsize():
            pass
        # Another claim before the delivery: what was in flight does not count.
        world.log.append(encode(claim_for(world.replica, b"z" * 16, "y:1", 1_000_000)))
        world.log.held = False
        with pytest.raises(BlockError) as caught:
            lost.result(WAIT_S)
        assert caught.value.code == codes.NOT_LEADER
        world.thread.join(WAIT_S)
        assert "did not count" in world.ended
        with pytest.raises(BlockError):
            world.proposals.submit(put(3))


def test_waiting_requests_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits_of, "MAX_WAITING", 3)
    with leading() as world:
        world.proposals.submit(put(1)).result(WAIT_S)
        world.log.held = True
        waiting = [world.proposals.submit(put(number)) for number in (2, 3, 4)]
        with pytest.raises(BlockError) as caught:
            world.proposals.submit(put(5))
        assert caught.value.code == codes.OVERLOADED
        assert world.proposals.refused == 1
        world.log.held = False
        for answer in waiting:
            answer.result(WAIT_S)
        world.proposals.submit(put(5)).result(WAIT_S)


# ---------------------------------------------------------------------------------------------- without a leader's loop


def chunk(size: int) -> WriteChunk:
    return WriteChunk(partition=0, container_id=256, local_id=1, offset=0, data=bytes(size), checksum=0)


def together(*checksums: int) -> PutBlocks:
    blocks = [
        WholeBlock(container_id=256, local_id=number, length=1, checksums=bytes(size))
        for number, size in enumerate(checksums, 1)
    ]
    return PutBlocks(partition=0, bytes_per_checksum=512, blocks=blocks)


CLOSE = CloseContainer(partition=0, container_id=256)


def begun(first: Any = None) -> Proposals:
    return Proposals(BlockService(partition=0, node="dn1"), Ignored(), first=lambda: first).begin(None)


def is_taken(proposals: Proposals, request: Any) -> bool:
    refused = proposals.refused
    try:
        proposals.submit(request)
    except BlockError as error:
        found = error
    else:
        return True
    assert (found.code, proposals.refused) == (codes.OVERLOADED, refused + 1)
    return False


@pytest.mark.parametrize(
    ("request_", "size"), [(chunk(40), 40), (put(1, 1000), 8), (together(4, 8, 12), 24), (CLOSE, 0)],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_waiting_requests_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch, request_: Any, size: int):
    monkeypatch.setattr(limits_of, "MAX_WAITING_BYTES", 100 + size)
    proposals = begun()
    assert is_taken(proposals, chunk(100))
    assert is_taken(proposals, request_), "as many as there is room for"
    assert not is_taken(proposals, chunk(1))
    assert is_taken(proposals, CLOSE)


def test_one_request_is_taken_however_large_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits_of, "MAX_WAITING_BYTES", 10)
    proposals = begun()
    assert is_taken(proposals, chunk(1000))
    assert not is_taken(proposals, CLOSE)
    proposals.close()
    proposals.begin(None)
    assert is_taken(proposals, chunk(1000)), "the room of those that were given up is free again"


def test_a_queued_request_cannot_be_called_off_and_is_told_when_the_claim_ends():
    proposals = begun()
    answers = [proposals.submit(put(number)) for number in (1, 2)]
    assert not any(answer.cancel() for answer in answers)
    assert [one.body for one in proposals.take(10, 0)] == [put(1), put(2)]
    proposals.close()
    for answer in answers:
        with pytest.raises(BlockError, match="whether it was executed is not known") as caught:
            answer.result(0)
        assert caught.value.code == codes.NOT_LEADER
    with pytest.raises(BlockError, match="partition 0 is not led here"):
        proposals.submit(put(3))


def test_a_claim_begins_with_its_own_request_and_without_those_of_the_last():
    proposals = begun(OPENING)
    proposals.submit(put(1))
    assert [one.body for one in proposals.take(10, 0)] == [OPENING, put(1)]
    proposals.submit(put(2))
    proposals.close()
    proposals.begin(None)
    proposals.submit(put(3))
    assert [one.body for one in proposals.take(10, 0)] == [OPENING, put(3)]


def test_a_base_begins_a_batch_of_its_own_and_a_request_does_not():
    proposals = begun()
    proposals.submit(LogPipelineBase(0))
    proposals.submit(put(1))
    base, other = proposals.take(10, 0)
    assert (base.begins_batch, other.begins_batch) == (True, False)
    assert (base.request_type, other.request_type) == ("LogPipelineBase", "PutBlock")


def test_who_waits_for_requests_is_woken():
    proposals = begun()
    proposals.wake()
    assert proposals.take(10, 600.0) == []


class Told:
    """A log, and its appender, that remember what they were told, and answer with that."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def tell(*given: Any) -> Any:
            self.told.append((name, *given))
            return self if name == "appender" else (name, *given)

        return tell


def test_a_log_is_told_all_and_the_requests_before_an_append_are_handed_over():
    log: Any = Told()
    handed: Any = HandedOver(log, lambda: log.told.append("handed over"))
    assert handed.topic_id() == ("topic_id",)
    assert handed.bounds() == ("bounds",)
    assert handed.read(1, 2, 3.0) == ("read", 1, 2, 3.0)
    handed.rest()
    appender = handed.appender()
    appender.append(7, b"record")
    assert appender.poll(0.5) == ("poll", 0.5)
    appender.close()
    assert log.told[3:] == [
        ("rest",), ("appender",), ("append", 7, b"record"), "handed over", ("poll", 0.5), ("close",),
    ]  # fmt: skip
