"""What an attacker has, what it hears, and the connection by which it attacks."""

from __future__ import annotations

import json
import socket
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from schemas.access.credentials import Credentials, parse_credentials

TIMEOUT_S = 15.0
LAST_WORDS_S = 2.0
RECEIVE_BYTES = 256 * 1024
MALLORY = "mallory"
"""The user who attacks: known to brokers and nodes, with a certificate, and without any right."""

Told = Counter[str]
"""What an attacker has counted: ``sent``, ``answered``, ``refused``, ``closed``, ``allowed``, ``leaked``, and reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """What an attacker knows: addresses, names of what it may not touch, its own files."""

    cluster: str
    brokers: str
    kafka: Mapping[str, Any]
    node: str
    datanodes: Mapping[str, str]
    """Address of the stream port, by name."""
    web: Mapping[str, str]
    """Address of the HTTP port, by name of the process."""
    ca: str
    certificate: str
    credentials: str
    volume: str
    bucket: str
    keys: tuple[str, ...]
    blocks: tuple[tuple[int, int, int], ...]
    """Partition, container and local id of blocks that it has heard of."""
    blocks_are_guarded: bool
    """Whether datanodes refuse blocks to whoever can only name them; if not, made-up blocks are named."""
    canary: str
    """A word that is in everything that it may not read."""

    @classmethod
    def read(cls, path: Path) -> Arms:
        found = json.loads(path.read_text())
        found["keys"] = tuple(found["keys"])
        found["blocks"] = tuple(tuple(one) for one in found["blocks"])
        return cls(**found)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    def signer(self) -> Credentials:
        return parse_credentials(Path(self.credentials).read_text())

    def words(self) -> dict[str, Any]:
        """Return plausible values, by the names of fields."""
        return {
            "volume": [self.volume], "bucket": [self.bucket], "key": self.keys, "name": self.keys, "new_key": self.keys,
            "user": [MALLORY, "alice"], "caller": [MALLORY, "alice"], "owner": [MALLORY], "renewer": [MALLORY],
            "shard": [0], "partition": [one[0] for one in self.blocks] or [0],
            "acls": [[]], "administrator": [True],
        }  # fmt: skip


def context_of(arms: Arms, *, known: bool) -> ssl.SSLContext:
    """Return how an attacker speaks TLS: with its certificate, or without any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(arms.ca)
    if known:
        context.load_cert_chain(arms.certificate)
    return context


@contextmanager
def line_to(address: str, context: ssl.SSLContext | None) -> Iterator[socket.socket]:
    """Connect, in clear without a ``context``; the connection is ended in the end, by a reset if it hangs."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            yield sock
            return
        with context.wrap_socket(sock, server_hostname=host) as secured:
            yield secured


def heard_until(sock: socket.socket, is_enough: Any, told: Told, canary: str, *, wait_s: float = LAST_WORDS_S) -> bytes:
    """Return what the peer says until it is enough, or the peer is silent or gone."""
    sock.settimeout(wait_s)
    heard = bytearray()
    ended = "silent"
    try:
        while not is_enough(heard):
            if not (piece := sock.recv(RECEIVE_BYTES)):
                ended = "closed"
                break
            heard += piece
        else:
            ended = "enough"
    except TimeoutError:
        pass
    except OSError:
        ended = "closed"
    told["closed"] += ended == "closed"
    told["silent"] += ended == "silent"
    told["leaked"] += canary.encode() in heard
    return bytes(heard)


def say(sock: socket.socket, data: bytes, told: Told) -> None:
    """Send all that the peer takes."""
    sock.settimeout(TIMEOUT_S)
    with suppress(OSError):
        sock.sendall(data)
        return
    told["cut off while sending"] += 1
