"""What an attacker has, what it hears, and the connection by which it attacks."""

from __future__ import annotations

import json
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from schemas.access.credentials import Credentials, parse_credentials

TIMEOUT_S = 15.0
LAST_WORDS_S = 2.0
RECEIVE_BYTES = 256 * 1024
THREADS = 32
"""Attackers at once; each has connections of its own."""
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
    broker_ports: tuple[str, ...]
    audit_ports: tuple[str, ...]
    """Addresses of all ports at which the brokers, and the processes of the audit, listen."""
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
        for name in ("keys", "broker_ports", "audit_ports"):
            found[name] = tuple(found[name])
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


class Line:
    """A connection of an attacker, in clear or in TLS, which it keeps for as long as the other side does."""

    def __init__(self, address: str, context: ssl.SSLContext | None, told: Told, canary: str) -> None:
        """Connect; raises OSError."""
        self.told = told
        self._canary = canary.encode()
        host, _, port = address.rpartition(":")
        told["connections"] += 1
        sock = socket.create_connection((host, int(port)), TIMEOUT_S)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock = sock if context is None else context.wrap_socket(sock, server_hostname=host)
        except BaseException:
            sock.close()
            raise

    def say(self, data: bytes) -> None:
        """Send all that the peer takes."""
        self._sock.settimeout(TIMEOUT_S)
        with suppress(OSError):
            self._sock.sendall(data)
            return
        self.told["cut off while sending"] += 1

    def hear_until(self, is_enough: Callable[[bytearray], bool], wait_s: float = LAST_WORDS_S) -> tuple[bytes, bool]:
        """Return what the peer says, and whether that is enough; if not, the peer is silent or gone."""
        told = self.told
        self._sock.settimeout(wait_s)
        heard = bytearray()
        ended = "silent"
        try:
            while not is_enough(heard):
                if not (piece := self._sock.recv(RECEIVE_BYTES)):
                    ended = "closed"
                    break
                heard += piece
            else:
                ended = "enough"
        except TimeoutError:
            pass
        except OSError:
            ended = "closed"
        finally:
            told["leaked"] += self._canary in heard
        told["closed"] += ended == "closed"
        told["silent"] += ended == "silent"
        return bytes(heard), ended == "enough"

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Attack = Callable[[int, int, Told], None]
"""Sends so many frames, as the thread of a number, and counts."""


def by_many(attack: Attack, frames: int, told: Told, threads: int = THREADS) -> None:
    """Have threads attack at once, each with its share of the frames: while one waits for an answer others send.

    Raises what one of them has raised.
    """
    counts: list[Told] = [Counter() for _ in range(threads)]
    share = -(-frames // threads)
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(attack, number, share, counts[number]) for number in range(threads)]
        for future in futures:
            future.result()
    for one in counts:
        told.update(one)
