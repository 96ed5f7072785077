"""Which partition a volume lives in, and which pipeline a container belongs to (design, sections 3 and 8).

``shard = XXH64(volume in UTF-8, seed 0) mod N``. It is part of the contract: clients, leaders and the audit
use this function and never a client library's default partitioner. N is fixed when the cluster is created.
"""

from __future__ import annotations

from xxhash import xxh64_intdigest

MAX_SHARDS = 1024
"""Limit on N: object ids have 10 bits for the shard."""

MAX_PIPELINES = 256
"""Limit on the pipelines of a cluster's life, whatever their generations: container ids have 8 bits for them."""

SYSTEM_SHARD = 0
"""Shard of commands that name no volume."""


def shard_of(volume: str, shards: int) -> int:
    """Return the shard of ``volume`` among ``shards``.

    Raises ValueError if ``shards`` is not in 1..MAX_SHARDS.

    >>> shard_of("vol1", 1)
    0
    """
    if not 1 <= shards <= MAX_SHARDS:
        raise ValueError(f"number of shards must be in 1..{MAX_SHARDS}, not {shards}")
    return xxh64_intdigest(volume.encode()) % shards


def pipeline_of(container_id: int) -> int:
    """Return the pipeline of a container: the partition of ``dn.log`` that its rows are in.

    >>> pipeline_of(2 * MAX_PIPELINES + 3)
    3
    """
    return container_id % MAX_PIPELINES
