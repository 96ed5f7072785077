"""How single setting values are read: each function takes what the file or the environment gave, and checks it.

A reader returns the value or raises ValueError with a sentence that holds the value and what is allowed; who calls it
adds the setting's name and where it was found. Text is accepted for numbers and booleans, since variables are text; a
wrong TOML type is refused, never converted. What a reader has returned it takes again, and returns unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from schemas.kafka.connection import FILES, BadKafkaSetting, read_option
from schemas.sharding import MAX_PIPELINES

Word = TypeVar("Word", bound=str)

MAX_NODES = 31
MAX_DATANODES = 99
NONE = "none"
"""What a variable says for an empty table; an empty variable is refused."""
DEFAULT_RACK = "/default-rack"
MAX_PORT = 65_535
MAX_USER = 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,253}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_RACK = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._-]{0,62}){1,8}")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_WEB_ADDRESS = re.compile(rf"(?i:https?)://({_HOST.pattern})(:(?P<port>[0-9]{{1,5}}))?(/[!-~]*)?")
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Name of an Object Manager node and where its HTTP server is."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatanodeAddress:
    """Name of a datanode, where its stream server is, and the port of its HTTP server."""

    name: str
    host: str
    port: int
    http_port: int

    @property
    def address(self) -> str:
        """``host:port`` of the stream server."""
        return f"{self.host}:{self.port}"

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP server."""
        return f"{self.host}:{self.http_port}"


def text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {value!r}")
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def name(value: Any) -> str:
    """Read a name: letters, digits, dot, underscore, hyphen; at most 63."""
    found = text(value)
    if not _NAME.fullmatch(found):
        raise ValueError(f"must be letters, digits, '.', '_' and '-', at most 63, not {found!r}")
    return found


def pipelines(value: Any) -> tuple[str, ...]:
    """Read names of pipelines: an array, or a text with commas; none twice, and at most MAX_PIPELINES."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise ValueError(f"must be a list of names, not {value!r}")
    if len(items) > MAX_PIPELINES:
        raise ValueError(f"must be at most {MAX_PIPELINES} names, not {len(items)}")
    found = tuple(name(item) for item in items)
    return _unique(found)


def expanded(path: Path) -> Path:
    """Return a path with ``~`` replaced; the path stays as it is if no home directory is known."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def path(value: Any) -> Path:
    """Read a path; ``~`` is the home directory, if one is known."""
    return expanded(Path(str(value) if isinstance(value, Path) else text(value)))


def user(value: Any) -> str:
    """Read a caller: a system's user name, with its domain if it has one; at most 255 characters."""
    found = text(value)
    if not found.isprintable() or len(found) > MAX_USER:
        raise ValueError(f"must be at most {MAX_USER} printable characters, not {found!r}")
    return found


def hosts(value: Any) -> tuple[str, ...]:
    """Read names of hosts: an array, or a text with commas, or ``none``; ``*`` stands for any."""
    if value == NONE:
        return ()
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError(f"must be a list of host names, not {value!r}")
    found = tuple(text(item).lower() for item in items)
    for host in found:
        if host != "*" and not _HOST.fullmatch(host):
            raise ValueError(f"must be names of hosts, without ports, not {host!r}")
    return _unique(found)


def boolean(value: Any) -> bool:
    """Read true or false."""
    found = _BOOLEANS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return found


def integer(lowest: int, highest: int, *, or_zero: bool = False) -> Callable[[Any], int]:
    """Return a reader of whole numbers in a range; with ``or_zero`` also of 0, which lies below it."""

    def read(value: Any) -> int:
        found = int(value) if isinstance(value, str) and _INTEGER.fullmatch(value.strip()) else value
        if not isinstance(found, int) or isinstance(found, bool):
            raise ValueError(f"must be a whole number, not {value!r}")
        if not lowest <= found <= highest and not (or_zero and found == 0):
            raise ValueError(f"must be {'0 or ' if or_zero else ''}in {lowest}..{highest}, not {found}")
        return found

    return read


def one_of_integers(*allowed: int) -> Callable[[Any], int]:
    """Return a reader of one of a few whole numbers."""
    read_integer = integer(min(allowed), max(allowed))

    def read(value: Any) -> int:
        found = read_integer(value)
        if found not in allowed:
            raise ValueError(f"must be {' or '.join(map(str, allowed))}, not {found}")
        return found

    return read


def one_of(*allowed: Word) -> Callable[[Any], Word]:
    """Return a reader of one of a few words."""

    def read(value: Any) -> Word:
        found = text(value)
        for word in allowed:
            if word == found:
                return word
        raise ValueError(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {found!r}")

    return read


def host_and_port(value: Any) -> tuple[str, int]:
    """Read ``host:port``."""
    found = text(value)
    host, colon, port = found.rpartition(":")
    if not colon or not _HOST.fullmatch(host) or not _INTEGER.fullmatch(port) or not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f"must be host:port, not {found!r}")
    return host, int(port)


def web_address(value: Any) -> str:
    """Read ``http://host:port`` or ``https://host:port``, with a path or without; a slash at the end is dropped."""
    found = text(value)
    match = _WEB_ADDRESS.fullmatch(found)
    if not match or int(match["port"] or 0) > MAX_PORT or {*"?#"} & {*found}:
        raise ValueError(f"must be http://host:port, not {found!r}")
    return found.rstrip("/")


def addresses(value: Any) -> str:
    """Read ``host:port``, or several with commas between them."""
    return ",".join(f"{host}:{port}" for host, port in map(host_and_port, text(value).split(",")))


def nodes(value: Any) -> tuple[NodeAddress, ...]:
    """Read nodes: a table of name = "host:port", or a text ``name=host:port,...``; names and addresses differ."""
    if isinstance(value, tuple) and all(isinstance(item, NodeAddress) for item in value):
        return value
    pairs = _node_pairs(value)
    if not 1 <= len(pairs) <= MAX_NODES:
        raise ValueError(f"must be 1 to {MAX_NODES} nodes, not {len(pairs)}")
    found = []
    for node, address in pairs:
        host, port = host_and_port(address)
        found.append(NodeAddress(name=name(node), host=host, port=port))
    _unique(tuple(node.name for node in found))
    _unique(tuple(node.address for node in found))
    return tuple(found)


def peers(value: Any) -> tuple[str, ...]:
    """Read nodes to fetch checkpoints from: an array of "name=host:port", or such a text with commas, or ``none``."""
    if value in (NONE, ()):
        return ()
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError(f"must be a list of name=host:port, not {value!r}")
    return tuple(f"{node.name}={node.address}" for node in nodes(",".join(text(item) for item in items)))


def datanodes(value: Any) -> tuple[DatanodeAddress, ...]:
    """Read datanodes: a table of name = "host:port:http_port", a text ``name=host:port:http_port,...``, or ``none``."""
    if isinstance(value, tuple) and all(isinstance(item, DatanodeAddress) for item in value):
        return value
    pairs = _pairs_or_none(value, "host:port:http_port")
    if len(pairs) > MAX_DATANODES:
        raise ValueError(f"must be at most {MAX_DATANODES} datanodes, not {len(pairs)}")
    found = []
    for node, address in pairs:
        first, colon, http_port = text(address).rpartition(":")
        if not colon or first.count(":") < 1:
            raise ValueError(f"must be host:port:http_port, not {address!r}")
        host, port = host_and_port(first)
        found.append(
            DatanodeAddress(name=name(node), host=host, port=port, http_port=host_and_port(f"{host}:{http_port}")[1])
        )
    _unique(tuple(node.name for node in found))
    _unique(tuple(address for node in found for address in (node.address, node.http_address)))
    return tuple(found)


def rack(value: Any) -> str:
    """Read a rack: a path as ``/room/rack``."""
    found = text(value)
    if not _RACK.fullmatch(found):
        raise ValueError(f"must be a path such as /rack1 or /room1/rack1, not {found!r}")
    return found


def racks(value: Any) -> tuple[tuple[str, str], ...]:
    """Read racks of datanodes: a table of name = "/rack", or a text ``name=/rack,...``, or ``none``."""
    given = list(value) if isinstance(value, tuple) else _pairs_or_none(value, "/rack")
    found = tuple((name(node), rack(where)) for node, where in given)
    _unique(tuple(node for node, _ in found))
    return found


def kafka(value: Any) -> tuple[tuple[str, str], ...]:
    """Read ``kafka.*`` settings: a table (names with dots may be tables of their own), or a text; sorted by name.

    The text is ``name=value,...``, or ``none``.
    """
    pairs = _flat(value) if isinstance(value, Mapping) else _kafka_pairs(value)
    found = tuple(sorted(_kafka_option(name, one) for name, one in pairs))
    _unique(tuple(name for name, _ in found))
    return found


def _kafka_pairs(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, tuple):
        return list(value)
    if not isinstance(value, str):
        raise ValueError("must be a table such as security.protocol = 'SASL_SSL'")
    if not value.strip():
        raise ValueError("must not be empty")
    return _pairs_or_none(value, "value")


def _kafka_option(option: str, value: Any) -> tuple[str, str]:
    try:
        found, text_ = read_option(option, value)
    except BadKafkaSetting as error:
        raise ValueError(str(error)) from error
    return found, str(expanded(Path(text_))) if found in FILES else text_


def _flat(value: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, one in value.items():
        pairs += _flat(one, f"{before}{key}.") if isinstance(one, Mapping) else [(f"{before}{key}", one)]
    return pairs


def _pairs_or_none(value: Any, form: str) -> list[tuple[str, Any]]:
    if isinstance(value, str) and text(value) == NONE:
        return []
    return _node_pairs(value, form)


def _node_pairs(value: Any, form: str = "host:port") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if not isinstance(value, str):
        raise ValueError(f"must be a table of name = '{form}', not {value!r}")
    pairs = []
    for item in filter(None, value.split(",")):
        node, equals, address = item.partition("=")
        if not equals:
            raise ValueError(f"must be name={form}, not {item!r}")
        pairs.append((node, address))
    return pairs


def _unique(found: tuple[str, ...]) -> tuple[str, ...]:
    for item in found:
        if found.count(item) > 1:
            raise ValueError(f"{item!r} is there twice")
    return found
