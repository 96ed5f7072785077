"""Datanodes and their pipelines: create and retire a pipeline, set a datanode's state, forget a datanode, purge deleted
blocks.

All but the last live in shard 0; the placement loop of the node that leads it sends them, or an operator. PurgeBlocks
comes from the loop of the node that leads the shard. All are ordinary requests: if a loop acts on an old picture, the
rows refuse it here. A request may come late, from a process that stood still: it names the generation, or the change of
state, that it was decided on, and another one refuses it.

- A partition of ``dn.log`` is given to one set of datanodes and to no other, so a block's container number names its
  pipeline for ever. The same datanodes may open a closed pipeline again, as its next generation.
- A new pipeline gets the first partition that has none. A request that names another one is refused,
  because the numbers of pipelines are limited.
- A state that a loop reports as reached (DECOMMISSIONED, IN_MAINTENANCE) holds only if it is still wanted.
- A request for a state that already holds is answered with OK and changes nothing.
- A datanode in service has no row. The row of one that is decommissioned goes by RemoveDatanode, when no open pipeline
  names it, and the leader sees that it is silent and that nobody needs what it held. If it comes back, it is in
  service.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from om_processors.errors import OMError
from om_processors.namespace import tables
from om_processors.namespace.context import (
    AnyHandler,
    PreExecuteContext,
    RequestHandler,
    RequestPreparation,
    RowTransaction,
)
from om_processors.namespace.names import shown
from om_processors.namespace.snapshots import NeededVersions
from schemas.column_families import DELETED_TABLE
from schemas.datanode_states import (
    CLOSED,
    DATANODE_STATES,
    DECOMMISSIONED,
    DECOMMISSIONING,
    ENTERING_MAINTENANCE,
    IN_MAINTENANCE,
    IN_SERVICE,
    OPEN,
)
from schemas.features import DELETION_GRACE, PIPELINE_GENERATIONS
from schemas.records.datanode import Member, PipelineRow
from schemas.records.messages import CreatePipeline, PurgeBlocks, RemoveDatanode, RetirePipeline, SetDatanodeState
from schemas.records.packets import MAX_ROUTES
from schemas.records.rows import DatanodeRow
from schemas.result_codes import INVALID_REQUEST, PIPELINE_ALREADY_EXISTS, PIPELINE_NOT_FOUND
from schemas.sharding import MAX_PIPELINES

MAX_NAME_CHARACTERS = 63
MAX_TEXT_CHARACTERS = 300
"""Longest address, rack or reason."""
MAX_DATANODES = 256
"""Most datanodes that have a row: those that are leaving, away or decommissioned."""
MAX_PURGED_ROWS = 500
"""Most rows of one PurgeBlocks: their operations must fit in a batch."""

FIRST_GENERATION = 1

REACHED_FROM = {DECOMMISSIONED: DECOMMISSIONING, IN_MAINTENANCE: ENTERING_MAINTENANCE}
"""States that a placement loop reports, each with the state that an operator must have asked for."""


def pipeline_name(partition: int) -> str:
    """Return the name of the pipeline on a partition of ``dn.log``."""
    return f"pipeline-{partition}"


# ---- CreatePipeline


def _check_partition(partition: int) -> None:
    if not 0 <= partition < MAX_PIPELINES:
        raise OMError(INVALID_REQUEST, f"partition {partition} of a pipeline is not in 0..{MAX_PIPELINES - 1}")


def _check_create(body: CreatePipeline) -> None:
    _check_partition(body.partition)
    names = [member.datanode for member in body.members]
    if not 1 <= len(names) <= MAX_ROUTES:
        raise OMError(INVALID_REQUEST, f"a pipeline has 1 to {MAX_ROUTES} datanodes, not {len(names)}")
    if len(set(names)) != len(names):
        raise OMError(INVALID_REQUEST, f"a pipeline's datanodes are distinct: {', '.join(map(shown, names))}")
    for member in body.members:
        _check_member(member)


def _check_member(member: Member) -> None:
    _check_name(member.datanode)
    for what, text in (("address", member.address), ("http_address", member.http_address), ("rack", member.rack)):
        if not 1 <= len(text) <= MAX_TEXT_CHARACTERS:
            raise OMError(
                INVALID_REQUEST,
                f"{what} of datanode {member.datanode} has 1 to {MAX_TEXT_CHARACTERS} characters, not {len(text)}",
            )


def _check_name(datanode: str) -> None:
    if not 1 <= len(datanode) <= MAX_NAME_CHARACTERS:
        raise OMError(
            INVALID_REQUEST, f"a datanode's name has 1 to {MAX_NAME_CHARACTERS} characters, not {len(datanode)}"
        )


def _create(body: CreatePipeline, prepared: RequestPreparation, tx: RowTransaction) -> None:
    before = tables.get_pipeline(tx, body.partition)
    members = body.members if before is None else _members_again(before, body, tx.feature_level)
    generation = FIRST_GENERATION if before is None else before.generation + 1
    if body.generation not in (0, generation):
        name = pipeline_name(body.partition)
        raise OMError(INVALID_REQUEST, f"the next generation of {name} is {generation}, not {body.generation}")
    # Below the level, requests that late validation has logged are executed as before.
    if (
        before is None
        and tx.feature_level >= PIPELINE_GENERATIONS
        and body.partition != (first := first_free(tables.pipelines(tx)))
    ):
        raise OMError(INVALID_REQUEST, f"partition {body.partition} is not the next one: that is {first}")
    for member in body.members:
        row = tables.get_datanode(tx, member.datanode)
        if row is not None and row.state != IN_SERVICE:
            raise OMError(INVALID_REQUEST, f"datanode {member.datanode} is {row.state}: it joins no pipeline")
    tables.put_pipeline(
        tx,
        PipelineRow(
            pipeline=pipeline_name(body.partition), partition=body.partition, members=members, state=OPEN,
            generation=generation, opened_at_ms=prepared.now_ms,
        ),
    )  # fmt: skip


def _members_again(before: PipelineRow, body: CreatePipeline, feature_level: int) -> list[Member]:
    """Return the members of a pipeline's next generation, in the first one's order; raises PIPELINE_ALREADY_EXISTS."""
    name, asked = before.pipeline, {member.datanode: member for member in body.members}
    known = [member.datanode for member in before.members]
    if feature_level < PIPELINE_GENERATIONS:
        raise OMError(PIPELINE_ALREADY_EXISTS, f"{name} exists: a partition is given to one pipeline only")
    if before.state != CLOSED:
        raise OMError(PIPELINE_ALREADY_EXISTS, f"{name} exists, and is {before.state}")
    if asked.keys() != set(known):
        raise OMError(
            PIPELINE_ALREADY_EXISTS,
            f"{name} exists: it can be opened again by {', '.join(known)}, not by {', '.join(map(shown, asked))}",
        )
    return [asked[datanode] for datanode in known]


def first_free(rows: Iterable[PipelineRow]) -> int:
    """Return the lowest partition without a pipeline; MAX_PIPELINES if there is none.

    >>> first_free([])
    0
    """
    used = {row.partition for row in rows}
    return next(partition for partition in range(len(used) + 1) if partition not in used)


# ---- RetirePipeline


def _check_retire(body: RetirePipeline) -> None:
    _check_partition(body.partition)
    if len(body.reason) > MAX_TEXT_CHARACTERS:
        raise OMError(INVALID_REQUEST, f"the reason has {len(body.reason)} characters, over {MAX_TEXT_CHARACTERS}")


def _retire(body: RetirePipeline, _prepared: RequestPreparation, tx: RowTransaction) -> None:
    row = tables.get_pipeline(tx, body.partition)
    if row is None:
        raise OMError(PIPELINE_NOT_FOUND, f"there is no {pipeline_name(body.partition)}")
    if body.generation not in (0, row.generation):
        raise OMError(INVALID_REQUEST, f"{row.pipeline} is of generation {row.generation}, not {body.generation}")
    if row.state != CLOSED:
        tables.put_pipeline(tx, replace(row, state=CLOSED))


# ---- SetDatanodeState


def _check_state(body: SetDatanodeState) -> None:
    _check_name(body.datanode)
    if body.state not in DATANODE_STATES:
        raise OMError(INVALID_REQUEST, f"state {shown(body.state)} is none of {', '.join(DATANODE_STATES)}")


def _set_state(body: SetDatanodeState, prepared: RequestPreparation, tx: RowTransaction) -> None:
    row = tables.get_datanode(tx, body.datanode)
    state, since_ms = (IN_SERVICE, 0) if row is None else (row.state, row.changed_at_ms)
    if body.changed_at_ms not in (0, since_ms):
        raise OMError(
            INVALID_REQUEST,
            f"datanode {body.datanode} is {state} since {since_ms}: what changed at {body.changed_at_ms} has passed",
        )
    # Below the level, requests that late validation has logged are executed as before.
    if body.state == IN_SERVICE and tx.feature_level >= DELETION_GRACE:
        if row is not None:
            tables.delete_datanode(tx, body.datanode)
        return
    if state == body.state:
        return
    wanted = REACHED_FROM.get(body.state)
    if wanted is not None and state != wanted:
        raise OMError(
            INVALID_REQUEST, f"datanode {body.datanode} is {state}: {body.state} is only reached from {wanted}"
        )
    if row is None and len(tables.datanodes(tx)) >= MAX_DATANODES:
        raise OMError(
            INVALID_REQUEST,
            f"{MAX_DATANODES} datanodes have a state already, the most that are kept: remove those that are gone",
        )
    tables.put_datanode(tx, DatanodeRow(datanode=body.datanode, state=body.state, changed_at_ms=prepared.now_ms))


# ---- RemoveDatanode


def _check_removal(body: RemoveDatanode) -> None:
    _check_name(body.datanode)


def _admit_removal(body: RemoveDatanode, context: PreExecuteContext) -> None:
    if body.datanode not in context.allocation.gone:
        raise OMError(
            INVALID_REQUEST,
            f"datanode {shown(body.datanode)} is not gone, as far as this node knows: it must be {DECOMMISSIONED}, "
            "silent for datanode_timeout_ms, and others must hold all that it held",
        )


def _remove(body: RemoveDatanode, _prepared: RequestPreparation, tx: RowTransaction) -> None:
    row = tables.get_datanode(tx, body.datanode)
    state = IN_SERVICE if row is None else row.state
    if state != DECOMMISSIONED:
        raise OMError(
            INVALID_REQUEST, f"datanode {body.datanode} is {state}: only one that is {DECOMMISSIONED} is removed"
        )
    for pipeline in tables.pipelines(tx):
        if pipeline.state == OPEN and any(one.datanode == body.datanode for one in pipeline.members):
            raise OMError(
                INVALID_REQUEST, f"datanode {body.datanode} is a member of {pipeline.pipeline}, which is open"
            )
    tables.delete_datanode(tx, body.datanode)


# ---- PurgeBlocks


def _check_purge(body: PurgeBlocks) -> None:
    if not 1 <= len(body.rows) <= MAX_PURGED_ROWS:
        raise OMError(INVALID_REQUEST, f"1 to {MAX_PURGED_ROWS} rows are purged at once, not {len(body.rows)}")
    if len(set(body.rows)) != len(body.rows):
        raise OMError(INVALID_REQUEST, "a row to be purged is named twice")


def _purge(body: PurgeBlocks, _prepared: RequestPreparation, tx: RowTransaction) -> None:
    needed = NeededVersions(tx)
    for row in body.rows:
        value = tx.get(DELETED_TABLE, row)
        # The leader has left out what snapshots need. What it has asked for by mistake stays.
        if value is not None and not needed.include(tables.decode_key(value)):
            tx.delete(DELETED_TABLE, row)


HANDLERS: tuple[AnyHandler, ...] = (
    RequestHandler(body=CreatePipeline, check=_check_create, apply=_create),
    RequestHandler(body=RetirePipeline, check=_check_retire, apply=_retire),
    RequestHandler(body=SetDatanodeState, check=_check_state, apply=_set_state),
    RequestHandler(body=RemoveDatanode, check=_check_removal, admit=_admit_removal, apply=_remove),
    RequestHandler(body=PurgeBlocks, check=_check_purge, apply=_purge),
)
