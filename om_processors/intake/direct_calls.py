"""Calls that came to a shard's leader straight from a client, until they are answered (design, section 11).

A direct call is answered by the way it came. When the claim ends, its leader will answer none of the calls that are
left, so each is told NOT_LEADER: the client sends the same bytes to the next leader, and retry rows absorb what has had
its effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from om_processors.execution.service import refusal_response
from replicated_db.core.leading.leader import Proposal, Reply
from schemas.result_codes import NOT_LEADER


class AnswerWay(Protocol):
    """The way back to a client; for any thread."""

    def answer(self, shard: int, responses: Sequence[bytes]) -> None:
        """Send encoded responses, one for each request that is answered; they are lost if the client has gone."""

    def reject(self, message: str) -> None:
        """Tell the client that one of its requests cannot be read, and end the connection."""


class DirectCalls:
    """The unanswered direct calls of one claim; for the thread that leads."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._open: dict[int, tuple[Proposal, AnswerWay]] = {}

    def __len__(self) -> int:
        """Return how many calls are unanswered."""
        return len(self._open)

    def begin(self, proposal: Proposal, way: AnswerWay) -> Proposal:
        """Have a proposal answered by ``way``; returns the proposal."""
        proposal.reply_to = self
        self._open[id(proposal)] = (proposal, way)
        return proposal

    def answer(self, replies: Sequence[Reply]) -> None:
        """Send answers to proposals of this claim; a proposal that is answered already is passed over."""
        by_way: dict[AnswerWay, list[bytes]] = {}
        for reply in replies:
            if (found := self._open.pop(id(reply.proposal), None)) is not None:
                by_way.setdefault(found[1], []).append(reply.response)
        for way, responses in by_way.items():
            way.answer(self._shard, responses)

    def end(self, message: str) -> None:
        """Tell every unanswered call that this node does not lead the shard any more."""
        self.answer(
            [
                Reply(proposal=one, response=refusal_response(one.body, self._shard, NOT_LEADER, message))
                for one, _ in list(self._open.values())
            ]
        )
