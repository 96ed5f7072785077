"""What a leader's loop does turn by turn: what it takes, seals, appends, waits for and answers.

The loop runs on the test's thread. Its intake is the script: each time it is asked, the next step of the story runs.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from replicated_db.core.leading.leader import LeaderLimits, Proposal, claim_for
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import ANSWER_WAIT_S
from replicated_db.shell.leader_loop import (
    IDLE_WAIT_S,
    PIPELINE_BATCH,
    REPORT_WAIT_S,
    take_queued,
)
from replicated_db.shell.read_index import NotLeading
from schemas.codecs.codec import decode, encode
from schemas.records.messages import Evidence
from tests.support.replicated.kit import Node, propose, put
from tests.support.replicated.leader_story import LIMITS, Story

EVIDENCE = Evidence(
    index=1, offset=1, term=1, leader="n1", operation=0, cf="things", key=b"k", claim="prev", claimed=None, own=1
)  # fmt: skip


@pytest.fixture
def story() -> Story:
    return Story()


def some(count: int) -> list[Proposal]:
    return [propose(put(b"k", b"v")) for _ in range(count)]


def test_a_request_is_appended_settled_and_answered(story: Story):
    [wanted] = some(1)
    assert story.lead(lambda: [wanted]) == "stopped"
    assert story.kinds()[:2] == ["LeaderClaim", "Genesis"]
    assert story.kinds().count("Batch") == 1
    assert [(reply.proposal, reply.response[:4]) for reply in story.replies] == [(wanted, b"done")]
    assert [one.replies for one in story.settled] == [story.replies]
    assert (story.loop.times_led, story.loop.batches, story.loop.requests) == (1, 1, 1)
    assert {outcome.reading for outcome in story.published} == {Reading.COUNTS}
    assert (story.opened_for, story.closed, story.loop.leading) == ([None], 1, False)


def test_the_loop_may_be_silent_while_the_intake_is_opened(story: Story):
    story.lead()
    assert story.beaten_ms == ANSWER_WAIT_S * 1000


def test_an_idle_leader_waits_for_requests_and_a_busy_one_does_not(story: Story):
    story.lead(list, story.hold, lambda: some(1), lambda: some(2), list, story.release)
    room = LIMITS.max_batch_requests
    assert story.asked[:2] == [(room, 0), (room, IDLE_WAIT_S)], "genesis was in flight at first"
    assert (room - 2, 0) in story.asked, "two requests are in the batch already"


def test_an_idle_leader_waits_no_longer_than_until_the_next_barrier():
    story = Story(LeaderLimits(scrub_interval_ms=0, barrier_interval_ms=100))

    def later() -> Sequence[Proposal]:
        story.clock.advance(40)
        return []

    story.lead(list, lambda: some(1), later, later, later, later)
    waits = [wait_s for _, wait_s in story.asked if wait_s]
    assert waits[:1] == [IDLE_WAIT_S], "nothing is written yet"
    assert 0.06 in waits, "a barrier is due 100 ms after the last one"
    assert story.kinds().count("Barrier") == 2
    assert waits[-1] == IDLE_WAIT_S, "nothing is written since"


def test_while_a_batch_is_in_flight_the_next_waits_until_it_is_worth_it(story: Story):
    seen: list[int] = []

    def see(count: int) -> Callable[[], Sequence[Proposal]]:
        def step() -> Sequence[Proposal]:
            seen.append(story.in_flight)
            return some(count)

        return step

    story.lead(story.hold, see(PIPELINE_BATCH - 1), see(1), see(1), see(0))
    assert seen == [1, 1, 2, 2], "genesis is in flight; the hundredth request seals"
    assert story.loop.requests == PIPELINE_BATCH + 1
    assert story.loop.batches == 2
    assert len(story.replies) == PIPELINE_BATCH + 1


def test_a_leader_with_nothing_to_take_waits_for_reports(story: Story):
    story.lead(story.hold, lambda: some(1), list)
    waits = story.log.last.waits
    assert REPORT_WAIT_S in waits
    assert set(waits) <= {0, 0.1, REPORT_WAIT_S}


def test_no_more_is_taken_while_as_much_is_in_flight_as_may_be():
    story = Story(LeaderLimits(scrub_interval_ms=0, max_in_flight=1))
    held: list[int] = []

    def polled() -> None:
        if story.in_flight:
            held.append(len(story.asked))
            if len(held) == 5:
                story.log.holds = False

    def begin() -> Sequence[Proposal]:
        story.log.last.on_poll = polled
        story.log.holds = True
        return some(1)

    story.lead(begin, list)
    assert len(set(held)) == 1, "nothing is taken meanwhile"
    assert story.log.last.waits[-4:].count(REPORT_WAIT_S) >= 1


def test_a_call_that_comes_again_is_answered_at_once(story: Story):
    [wanted] = some(1)
    story.lead(lambda: [wanted], lambda: [wanted])
    assert len(story.replies) == 2
    assert story.replies[0].response == story.replies[1].response
    assert story.kinds().count("Batch") == 1


def test_what_was_taken_before_the_stop_is_answered(story: Story):
    def last() -> Sequence[Proposal]:
        story.stop.set()
        return some(3)

    assert story.lead(list, last) == "stopped"
    assert len(story.replies) == 3


def test_whoever_waits_for_a_tick_waits_for_no_proposal(story: Story):
    asked: list[Any] = []

    def ask() -> Sequence[Proposal]:
        asked.append(story.loop.read_index())
        story.log.holds = True
        return []

    story.lead(list, ask, story.release)
    room = LIMITS.max_batch_requests
    assert story.asked[1:3] == [(room, IDLE_WAIT_S), (room, 0)], "the Tick is in flight the second time"
    assert asked[0].result(0).offset > 0
    assert story.woken == 1


def test_a_reader_is_answered_by_a_record_that_is_appended_after_its_question(story: Story):
    asked: list[Any] = []

    def ask() -> Sequence[Proposal]:
        asked.append((len(story.log.entries), story.loop.read_index()))
        return []

    story.lead(list, ask, list)
    assert story.woken == 1, "a leader that waits for requests hears of the first who asks"
    end, future = asked[0]
    assert future.result(0).offset >= end
    assert story.kinds()[future.result(0).offset] == "Tick"
    assert isinstance(story.loop.read_index().exception(0), NotLeading)


def test_a_reader_shares_the_batch_that_is_open(story: Story):
    futures: list[Any] = []

    def ask() -> Sequence[Proposal]:
        futures.append(story.loop.read_index())
        return some(1)

    story.lead(story.hold, lambda: some(1), ask, story.release)
    assert story.kinds()[futures[0].result(0).offset] == "Batch"
    assert "Tick" not in story.kinds()


def test_a_flagged_leader_steps_down(story: Story):
    def flag() -> Sequence[Proposal]:
        story.node.replica.flag(EVIDENCE)
        return []

    assert story.lead(list, flag, list).startswith("shard 0 is flagged: ")
    assert (story.closed, story.loop.leading) == (1, False)


def test_a_leader_that_finds_anothers_claim_has_read_it(story: Story):
    def usurp() -> Sequence[Proposal]:
        other = Node(log=story.log, name="n2")
        other.open()
        other.catch_up()
        story.log.append(encode(claim_for(other.replica, b"2" * 16, "n2:1", story.clock.wall_ms())))
        return some(1)

    assert story.lead(list, usurp, list, list) != "stopped"
    assert story.node.replica.position.nonce == b"2" * 16
    assert story.replies == []
    assert story.node.replica.read_offset == len(story.log.entries) - 1, "the loop leaves nothing unread"


def test_a_full_queue_ends_the_claim(story: Story):
    def full() -> Sequence[Proposal]:
        story.log.last.room = 0
        return some(1)

    assert story.lead(list, full) == "append refused: the queue is full"
    assert (story.closed, story.loop.leading) == (1, False)


def test_what_is_held_back_by_one_claim_is_not_offered_by_the_next(story: Story):
    story.loop._held = some(1)
    story.lead(list)
    assert story.replies == []


def test_a_queue_gives_what_it_has_up_to_the_limit():
    waiting: queue.SimpleQueue[Proposal | None] = queue.SimpleQueue()
    assert take_queued(waiting, 5, 0) == []
    assert take_queued(waiting, 5, 0.001) == []
    wanted = some(3)
    for one in wanted:
        waiting.put(one)
    assert take_queued(waiting, 2, 0) == wanted[:2]
    assert take_queued(waiting, 2, 0.001) == wanted[2:]


def test_another_candidate_that_is_faster_leads(story: Story, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(story.loop._claimer, "claim", lambda *_: None)
    assert story.lead() == "another candidate was faster"
    assert (story.opened_for, story.loop.times_led) == ([], 0)


def test_what_has_to_begin_a_batch_waits_for_what_is_before_it(story: Story):
    """Everything before it is sealed and settled first; what comes behind it keeps its place."""
    first, begins, behind = some(3)
    begins = replace(begins, begins_batch=True)
    story.lead(list, lambda: [first, begins, behind])
    assert [reply.proposal for reply in story.replies] == [first, begins, behind]
    assert story.kinds().count("Batch") >= 2
    assert story.loop.requests == 3


def test_a_batch_that_has_been_open_for_too_long_takes_no_more(story: Story):
    def late() -> Sequence[Proposal]:
        story.clock.advance(LIMITS.max_batch_age_ms + 1)
        return some(1)

    story.lead(story.hold, lambda: some(1), late, story.release)
    assert story.kinds().count("Batch") == 2
    assert len(story.replies) == 2


def test_a_full_batch_is_sealed_before_the_next_request_is_taken():
    story = Story(LeaderLimits(scrub_interval_ms=0, max_batch_requests=2))
    story.lead(list, lambda: some(5))
    assert story.kinds().count("Batch") == 3
    assert len(story.replies) == 5


def test_a_loop_knows_the_claims_that_it_has_made(story: Story):
    story.lead(list)
    nonce = decode(story.log.entries[0].value).nonce
    assert story.loop.has_claimed(nonce)
    assert not story.loop.has_claimed(b"?" * 16)


def test_a_drain_waits_for_what_is_in_flight(story: Story):
    seen: list[int] = []

    def polled() -> None:
        if story.stop.is_set():
            seen.append(story.in_flight)
            if len(seen) == 4:
                story.log.holds = False

    def last() -> Sequence[Proposal]:
        story.log.last.on_poll = polled
        story.log.holds = True
        story.stop.set()
        return some(2)

    assert story.lead(list, last) == "stopped"
    assert len(seen) >= 4
    assert len(story.replies) == 2


def test_a_call_whose_row_is_applied_is_answered_at_once_and_appends_nothing(story: Story):
    [wanted] = some(1)
    story.lead(lambda: [wanted], list, list)
    before = len(story.log.entries)
    assert len(story.replies) == 1
    answered: list[tuple[Sequence[Any], int | None]] = []
    spans: Any = SimpleNamespace(
        taken=lambda _: None, drop=lambda _: None, headers=lambda: (),
        answered=lambda replies, offset=None: answered.append((replies, offset)),
    )  # fmt: skip
    story.loop._spans = spans
    story.stop.clear()
    story.asked.clear()
    story.lead(list, lambda: [wanted])
    assert [reply.response for reply in story.replies] == [story.replies[0].response] * 2
    assert [type(decode(entry.value)).__name__ for entry in story.log.entries[before:]].count("Batch") == 0
    assert answered == [([story.replies[1]], None)], "it has no place in the log"
