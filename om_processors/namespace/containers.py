"""Which container the new blocks of each pipeline go into: one after the other, each until it has filled. Pure.

Rules, for the leader of one shard:
    - A container is begun at the index of a request, and the window of that index is in its id (``ids``). All further
      blocks of its pipeline go into it, whatever their index.
    - It is left when it is closed, when its pipeline has another generation, or when it was given CONTAINER_BLOCKS
      blocks. So a container has few enough blocks to be listed and copied, however small they are, and however many of
      them are never written.
    - Beyond its own window it is also left unless datanodes report it open and with room. Silence is no proof that it
      is open: one that was closed, and then emptied, is reported by nobody. Only in its first BEGUN_MS may it be too
      young for a report.
    - It is left where its own window is still to come: the batch that began it became void, and its index comes again.
    - The next one is of the window of the present index. It has the first roll that is not closed there, behind those
      that were left in this window.

What is known here is lost with the process, and that is safe: the next leader begins containers of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from om_processors.errors import OMError
from om_processors.namespace import ids
from schemas.result_codes import FAILED_TO_FIND_ACTIVE_PIPELINE

CONTAINER_BLOCKS = 16_384
"""Most blocks that a leader gives one container. Their rows, of a small block 60 bytes each, are copied as one message
(``MAX_LISTED_BYTES`` of ``datanode_processors/block_answers.py``).
"""
BEGUN_MS = 10_000
"""How long after it was begun a container need not have been reported: heartbeats come each second."""


@dataclass(slots=True)
class _Filling:
    """The container that a pipeline's new blocks go into."""

    container_id: int
    generation: int
    begun_ms: int
    place: int
    """The place of its roll among ``ids.rolls`` of the generation."""
    left: int
    """How many more blocks it takes."""


class FillingContainers:
    """The containers that one shard's leader fills, at most one for each of MAX_PIPELINES pipelines. For one thread."""

    def __init__(self) -> None:
        self._by_pipeline: dict[int, _Filling] = {}

    def take(
        self, pipeline: int, object_id: int, now_ms: int, *, generation: int, closed: Collection[int],
        with_room: Collection[int] | None,
    ) -> int:  # fmt: skip
        """Return the container for a new block of the request that makes ``object_id``, on the pipeline of this number.

        ``with_room`` are the containers that are reported open and with room; None: nobody reports containers, and
        each window has its own. Raises OMError FAILED_TO_FIND_ACTIVE_PIPELINE if all of the window are closed.
        """
        found = self._by_pipeline.get(pipeline)
        if (
            found is None
            or not found.left
            or found.generation != generation
            or found.container_id in closed
            or not _is_filled_further(found, ids.windows_since(found.container_id, object_id), now_ms, with_room)
        ):
            found = self._by_pipeline[pipeline] = _begin(found, pipeline, object_id, now_ms, generation, closed)
        found.left -= 1
        return found.container_id


def _is_filled_further(found: _Filling, windows: int, now_ms: int, with_room: Collection[int] | None) -> bool:
    """Say whether a container is filled further, so many windows after its own."""
    if windows <= 0:
        return windows == 0
    return with_room is not None and (now_ms - found.begun_ms < BEGUN_MS or found.container_id in with_room)


def _begin(
    before: _Filling | None, pipeline: int, object_id: int, now_ms: int, generation: int, closed: Collection[int]
) -> _Filling:
    here = (
        before is not None and before.generation == generation and not ids.windows_since(before.container_id, object_id)
    )
    first = before.place + 1 if before is not None and here else 0
    rolls = ids.rolls(generation)
    for place in range(first, len(rolls)):
        container_id = ids.container_id(object_id, pipeline, rolls[place])
        if container_id not in closed:
            return _Filling(
                container_id=container_id, generation=generation, begun_ms=now_ms, place=place, left=CONTAINER_BLOCKS
            )
    raise OMError(
        FAILED_TO_FIND_ACTIVE_PIPELINE,
        f"all {ids.MAX_ROLLS} containers of pipeline {pipeline} at this index are closed",
    )
