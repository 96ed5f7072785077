"""The machine of leadership: every state with every event, and what the rules say of longer stories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from om_processors.errors import OMError
from om_processors.leading.core.leadership_events import (
    AwaitDrain,
    BorrowAsked,
    BorrowerLeads,
    BorrowFailed,
    EndThread,
    Event,
    GroupLeft,
    GroupSettled,
    GroupUnsettled,
    Instruction,
    JoinGroup,
    LeadershipNote,
    LeaveGroup,
    LoanRenewed,
    LoansDue,
    LoanWantedBack,
    MoveAsked,
    MoveEnded,
    RenewalAnswered,
    RenewLoan,
    ReturnLoan,
    ShardsAssigned,
    ShardsLost,
    ShardsRevoked,
    SignsSeen,
    StartThread,
    StepDownAsked,
    StopAsked,
    ThreadEnd,
    ThreadEnded,
)
from om_processors.leading.core.leadership_machine import HANDLERS, UNFIT_WAIT_S, LeadershipMachine
from om_processors.leading.core.leadership_states import MemberState, ShardRole
from om_processors.leading.core.lending import LEND_TIMEOUT_S, Answer, Loan
from om_processors.leading.core.watchdog import Bounds, ShardSigns, Signs
from schemas.transitions import NoSuchTransition

NOW_S = 1000.0
LOAN_S = 3.0
GOOD = Signs(shards=(ShardSigns(shard=0), ShardSigns(shard=1)))
BAD = replace(GOOD, event_loop_ago_ms=5000.0)
STALL = "the event loop has not turned for 5000 ms"


def machine() -> LeadershipMachine:
    return LeadershipMachine("om2", (0, 1), Bounds(stall_ms=1000), LOAN_S)


def signs(seen: Signs = GOOD, now_s: float = NOW_S) -> SignsSeen:
    return SignsSeen(signs=seen, now_s=now_s)


def left(now_s: float = NOW_S, jitter_s: float = 0.5) -> GroupLeft:
    return GroupLeft(now_s=now_s, jitter_s=jitter_s)


def assigned(*shards: int) -> ShardsAssigned:
    return ShardsAssigned(shards=shards)


def ended(why: ThreadEnd, thread: int = 1, shard: int = 0) -> ThreadEnded:
    return ThreadEnded(shard=shard, thread=thread, why=why, now_s=NOW_S)


def borrow(seen: Signs = GOOD, shard: int = 0) -> BorrowAsked:
    return BorrowAsked(shard=shard, owner="om1", signs=seen, now_s=NOW_S)


BORROWER_LEADS = BorrowerLeads(shard=0, node="om3", address="h:3", now_s=NOW_S)

TO_STATE: dict[MemberState, list[Event]] = {
    MemberState.OUTSIDE: [],
    MemberState.JOINING: [signs()],
    MemberState.MEMBER: [signs(), GroupSettled()],
    MemberState.LEAVING: [signs(), signs(BAD)],
    MemberState.STOPPING: [signs(), StopAsked()],
    MemberState.STOPPED: [StopAsked()],
}
TO_ROLE: dict[ShardRole, list[Event]] = {
    ShardRole.ELSEWHERE: [],
    ShardRole.LEADING: [assigned(0)],
    ShardRole.MOVING: [assigned(0), MoveAsked(shard=0), StepDownAsked(shard=0)],
    ShardRole.LENT: [assigned(0), MoveAsked(shard=0), StepDownAsked(shard=0), BORROWER_LEADS, MoveEnded(shard=0)],
    ShardRole.VACANT: [assigned(0), ended(ThreadEnd.TOLD)],
    ShardRole.BORROWED: [borrow()],
}


def tell(found: LeadershipMachine, *told: Event) -> list[Instruction]:
    """Return what the last event has the machine say."""
    return [found.handle(event) for event in told][-1] if told else []


def in_state(state: MemberState) -> LeadershipMachine:
    found = machine()
    tell(found, *TO_STATE[state])
    assert found.state is state
    return found


def in_role(role: ShardRole) -> LeadershipMachine:
    found = in_state(MemberState.MEMBER)
    tell(found, *TO_ROLE[role])
    assert found.roles[0] is role
    return found


KINDS = {
    JoinGroup: "join", LeaveGroup: "leave", StartThread: "start", EndThread: "end", AwaitDrain: "drain", ReturnLoan: "return",
    RenewLoan: "renew", LeadershipNote: "say",
}  # fmt: skip


def kinds(instructions: list[Instruction]) -> str:
    return " ".join(KINDS[type(one)] for one in instructions)


def outcome(found: LeadershipMachine, event: Event) -> tuple[str, str]:
    """Return what a machine says, and how it refuses."""
    try:
        return kinds(found.handle(event)), ""
    except OMError as refusal:
        return "", refusal.message
    except NoSuchTransition:
        return "", "impossible"


STATES = [state.name for state in MemberState]
OF_THE_NODE: dict[str, tuple[Event, list[str]]] = {
    # event; for each state: the state that follows (= none other), what is said, after a colon how it is refused
    "good signs": (signs(), ["JOINING join", "=", "=", "=", "=", "="]),
    "bad signs": (signs(BAD), ["= say", "LEAVING say leave", "LEAVING say leave", "=", "=", "="]),
    "settled": (GroupSettled(), ["=", "MEMBER", "=", "=", "=", "="]),
    "unsettled": (GroupUnsettled(now_s=NOW_S), ["=", "=", "JOINING", "=", "=", "="]),
    "left": (left(), ["=: impossible", "=: impossible", "=: impossible", "OUTSIDE", "STOPPED", "=: impossible"]),
    "stop": (StopAsked(), ["STOPPED", "STOPPING leave", "STOPPING leave", "STOPPING", "=", "="]),
    "assigned": (assigned(0), ["=", "= say start", "= say start", "=", "=", "="]),
    "revoked": (ShardsRevoked(shards=(0,)), ["="] * 6),
    "lost": (ShardsLost(shards=(0,)), ["= say"] * 6),
    "unfit": (ended(ThreadEnd.UNFIT, 99), ["=", "LEAVING leave", "LEAVING leave", "=", "=", "="]),
    "deposed": (ended(ThreadEnd.DEPOSED, 99), ["="] * 6),
    "failed": (ended(ThreadEnd.FAILED, 99), ["="] * 6),
    "told": (ended(ThreadEnd.TOLD, 99), ["="] * 6),
    "move": (MoveAsked(shard=0), ["=: om2 does not own shard 0"] * 6),
    "step down": (
        StepDownAsked(shard=0),
        ["=: om2 leaves the group, and shard 0 with it", *["=: om2 has lost shard 0 meanwhile"] * 2,
         *["=: om2 leaves the group, and shard 0 with it"] * 3],
    ),
    "borrower leads": (BORROWER_LEADS, ["="] * 6),
    "move ended": (MoveEnded(shard=0), ["="] * 6),
    "renewal answered": (
        RenewalAnswered(loan=Loan(shard=0, node="om3", address="h:3", heard_s=0), answer=Answer.GONE, now_s=NOW_S),
        ["="] * 6,
    ),
    "borrow": (borrow(), [*["= say start"] * 4, *["=: om2 may not lead now: it stops"] * 2]),
    "borrow with bad signs": (
        borrow(BAD), [*[f"=: om2 may not lead now: {STALL}"] * 4, *["=: om2 may not lead now: it stops"] * 2]
    ),
    "borrow failed": (BorrowFailed(shard=0, owner="om1"), ["="] * 6),
    "renewed": (LoanRenewed(shard=0, owner="om1", now_s=NOW_S), ["="] * 6),
    "wanted back": (LoanWantedBack(shard=0, owner="om1"), ["="] * 6),
    "loans due": (LoansDue(now_s=NOW_S), ["="] * 6),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_THE_NODE)
@pytest.mark.parametrize("state", MemberState)
def test_every_state_of_the_node_with_every_event(state: MemberState, name: str):
    event, row = OF_THE_NODE[name]
    expected, _, refusal = row[STATES.index(state.name)].partition(": ")
    following, _, said = expected.partition(" ")
    found = in_state(state)
    assert outcome(found, event) == (said, refusal)
    assert found.state is (state if following == "=" else MemberState[following])


ROLES = [role.name for role in ShardRole]
OF_A_SHARD: dict[str, tuple[Event, list[str]]] = {
    # ELSEWHERE, LEADING, MOVING, LENT, VACANT, BORROWED
    "bad signs": (
        signs(BAD),
        ["= say leave", "VACANT say end leave", "VACANT say leave", "= say leave", "= say leave", "ELSEWHERE say end leave"],
    ),
    "good signs": (signs(), ["="] * 6),
    "settled": (GroupSettled(), ["="] * 6),
    "unsettled": (GroupUnsettled(now_s=NOW_S), ["="] * 6),
    "left": (left(), ["=: impossible"] * 6),
    "stop": (StopAsked(), ["= leave", "VACANT end leave", "VACANT leave", "= leave", "= leave", "ELSEWHERE end leave"]),
    "assigned": (assigned(0), ["LEADING say start", "= say", "= say", "= say", "LEADING say start", "LEADING say"]),
    "revoked": (
        ShardsRevoked(shards=(0,)),
        ["=", "ELSEWHERE end drain", "ELSEWHERE", "ELSEWHERE", "ELSEWHERE", "ELSEWHERE end drain"],
    ),
    "lost": (
        ShardsLost(shards=(0,)),
        ["= say", "ELSEWHERE say end", "ELSEWHERE say", "ELSEWHERE say", "ELSEWHERE say", "ELSEWHERE say end"],
    ),
    "told": (ended(ThreadEnd.TOLD), ["=", "VACANT", "=", "=", "=", "ELSEWHERE"]),
    "deposed": (ended(ThreadEnd.DEPOSED), ["=", "VACANT leave", "=", "=", "=", "ELSEWHERE"]),
    "failed": (ended(ThreadEnd.FAILED), ["=", "VACANT leave", "=", "=", "=", "ELSEWHERE"]),
    "unfit": (
        ended(ThreadEnd.UNFIT),
        ["= leave", "VACANT leave", "VACANT leave", "= leave", "= leave", "ELSEWHERE leave"],
    ),
    "unfit, of long ago": (
        ended(ThreadEnd.UNFIT, 99),
        ["= leave", "VACANT end leave", "VACANT leave", "= leave", "= leave", "ELSEWHERE end leave"],
    ),
    "deposed, of long ago": (ended(ThreadEnd.DEPOSED, 99), ["="] * 6),
    "move": (
        MoveAsked(shard=0),
        ["=: om2 does not own shard 0", "=", "=: shard 0 is being moved already", "=", "=", "=: om2 does not own shard 0"],
    ),
    "step down": (
        StepDownAsked(shard=0),
        ["=: om2 has lost shard 0 meanwhile", "MOVING end drain", "=: om2 has lost shard 0 meanwhile", "MOVING return",
         "=: om2 has lost shard 0 meanwhile", "=: om2 has lost shard 0 meanwhile"],
    ),
    "borrower leads": (BORROWER_LEADS, ["=", "=", "LENT say", "=: impossible", "=", "="]),
    "move ended": (MoveEnded(shard=0), ["=", "=", "LEADING start", "=", "=", "="]),
    "borrow": (
        borrow(),
        ["BORROWED say start", "=: om2 leads shard 0 already", "=: om2 owns shard 0 itself", "=: om2 owns shard 0 itself",
         "=: om2 owns shard 0 itself", "=: om2 leads shard 0 already"],
    ),
    "borrow failed": (BorrowFailed(shard=0, owner="om1"), ["=", "=", "=", "=", "=", "ELSEWHERE end"]),
    "borrow failed for another": (BorrowFailed(shard=0, owner="om4"), ["="] * 6),
    "renewed": (LoanRenewed(shard=0, owner="om1", now_s=NOW_S), ["="] * 6),
    "wanted back": (LoanWantedBack(shard=0, owner="om1"), ["=", "=", "=", "=", "=", "ELSEWHERE end drain"]),
    "wanted back by another": (LoanWantedBack(shard=0, owner="om4"), ["="] * 6),
    "loans due": (LoansDue(now_s=NOW_S), ["=", "=", "=", "= renew", "=", "="]),
    "loans over": (
        LoansDue(now_s=NOW_S + LEND_TIMEOUT_S + LOAN_S + 1), ["=", "=", "=", "= renew", "=", "ELSEWHERE say end drain"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_A_SHARD)
@pytest.mark.parametrize("role", ShardRole)
def test_every_role_with_every_event(role: ShardRole, name: str):
    event, row = OF_A_SHARD[name]
    expected, _, refusal = row[ROLES.index(role.name)].partition(": ")
    following, _, said = expected.partition(" ")
    found = in_role(role)
    assert outcome(found, event) == (said, refusal)
    assert found.roles[0] is (role if following == "=" else ShardRole[following])
    assert found.roles[1] is ShardRole.ELSEWHERE


def test_no_kind_of_event_is_forgotten():
    assert {type(event) for event, _ in OF_THE_NODE.values()} == set(HANDLERS)
    assert {type(event) for event, _ in OF_A_SHARD.values()} == set(HANDLERS) - {RenewalAnswered}


# -- loans that are given: the answers depend on which loan it is --------------------------------------------------


def lent() -> tuple[LeadershipMachine, Loan]:
    found = in_role(ShardRole.LENT)
    (instruction,) = tell(found, LoansDue(now_s=NOW_S))
    assert isinstance(instruction, RenewLoan)
    return found, instruction.loan


@pytest.mark.parametrize(
    ("answer", "later_s", "role", "said"),
    [
        (Answer.LEADS, 100, ShardRole.LENT, ""),
        (Answer.SILENT, LOAN_S, ShardRole.LENT, ""),
        (Answer.SILENT, LOAN_S + 1, ShardRole.LEADING, "say start"),
        (Answer.DOES_NOT_LEAD, 0, ShardRole.LEADING, "say start"),
        (Answer.GONE, 0, ShardRole.LEADING, "say start"),
    ],
)
def test_what_a_borrower_answers(answer: Answer, later_s: float, role: ShardRole, said: str):
    found, loan = lent()
    assert kinds(tell(found, RenewalAnswered(loan=loan, answer=answer, now_s=NOW_S + later_s))) == said
    assert found.roles[0] is role
    assert found.lent_to(0) == ("om3" if role is ShardRole.LENT else None)


def test_a_renewal_is_remembered():
    found, loan = lent()
    tell(found, RenewalAnswered(loan=loan, answer=Answer.LEADS, now_s=NOW_S + 10))
    assert tell(found, RenewalAnswered(loan=loan, answer=Answer.SILENT, now_s=NOW_S + 10 + LOAN_S)) == []


def test_what_the_borrower_of_an_earlier_loan_answers_is_ignored():
    found, loan = lent()
    tell(found, MoveAsked(shard=0), StepDownAsked(shard=0), replace(BORROWER_LEADS, node="om4"), MoveEnded(shard=0))
    assert tell(found, RenewalAnswered(loan=loan, answer=Answer.GONE, now_s=NOW_S)) == []
    assert found.lent_to(0) == "om4"


def test_a_node_that_leaves_does_not_lead_again_what_it_had_lent():
    found, loan = lent()
    tell(found, signs(BAD))
    assert kinds(tell(found, LoansDue(now_s=NOW_S))) == "renew"
    assert tell(found, RenewalAnswered(loan=loan, answer=Answer.GONE, now_s=NOW_S)) == []
    assert found.roles[0] is ShardRole.VACANT
    assert found.lent_to(0) is None


def test_a_loan_ends_with_its_owners_ownership():
    found, loan = lent()
    tell(found, ShardsRevoked(shards=(0,)))
    assert tell(found, LoansDue(now_s=NOW_S)) == []
    assert tell(found, RenewalAnswered(loan=loan, answer=Answer.GONE, now_s=NOW_S)) == []


# -- loans that are taken ------------------------------------------------------------------------------------------


def test_a_loan_that_is_renewed_goes_on():
    found = in_role(ShardRole.BORROWED)
    tell(found, LoanRenewed(shard=0, owner="om1", now_s=NOW_S + 100))
    assert tell(found, LoansDue(now_s=NOW_S + 100 + LOAN_S)) == []
    tell(found, LoanRenewed(shard=0, owner="om4", now_s=NOW_S + 200))
    assert kinds(tell(found, LoansDue(now_s=NOW_S + 101 + LOAN_S))) == "say end drain"
    assert found.borrowed_from(0) is None


@pytest.mark.parametrize("why", [ThreadEnd.DEPOSED, ThreadEnd.FAILED, ThreadEnd.TOLD])
def test_a_borrowers_failure_costs_the_loan_and_nothing_else(why: ThreadEnd):
    found = in_state(MemberState.MEMBER)
    tell(found, assigned(1), borrow())
    assert tell(found, ended(why, thread=2)) == []
    assert (found.state, found.roles[1]) == (MemberState.MEMBER, ShardRole.LEADING)
    assert kinds(tell(found, borrow())) == "say start"


def test_one_that_has_borrowed_goes_on_when_it_is_assigned_the_shard():
    found = in_role(ShardRole.BORROWED)
    tell(found, assigned(0))
    assert (found.owns(0), found.borrowed_from(0)) == (True, None)
    assert tell(found, BorrowFailed(shard=0, owner="om1")) == []
    assert kinds(tell(found, ended(ThreadEnd.DEPOSED))) == "leave"


# -- membership ----------------------------------------------------------------------------------------------------


def test_a_node_comes_back_after_the_jitter():
    found = in_role(ShardRole.LEADING)
    tell(found, ended(ThreadEnd.DEPOSED), left(jitter_s=0.5))
    assert found.roles[0] is ShardRole.ELSEWHERE
    assert tell(found, signs(now_s=NOW_S + 0.4)) == []
    assert tell(found, signs(now_s=NOW_S + 0.5)) == [JoinGroup()]


@pytest.mark.parametrize("why", [ThreadEnd.FAILED, ThreadEnd.UNFIT])
def test_a_node_that_cannot_lead_stays_out_for_a_while(why: ThreadEnd):
    found = in_role(ShardRole.LEADING)
    tell(found, ended(why), left(jitter_s=0.5))
    assert tell(found, signs(now_s=NOW_S + UNFIT_WAIT_S - 0.1)) == []
    assert tell(found, signs(now_s=NOW_S + UNFIT_WAIT_S)) == [JoinGroup()]


def test_why_it_does_not_join_is_said_once():
    found = machine()
    assert tell(found, signs(BAD)) == [LeadershipNote(text=f"not joining the leaders: {STALL}")]
    assert tell(found, signs(BAD)) == []
    assert kinds(tell(found, signs(replace(BAD, event_loop_ago_ms=6000)))) == "say"


def test_why_it_leaves_is_said():
    found = in_state(MemberState.MEMBER)
    assert tell(found, signs(BAD)) == [LeadershipNote(text=f"this node leads nothing any more: {STALL}"), LeaveGroup()]


def test_a_group_that_does_not_settle_is_left_by_those_that_own_nothing():
    def unsettled(found: LeadershipMachine) -> Any:
        tell(found, GroupUnsettled(now_s=NOW_S), GroupUnsettled(now_s=NOW_S + 10))
        return found.unsettled_ms(NOW_S + 30)

    assert unsettled(in_state(MemberState.JOINING)) == 30_000
    assert unsettled(in_role(ShardRole.LENT)) == 0
    found = in_state(MemberState.JOINING)
    assert unsettled(found) == 30_000
    tell(found, GroupSettled())
    assert found.unsettled_ms(NOW_S + 30) == 0
    tell(found, GroupUnsettled(now_s=NOW_S + 30), signs(BAD), left(), signs(now_s=NOW_S + 40))
    assert (found.state, found.unsettled_ms(NOW_S + 60)) == (MemberState.JOINING, 0)


def test_all_that_is_led_ends_when_the_node_leaves():
    found = in_state(MemberState.MEMBER)
    tell(found, assigned(0), borrow(shard=1))
    assert tell(found, signs(BAD))[1:] == [EndThread(shard=0, thread=1), EndThread(shard=1, thread=2), LeaveGroup()]
    assert (found.is_draining(0), found.is_draining(1)) == (True, True)
    tell(found, ended(ThreadEnd.TOLD, thread=1))
    assert (found.is_draining(0), found.is_draining(1)) == (False, True)


def test_shards_that_are_taken_away_together_drain_together():
    found = in_state(MemberState.MEMBER)
    tell(found, assigned(0, 1))
    assert tell(found, ShardsRevoked(shards=(0, 1)))[-1] == AwaitDrain(threads=(1, 2))


# -- moves ---------------------------------------------------------------------------------------------------------


def test_a_move_to_another_node():
    found = in_role(ShardRole.LEADING)
    assert tell(found, MoveAsked(shard=0)) == []
    assert tell(found, StepDownAsked(shard=0)) == [EndThread(shard=0, thread=1), AwaitDrain(threads=(1,))]
    assert kinds(tell(found, BORROWER_LEADS)) == "say"
    assert tell(found, MoveEnded(shard=0)) == []
    assert (found.lent_to(0), found.owns(0), found.has_thread(0)) == ("om3", True, False)


def test_a_move_that_fails_has_the_owner_lead_again():
    found = in_role(ShardRole.MOVING)
    assert tell(found, MoveEnded(shard=0)) == [StartThread(shard=0, thread=2)]


def test_a_shard_that_was_lost_and_assigned_again_during_a_move_is_led_here():
    found = in_role(ShardRole.MOVING)
    tell(found, ShardsLost(shards=(0,)), assigned(0))
    tell(found, BORROWER_LEADS, MoveEnded(shard=0))
    assert (found.roles[0], found.lent_to(0)) == (ShardRole.LEADING, None)


def test_a_move_that_outlasts_the_membership_starts_nothing():
    found = in_role(ShardRole.MOVING)
    tell(found, signs(BAD))
    assert tell(found, MoveEnded(shard=0)) == []
    tell(found, left(), signs(now_s=NOW_S + 1), assigned(0))
    assert tell(found, MoveAsked(shard=0)) == []  # the one before is over


def test_partitions_that_are_no_shards_are_told_and_left_alone():
    """Somebody adds partitions to the topic of requests; before, that ended every node."""
    found = in_state(MemberState.MEMBER)
    said = tell(found, assigned(0, 2, 3))
    assert kinds(said) == "say say start"
    assert isinstance(said[0], LeadershipNote)
    assert "om.requests has partitions [2, 3], which are no shards" in said[0].text
    assert "'stratolog topics ensure'" in said[0].text
    assert found.owns(0)
    assert kinds(tell(found, ShardsRevoked(shards=(2,)))) == ""
    assert kinds(tell(found, ShardsLost(shards=(3,)))) == "say"
    assert found.owns(0)
    assert kinds(tell(found, ShardsRevoked(shards=(0, 3)))) == "end drain"
