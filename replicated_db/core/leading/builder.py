"""The interface of the two builders, which put a leader's proposals into the log.

A builder has at most one batch open. Sealing it gives one record or two; the last one says what to do once it has been
applied.
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
"""The four fields with which every record but a claim begins."""

OnApplied = Callable[[int], list[Reply]]
"""Called with the offset of a record that is effective and applied; returns the replies that may leave now."""


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """A record to append: how to make it from its header, and, if it holds a batch, what to call once it is applied."""

    make: Callable[[Header], CountingRecord]
    on_applied: OnApplied | None = None


class OpenBatch(Protocol):
    """A batch being built."""

    timestamp_ms: int
    size_bytes: int

    @property
    def requests(self) -> int:
        """Number of requests in the batch so far; each has an index."""


class BatchBuilder(Protocol):
    """Puts proposals into one kind of batch."""

    phase: LeaderPhase
    """The leader's phase while this builder has a batch open."""
    event: LeaderEvent
    """The event of putting a proposal into a batch of this kind."""

    @property
    def batch(self) -> OpenBatch | None:
        """The batch being built."""

    @property
    def get(self) -> Get:
        """How to read rows as the next proposal will find them; a call is judged by these rows."""

    def take(
        self, proposal: Proposal, judgement: CallJudgement, state: ShardState, index: int, timestamp_ms: int
    ) -> Reply | None:
        """Put a judged proposal into the batch; return a reply only if it may leave at once.

        ``index`` is the proposal's index if it is given one, ``timestamp_ms`` the time of the batch, ``state`` how the
        shard is run before the batch.
        """

    def seal(self) -> list[SealedRecord]:
        """Close the batch; return what to append, in order. An empty batch gives an empty list."""
