"""How a leader reads its requests: from its hint on, with refusals on the way, on a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from xxhash import xxh3_128_digest

from om_processors.leading import intake
from om_processors.leading.core.backlog import Backlog
from om_processors.leading.core.preparation import RETRY_AFTER_MS
from om_processors.leading.gateway import Gateway
from om_processors.leading.intake import MAX_OUT_OF_RANGE, RESUME_BACK_MS, RequestIntake
from om_processors.leading.outbox import KafkaOutbox
from replicated_db.core.leading.leader import Proposal, Reply
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.tables.memory import ManualClock
from replicated_db.shell.kafka.kafka_log import REQUEST_TIMEOUT_S
from schemas.codecs.codec import decode_as, encode
from schemas.codecs.envelopes import enveloped_requests, responses_in
from schemas.records.log import RequestPosition
from schemas.records.messages import CreateSnapshot, CreateVolume, PurgeBlocks, Rejected, Response
from schemas.result_codes import OVERLOADED, retry_after_ms
from schemas.topics import OM_REJECTED, OM_REQUESTS, OM_RESPONSES
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.local.secret import SECRET
from tests.support.om.om_world import request_of

SHARD = 1
WAIT_S = 5.0


def request(name: str, call_id: int = 1) -> bytes:
    return encode(replace(request_of(CreateVolume(volume=name)), call_id=call_id, reply_partition=3))


def position(offset: int, value: bytes) -> RequestPosition:
    return RequestPosition(offset=offset, leader_epoch=-1, hash=xxh3_128_digest(value))


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
        self.outbox = KafkaOutbox(broker.bootstrap_servers, self.clock, self.noted.append, lambda _: None)
        self.opened: list[RequestIntake] = []

    def open(self, hint: RequestPosition | None = None, servers: str = "") -> RequestIntake:
        found = RequestIntake(
            bootstrap_servers=servers or self.broker.bootstrap_servers, shard=SHARD,
            gateway=Gateway(shard=SHARD, node="om1", secret=SECRET), outbox=self.outbox, clock=self.clock, hint=hint,
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
    first = names(list(found.take(2, WAIT_S)))
    while not first:
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
    monkeypatch.setattr(intake, "REQUEST_TIMEOUT_S", 0.05)
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


@pytest.mark.parametrize(
    "code", [KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION]
)
def test_after_a_truncation_other_brokers_are_asked_before_anything_is_read_again(case: Case, code: int):
    case.say(request("vol0"), request("vol1", 2))
    found = case.open(position(1, request("vol0")))
    for _ in range(MAX_OUT_OF_RANGE - 1):
        before = found._reader.consumer
        assert found._recover(KafkaError(code, "beyond the end"))
        assert found._reader.consumer is not before, "another broker may answer this one"
    assert case.noted == [f"{OM_REQUESTS}/{SHARD}: beyond the end"] * (MAX_OUT_OF_RANGE - 1)
    assert names(take(found, 1)) == ["vol1"], "it goes on where it was"
    for _ in range(MAX_OUT_OF_RANGE):
        assert found._recover(KafkaError(code, "beyond the end"))
    assert "(hint: none)" in case.noted[-1], "all say so: it resumes ten minutes back"
    assert found._out_of_range == 0


def test_what_librdkafka_tries_again_by_itself_needs_no_recovery(case: Case):
    found = case.start()
    assert not found._recover(KafkaError(KafkaError._TRANSPORT, "connection lost"))
    assert case.noted == []


class Failed:
    """A message that tells of an error."""

    def __init__(self, code: int) -> None:
        self._code = code

    def error(self) -> KafkaError:
        return KafkaError(self._code, "why")


def test_errors_among_records_are_passed_over_until_one_says_that_the_log_was_cut(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    found = case.start()
    case.say(request("vol1"), request("vol2", 2))
    one, two = case.broker.read(OM_REQUESTS, 2, SHARD, offset=1)
    messages: list[Any] = [Failed(KafkaError._TRANSPORT), one, Failed(KafkaError.OFFSET_OUT_OF_RANGE), two]
    answers = iter([messages])
    monkeypatch.setattr(found._reader, "consume", lambda *_: next(answers, []))
    assert names(list(found.take(10, 0.0))) == ["vol1"], "what came behind it is read again"
    assert found._next_offset == 2
    assert found._out_of_range == 1


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


def test_without_a_hint_the_last_ten_minutes_are_read_again(case: Case):
    """The broker in this process knows no times, so that its answer is given here."""
    case.say(*(request(f"vol{number}") for number in range(4)))
    found = case.open()
    asked = []

    class Timed:
        def __init__(self, consumer: Any) -> None:
            self._consumer = consumer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._consumer, name)

        def offsets_for_times(self, since: list[TopicPartition], timeout: float) -> list[TopicPartition]:
            asked.append(([(one.topic, one.partition, one.offset) for one in since], timeout))
            return [TopicPartition(OM_REQUESTS, SHARD, 2)]

    timed: Any = Timed(found._reader.consumer)
    found._reader._consumer = timed
    found._resume(None)
    assert asked == [([(OM_REQUESTS, SHARD, case.clock.wall_ms() - RESUME_BACK_MS)], REQUEST_TIMEOUT_S)]
    assert names(take(found, 2)) == ["vol2", "vol3"]
    assert RESUME_BACK_MS == 600_000


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
