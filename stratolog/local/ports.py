"""The ports of a starting stack: those of its settings, and free ones for defaults that somebody else listens on.

Rules:

1. An address that a person has written down (``bootstrap_servers``, ``nodes``, ``datanodes`` in a file or a variable)
   is used or refused, never replaced: his programs use it, and would talk to whoever listens there.
2. A default that is taken is replaced by a free port (:class:`Moved`). Commands say so when the stack starts, and
   whenever they show the stack.
3. A port that nobody listens on may be drawn by two starting stacks at once; the broker that comes second would end
   with "Address already in use". So each draw notes its ports in a file of the user's cache, and no other process of
   that user is given them for :data:`RESERVED_S` seconds. A reservation is a courtesy, not a right: where the file
   cannot be written, or nothing else is free, ports are returned without it.
"""

from __future__ import annotations

import fcntl
import random
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

from schemas.settings.values import MAX_PORT, DatanodeAddress
from stratolog.configuration.places import is_homeless
from stratolog.configuration.settings import Settings, default_datanodes
from stratolog.errors import Unavailable
from stratolog.local.jars import default_cache_dir

PORT_RANGE = range(20_000, 32_000)
"""Below the range from which the system takes ports for outgoing connections."""
RESERVED_S = 60.0
"""How long a returned port is not returned again: a broker on a busy machine listens after some 20 s."""
UI_PORT = 9880
"""Where the dashboard listens, unless somebody else does."""
WANTED = "wanted_port"
"""Key in a member's ``extra`` (stratolog.local.state): the port of the settings, if that was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A process of the stack listens elsewhere than its settings say. ``name`` as in the state: broker-1, om1, dn1."""

    name: str
    wanted: int
    got: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.name} listens at port {self.got}: somebody else listens at {self.wanted}"


def free_ports(count: int, reservations: Path | None = None) -> list[int]:
    """Return ``count`` different ports of the loopback that nobody listens on, and reserve them in a file.

    Raises Unavailable if there are not so many.
    """
    path = reservations or default_cache_dir() / "ports"
    if is_homeless(path):
        return _draw(count, ())
    try:
        with _opened(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go of when the file is closed
            reserved = _reserved(file, time.time())
            ports = _draw(count, reserved)
            with suppress(OSError):  # a full disk
                _write(file, {**reserved, **dict.fromkeys(ports, time.time() + RESERVED_S)})
            return ports
    except OSError:
        return _draw(count, ())


def is_port_free(port: int) -> bool:
    """Say whether one can listen on this port of the loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def with_free_ports(settings: Settings) -> tuple[Settings, tuple[Moved, ...]]:
    """Return a starting stack's settings with its ports, and the processes that moved; raises Unavailable (rule 1)."""
    moved: list[Moved] = []
    given = settings.bootstrap_servers.split(",")
    wanted = [int(address.rpartition(":")[2]) for address in given]
    # One address stands for consecutive ports: 9092 for three brokers is 9092, 9093, 9094.
    wanted += range(wanted[-1] + 1, wanted[-1] + 1 + settings.brokers - len(wanted))
    spare = iter(free_ports(settings.brokers + len(settings.nodes)))
    written = "bootstrap_servers" if "bootstrap_servers" in settings.explicit else None
    ports: list[int] = []
    for number, port in enumerate(wanted[: settings.brokers], start=1):
        ports.append(_port(f"broker-{number}", port, spare, moved, written, ports))
    written = "nodes" if "nodes" in settings.explicit else None
    nodes = tuple(
        replace(node, port=_port(node.name, node.port, spare, moved, written, ports)) for node in settings.nodes
    )
    taken = {*ports, *(node.port for node in nodes)}
    datanodes = free_datanodes(settings, settings.datanodes, taken, moved)
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    return replace(settings, bootstrap_servers=servers, nodes=nodes, datanodes=datanodes), tuple(moved)


def free_datanodes(
    settings: Settings, datanodes: Sequence[DatanodeAddress], taken: set[int], moved: list[Moved]
) -> tuple[DatanodeAddress, ...]:
    """Return datanodes with a free port in place of each default one that is ``taken`` or that somebody listens on."""
    spare = (port for port in free_ports(2 * len(datanodes) + len(taken)) if port not in taken)
    found = []
    for node in datanodes:
        # The command line gives the number of datanodes (--datanodes); the settings may give their addresses.
        written = None if node in default_datanodes(_number_of(node.name)) else "datanodes"
        if "datanodes" not in settings.explicit:
            written = None
        ports = [_port(node.name, port, spare, moved, written, taken) for port in (node.port, node.http_port)]
        found.append(replace(node, port=ports[0], http_port=ports[1]))
    return tuple(found)


def _number_of(name: str) -> int:
    digits = name.removeprefix("dn")
    return int(digits) if digits.isdecimal() and len(digits) <= 2 else 0


def _port(
    name: str, wanted: int, spare: Iterator[int], moved: list[Moved], written: str | None, taken: Collection[int]
) -> int:  # fmt: skip
    """Return the port that a process gets."""
    if wanted not in taken and 0 < wanted <= MAX_PORT and is_port_free(wanted):
        return wanted
    if written is not None:
        raise Unavailable(
            f"somebody else listens at port {wanted}, which the setting '{written}' gives to {name}: end that "
            f"process, or change the setting; without it {name} would get a free port"
        )
    got = next(spare)
    moved.append(Moved(name=name, wanted=wanted, got=got))
    return got


def _draw(count: int, reserved: Iterable[int]) -> list[int]:
    """Return free ports drawn at random, ``reserved`` ones only if there are too few others."""
    last = set(reserved)
    candidates = sorted(random.sample(PORT_RANGE, len(PORT_RANGE)), key=last.__contains__)
    ports = list(islice(filter(is_port_free, candidates), count))
    if len(ports) < count:
        raise Unavailable(f"no {count} free ports in {PORT_RANGE.start}..{PORT_RANGE.stop - 1}")
    return ports


def _opened(path: Path) -> TextIOWrapper:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a+", encoding="ascii", errors="replace")


def _reserved(file: TextIOWrapper, now: float) -> dict[int, float]:
    """Return the ports that are reserved at ``now``, and until when (seconds since 1970)."""
    file.seek(0)
    reserved: dict[int, float] = {}
    for line in file:
        with suppress(ValueError):  # a line cut short
            port, until = line.split()
            if now < float(until) < now + 2 * RESERVED_S:  # a clock set back must not reserve ports for a year
                reserved[int(port)] = float(until)
    return reserved


def _write(file: TextIOWrapper, reserved: dict[int, float]) -> None:
    file.truncate(0)  # opened for appending: what follows goes to the end, which is now the beginning
    file.writelines(f"{port} {until}\n" for port, until in reserved.items())
    file.flush()
