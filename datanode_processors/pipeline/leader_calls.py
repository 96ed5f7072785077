"""Requests on their way to a pipeline's leader: sent on once, over connections that are kept.

A request that goes through the log may come to any member. A member that does not lead wraps the request
(``Forwarded``) and asks the leader. The leader executes or refuses a wrapped request, and never sends it on again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.request_checks import LOG_REQUESTS
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire import decode_bounded
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors as codes
from schemas.codecs.codec import encode
from schemas.conversation.limits import LARGE_REQUESTS
from schemas.records.datanode import Forwarded

ANSWER_TIMEOUT_S = 30.0
"""How long a request may wait for its batch to be effective."""

ANSWER_STEP_S = 0.5
MAX_IDLE_PEERS = 8
"""Connections to one other datanode that are kept for the next requests."""


def unwrap(request: Forwarded) -> Any:
    """Return the request that another member sent on; raises BlockError INVALID_REQUEST."""
    inner = decode_bounded(request.request, f"what datanode {request.by} sends on", LARGE_REQUESTS)
    if not isinstance(inner, LOG_REQUESTS):
        raise BlockError(codes.INVALID_REQUEST, f"datanode {request.by} sends on a {type(inner).__name__}")
    return inner


class LeaderCalls:
    """Connections to leaders; for many threads."""

    def __init__(self, *, node: str, cluster: str, tls: WireTls | None = None) -> None:
        self._tls = tls
        self._node = node
        self._cluster = cluster
        self._lock = threading.Lock()
        self._idle: dict[str, list[Peer]] = {}
        self._closed = False
        self.sent = 0
        """Requests sent on to a leader."""

    def close(self) -> None:
        """Close the connections that are kept; the others close when their request is done."""
        with self._lock:
            self._closed = True
            peers = [peer for idle in self._idle.values() for peer in idle]
            self._idle.clear()
        for peer in peers:
            peer.close()

    def ask(self, address: str, request: Any) -> Any:
        """Send a request on to the leader at ``address`` and return its answer; raises BlockError.

        A connection that was kept may have died meanwhile. Then a fresh one is tried, which is safe because requests
        are idempotent. The error is NOT_LEADER if nobody answers.
        """
        self.sent += 1
        forwarded = Forwarded(by=self._node, request=encode(request))
        kept = self._take_peer(address)
        if kept is not None:
            try:
                return self._ask(address, kept, forwarded)
            except BlockError as error:
                if error.code not in (codes.FAILED, codes.BAD_FRAME, codes.STOPPING):
                    raise
        try:
            peer = Peer(
                address, own=self._node, cluster=self._cluster, timeout_s=ANSWER_TIMEOUT_S + ANSWER_STEP_S,
                tls=self._tls,
            )  # fmt: skip
        except BlockError as error:
            raise BlockError(codes.NOT_LEADER, f"the leader does not answer: {error.message}") from error
        return self._ask(address, peer, forwarded)

    def _ask(self, address: str, peer: Peer, request: Forwarded) -> Any:
        with self._returned(address, peer):
            return peer.request(request)

    @contextmanager
    def _returned(self, address: str, peer: Peer) -> Iterator[None]:
        """Keep a connection that has answered; close one that has failed."""
        try:
            yield
        except BlockError as error:
            if error.code in (codes.FAILED, codes.BAD_FRAME, codes.TIMED_OUT, codes.STOPPING):
                peer.close()
            else:
                self._keep_peer(address, peer)
            raise
        except BaseException:
            peer.close()
            raise
        self._keep_peer(address, peer)

    def _take_peer(self, address: str) -> Peer | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _keep_peer(self, address: str, peer: Peer) -> None:
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if len(idle) < MAX_IDLE_PEERS and not self._closed:
                idle.append(peer)
                return
        peer.close()
