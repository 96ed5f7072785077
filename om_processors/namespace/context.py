"""The contracts of execution: what it reads and writes, what only the leader chooses, what a request type provides.

A request goes through four steps (design, section 4), each pure: *preExecute* turns it into a :class:`RequestPreparation`, an
explicit value that holds everything only a leader may choose (time, ids, blocks); *authorize*, *validate* and
*operations* see nothing but that value and the state, so whoever executes a Prepared on equal state gets equal
operations. A request type is a :class:`RequestHandler`; ``requests/__init__.py`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from schemas.records.messages import AllocatedBlock, KeySession, RequestBody
from schemas.records.record import record
from schemas.records.rows import BlockLocation

Result = KeySession | AllocatedBlock | None
"""What a request returns beside its status."""

Body = TypeVar("Body")

NumberedPipeline = tuple[int, str]
"""A pipeline's number, which container ids carry, and its name."""

BLOCK_SIZE_BYTES = 256 * 1024 * 1024
"""Size of an allocated block, as Ozone's default."""


class ReadView(Protocol):
    """Consistent reads of the tables."""

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's value, or None."""
        ...

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over rows in key order, ``start`` inclusive, ``stop`` exclusive (None: to the table's end)."""
        ...


class RowTransaction(ReadView, Protocol):
    """One request's reads (its own writes included) and writes; discarded if the execution raises."""

    index: int
    """The managed index minted for the request."""

    @property
    def feature_level(self) -> int:
        """What may be written (``schemas.features``)."""
        ...

    def put(self, cf: str, key: bytes, value: bytes) -> None:
        """Insert or replace a row."""
        ...

    def delete(self, cf: str, key: bytes) -> None:
        """Remove a row."""
        ...

    def merge(self, cf: str, key: bytes, operator: str, operand: bytes) -> None:
        """Combine a row with an operand."""
        ...


@record
class Allocation:
    """What blocks may be allocated on: pipelines by number (below ``ids.MAX_PIPELINES``), in containers that are not closed.

    With datanodes these are the pipelines that take blocks now, as the node sees them (``placement``), else all of the settings', by position.
    """

    pipelines: tuple[NumberedPipeline, ...]
    closed_containers: frozenset[int]
    generations: Mapping[int, int]
    """Of pipelines by number; those that are not named are of the first."""


@record
class PreExecuteContext:
    """What the leader brings to a request: its shard, the batch's time, the minted index, what blocks may be allocated on."""

    shard: int
    shards: int
    now_ms: int
    index: int
    allocation: Allocation
    block_size_bytes: int
    datanodes: bool
    """Whether blocks are on datanodes, so that a block that was written has a committed index."""


Choose = Callable[[], Allocation]
"""Says what blocks may be allocated on now."""


def always(pipelines: Iterable[str]) -> Choose:
    """Return a choice that is always the same: the pipelines of the settings, by position."""
    found = Allocation(pipelines=tuple(enumerate(pipelines)), closed_containers=frozenset(), generations={})
    return lambda: found


class Contexts:
    """Makes the contexts of one shard's requests."""

    __slots__ = ("_block_bytes", "_choose", "_datanodes", "_shards", "shard")

    def __init__(
        self, *, shard: int, shards: int, pipelines: tuple[str, ...], choose: Choose | None = None,
        block_bytes: int = BLOCK_SIZE_BYTES,
    ) -> None:  # fmt: skip
        """``choose`` says which pipelines of datanodes take blocks now, and must not block; without it there are none, and all ``pipelines`` do, by position."""
        self.shard = shard
        self._shards = shards
        self._choose = choose or always(pipelines)
        self._datanodes = choose is not None
        self._block_bytes = block_bytes

    def at(self, now_ms: int, index: int) -> PreExecuteContext:
        """Return the context of a request that has been given ``index``, in a batch of time ``now_ms``."""
        return PreExecuteContext(
            shard=self.shard, shards=self._shards, now_ms=now_ms, index=index, allocation=self._choose(),
            block_size_bytes=self._block_bytes, datanodes=self._datanodes,
        )  # fmt: skip


@record
class RequestPreparation:
    """A request with everything that the leader chose; enough to execute it anywhere."""

    body: RequestBody
    caller: str
    index: int
    now_ms: int
    object_id: int
    session_id: int
    blocks: list[BlockLocation]


class Authorizer(Protocol):
    """Decides whether a caller may do what it asks."""

    def authorize(self, prepared: RequestPreparation, view: ReadView) -> None:
        """Raise OMError if ``prepared.caller`` may not; pure in its arguments, and writes nothing."""
        ...


class AllowAll:
    """Everyone may do everything (Ozone's default, ``ozone.acl.enabled = false``)."""

    def authorize(self, prepared: RequestPreparation, view: ReadView) -> None:
        """Allow it."""


ALLOW_ALL = AllowAll()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHandler(Generic[Body]):
    """One request type.

    ``check`` refuses what is wrong in itself, whatever the state; ``admit`` what is wrong on this leader, as it is set up; ``apply`` validates
    against the state, writes the operations and returns the result; ``blocks`` chooses the blocks that the request needs, if it is of that kind.
    All raise OMError to refuse.
    """

    body: type[Body]
    check: Callable[[Body], None]
    apply: Callable[[Body, RequestPreparation, RowTransaction], Result]
    blocks: Callable[[Body, PreExecuteContext, int], list[BlockLocation]] | None = None
    admit: Callable[[Body, PreExecuteContext], None] | None = None


AnyHandler = RequestHandler[Any]
