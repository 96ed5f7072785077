"""Recovery from a failed stream: which datanode is blamed, where the next stream goes, when the block is given up.
Pure.

Each failure of a stream is one round: ``on_failed``, then the instructions in turn, until one is Resume or GiveUp.

===============  ======================  ============================================================================
state            event                   what follows
===============  ======================  ============================================================================
not GIVEN_UP     ``on_failed``           GiveUp if the block will never grow, or nothing came forward MAX_FUTILE_RESUMES
                                         times; else AskWhere: before anybody is blamed
ASKING           ``on_asked``            somebody has moved: nobody is blamed. Else blame, by the error's status: Probe
                                         those who may be silent, or at once a strike, or neither (a leader changed)
PROBING          ``on_probed``           who is silent is failing; if nobody is, the culprit gets a strike
ASKING, PROBING  (when that is decided)  Resume while a majority is not failing, else GiveUp
GIVEN_UP         none                    the block takes no more bytes
===============  ======================  ============================================================================

STATUSES maps an error's status to its kind. A strike is one error without an obvious culprit. A datanode is failing
after STRIKES of them, or after one error that would come again (LASTING). A failing datanode is left out until it has
moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from producers.errors import UNREACHABLE, DatanodeError
from schemas.stream_errors import (
    BAD_FRAME,
    BLOCK_DELETED,
    CHECKSUM_MISMATCH,
    CONTAINER_CLOSED,
    DOWNSTREAM_FAILED,
    FAILED,
    INVALID_REQUEST,
    NOT_LEADER,
    OVERLOADED,
    PIPELINE_CLOSED,
    STOPPING,
    TIMED_OUT,
    TOKEN_REFUSALS,
)
from schemas.transitions import NoSuchTransition

STRIKES = 3
"""Strikes after which a datanode is left out."""
MAX_FUTILE_RESUMES = 8
"""Resumptions in a row, without a byte of progress, after which the block is given up."""
PAUSE_MS = 50
"""The pause grows by this factor at each resumption in a row without progress."""


class ErrorKind(Enum):
    """How recovery treats an error of a stream."""

    OF_THE_BLOCK = "the block will never grow, whoever is asked"
    LEADER_CHANGED = "nobody's fault: the leader is another"
    SILENT = "somebody does not answer; if the primary, it may itself wait for another"
    UNREACHABLE = "a connection could not be made, or broke"
    BELOW = "one further down the tree failed"
    PASSING = "the same datanode may not say that again"
    LASTING = "the same datanode would say that again"


STATUSES: Mapping[str, ErrorKind] = {
    BLOCK_DELETED: ErrorKind.OF_THE_BLOCK,
    CHECKSUM_MISMATCH: ErrorKind.OF_THE_BLOCK,
    CONTAINER_CLOSED: ErrorKind.OF_THE_BLOCK,
    INVALID_REQUEST: ErrorKind.OF_THE_BLOCK,
    PIPELINE_CLOSED: ErrorKind.OF_THE_BLOCK,
    NOT_LEADER: ErrorKind.LEADER_CHANGED,
    TIMED_OUT: ErrorKind.SILENT,
    UNREACHABLE: ErrorKind.UNREACHABLE,
    DOWNSTREAM_FAILED: ErrorKind.BELOW,
    BAD_FRAME: ErrorKind.PASSING,
    **dict.fromkeys(TOKEN_REFUSALS, ErrorKind.PASSING),
    OVERLOADED: ErrorKind.PASSING,
    STOPPING: ErrorKind.PASSING,
}
"""By status; every other status is LASTING."""
OF_THE_BLOCK = frozenset(status for status, kind in STATUSES.items() if kind is ErrorKind.OF_THE_BLOCK)
"""Errors after which the block will never grow, whichever datanode is asked."""
PROBED = frozenset({ErrorKind.SILENT, ErrorKind.UNREACHABLE, ErrorKind.BELOW})
"""After these errors the suspects are asked whether they are there."""
PASSING_BELOW = frozenset({"", TIMED_OUT, FAILED, BAD_FRAME, OVERLOADED, NOT_LEADER, STOPPING})
"""In BELOW, a datanode reports an error of one further down as the ``hint``; these hints may pass."""


class RecoveryState(Enum):
    """The state of the recovery of a block's streams."""

    STREAMING = "streaming"
    ASKING = "asking"
    PROBING = "probing"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class AskWhere:
    """Ask the Object Manager where the datanodes are now; call ``on_moved`` if any has moved, then ``on_asked``."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask these datanodes whether they are there; then call ``on_probed``."""

    suspects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """Open another stream, after a pause, without the datanodes that are failing."""

    pause_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The block takes no more bytes."""


RecoveryStep = AskWhere | Probe | Resume | GiveUp


def kind_of(error: DatanodeError) -> ErrorKind:
    """Return the kind of a stream's error.

    >>> kind_of(DatanodeError("STOPPING", "the datanode stops"))
    <ErrorKind.PASSING: 'the same datanode may not say that again'>
    """
    return STATUSES.get(error.status, ErrorKind.LASTING)


class StreamRecovery:
    """The failing members of a pipeline, as far as one block's streams show."""

    def __init__(self, members: Iterable[str], majority: int, failing: set[str]) -> None:
        """``members`` are the pipeline's; ``failing``, shared with the committer, has those known to fail."""
        self.state = RecoveryState.STREAMING
        self.avoided = ""
        """The datanode that is the last choice as the next primary."""
        self.leader_hint = ""
        self._members = frozenset(members)
        self._majority = majority
        self._failing = failing
        self._strikes: dict[str, int] = {}
        self._futile = 0
        self._error: DatanodeError | None = None
        self.primary = ""
        """The primary of the present or last stream."""
        self._streaming: tuple[str, ...] = ()

    def on_began(self, primary: str, streaming: Iterable[str]) -> None:
        """Note the primary of a new stream, and all datanodes that the stream goes to."""
        self.primary = primary
        self._streaming = tuple(streaming)

    def on_failed(self, error: DatanodeError, *, progress: bool) -> AskWhere | GiveUp:
        """Take the error that ended a stream; ``progress`` is whether more is acknowledged than at the last failure.

        If asking raised, so that the last round has no answer, that round is forgotten.
        """
        if self.state is RecoveryState.GIVEN_UP:
            raise NoSuchTransition(self.state, "on_failed")
        self._error = error
        self._futile = 0 if progress else self._futile + 1
        if kind_of(error) is ErrorKind.OF_THE_BLOCK or self._futile > MAX_FUTILE_RESUMES:
            return self._give_up()
        self.state = RecoveryState.ASKING
        return AskWhere()

    def on_moved(self, moved: set[str]) -> None:
        """Note which datanodes have moved; allowed in any state, because the committer finds that out too."""
        self._failing -= moved
        for name in moved:
            self._strikes.pop(name, None)
        self.avoided = ""

    def on_asked(self, *, moved: bool) -> Probe | Resume | GiveUp:
        """Go on after asking where the datanodes are; ``moved`` is whether any has moved."""
        self._expect(RecoveryState.ASKING, "on_asked")
        error = self._failed_with
        if moved:
            return self._decided()
        culprit = error.datanode or self.primary
        if culprit == self.primary:
            self.avoided = self.primary
        kind = kind_of(error)
        if kind is ErrorKind.LEADER_CHANGED:
            self.leader_hint = error.hint
            return self._decided()
        if kind in PROBED:
            self.state = RecoveryState.PROBING
            waits = kind is ErrorKind.SILENT and culprit == self.primary
            return Probe(self._streaming if waits else tuple(name for name in self._streaming if name == culprit))
        self._strike(culprit, kind is ErrorKind.PASSING)
        return self._decided()

    def on_probed(self, silent: set[str]) -> Resume | GiveUp:
        """Take the names of the suspects that are not there."""
        self._expect(RecoveryState.PROBING, "on_probed")
        error = self._failed_with
        self._failing |= silent
        if not silent:
            below = kind_of(error) is ErrorKind.BELOW
            self._strike(error.datanode or self.primary, not below or error.hint in PASSING_BELOW)
        return self._decided()

    def _strike(self, culprit: str, passing: bool) -> None:
        strikes = self._strikes[culprit] = self._strikes.get(culprit, 0) + 1
        if not passing or strikes >= STRIKES:
            self._failing.add(culprit)

    def _decided(self) -> Resume | GiveUp:
        if len(self._members - self._failing) < self._majority:
            return self._give_up()
        self.state = RecoveryState.STREAMING
        return Resume(self._futile * PAUSE_MS)

    def _give_up(self) -> GiveUp:
        self.state = RecoveryState.GIVEN_UP
        return GiveUp()

    @property
    def _failed_with(self) -> DatanodeError:
        assert self._error is not None  # noqa: S101 - every state but the first is reached with an error
        return self._error

    def _expect(self, state: RecoveryState, event: str) -> None:
        if self.state is not state:
            raise NoSuchTransition(self.state, event)
