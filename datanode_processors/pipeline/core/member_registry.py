"""The pipelines that a datanode is a member of: the state of each, and what to do when it is asked to open one. Pure.

Two sources speak of a pipeline, and either may be ahead of the other: what the Object Manager has *asked* for
(OpenPipeline, kept in the registry), and what the *log* says (the pipeline's row, as it is applied here). The rules:

1. A partition has one pipeline for good. A request for another pipeline, for other members or for an earlier generation
   is refused. Addresses may change.
2. A pipeline that is asked for as a later generation is opened again once the log says so; until then it is REOPENING.
3. A request is in the registry before it is answered. If the registry could not be written, the next request writes it.
4. A generation that the log has closed is not brought to the log again: a request for it says no more than where its
   members are.

5. A pipeline whose replica wants a member's checkpoint is INSTALLING. It is in the registry, and what is asked for is
   noted; the members that give the checkpoint are those that were named last.

For one thread at a time: the owner has a lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_tables import CLOSED
from schemas import stream_errors as codes
from schemas.records.datanode import OpenPipeline, PipelineRow
from schemas.transitions import next_state


class PipelineState(Enum):
    """What a member knows of a pipeline."""

    ABSENT = auto()
    OPENING = auto()
    """The replica is being opened."""
    INSTALLING = auto()
    """The replica wants a member's checkpoint first."""
    FOLLOWED = auto()
    """The pipeline is followed; the log has not opened it yet."""
    OPEN = auto()
    CLOSED = auto()
    """The log has closed the generation that was asked for, or a later one."""
    REOPENING = auto()
    """The request was for a later generation than the log has."""


class PipelineEvent(Enum):
    """What may happen to a pipeline."""

    ASKED = auto()
    """This datanode was asked to open the pipeline, or its registry has it."""
    ASKED_LATER = auto()
    """The request was for a later generation than before, which the log does not have."""
    REPLICA_OPENED = auto()
    REPLICA_FAILED = auto()
    REPLICA_WANTS_CHECKPOINT = auto()
    ROW_OPEN = auto()
    """The log has opened the generation that was asked for, or a later one."""
    ROW_CLOSED = auto()
    ROW_EARLIER = auto()
    """The log has an earlier generation than was asked for."""


_FOLLOWED = {
    PipelineEvent.ROW_OPEN: PipelineState.OPEN,
    PipelineEvent.ROW_CLOSED: PipelineState.CLOSED,
}

PIPELINE_TRANSITIONS = {
    PipelineState.ABSENT: {PipelineEvent.ASKED: PipelineState.OPENING},
    PipelineState.OPENING: {
        PipelineEvent.REPLICA_OPENED: PipelineState.FOLLOWED,
        PipelineEvent.REPLICA_FAILED: PipelineState.ABSENT,
        PipelineEvent.REPLICA_WANTS_CHECKPOINT: PipelineState.INSTALLING,
    },
    PipelineState.INSTALLING: {
        PipelineEvent.ASKED: PipelineState.INSTALLING,
        PipelineEvent.ASKED_LATER: PipelineState.INSTALLING,
        PipelineEvent.REPLICA_OPENED: PipelineState.FOLLOWED,
    },
    PipelineState.FOLLOWED: {
        **_FOLLOWED,
        PipelineEvent.ASKED: PipelineState.FOLLOWED,
        PipelineEvent.ASKED_LATER: PipelineState.FOLLOWED,
        PipelineEvent.ROW_EARLIER: PipelineState.REOPENING,
    },
    PipelineState.OPEN: {
        **_FOLLOWED,
        PipelineEvent.ASKED: PipelineState.OPEN,
        PipelineEvent.ASKED_LATER: PipelineState.REOPENING,
    },
    PipelineState.CLOSED: {
        **_FOLLOWED,
        PipelineEvent.ASKED: PipelineState.CLOSED,
        PipelineEvent.ASKED_LATER: PipelineState.REOPENING,
    },
    PipelineState.REOPENING: {
        **_FOLLOWED,
        PipelineEvent.ASKED: PipelineState.REOPENING,
        PipelineEvent.ASKED_LATER: PipelineState.REOPENING,
        PipelineEvent.ROW_EARLIER: PipelineState.REOPENING,
    },
}


@dataclass(frozen=True, slots=True)
class TellOpened:
    """Announce that a pipeline, or a later generation of one, is about to be opened here."""


@dataclass(frozen=True, slots=True)
class OpenReplica:
    """Open the pipeline's replica and follow its partition.

    ``on_replica``, ``on_failure``, or ``on_wants_checkpoint`` and later ``on_replica`` follows.
    """


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take over what was asked for, a later generation or other addresses, by calling ``adopt``."""


@dataclass(frozen=True, slots=True)
class SaveRegistry:
    """Write what was asked for, for all pipelines; ``on_saved`` follows."""


OpenStep: TypeAlias = TellOpened | OpenReplica | Adopt | SaveRegistry


@dataclass(slots=True)
class _Member:
    opened: OpenPipeline
    """The latest request."""
    state: PipelineState = PipelineState.ABSENT
    saved: bool = False
    row: tuple[int, bool] = (0, False)
    """(generation, closed) as the log has it; generation 0: the log has none."""


class MemberRegistry:
    """The pipelines of one datanode."""

    def __init__(self) -> None:
        self._members: dict[int, _Member] = {}

    def _move(self, partition: int, event: PipelineEvent) -> None:
        member = self._members[partition]
        member.state = next_state(PIPELINE_TRANSITIONS, member.state, event)

    def state_of(self, partition: int) -> PipelineState:
        """Return the state of a partition's pipeline."""
        member = self._members.get(partition)
        return PipelineState.ABSENT if member is None else member.state

    def opened(self) -> list[OpenPipeline]:
        """Return what the registry is to say: by partition, the latest request of each pipeline that is followed."""
        members = (self._members[partition] for partition in sorted(self._members))
        return [one.opened for one in members if one.state is not PipelineState.OPENING]

    def asked_for(self, partition: int) -> OpenPipeline:
        """Return the latest request for a pipeline that is known."""
        return self._members[partition].opened

    # -- what is asked for -----------------------------------------------------------------------------------------

    def remember(self, opened: OpenPipeline) -> None:
        """The registry has a pipeline: its replica is about to be opened."""
        self._members[opened.partition] = _Member(opened, saved=True)
        self._move(opened.partition, PipelineEvent.ASKED)

    def ask(self, request: OpenPipeline) -> tuple[OpenStep, ...]:
        """Return what is to be done to open a pipeline, in order; raises BlockError INVALID_REQUEST (rule 1)."""
        member = self._members.get(request.partition)
        if member is None:
            self._members[request.partition] = _Member(request)
            self._move(request.partition, PipelineEvent.ASKED)
            return TellOpened(), OpenReplica(), SaveRegistry()
        known = member.opened
        if not _is_same(known, request):
            raise BlockError(
                codes.INVALID_REQUEST,
                f"partition {request.partition} is {known.pipeline}, generation {known.generation}, of "
                f"{', '.join(one.datanode for one in known.members)} here",
            )
        self._move(request.partition, PipelineEvent.ASKED)
        if known == request:
            return () if member.saved else (SaveRegistry(),)
        told = (TellOpened(),) if request.generation > known.generation else ()
        return *told, Adopt(), SaveRegistry()

    def adopt(self, request: OpenPipeline) -> None:
        """Take over a request that ``ask`` has said to adopt."""
        member = self._members[request.partition]
        is_new = request.generation > max(member.opened.generation, member.row[0])
        self._move(request.partition, PipelineEvent.ASKED_LATER if is_new else PipelineEvent.ASKED)
        member.opened, member.saved = request, False

    def on_replica(self, partition: int) -> None:
        """The replica of a pipeline is open."""
        self._move(partition, PipelineEvent.REPLICA_OPENED)

    def on_wants_checkpoint(self, partition: int) -> None:
        """The replica of a pipeline wants a member's checkpoint before it can be followed (rule 5)."""
        self._move(partition, PipelineEvent.REPLICA_WANTS_CHECKPOINT)

    def on_failure(self, partition: int) -> None:
        """The replica of a pipeline could not be opened: the pipeline is forgotten."""
        self._move(partition, PipelineEvent.REPLICA_FAILED)
        del self._members[partition]

    def on_saved(self, partition: int) -> None:
        """The registry says what was asked for."""
        self._members[partition].saved = True

    # -- what the log says -----------------------------------------------------------------------------------------

    def on_row(self, row: PipelineRow) -> None:
        """The log has this row of a pipeline. A row that is older than one noted before changes nothing."""
        member = self._members[row.partition]
        said = (row.generation, row.state == CLOSED)
        if said < member.row:
            return
        member.row = said
        if row.generation < member.opened.generation:
            event = PipelineEvent.ROW_EARLIER
        else:
            event = PipelineEvent.ROW_CLOSED if said[1] else PipelineEvent.ROW_OPEN
        self._move(row.partition, event)

    def is_for_the_log(self, request: OpenPipeline) -> bool:
        """Whether a leader is to bring the request to the log (rule 4)."""
        return self._members[request.partition].row != (request.generation, True)


def _is_same(known: OpenPipeline, asked: OpenPipeline) -> bool:
    """Whether two requests are the same but for addresses, or the second is for a later generation of the first."""

    def parts(one: OpenPipeline) -> tuple[str, list[str]]:
        return one.pipeline, [member.datanode for member in one.members]

    return parts(known) == parts(asked) and known.generation <= asked.generation
