"""The machine of leadership in random orders of events, against the threads and the group that it believes to have.

What is told is what the shell can tell: the end of a thread that runs, the callbacks of an open consumer, the steps of
a move in order. Held at every step: a shard never has two threads; one that is told to end counts as draining until it
has ended; a borrower's failure costs the loan and nothing else; after ``stop`` nothing is started; nobody stays a
member who has a reason to leave.
"""

from __future__ import annotations

from enum import Enum, auto

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from om_processors.errors import OMError
from om_processors.leading.core import leadership_events as events
from om_processors.leading.core.leadership_events import ThreadEnd
from om_processors.leading.core.leadership_machine import LeadershipMachine
from om_processors.leading.core.leadership_states import IN_GROUP, MemberState, ShardRole
from om_processors.leading.core.lending import Answer, Loan
from om_processors.leading.core.watchdog import Bounds, ShardSigns, Signs
from tests.properties.examples import examples

SHARDS = range(3)
SHARD = st.sampled_from(SHARDS)
OWNER = st.sampled_from(["om1", "om3"])
SOME = st.sets(SHARD, min_size=1).map(lambda found: tuple(sorted(found)))
PICK = st.integers(0, 10_000)
LOAN_S = 3.0


class Move(Enum):
    """How far the shell is with a move."""

    ASKED = auto()
    STEPPED_DOWN = auto()
    LED_ELSEWHERE = auto()


class LeadershipStory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = LeadershipMachine("om2", SHARDS, Bounds(stall_ms=1000), LOAN_S)
        self.now_s = 0.0
        self.running: dict[int, int] = {}
        self.told: set[int] = set()
        self.consumer_is_open = self.is_to_leave = self.stopped = False
        self.moves: dict[int, Move] = {}
        self.loans: list[Loan] = []

    def tell(self, event: events.Event) -> list[events.Instruction]:
        said = self.machine.handle(event)
        for instruction in said:
            self.carry_out(instruction)
        return said

    def carry_out(self, instruction: events.Instruction) -> None:
        match instruction:
            case events.StartThread(shard=shard, thread=number):
                assert not self.stopped
                assert number not in self.running
                assert shard not in self.leaders()
                assert self.machine.state in IN_GROUP or self.machine.borrowed_from(shard) is not None
                self.running[number] = shard
            case events.EndThread(shard=shard, thread=number):
                assert self.running[number] == shard
                assert number not in self.told
                self.told.add(number)
            case events.AwaitDrain(threads=numbers):
                assert self.told.issuperset(numbers)
            case events.JoinGroup():
                assert not self.stopped
                assert not self.consumer_is_open
                self.consumer_is_open, self.is_to_leave = True, False
            case events.LeaveGroup():
                assert self.consumer_is_open
                assert not self.is_to_leave
                self.is_to_leave = True
            case events.RenewLoan(loan=loan):
                self.loans.append(loan)
            case events.ReturnLoan(loan=loan):
                assert self.machine.lent_to(loan.shard) is None

    def leaders(self) -> list[int]:
        """Return the shards of threads that have not been told to end."""
        return [shard for number, shard in self.running.items() if number not in self.told]

    def signs(self, *, bad: bool) -> Signs:
        shards = tuple(
            ShardSigns(
                shard=shard,
                turned_ago_ms=0 if self.machine.has_thread(shard) else None,
                lingering=self.machine.is_draining(shard),
            )
            for shard in SHARDS
        )
        return Signs(
            shards=shards, event_loop_ago_ms=5000 if bad else 0, unsettled_ms=self.machine.unsettled_ms(self.now_s)
        )

    # -- what happens ----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 2.0, 20.0, 100.0]))
    def time_passes(self, seconds: float):
        self.now_s += seconds

    @rule(bad=st.sampled_from([False, False, False, True]))
    def the_watchdog_looks(self, bad: bool):
        self.tell(events.SignsSeen(signs=self.signs(bad=bad), now_s=self.now_s))
        assert not (bad and self.machine.state in IN_GROUP)

    @precondition(lambda self: self.consumer_is_open)
    @rule(settled=st.booleans())
    def the_group_rebalances(self, settled: bool):
        self.tell(events.GroupSettled() if settled else events.GroupUnsettled(now_s=self.now_s))

    @precondition(lambda self: self.consumer_is_open)
    @rule(shards=SOME)
    def shards_are_assigned(self, shards: tuple[int, ...]):
        self.tell(events.ShardsAssigned(shards=shards))

    @precondition(lambda self: self.consumer_is_open)
    @rule(shards=SOME, lost=st.booleans())
    def shards_are_taken_away(self, shards: tuple[int, ...], lost: bool):
        self.tell(events.ShardsLost(shards=shards) if lost else events.ShardsRevoked(shards=shards))
        assert not any(map(self.machine.owns, shards))

    @precondition(lambda self: self.is_to_leave)
    @rule()
    def the_consumer_has_closed(self):
        self.consumer_is_open = self.is_to_leave = False
        self.tell(events.GroupLeft(now_s=self.now_s, jitter_s=0.5))
        assert not any(map(self.machine.owns, SHARDS))

    @precondition(lambda self: self.running)
    @rule(pick=PICK, why=st.sampled_from(ThreadEnd))
    def a_thread_ends(self, pick: int, why: ThreadEnd):
        number = sorted(self.running)[pick % len(self.running)]
        shard = self.running[number]
        by_itself, owned = number not in self.told, self.machine.owns(shard)
        before, others = (
            self.machine.state,
            {other: role for other, role in self.machine.roles.items() if other != shard},
        )
        del self.running[number]
        said = self.tell(events.ThreadEnded(shard=shard, thread=number, why=why, now_s=self.now_s))
        if why is ThreadEnd.UNFIT or (by_itself and owned and why is not ThreadEnd.TOLD):
            assert self.machine.state not in IN_GROUP
            return
        assert said == []
        assert self.machine.state is before
        assert others.items() <= self.machine.roles.items()
        if by_itself and not owned:
            assert self.machine.roles[shard] is ShardRole.ELSEWHERE

    @rule(shard=SHARD)
    def an_operator_moves_a_shard(self, shard: int):
        try:
            self.tell(events.MoveAsked(shard=shard))
        except OMError:
            assert shard in self.moves or not self.machine.owns(shard)
        else:
            self.moves[shard] = Move.ASKED

    @precondition(lambda self: self.moves)
    @rule(pick=PICK, fails=st.booleans())
    def a_move_goes_on(self, pick: int, fails: bool):
        shard = sorted(self.moves)[pick % len(self.moves)]
        step = self.moves[shard]
        if not fails and step is Move.ASKED:
            try:
                self.tell(events.StepDownAsked(shard=shard))
            except OMError:
                fails = True
            else:
                assert not self.machine.has_thread(shard)
                self.moves[shard] = Move.STEPPED_DOWN
        elif not fails and step is Move.STEPPED_DOWN:
            self.tell(events.BorrowerLeads(shard=shard, node="om3", address="h:3", now_s=self.now_s))
            self.moves[shard] = Move.LED_ELSEWHERE
        if fails or step is Move.LED_ELSEWHERE:
            del self.moves[shard]
            self.tell(events.MoveEnded(shard=shard))
            assert self.machine.roles[shard] is not ShardRole.MOVING

    @precondition(lambda self: self.loans)
    @rule(pick=PICK, answer=st.sampled_from(Answer))
    def a_borrower_answers(self, pick: int, answer: Answer):
        loan = self.loans.pop(pick % len(self.loans))
        self.tell(events.RenewalAnswered(loan=loan, answer=answer, now_s=self.now_s))

    @rule(shard=SHARD, owner=OWNER)
    def an_owner_lends(self, shard: int, owner: str):
        signs = self.signs(bad=False)
        try:
            self.tell(events.BorrowAsked(shard=shard, owner=owner, signs=signs, now_s=self.now_s))
        except OMError:
            return
        assert not any(one.lingering for one in signs.shards)
        assert self.machine.borrowed_from(shard) == owner

    @rule(shard=SHARD, owner=OWNER, how=st.sampled_from([events.BorrowFailed, events.LoanWantedBack]))
    def a_loan_ends(self, shard: int, owner: str, how: type[events.BorrowFailed | events.LoanWantedBack]):
        self.tell(how(shard=shard, owner=owner))
        assert self.machine.borrowed_from(shard) != owner

    @rule(shard=SHARD, owner=OWNER)
    def a_loan_is_renewed(self, shard: int, owner: str):
        self.tell(events.LoanRenewed(shard=shard, owner=owner, now_s=self.now_s))

    @rule()
    def loans_are_due(self):
        self.tell(events.LoansDue(now_s=self.now_s))

    @precondition(lambda self: not self.stopped)
    @rule(really=st.integers(0, 9))
    def the_process_ends(self, really: int):
        if really == 0:
            self.tell(events.StopAsked())
            self.stopped = True

    # -- what holds ------------------------------------------------------------------------------------------------

    @invariant()
    def a_shard_has_one_thread_or_none(self):
        leaders = self.leaders()
        assert sorted(leaders) == [shard for shard in SHARDS if self.machine.has_thread(shard)]

    @invariant()
    def what_was_told_to_end_drains_until_it_has(self):
        draining = {shard for number, shard in self.running.items() if number in self.told}
        assert draining == {shard for shard in SHARDS if self.machine.is_draining(shard)}

    @invariant()
    def who_leads_as_owner_is_a_member(self):
        active = {ShardRole.LEADING, ShardRole.MOVING}
        assert self.machine.state in IN_GROUP or active.isdisjoint(self.machine.roles.values())

    @invariant()
    def the_group_is_what_the_machine_holds_it_for(self):
        assert (self.machine.state in IN_GROUP) == (self.consumer_is_open and not self.is_to_leave)

    @invariant()
    def a_loan_is_given_by_an_owner_and_taken_by_another(self):
        for shard, role in self.machine.roles.items():
            assert (self.machine.lent_to(shard) is not None) == (role is ShardRole.LENT)
            assert (self.machine.borrowed_from(shard) is not None) == (role is ShardRole.BORROWED)
            assert role is not ShardRole.MOVING or shard in self.moves

    @invariant()
    def one_that_stops_leads_nothing(self):
        assert not (self.stopped and self.leaders())

    def teardown(self):
        """However it went: told to stop, it comes to rest."""
        self.tell(events.StopAsked())
        self.stopped = True
        for number, shard in list(self.running.items()):
            assert number in self.told
            del self.running[number]
            self.tell(events.ThreadEnded(shard=shard, thread=number, why=ThreadEnd.TOLD, now_s=self.now_s))
        if self.is_to_leave:
            self.tell(events.GroupLeft(now_s=self.now_s, jitter_s=0.0))
        assert self.machine.state is MemberState.STOPPED
        self.what_was_told_to_end_drains_until_it_has()
        assert not any(map(self.machine.owns, SHARDS))


LeadershipStory.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)
TestLeadership = LeadershipStory.TestCase


def test_the_story_notices_a_second_thread(monkeypatch: pytest.MonkeyPatch):
    """The check itself is one: a machine that forgets its threads fails it."""
    story = LeadershipStory()
    story.tell(events.SignsSeen(signs=story.signs(bad=False), now_s=0.0))
    story.tell(events.ShardsAssigned(shards=(0,)))
    story.a_shard_has_one_thread_or_none()
    monkeypatch.setitem(story.machine.roles, 0, ShardRole.ELSEWHERE)
    with pytest.raises(AssertionError):
        story.a_shard_has_one_thread_or_none()
    with pytest.raises(AssertionError):
        story.tell(events.ShardsAssigned(shards=(0,)))
