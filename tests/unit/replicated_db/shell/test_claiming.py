"""How a shard is claimed, and what a leader reads again where others have appended behind its own last record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from replicated_db.core.applying.replica import Offered
from replicated_db.core.errors import AheadOfLog
from replicated_db.core.leading.leader import Leader, claim_for
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import ANSWER_WAIT_S, DeliveryReport, Entry, LogUnavailable
from replicated_db.core.tables.memory import ManualClock, MemoryAppender
from replicated_db.shell.claiming import (
    CLAIM_WAIT_S,
    MAX_CLOCK_SKEW_MS,
    READ_LIMIT,
    READ_STEP_S,
    READ_WAIT_S,
    REMEMBERED_CLAIMS,
    Claimer,
    UnfitToLead,
)
from schemas.codecs.codec import encode
from schemas.records.log import Tick
from tests.support.replicated.kit import CHAIN, LIMITS, Kit, Shard, put

VOID = encode(Tick(term=1, nonce=b"?" * 16, seq=1, prev_chain=CHAIN))
"""A record of nobody's, which counts for nobody."""


class Foreign:
    """A shard whose leader, n1, has one batch in the log, and behind it a record of nobody's, which counts for nobody."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.shard.do(put(b"a", b"1"))
        self.shard.catch_up()
        self.void = self.shard.log.append(VOID)
        self.offered: list[Offered] = []
        self.claimer = Claimer(
            self.shard.replica, self.shard.log, Kit(), LIMITS, clock=self.shard.clock, ids=self.shard.ids,
            address="", on_turn=lambda _: None, on_offered=self.offered.append,
        )  # fmt: skip

    def claim(self) -> int:
        """Let n2 claim; return the claim's offset."""
        node = self.shard.nodes["n2"]
        return self.shard.log.append(encode(claim_for(node.replica, b"2" * 16, "", self.shard.clock.wall_ms())))

    def lose_void(self) -> None:
        del self.shard.log.entries[self.void :]


@pytest.fixture
def foreign() -> Foreign:
    return Foreign()


def test_what_has_not_been_read_is_offered(foreign: Foreign):
    foreign.claimer.read_foreign(foreign.void + 1)
    assert [one.reading for one in foreign.offered] == [Reading.TWIN]
    assert foreign.shard.replica.read_offset == foreign.void


def test_what_has_been_read_is_not_offered_again(foreign: Foreign):
    foreign.shard.catch_up()
    foreign.claimer.read_foreign(foreign.void + 1)
    assert foreign.offered == []


def test_another_void_record_in_its_place_changes_nothing(foreign: Foreign):
    foreign.shard.catch_up()
    foreign.lose_void()
    foreign.shard.log.append(encode(Tick(term=1, nonce=b"!" * 16, seq=1, prev_chain=CHAIN)))
    foreign.claimer.read_foreign(foreign.void + 1)
    assert foreign.offered == []


def test_a_claim_that_has_not_been_read_is_offered(foreign: Foreign):
    foreign.lose_void()
    foreign.claimer.read_foreign(foreign.claim() + 1)
    assert [one.reading for one in foreign.offered] == [Reading.VALID_CLAIM]


def test_a_claim_in_the_place_of_what_was_read_stops_the_leader(foreign: Foreign):
    foreign.shard.catch_up()
    foreign.lose_void()
    claim = foreign.claim()
    with pytest.raises(AheadOfLog, match="shard 0: the log has lost records that this leader had read behind its own"):
        foreign.claimer.read_foreign(claim + 2)
    assert foreign.offered == []


def test_a_claim_behind_what_was_read_is_offered(foreign: Foreign):
    foreign.shard.catch_up()
    foreign.claimer.read_foreign(foreign.claim() + 1)
    assert [one.reading for one in foreign.offered] == [Reading.VALID_CLAIM]


def test_a_claimer_knows_its_own_claims(foreign: Foreign):
    """By them a leader tells a record of its own from one of a node with the same name."""
    foreign.shard.log.auto = True
    foreign.shard.catch_up()
    before = foreign.shard.ids.count
    assert foreign.claimer.claim(foreign.shard.log.appender(), Event()) is not None
    own = (foreign.shard.ids.seed << 64 | before + 1).to_bytes(16, "big")
    assert foreign.claimer.has_claimed(own)
    assert not foreign.claimer.has_claimed(b"?" * 16)


class Claiming:
    """A claimer of n1 with a clock of its own, which goes on by a second with each turn of waiting."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.shard = Shard()
        self.shard.catch_up()
        self.clock = ManualClock(now_ms=self.shard.clock.wall_ms() + ahead_ms)
        self.turns: list[float] = []
        self.claimer = Claimer(
            self.shard.replica, self.shard.log, Kit(), LIMITS, clock=self.clock, ids=self.shard.ids,
            address="", on_turn=self.on_turn, on_offered=lambda _: None,
        )  # fmt: skip
        self.appender = Held(self.shard.log, auto=False)

    def on_turn(self, wait_s: float) -> None:
        self.turns.append(wait_s)
        self.clock.elapsed += 1_000

    def claim(self, stop: Event | None = None) -> Leader | None:
        return self.claimer.claim(self.appender, stop or Event())


class Held(MemoryAppender):
    """Reports a claim as ``becomes`` says at a poll."""

    becomes: Callable[[MemoryAppender], None] = staticmethod(lambda _: None)

    def poll(self, wait_s: float) -> Sequence[DeliveryReport]:
        if self.in_flight:
            self.becomes(self)
        return MemoryAppender.poll(self, wait_s)


@pytest.mark.parametrize("ahead_ms", [MAX_CLOCK_SKEW_MS, -MAX_CLOCK_SKEW_MS])
def test_a_candidate_whose_clock_is_near_the_brokers_leads(ahead_ms: int):
    claiming = Claiming(ahead_ms)
    claiming.appender.becomes = MemoryAppender.deliver
    leader = claiming.claim()
    assert leader is not None
    assert claiming.claimer.has_claimed(leader.nonce)
    assert claiming.shard.replica.position.nonce == leader.nonce
    assert READ_STEP_S + ANSWER_WAIT_S in claiming.turns, "it says how long it may be silent"
    assert claiming.turns[-1] == 0.0


def test_who_has_been_told_where_the_log_ends_is_not_expected_to_be_silent_any_more():
    claiming = Claiming()
    claiming.claimer.catch_up()
    assert claiming.turns[:2] == [ANSWER_WAIT_S, 0.0]


@pytest.mark.parametrize("ahead_ms", [MAX_CLOCK_SKEW_MS + 1, -MAX_CLOCK_SKEW_MS - 1])
def test_a_candidate_whose_clock_is_far_from_the_brokers_does_not_lead(ahead_ms: int):
    claiming = Claiming(ahead_ms)
    claiming.appender.becomes = MemoryAppender.deliver
    with pytest.raises(UnfitToLead, match="this node's clock is over 60000 ms from the broker's"):
        claiming.claim()


def test_a_claim_without_a_report_is_given_up():
    claiming = Claiming()
    polls: list[int] = []
    claiming.appender.becomes = lambda appender: polls.append(len(appender.in_flight))
    with pytest.raises(LogUnavailable, match="claim of term 2: no report in time"):
        claiming.claim()
    assert len(polls) == CLAIM_WAIT_S, "a second passes with each turn"


def test_a_claim_that_the_broker_refuses_is_given_up():
    claiming = Claiming()
    claiming.appender.becomes = lambda appender: appender.fail(appended=True)
    with pytest.raises(LogUnavailable, match="claim of term 2: timed out"):
        claiming.claim()


def test_a_candidate_that_is_to_stop_does_not_wait_for_its_claim():
    claiming = Claiming()
    claiming.appender.becomes = MemoryAppender.deliver
    stop = Event()
    stop.set()
    with pytest.raises(LogUnavailable, match="no report in time"):
        claiming.claim(stop)


def test_a_candidate_that_another_overtakes_does_not_lead():
    claiming = Claiming()

    def overtaken(appender: MemoryAppender) -> None:
        node = claiming.shard.nodes["n2"]
        claiming.shard.log.append(encode(claim_for(node.replica, b"2" * 16, "", claiming.shard.clock.wall_ms())))
        appender.deliver()

    claiming.appender.becomes = overtaken
    assert claiming.claim() is None
    assert claiming.shard.replica.position.nonce == b"2" * 16


def test_a_claim_below_what_was_read_stops_the_replica():
    claiming = Claiming()

    def lose(appender: MemoryAppender) -> None:
        del claiming.shard.log.entries[-1:]
        appender.deliver()

    claiming.appender.becomes = lose
    with pytest.raises(AheadOfLog, match="the claim lies at 1, but this replica has read up to 1"):
        claiming.claim()


def test_another_record_than_the_one_applied_stops_the_candidate():
    claiming = Claiming()
    entries = claiming.shard.log.entries
    entries[-1] = replace(entries[-1], value=entries[0].value)
    with pytest.raises(AheadOfLog, match="shard 0, offset 1: the log holds another record than the one applied"):
        claiming.claim()
    assert claiming.appender.in_flight == [], "nothing was claimed"


class Mute:
    """A log whose records cannot be read for so many questions; the clock goes on with each."""

    def __init__(self, claiming: Claiming, times: float, offset: int = 0) -> None:
        self._log = claiming.shard.log
        self.left = times
        self._from = offset
        self.asked: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    def read(self, offset: int, limit: int, wait_s: float) -> Sequence[Entry]:
        self.asked.append((offset, limit))
        if offset >= self._from and self.left > 0:
            self.left -= 1
            return []
        return self._log.read(offset, limit, wait_s)


def mute(claiming: Claiming, times: float, offset: int = 0) -> Mute:
    found: Any = Mute(claiming, times, offset)
    claiming.claimer.log = found
    claiming.appender.becomes = MemoryAppender.deliver
    silent: Mute = found
    return silent


def test_a_log_that_is_slow_to_answer_is_asked_again():
    claiming = Claiming()
    mute(claiming, READ_WAIT_S / 4)
    assert claiming.claim() is not None


def test_a_position_that_cannot_be_read_ends_the_claim():
    claiming = Claiming()
    silent = mute(claiming, float("inf"))
    with pytest.raises(LogUnavailable, match="shard 0: offset 1, which this replica has applied, cannot be read"):
        claiming.claim()
    assert silent.asked == [(1, 1)] * int(READ_WAIT_S / 2), "two seconds pass with each question"
    assert claiming.appender.in_flight == []


def test_a_claim_that_cannot_be_read_is_given_up():
    claiming = Claiming()
    mute(claiming, float("inf"), offset=2)
    with pytest.raises(LogUnavailable, match=f"no record from offset 2 on within {READ_WAIT_S} s"):
        claiming.claim()


def test_a_log_that_gives_a_record_now_and_then_is_read_to_its_end():
    """READ_WAIT_S is the time without a record, not that of all of them."""
    claiming = Claiming()
    first = claiming.shard.replica.read_offset + 1
    silences = dict.fromkeys(range(first, first + 3), READ_WAIT_S / 2 - 1)
    for _ in silences:
        claiming.shard.log.append(VOID)
    silent = mute(claiming, 0)

    def read(offset: int, limit: int, wait_s: float) -> Sequence[Entry]:
        silences[offset] -= 1
        return [] if silences[offset] >= 0 else claiming.shard.log.read(offset, 1, wait_s)

    silent.read = read  # type: ignore[method-assign]
    claiming.claimer.read_to(first + 3)
    assert claiming.shard.replica.read_offset == first + 2


def test_records_are_read_in_parts_and_none_beyond_the_end():
    claiming = Claiming()
    first = claiming.shard.replica.read_offset + 1
    for _ in range(READ_LIMIT + 3):
        claiming.shard.log.append(VOID)
    silent = mute(claiming, 0)
    claiming.claimer.read_to(first + READ_LIMIT + 2)
    assert silent.asked == [(first, READ_LIMIT), (first + READ_LIMIT, 2)]
    assert claiming.shard.replica.read_offset == first + READ_LIMIT + 1


def test_records_are_judged_again_in_parts_and_none_beyond_the_last():
    claiming = Claiming()
    position = claiming.shard.replica.position
    last = position.offset + READ_LIMIT + 2
    for _ in range(READ_LIMIT + 3):
        claiming.shard.log.append(VOID)
    silent = mute(claiming, 0)
    assert claiming.claimer._judge_again(position, last) == replace(position, offset=last)
    assert silent.asked == [(position.offset + 1, READ_LIMIT), (position.offset + 1 + READ_LIMIT, 2)]


def test_a_replica_that_has_applied_nothing_has_nothing_to_compare():
    claiming = Claiming()
    silent = mute(claiming, 0)
    claiming.claimer._compare_with_log(replace(claiming.shard.replica.position, offset=-1))
    assert silent.asked == []
    first = replace(claiming.shard.replica.position, offset=0)
    with pytest.raises(AheadOfLog, match="shard 0, offset 0: the log holds another record than the one applied"):
        claiming.claimer._compare_with_log(first)


def test_only_the_last_claims_are_remembered():
    claiming = Claiming()
    claiming.appender.becomes = lambda appender: appender.fail(appended=True)
    nonces = []
    for _ in range(REMEMBERED_CLAIMS + 1):
        with pytest.raises(LogUnavailable):
            claiming.claim()
        nonces.append(claiming.claimer._claims[-1])
        claiming.shard.log.entries.pop()
    assert len(set(nonces)) == REMEMBERED_CLAIMS + 1
    assert [claiming.claimer.has_claimed(nonce) for nonce in nonces] == [False] + [True] * REMEMBERED_CLAIMS


def test_records_that_were_lost_behind_the_anchor_stop_the_candidate(monkeypatch: pytest.MonkeyPatch):
    """Its chain would not be the log's."""
    claiming = Claiming()
    claiming.appender.becomes = MemoryAppender.deliver
    judged = claiming.claimer._judge_again
    monkeypatch.setattr(claiming.claimer, "_judge_again", lambda *given: replace(judged(*given), chain=b"?" * 32))
    with pytest.raises(
        AheadOfLog, match="shard 0: the log has lost records that this replica had read before its claim"
    ):
        claiming.claim()


def test_what_is_judged_again_is_read_to_the_claim_and_no_further():
    claiming = Claiming()
    silent = mute(claiming, 0)
    leader = claiming.claim()
    assert leader is not None
    claim = claiming.shard.replica.read_offset
    assert max(offset + limit for offset, limit in silent.asked) == claim + 1


def test_a_record_that_cannot_be_judged_again_is_not_taken_for_read():
    claiming = Claiming()
    position = claiming.shard.replica.position
    claiming.shard.log.append(b"anything")
    silent = mute(claiming, float("inf"), offset=2)
    with pytest.raises(LogUnavailable, match="no record from offset 2 on within"):
        claiming.claimer._judge_again(position, 2)
    silent.left = 0
    assert claiming.claimer._judge_again(position, 1) == position


def test_another_record_at_the_anchor_after_the_claim_stops_the_candidate():
    """The log lost its tail between the look before the claim and the claim, and holds another record there."""
    claiming = Claiming()
    entries = claiming.shard.log.entries

    def lose(appender: MemoryAppender) -> None:
        entries[-1] = replace(entries[-1], value=entries[0].value)
        appender.deliver()

    claiming.appender.becomes = lose
    with pytest.raises(AheadOfLog, match="shard 0, offset 1: the log holds another record than the one applied"):
        claiming.claim()


def test_a_log_without_records_is_given_up_once_its_time_is_over():
    claiming = Claiming()
    silent = mute(claiming, float("inf"))
    claiming.shard.log.append(b"anything")

    def passes(wait_s: float) -> None:
        claiming.clock.elapsed += round(wait_s and READ_WAIT_S * 1000 + 1)

    claiming.claimer._on_turn = passes
    with pytest.raises(LogUnavailable, match="no record from offset 2 on within"):
        claiming.claimer.read_to(3)
    assert silent.asked == [(2, 1)]
