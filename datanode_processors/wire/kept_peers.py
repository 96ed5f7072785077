"""Connections to other datanodes that are kept from one exchange to the next. For many threads.

A kept connection may have died meanwhile. Then the request is sent once more on a fresh one: all requests that are sent
here may be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from datanode_processors.errors import BlockError
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors
from schemas.records.packets import SMALL_BLOCKS_VERSION

MAX_KEPT_PEERS = 8
"""Connections to one other datanode that are kept for the next exchanges."""
ENDED = frozenset({stream_errors.FAILED, stream_errors.BAD_FRAME, stream_errors.STOPPING})
"""Codes after which a kept connection is replaced by a fresh one."""
BROKEN = ENDED | {stream_errors.TIMED_OUT}
"""Codes after which a connection is not kept."""

Ask = Callable[[Peer], None]
"""Sends a request to a peer."""


class KeptPeers:
    """The kept connections of one datanode to others, by name and address."""

    def __init__(self, *, own: str, cluster: str, timeout_s: float, tls: WireTls | None = None) -> None:
        self._tls = tls
        self._own = own
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[Peer]] = {}
        self._closed = False

    def begin(self, datanode: str, address: str, ask: Ask) -> PeerCall:
        """Send a request to a datanode; raises BlockError, UNSUPPORTED_VERSION for one that knows no small blocks."""
        return PeerCall(self, datanode, address, ask)

    def take(self, datanode: str, address: str) -> Peer | None:
        """Return a kept connection, None if there is none."""
        with self._lock:
            idle = self._idle.get((datanode, address))
            return idle.pop() if idle else None

    def connect(self, datanode: str, address: str) -> Peer:
        """Return a fresh connection; the kept ones are as old as the one that failed, and are closed."""
        with self._lock:
            old = self._idle.pop((datanode, address), [])
        for one in old:
            one.close()
        peer = Peer(
            address, own=self._own, cluster=self._cluster, timeout_s=self._timeout_s, datanode=datanode, tls=self._tls
        )
        if peer.version < SMALL_BLOCKS_VERSION:
            peer.close()
            raise BlockError(
                stream_errors.UNSUPPORTED_VERSION, f"datanode {datanode} speaks version {peer.version}: no small blocks"
            )
        return peer

    def keep(self, datanode: str, address: str, peer: Peer) -> None:
        """Keep a connection on which nothing is open."""
        with self._lock:
            idle = self._idle.setdefault((datanode, address), [])
            if len(idle) < MAX_KEPT_PEERS and not self._closed:
                idle.append(peer)
                return
        peer.close()

    def close(self) -> None:
        """Close the kept connections."""
        with self._lock:
            self._closed = True
            peers = [peer for idle in self._idle.values() for peer in idle]
            self._idle.clear()
        for peer in peers:
            peer.close()


class PeerCall:
    """One request that is on its way; for one thread. It ends by ``answer`` or by ``abandon``."""

    def __init__(self, peers: KeptPeers, datanode: str, address: str, ask: Ask) -> None:
        self.datanode = datanode
        self._peers = peers
        self._address = address
        self._ask = ask
        self._peer = peers.take(datanode, address)
        self._kept = self._peer is not None
        """Whether the connection was used before: then its end says nothing about the datanode of now."""
        if self._peer is None:
            self._peer = peers.connect(datanode, address)
        try:
            self._ask(self._peer)
        except BlockError as error:
            self._again(error)

    def answer(self, timeout_s: float) -> Any:
        """Return the answer; raises BlockError: the peer's, or the connection's."""
        while True:
            assert self._peer is not None, self.datanode  # noqa: S101 - it is asked once
            try:
                answer = self._peer.answer(timeout_s)
            except BlockError as error:
                self._again(error)
            else:
                peer, self._peer = self._peer, None
                self._peers.keep(self.datanode, self._address, peer)
                return answer

    def _again(self, error: BlockError) -> None:
        """Send the request on a fresh connection if ``error`` ended a kept one; raises it otherwise."""
        if not self._kept or error.code not in ENDED:
            self._ended(error)
            raise error
        self.abandon()
        self._kept = False
        self._peer = self._peers.connect(self.datanode, self._address)
        try:
            self._ask(self._peer)
        except BlockError as second:
            self._ended(second)
            raise

    def _ended(self, error: BlockError) -> None:
        peer, self._peer = self._peer, None
        if peer is None:
            return
        if error.code in BROKEN:
            peer.close()
        else:
            self._peers.keep(self.datanode, self._address, peer)

    def abandon(self) -> None:
        """Close the connection if the answer has not come: nobody waits for it any more. May be called again."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()
