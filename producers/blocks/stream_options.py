"""Options of a client's streams, for writing and reading bytes.

What belongs here: the options, their defaults, and the checks of their ranges. Sizes are in bytes, times in
milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from producers.blocks.core.stream_window import WindowLimits
from producers.blocks.core.write_ways import COMMIT_PATHS, CommitPath, WayLimits
from producers.requests import arguments
from schemas.records.packets import MAX_BYTES_TOGETHER, MAX_PACKET_BYTES
from schemas.settings.table import SHAPES, BlockSettings, Shape, StreamSettings
from schemas.small_objects import MAX_INLINE_BYTES, SMALL_FILE_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of reading and writing bytes.

    Raises ValueError for a value out of range, TypeError for one of another type, naming it.

    ``commit_way`` is one of :class:`CommitWay`; ``topology`` is the shape of the spanning tree; ``rack`` is the rack of
    this client. A packet has ``packet_bytes``; at most ``window_bytes`` are on their way; each ``flush_bytes`` are
    committed; a writer waits while ``client_buffer_bytes`` are not watched. A block has ``block_bytes`` at most, and
    never more than were allocated. ``watch_timeout_ms`` is how long a watch waits for all replicas before a majority
    will do; ``commit_timeout_ms`` is how long a commit with its watch is tried before the block is given up.
    ``read_ahead_bytes`` is how much of a block a sequential reader asks for at once. A key of at most ``inline_bytes``
    is kept in the nodes' tables, if the cluster allows that (0 = never). A block of at most ``small_block_bytes`` is
    kept in memory until it ends, and then written in one exchange, many together (0 = never).

    >>> StreamOptions(commit_way=7)
    Traceback (most recent call last):
    ...
    ValueError: commit_way must be 0, 1, 2 or 3, not 7
    """

    commit_way: int = StreamSettings.commit_way
    topology: Shape = StreamSettings.topology
    rack: str = ""
    packet_bytes: int = StreamSettings.packet_bytes
    window_bytes: int = 8 * MIB
    flush_bytes: int = StreamSettings.flush_bytes
    client_buffer_bytes: int = StreamSettings.client_buffer_bytes
    block_bytes: int = BlockSettings.block_bytes
    watch_timeout_ms: int = 5_000
    commit_timeout_ms: int = 30_000
    read_ahead_bytes: int = 16 * MIB
    inline_bytes: int = BlockSettings.inline_bytes
    small_block_bytes: int = MIB

    def __post_init__(self) -> None:
        """Check the ranges."""
        for field in fields(self):
            if isinstance(field.default, str):
                arguments.text(field.name, getattr(self, field.name))
            else:
                arguments.number(field.name, getattr(self, field.name), 0)
        if self.commit_way not in COMMIT_PATHS:
            raise ValueError(f"commit_way must be 0, 1, 2 or 3, not {self.commit_way}")
        if self.topology not in SHAPES:
            raise ValueError(f"topology must be one of {', '.join(SHAPES)}, not {self.topology!r}")
        for name in ("watch_timeout_ms", "commit_timeout_ms", "read_ahead_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.inline_bytes > MAX_INLINE_BYTES:
            raise ValueError(f"inline_bytes must be at most {MAX_INLINE_BYTES}, not {self.inline_bytes}")
        if self.small_block_bytes > MAX_BYTES_TOGETHER:
            raise ValueError(f"small_block_bytes must be at most {MAX_BYTES_TOGETHER}, not {self.small_block_bytes}")
        if not self.path.chunks and self.client_buffer_bytes < self.flush_bytes:
            raise ValueError(
                f"client_buffer_bytes must be at least flush_bytes ({self.flush_bytes}), not "
                f"{self.client_buffer_bytes}:"
                " a writer would wait for ever"
            )
        self.limits(self.block_bytes)

    @property
    def path(self) -> CommitPath:
        """What ``commit_way`` means."""
        return COMMIT_PATHS[self.commit_way]

    def way_limits(self, row_bytes: int = 0) -> WayLimits:
        """Return what a key's row, which takes ``row_bytes``, and a reserved block may take."""
        taken = min(self.small_block_bytes, self.block_bytes, SMALL_FILE_BYTES) if self.path.together else 0
        return WayLimits(row_bytes=row_bytes, block_bytes=taken)

    def limits(self, block_bytes: int) -> WindowLimits:
        """Return the limits of a block of which ``block_bytes`` were allocated; in the old way, those of its chunks."""
        block_bytes = min(block_bytes, self.block_bytes)
        if self.path.chunks:
            chunk = MAX_PACKET_BYTES
            return WindowLimits(
                block_bytes=block_bytes,
                packet_bytes=chunk,
                window_bytes=max(self.window_bytes, chunk),
                flush_bytes=max(self.flush_bytes // chunk, 1) * chunk,
                buffer_bytes=max(self.client_buffer_bytes, self.flush_bytes, chunk),
            )
        return WindowLimits(
            block_bytes=block_bytes,
            packet_bytes=self.packet_bytes,
            window_bytes=self.window_bytes,
            flush_bytes=self.flush_bytes,
            buffer_bytes=self.client_buffer_bytes,
        )
