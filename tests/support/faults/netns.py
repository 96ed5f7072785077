"""Hosts of their own on one machine, and cuts between them: network namespaces on a bridge.

Each :class:`Host` is a namespace with one address; processes start in it by ``ip netns exec``. A cut between two hosts is a blackhole
route on both sides: packets vanish, connections stay open and hear nothing, as when a switch fails. The machine itself (the root
namespace) is a host too, ``network.machine``. Needs root and iproute2; :func:`why_not` says what is missing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Self

PREFIX_LENGTH = 24
_networks = count(1)


class NetworkError(Exception):
    """An ``ip`` command failed; the message holds it and what it said."""


def ip(*words: str, namespace: str = "") -> None:
    """Run an ``ip`` command, in a namespace if one is given; raises NetworkError."""
    command = ["ip", *(["-n", namespace] if namespace else []), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NetworkError(f"ip (iproute2) cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")


def why_not() -> str:
    """Try it out: return why network namespaces cannot be used here, empty if they can."""
    try:
        with Network() as network:
            network.add("probe")
    except NetworkError as error:
        return f"network namespaces cannot be used here (root and iproute2 are needed): {error}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One address; ``namespace`` is empty for the machine itself."""

    name: str
    namespace: str
    address: str

    @property
    def launcher(self) -> tuple[str, ...]:
        """Words to put before a command that is to run there."""
        return ("ip", "netns", "exec", self.namespace) if self.namespace else ()


class Network:
    """A bridge with hosts on it, gone at the end of the ``with`` block."""

    def __init__(self) -> None:
        number = next(_networks)
        self._tag = f"s{os.getpid() % 100_000}-{number}"
        # 10.64.0.0/10 of the private range, a /24 for each run and network: two runs at once do not meet.
        self._base = f"10.{64 + os.getpid() % 128}.{(os.getpid() // 128 + number) % 256}"
        self.machine = Host(name="machine", namespace="", address=f"{self._base}.254")
        self.hosts: dict[str, Host] = {}

    @property
    def machine_bridge(self) -> str:
        """The device that all hosts are plugged into."""
        return self._tag

    def device_of(self, name: str) -> str:
        """Return a host's end of the cable that leaves it, on the machine."""
        return f"{self._tag}v{list(self.hosts).index(name) + 1}"

    def __enter__(self) -> Self:
        try:
            ip("link", "add", self._tag, "type", "bridge")
            ip("addr", "add", f"{self.machine.address}/{PREFIX_LENGTH}", "dev", self._tag)
            ip("link", "set", self._tag, "up")
        except NetworkError:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take everything down. Processes that still run in a namespace keep it until they end."""
        for host in self.hosts.values():
            with suppress(NetworkError):
                ip("netns", "del", host.namespace)
        self.hosts.clear()
        with suppress(NetworkError):
            ip("link", "del", self._tag)

    def add(self, name: str) -> Host:
        """Make a host."""
        number = len(self.hosts) + 1
        host = Host(name=name, namespace=f"{self._tag}-{name}", address=f"{self._base}.{number}")
        ip("netns", "add", host.namespace)
        self.hosts[name] = host
        outside = f"{self._tag}v{number}"
        ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        ip("link", "set", outside, "master", self._tag, "up")
        ip("addr", "add", f"{host.address}/{PREFIX_LENGTH}", "dev", "eth0", namespace=host.namespace)
        for device in ("lo", "eth0"):
            ip("link", "set", device, "up", namespace=host.namespace)
        return host

    def cut(self, one: Host, others: Sequence[Host]) -> None:
        """Let nothing pass between a host and others, in either direction."""
        for other in others:
            ip("route", "replace", "blackhole", f"{other.address}/32", namespace=one.namespace)
            ip("route", "replace", "blackhole", f"{one.address}/32", namespace=other.namespace)

    def heal(self) -> None:
        """Undo all cuts."""
        everybody = [self.machine, *self.hosts.values()]
        for one in everybody:
            for other in everybody:
                with suppress(NetworkError):  # there was no cut between these two
                    ip("route", "del", "blackhole", f"{other.address}/32", namespace=one.namespace)
