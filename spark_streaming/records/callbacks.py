"""The doors by which Spark's Java reaches this process: they ask for the gateway's secret.

Calls of functions (``foreachBatch``): PySpark opens a port for such calls, on the loopback, and asks nobody who it
is: any account of the machine could call, or replace, what is there. Here the gateway's secret is demanded, before
anything else of a connection is read. Py4J's Java can send it, and forgets it when it is told the port
(``PythonClient.copyWith``); so it is told again.

Accumulators: PySpark's server asks for the secret, and hears one peer after the other, so a silent one holds all tasks
up. Here each has a thread.

Rules: who has not proved itself may be silent for ``PROOF_S``, and say lines of ``MOST_PROOF_BYTES``; at most
``MOST_UNPROVEN`` such are heard: a further one has the oldest of them closed.
"""

from __future__ import annotations

import hmac
import select
import socket
import threading
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, BinaryIO

from py4j import protocol
from py4j.clientserver import ClientServer, ClientServerConnection, PythonServer
from py4j.java_gateway import JavaObject
from pyspark import accumulators
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from transport.waiting.deadline import Deadline

PROOF_S = 5.0
"""How long a connection may be silent before it has proved that it is Spark's Java."""
MOST_PROOF_BYTES = 512
"""Longest line of a proof."""
PEEK_S = 0.01
"""Pause before the next look at a proof that is not whole."""
MOST_UNPROVEN = 32
"""Connections that have not proved themselves, at once."""


def guard_callbacks(session: SparkSession) -> None:
    """Start a session's callback server, which demands the gateway's secret, unless it is there.

    Raises RuntimeError if one listens already that demands none, or it cannot be told to.
    """
    gateway: Any = session.sparkContext._gateway
    if is_to_be_started(gateway):
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        _tell_java(gateway)


def is_to_be_started(gateway: Any) -> bool:
    """Have a gateway's callback server be one that demands the secret; False if it is there. Raises RuntimeError."""
    if not isinstance(gateway, ClientServer):
        raise RuntimeError("Spark's callback server cannot be guarded while PYSPARK_PIN_THREAD is false: leave it out")
    if isinstance(gateway._callback_server, GuardedServer):
        return False
    if gateway._callback_server is not None:
        raise RuntimeError("Spark's callback server listens already, and asks nobody who it is")
    secret = gateway.java_parameters.auth_token
    gateway._create_callback_server = lambda _: GuardedServer(gateway, secret)
    return True


def _tell_java(gateway: Any) -> None:
    """Have Spark's Java send the secret to the callback server, whose port it knows."""
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    field = client.getClass().getSuperclass().getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, gateway.java_parameters.auth_token)


class Unproven:
    """The connections that have not proved themselves yet; for any thread."""

    def __init__(self) -> None:
        self._held: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    def add(self, sock: socket.socket) -> None:
        """Note a connection; the oldest ends if it has no room."""
        with self._lock:
            while len(self._held) >= MOST_UNPROVEN:
                oldest = next(iter(self._held))
                del self._held[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._held[sock] = None

    def remove(self, sock: socket.socket) -> None:
        """Forget a connection, which has proved itself or has ended."""
        with self._lock:
            self._held.pop(sock, None)


class GuardedAccumulators(ThreadingMixIn, accumulators.AccumulatorServer):
    """PySpark's server of accumulators, with a thread for each peer, which it hears once the peer has proved itself."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._unproven = Unproven()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hear a peer on a thread of its own."""
        self._unproven.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Have PySpark hear a peer that has proved itself; hang up on all others."""
        try:
            proven = self._has_proved(request)
        finally:
            self._unproven.remove(request)
        if proven:
            super().finish_request(request, client_address)

    def _has_proved(self, sock: socket.socket) -> bool:
        """Look at what a peer says first, and leave it there: PySpark reads it again."""
        secret = self.auth_token.encode()
        deadline = Deadline.after_s(PROOF_S)
        given = b""
        try:
            while len(given) < len(secret):
                if not select.select([sock], [], [], deadline.left_s)[0]:
                    return False
                given = sock.recv(len(secret), socket.MSG_PEEK)
                if not given or not secret.startswith(given):
                    return False
                time.sleep(0 if len(given) == len(secret) else PEEK_S)
        except (OSError, ValueError):
            return False
        return True


def guard_accumulators() -> None:
    """Have the next session's server of accumulators be a guarded one."""
    vars(accumulators)["AccumulatorServer"] = GuardedAccumulators


class GuardedServer(PythonServer):  # type: ignore[misc] # py4j has no types
    """Py4J's callback server, with connections that prove themselves first."""

    def __init__(self, gateway: Any, secret: str) -> None:
        super().__init__(
            gateway._gateway_client, gateway.java_parameters, gateway.python_parameters, gateway.gateway_property
        )  # fmt: skip
        self._secret = secret
        self._unproven = Unproven()

    def _create_connection(self, sock: socket.socket, stream: BinaryIO) -> GuardedConnection:
        self._unproven.add(sock)
        made = GuardedConnection(self)
        made.init_socket_from_python_server(sock, stream)
        return made

    def is_proven(self, sock: socket.socket, stream: BinaryIO) -> bool:
        """Hear a proof; say whether it is right. A peer that is slow, silent or displaced has given none."""
        try:
            sock.settimeout(PROOF_S)
            command, given, end = (stream.readline(MOST_PROOF_BYTES) for _ in range(3))
            wanted = (f"{protocol.AUTH_COMMAND_NAME}\n", f"{self._secret}\n", f"{protocol.END}\n")
            if command != wanted[0].encode() or end != wanted[2].encode():
                return False
            if not hmac.compare_digest(given, wanted[1].encode()):
                return False
            sock.sendall(protocol.OUTPUT_VOID_COMMAND.encode())
            sock.settimeout(None)
        except (OSError, ValueError):
            return False
        finally:
            self._unproven.remove(sock)
        return True


class GuardedConnection(ClientServerConnection):  # type: ignore[misc] # py4j has no types
    """One connection from Spark's Java, or from a stranger."""

    def __init__(self, server: GuardedServer) -> None:
        super().__init__(
            server.java_parameters, server.python_parameters, server.gateway_property, server.gateway_client,
            python_server=server,
        )  # fmt: skip
        self._server = server

    def wait_for_commands(self) -> None:
        """Take calls from a peer that has proved that it is Spark's Java; hang up on all others."""
        if self._server.is_proven(self.socket, self.stream):
            super().wait_for_commands()
        else:
            self.close(reset=True)
