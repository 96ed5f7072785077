"""Requests that go through the log: executed here, or sent on once over kept connections to a real stream server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors.config import DatanodeConfig
from datanode_processors.errors import BlockError
from datanode_processors.pipeline import log_requests as module
from datanode_processors.pipeline.leader_calls import (
    ANSWER_STEP_S,
    ANSWER_TIMEOUT_S,
    LeaderCalls,
    unwrap,
)
from datanode_processors.pipeline.log_requests import LogRequests
from datanode_processors.pipeline.pipeline_table import PipelineTable
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.kept_peers import MAX_KEPT_PEERS
from datanode_processors.wire.peer import Peer
from replicated_db.core.tables.memory import ManualClock
from schemas import stream_errors as codes
from schemas.codecs.codec import encode
from schemas.records.datanode import (
    Accepted,
    CloseContainer,
    ClosePipeline,
    Forwarded,
    GetBlock,
    PutBlock,
    PutBlocks,
    WriteChunk,
)
from tests.support.datanodes.checksums import checksums_of
from tests.support.datanodes.streams import CLUSTER, Datanode
from tests.support.local.waiting import eventually

PARTITION, CONTAINER = 3, 256 + 3
CLOSE = CloseContainer(partition=PARTITION, container_id=CONTAINER)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Datanode]:
    """A datanode that answers what is sent on to it with how many it has had; ``refusing`` is what it raises instead."""
    made: Any = Datanode("leader", tmp_path, WireLimits(stop_grace_s=0.2, linger_s=0.1))
    made.heard, made.refusing = [], None

    def handle(request: Any) -> Any:
        made.heard.append(request)
        if made.refusing is not None:
            raise made.refusing
        return Accepted(detail=str(len(made.heard)))

    made.pipelines.handle = handle
    yield made
    made.stop()


@pytest.fixture
def calls() -> Iterator[LeaderCalls]:
    made = LeaderCalls(node="dn1", cluster=CLUSTER)
    yield made
    made.close()


def connections(leader: Datanode) -> int:
    return leader.server.snapshot().connections


def test_requests_are_wrapped_and_go_over_one_connection(leader: Any, calls: LeaderCalls) -> None:
    for number in range(3):
        assert calls.ask(leader.address, CLOSE).detail == str(number + 1)
    assert leader.heard == [Forwarded(by="dn1", request=encode(CLOSE))] * 3
    assert (calls.sent, connections(leader)) == (3, 1)


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        (codes.NOT_LEADER, True), (codes.OVERLOADED, True), (codes.INVALID_REQUEST, True), (codes.FAILED, False),
        (codes.TIMED_OUT, False), (codes.STOPPING, False),
    ],
)  # fmt: skip
def test_a_connection_is_kept_if_the_refusal_is_the_leaders_own(
    leader: Any, calls: LeaderCalls, code: str, kept: bool
) -> None:
    leader.refusing = BlockError(code, "as if")
    with pytest.raises(BlockError) as caught:
        calls.ask(leader.address, CLOSE)
    assert (caught.value.code, len(leader.heard)) == (code, 1)
    assert len(calls.peers.pool) == kept
    eventually(lambda: connections(leader) == kept)


@pytest.mark.parametrize(("code", "times"), [(codes.NOT_LEADER, 1), (codes.TIMED_OUT, 1), (codes.FAILED, 2)])
def test_only_what_a_dead_connection_may_have_caused_is_asked_again(
    leader: Any, calls: LeaderCalls, code: str, times: int
) -> None:
    calls.ask(leader.address, CLOSE)
    leader.heard.clear()
    leader.refusing = BlockError(code, "as if")
    with pytest.raises(BlockError, match="as if"):
        calls.ask(leader.address, CLOSE)
    assert len(leader.heard) == times


def test_a_kept_connection_that_has_died_is_replaced(leader: Any, calls: LeaderCalls) -> None:
    calls.ask(leader.address, CLOSE)
    peer = calls.peers.pool.take(leader.address)
    assert peer is not None
    peer.interrupt()
    calls.peers.pool.give_back(peer)
    assert calls.ask(leader.address, CLOSE).detail == "2"
    assert calls.peers.pool.take(leader.address) is not peer


def test_a_request_that_fails_here_leaves_no_connection(
    leader: Any, calls: LeaderCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Peer, "receive_by", fail)
    with pytest.raises(KeyboardInterrupt):
        calls.ask(leader.address, CLOSE)
    eventually(lambda: connections(leader) == 0)
    assert len(calls.peers.pool) == 0


def test_so_many_connections_are_kept_and_none_after_the_end(leader: Any, calls: LeaderCalls) -> None:
    begun, at_last = threading.Semaphore(0), threading.Event()

    def handle(_: Any) -> Accepted:
        begun.release()
        at_last.wait(30)
        return Accepted(detail="")

    leader.pipelines.handle = handle
    asking = [
        threading.Thread(target=calls.ask, args=(leader.address, CLOSE), daemon=True) for _ in range(MAX_KEPT_PEERS + 2)
    ]
    for thread in asking:
        thread.start()
    for _ in asking:
        assert begun.acquire(timeout=30)
    at_last.set()
    for thread in asking:
        thread.join(30)
    assert len(calls.peers.pool) == MAX_KEPT_PEERS
    eventually(lambda: connections(leader) == MAX_KEPT_PEERS)
    calls.close()
    eventually(lambda: connections(leader) == 0)
    calls.ask(leader.address, CLOSE)
    eventually(lambda: connections(leader) == 0)


def test_a_leader_that_is_not_there_does_not_lead(leader: Any, calls: LeaderCalls) -> None:
    leader.stop()
    with pytest.raises(BlockError, match="the leader does not answer") as caught:
        calls.ask(leader.address, CLOSE)
    assert caught.value.code == codes.NOT_LEADER


def test_only_requests_for_the_log_are_sent_on() -> None:
    assert unwrap(Forwarded(by="dn2", request=encode(CLOSE))) == CLOSE
    wrong = GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=1)
    with pytest.raises(BlockError, match="dn2 sends on a GetBlock") as caught:
        unwrap(Forwarded(by="dn2", request=encode(wrong)))
    assert caught.value.code == codes.INVALID_REQUEST
    with pytest.raises(BlockError, match="dn2") as caught:
        unwrap(Forwarded(by="dn2", request=b"?"))
    assert caught.value.code == codes.INVALID_REQUEST


class Member:
    """A pipeline as a log request sees it; ``answers`` are what its leader's futures come to, one after the other."""

    def __init__(self) -> None:
        self.loop = SimpleNamespace(leading=True)
        self.opened = SimpleNamespace(pipeline="pipeline-3")
        self.changed = threading.Condition()
        self.leader = ""
        self.closed_after = 0
        """So many looks say that the pipeline is not closed."""
        self.submitted: list[Any] = []
        self.answers: list[Future[Any]] = []
        self.proposals = self

    def submit(self, request: Any) -> Future[Any]:
        self.submitted.append(request)
        return self.answers.pop(0)

    def leader_address(self) -> str:
        return self.leader

    def is_closed(self) -> bool:
        self.closed_after -= 1
        return self.closed_after < 0


class World:
    def __init__(self) -> None:
        config = DatanodeConfig(
            node="dn1", cluster=CLUSTER, host="127.0.0.1", port=7, http_port=0, bootstrap_servers="", data_dir=Path()
        )
        member: Any = Member()
        self.member = member
        self.clock = ManualClock()
        table = PipelineTable("dn1")
        table.put(PARTITION, self.member)
        self.requests = LogRequests(config, table, self.clock)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.requests.close()


def ended(outcome: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(outcome) if isinstance(outcome, Exception) else future.set_result(outcome)
    return future


class Slow(Future[Any]):
    """An answer for which every wait takes so long; it comes after some of them."""

    def __init__(self, world: World, waits: int, step_ms: int) -> None:
        super().__init__()
        self._world, self._waits, self._step_ms = world, waits, step_ms
        self.waited: list[float | None] = []

    def result(self, timeout: float | None = None) -> Any:
        self.waited.append(timeout)
        self._world.clock.advance(self._step_ms)
        if len(self.waited) <= self._waits:
            raise TimeoutError
        return "late"


def test_who_leads_executes_also_what_was_sent_on(world: World) -> None:
    world.member.answers = [ended("first"), ended("second"), ended(BlockError(codes.OVERLOADED, "many"))]
    assert world.requests.execute(CLOSE) == "first"
    assert world.requests.execute(Forwarded(by="dn2", request=encode(CLOSE))) == "second"
    with pytest.raises(BlockError, match="many"):
        world.requests.execute(CLOSE)
    assert world.member.submitted == [CLOSE] * 3
    assert world.requests.forwarded == 0


def test_who_does_not_lead_sends_on_once(world: World, leader: Any) -> None:
    world.member.loop.leading = False
    world.member.leader = leader.address
    assert world.requests.execute(CLOSE) == Accepted(detail="1")
    assert world.requests.forwarded == 1
    with pytest.raises(BlockError, match="dn1 does not lead pipeline-3") as caught:
        world.requests.execute(Forwarded(by="dn2", request=encode(CLOSE)))
    assert (caught.value.code, caught.value.hint) == (codes.NOT_LEADER, leader.address)
    assert len(leader.heard) == 1
    world.requests.close()
    eventually(lambda: connections(leader) == 0)


@pytest.mark.parametrize("address", ["", "127.0.0.1:7"])
def test_without_another_leader_there_is_nobody_to_ask(world: World, address: str) -> None:
    world.member.loop.leading = False
    world.member.leader = address
    with pytest.raises(BlockError) as caught:
        world.requests.execute(CLOSE)
    assert (caught.value.code, caught.value.hint) == (codes.NOT_LEADER, address)
    assert world.requests.forwarded == 0


def test_what_is_illegal_is_refused_before_it_is_executed(world: World) -> None:
    put = PutBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=1, length=10, bytes_per_checksum=512,
        checksums=checksums_of(bytes(10), 512) + b"more", wait_effective=True,
    )  # fmt: skip
    chunk = WriteChunk(
        partition=PARTITION, container_id=CONTAINER, local_id=1, offset=0, data=b"bytes", checksum=1
    )  # fmt: skip
    nothing = PutBlocks(partition=PARTITION, bytes_per_checksum=512, blocks=[])
    for wrong in (put, chunk, nothing):
        with pytest.raises(BlockError):
            world.requests.execute(wrong)
    with pytest.raises(BlockError) as caught:
        world.requests.execute(CloseContainer(partition=9, container_id=CONTAINER))
    assert caught.value.code == codes.NO_SUCH_PIPELINE
    assert world.member.submitted == []


def test_an_answer_is_waited_for_in_steps_until_time_is_up(world: World) -> None:
    late = Slow(world, 2, 1_000)
    never = Slow(world, 1_000, 10_000)
    world.member.answers = [late, never]
    assert world.requests.execute(CLOSE) == "late"
    assert late.waited == [ANSWER_STEP_S] * 3
    with pytest.raises(BlockError, match=f"not effective after {ANSWER_TIMEOUT_S:.0f} s") as caught:
        world.requests.execute(CLOSE)
    assert caught.value.code == codes.TIMED_OUT
    assert len(never.waited) == ANSWER_TIMEOUT_S // 10


def closing(world: World, timeout_s: float = 10.0) -> None:
    world.requests.close_pipeline(ClosePipeline(partition=PARTITION, generation=1), timeout_s)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Waits for a change take three seconds of the clock, and no time."""
    monkeypatch.setattr(module, "ANSWER_STEP_S", 0.001)
    real = world.member.changed.wait

    def wait(timeout_s: float) -> bool:
        world.clock.advance(3_000)
        return bool(real(timeout_s))

    world.member.changed.wait = wait


@pytest.mark.usefixtures("quick")
def test_a_pipeline_that_is_closed_is_not_asked_to_close(world: World) -> None:
    closing(world)
    assert world.member.submitted == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", [codes.NOT_LEADER, codes.OVERLOADED, codes.TIMED_OUT, codes.NO_SUCH_PIPELINE])
def test_closing_is_asked_for_again_while_a_refusal_may_pass(world: World, code: str) -> None:
    world.member.closed_after = 2
    world.member.answers = [ended(BlockError(code, "now")), ended("closed")]
    closing(world)
    assert len(world.member.submitted) == 2


@pytest.mark.usefixtures("quick")
def test_closing_ends_with_a_refusal_that_lasts_or_when_time_is_up(world: World) -> None:
    world.member.closed_after = 1_000
    world.member.answers = [ended(BlockError(codes.INVALID_REQUEST, "never"))]
    with pytest.raises(BlockError, match="never"):
        closing(world)
    world.member.answers = [ended("closed") for _ in range(10)]
    with pytest.raises(BlockError, match="pipeline-3 is not closed here after 10 s") as caught:
        closing(world)
    assert (caught.value.code, len(world.member.answers)) == (codes.TIMED_OUT, 6), "four times three seconds"
    world.clock.advance(1)
    late = ended(BlockError(codes.NOT_LEADER, "now"))
    world.member.answers = [late] * 10
    with pytest.raises(BlockError, match="is not closed here after 0 s"):
        closing(world, 0.001)
