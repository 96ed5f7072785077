"""The fate of a key that is being written, and what each later call gets (decision 0030). Pure.

Rules
    1. A failure lasts. After any failure CommitKey is not sent any more, and every call but ``abort`` raises.
    2. CommitKey is sent once. Until it has ended, nobody knows whether the key is committed. If the wait for its end is
       given up, nobody ever will: the fate is UNKNOWN, and calls raise OutcomeUnknown.
    3. The result of CommitKey is final, even if it arrives after the wait was told to end.
    4. For small keys PutKey or CommitReserved is what CommitKey is for others. Some refusals of these are no end: the
       cluster keeps no key of this size in its tables, or knows no such reservation. Then nothing was committed, and
       the writing goes on another way.

================  ======================================  ================================================
fate              what a call gets                        why
================  ======================================  ================================================
WRITING           goes on                                 bytes may come
COMMITTING        goes on                                 CommitKey may have been sent
COMMITTED         ClientClosed                            the key is visible; closing again does nothing
ABORTED           ClientClosed                            nothing is visible; closing again does nothing
FAILED            the error's class, "is not committed"   what may be done about it is the same: write it anew
COMMIT_FAILED     the error of CommitKey itself           it says what is known of the outcome
UNKNOWN           OutcomeUnknown, "may be committed"      CommitKey was sent and not waited for
================  ======================================  ================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from producers.errors import (
    CLIENT_CLOSED,
    WRITE_FAILED,
    ClientClosed,
    OutcomeUnknown,
    RetryableError,
    StratologError,
)
from schemas.transitions import next_state


class KeyFate(Enum):
    """The state of the writing of a key."""

    WRITING = "writing"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FAILED = "failed"
    COMMIT_FAILED = "commit failed"
    UNKNOWN = "unknown"


class FateEvent(Enum):
    """Events in the writing of a key."""

    COMMIT_SENT = "CommitKey is about to be sent"
    COMMIT_TAKEN = "CommitKey was answered: the key is visible"
    COMMIT_REFUSED = "CommitKey ended with an error"
    PUT_ELSEWHERE = "the cluster refuses the way on which the key was put: its bytes go another one"
    FAILED = "a method raised, or another thread wants the writing to end"
    ABORTED = "the caller lets go of it"


_F, _E = KeyFate, FateEvent
FATES: Mapping[KeyFate, Mapping[FateEvent, KeyFate]] = {
    _F.WRITING: {_E.COMMIT_SENT: _F.COMMITTING, _E.FAILED: _F.FAILED, _E.ABORTED: _F.ABORTED},
    _F.COMMITTING: {
        _E.COMMIT_TAKEN: _F.COMMITTED, _E.COMMIT_REFUSED: _F.COMMIT_FAILED, _E.PUT_ELSEWHERE: _F.WRITING,
        _E.FAILED: _F.UNKNOWN, _E.ABORTED: _F.ABORTED,
    },
    _F.UNKNOWN: {
        _E.COMMIT_TAKEN: _F.COMMITTED, _E.COMMIT_REFUSED: _F.COMMIT_FAILED, _E.PUT_ELSEWHERE: _F.FAILED,
        _E.FAILED: _F.UNKNOWN, _E.ABORTED: _F.ABORTED,
    },
    _F.ABORTED: {
        _E.COMMIT_TAKEN: _F.COMMITTED, _E.COMMIT_REFUSED: _F.ABORTED, _E.PUT_ELSEWHERE: _F.ABORTED,
        _E.FAILED: _F.ABORTED, _E.ABORTED: _F.ABORTED,
    },
    _F.FAILED: {_E.FAILED: _F.FAILED, _E.ABORTED: _F.ABORTED},
    _F.COMMIT_FAILED: {_E.FAILED: _F.COMMIT_FAILED, _E.ABORTED: _F.ABORTED},
    _F.COMMITTED: {_E.FAILED: _F.COMMITTED, _E.ABORTED: _F.COMMITTED},
}  # fmt: skip
"""By fate, the fate after each event. Missing events cannot happen: CommitKey is sent while WRITING, and ends once."""

FAILED_FATES = frozenset({KeyFate.FAILED, KeyFate.COMMIT_FAILED, KeyFate.UNKNOWN})


class FateOfKey:
    """The fate of one key, at ``path``. Its caller makes sure that one thread at a time calls it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.now = KeyFate.WRITING
        self._error: BaseException | None = None
        """The first failure, or the error of CommitKey."""

    @property
    def ended(self) -> bool:
        """Whether the key was committed or aborted."""
        return self.now in (KeyFate.COMMITTED, KeyFate.ABORTED)

    @property
    def failed(self) -> bool:
        """Whether every call but ``abort`` raises the failure."""
        return self.now in FAILED_FATES

    @property
    def failure(self) -> BaseException | None:
        """What failed; None unless the fate is one of FAILED_FATES."""
        return self._error if self.failed else None

    def on_commit_sent(self) -> None:
        """Note that CommitKey is about to be sent; raises :meth:`refusal` instead if there is one."""
        error = self.refusal()
        if error is not None:
            raise error
        self._move(FateEvent.COMMIT_SENT)

    def on_commit_taken(self) -> None:
        """Note that the key is visible."""
        self._move(FateEvent.COMMIT_TAKEN)

    def on_commit_refused(self, error: BaseException) -> None:
        """Note the error of CommitKey."""
        self._move(FateEvent.COMMIT_REFUSED)
        self._error = error

    def on_put_elsewhere(self) -> None:
        """Note that the key was refused because its bytes have to go another way."""
        self._move(FateEvent.PUT_ELSEWHERE)

    def on_failure(self, error: BaseException) -> None:
        """Note that a method raised, or is about to raise."""
        if self._error is None:
            self._error = error
        self._move(FateEvent.FAILED)

    def on_abort(self) -> None:
        """Note that the caller lets go of the key."""
        self._move(FateEvent.ABORTED)

    def refusal(self) -> BaseException | None:
        """Return the exception that a call raises now, with its cause; None if the call may go on."""
        if self.ended:
            return ClientClosed(CLIENT_CLOSED, f"{self._path} is closed")
        if not self.failed:
            return None
        error = self._error
        assert error is not None  # noqa: S101 - a failed fate always has an error
        if self.now is KeyFate.COMMIT_FAILED:
            return error
        raised = self._unknown(error) if self.now is KeyFate.UNKNOWN else self._not_committed(error)
        raised.__cause__ = error
        return raised

    def _unknown(self, error: BaseException) -> StratologError:
        said = f"{self._path} may be committed: CommitKey was not waited for: {str(error) or repr(error)}"
        return OutcomeUnknown(WRITE_FAILED, said)

    def _not_committed(self, error: BaseException) -> StratologError:
        said = f"{self._path} is not committed, because writing it failed: {str(error) or repr(error)}"
        if isinstance(error, StratologError):
            return type(error)(error.status, said)
        return RetryableError(WRITE_FAILED, said)

    def _move(self, event: FateEvent) -> None:
        self.now = next_state(FATES, self.now, event)
