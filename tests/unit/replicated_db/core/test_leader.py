"""The leader over the in-memory twins: pipelining, effectiveness, deposition, answers, clocks, barriers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replicated_db.core.errors import AheadOfLog, StoreFailure
from replicated_db.core.execution.retry import RETENTION_MS
from replicated_db.core.execution.service import MAX_REFUSAL_BYTES
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import Deposed, Effective, LeaderLimits, LeaderPhase, Proposal
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import DeliveryReport
from replicated_db.core.tables.digests import FIRST_CHAIN, next_chain
from replicated_db.core.tables.merge import encode_int64
from replicated_db.core.trimming.bases import Base
from schemas.codecs.codec import decode, encode
from schemas.records.log import (
    Barrier,
    Batch,
    Checkpoint,
    Delete,
    DigestBase,
    FeatureLevel,
    Genesis,
    LeaderClaim,
    Members,
    Put,
    RequestPosition,
    Tick,
)
from tests.support.replicated.kit import (
    CLUSTER,
    LIMITS,
    NODES,
    START_MS,
    Shard,
    add,
    assert_sound,
    delete,
    propose,
    put,
    responses,
    rows,
)


@pytest.fixture
def shard() -> Shard:
    return Shard()


def log_records(shard: Shard) -> list[Any]:
    return [decode(entry.value) for entry in shard.log.entries]


def things(shard: Shard, name: str | None = None) -> dict[bytes, bytes]:
    replica = shard.replica if name is None else shard.nodes[name].replica
    return {key: value for (cf, key), value in rows(replica).items() if cf == "things"}


# One batch.


def test_genesis_comes_first_and_once(shard: Shard):
    claim, genesis = log_records(shard)
    assert isinstance(claim, LeaderClaim)
    assert isinstance(genesis, Genesis)
    assert (genesis.term, genesis.seq, genesis.cluster, genesis.replicas) == (1, 1, CLUSTER, NODES)
    assert shard.leader.genesis(CLUSTER, NODES) is None
    assert shard.replica.genesis == genesis


def test_nothing_is_answered_before_it_is_effective(shard: Shard):
    proposal = propose(put(b"a", b"1"))
    assert shard.execute(proposal) is None
    assert shard.leader.building == 1
    [append] = shard.leader.seal()
    assert shard.leader.building == 0
    assert shard.leader.in_flight == 1
    shard.append(append)
    assert things(shard) == {}
    [effective] = shard.deliver()
    assert [reply.proposal for reply in effective.replies] == [proposal]
    assert things(shard) == {b"a": b"1"}
    assert shard.leader.in_flight == 0


def test_a_batch_of_many_requests(shard: Shard):
    shard.batch(propose(put(b"a", b"1")), propose(body="no such thing"), propose(delete(b"a")), propose(add(b"n", 3)))
    record = log_records(shard_delivered(shard))[-1]
    assert isinstance(record, Batch)
    assert (record.first_index, record.last_index) == (1, 4)
    assert [result.index for result in record.results] == [1, 2, 3, 4]
    assert [result.response for result in record.results] == [b"done 1", b"no such thing", b"done 3", b"done 4"]
    assert len(record.operations) == 3
    assert (record.term, record.seq) == (1, 2)
    assert_sound(shard.replica)


def shard_delivered(shard: Shard) -> Shard:
    shard.deliver()
    return shard


def test_indexes_go_on_over_batches(shard: Shard):
    assert [shard.do(put(b"a", b"1")) for _ in range(3)] == [b"done 1", b"done 2", b"done 3"]
    assert shard.replica.position.index == 3


def test_read_your_writes_within_and_between_batches_in_flight(shard: Shard):
    def see(transaction: Transaction) -> bytes:
        return b",".join(key + b"=" + value for key, value in transaction.iterate("things", b""))

    shard.batch(propose(put(b"a", b"1")), propose(body=see))
    shard.batch(propose(put(b"b", b"2")), propose(delete(b"a")), propose(body=see))
    shard.batch(propose(body=see))
    assert [response for response in responses(shard.deliver()) if b"done" not in response] == [b"a=1", b"b=2", b"b=2"]


def test_an_answer_without_operations_is_logged_too(shard: Shard):
    assert shard.do(body="KEY_NOT_FOUND") == b"KEY_NOT_FOUND"
    assert log_records(shard)[-1].operations == []
    assert shard.replica.position.index == 1


def test_sealing_nothing(shard: Shard):
    assert shard.leader.seal() == []
    assert shard.leader.in_flight == 0


def test_the_request_position_is_the_last_ones(shard: Shard):
    at = [RequestPosition(offset=n, leader_epoch=3, hash=bytes(16)) for n in (4, 5)]
    shard.batch(propose(put(b"a", b"1"), position=at[0]), propose(put(b"a", b"1"), position=at[1]))
    shard.deliver()
    assert log_records(shard)[-1].request_position == at[1]
    assert shard.replica.request_position == at[1]
    assert shard.node.restart().replica.request_position == at[1]
    shard.do(put(b"b", b"1"))
    assert log_records(shard)[-1].request_position is None
    assert shard.replica.request_position == at[1]


def test_the_chain_covers_claims_and_counting_records(shard: Shard):
    shard.do(put(b"a", b"1"))
    shard.append(shard.leader.tick())
    shard.deliver()
    shard.lead("n2")
    shard.do(put(b"b", b"1"))
    chain = FIRST_CHAIN
    for entry in shard.log.entries:
        record = decode(entry.value)
        assert isinstance(record, LeaderClaim) or record.prev_chain == chain
        chain = next_chain(chain, entry.value)
    assert shard.replica.position.chain == chain


# Refusals and failures of one request.


def test_an_exception_is_answered_and_changes_nothing(shard: Shard):
    def fail(transaction: Transaction) -> bytes:
        transaction.put("things", b"half", b"done")
        raise ZeroDivisionError("oops")

    shard.batch(propose(put(b"a", b"1")), propose(body=fail), propose(put(b"b", b"1")))
    assert responses(shard.deliver()) == [b"done 1", b"failed|ZeroDivisionError: oops|2", b"done 3"]
    assert things(shard) == {b"a": b"1", b"b": b"1"}
    assert_sound(shard.replica)


def test_the_exceptions_answer_is_repeated(shard: Shard):
    first = propose(body=ValueError("bad"))
    shard.batch(first)
    [answer] = responses(shard.deliver())
    repeat = shard.execute(replace(first, body=[put(b"a", b"1")]))
    assert repeat is not None
    assert repeat.response == answer == b"failed|ValueError: bad|1"


def test_an_error_of_the_store_stops(shard: Shard):
    with pytest.raises(StoreFailure):
        shard.execute(propose(body=StoreFailure("disk")))


@pytest.mark.parametrize("operation", [put(b"a", b"1", cf="nowhere"), Checkpoint(name="/")])
def test_illegal_operations_are_answered(shard: Shard, operation: Any):
    answer = shard.do(put(b"b", b"1"), operation)
    assert answer.startswith(b"failed|Refused: ")
    assert things(shard) == {}


def test_a_response_that_is_not_bytes(shard: Shard):
    assert shard.do(body=lambda transaction: "text") == b"failed|its response is a str|1"


def test_too_large(shard: Shard):
    shard = Shard(limits=LeaderLimits(max_request_bytes=1000))
    assert shard.do(put(b"a", b"x" * 500)) == b"done 1"
    answer = shard.do(put(b"b", b"x" * 1000), put(b"c", b"1"))
    assert answer.startswith(b"too large|its operations take ")
    assert b"at most 1000" in answer
    assert set(things(shard)) == {b"a"}
    assert shard.do(put(b"d", b"1")) == b"done 3"


def test_a_large_response_counts(shard: Shard):
    shard = Shard(limits=LeaderLimits(max_request_bytes=1000))
    assert shard.do(body=lambda transaction: b"x" * 1001).startswith(b"too large|")


def test_a_refusal_that_is_too_large(shard: Shard):
    """A refusal is in the log, too: one request must not make four times its size of it."""
    refusal = "x" * (MAX_REFUSAL_BYTES + 1)
    answer = shard.do(body=refusal)
    assert answer == f"failed|its answer takes {len(refusal)} bytes; at most {MAX_REFUSAL_BYTES}|1".encode()
    assert shard.do(body=refusal[1:]) == refusal[1:].encode()
    answer = shard.do(body=ValueError("y" * 1_000_000))
    assert answer == b"failed|ValueError: " + b"y" * 1012 + "… (1,000,012 characters long)|3".encode()


def lasting(control: Any, **fields: Any) -> Any:
    def run(transaction: Transaction) -> bytes:
        transaction.put("things", b"never", b"written")
        transaction.control(control, **fields)
        return b"done"

    return run


UNENCODABLE = {
    "control record, wide": propose(body=lasting(FeatureLevel, level=1 << 40), call=9001),
    "control record, no text": propose(body=lasting(Members, replicas=[7]), call=9002),
    "control record, no Unicode": propose(body=lasting(Members, replicas=["\ud800"]), call=9003),
    "client": propose(put(b"never", b"written"), client=b"short", call=9004),
    "hash": propose(put(b"never", b"written"), hashed=b"short", call=9005),
    "time": propose(put(b"never", b"written"), sent_ms=1 << 63, call=9006),
    "type": replace(propose(put(b"never", b"written"), call=9007), request_type="\ud800"),
    "type, no text": replace(propose(put(b"never", b"written"), call=9008), request_type=8),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("bad", UNENCODABLE.values(), ids=UNENCODABLE)
def test_what_cannot_be_encoded_fails_alone(shard: Shard, bad: Proposal):
    """Not when the batch is sealed: that would end the leader, and the next one, and take others' requests with it."""
    shard.do(put(b"a", b"1"))
    first = shard.execute(bad)
    shard.batch(propose(put(b"b", b"1")))
    answers = responses(shard.deliver())
    assert (first.response if first else answers.pop(0)).startswith(b"failed|")
    assert len(answers) == 1
    assert answers[0].startswith(b"done")
    assert things(shard) == {b"a": b"1", b"b": b"1"}
    assert_sound(shard.replica)


def test_room_in_a_batch():
    shard = Shard(limits=LeaderLimits(max_batch_requests=3))
    assert shard.leader.has_room()
    for number in range(3):
        assert shard.leader.has_room()
        shard.execute(propose(put(b"k%d" % number, b"")))
    assert not shard.leader.has_room()
    shard.append(*shard.leader.seal())
    assert shard.leader.has_room()


def test_room_by_bytes():
    shard = Shard(limits=LeaderLimits(max_batch_bytes=1000))
    shard.execute(propose(put(b"k", b"x" * 1000)))
    assert not shard.leader.has_room()


# Pipelining.


DEPENDENT = [
    [propose(put(b"bucket", b"made"))],
    [propose(put(b"bucket/key", b"v")), propose(add(b"bucket", 1))],
    [propose(delete(b"bucket/key")), propose(put(b"bucket/new", b"v")), propose(add(b"bucket", 1))],
]


def in_flight(shard: Shard) -> list[Proposal]:
    proposals = [replace(proposal) for group in DEPENDENT for proposal in group]
    for group in DEPENDENT:
        shard.batch(*group)
    return proposals


def assert_all_done(shard: Shard) -> None:
    for node in shard.nodes.values():
        node.catch_up()
        assert_sound(node.replica)
        assert node.replica.evidence is None
        assert things(shard, node.name) == {b"bucket": b"made", b"bucket/new": b"v"}
        assert rows(node.replica)["counters", b"bucket"] == encode_int64(2)


def test_batches_in_flight_that_build_on_each_other(shard: Shard):
    in_flight(shard)
    assert shard.leader.in_flight == 3
    effective = shard.deliver()
    assert len(responses(effective)) == 6
    assert_all_done(shard)


@pytest.mark.parametrize("appended", [False, True])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failed_append_deposes_and_all_succeed_after_a_new_claim(shard: Shard, failing: int, appended: bool):
    proposals = in_flight(shard)
    for _ in range(failing):
        shard.appender.deliver()
    shard.appender.fail(appended=appended)
    reports = shard.appender.poll(0)
    answered: list[bytes] = []
    for report in reports[:-1]:
        answered += responses(shard.take(report))
    assert len(answered) == [0, 1, 3][failing]
    with pytest.raises(Deposed, match="seq .* of term 1: timed out"):
        shard.take(reports[-1])
    # What is still in flight may arrive later: a gap in the seqs, hence void, unless the failed one was appended.
    while shard.appender.in_flight:
        token, value = shard.appender.in_flight.pop(0)
        shard.log.append(value)
        assert token
    shard.lead("n2", genesis=False)
    replies = {}
    for proposal in proposals:
        at_once = shard.execute(proposal)
        if at_once is not None:
            replies[proposal.call_id] = at_once.response
    shard.append(*shard.leader.seal())
    for effective in shard.deliver():
        replies |= {reply.proposal.call_id: reply.response for reply in effective.replies}
    assert [replies[proposal.call_id] for proposal in proposals][: len(answered)] == answered
    assert all(response.startswith(b"done") for response in replies.values())
    assert len(replies) == 6
    assert_all_done(shard)


def test_a_failure_of_a_later_append_deposes_at_once(shard: Shard):
    in_flight(shard)
    [first, _, third] = shard.appender.in_flight
    with pytest.raises(Deposed, match="seq 4 .* timed out"):
        shard.leader.on_report(DeliveryReport(token=third[0], offset=-1, timestamp_ms=0, error="timed out"))
    assert things(shard) == {}
    assert first[0] == 2


def test_nothing_is_appended_after_a_failure(shard: Shard):
    in_flight(shard)
    token = shard.appender.in_flight[0][0]
    with pytest.raises(Deposed):
        shard.leader.on_report(DeliveryReport(token=token, offset=-1, timestamp_ms=0, error="x"))
    assert shard.leader.phase is LeaderPhase.DEPOSED
    for step in (lambda: shard.execute(propose(put(b"z", b"1"))), shard.leader.seal, shard.leader.tick):
        with pytest.raises(Deposed):
            step()


@pytest.mark.parametrize("offset", [-1, -1001])
def test_a_report_without_an_offset_is_an_unknown_outcome(shard: Shard, offset: int):
    shard.batch(propose(put(b"a", b"1")))
    with pytest.raises(Deposed, match="no offset reported"):
        shard.leader.on_report(DeliveryReport(token=2, offset=offset, timestamp_ms=0, error=None))


def test_reports_out_of_order(shard: Shard):
    in_flight(shard)
    reports = shard.reports()
    assert shard.take(reports[2]) == []
    assert shard.take(reports[1]) == []
    assert things(shard) == {}
    assert [one.record.seq for one in shard.take(reports[0])] == [2, 3, 4]
    assert_all_done(shard)


def test_a_report_of_nothing_in_flight_is_ignored(shard: Shard):
    assert shard.leader.on_report(DeliveryReport(token=99, offset=5, timestamp_ms=0, error=None)) == []
    assert shard.leader.on_report(DeliveryReport(token=99, offset=-1, timestamp_ms=0, error="x")) == []


def test_a_report_twice(shard: Shard):
    shard.batch(propose(put(b"a", b"1")))
    [report] = shard.reports()
    assert len(shard.take(report)) == 1
    assert shard.take(report) == []


@pytest.mark.parametrize("offset", [0, 1])
def test_offsets_that_run_backwards_stop(shard: Shard, offset: int):
    shard.batch(propose(put(b"a", b"1")))
    with pytest.raises(AheadOfLog, match="not behind 1"):
        shard.leader.on_report(DeliveryReport(token=2, offset=offset, timestamp_ms=0, error=None))


# Foreign records between.


def foreign(shard: Shard, **changed: Any) -> None:
    """A stale leader's, a twin's or a strange record, appended at the end."""
    record = Batch(
        term=1, nonce=b"stale-or-twin!!!", seq=2, prev_chain=bytes(32), first_index=1, last_index=1,
        timestamp_ms=START_MS, request_position=None, operations=[put(b"foreign", b"x")], results=[],
    )  # fmt: skip
    shard.log.append(encode(replace(record, **changed)))


@pytest.mark.parametrize("changed", [{}, {"term": 0}, {"seq": 77}])
def test_void_records_between_are_read_first(shard: Shard, changed: dict[str, Any]):
    shard.batch(propose(put(b"a", b"1")))
    shard.batch(propose(put(b"b", b"1")))
    foreign(shard, **changed)
    shard.appender.deliver()
    foreign(shard, **changed)
    foreign(shard, **changed)
    shard.appender.deliver()
    effective: list[Effective] = []
    first, second = shard.appender.poll(0)
    assert shard.leader.on_report(first) == []
    assert shard.leader.must_read == first.offset
    assert shard.leader.on_report(second) == [], "it waits for the reading"
    shard.node.catch_up(first.offset + 1)
    effective += shard.leader.on_read()
    assert shard.leader.must_read == second.offset
    shard.node.catch_up(second.offset + 1)
    effective += shard.leader.on_read()
    assert shard.leader.must_read is None
    assert responses(effective) == [b"done 1", b"done 2"]
    assert things(shard) == {b"a": b"1", b"b": b"1"}
    assert shard.replica.records_void == 3
    assert_sound(shard.replica)


def test_a_foreign_record_before_the_first_own_one():
    shard = Shard(genesis=False)
    foreign(shard)
    shard.append(shard.leader.genesis(CLUSTER, NODES))
    assert [type(one.record) for one in shard.deliver()] == [Genesis]


def test_a_claim_between_deposes(shard: Shard):
    shard.batch(propose(put(b"a", b"1")))
    other = shard.nodes["n2"]
    other.claim(shard.ids, shard.clock)
    with pytest.raises(Deposed, match="did not count: term 2 leads"):
        shard.deliver()
    assert things(shard) == {}
    with pytest.raises(Deposed):
        shard.leader.tick()


def test_a_leader_whose_replica_has_read_another_claim_appends_nothing(shard: Shard):
    """The log may lose that claim again; then a batch that was executed on its rows would count."""
    shard.execute(propose(put(b"a", b"1")))
    shard.nodes["n2"].claim(shard.ids, shard.clock)
    shard.node.catch_up()
    with pytest.raises(Deposed, match=r"seq 2 of term 1: not appended: term 2 leads"):
        shard.leader.seal()
    with pytest.raises(Deposed, match="not appended: term 2 leads"):
        shard.leader.tick()


def test_a_claim_of_a_term_that_is_taken_is_void(shard: Shard):
    claim = LeaderClaim(term=1, nonce=b"t" * 16, node="n2", address="", claimed_at_ms=0)
    shard.log.append(encode(claim))
    assert shard.do(put(b"a", b"1")) == b"done 1"


def test_twin_claims_the_first_in_the_log_leads(shard: Shard):
    """Two candidates read the same end and claim the same term; the partition's order decides."""
    shard.do(put(b"a", b"1"))
    shard.catch_up()
    term = shard.replica.position.term + 1
    for name in ("n1", "n2"):
        shard.log.append(
            encode(LeaderClaim(term=term, nonce=name.encode() * 8, node=name, address="", claimed_at_ms=0))
        )
    for node in shard.nodes.values():
        outcomes = node.catch_up()
        assert [outcome.reading for outcome in outcomes] == [Reading.VALID_CLAIM, Reading.LOST_CLAIM]
        assert node.replica.position.nonce == b"n1" * 8


def test_a_stale_leader_appends_what_it_likes(shard: Shard):
    stale, stale_appender = shard.leader, shard.appender
    stale.take(propose(put(b"stale", b"1")), shard.clock.elapsed_ms())
    [append] = stale.seal()
    shard.lead("n2", genesis=False)
    shard.do(put(b"fresh", b"1"))
    stale_appender.append(append.token, append.value)
    stale_appender.deliver()
    [report] = stale_appender.poll(0)
    assert stale.on_report(report) == []
    offset = stale.must_read
    assert offset is not None
    shard.nodes["n1"].catch_up(offset + 1)
    with pytest.raises(Deposed):
        stale.on_read()
    shard.catch_up()
    assert things(shard, "n1") == things(shard, "n2") == {b"fresh": b"1"}
    assert shard.do(put(b"more", b"1")) == b"done 2"


def test_a_twin_of_the_own_batch_appended_twice(shard: Shard):
    """A retry inside the client library that was not deduplicated: the second copy is a duplicate, hence void."""
    shard.batch(propose(add(b"n", 5)))
    _, value = shard.appender.in_flight[0]
    shard.deliver()
    shard.log.append(value)
    shard.do(put(b"a", b"1"))
    assert rows(shard.replica)["counters", b"n"] == encode_int64(5)
    assert shard.replica.records_void == 1
    shard.catch_up()
    assert_sound(shard.nodes["n2"].replica)


def test_the_replica_may_have_been_read_ahead(shard: Shard):
    """A reader beside the leader has offered the leader's own records already."""
    shard.batch(propose(put(b"a", b"1")))
    shard.batch(propose(put(b"b", b"1")))
    reports = shard.reports()
    shard.node.catch_up()
    effective = [one for report in reports for one in shard.take(report)]
    assert responses(effective) == [b"done 1", b"done 2"]
    assert things(shard) == {b"a": b"1", b"b": b"1"}


# Time.


def test_batch_time_is_the_claims_append_time_plus_what_has_passed(shard: Shard):
    start = shard.leader.timestamp_ms(shard.clock.elapsed_ms())
    assert start == START_MS
    shard.clock.elapsed += 1234
    assert shard.leader.timestamp_ms(shard.clock.elapsed_ms()) == START_MS + 1234


def test_a_wall_clock_that_jumps_does_not_matter(shard: Shard):
    times = []
    for jump in (0, -1_000_000_000, 5_000_000_000, -3):
        shard.clock.now_ms += jump
        shard.clock.elapsed += 10
        shard.do(put(b"a", b"1"))
        times.append(log_records(shard)[-1].timestamp_ms - START_MS)
    assert times == [10, 20, 30, 40]


def test_batch_time_never_runs_backwards_over_a_change_of_leader(shard: Shard):
    shard.clock.advance(10_000)
    shard.do(put(b"a", b"1"))
    shard.clock.now_ms = START_MS - 3_600_000  # the broker's clock was set back an hour before the next claim
    shard.lead("n2", genesis=False)
    shard.do(put(b"b", b"1"))
    assert log_records(shard)[-1].timestamp_ms == START_MS + 10_000
    shard.clock.advance(5_000)
    shard.do(put(b"c", b"1"))
    assert log_records(shard)[-1].timestamp_ms == START_MS + 10_000
    shard.clock.advance(3_600_000 + 20_000)
    shard.do(put(b"d", b"1"))
    assert log_records(shard)[-1].timestamp_ms > START_MS + 10_000


def test_a_batch_has_the_time_of_its_first_request(shard: Shard):
    shard.execute(propose(put(b"a", b"1")))
    shard.clock.advance(500)
    shard.execute(propose(put(b"b", b"1")))
    shard.append(*shard.leader.seal())
    assert log_records(shard_delivered(shard))[-1].timestamp_ms == START_MS


def test_a_batch_from_before_a_standstill_takes_nothing_more(shard: Shard):
    assert not shard.leader.is_stale(shard.clock.elapsed_ms())
    shard.execute(propose(put(b"a", b"1")))
    shard.clock.advance(LIMITS.max_batch_age_ms)
    assert not shard.leader.is_stale(shard.clock.elapsed_ms())
    shard.clock.advance(1)
    assert shard.leader.is_stale(shard.clock.elapsed_ms())
    shard.append(*shard.leader.seal())
    assert not shard.leader.is_stale(shard.clock.elapsed_ms())
    shard.execute(propose(put(b"b", b"1")))
    shard.append(*shard.leader.seal())
    shard.deliver()
    times = [record.timestamp_ms for record in log_records(shard) if isinstance(record, Batch)]
    assert times == [START_MS, START_MS + LIMITS.max_batch_age_ms + 1]


# Barriers, ticks, scrubs.


def barriers(shard: Shard) -> list[bool]:
    return [record.scrub for record in log_records(shard) if isinstance(record, Barrier)]


def offer_barrier(shard: Shard) -> bool:
    append = shard.leader.barrier(shard.clock.elapsed_ms())
    shard.append(append)
    shard.deliver()
    return append is not None


def test_barriers_each_interval_while_there_are_writes_and_once_when_they_cease():
    shard = Shard(limits=LeaderLimits(barrier_interval_ms=1000, scrub_interval_ms=1_000_000))
    assert offer_barrier(shard), "the first is a scrub, due at start"
    due = []
    for step in range(60):
        shard.clock.advance(100)
        if step < 35:
            shard.do(put(b"k", b"%d" % step))
        due.append(offer_barrier(shard))
    assert sum(due[:35]) == 3
    assert sum(due[35:]) == 1
    assert barriers(shard) == [True, False, False, False, False]
    assert_sound(shard.replica)


def test_an_idle_leader_writes_no_barriers_but_scrubs():
    shard = Shard(limits=LeaderLimits(barrier_interval_ms=1000, scrub_interval_ms=10_000))
    for _ in range(35):
        offer_barrier(shard)
        shard.clock.advance(1000)
    assert barriers(shard) == [True] * 4


def test_a_barrier_waits_for_the_batch_being_built(shard: Shard):
    shard.execute(propose(put(b"a", b"1")))
    assert shard.leader.barrier(shard.clock.elapsed_ms()) is None
    shard.append(*shard.leader.seal())
    assert shard.leader.barrier(shard.clock.elapsed_ms()) is not None


def test_a_barrier_waits_for_room_in_flight():
    shard = Shard(limits=LeaderLimits(max_in_flight=1))
    shard.batch(propose(put(b"a", b"1")))
    assert shard.leader.barrier(shard.clock.elapsed_ms()) is None
    shard.deliver()
    assert shard.leader.barrier(shard.clock.elapsed_ms()) is not None


def test_a_barrier_carries_the_index_and_the_digests_there(shard: Shard):
    shard.batch(propose(put(b"a", b"1")), propose(put(b"b", b"1")))
    shard.append(shard.leader.barrier(shard.clock.elapsed_ms()))
    shard.batch(propose(put(b"c", b"1")))
    _, barrier, later = shard.deliver()
    assert isinstance(barrier.record, Barrier)
    assert barrier.record.index == 2
    outcome = barrier.outcome
    assert outcome.digests is not None
    assert outcome.snapshot is not None
    assert shard.replica.scan(outcome.snapshot) == outcome.digests != shard.replica.digests
    assert isinstance(later.record, Batch)


def test_a_tick_counts_and_says_where_it_lies(shard: Shard):
    shard.append(shard.leader.tick())
    [effective] = shard.deliver()
    assert isinstance(effective.record, Tick)
    assert effective.offset == len(shard.log.entries) - 1
    assert effective.record_hash == shard.replica.position.record_hash == shard.replica.counted(effective.offset)
    assert shard.replica.position.seq == effective.record.seq == shard.leader.seq


def test_no_tick_while_a_batch_is_built(shard: Shard):
    shard.execute(propose(put(b"a", b"1")))
    assert shard.leader.tick() is None


def test_layers_survive_ticks_and_barriers_between_batches(shard: Shard):
    shard.batch(propose(put(b"a", b"1")))
    shard.append(shard.leader.tick())
    shard.batch(propose(body=lambda transaction: transaction.get("things", b"a") or b"none"))
    shard.append(shard.leader.barrier(shard.clock.elapsed_ms()))
    shard.batch(propose(delete(b"a")))
    shard.append(shard.leader.tick())
    assert b"1" in responses(shard.deliver())
    assert len(shard.leader._overlay) == 0
    assert things(shard) == {}
    assert_sound(shard.replica)


# Checkpoints and digest bases.


def test_a_checkpoint_begins_its_batch(shard: Shard):
    shard.do(put(b"a", b"1"))
    assert shard.do(Checkpoint(name="snap"), put(b"b", b"1")) == b"done 2"
    assert [type(operation) for operation in log_records(shard)[-1].operations] == [Checkpoint, Put]
    checkpoint = shard.node.store.checkpoints["snap"]
    assert dict(checkpoint.iterate("things", b"")) == {b"a": b"1"}


def test_a_checkpoint_within_a_batch_is_refused(shard: Shard):
    shard.batch(propose(put(b"a", b"1")), propose(Checkpoint(name="snap"), put(b"b", b"1")))
    assert responses(shard.deliver()) == [b"done 1", b"failed|it may only begin a batch|2"]
    assert things(shard) == {b"a": b"1"}
    assert shard.node.store.checkpoints == {}


def test_a_checkpoint_comes_before_the_batchs_own_removals(shard: Shard):
    shard.do(put(b"a", b"1"))
    shard.clock.advance(RETENTION_MS + 1)
    assert shard.do(Checkpoint(name="snap"), put(b"b", b"1")) == b"done 2"
    assert [type(operation) for operation in log_records(shard)[-1].operations] == [Checkpoint, Delete, Put]
    shard.catch_up()
    assert_sound(shard.nodes["n2"].replica)


def based(slots: list[int], sums: list[int], *, forced: bool = False) -> Any:
    def run(transaction: Transaction) -> bytes:
        transaction.digest_base(slots, sums, "oracle", forced=forced)
        return b"based"

    return run


def test_a_digest_base_lies_right_before_its_batch(shard: Shard):
    shard.do(put(b"a", b"1"))
    slots, sums = shard.replica.digests.slots()
    shard.batch(propose(body=based(slots, sums)), propose(put(b"b", b"1")))
    base, batch = shard.deliver()
    assert isinstance(base.record, DigestBase)
    assert (base.record.index, base.record.slots, base.record.sums) == (1, slots, sums)
    assert base.outcome.evidence is None
    assert responses([batch]) == [b"based", b"done 3"]
    assert_sound(shard.replica)


def test_a_digest_base_that_the_leader_does_not_hold_is_refused(shard: Shard):
    """It would flag every replica, and no flagged one may lead: the shard would be lost for good."""
    shard.do(put(b"a", b"1"))
    slots, sums = shard.replica.digests.slots()
    wrong = {
        "others": ([1], [2]),
        "none": ([], []),
        "another sum": (slots, [sums[0] ^ 1, *sums[1:]]),
        "one too many": ([*slots, slots[-1] + 1], [*sums, 1]),
    }
    for given in wrong.values():
        shard.batch(propose(body=based(*given)))
        [answer] = responses(shard.deliver())
        assert b"failed|DigestsDiffer: the leader's digests are others in " in answer
    assert not any(isinstance(record, DigestBase) for record in log_records(shard))
    shard.catch_up()
    assert all(node.replica.evidence is None for node in shard.nodes.values())
    assert_sound(shard.replica)


def test_a_digest_base_waits_for_the_batches_before_it(shard: Shard):
    shard.batch(propose(put(b"a", b"1")))
    slots, sums = shard.replica.digests.slots()
    shard.batch(propose(body=based(slots, sums)))
    assert responses(shard.deliver())[1] == b"failed|NotSettled: requests before it are on their way|2"
    shard.append(shard.leader.tick())
    shard.batch(propose(body=based(*shard.replica.digests.slots())))
    assert responses(shard.deliver()) == [b"based"], "a tick changes nothing"


def test_a_forced_digest_base_flags_the_replica_that_differs(shard: Shard):
    shard.do(put(b"a", b"1"))
    shard.catch_up()
    shard.batch(propose(body=based([1], [2], forced=True)))
    base, _ = shard.deliver()
    assert base.outcome.evidence is not None
    shard.catch_up()
    assert all(node.replica.evidence is not None for node in shard.nodes.values())


def test_a_base_lies_before_its_batch_with_the_members_behind_it(shard: Shard):
    shard.do(put(b"a", b"1"))
    slots, sums = shard.replica.digests.slots()
    shard.batch(propose(body=lambda transaction: transaction.base("trim") or b"based"), propose(put(b"b", b"1")))
    base, members, batch = shard.deliver()
    assert isinstance(base.record, DigestBase)
    assert isinstance(members.record, Members)
    assert (base.record.slots, base.record.sums) == (slots, sums)
    assert members.record.seq == base.record.seq + 1
    assert tuple(members.record.replicas) == shard.replica.state.replicas
    assert responses([batch]) == [b"based", b"done 3"]
    shard.catch_up()
    for node in shard.nodes.values():
        for replica in (node.replica, node.restart().replica):
            place = replica.durable_place()
            assert place.bases == (Base(base.outcome.position.offset, 1, base.outcome.position.chain),)
            assert (place.offset, place.index, place.flagged) == (replica.position.offset, 3, False)
            assert (3, f"{replica.digests.total():016x}") in place.digests
            assert_sound(replica)


def test_a_base_waits_for_the_batches_before_it(shard: Shard):
    shard.batch(propose(put(b"a", b"1")))
    shard.batch(propose(body=lambda transaction: transaction.base("trim") or b"based"))
    assert responses(shard.deliver())[1] == b"failed|NotSettled: requests before it are on their way|2"


def test_a_digest_base_within_a_batch_is_refused(shard: Shard):
    shard.batch(propose(put(b"a", b"1")), propose(body=based([], [])))
    assert responses(shard.deliver())[1] == b"failed|NotSettled: requests before it are on their way|2"


# A leader whose own row is wrong, and a leader that lies.


def test_a_leader_finds_the_damage_of_a_row_that_it_remembers(shard: Shard):
    shard.do(put(b"a", b"1"))
    shard.catch_up()
    shard.node.store.write([("things", b"a", b"damaged")])
    shard.do(put(b"a", b"2"))
    shard.catch_up()
    leader, follower = shard.nodes["n1"].replica, shard.nodes["n2"].replica
    assert leader.evidence is not None
    assert leader.evidence.key == b"a"
    assert follower.evidence is None, "the leader's claim agrees with the followers' row"
    assert_sound(follower)
    assert rows(leader) == rows(follower)


def test_a_leaders_damaged_row_is_found_by_its_healthy_followers(shard: Shard):
    shard.do(put(b"a", b"1"))
    shard.catch_up()
    shard.node.store.write([("things", b"a", b"damaged")])
    shard.lead("n1")  # it does not remember the row any more
    shard.do(put(b"a", b"2"))
    shard.catch_up()
    leader, follower = shard.nodes["n1"].replica, shard.nodes["n2"].replica
    assert leader.evidence is None, "the leader's claim agrees with its own row"
    assert follower.evidence is not None
    assert follower.evidence.key == b"a"
    assert_sound(follower)
    assert rows(leader) == rows(follower)


def test_new_leaders_index_goes_on(shard: Shard):
    shard.do(put(b"a", b"1"))
    shard.lead("n2", genesis=False)
    assert shard.do(put(b"b", b"1")) == b"done 2"
    assert log_records(shard)[-1].seq == 1
    assert log_records(shard)[-1].term == 2


def test_genesis_whose_outcome_is_unknown_is_written_once():
    for appended in (True, False):
        shard = Shard(genesis=False)
        shard.append(shard.leader.genesis(CLUSTER, NODES))
        shard.appender.fail(appended=appended)
        with pytest.raises(Deposed):
            shard.take(shard.appender.poll(0)[0])
        shard.lead("n2")
        shard.catch_up()
        counted = [record for record in log_records(shard) if isinstance(record, Genesis)]
        assert len(counted) == 1
        assert all(node.replica.genesis == counted[0] for node in shard.nodes.values())


def test_a_leader_that_waits_for_nothing_goes_on_with_nothing():
    shard = Shard()
    shard.do(put(b"k", b"1"))
    assert shard.leader.must_read is None
    assert shard.leader.on_read() == []
