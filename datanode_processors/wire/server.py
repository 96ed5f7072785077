"""The TCP server of a datanode: one thread that accepts, and one for each connection.

Clients share nothing but the processor, the disk and the network: each connection has its own thread, buffer and file.
Connections beyond ``max_connections`` are told OVERLOADED. ``stop`` accepts no more connections, lets streams end for a
while, tells the others STOPPING, and waits for the threads.

A shortage of threads or descriptors must not end the server. A connection for which no thread can be started is told
OVERLOADED. So is a connection without a descriptor: one descriptor is kept in reserve, to accept the connection and
refuse it. The log gets a line about either every NOTE_S.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from datanode_processors.errors import BlockError
from datanode_processors.tokens.guard import BlockTokenGuard
from datanode_processors.wire.connection import ServedConnection
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.counters import Counters, StreamCounts
from datanode_processors.wire.forwarding import StreamHost
from datanode_processors.wire.ports import Blocks, Note, PipelineRequests, SmallBlockFiles
from datanode_processors.wire.small_blocks import SmallBlockExchange
from datanode_processors.wire.wire import SOCKET_BUFFER_BYTES, Room, Wire, error_frame
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors
from schemas.kafka.brokers_id import brokers_mark
from schemas.records.packets import MAX_HELLO_BYTES
from transport.datanodes.dialing import NO_DESCRIPTOR
from transport.waiting.deadline import Deadline

BACKLOG = 128
"""Connections that the kernel holds until they are accepted."""
STOP_POLL_S = 0.05
NOTE_S = 10.0
"""How often the log says that connections cannot be accepted."""


class StreamServer:
    """Serves streams and requests on one port until it is stopped."""

    def __init__(
        self, *, name: str, cluster: str, host: str, port: int, blocks: Blocks, pipelines: PipelineRequests,
        note: Note, limits: WireLimits | None = None, small_blocks: SmallBlockFiles | None = None,
        tls: WireTls | None = None, block_tokens: BlockTokenGuard | None = None, brokers_id: str = "",
    ) -> None:  # fmt: skip
        """Bind ``host:port`` (0 = a free port, see ``port``) and begin to accept; with ``tls``, TLS alone.

        ``block_tokens`` judges the tokens of those who need some; without it nobody does. ``brokers_id`` is that of the
        datanode's brokers; who is at others is refused.

        Raises OSError if the address cannot be bound.
        """
        self._counters = Counters()
        self._note = note
        limits = limits or WireLimits()
        self._small_blocks = SmallBlockExchange(
            name=name,
            cluster=cluster,
            limits=limits,
            files=small_blocks,
            pipelines=pipelines,
            counters=self._counters,
            tls=tls,
        )
        self._node = StreamHost(
            name=name, cluster=cluster, limits=limits, blocks=blocks, pipelines=pipelines,
            small_blocks=self._small_blocks, attach=self._counters.attach, detach=self._counters.detach,
            tls=tls, block_tokens=block_tokens, brokers=brokers_mark(brokers_id),
        )  # fmt: skip
        self._lock = threading.Lock()
        self._connections: dict[ServedConnection, threading.Thread] = {}
        self._room = Room(self._node.limits.max_large_bytes)
        self._stopping = False
        self._socket = self._listen(host, port)
        self._wake_read, self._wake_write = socket.socketpair()
        self._reserve = self._hold_reserve()
        self._noted_s = -NOTE_S
        self._untold = 0
        """Connections that could not be accepted since the log last said so."""
        self.port: int = self._socket.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)
        self._accepting.start()

    def snapshot(self) -> StreamCounts:
        """Return the counts, for the metrics."""
        with self._lock:
            connections = len(self._connections)
        return self._counters.snapshot(connections)

    def stop(self) -> None:
        """Stop serving; returns when the threads have ended, or a little after ``stop_grace_s``."""
        with self._lock:
            if self._stopping:
                return
            # This comes before the flag is set: the thread that accepts closes this socket when it ends.
            self._wake_write.send(b"!")
            self._stopping = True
        self._accepting.join()
        deadline = Deadline.after_s(self._node.limits.stop_grace_s)
        while self._counters.streams and not deadline.has_passed:
            time.sleep(STOP_POLL_S)
        with self._lock:
            left = dict(self._connections)
        for connection in left:
            connection.stop()
        deadline = Deadline.after_s(self._node.limits.linger_s + 1.0)
        for thread in left.values():
            thread.join(deadline.left_s)
        self._small_blocks.close()

    @staticmethod
    def _listen(host: str, port: int) -> socket.socket:
        listener = socket.create_server((host, port), backlog=BACKLOG)
        # Accepted sockets inherit this. Set later, it would not widen the window that TCP has announced by then.
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
                self._accept_one()
            except Exception as error:
                # A defect, or no memory: existing connections go on, and accepting is tried again.
                self._note_failure(f"a connection could not be accepted: {error!r}", error=error)
                time.sleep(STOP_POLL_S)
        if self._reserve is not None:
            os.close(self._reserve)
        for sock in (self._socket, self._wake_read, self._wake_write):
            sock.close()

    def _accept_one(self) -> None:
        try:
            sock, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._note_failure(f"a connection could not be accepted: {error.strerror}")
            if error.errno not in NO_DESCRIPTOR or not self._refuse_on_reserve():
                time.sleep(STOP_POLL_S)
            return
        try:
            self._start(sock)
        except BaseException:
            sock.close()
            raise

    @staticmethod
    def _hold_reserve() -> int | None:
        """Return a descriptor that is kept for the moment when there is no other; None if there is none now."""
        try:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None

    def _refuse_on_reserve(self) -> bool:
        """Accept a connection with the reserved descriptor and refuse it; otherwise it would wait without an answer.

        Returns whether that was possible.
        """
        if self._reserve is None:
            self._reserve = self._hold_reserve()
            return False
        os.close(self._reserve)
        self._reserve = None
        try:
            sock, _ = self._socket.accept()
        except OSError:  # another thread was faster
            return False
        else:
            self._refuse(sock, "no descriptor is free here")
        finally:
            self._reserve = self._hold_reserve()
        return True

    def _note_failure(self, message: str, **fields: object) -> None:
        self._untold += 1
        now_s = time.monotonic()
        if now_s - self._noted_s >= NOTE_S:
            more = f" (and {self._untold - 1} more)" if self._untold > 1 else ""
            self._noted_s, self._untold = now_s, 0
            self._note(message + more, **fields)

    def _start(self, sock: socket.socket) -> None:
        with self._lock:
            full = len(self._connections) >= self._node.limits.max_connections
        if full:
            self._refuse(sock, f"{self._node.limits.max_connections} connections are open here, and no more are taken")
            return
        try:
            wire = Wire(sock, self._room)
        except OSError:
            sock.close()  # the peer has gone already
            return
        connection = ServedConnection(self._node, wire, self._counters, self._note)
        thread = threading.Thread(
            target=self._serve, args=(connection,), name=f"{self._node.name}-connection", daemon=True
        )
        with self._lock:
            self._connections[connection] = thread
        try:
            thread.start()
        except BaseException as error:
            with self._lock:
                del self._connections[connection]
            if not isinstance(error, RuntimeError):
                raise
            self._note_failure(f"a connection could not be served: {error}")
            self._refuse(sock, "no thread can be started here")

    def _serve(self, connection: ServedConnection) -> None:
        self._counters.attach(connection.wire, "")
        try:
            connection.serve()
        finally:
            self._counters.detach(connection.wire)
            with self._lock:
                self._connections.pop(connection, None)

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        """Tell the peer that no connection is accepted now, as far as that is possible without waiting.

        A peer that speaks TLS is told nothing: a handshake would have to be waited for.
        """
        if self._node.tls is not None:
            sock.close()
            return
        frame = error_frame(self._node.name, BlockError(stream_errors.OVERLOADED, reason))
        try:
            sock.setblocking(False)
            sock.send(frame)
            # Read what has arrived: the kernel resets a connection with unread bytes, and the peer would not see why.
            sock.shutdown(socket.SHUT_WR)
            sock.recv(MAX_HELLO_BYTES)
        except OSError:
            pass
        finally:
            sock.close()
