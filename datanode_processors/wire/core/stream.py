"""State of one stream at one datanode: its place in the spanning tree, and what it may acknowledge.

Rules
    1. The routes are a spanning tree: at most MAX_ROUTES datanodes, each named once. The first is the root (the
       primary). Every child is one of them, has one parent, and is reached from the root. This datanode is among them.
       Any other routes are refused whole. In TLS every child is a member of the block's pipeline, and is called where
       the Object Manager says that it is: the routes' addresses are not looked at (``reached_at``).
    2. OPEN is acknowledged once this node has its block open and every child has acknowledged OPEN.
    3. Packets lie one after the other from OPEN's offset on, up to the length of the block's token, their sequence
       numbers rise, and no more than the window is in flight. A packet that does not fit ends the stream
       (OUT_OF_ORDER): nothing after it is stored.
    4. A node acknowledges what it and everyone below has: the least of its own offset and its children's, which never
       falls. A child that acknowledges what it was not sent, or takes back what it had acknowledged, has failed.
    5. END carries the offset at which the stream stands. It is acknowledged, with its own sequence number and the
       block's length, once this node has flushed and every child has acknowledged END.
    6. A child's failure is told upwards as DOWNSTREAM_FAILED, with the name of the datanode that failed and the offset
       that everyone has. A failure that concerns the block rather than the child is told unchanged (``_OF_THE_BLOCK``).

Offsets are in bytes. Every violation raises :class:`BlockError`. The functions and the class are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from datanode_processors.errors import BlockError
from schemas import stream_errors
from schemas.records.datanode import OpenStream, Route, StreamError
from schemas.records.packets import MAX_PACKET_BYTES, MAX_ROUTES, FrameHeader, Kind

MAX_WINDOW_BYTES = 256 * 1024 * 1024
"""Largest window that a stream may ask for."""
MAX_CELL_BYTES = MAX_PACKET_BYTES
"""Largest checksum cell. It is limited because a cell is sent as one packet when it is read."""
MIN_CELL_BYTES = 512
MAX_BLOCK_BYTES = 2**40
"""Largest offset in a block."""

PATIENCE_STEP = 0.5
"""How much longer a node waits for a child to open its stream, for each level below that child, as a share of the
time-out. So the node nearest to a datanode that hangs gives up first and names it. After OPEN, acknowledgements are
repeated as signs of life.
"""

_OF_THE_BLOCK = frozenset(
    {
        stream_errors.INVALID_REQUEST,
        stream_errors.BLOCK_DELETED,
        stream_errors.CONTAINER_CLOSED,
        stream_errors.PIPELINE_CLOSED,
    }
)
"""Codes of errors that would occur again with another tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """A child in the tree."""

    datanode: str
    address: str
    height: int
    """Levels below the child: 0 for a leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a datanode stands in a spanning tree."""

    is_root: bool
    children: tuple[Below, ...]


def _refuse(message: str) -> BlockError:
    return BlockError(stream_errors.INVALID_REQUEST, message)


def place_in(routes: Sequence[Route], own: str) -> Place:
    """Return where ``own`` stands in the tree; raises INVALID_REQUEST if the routes break rule 1."""
    if not 1 <= len(routes) <= MAX_ROUTES:
        raise _refuse(f"{len(routes)} routes; a spanning tree has 1 to {MAX_ROUTES}")
    by_name = {route.datanode: route for route in routes}
    if len(by_name) < len(routes):
        raise _refuse(f"a datanode stands twice in the routes: {', '.join(route.datanode for route in routes)}")
    if own not in by_name:
        raise _refuse(f"this datanode, {own}, is not in the routes: {', '.join(by_name)}")
    parents: dict[str, str] = {}
    for route in routes:
        for child in route.children:
            if child not in by_name:
                raise _refuse(f"child {child!r} of {route.datanode} is not in the routes: {', '.join(by_name)}")
            if child in parents:
                raise _refuse(f"datanode {child} has two parents, {parents[child]} and {route.datanode}")
            parents[child] = route.datanode
    root = routes[0].datanode
    if root in parents:
        raise _refuse(f"the root {root} has a parent, {parents[root]}")
    heights = _heights(by_name, root)
    if len(heights) < len(by_name):
        raise _refuse(f"not reached from the root {root}: {', '.join(sorted(set(by_name) - set(heights)))}")
    children = tuple(
        Below(datanode=name, address=by_name[name].address, height=heights[name]) for name in by_name[own].children
    )
    return Place(is_root=own == root, children=children)


def reached_at(place: Place, address_of: Callable[[str], str]) -> Place:
    """Return a place whose children are at the addresses that are known here, whatever the routes say.

    Where peers are known by certificates, no client says which address a datanode calls. ``address_of`` raises
    BlockError for a name that is no member of the pipeline.
    """
    return replace(place, children=tuple(replace(one, address=address_of(one.datanode)) for one in place.children))


def _heights(routes: dict[str, Route], root: str) -> dict[str, int]:
    """Return the height of every datanode that is reached from the root.

    Each datanode has one parent, so none is met twice.
    """
    order = [root]
    for name in order:
        order.extend(routes[name].children)
    heights: dict[str, int] = {}
    for name in reversed(order):
        heights[name] = max((heights[child] + 1 for child in routes[name].children), default=0)
    return heights


def patience_s(timeout_s: float, height: int) -> float:
    """Return how long a child of ``height`` may take to open its stream, in seconds."""
    return timeout_s * (1 + PATIENCE_STEP * height)


def check_open(request: OpenStream) -> None:
    """Raise INVALID_REQUEST if a number of OPEN is outside its limits."""
    limits = (
        ("window_bytes", request.window_bytes, 1, MAX_WINDOW_BYTES),
        ("bytes_per_checksum", request.bytes_per_checksum, MIN_CELL_BYTES, MAX_CELL_BYTES),
        ("offset", request.offset, 0, MAX_BLOCK_BYTES),
        ("container_id", request.container_id, 0, 2**63 - 1),
        ("local_id", request.local_id, 0, 2**63 - 1),
    )
    for name, value, low, high in limits:
        if not low <= value <= high:
            raise _refuse(f"{name} {value} of OPEN is not in {low} to {high}")


class StreamState:
    """One stream at one datanode, from OPEN to the acknowledgement of END."""

    def __init__(
        self, request: OpenStream, sequence: int, place: Place, *, limit_bytes: int = MAX_BLOCK_BYTES
    ) -> None:  # fmt: skip
        """``limit_bytes`` is the largest offset that the stream may reach."""
        self.place = place
        self.received = request.offset
        """Where the next packet must lie."""
        self.acknowledged = request.offset
        """The offset that has been acknowledged upward."""
        self.sequence = sequence
        """Sequence number of the last frame before END that was taken."""
        self.end: FrameHeader | None = None
        self._window = request.window_bytes
        self._limit_bytes = limit_bytes
        self._stored = request.offset
        self._flushed = False
        self._opened: set[str] = set()
        self._offsets = {child.datanode: request.offset for child in place.children}
        self._ended: set[str] = set()
        self._open_sequence = sequence

    @property
    def is_open(self) -> bool:
        """Whether every child has acknowledged OPEN."""
        return len(self._opened) == len(self._offsets)

    @property
    def everyone(self) -> int:
        """The offset up to which this replica and every replica below have everything."""
        return min(self._stored, min(self._offsets.values(), default=self._stored))

    @property
    def is_complete(self) -> bool:
        """Whether END may be acknowledged."""
        return self._flushed and len(self._ended) == len(self._offsets)

    def is_outstanding(self, child: str) -> bool:
        """Whether the child owes an acknowledgement."""
        if child not in self._opened or self._offsets[child] < self.received:
            return True
        return self.end is not None and child not in self._ended

    def on_data(self, header: FrameHeader) -> None:
        """Take a packet's header; raises OUT_OF_ORDER if it does not fit (rule 3)."""
        self._in_order(header)
        end = header.offset + header.length
        if not header.length:
            raise self._out_of_order(f"DATA {header.sequence} is empty")
        if end > self._limit_bytes:
            raise self._too_long(header, end)
        if end - self.acknowledged > self._window + MAX_PACKET_BYTES:
            raise self._out_of_order(
                f"DATA {header.sequence} ends at {end}, but only {self.acknowledged} is acknowledged and the window is"
                f" {self._window}"
            )
        self.received = end
        self.sequence = header.sequence

    def _too_long(self, header: FrameHeader, end: int) -> BlockError:
        if self._limit_bytes < MAX_BLOCK_BYTES:
            return BlockError(
                stream_errors.BLOCK_TOKEN_INVALID,
                f"DATA {header.sequence} ends at {end}; the stream's block token is for {self._limit_bytes} bytes",
                offset=self.everyone,
            )
        return self._out_of_order(f"DATA {header.sequence} ends at {end}; a block has at most {MAX_BLOCK_BYTES}")

    def on_end(self, header: FrameHeader) -> None:
        """Take END's header; raises OUT_OF_ORDER if its offset is not where the stream stands."""
        self._in_order(header)
        self.end = header

    def on_stored(self) -> None:
        """Note that this node has written everything that it has received."""
        self._stored = self.received

    def on_flushed(self) -> None:
        """Note that this node has stored the whole stream under its fsync policy."""
        self._flushed = True

    def on_child_ack(self, child: str, header: FrameHeader) -> None:
        """Take an ACK of a child; raises DOWNSTREAM_FAILED if it breaks rule 4."""
        if header.kind is not Kind.ACK:
            raise self.child_failed(child, f"sent {header.kind.name} where ACK was expected", stream_errors.BAD_FRAME)
        if child not in self._opened:
            if header.sequence != self._open_sequence or header.offset != self._offsets[child]:
                raise self.child_failed(child, f"acknowledged {header.offset} before OPEN", stream_errors.BAD_FRAME)
            self._opened.add(child)
            return
        if not self._offsets[child] <= header.offset <= self.received:
            raise self.child_failed(
                child,
                f"acknowledged {header.offset} after {self._offsets[child]}; it was sent {self.received}",
                stream_errors.BAD_FRAME,
            )
        self._offsets[child] = header.offset
        if self.end is not None and header.sequence == self.end.sequence:
            if header.offset != self.end.offset:
                raise self.child_failed(
                    child, f"acknowledged END at {header.offset}, not {self.end.offset}", stream_errors.BAD_FRAME
                )
            self._ended.add(child)

    def child_refused(self, child: str, error: StreamError) -> BlockError:
        """Return what to tell upwards when a child has sent ERROR (rule 6)."""
        if error.code in _OF_THE_BLOCK or error.code == stream_errors.DOWNSTREAM_FAILED:
            return BlockError(
                error.code, error.message, offset=self.everyone, hint=error.hint, datanode=error.datanode or child
            )
        return self.child_failed(child, f"{error.code}: {error.message}", error.code)

    def child_failed(self, child: str, what: str, code: str) -> BlockError:
        """Return what to tell upwards when a child has failed; ``code`` says how, as far as this node saw."""
        return BlockError(
            stream_errors.DOWNSTREAM_FAILED,
            f"datanode {child}: {what}",
            offset=self.everyone,
            hint=code,
            datanode=child,
        )

    def _in_order(self, header: FrameHeader) -> None:
        name = f"{header.kind.name} {header.sequence}"
        if self.end is not None:
            raise self._out_of_order(f"{name} after END {self.end.sequence}")
        if header.sequence <= self.sequence:
            raise self._out_of_order(f"{name} after {self.sequence}: sequence numbers rise")
        if header.offset != self.received:
            raise self._out_of_order(f"{name} is at offset {header.offset}, but the stream stands at {self.received}")

    def _out_of_order(self, message: str) -> BlockError:
        return BlockError(stream_errors.OUT_OF_ORDER, message, offset=self.everyone)
