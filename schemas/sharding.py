"""The shard function: which partition a volume lives in (design, section 3).

``shard = XXH64(volume in UTF-8, seed 0) mod N``. It is part of the contract: clients, leaders and the audit
use this function and never a client library's default partitioner. N is fixed when the cluster is created.
"""

from __future__ import annotations

from xxhash import xxh64_intdigest

MAX_SHARDS = 1024
"""Limit on N: object ids have 10 bits for the shard."""

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
