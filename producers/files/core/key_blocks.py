"""A key's row, checked against itself before the key's bytes are read. Pure.

A node may have a damaged row, or understand only half of a newer one. Blocks that hold a key follow one another from
its first byte to its last, and none is named twice: nothing else is committed (``om_processors``, requests/blocks).
"""

from __future__ import annotations

from collections.abc import Sequence

from producers.errors import RequestFailed
from schemas.records.rows import BlockLocation
from schemas.result_codes import INTERNAL_ERROR


def check_blocks(name: str, blocks: Sequence[BlockLocation], size: int | None) -> int:
    """Return the bytes of all blocks together, which are ``size`` unless that is None.

    Raises RequestFailed, naming the key, if the blocks do not hold those bytes one after the other.
    """
    reached = 0
    named: set[tuple[int, int]] = set()
    for block in blocks:
        where, which = f"block {block.container_id}/{block.local_id}", (block.container_id, block.local_id)
        if which in named:
            raise _refusal(name, f"names {where} twice")
        if block.offset != reached or block.length <= 0:
            raise _refusal(name, f"has {block.length} bytes at {block.offset} in {where}, where {reached} follows")
        named.add(which)
        reached += block.length
    if size is not None and reached != size:
        raise _refusal(name, f"says {size} bytes, and its blocks hold {reached}")
    return reached


def _refusal(name: str, fault: str) -> RequestFailed:
    return RequestFailed(INTERNAL_ERROR, f"the row of {name} does not add up: it {fault}")
