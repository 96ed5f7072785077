"""How an Object Manager node asks datanodes: one request a connection, over the frames of ``schemas.packets``; and the courier, which
asks without keeping anybody waiting.

Rules of the courier: what is under way is not asked again (by its key), at most MAX_UNDER_WAY requests are, each has a time-out, and no
answer is needed for correctness: the loops decide anew from heartbeats and rows.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from schemas.codec import Undecodable, decode, encode
from schemas.datanode import Hello, StreamError
from schemas.packets import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MIN_VERSION,
    VERSION,
    BadFrame,
    Kind,
    agreed_version,
    check_payload,
    decode_header,
    encode_frame,
)
from schemas.stream_errors import WRONG_CLUSTER

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 30.0
FETCH_TIMEOUT_S = 3600.0
"""Copying a container may take this long."""
MAX_UNDER_WAY = 64
THREADS = 8


class DatanodeFailed(Exception):
    """A datanode refused, or could not be asked; ``code`` is one of ``schemas.stream_errors``, or empty."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def ask(address: str, request: Any, *, own: str, cluster: str, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
    """Send a request to the datanode at ``address`` (host:port) and return its answer; raises DatanodeFailed."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S) as wire:
            wire.settimeout(timeout_s)
            hello = Hello(
                peer=own, cluster=cluster, min_version=MIN_VERSION, max_version=VERSION,
                max_payload_bytes=MAX_PAYLOAD_BYTES,
            )  # fmt: skip
            wire.sendall(encode_frame(Kind.HELLO, encode(hello)))
            _check_hello(_receive(wire), cluster)
            wire.sendall(encode_frame(Kind.REQUEST, encode(request), sequence=1))
            return _receive(wire)
    except (OSError, BadFrame, Undecodable, ValueError) as error:
        raise DatanodeFailed(f"datanode at {address}: {type(error).__name__}: {error}") from error


def _check_hello(hello: Any, cluster: str) -> None:
    if not isinstance(hello, Hello):
        raise BadFrame(f"a {type(hello).__name__} where a Hello was expected")
    if hello.cluster != cluster:
        raise DatanodeFailed(f"datanode {hello.peer} is of cluster {hello.cluster!r}, not {cluster!r}", WRONG_CLUSTER)
    agreed_version(hello.min_version, hello.max_version)


def _receive(wire: socket.socket) -> Any:
    """Return the record of the next frame; raises DatanodeFailed for an ERROR."""
    header = decode_header(_exactly(wire, HEADER_BYTES))
    payload = _exactly(wire, header.length)
    check_payload(header, payload)
    record = decode(payload)
    if isinstance(record, StreamError):
        raise DatanodeFailed(f"{record.datanode}: {record.code}: {record.message}", record.code)
    return record


def _exactly(wire: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = wire.recv(size - len(data))
        if not part:
            raise BadFrame(f"the connection ended after {len(data)} of {size} bytes")
        data += part
    return bytes(data)


class Courier:
    """Asks datanodes on threads of its own. For many threads."""

    def __init__(self, *, own: str, cluster: str, log: Callable[[str], None]) -> None:
        self._own = own
        self._cluster = cluster
        self._log = log
        self._lock = Lock()
        self._under_way: set[Hashable] = set()
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="courier")
        self._told: dict[Hashable, str] = {}

    @property
    def under_way(self) -> frozenset[Hashable]:
        """Keys of the requests that are not answered yet."""
        with self._lock:
            return frozenset(self._under_way)

    def send(
        self, key: Hashable, address: str, request: Any, *, timeout_s: float = ANSWER_TIMEOUT_S,
        done: Callable[[Any], None] | None = None,
    ) -> bool:  # fmt: skip
        """Ask, unless the same is under way or too much is; say whether it is asked. ``done`` is called with the answer, if there is one."""
        with self._lock:
            if key in self._under_way or len(self._under_way) >= MAX_UNDER_WAY:
                return False
            self._under_way.add(key)
        self._threads.submit(self._ask, key, address, request, timeout_s, done)
        return True

    def _ask(
        self, key: Hashable, address: str, request: Any, timeout_s: float, done: Callable[[Any], None] | None
    ) -> None:
        try:
            answer = ask(address, request, own=self._own, cluster=self._cluster, timeout_s=timeout_s)
        except DatanodeFailed as error:
            self._say(key, f"{type(request).__name__} {key}: {error}")
        else:
            self._say(key, "")
            if done is not None:
                done(answer)
        finally:
            with self._lock:
                self._under_way.discard(key)

    def _say(self, key: Hashable, trouble: str) -> None:
        """Log a failure once, and not each time it is met again."""
        with self._lock:
            news = trouble and self._told.get(key) != trouble
            if len(self._told) > MAX_UNDER_WAY * 16:
                self._told.clear()
            if trouble:
                self._told[key] = trouble
            else:
                self._told.pop(key, None)
        if news:
            self._log(trouble)

    def close(self) -> None:
        """Begin nothing more; what is under way ends by its time-outs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
