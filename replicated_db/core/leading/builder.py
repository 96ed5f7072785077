"""What a leader asks of those who put proposals into the log: two builders behind one interface.

A builder has at most one batch open. Sealed, that is one record or two, of which the last says what to do once it has been applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from replicated_db.core.execution.calls import CallJudgement
from replicated_db.core.execution.retry import Get
from replicated_db.core.execution.service import Proposal, Reply
from replicated_db.core.execution.shard_state import ShardState
from replicated_db.core.leading.phases import LeaderEvent, LeaderPhase
from schemas.records.log import CountingRecord

Header = dict[str, Any]
"""The four fields that every record but a claim begins with."""

OnApplied = Callable[[int], list[Reply]]
"""Told the offset of a record that is effective and has been applied; returns what is to be answered now."""


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """A record to append: how it is made of its header, and whom to tell that it has been applied if it holds a batch."""

    make: Callable[[Header], CountingRecord]
    on_applied: OnApplied | None = None


class OpenBatch(Protocol):
    """A batch being built."""

    timestamp_ms: int
    size_bytes: int

    @property
    def requests(self) -> int:
        """Number of requests in it so far; each has an index."""


class BatchBuilder(Protocol):
    """Puts proposals into one kind of batch."""

    phase: LeaderPhase
    """The leader's phase while this builder has a batch open."""
    event: LeaderEvent
    """What happens when a proposal is put into a batch of this kind."""

    @property
    def batch(self) -> OpenBatch | None:
        """The batch being built."""

    @property
    def get(self) -> Get:
        """How rows are read as the next proposal will find them: what a call is judged by."""

    def take(
        self, proposal: Proposal, judgement: CallJudgement, state: ShardState, index: int, timestamp_ms: int
    ) -> Reply | None:
        """Put a proposal that has been judged into the batch; return a reply only if it may leave at once.

        ``index`` is the proposal's if it is given one, ``timestamp_ms`` the time of the batch, ``state`` how the shard is run before it.
        """

    def seal(self) -> list[SealedRecord]:
        """Close the batch; return what to append, in order, nothing if there is nothing in it."""
