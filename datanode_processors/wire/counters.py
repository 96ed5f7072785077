"""Counters of a stream server, for its metrics: bytes in and out by peer, packets, streams, requests.

The threads of streams count on their own Wire without a lock. A snapshot adds up the live Wires and the counts that
closed ones left.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from datanode_processors.errors import BlockError
from datanode_processors.wire.wire import Wire
from schemas import stream_errors

EXCHANGE_STEPS = ("store", "below", "commit", "watch")
"""The steps of an exchange of small blocks, in their order: the blocks are sent on, written and synced here; those
below have stored them too; the root has them committed; it has asked all members whether they applied that.
"""
MAX_PEERS = 64
"""Peers that are counted by name; those that come later are counted together."""
OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCounts:
    """Counts since the server started, but ``connections`` and ``streams`` are those open now.

    Bytes are by peer, headers included.
    """

    connections: int
    streams: int
    streams_opened: int
    streams_completed: int
    streams_failed: int
    streams_reclaimed: int
    """Streams whose client vanished."""
    requests: int
    packets: int
    bytes_in: dict[str, int]
    bytes_out: dict[str, int]
    exchanges: int = 0
    """Exchanges of small blocks that were carried out here, whatever became of their blocks."""
    exchanged_blocks: int = 0
    exchange_seconds: dict[str, float] = field(default_factory=dict)
    """How long all of them took together, by step (``EXCHANGE_STEPS``)."""
    exchange_steps: dict[str, int] = field(default_factory=dict)
    """How many of them had each step."""


@dataclass(slots=True)
class StreamOutcome:
    """How a stream ended; neither is a failure."""

    completed: bool = False
    reclaimed: bool = False


class Counters:
    """The counts of one server; safe for its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[Wire, str] = {}
        self._in: Counter[str] = Counter()
        self._out: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._exchange_s = dict.fromkeys(EXCHANGE_STEPS, 0.0)
        self._exchange_steps = dict.fromkeys(EXCHANGE_STEPS, 0)
        self._streams = 0

    def attach(self, wire: Wire, peer: str) -> None:
        """Begin to count a connection."""
        with self._lock:
            self._peers[wire] = peer

    def name(self, wire: Wire, peer: str) -> None:
        """Set the peer of a connection that is counted."""
        with self._lock:
            if wire in self._peers:
                self._peers[wire] = peer

    def detach(self, wire: Wire) -> None:
        """Keep what a connection has counted, and forget the connection. Nothing changes if it is not counted."""
        with self._lock:
            peer = self._peers.pop(wire, None)
            if peer is not None:
                self._add(self._in, self._out, wire, peer)
                self._counts["packets"] += wire.packets

    def request(self) -> None:
        """Count a request."""
        with self._lock:
            self._counts["requests"] += 1

    def exchange(self, blocks: int, seconds: Mapping[str, float]) -> None:
        """Count an exchange of so many small blocks, which took so long by step."""
        with self._lock:
            self._counts["exchanges"] += 1
            self._counts["exchanged blocks"] += blocks
            for step, spent_s in seconds.items():
                self._exchange_s[step] += spent_s
                self._exchange_steps[step] += 1

    @contextmanager
    def stream(self, limit: int) -> Iterator[StreamOutcome]:
        """Count a stream while it runs; raises OVERLOADED if ``limit`` run already."""
        with self._lock:
            if self._streams >= limit:
                raise BlockError(stream_errors.OVERLOADED, f"{limit} streams are open here, and no more are taken")
            self._streams += 1
            self._counts["opened"] += 1
        outcome = StreamOutcome()
        try:
            yield outcome
        finally:
            ended = "completed" if outcome.completed else "reclaimed" if outcome.reclaimed else "failed"
            with self._lock:
                self._streams -= 1
                self._counts[ended] += 1

    @property
    def streams(self) -> int:
        """Streams that are open."""
        return self._streams

    def snapshot(self, connections: int) -> StreamCounts:
        """Return the counts; ``connections`` is the number of accepted ones that are open."""
        with self._lock:
            coming, going = self._in.copy(), self._out.copy()
            packets = self._counts["packets"]
            for wire, peer in self._peers.items():
                self._add(coming, going, wire, peer)
                packets += wire.packets
            return StreamCounts(
                connections=connections,
                streams=self._streams,
                streams_opened=self._counts["opened"],
                streams_completed=self._counts["completed"],
                streams_failed=self._counts["failed"],
                streams_reclaimed=self._counts["reclaimed"],
                requests=self._counts["requests"],
                packets=packets,
                bytes_in=dict(coming),
                bytes_out=dict(going),
                exchanges=self._counts["exchanges"],
                exchanged_blocks=self._counts["exchanged blocks"],
                exchange_seconds=self._exchange_s.copy(),
                exchange_steps=self._exchange_steps.copy(),
            )

    @staticmethod
    def _add(coming: Counter[str], going: Counter[str], wire: Wire, peer: str) -> None:
        name = peer if peer in coming or len(coming) < MAX_PEERS else OTHERS
        coming[name] += wire.bytes_in
        going[name] += wire.bytes_out
