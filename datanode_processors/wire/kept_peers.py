"""Connections to other datanodes that are kept from one exchange to the next (``transport/datanodes/kept``).

For many threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors
from schemas.records.packets import MIN_VERSION
from transport.datanodes.kept import ConnectionPool, PoolCall

MAX_KEPT_PEERS = 8
"""Connections to one other datanode that are kept for the next exchanges."""


class KeptPeers:
    """The kept connections of one datanode to others."""

    def __init__(
        self, *, own: str, cluster: str, timeout_s: float, tls: WireTls | None = None, version: int = MIN_VERSION
    ) -> None:  # fmt: skip
        """``version`` is the lowest of the conversation that others must speak."""
        self._tls = tls
        self._own = own
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._version = version
        self.pool = ConnectionPool[Peer](per_address=MAX_KEPT_PEERS)

    def begin(self, datanode: str, address: str, ask: Callable[[Peer], None]) -> PeerCall:
        """Send a request to a datanode (empty: whoever is at ``address``), by ``ask``; raises BlockError.

        UNSUPPORTED_VERSION for one that does not speak the version that is needed.
        """
        return PeerCall(self.pool, address, datanode, lambda: self.connect(datanode, address), ask)

    def connect(self, datanode: str, address: str) -> Peer:
        """Return a fresh connection."""
        peer = Peer(
            address, own=self._own, cluster=self._cluster, timeout_s=self._timeout_s, datanode=datanode, tls=self._tls
        )
        if peer.version < self._version:
            peer.close()
            raise peer.error(
                stream_errors.UNSUPPORTED_VERSION,
                f"{address}: {peer.name} speaks version {peer.version}, {self._version} is needed",
            )
        return peer

    def close(self) -> None:
        """Close the kept connections."""
        self.pool.close()


class PeerCall(PoolCall[Peer]):
    """One request that is on its way; for one thread. It ends by ``answer`` or by ``abandon``."""

    def answer(self, timeout_s: float | None = None) -> Any:
        """Return the answer (None: in the peer's own time); raises BlockError: the peer's, or the connection's."""
        return self.finish(lambda peer: peer.answer(timeout_s))
