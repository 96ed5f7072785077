"""Requests on their way to a pipeline's leader: sent on once, over connections that are kept.

A request that goes through the log may come to any member. A member that does not lead wraps the request
(``Forwarded``) and asks the leader. The leader executes or refuses a wrapped request, and never sends it on again.
"""

from __future__ import annotations

from typing import Any

from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.request_checks import LOG_REQUESTS
from datanode_processors.wire.kept_peers import KeptPeers
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


def unwrap(request: Forwarded) -> Any:
    """Return the request that another member sent on; raises BlockError INVALID_REQUEST."""
    inner = decode_bounded(request.request, f"what datanode {request.by} sends on", LARGE_REQUESTS)
    if not isinstance(inner, LOG_REQUESTS):
        raise BlockError(codes.INVALID_REQUEST, f"datanode {request.by} sends on a {type(inner).__name__}")
    return inner


class LeaderCalls:
    """Connections to leaders; for many threads."""

    def __init__(self, *, node: str, cluster: str, tls: WireTls | None = None) -> None:
        self._node = node
        self.peers = _Leaders(own=node, cluster=cluster, timeout_s=ANSWER_TIMEOUT_S + ANSWER_STEP_S, tls=tls)
        self.sent = 0
        """Requests sent on to a leader."""

    def close(self) -> None:
        """Close the connections that are kept; the others close when their request is done."""
        self.peers.close()

    def ask(self, address: str, request: Any) -> Any:
        """Send a request on to the leader at ``address`` and return its answer; raises BlockError.

        The error is NOT_LEADER if nobody answers.
        """
        self.sent += 1
        forwarded = Forwarded(by=self._node, request=encode(request))
        return self.peers.begin("", address, lambda leader: leader.begin(forwarded)).answer()


class _Leaders(KeptPeers):
    def connect(self, datanode: str, address: str) -> Peer:
        try:
            return super().connect(datanode, address)
        except BlockError as error:
            raise BlockError(codes.NOT_LEADER, f"the leader does not answer: {error.message}") from error
