"""Identities derived from the managed index, so that every replica and both execution modes get the same ones.

Object id, 64 bits, the highest first (design, section 3)::

    epoch (2) | shard (10) | index (44) | sub (8)

``sub`` numbers the ids of one request: 0 the object itself, 1 to 254 its blocks, 255 the session of an open key. The
epoch would be raised if an index ever had to start again. Epochs 2 and 3 would set the sign bit of an Avro long and are
refused, so ids are positive. Ids ascend with the index within a shard and an epoch, and none is used twice.

Container id, 63 bits: ``roll (9) | epoch (2) | shard (10) | index / 1024 (34) | pipeline's number (8)``. The index is
the one at which the container was begun (``containers``), and the ``roll`` tells those apart that were begun within its
window of 1,024 indexes. Each generation of a pipeline begins with a roll of its own, because the containers of earlier
generations are closed. A container must not change its pipeline. So a pipeline's number is
its partition of ``dn.log``, which no other datanodes get, or (without datanodes) its position in the settings, where
pipelines are only appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from schemas.sharding import MAX_PIPELINES

SHARD_BITS = 10
INDEX_BITS = 44
SUB_BITS = 8
PIPELINE_BITS = (MAX_PIPELINES - 1).bit_length()
CONTAINER_WINDOW_BITS = 10
CONTAINER_BITS = 54
"""Bits of a container's id without the roll."""
MAX_ROLLS = 1 << 9
"""Most containers of one pipeline and shard that are begun in a window."""
ROLLS_APART = 37
"""Distance between the first rolls of two generations.

It is odd, so that MAX_ROLLS generations begin with different rolls, and large, so that generations in sequence begin
far apart.
"""

ROLLS_CACHED = 64
"""Most generations whose rolls are kept; 4 KiB each. Every new block asks for those of its pipeline's."""

EPOCH = 0
"""The epoch of new ids."""
MAX_EPOCH = 1
MAX_SHARD = (1 << SHARD_BITS) - 1
MAX_INDEX = (1 << INDEX_BITS) - 1
SESSION_SUB = (1 << SUB_BITS) - 1
MAX_BLOCKS_PER_REQUEST = SESSION_SUB - 1

_INDEX_SHIFT = SUB_BITS
_SHARD_SHIFT = _INDEX_SHIFT + INDEX_BITS
_EPOCH_SHIFT = _SHARD_SHIFT + SHARD_BITS


def object_id(shard: int, index: int, epoch: int = EPOCH) -> int:
    """Return the id of the object that the request at ``index`` of ``shard`` makes.

    Raises ValueError if a part does not fit its bits.

    >>> hex(object_id(shard=3, index=5))
    '0x30000000000500'
    """
    if not (0 <= shard <= MAX_SHARD and 0 <= index <= MAX_INDEX and 0 <= epoch <= MAX_EPOCH):
        raise ValueError(
            f"no object id for epoch {epoch} (0..{MAX_EPOCH}), shard {shard} (0..{MAX_SHARD}), index {index} (0..{MAX_INDEX})"
        )
    return epoch << _EPOCH_SHIFT | shard << _SHARD_SHIFT | index << _INDEX_SHIFT


def index_of(object_id: int) -> int:
    """Return the managed index in an object id.

    >>> index_of(object_id(shard=3, index=5))
    5
    """
    return object_id >> _INDEX_SHIFT & MAX_INDEX


def session_id(object_id: int) -> int:
    """Return the id of the session in which the object is written."""
    return object_id | SESSION_SUB


def block_local_id(object_id: int, position: int) -> int:
    """Return the local id of the block at ``position`` (from 0) of the request that makes ``object_id``.

    Raises ValueError beyond MAX_BLOCKS_PER_REQUEST blocks.
    """
    if not 0 <= position < MAX_BLOCKS_PER_REQUEST:
        raise ValueError(f"block {position} of one request; at most {MAX_BLOCKS_PER_REQUEST} are numbered")
    return object_id | position + 1


def came_with(object_id: int, local_id: int) -> bool:
    """Say whether a block was allocated by the request that made ``object_id``.

    >>> came_with(object_id(3, 5), block_local_id(object_id(3, 5), 0))
    True
    >>> came_with(object_id(3, 5), block_local_id(object_id(3, 6), 0))
    False
    """
    return object_id >> SUB_BITS == local_id >> SUB_BITS


def container_id(object_id: int, pipeline: int, roll: int = 0) -> int:
    """Return a container for blocks of the request that makes ``object_id``, on the pipeline with this number.

    Raises ValueError beyond MAX_PIPELINES pipelines or MAX_ROLLS rolls.
    """
    if not 0 <= roll < MAX_ROLLS:
        raise ValueError(f"roll {roll} of a container; at most {MAX_ROLLS}")
    if not 0 <= pipeline < MAX_PIPELINES:
        raise ValueError(f"pipeline {pipeline}; at most {MAX_PIPELINES} have numbers")
    window = object_id >> SUB_BITS + CONTAINER_WINDOW_BITS << PIPELINE_BITS | pipeline
    return roll << CONTAINER_BITS | window


def windows_since(container_id: int, object_id: int) -> int:
    """Return how many windows after a container's own the request is that makes ``object_id``, in the same shard.

    Negative: before it. A container was begun in a batch that became void, and its index comes again.

    >>> windows_since(container_id(object_id(3, 5), pipeline=2), object_id(3, 1023))
    0
    >>> windows_since(container_id(object_id(3, 5), pipeline=2, roll=7), object_id(3, 1024))
    1
    >>> windows_since(container_id(object_id(3, 1024), pipeline=2), object_id(3, 1023))
    -1
    """
    window = container_id >> PIPELINE_BITS & (1 << CONTAINER_BITS - PIPELINE_BITS) - 1
    return (object_id >> SUB_BITS + CONTAINER_WINDOW_BITS) - window


@lru_cache(maxsize=ROLLS_CACHED)
def rolls(generation: int) -> Sequence[int]:
    """Return all rolls of a container once, in the order in which a generation of a pipeline tries them.

    >>> rolls(1)[:3], rolls(2)[:3]
    ((0, 1, 2), (37, 38, 39))
    """
    first = (generation - 1) * ROLLS_APART
    return tuple((first + step) % MAX_ROLLS for step in range(MAX_ROLLS))
