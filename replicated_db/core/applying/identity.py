"""Which replica this is, and whether a log is the one that the replica belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from replicated_db.core.errors import WrongCluster
from replicated_db.core.tables.column_families import Families
from schemas.records.log import Genesis


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a replica is a replica of: cluster, shard, number of shards; and its node's name."""

    cluster: str
    shard: int
    shards: int
    node: str


def check_genesis(identity: Identity, families: Families, genesis: Genesis) -> None:
    """Raise WrongCluster if a log's first record names another cluster or shard, or other settings."""
    # A log that older software began names fewer families. Families added since have the next positions, so the log's
    # slots keep their meaning. Nothing is written to the new families below the feature level that brought them.
    known = list(families.names)[: max(1, len(genesis.column_families))]
    own = (identity.cluster, identity.shard, identity.shards, known)
    logged = (genesis.cluster, genesis.shard, genesis.shards, genesis.column_families)
    for name, mine, theirs in zip(("cluster", "shard", "shards", "column_families"), own, logged, strict=True):
        if mine != theirs:
            raise WrongCluster(f"{name} is {theirs!r} in the log but {mine!r} in this node's settings")
