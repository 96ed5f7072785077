"""Feature levels: what a cluster may have in its log (design, section 3, "Encoding").

A cluster is created at the level of the software that first leads it, and stays there through upgrades until *finalize*: until
then nodes of the older software can read everything, and one may go back. Rules:

1. What is new (a record, a version of a schema, a command, a merge operator, a column family) belongs to the level that brought it.
   A leader uses what belongs to its shard's level or to an earlier one.
2. FeatureLevel itself is no exception to reading: software that does not know it, or not its level, stops ("upgrade this node").
3. Levels are never taken away; a level's entry here never changes.

To bring something new: a level behind the last, its entry in the tables below.
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.records.messages import (
    AddNode,
    CancelPrepare,
    CreatePipeline,
    ExpireOpenKeys,
    Prepare,
    PurgeBlocks,
    RemoveNode,
    RetirePipeline,
    SetDatanodeState,
    SetRequestMode,
)

INITIAL = 1
"""Volumes, buckets, keys; the records of the log but for the operators' ones."""

OPERATIONS = 2
"""Members, Prepared, FeatureLevel, Mode and RequestBatch records, and the commands that log them; Genesis says its level.
Retry rows are removed early, with a floor for each client (``replicated_db/core/execution/retry.py``)."""

DATANODES = 3
"""Blocks have a committed index; pipelines and datanodes' states are rows of shard 0; requests that make, change and purge them; the
audit's verdicts say of which log they are. Column families pipelineTable and datanodeTable: a log that was created before names fewer
(``replicated_db/core/applying/replica.py``)."""

OPEN_KEY_EXPIRY = 4
"""The leader of a shard has open keys of vanished clients expire (``om_processors/fleet/open_key_cleanup.py``)."""

SESSION_QUOTA = 5
"""AllocateBlock gives an open key no more than its bucket's quota has room for (``om_processors/namespace/quota.py``). Rows of deletedTable have no
metadata. Requests that late validation logged at a lower level are executed as they were."""

PIPELINE_GENERATIONS = 6
"""A closed pipeline is opened again, as its next generation, once its members are back (``om_processors/fleet/core/pipeline_making.py``). Datanodes of older
software refuse a second generation."""

LATEST = PIPELINE_GENERATIONS
"""The highest level that this software knows."""

NAMES: Mapping[int, str] = {
    INITIAL: "INITIAL", OPERATIONS: "OPERATIONS", DATANODES: "DATANODES", OPEN_KEY_EXPIRY: "OPEN_KEY_EXPIRY",
    SESSION_QUOTA: "SESSION_QUOTA",
    PIPELINE_GENERATIONS: "PIPELINE_GENERATIONS",
}  # fmt: skip

VERSIONS: Mapping[str, tuple[int, ...]] = {
    "Genesis": (INITIAL, OPERATIONS),
    "Request": (INITIAL, OPERATIONS, DATANODES, OPEN_KEY_EXPIRY),
    "KeyInfo": (INITIAL, DATANODES),
    "PreparedRequest": (INITIAL, DATANODES),
    "Response": (INITIAL, DATANODES),
    "Verdict": (INITIAL, DATANODES),
}
"""For each schema with several versions, the level of each version, in the order of its history; all others are INITIAL's."""

COMMANDS: Mapping[type, int] = {
    AddNode: OPERATIONS, RemoveNode: OPERATIONS, Prepare: OPERATIONS, CancelPrepare: OPERATIONS,
    SetRequestMode: OPERATIONS,
    CreatePipeline: DATANODES, RetirePipeline: DATANODES, SetDatanodeState: DATANODES, PurgeBlocks: DATANODES,
    ExpireOpenKeys: OPEN_KEY_EXPIRY,
}  # fmt: skip
"""Request types that need a level above INITIAL. Finalize needs none: it is what raises the level."""


def version_at(schema: str, level: int) -> int:
    """Return the number of the newest version of ``schema`` that may be written at ``level``, from 1.

    >>> version_at("Genesis", INITIAL), version_at("Genesis", LATEST), version_at("Tick", LATEST)
    (1, 2, 1)
    """
    return max((n for n, since in enumerate(VERSIONS.get(schema, (INITIAL,)), 1) if since <= level), default=1)


def level_of_command(body: object) -> int:
    """Return the level that a request needs."""
    return COMMANDS.get(type(body), INITIAL)


def level_of_type(request_type: str) -> int:
    """Return the level that requests of a type need, by the type's name.

    >>> level_of_type("CreateKey"), level_of_type("CreatePipeline")
    (1, 3)
    """
    return next((level for body, level in COMMANDS.items() if body.__name__ == request_type), INITIAL)
