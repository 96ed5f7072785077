"""The ports of a starting stack: those of its settings, and free ones for defaults that somebody else listens on.

Rules:

1. An address that a person has written down (``bootstrap_servers``, ``nodes``, ``datanodes`` in a file or a variable)
   is used or refused, never replaced: his programs use it, and would talk to whoever listens there.
2. A default that is taken is replaced by a free port (:class:`Moved`). Commands say so when the stack starts, and
   whenever they show the stack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from stratolog.configuration.settings import Settings, default_datanodes
from stratolog.configuration.settings_values import MAX_PORT, DatanodeAddress
from stratolog.errors import Unavailable
from stratolog.local.processes import free_ports, is_port_free

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
