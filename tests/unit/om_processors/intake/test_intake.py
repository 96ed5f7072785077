"""How a leader reads its requests: from its hint on, with refusals on the way, on a broker in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from xxhash import xxh3_128_digest

from om_processors.identity.identities import Identities
from om_processors.intake import intake, request_reader
from om_processors.intake.core.backlog import Backlog
from om_processors.intake.core.foreign_topics import MAX_REFUSALS_PER_S
from om_processors.intake.core.seldom_note import NOTE_MS
from om_processors.intake.gateway import Gateway, Received
from om_processors.intake.intake import RequestIntake
from om_processors.intake.outbox import KafkaOutbox
from om_processors.leading.core.preparation import RETRY_AFTER_MS
from replicated_db.core.leading.leader import Proposal, Reply
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.tables.memory import ManualClock
from replicated_db.shell.kafka.kafka_log import REQUEST_TIMEOUT_S
from schemas.access.credentials import client_prefix, operator_credentials
from schemas.access.signatures import sealed_key
from schemas.codecs.codec import decode_as, encode
from schemas.codecs.envelopes import enveloped_requests, responses_in
from schemas.kafka.reply_keys import MARK, reply_in, reply_key
from schemas.records.log import RequestPosition
from schemas.records.messages import AddNode, CreateSnapshot, CreateVolume, PurgeBlocks, Rejected, Response
from schemas.result_codes import NOT_LEADER, OVERLOADED, retry_after_ms
from schemas.topics import OM_REJECTED, OM_REQUESTS, OM_RESPONSES
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.local.secret import SECRET
from tests.support.local.waiting import eventually
from tests.support.om.om_world import request_of
from tests.support.om.requests import SHARD, WAIT_S, position, request


class Case:
    """The requests of one shard, and what their leader answers by itself."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        broker.create(OM_REQUESTS, OM_RESPONSES, OM_REJECTED)
        self.clock = ManualClock(now_ms=1_000_000)
        self.noted: list[str] = []
        self.beats: list[float] = []
        self.backlog = Backlog(max_queued=100)
        self.may_take_snapshot = True
        self.spans: Any = None
        self.identities: Identities | None = None
        self.failures: list[BaseException] = []
        self.outbox = KafkaOutbox(broker.bootstrap_servers, self.clock, self.noted.append, self.failures.append)
        self.opened: list[RequestIntake] = []

    def open(self, hint: RequestPosition | None = None, servers: str = "") -> RequestIntake:
        found = RequestIntake(
            bootstrap_servers=servers or self.broker.bootstrap_servers, shard=SHARD,
            gateway=Gateway(shard=SHARD, node="om1", secret=SECRET, identities=self.identities), outbox=self.outbox, clock=self.clock, hint=hint,
            log=self.noted.append, backlog=self.backlog, beat=self.beats.append,
            may_take_snapshot=lambda: self.may_take_snapshot, spans=self.spans,
        )  # fmt: skip
        self.opened.append(found)
        return found

    def start(self) -> RequestIntake:
        """Open an intake at the beginning: its hint names the record before the first request."""
        self.say(b"before")
        return self.open(position(1, b"before"))

    def say(self, *values: bytes, key: bytes | None = None) -> None:
        self.broker.append(OM_REQUESTS, *values, partition=SHARD, key=key)

    def answers(self, count: int) -> list[Response]:
        """Return the responses that the leader has sent by itself, to the partition of their client."""
        self.outbox.close()
        messages = self.broker.read(OM_RESPONSES, self.broker.count(OM_RESPONSES, 3), 3)
        values = [value for message in messages for value in responses_in(message.value() or b"")]
        assert len(values) == count
        return [decode_as(Response, value) for value in values]


@pytest.fixture
def case() -> Iterator[Case]:
    with memory_broker() as broker:
        case = Case(broker)
        yield case
        for one in case.opened:
            one.close()
        case.outbox.close()


def test_a_users_responses_go_to_his_topic_if_there_is_one(case: Case):
    case.broker.create("om.responses.alice")
    for reply_to in (("om.responses.alice", 3), 3, ("om.responses.alice", 3)):
        case.outbox.reply([Reply(proposal=replace_reply(reply_to), response=b"answer")])
    case.outbox.close()
    assert (case.broker.count("om.responses.alice", 3), case.broker.count(OM_RESPONSES, 3)) == (2, 1)


def test_a_topic_of_responses_that_does_not_exist_is_looked_for_and_not_written_to(case: Case):
    case.outbox.reply([Reply(proposal=replace_reply(("om.responses.bob", 0)), response=b"answer")])
    case.broker.create("om.responses.bob")
    deadline_s = time.monotonic() + WAIT_S
    while not case.outbox._topics.has("om.responses.bob"):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    case.outbox.close()
    assert case.broker.count("om.responses.bob", 0) == 0


def test_a_look_for_topics_that_fails_ends_the_process(case: Case, monkeypatch: pytest.MonkeyPatch):
    """The thread died in silence, and no user's topic was known from then on."""
    assert not case.outbox._topics.has("om.responses.bob")
    monkeypatch.setattr(case.outbox._topics, "_look", lambda: 1 // 0)
    assert not case.outbox._topics.has("om.responses.bob")
    eventually(lambda: case.failures)
    assert isinstance(case.failures[0], ZeroDivisionError)


def test_a_flood_in_another_users_topic_ends_after_some_refusals_and_delays_nobody(case: Case):
    case.broker.create("om.responses.alice")
    case.outbox._topics.has("om.responses.alice")
    case.identities = Identities(SECRET, lambda: None, case.clock)
    found = case.start()
    case.say(*(request(f"vol{n}") for n in range(MAX_REFUSALS_PER_S + 50)), key=reply_key("om.responses.alice"))
    own = operator_credentials(SECRET)
    signed = replace(request_of(CreateVolume(volume="vol1"), own.user), client_id=client_prefix(own.user) + bytes(10))
    value = encode(signed)
    case.say(value, key=sealed_key(own, value))
    (taken,) = take(found, 1)
    assert taken.body.caller == own.user
    case.outbox.close()
    refusals = case.broker.read("om.responses.alice", case.broker.count("om.responses.alice", 3), 3)
    assert sum(len(responses_in(message.value() or b"")) for message in refusals) == MAX_REFUSALS_PER_S


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (reply_key("om.responses.alice", b"proof"), ("om.responses.alice", b"proof")), (None, (None, None)), (b"", (None, b"")),
        (reply_key("om.responses.alice"), ("om.responses.alice", None)), (reply_key("om.log", b"p"), (None, b"p")),
        (reply_key("om.responses"), (None, None)), (reply_key("om.responses." + "a" * 64), (None, None)),
        (MARK, (None, MARK)), (MARK + b"\xff", (None, None)), (MARK + b"\x0eom.responses.\xff", (None, None)),
        (bytes(32), (None, bytes(32))),
    ],
)  # fmt: skip
def test_a_key_names_a_topic_of_responses_or_none(key, found):
    assert reply_in(key) == found


def replace_reply(reply_to: Any) -> Proposal:
    gateway = Gateway(shard=SHARD, node="om1", secret=SECRET)
    admitted = gateway.admit(Received(offset=0, value=request("vol1")), 0)
    assert isinstance(admitted, Proposal)
    admitted.reply_to = reply_to
    return admitted


def take(found: RequestIntake, count: int, limit: int = 100) -> list[Proposal]:
    """Take until so many proposals have come, and no more."""
    taken: list[Proposal] = []
    while len(taken) < count:
        some = found.take(limit, WAIT_S)
        assert len(some) <= limit
        taken += some
    assert found.take(limit, 0.01) == ()
    assert len(taken) == count
    return taken


def names(proposals: list[Proposal]) -> list[str]:
    return [proposal.body.body.volume for proposal in proposals]


def test_a_snapshot_that_comes_too_early_is_to_be_asked_for_again_and_delays_nobody(case: Case):
    found = case.start()
    case.may_take_snapshot = False
    snapshot = encode(
        replace(request_of(CreateSnapshot(volume="vol1", bucket="b", snapshot="")), call_id=7, reply_partition=3)
    )
    case.say(snapshot, request("vol2"))
    assert names(take(found, 1)) == ["vol2"]
    case.may_take_snapshot = True
    case.say(snapshot)
    assert names(take(found, 1)) == ["vol1"]
    [answer] = case.answers(1)
    assert (answer.call_id, answer.status) == (7, OVERLOADED)
    assert retry_after_ms(answer.message) == RETRY_AFTER_MS
    assert case.backlog.refused == 0


def test_requests_become_proposals_that_say_where_to_resume(case: Case):
    found = case.start()
    values = [request("vol1"), request("vol2", 2)]
    case.say(*values)
    one, two = take(found, 2)
    assert names([one, two]) == ["vol1", "vol2"]
    assert one.position is not None
    assert (one.position.offset, one.position.hash) == (2, xxh3_128_digest(values[0]))
    assert two.position is not None
    assert (two.position.offset, two.position.hash) == (3, xxh3_128_digest(values[1]))
    assert case.noted == []


def test_a_leader_goes_on_at_its_hint(case: Case):
    values = [request(f"vol{number}") for number in range(4)]
    case.say(*values)
    assert names(take(case.open(position(2, values[1])), 2)) == ["vol2", "vol3"]
    assert case.noted == []


def test_a_hint_at_the_end_waits_for_what_comes(case: Case):
    found = case.start()
    assert found.take(10, 0.01) == ()
    case.say(request("vol1"))
    assert names(take(found, 1)) == ["vol1"]


@pytest.mark.parametrize("offset", [1, 9])
def test_a_hint_that_does_not_fit_is_not_trusted(case: Case, offset: int):
    """Another record is before it, or it lies beyond the end: reading resumes ten minutes back."""
    case.say(request("vol1"), request("vol2"))
    found = case.open(position(offset, b"other"))
    (noted,) = case.noted
    assert noted.startswith(f"resume {OM_REQUESTS}/{SHARD} at ")
    assert noted.endswith(f"(hint: {offset})")
    case.say(request("vol3"))
    assert "vol3" in names(list(found.take(10, WAIT_S)))


def test_a_leader_without_a_hint_says_where_it_begins(case: Case):
    case.open()
    assert [noted.endswith("(hint: none)") for noted in case.noted] == [True]


def test_each_question_to_the_brokers_is_announced(case: Case):
    """The watchdog has to know how long the leader's thread may be kept."""
    case.start()
    assert case.beats == [REQUEST_TIMEOUT_S, REQUEST_TIMEOUT_S, 0]


def test_an_envelope_is_many_requests_and_only_the_last_tells_where_to_resume(case: Case):
    found = case.start()
    values = [request(f"vol{number}", number) for number in range(5)]
    (envelope,) = enveloped_requests(values)
    case.say(envelope)
    taken = take(found, 5, limit=2)
    assert names(taken) == [f"vol{number}" for number in range(5)]
    assert [one.position is None for one in taken] == [True, True, True, True, False]
    assert taken[-1].position is not None
    assert (taken[-1].position.offset, taken[-1].position.hash) == (2, xxh3_128_digest(envelope))


def test_bytes_that_are_no_request_are_kept_with_the_reason(case: Case):
    found = case.start()
    case.say(b"nonsense", request("vol1"))
    assert names(take(found, 1)) == ["vol1"]
    case.outbox.close()
    rejected = []
    for partition in range(4):
        count = case.broker.count(OM_REJECTED, partition)
        rejected += case.broker.read(OM_REJECTED, count, partition) if count else []
    (message,) = rejected
    assert message.key() == str(SHARD).encode()
    record = decode_as(Rejected, message.value() or b"")
    assert (record.shard, record.offset, record.node, record.value) == (SHARD, 1, "om1", b"nonsense")
    assert record.rejected_at_ms == case.clock.now_ms
    assert [noted.startswith(f"rejected offset 1 of {OM_REQUESTS}/{SHARD}: ") for noted in case.noted] == [True]


def test_a_flood_of_what_is_no_request_does_not_fill_the_log(case: Case):
    found = case.start()
    case.say(*[b"nonsense %d" % number for number in range(20)], request("vol1"))
    assert names(take(found, 1)) == ["vol1"]
    assert len(case.noted) == 1
    case.clock.advance(NOTE_MS)
    case.say(b"nonsense", request("vol2", 2))
    assert names(take(found, 1)) == ["vol2"]
    assert case.noted[-1].endswith(" (and 19 more before)")
    assert len(case.noted) == 2


def test_a_privileged_request_is_proven_by_the_key_of_its_record(case: Case):
    found = case.start()
    value = encode(replace(request_of(PurgeBlocks(shard=SHARD, rows=[b"row"])), reply_partition=3))
    case.say(value)
    case.say(value, key=SECRET.proof(value))
    (proposal,) = take(found, 1)
    assert proposal.body.body == PurgeBlocks(shard=SHARD, rows=[b"row"])
    assert [one.status for one in case.answers(1)] == ["PERMISSION_DENIED"]


def test_requests_of_an_envelope_have_no_proof(case: Case):
    found = case.start()
    value = encode(replace(request_of(PurgeBlocks(shard=SHARD, rows=[b"row"])), reply_partition=3))
    (envelope,) = enveloped_requests([request("vol1"), value])
    case.say(envelope, key=SECRET.proof(value))
    assert names(take(found, 1)) == ["vol1"]
    assert [one.status for one in case.answers(1)] == ["PERMISSION_DENIED"]


def test_the_surplus_is_refused_and_the_rest_is_executed(case: Case):
    """Oldest first; what is left is the limit."""
    case.backlog = Backlog(max_queued=4)
    found = case.start()
    case.say(*(request(f"vol{number}", number) for number in range(10)))
    deadline_s = time.monotonic() + 60
    while found.reader.ahead < 10:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    first = names(list(found.take(2, WAIT_S)))
    rest: list[str] = []
    while "vol9" not in rest:
        rest += names(list(found.take(2, WAIT_S)))
    refused = case.answers(case.backlog.refused)
    assert {one.status for one in refused} == {"OVERLOADED"}
    assert len(first) + len(rest) + len(refused) == 10
    assert 1 <= len(refused) <= 5
    assert f"wait for the leader of shard {SHARD}, more than 4" in refused[0].message
    assert first[0] == "vol0"


def test_of_the_surplus_what_cannot_be_executed_is_answered_as_ever(case: Case):
    case.backlog = Backlog(max_queued=0)
    found = case.start()
    value = encode(replace(request_of(PurgeBlocks(shard=SHARD, rows=[b"row"])), reply_partition=3))
    (envelope,) = enveloped_requests([request("vol1"), request("vol2", 2), value, request("vol3", 3)])
    case.say(envelope)
    taken: list[str] = []
    while not taken:
        taken = names(list(found.take(1, WAIT_S)))
    assert taken == ["vol1"]
    assert [one.status for one in case.answers(3)] == ["OVERLOADED", "PERMISSION_DENIED", "OVERLOADED"]
    assert case.backlog.refused == 3
    assert found.take(10, 0.01) == ()


def test_without_brokers_there_is_no_intake(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_reader, "REQUEST_TIMEOUT_S", 0.05)
    with pytest.raises(LogUnavailable):
        case.open(servers="127.0.0.1:1")


def test_responses_to_one_client_share_a_record(case: Case):
    proposals = take_from(case, [request(f"vol{number}", number) for number in range(3)])
    case.outbox.reply([Reply(proposal=one, response=encode(ok(number))) for number, one in enumerate(proposals)])
    case.outbox.reply([])
    assert [one.index for one in case.answers(3)] == [0, 1, 2]
    (message,) = case.broker.read(OM_RESPONSES, case.broker.count(OM_RESPONSES, 3), 3)
    assert message.key() == proposals[0].client_id


def test_a_response_that_cannot_be_sent_is_noted(case: Case):
    (proposal,) = take_from(case, [request("vol1")])
    proposal = replace(proposal, reply_to=10**6)
    case.outbox.reply([Reply(proposal=proposal, response=encode(ok(1)))])
    case.outbox.close()
    assert all(f"responses to client {proposal.client_id.hex()} not sent" in noted for noted in case.noted)


def take_from(case: Case, values: list[bytes]) -> list[Proposal]:
    found = case.start()
    case.say(*values)
    return take(found, len(values))


def ok(index: int) -> Response:
    return Response(client_id=bytes(16), call_id=1, shard=SHARD, index=index, status="OK", message="", result=None)


def test_an_envelope_that_is_broken_is_kept_with_the_reason(case: Case):
    found = case.start()
    (envelope,) = enveloped_requests([request("vol1"), request("vol2", 2)])
    case.say(envelope[:-3], request("vol3"))
    assert names(take(found, 1)) == ["vol3"]
    assert [noted.startswith(f"rejected offset 1 of {OM_REQUESTS}/{SHARD}: ") for noted in case.noted] == [True]


def test_of_the_surplus_what_is_no_request_is_kept_too(case: Case):
    case.backlog = Backlog(max_queued=0)
    found = case.start()
    (envelope,) = enveloped_requests([request("vol1"), b"nonsense", request("vol2", 2)])
    case.say(envelope)
    taken: list[str] = []
    while not taken:
        taken = names(list(found.take(1, WAIT_S)))
    assert taken == ["vol1"]
    assert case.backlog.refused == 1
    assert [noted.startswith(f"rejected offset 1 of {OM_REQUESTS}/{SHARD}: ") for noted in case.noted] == [True]


class Way:
    """The way back of a direct connection."""

    def __init__(self) -> None:
        self.answers: list[Response] = []
        self.rejected: list[str] = []

    def answer(self, shard: int, responses: Sequence[bytes]) -> None:
        assert shard == SHARD
        self.answers += [decode_as(Response, one) for one in responses]

    def reject(self, message: str) -> None:
        self.rejected.append(message)


def direct(way: Way, *values: bytes, key: bytes | None = None) -> list[Received]:
    return [Received(offset=-1, value=value, key=key, way=way) for value in values]


def test_requests_of_both_doors_are_taken_and_answered_the_way_they_came(case: Case):
    found, way = case.start(), Way()
    assert found.put(direct(way, request("direct", 5)))
    (one,) = take(found, 1)
    assert one.position is None, "a batch without a request of the topic keeps the last position"
    case.say(request("kafka", 6))
    (two,) = take(found, 1)
    assert names([one, two]) == ["direct", "kafka"]
    case.outbox.reply([Reply(proposal=each, response=encode(ok(number))) for number, each in enumerate([one, two])])
    assert [answer.index for answer in way.answers] == [0]
    assert [answer.index for answer in case.answers(1)] == [1]


def test_one_call_through_both_doors_is_answered_at_both(case: Case):
    found, way = case.start(), Way()
    value = request("vol1", 5)
    found.put(direct(way, value))
    case.say(value)
    taken = take(found, 2)
    assert len({(one.client_id, one.call_id, one.request_hash) for one in taken}) == 1
    case.outbox.reply([Reply(proposal=one, response=encode(ok(9))) for one in taken])
    assert [answer.index for answer in way.answers] == [9]
    assert [answer.index for answer in case.answers(1)] == [9]


def test_direct_calls_without_an_answer_hear_at_the_end_that_another_node_leads(case: Case):
    found, way, other = case.start(), Way(), Way()
    found.put(direct(way, request("taken", 1), request("answered", 2)))
    taken = take(found, 2)
    case.outbox.reply([Reply(proposal=taken[1], response=encode(ok(3)))])
    found.put(direct(other, request("waits", 4)))
    case.say(request("kafka", 5))
    found.close()
    assert [(answer.call_id, answer.status) for answer in way.answers] == [(1, "OK"), (1, NOT_LEADER)]
    assert [(answer.call_id, answer.status) for answer in other.answers] == [(4, NOT_LEADER)]
    assert not found.put(direct(other, request("late", 6))), "who asks later has to ask the next leader"
    case.outbox.reply([Reply(proposal=taken[0], response=encode(ok(7)))])
    assert len(way.answers) == 2, "a call is answered once"
    assert case.answers(0) == [], "the topic keeps what came through it for the next leader"


def test_bytes_of_the_direct_door_that_are_no_request_are_told_to_their_sender(case: Case):
    found, way = case.start(), Way()
    found.put(direct(way, b"nonsense", request("vol1")))
    assert names(take(found, 1)) == ["vol1"]
    assert len(way.rejected) == 1
    assert case.noted == [], "om.rejected is for records of om.requests: a stranger could fill it"


def test_a_direct_request_that_is_privileged_needs_its_proof(case: Case):
    found, way = case.start(), Way()
    value = encode(replace(request_of(PurgeBlocks(shard=SHARD, rows=[b"row"])), reply_partition=3))
    found.put(direct(way, value))
    found.put(direct(way, value, key=SECRET.proof(value)))
    (proposal,) = take(found, 1)
    assert proposal.body.body == PurgeBlocks(shard=SHARD, rows=[b"row"])
    assert [answer.status for answer in way.answers] == ["PERMISSION_DENIED"]


def test_refused_requests_do_not_hold_the_leaders_thread(case: Case):
    found, ways = case.start(), [Way() for _ in range(10)]
    case.backlog.max_queued = 1_000_000
    value = encode(request_of(AddNode(shard=SHARD, node="om9")))
    for way in ways:
        found.put(direct(way, *[value] * 2_000))
    good = Way()
    found.put(direct(good, request("vol1")))
    taken: list[Proposal] = []
    for turns in range(1, 12):
        before = sum(len(way.answers) for way in ways)
        taken += found.take(500, 0)
        assert sum(len(way.answers) for way in ways) - before <= intake.MAX_JUDGED
        if turns == 1:
            assert names(taken) == ["vol1"], "who asks for little is not behind those who ask for much"
    assert sum(len(way.answers) for way in ways) == 20_000, "each is answered, in time"


def test_large_requests_that_are_refused_end_a_turn_by_their_bytes(case: Case):
    found, way = case.start(), Way()
    value = b"\xff" * 1_000_000
    found.put(direct(way, *[value] * 50))
    assert found.take(500, 0) == []
    assert 0 < len(way.rejected) <= 1 + intake.MAX_JUDGED_BYTES // len(value)


def test_a_claim_that_ends_under_a_flood_ends_soon(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intake, "MAX_TOLD_AT_END", 40)
    found, many, few = case.start(), Way(), Way()
    found.put(direct(many, *[request("vol1")] * 100))
    found.put(direct(few, request("vol2")))
    found.close()
    assert [answer.status for answer in few.answers] == [NOT_LEADER]
    assert few.rejected == []
    assert len(many.answers) < 40
    assert many.rejected


def test_the_backlog_counts_both_doors(case: Case):
    case.backlog = Backlog(max_queued=4)
    found, way = case.start(), Way()
    found.put(direct(way, *(request(f"vol{number}", number) for number in range(10))))
    assert names(list(found.take(2, WAIT_S))) == ["vol0", "vol1"]
    assert [(answer.call_id, answer.status) for answer in way.answers] == [(2, OVERLOADED), (3, OVERLOADED)] + [
        (call, OVERLOADED) for call in range(4, 2 + case.backlog.refused)
    ]
    assert case.backlog.refused == 4
    assert len(take(found, 4)) == 4


def test_a_wait_is_ended_by_a_word(case: Case):
    found = case.start()
    threading.Timer(0.05, found.wake).start()
    begun_s = time.monotonic()
    assert found.take(10, 60.0) == ()
    assert time.monotonic() - begun_s < 30.0


def test_what_ends_the_reader_ends_the_leader(case: Case, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> None:
        raise LogUnavailable("gone")

    monkeypatch.setattr(request_reader.RequestReader, "read", fail)
    found = case.start()
    with pytest.raises(LogUnavailable, match="gone"):
        found.take(10, WAIT_S)


def test_the_reader_rests_while_the_leader_has_enough(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_reader, "READ_AHEAD_REQUESTS", 3)
    found = case.start()
    case.say(*(request(f"vol{number}", number) for number in range(20)))
    taken: list[Proposal] = []
    while len(taken) < 20:
        assert found.reader.ahead <= 3 + 1, "one record more than there is room, at most"
        taken += found.take(1, WAIT_S)
    assert names(taken) == [f"vol{number}" for number in range(20)]


def test_a_request_of_its_own_record_is_traced_by_the_records_key(case: Case):
    """A privileged one's key is its proof, and an envelope's key speaks for none of its requests."""
    seen: list[tuple[str, bytes]] = []
    spans: Any = SimpleNamespace(begin=lambda proposal, key: seen.append((proposal.request_type, key)))
    case.spans = spans
    found = case.start()
    (envelope,) = enveloped_requests([request("vol2", 2), request("vol3", 3)])
    case.say(request("vol1"), key=b"a key")
    case.say(envelope, key=b"a key")
    case.say(request("vol4", 4))
    assert names(take(found, 4)) == ["vol1", "vol2", "vol3", "vol4"]
    assert seen == [("CreateVolume", b"a key")]
