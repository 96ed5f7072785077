"""The TCP server of a datanode: one thread that accepts, and one for each connection.

Clients share nothing but the processor, the disk and the network: each connection has its own thread, buffer and file. At
``max_connections`` a further one is told OVERLOADED. ``stop`` takes no more connections, lets streams end for a while, tells the others
STOPPING, and waits for the threads.
"""

from __future__ import annotations

import select
import socket
import threading
import time

from datanode_processors.connection import Connection
from datanode_processors.counters import Counters, Snapshot
from datanode_processors.errors import BlockError
from datanode_processors.forwarding import Node
from datanode_processors.limits import Limits
from datanode_processors.ports import Blocks, Note, Pipelines
from datanode_processors.wire import SOCKET_BUFFER_BYTES, Wire, WireClosed, error_frame
from schemas import stream_errors

BACKLOG = 128
"""Connections that the kernel holds until they are accepted."""
STOP_POLL_S = 0.05


class StreamServer:
    """Serves streams and requests on one port until it is stopped."""

    def __init__(
        self, *, name: str, cluster: str, host: str, port: int, blocks: Blocks, pipelines: Pipelines, note: Note,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        """Bind ``host:port`` (0 = a free port, see ``port``) and begin to accept. Raises OSError if it cannot be bound."""
        self._counters = Counters()
        self._note = note
        self._node = Node(
            name=name, cluster=cluster, limits=limits or Limits(), blocks=blocks, pipelines=pipelines,
            attach=self._counters.attach, detach=self._counters.detach,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}
        self._stopping = False
        self._socket = self._listen(host, port)
        self._wake_read, self._wake_write = socket.socketpair()
        self.port: int = self._socket.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)
        self._accepting.start()

    def snapshot(self) -> Snapshot:
        """Return what was counted, for the metrics."""
        with self._lock:
            connections = len(self._connections)
        return self._counters.snapshot(connections)

    def stop(self) -> None:
        """Stop serving: returns when the threads have ended, or ``stop_grace_s`` and a little more are over."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        self._wake_write.send(b"!")
        self._accepting.join()
        deadline = time.monotonic() + self._node.limits.stop_grace_s
        while self._counters.streams and time.monotonic() < deadline:
            time.sleep(STOP_POLL_S)
        with self._lock:
            left = dict(self._connections)
        for connection in left:
            connection.stop()
        deadline = time.monotonic() + self._node.limits.linger_s + 1.0
        for thread in left.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    @staticmethod
    def _listen(host: str, port: int) -> socket.socket:
        listener = socket.create_server((host, port), backlog=BACKLOG)
        # Inherited by what is accepted: set later, it would not widen the window that TCP has announced by then.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        listener.setblocking(False)
        return listener

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not self._stopping:
            poll.poll()
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                # Out of descriptors, most likely: those that are open go on, and it is tried again.
                self._note(f"a connection could not be accepted: {error}")
                time.sleep(STOP_POLL_S)
                continue
            self._start(sock)
        for sock in (self._socket, self._wake_read, self._wake_write):
            sock.close()

    def _start(self, sock: socket.socket) -> None:
        try:
            wire = Wire(sock)
        except OSError:
            sock.close()  # the peer has gone already
            return
        connection = Connection(self._node, wire, self._counters, self._note)
        with self._lock:
            full = len(self._connections) >= self._node.limits.max_connections
        if full:
            self._refuse(wire)
            return
        thread = threading.Thread(
            target=self._serve, args=(connection,), name=f"{self._node.name}-connection", daemon=True
        )
        with self._lock:
            self._connections[connection] = thread
        thread.start()

    def _serve(self, connection: Connection) -> None:
        self._counters.attach(connection.wire, "")
        try:
            connection.serve()
        finally:
            self._counters.detach(connection.wire)
            with self._lock:
                self._connections.pop(connection, None)

    def _refuse(self, wire: Wire) -> None:
        limit = self._node.limits.max_connections
        error = BlockError(stream_errors.OVERLOADED, f"{limit} connections are open here, and no more are taken")
        try:
            wire.send_small(error_frame(self._node.name, error))
        except WireClosed:
            pass
        wire.close()
