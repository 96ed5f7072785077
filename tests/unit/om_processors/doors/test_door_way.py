"""The direct door and Kafka, as ways to one leader: the same answers, and what is said when a claim ends.

The intake, the outbox, the door, the gateway and the leader are the real ones, the brokers and the log are in memory.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from om_processors.intake.core.backlog import Backlog
from om_processors.intake.gateway import Gateway
from om_processors.intake.intake import RequestIntake
from om_processors.intake.outbox import KafkaOutbox
from producers.client import Client
from replicated_db.core.execution.retry import BELOW_FLOOR, REQUEST_LIFETIME_MS
from replicated_db.core.leading.leader import Proposal, Reply
from replicated_db.core.tables.column_families import RETRY
from replicated_db.core.tables.memory import ManualClock
from schemas.codecs.codec import decode_as, encode
from schemas.codecs.envelopes import responses_in
from schemas.door.frames import DoorFrame, DoorKind, door_frame
from schemas.records.door import DoorLeaders
from schemas.records.log import LATE_MODE, LEADER_MODE
from schemas.records.messages import CreateVolume, Requests, Response
from schemas.result_codes import CALL_ID_REUSED, INVALID_VOLUME_NAME, NOT_LEADER, REQUEST_EXPIRED, REQUEST_TOO_LARGE
from schemas.topics import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES, OM_REJECTED, OM_REQUESTS, OM_RESPONSES
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.local.secret import SECRET
from tests.support.local.waiting import eventually
from tests.support.om import late_world
from tests.support.om.door_site import DoorSite
from tests.support.om.late_world import START_MS, LateWorld, Rows
from tests.support.om.om_world import request_of
from tests.support.om.raw_door import RawDoor
from tests.support.om.requests import position

WAIT_S = 30.0
BROKERS, DIRECT = "brokers", "direct"
CLIENT = b"d" * 16
PARTITION = 3


class CountingOutbox(KafkaOutbox):
    """Counts the replies that have left."""

    replied = 0

    def reply(self, replies: Sequence[Reply]) -> None:
        super().reply(replies)
        self.replied += len(replies)


class Claim:
    """A claim of a shard on a node of the direct door: its intake, which the test takes from as the leader does."""

    def __init__(self, broker: MemoryBroker, site: DoorSite, clock: Any) -> None:
        broker.create(OM_REQUESTS, OM_RESPONSES, OM_REJECTED)
        broker.append(OM_REQUESTS, b"before")
        self.noted: list[str] = []
        self.outbox = CountingOutbox(broker.bootstrap_servers, clock, self.noted.append, lambda _: None)
        self.intake = RequestIntake(
            bootstrap_servers=broker.bootstrap_servers, shard=0, gateway=Gateway(shard=0, node="om1", secret=SECRET),
            outbox=self.outbox, clock=clock, hint=position(1, b"before"), log=self.noted.append,
            backlog=Backlog(max_queued=100), on_close=lambda: site.door.closed(0),
        )  # fmt: skip
        site.follow(1, "om1", site.address)
        site.door.opened(0, self.intake)

    def close(self) -> None:
        self.intake.close()
        self.outbox.close()


@contextmanager
def claimed(clock: Any = None) -> Iterator[tuple[MemoryBroker, DoorSite, Claim]]:
    with DoorSite() as site, memory_broker() as broker:
        claim = Claim(broker, site, clock or site_clock())
        try:
            yield broker, site, claim
        finally:
            claim.close()


def site_clock() -> Any:
    return ManualClock(now_ms=START_MS)


# -- the same answers by both ways -------------------------------------------------------------------------------------


class Shard(LateWorld):
    """A leader whose proposals come from an intake, and whose answers leave by its outbox."""

    outbox: KafkaOutbox | None = None

    def answered(self, proposal: Proposal, response: bytes) -> None:
        """Send an answer; the commands at the beginning have nobody to be sent to."""
        if self.outbox is not None:
            self.outbox.reply([Reply(proposal=proposal, response=response)])

    def serve(self, claim: Claim, count: int) -> None:
        """Take requests one by one until so many have been answered."""
        deadline_s = time.monotonic() + WAIT_S
        while claim.outbox.replied < count:
            assert time.monotonic() < deadline_s
            for proposal in claim.intake.take(1, 0.2):
                self.submit(proposal)
                self.settle()


def answers_by(way: str, values: Sequence[bytes], mode: str) -> tuple[list[bytes], Rows]:
    """Send requests; return the records that answer them one by one, and the rows that they leave."""
    shard = Shard(mode)
    shard.settle()
    with claimed(shard.clock) as (broker, site, claim), RawDoor(site.address, timeout_s=WAIT_S) as peer:
        shard.outbox = claim.outbox
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": MAX_MESSAGE_BYTES, "log_level": 0}
        )
        for value in values:
            if way == DIRECT:
                peer.send(door_frame(DoorKind.REQUESTS, encode(Requests(requests=[value]))))
            else:
                producer.produce(OM_REQUESTS, value, partition=0)
        assert not producer.flush(WAIT_S)
        shard.serve(claim, len(values))
        claim.outbox.close()
        sent = broker.count(OM_RESPONSES, PARTITION)
        assert sent == (0 if way == DIRECT else len(values)), "each answer goes the way that its request came"
        if way == DIRECT:
            found = [peer.hear(DoorKind.ANSWERS).payload for _ in values]
        else:
            found = [message.value() or b"" for message in broker.read(OM_RESPONSES, sent, PARTITION)]
        assert broker.count(OM_REJECTED) == 0
        assert claim.noted == []
        return found, shard.leader_node.rows()


def asked(call: int, *, sent_ms: int = 0, below: int = 0, volume: str | None = None) -> bytes:
    made = request_of(CreateVolume(volume=f"volume-{call}" if volume is None else volume))
    return encode(
        replace(
            made, client_id=CLIENT, call_id=call, first_sent_at_ms=START_MS + sent_ms, answered_below=below,
            reply_partition=PARTITION,
        )
    )  # fmt: skip


def asked_of_size(call: int, size: int) -> bytes:
    """Return a request of exactly so many bytes."""
    named = size - 1_000
    named += size - len(asked(call, volume="v" * named))
    found = asked(call, volume="v" * named)
    assert len(found) == size
    return found


EXPIRED = [
    (asked(1), "OK"),
    (asked(2, sent_ms=-REQUEST_LIFETIME_MS), REQUEST_EXPIRED),
    (asked(2, sent_ms=-REQUEST_LIFETIME_MS), REQUEST_EXPIRED),
    (asked(3, sent_ms=2 * REQUEST_LIFETIME_MS), REQUEST_EXPIRED),
    (asked(1), "OK"),
    (asked(1, volume="another"), CALL_ID_REUSED),
]
OVERSIZE = [
    (asked_of_size(1, MAX_REQUEST_BYTES + 1), REQUEST_TOO_LARGE),
    (asked_of_size(1, MAX_REQUEST_BYTES), INVALID_VOLUME_NAME),
    (asked(2), "OK"),
]
ANSWERED = [
    *((asked(call), "OK") for call in range(1, 5)),
    (asked(1), "OK"),
    (asked(5, below=5), "OK"),
    (asked(6, below=5), "OK"),
    (asked(5, below=5), "OK"),
    (asked(4), REQUEST_EXPIRED),
    (asked(7, below=5), "OK"),
]
REPEATED = 8
"""Which of them is repeated though its client has said that it has been answered."""
STORIES = {"expired": EXPIRED, "oversize": OVERSIZE, "answered_below": ANSWERED}


@pytest.mark.parametrize("mode", [LEADER_MODE, LATE_MODE])
@pytest.mark.parametrize("story", STORIES)
def test_both_ways_lead_to_the_same_answers_byte_for_byte(story: str, mode: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(late_world, "LIMITS", replace(late_world.LIMITS, early_removal_calls=3))
    values, statuses = [value for value, _ in STORIES[story]], [status for _, status in STORIES[story]]
    by_brokers, rows_by_brokers = answers_by(BROKERS, values, mode)
    by_door, rows_by_door = answers_by(DIRECT, values, mode)
    assert by_door == by_brokers
    assert rows_by_door == rows_by_brokers
    answers = [decode_as(Response, one) for record in by_door for one in responses_in(record)]
    if story == "answered_below" and mode == LATE_MODE:
        statuses[REPEATED] = "OK"
    assert [answer.status for answer in answers] == statuses
    if story == "expired":
        assert by_door[4] == by_door[0], "a repeated call gets its first answer"
    if story == "answered_below":
        assert (by_door[4], by_door[7]) == (by_door[0], by_door[5])
        assert (BELOW_FLOOR in answers[REPEATED].message) is (mode == LEADER_MODE)
        kept = [key for cf, key in rows_by_door if cf == RETRY and key[:16] == CLIENT and len(key) == 24]
        calls = [5, 6, 7] if mode == LEADER_MODE else [1, 2, 3, 4, 5, 6, 7]
        assert [int.from_bytes(key[16:], "big") for key in kept] == calls, "late validation raises no floor"


# -- the end of a claim with calls that nobody has answered ------------------------------------------------------------

NEXT = "10.0.0.2:9871"


def until(peer: RawDoor, count: int) -> list[DoorFrame]:
    """Return the frames up to and with so many answers."""
    frames: list[DoorFrame] = []
    while count:
        while not peer._heard:
            peer._heard += peer._frames.take(peer.sock.recv(65_536))
        frames.append(peer._heard.pop(0))
        if frames[-1].kind is DoorKind.ANSWERS:
            count -= len(responses_in(frames[-1].payload))
    return frames


def taken(claim: Claim, count: int) -> list[Proposal]:
    found: list[Proposal] = []
    while len(found) < count:
        found += claim.intake.take(100, WAIT_S)
    return found


def statuses_of(frame: DoorFrame) -> list[tuple[int, str, str]]:
    answers = [decode_as(Response, one) for one in responses_in(frame.payload)]
    return [(answer.call_id, answer.status, answer.message) for answer in answers]


def send(peer: RawDoor, *calls: int) -> None:
    peer.send(door_frame(DoorKind.REQUESTS, encode(Requests(requests=[asked(call) for call in calls]))))


ENDED = "the leadership of shard 0 ended before an answer"


def test_who_leads_next_is_told_before_the_calls_of_a_claim_that_ends():
    """Some calls have been taken and others have only arrived: all are answered, behind the word on who leads."""
    with claimed() as (_, site, claim), RawDoor(site.address, timeout_s=WAIT_S) as peer:
        assert decode_as(DoorLeaders, peer.hear(DoorKind.LEADERS).payload).leaders[0].address == site.address
        send(peer, 1, 2)
        assert len(taken(claim, 2)) == 2
        send(peer, 3)
        eventually(lambda: claim.intake._put == 3)
        site.follow(2, "om2", NEXT)
        claim.intake.close()
        frames = until(peer, 3)
        first = next(number for number, frame in enumerate(frames) if frame.kind is DoorKind.ANSWERS)
        leader = decode_as(DoorLeaders, frames[first - 1].payload).leaders[0]
        assert (leader.term, leader.node, leader.address) == (2, "om2", NEXT)
        said = [one for frame in frames[first:] for one in statuses_of(frame)]
        assert sorted(said) == [(call, NOT_LEADER, ENDED) for call in (1, 2, 3)]
        send(peer, 4)
        *_, told, refused = until(peer, 1)
        assert decode_as(DoorLeaders, told.payload).leaders[0].address == NEXT
        assert statuses_of(refused) == [(4, NOT_LEADER, "shard 0 is not led by om1, but by om2")]


def test_if_nobody_leads_next_calls_are_refused_and_the_next_word_on_who_leads_is_told():
    with claimed() as (_, site, claim), RawDoor(site.address, timeout_s=WAIT_S) as peer:
        peer.hear(DoorKind.LEADERS)
        send(peer, 1)
        taken(claim, 1)
        claim.intake.close()
        *_, answer = until(peer, 1)
        assert statuses_of(answer) == [(1, NOT_LEADER, ENDED)]
        send(peer, 1)
        *_, told, answer = until(peer, 1)
        assert decode_as(DoorLeaders, told.payload).leaders[0].term == 1, "as far as the node has read"
        assert statuses_of(answer) == [(1, NOT_LEADER, "shard 0 is not led by om1 just now")]
        site.follow(2, "om2", NEXT)
        leader = decode_as(DoorLeaders, peer.hear(DoorKind.LEADERS).payload).leaders[0]
        assert (leader.term, leader.node, leader.address) == (2, "om2", NEXT), "it is told without having asked"


@contextmanager
def asked_again(site: DoorSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[queue.SimpleQueue[int]]:
    """Gather how many requests come to a node."""
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    submit = site.door.submit

    def counted(connection: Any, shard: int, requests: Sequence[bytes], key: Any, seal: Any) -> None:
        came.put(len(requests))
        submit(connection, shard, requests, key, seal)

    with monkeypatch.context() as patched:
        patched.setattr(site.door, "submit", counted)
        yield came


@pytest.mark.parametrize("is_known", [True, False], ids=["the next is known", "nobody is known"])
def test_calls_of_a_claim_that_ends_go_to_the_next_leader(is_known: bool, monkeypatch: pytest.MonkeyPatch):
    """While nobody is known the client waits and asks again; a word on who leads ends that."""
    with (
        DoorSite(node="om2") as other,
        claimed() as (_, site, claim),
        Client(nodes=[site.address], caller="ann") as client,
    ):
        calls = [client.submit(CreateVolume(volume=f"v{number}")) for number in range(3)]
        bodies = [proposal.body for proposal in taken(claim, 3)]
        if is_known:
            leader = other.lead(term=2)
            site.follow(2, "om2", other.address)
        with asked_again(site, monkeypatch) as came:
            claim.intake.close()
            if not is_known:
                for _ in range(2):
                    came.get(timeout=WAIT_S)
                assert not any(call.done() for call in calls)
                leader = other.lead(term=2)
                site.follow(2, "om2", other.address)
            assert [call.result(WAIT_S).status for call in calls] == ["OK"] * 3
            assert not is_known or came.empty(), "the old leader is not asked again"
        assert {request.call_id for request in leader.executed} == {body.call_id for body in bodies}
        assert all(request in bodies for request in leader.executed), "the same requests, for retry rows to absorb"
