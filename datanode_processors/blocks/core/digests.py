"""Digests of stored bytes, for the audit. Pure.

Two replicas of a container have one digest iff the committed bytes that they store agree.

*Container digest* = XXH64 chained over its committed blocks in the order of their keys: key (16 bytes,
``schemas.codecs.block_rows``), length (8 bytes big-endian), packed checksums of the cells as they were read from disk;
seed 42 first, each hash the next one's seed. This is Spark SQL's ``xxhash64(key, length, checksums, key, length,
checksums, …)`` of binary columns, as a signed 64-bit integer. A replica that has fewer bytes of a block than are
committed reports it with the length that it has.

CRC32Cs stand for the bytes, so "agree" is as good as a CRC32C for each cell: it finds damage, but does not withstand
forgery.
"""

from __future__ import annotations

from collections.abc import Iterable

from xxhash import xxh64_intdigest

from schemas.codecs.block_rows import block_key

SEED = 42
_SIGN = 1 << 63


def next_digest(digest: int, container_id: int, local_id: int, length: int, checksums: bytes) -> int:
    """Return the chained hash (unsigned) after one more block; the first one's ``digest`` is SEED."""
    digest = xxh64_intdigest(block_key(container_id, local_id), digest)
    digest = xxh64_intdigest(length.to_bytes(8, "big"), digest)
    return xxh64_intdigest(checksums, digest)


def container_digest(container_id: int, blocks: Iterable[tuple[int, int, bytes]]) -> int:
    """Return a container's digest as a signed 64-bit integer, from (local id, length, checksums), ascending.

    Raises ValueError if the blocks are not in order.
    """
    digest, before = SEED, -1
    for local_id, length, checksums in blocks:
        if local_id <= before:
            raise ValueError(f"container {container_id}: block {local_id} comes after {before}")
        digest, before = next_digest(digest, container_id, local_id, length, checksums), local_id
    return (digest ^ _SIGN) - _SIGN
