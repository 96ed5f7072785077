"""Connections to datanodes that may hold a copy's container too; a silent one is left alone for a while (``away``)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from datanode_processors.errors import BlockError
from datanode_processors.repair.core.away import Away
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors as codes

PEER_TIMEOUT_S = 10.0


class CopyPeers:
    """The connections of one datanode; for many threads."""

    def __init__(self, *, node: str, cluster: str, tls: WireTls | None = None) -> None:
        self._tls = tls
        self._node = node
        self._cluster = cluster
        self._lock = Lock()
        self._away = Away()

    def named(self, addresses: Iterable[str]) -> None:
        """Datanodes were named: they may be asked again, however silent they were."""
        with self._lock:
            for address in addresses:
                self._away.answered(address)

    @contextmanager
    def connect(self, address: str) -> Iterator[Peer]:
        """Connect to a source.

        Raises BlockError; at once, if the source was unreachable a moment ago or is this very node.
        """
        with self._lock:
            if self._away.is_away(address, time.monotonic()):
                raise BlockError(codes.FAILED, "it did not answer a moment ago")
        try:
            peer = Peer(address, own=self._node, cluster=self._cluster, timeout_s=PEER_TIMEOUT_S, tls=self._tls)
        except BlockError:
            self._did_not_answer(address)
            raise
        with peer:
            if peer.name == self._node:
                raise BlockError(codes.INVALID_REQUEST, "that is this datanode")
            try:
                yield peer
            except BlockError as error:
                if error.code == codes.TIMED_OUT:  # it accepts connections, and then says nothing
                    self._did_not_answer(address)
                raise
        with self._lock:
            self._away.answered(address)

    def _did_not_answer(self, address: str) -> None:
        with self._lock:
            self._away.silent(address, time.monotonic())
