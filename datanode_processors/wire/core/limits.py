"""Limits and time-outs of the stream server, each named; a datanode's configuration sets some of them."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.settings.table import DatanodeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    """What one stream server takes, and how long it waits.

    Sizes of frames and windows are in ``schemas.records.packets`` and ``stream``.
    """

    max_connections: int = 1024
    """Connections at once; each has a thread. Further ones are told OVERLOADED and closed."""
    max_streams: int = DatanodeSettings.datanode_max_streams
    """Streams at once; further ones are refused with OVERLOADED."""
    max_large_bytes: int = 1024 * 1024 * 1024
    """Bytes that all connections' buffers may take for frames larger than a usual packet; beyond that, a frame is
    refused with OVERLOADED.
    """
    handshake_timeout_s: float = 10.0
    """How long a peer that connects may take for HELLO."""
    connect_timeout_s: float = 3.0
    """How long a connection to another datanode and its HELLO may take."""
    idle_timeout_s: float = 600.0
    """How long a connection, or the client of a stream, may be silent."""
    open_timeout_s: float = 3.0
    """How long a child may take to open its stream; longer for a child with children (``stream.patience_s``)."""
    takeover_silence_s: float = 1.5
    """How long the client of a stream must have been silent before a newer stream of the same block may end it."""
    takeover_wait_s: float = 2.5
    """How long a newer stream waits for an older one of the same block to end."""
    stall_timeout_s: float = 8.0
    """How long a child that owes an acknowledgement may neither take nor say anything."""
    exchange_timeout_s: float = 4.0
    """How long a child may take for small blocks that are written together; longer for a child with children
    (``stream.patience_s``). Then they are written as streams, whose time-outs are longer.
    """
    alive_s: float = 2.0
    """How often a node that waits for a child repeats its acknowledgement.

    The nodes above then see that another one hangs.
    """
    end_timeout_s: float = 60.0
    """The same time after END, when a child may have to flush the whole block to its disk."""
    send_timeout_s: float = 30.0
    """How long a client may take nothing of an answer."""
    linger_s: float = 2.0
    """How long a refused peer's bytes are read and dropped, so that it sees the refusal."""
    stop_grace_s: float = 5.0
    """How long streams may go on when the server stops."""
