"""Requests that wait for the leader: on the real leader loop over the in-memory log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.pipeline import proposals as limits_of
from datanode_processors.pipeline.core.block_service import BlockService
from datanode_processors.pipeline.core.block_tables import DN_FAMILIES
from datanode_processors.pipeline.proposals import HandedOver, Proposals
from replicated_db.core.applying.replica import Identity, Offered, Replica
from replicated_db.core.leading.leader import LeaderLimits, claim_for
from replicated_db.core.tables.memory import ManualClock, MemoryAppender, MemoryLog, MemoryStore, SequenceIds
from replicated_db.shell.leader_loop import LeaderLoop
from schemas import stream_errors as codes
from schemas.codecs.codec import encode
from schemas.records.datanode import BlockCommitted, Member, OpenPipeline, PutBlock
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
            ids=SequenceIds(), address="x:1", outbox=self.proposals, intake=self.proposals.begin, cluster="test",
            replicas=["dn1"], hint=lambda: None,
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
