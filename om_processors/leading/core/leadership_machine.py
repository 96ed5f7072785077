"""Who leads on this node, as a state machine: events in, instructions out, by the tables of ``leadership_states``.

Rules (design, section 4; decisions 0013, 0026 and 0034):
    - A node joins the group only while no sign speaks against it (``watchdog``), and leaves with all its shards when
      one does.
    - Shards that the group takes away are drained; the revocation waits for that.
    - A leader that was deposed, cannot claim or is unfit leaves the group, so that others may try. One that cannot
      claim or is unfit stays out for UNFIT_WAIT_S.
    - The owner may lend a shard (``lending``). A borrower's failures cost the borrower the loan and nothing else,
      unless the borrower is unfit.
    - Partitions that somebody has added to the topic of requests are no shards. Nothing is done about them.
    - A node that leaves or stops starts no thread for a shard that it owns. A node that stops starts no thread at all.

Pure: time, signs and jitter come with events. The shell (``leadership``) holds one lock around ``handle``, StartThread
and EndThread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from om_processors.errors import OMError
from om_processors.leading.core import leadership_events as events
from om_processors.leading.core.leadership_events import (
    AwaitDrain,
    EndThread,
    Instruction,
    JoinGroup,
    LeadershipNote,
    LeaveGroup,
    RenewLoan,
    ReturnLoan,
    StartThread,
    ThreadEnd,
)
from om_processors.leading.core.leadership_states import (
    IN_GROUP,
    MEMBER_TABLE,
    OWNED,
    SHARD_TABLE,
    STOPS,
    WITH_THREAD,
    MemberSignal,
    MemberState,
    ShardRole,
    ShardSignal,
)
from om_processors.leading.core.lending import LEND_TIMEOUT_S, Answer, Borrowed, Loan, gives_up, takes_back
from om_processors.leading.core.watchdog import Bounds, reasons_not_to_join, reasons_to_leave
from schemas.result_codes import INVALID_REQUEST
from schemas.topics import OM_REQUESTS
from schemas.transitions import next_state

UNFIT_WAIT_S = 60.0
"""How long a node stays out of the group if it is unfit to lead (its clock is wrong) or cannot claim a
shard it owns.
"""

NO_SHARD = (
    f"The cluster goes on. To be rid of them, delete the topic {OM_REQUESTS} (requests that nobody has executed yet are "
    "sent again by their clients), and let 'stratolog topics ensure' make it anew"
)
"""The way back for a topic that has more partitions than the cluster has shards."""

COSTS_MEMBERSHIP = frozenset({ThreadEnd.DEPOSED, ThreadEnd.FAILED})
"""Ends of an owner's thread that make its node leave the group. UNFIT does so for a borrowed shard too."""


class LeadershipMachine:
    """The state of one node's leadership, for all its shards."""

    def __init__(self, node: str, shards: Iterable[int], bounds: Bounds, loan_s: float) -> None:
        """``loan_s`` is how long a loan lasts without a renewal."""
        self.state = MemberState.OUTSIDE
        self.roles = dict.fromkeys(shards, ShardRole.ELSEWHERE)
        self._node = node
        self._bounds = bounds
        self._loan_s = loan_s
        self._threads: dict[int, int] = {}
        """By shard, if this node's role has a thread: the thread's number."""
        self._ending: dict[int, int] = {}
        """By the number of a thread that has been told to end and has not ended: its shard."""
        self._started = 0
        self._loans: dict[int, Loan] = {}
        self._borrowed: dict[int, Borrowed] = {}
        self._moving: set[int] = set()
        """Shards that are being moved, from the request to the end of the move."""
        self._unsettled_since_s: float | None = None
        self._out_until_s = 0.0
        self._told: list[str] = []
        """Why this node does not join, as logged last."""
        self._instructions: list[Instruction] = []

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def stops(self) -> bool:
        """Whether nothing may be started any more, because the process ends."""
        return self.state in STOPS

    def owns(self, shard: int) -> bool:
        """Whether the group has given the shard to this node."""
        return self.roles[shard] in OWNED

    def has_thread(self, shard: int) -> bool:
        """Whether a thread leads the shard or tries to, and has not been told to end."""
        return self.roles[shard] in WITH_THREAD

    def is_draining(self, shard: int) -> bool:
        """Whether a thread of the shard has been told to end and has not ended."""
        return shard in self._ending.values()

    def lent_to(self, shard: int) -> str | None:
        """Return the node that borrows the shard from this one, None if none does."""
        loan = self._loans.get(shard)
        return None if loan is None else loan.node

    def borrowed_from(self, shard: int) -> str | None:
        """Return the node that this one borrows the shard from, None if it borrows it from none."""
        borrowed = self._borrowed.get(shard)
        return None if borrowed is None else borrowed.owner

    def unsettled_ms(self, now_s: float) -> float:
        """Return for how long the group has not settled; 0 if this node owns a shard."""
        if self._unsettled_since_s is None or any(map(self.owns, self.roles)):
            return 0.0
        return (now_s - self._unsettled_since_s) * 1000

    # -- events ----------------------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> list[Instruction]:
        """Take an event; return what is to be done, in order.

        Raises OMError if the event is a request and is refused, which changes nothing; NoSuchTransition.
        """
        self._instructions = []
        HANDLERS[type(event)](self, event)
        return self._instructions

    def _on_signs(self, event: events.SignsSeen) -> None:
        if self.state in IN_GROUP:
            if reasons := reasons_to_leave(event.signs, self._bounds):
                self._say(f"this node leads nothing any more: {'; '.join(reasons)}")
                self._change(MemberSignal.LEAVE)
        elif self.state is MemberState.OUTSIDE:
            against = reasons_not_to_join(event.signs, self._bounds)
            if against and against != self._told:
                self._told = against
                self._say(f"not joining the leaders: {'; '.join(against)}")
            if not against and event.now_s >= self._out_until_s:
                self._unsettled_since_s = None
                self._change(MemberSignal.JOIN)

    def _on_settled(self, _: events.GroupSettled) -> None:
        self._unsettled_since_s = None
        self._change(MemberSignal.SETTLED)

    def _on_unsettled(self, event: events.GroupUnsettled) -> None:
        if self._unsettled_since_s is None:
            self._unsettled_since_s = event.now_s
        self._change(MemberSignal.UNSETTLED)

    def _on_assigned(self, event: events.ShardsAssigned) -> None:
        if self.state not in IN_GROUP:
            return  # the node is about to leave, which gives the shards back
        if foreign := [shard for shard in event.shards if shard not in self.roles]:
            self._say(
                f"{OM_REQUESTS} has partitions {foreign}, which are no shards: nobody executes what is sent there. "
                f"{NO_SHARD}"
            )
        for shard in self._shards_of(event):
            self._say(f"shard {shard} is assigned here", shard)
            self._let(shard, ShardSignal.ASSIGNED)

    def _on_revoked(self, event: events.ShardsRevoked) -> None:
        self._let_drain(self._shards_of(event), ShardSignal.TAKEN_AWAY)

    def _on_lost(self, event: events.ShardsLost) -> None:
        self._say(f"lost shards {list(event.shards)}: silent for longer than the session time-out")
        for shard in self._shards_of(event):
            self._let(shard, ShardSignal.TAKEN_AWAY)

    def _shards_of(self, event: events.ShardsAssigned | events.ShardsRevoked | events.ShardsLost) -> list[int]:
        """Return the shards among an event's partitions: somebody may have added partitions to the topic."""
        return [shard for shard in event.shards if shard in self.roles]

    def _on_left(self, event: events.GroupLeft) -> None:
        self._change(MemberSignal.LEFT)
        self._stay_out(event.now_s + event.jitter_s)
        for shard in filter(self.owns, self.roles):
            self._let(shard, ShardSignal.TAKEN_AWAY)

    def _on_stop(self, _: events.StopAsked) -> None:
        self._change(MemberSignal.STOP)

    def _on_thread_ended(self, event: events.ThreadEnded) -> None:
        self._ending.pop(event.thread, None)
        is_owner = False
        # If the thread was told to end, the one who told it has dealt with the consequences.
        if self._threads.get(event.shard) == event.thread:
            is_owner = self.owns(event.shard)
            self._let(event.shard, ShardSignal.THREAD_ENDED)
        if event.why is ThreadEnd.UNFIT or (is_owner and event.why in COSTS_MEMBERSHIP):
            if event.why is not ThreadEnd.DEPOSED:
                self._stay_out(event.now_s + UNFIT_WAIT_S)
            self._change(MemberSignal.LEAVE)

    def _on_move_asked(self, event: events.MoveAsked) -> None:
        if not self.owns(event.shard):
            raise self._refusal(f"does not own shard {event.shard}")
        if event.shard in self._moving:
            raise OMError(INVALID_REQUEST, f"shard {event.shard} is being moved already")
        self._moving.add(event.shard)

    def _on_step_down(self, event: events.StepDownAsked) -> None:
        shard = event.shard
        if self.state not in IN_GROUP:
            raise self._refusal(f"leaves the group, and shard {shard} with it")
        if self.roles[shard] not in {ShardRole.LEADING, ShardRole.LENT}:
            raise self._refusal(f"has lost shard {shard} meanwhile")
        if (loan := self._loans.get(shard)) is not None:
            self._instructions.append(ReturnLoan(loan=loan))
        self._let_drain((shard,), ShardSignal.STEP_DOWN)

    def _on_borrower_leads(self, event: events.BorrowerLeads) -> None:
        moving = self.roles[event.shard] is ShardRole.MOVING
        self._let(event.shard, ShardSignal.BORROWER_LEADS)
        if moving:  # otherwise the shard is no longer this node's to lend
            self._loans[event.shard] = Loan(
                shard=event.shard, node=event.node, address=event.address, heard_s=event.now_s
            )
            self._say(f"shard {event.shard} is lent to {event.node}", event.shard)

    def _on_move_ended(self, event: events.MoveEnded) -> None:
        self._moving.discard(event.shard)
        self._let(event.shard, ShardSignal.MOVE_ENDED)

    def _on_renewal_answered(self, event: events.RenewalAnswered) -> None:
        loan = event.loan
        if self._loans.get(loan.shard) is not loan:
            return
        if event.answer is Answer.LEADS:
            loan.heard_s = event.now_s
        elif (reason := takes_back(loan, event.answer, event.now_s, self._loan_s)) is not None:
            if self.state in IN_GROUP:
                self._say(f"shard {loan.shard}: {reason}; leading it again", loan.shard)
                self._let(loan.shard, ShardSignal.TAKEN_BACK)
            else:
                self._let(loan.shard, ShardSignal.LOAN_LOST)

    def _on_borrow_asked(self, event: events.BorrowAsked) -> None:
        shard = event.shard
        against = ["it stops"] if self.stops else reasons_not_to_join(event.signs, self._bounds)
        if against:
            raise self._refusal(f"may not lead now: {'; '.join(against)}")
        if self.has_thread(shard):
            raise self._refusal(f"leads shard {shard} already")
        if self.owns(shard):
            raise self._refusal(f"owns shard {shard} itself")
        # The owner sends the first renewal after it has heard that this node leads.
        self._say(f"shard {shard}: leading it for {event.owner}", shard)
        self._let(shard, ShardSignal.BORROW)
        self._borrowed[shard] = Borrowed(shard=shard, owner=event.owner, renewed_s=event.now_s + LEND_TIMEOUT_S)

    def _on_borrow_failed(self, event: events.BorrowFailed) -> None:
        if self.borrowed_from(event.shard) == event.owner:
            self._let(event.shard, ShardSignal.LOAN_ENDED)

    def _on_loan_renewed(self, event: events.LoanRenewed) -> None:
        if self.borrowed_from(event.shard) == event.owner:
            self._borrowed[event.shard].renewed_s = event.now_s

    def _on_wanted_back(self, event: events.LoanWantedBack) -> None:
        if self.borrowed_from(event.shard) == event.owner:
            self._let_drain((event.shard,), ShardSignal.LOAN_ENDED)

    def _on_loans_due(self, event: events.LoansDue) -> None:
        for borrowed in list(self._borrowed.values()):
            if (reason := gives_up(borrowed, event.now_s, self._loan_s)) is not None:
                self._say(f"shard {borrowed.shard}: {reason}; leading it no longer", borrowed.shard)
                self._let_drain((borrowed.shard,), ShardSignal.LOAN_ENDED)
        self._instructions.extend(RenewLoan(loan=loan) for loan in self._loans.values())

    # -- changes of state, and what follows from them --------------------------------------------------------------

    def _change(self, signal: MemberSignal) -> None:
        before, self.state = self.state, next_state(MEMBER_TABLE, self.state, signal)
        if self.state is before:
            return
        if self.state is MemberState.JOINING and before is MemberState.OUTSIDE:
            self._instructions.append(JoinGroup())
        if self.state in {MemberState.LEAVING, *STOPS}:
            for shard in self.roles:
                self._let(shard, ShardSignal.NODE_LEAVES)
        if before in IN_GROUP and self.state not in IN_GROUP:
            self._instructions.append(LeaveGroup())

    def _let(self, shard: int, signal: ShardSignal) -> None:
        had_thread = self.has_thread(shard)
        role = self.roles[shard] = next_state(SHARD_TABLE, self.roles[shard], signal)
        if role is not ShardRole.LENT:
            self._loans.pop(shard, None)
        if role is not ShardRole.BORROWED:
            self._borrowed.pop(shard, None)
        if had_thread and not self.has_thread(shard):
            thread = self._threads.pop(shard)
            if signal is not ShardSignal.THREAD_ENDED:
                self._ending[thread] = shard
                self._instructions.append(EndThread(shard=shard, thread=thread))
        elif self.has_thread(shard) and not had_thread:
            self._started += 1
            self._threads[shard] = self._started
            self._instructions.append(StartThread(shard=shard, thread=self._started))

    def _let_drain(self, shards: Iterable[int], signal: ShardSignal) -> None:
        """As ``_let``, and also wait for the threads that are told to end."""
        before = len(self._instructions)
        for shard in shards:
            self._let(shard, signal)
        if ending := tuple(one.thread for one in self._instructions[before:] if isinstance(one, EndThread)):
            self._instructions.append(AwaitDrain(threads=ending))

    def _stay_out(self, until_s: float) -> None:
        self._out_until_s = max(self._out_until_s, until_s)

    def _say(self, text: str, shard: int | None = None) -> None:
        self._instructions.append(LeadershipNote(text=text, shard=shard))

    def _refusal(self, why: str) -> OMError:
        return OMError(INVALID_REQUEST, f"{self._node} {why}")


HANDLERS: Mapping[type, Callable[[LeadershipMachine, Any], None]] = {
    events.SignsSeen: LeadershipMachine._on_signs,
    events.GroupSettled: LeadershipMachine._on_settled,
    events.GroupUnsettled: LeadershipMachine._on_unsettled,
    events.ShardsAssigned: LeadershipMachine._on_assigned,
    events.ShardsRevoked: LeadershipMachine._on_revoked,
    events.ShardsLost: LeadershipMachine._on_lost,
    events.GroupLeft: LeadershipMachine._on_left,
    events.StopAsked: LeadershipMachine._on_stop,
    events.ThreadEnded: LeadershipMachine._on_thread_ended,
    events.MoveAsked: LeadershipMachine._on_move_asked,
    events.StepDownAsked: LeadershipMachine._on_step_down,
    events.BorrowerLeads: LeadershipMachine._on_borrower_leads,
    events.MoveEnded: LeadershipMachine._on_move_ended,
    events.RenewalAnswered: LeadershipMachine._on_renewal_answered,
    events.BorrowAsked: LeadershipMachine._on_borrow_asked,
    events.BorrowFailed: LeadershipMachine._on_borrow_failed,
    events.LoanRenewed: LeadershipMachine._on_loan_renewed,
    events.LoanWantedBack: LeadershipMachine._on_wanted_back,
    events.LoansDue: LeadershipMachine._on_loans_due,
}
"""The handler of each kind of event."""
