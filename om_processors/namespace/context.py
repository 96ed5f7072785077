"""The contracts of execution: its reads and writes, the choices of the leader, the parts of a request type.

A request goes through four steps (design, section 4), each pure. *preExecute* turns it into a
:class:`RequestPreparation`, an explicit value that holds everything only a leader may choose (time, ids, blocks).
*Authorize*, *validate* and *operations* see only that value and the state, so a RequestPreparation that is executed on
equal state gives equal operations. A request type is a :class:`RequestHandler`; ``requests/__init__.py`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from om_processors.namespace.containers import FillingContainers
from schemas.records.identity import ProvenCaller
from schemas.records.messages import AllocatedBlock, CreatedSnapshot, KeySession, RequestBody
from schemas.records.record import record
from schemas.records.rows import BlockLocation
from schemas.small_objects import DEFAULT_INLINE_BYTES

Result = KeySession | AllocatedBlock | CreatedSnapshot | None
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
        """Level up to which things may be written (``schemas.features``)."""
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

    def checkpoint(self, name: str) -> None:
        """Have every replica take a checkpoint of everything before this request, which must be its batch's first."""
        ...


@record
class Allocation:
    """Where blocks may be allocated: pipelines by number (below ``MAX_PIPELINES``), in open containers.

    With datanodes, these are the pipelines that take blocks now, as this node sees them (``placement``). Without, they
    are all pipelines of the settings, by position.
    """

    pipelines: tuple[NumberedPipeline, ...]
    closed_containers: AbstractSet[int]
    generations: Mapping[int, int]
    """Generation by pipeline number; a pipeline that is not named is in its first generation."""
    with_room: AbstractSet[int] | None = None
    """Containers that are open and not nearly full. None: nobody reports any, and each window has its own."""
    gone: AbstractSet[str] = frozenset()
    """Datanodes that are decommissioned and silent, and that hold nothing which others lack."""


@record
class PreExecuteContext:
    """What the leader adds to a request: its shard, the batch's time, the minted index, places for blocks."""

    shard: int
    shards: int
    now_ms: int
    index: int
    allocation: Allocation
    block_size_bytes: int
    datanodes: bool
    """Whether blocks are on datanodes: then a written block has a committed index."""
    inline_bytes: int = DEFAULT_INLINE_BYTES
    """Most bytes of a key that is kept in inlineTable."""
    containers: FillingContainers = field(default_factory=FillingContainers, compare=False)
    """What the leader remembers of the containers that it fills."""


Choose = Callable[[], Allocation]
"""Says where blocks may be allocated now."""


def always(pipelines: Iterable[str]) -> Choose:
    """Return a choice that is always the same: the pipelines of the settings, by position."""
    found = Allocation(pipelines=tuple(enumerate(pipelines)), closed_containers=frozenset(), generations={})
    return lambda: found


class Contexts:
    """Makes the contexts of one shard's requests."""

    __slots__ = ("_block_bytes", "_choose", "_containers", "_datanodes", "_inline_bytes", "_shards", "shard")

    def __init__(
        self, *, shard: int, shards: int, pipelines: tuple[str, ...], choose: Choose | None = None,
        block_bytes: int = BLOCK_SIZE_BYTES, inline_bytes: int = DEFAULT_INLINE_BYTES,
    ) -> None:  # fmt: skip
        """``choose`` returns where blocks may be allocated now, and must not block.

        Without it there are no datanodes, and all ``pipelines`` take blocks, by position.
        """
        self.shard = shard
        self._shards = shards
        self._choose = choose or always(pipelines)
        self._datanodes = choose is not None
        self._block_bytes = block_bytes
        self._inline_bytes = inline_bytes
        self._containers = FillingContainers()

    def at(self, now_ms: int, index: int) -> PreExecuteContext:
        """Return the context of the request at ``index``, in a batch of time ``now_ms``."""
        return PreExecuteContext(
            shard=self.shard, shards=self._shards, now_ms=now_ms, index=index, allocation=self._choose(),
            block_size_bytes=self._block_bytes, datanodes=self._datanodes, inline_bytes=self._inline_bytes,
            containers=self._containers,
        )  # fmt: skip


@record
class RequestPreparation:
    """A request with all choices of the leader; enough to execute it on any replica."""

    body: RequestBody
    caller: str
    index: int
    now_ms: int
    object_id: int
    session_id: int
    blocks: list[BlockLocation]
    standing: ProvenCaller | None = None
    """What the leader knows of the caller; None if rights are not judged."""


class Authorizer(Protocol):
    """Decides whether a caller may do what it requests."""

    def authorize(self, prepared: RequestPreparation, view: ReadView) -> None:
        """Raise OMError if ``prepared.caller`` may not; depends on its arguments alone, and writes nothing."""
        ...


class AllowAll:
    """Everyone may do everything (Ozone's default, ``ozone.acl.enabled = false``)."""

    def authorize(self, prepared: RequestPreparation, view: ReadView) -> None:
        """Allow it."""


ALLOW_ALL = AllowAll()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHandler(Generic[Body]):
    """One request type.

    ``check`` refuses a request that is wrong in itself, whatever the state. ``admit`` refuses one that this leader, as
    it is configured, does not take. ``apply`` validates against the state, writes the operations and returns the
    result. ``blocks`` chooses the request's blocks, if its type needs any. All raise OMError to refuse.
    """

    body: type[Body]
    check: Callable[[Body], None]
    apply: Callable[[Body, RequestPreparation, RowTransaction], Result]
    blocks: Callable[[Body, PreExecuteContext, int], list[BlockLocation]] | None = None
    admit: Callable[[Body, PreExecuteContext], None] | None = None


AnyHandler = RequestHandler[Any]
