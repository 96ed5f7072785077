"""What becomes of a key that is written, and what that means for each later call (decision 0030). Pure.

Rules
    1. A failure lasts. Once anything has failed, the key is never committed, and every call raises; only ``abort`` ends it.
    2. CommitKey is sent once. Until it has ended, nobody knows whether the key is committed; if it was not waited for to
       its end, nobody ever will: UNKNOWN, and calls raise OutcomeUnknown.
    3. What CommitKey ends with is the last word: it is believed even if the wait was to be given up meanwhile.

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


class KeyFate(Enum):
    """Where the writing of a key stands."""

    WRITING = "writing"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FAILED = "failed"
    COMMIT_FAILED = "commit failed"
    UNKNOWN = "unknown"


class FateEvent(Enum):
    """What happens to it."""

    COMMIT_SENT = "CommitKey is about to be sent"
    COMMIT_TAKEN = "CommitKey was answered: the key is visible"
    COMMIT_REFUSED = "CommitKey ended with an error"
    FAILED = "a method raised, or another thread wants the writing to end"
    ABORTED = "the caller lets go of it"


_F, _E = KeyFate, FateEvent
FATES: Mapping[KeyFate, Mapping[FateEvent, KeyFate]] = {
    _F.WRITING: {_E.COMMIT_SENT: _F.COMMITTING, _E.FAILED: _F.FAILED, _E.ABORTED: _F.ABORTED},
    _F.COMMITTING: {
        _E.COMMIT_TAKEN: _F.COMMITTED, _E.COMMIT_REFUSED: _F.COMMIT_FAILED, _E.FAILED: _F.UNKNOWN, _E.ABORTED: _F.ABORTED,
    },
    _F.UNKNOWN: {
        _E.COMMIT_TAKEN: _F.COMMITTED, _E.COMMIT_REFUSED: _F.COMMIT_FAILED, _E.FAILED: _F.UNKNOWN, _E.ABORTED: _F.ABORTED,
    },
    _F.ABORTED: {
        _E.COMMIT_TAKEN: _F.COMMITTED, _E.COMMIT_REFUSED: _F.ABORTED, _E.FAILED: _F.ABORTED, _E.ABORTED: _F.ABORTED,
    },
    _F.FAILED: {_E.FAILED: _F.FAILED, _E.ABORTED: _F.ABORTED},
    _F.COMMIT_FAILED: {_E.FAILED: _F.COMMIT_FAILED, _E.ABORTED: _F.ABORTED},
    _F.COMMITTED: {_E.FAILED: _F.COMMITTED, _E.ABORTED: _F.COMMITTED},
}  # fmt: skip
"""By fate, what each event makes of it. What is missing cannot happen: CommitKey is sent while WRITING, and ends once."""

FAILED_FATES = frozenset({KeyFate.FAILED, KeyFate.COMMIT_FAILED, KeyFate.UNKNOWN})


class FateOfKey:
    """The fate of one key, at ``path``. Its caller sees to it that one thread at a time calls it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.now = KeyFate.WRITING
        self._error: BaseException | None = None
        """What failed first; or what CommitKey ended with."""

    @property
    def ended(self) -> bool:
        """Whether the key was committed or aborted."""
        return self.now in (KeyFate.COMMITTED, KeyFate.ABORTED)

    @property
    def failed(self) -> bool:
        """Whether every call but ``abort`` raises what failed."""
        return self.now in FAILED_FATES

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
        """Note with which error CommitKey ended."""
        self._move(FateEvent.COMMIT_REFUSED)
        self._error = error

    def on_failure(self, error: BaseException) -> None:
        """Note that a method raised, or is to raise."""
        if self._error is None:
            self._error = error
        self._move(FateEvent.FAILED)

    def on_abort(self) -> None:
        """Note that the caller lets go of the key."""
        self._move(FateEvent.ABORTED)

    def refusal(self) -> BaseException | None:
        """Return what a call raises now, with its cause; None if it goes on."""
        if self.ended:
            return ClientClosed(CLIENT_CLOSED, f"{self._path} is closed")
        if not self.failed:
            return None
        error = self._error
        assert error is not None  # noqa: S101 - no fate is a failed one without it
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
        self.now = FATES[self.now][event]
