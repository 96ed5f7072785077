"""Events of a node's leadership, and the instructions that follow from them. Pure.

Times are in seconds, of the node's monotonic clock. ``thread`` is the number that ``StartThread`` gave to a shard's
thread. The number tells a thread that was told to end from its successor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from om_processors.leading.core.lending import Answer, Loan
from om_processors.leading.core.watchdog import Signs


class ThreadEnd(Enum):
    """Why a shard's thread has ended."""

    TOLD = "told to end"
    DEPOSED = "another leads"
    FAILED = "cannot claim"
    UNFIT = "unfit to lead"


# -- events: the group ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SignsSeen:
    """The watchdog has looked."""

    signs: Signs
    now_s: float


@dataclass(frozen=True, slots=True)
class GroupSettled:
    """The group's consumer is a member, and no rebalance is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUnsettled:
    """The group's consumer is neither a settled member nor outside."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsAssigned:
    """The group gives shards to this node."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsRevoked:
    """The group wants shards back. They are drained before the revocation is acknowledged."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsLost:
    """The group has given shards to others without waiting for this node."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLeft:
    """The group's consumer is closed.

    The node stays outside for ``jitter_s``, so that nodes do not all come back at once.
    """

    now_s: float
    jitter_s: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The process ends."""


# -- events: threads -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadEnded:
    """A shard's thread has ended; the thread's last event."""

    shard: int
    thread: int
    why: ThreadEnd
    now_s: float


# -- events: the owner moves a shard -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAsked:
    """An operator wants another node to lead; this node gives up nothing yet. Refused with OMError."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDownAsked:
    """The other node may lead: this node must step down. Refused with OMError."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowerLeads:
    """The other node has claimed the shard."""

    shard: int
    node: str
    address: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveEnded:
    """The move is over: done, refused or failed."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalAnswered:
    """The borrower's answer to a renewal."""

    loan: Loan
    answer: Answer
    now_s: float


# -- events: this node leads for an owner --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowAsked:
    """An owner wants this node to lead. Refused with OMError."""

    shard: int
    owner: str
    signs: Signs
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowFailed:
    """The claim for ``owner`` has failed or taken too long."""

    shard: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoanRenewed:
    """The owner wants this node to go on leading."""

    shard: int
    owner: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoanWantedBack:
    """The owner wants the shard back."""

    shard: int
    owner: str


# -- events: both --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoansDue:
    """Lent shards must be renewed now, and borrowed shards checked for a renewal."""

    now_s: float


Event = (
    SignsSeen | GroupSettled | GroupUnsettled | ShardsAssigned | ShardsRevoked | ShardsLost | GroupLeft
    | StopAsked | ThreadEnded | MoveAsked | StepDownAsked | BorrowerLeads | MoveEnded | RenewalAnswered | BorrowAsked
    | BorrowFailed | LoanRenewed | LoanWantedBack | LoansDue
)  # fmt: skip

# -- instructions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Be a member of the leaders' group until ``LeaveGroup``."""


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Wait until all threads have drained, close the group's consumer, then say ``GroupLeft``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartThread:
    """Start a thread that claims and leads the shard. The shard's other threads, if any, have been told to end."""

    shard: int
    thread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndThread:
    """Tell a thread to end; do not wait for it."""

    shard: int
    thread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitDrain:
    """Wait until these threads have ended, for a bounded time in all."""

    threads: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnLoan:
    """Have the borrower drain and step down."""

    loan: Loan


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLoan:
    """Ask the borrower whether it leads, then say ``RenewalAnswered``."""

    loan: Loan


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipNote:
    """Log a line about ``shard``, or about the node if ``shard`` is None."""

    text: str
    shard: int | None = None


Instruction = JoinGroup | LeaveGroup | StartThread | EndThread | AwaitDrain | ReturnLoan | RenewLoan | LeadershipNote
