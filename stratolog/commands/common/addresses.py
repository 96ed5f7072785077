"""Readers of what a person types to ``stratolog sh``: addresses, sizes, metadata, positions.

An address is ``/volume``, ``/volume/bucket`` or ``/volume/bucket/key``, as in ``ozone sh``; the first slash may be left
out. Everything after the bucket's slash is the key, unchanged: a key may contain slashes, and begin or end with one.
The server decides whether names are legal.

Sizes are numbers with a unit of 1024 (``10GB``, ``1.5TB``, ``4096``), as Ozone's quotas are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

import typer

UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
MAX_BYTES = 2**63 - 1
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(?:([KMGTPE])I?)?B?", re.IGNORECASE)
_POSITION = re.compile(r"([0-9]{1,4}):([0-9]{1,19})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A volume, or a bucket, or a key; parts that were not given are empty."""

    volume: str = ""
    bucket: str = ""
    key: str = ""

    def __str__(self) -> str:
        """Return the address as it is typed."""
        parts = [self.volume, self.bucket, self.key]
        while parts and not parts[-1]:
            parts.pop()
        return "/" + "/".join(parts)


def volume_address(text: str) -> Address:
    """Read ``/volume``; raises BadParameter for anything else."""
    volume, *rest = text.removeprefix("/").removesuffix("/").split("/")
    if not volume or rest:
        raise typer.BadParameter(f"{text!r} is not the address of a volume: /VOLUME")
    return Address(volume=volume)


def bucket_address(text: str) -> Address:
    """Read ``/volume/bucket``; raises BadParameter for anything else."""
    volume, *rest = text.removeprefix("/").removesuffix("/").split("/")
    if len(rest) != 1 or not volume or not rest[0]:
        raise typer.BadParameter(f"{text!r} is not the address of a bucket: /VOLUME/BUCKET")
    return Address(volume=volume, bucket=rest[0])


def place_address(text: str) -> Address:
    """Read ``/volume`` or ``/volume/bucket``; raises BadParameter for anything else."""
    is_bucket = "/" in text.removeprefix("/").removesuffix("/")
    return bucket_address(text) if is_bucket else volume_address(text)


def key_address(text: str) -> Address:
    """Read ``/volume/bucket/key``; raises BadParameter for anything else."""
    volume, _, rest = text.removeprefix("/").partition("/")
    bucket, _, key = rest.partition("/")
    if not volume or not bucket or not key:
        raise typer.BadParameter(f"{text!r} is not the address of a key: /VOLUME/BUCKET/KEY")
    return Address(volume=volume, bucket=bucket, key=key)


def size_in_bytes(text: str) -> int:
    """Read a size such as ``10GB`` as bytes; raises BadParameter.

    >>> size_in_bytes("1.5KB"), size_in_bytes("10 gb")
    (1536, 10737418240)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a size such as 4096, 10GB or 1.5TB (units of 1024: {', '.join(UNITS)})"
        )
    number, letter = match.groups()
    power = [unit[0] for unit in UNITS].index(letter.upper()) if letter else 0
    found = Decimal(number) * 1024**power
    if found != int(found) or found > MAX_BYTES:
        raise typer.BadParameter(f"{text!r} is not a whole number of bytes up to 2^63 - 1")
    return int(found)


def shown_size(size: int) -> str:
    """Return bytes for people.

    >>> shown_size(1536), shown_size(100)
    ('1.5 KB', '100 B')
    """
    value, unit = float(size), UNITS[0]
    for unit in UNITS:
        if abs(value) < 1024 or unit == UNITS[-1]:
            break
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def metadata_item(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``; raises BadParameter."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def property_item(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``, or ``NAME=`` for no value; raises BadParameter."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE, nor NAME= to remove a property")
    return name, value


def positions(text: str) -> dict[int, int]:
    """Read ``SHARD:INDEX[,...]``, as writing commands print them with ``--json``; raises BadParameter."""
    matches = [_POSITION.fullmatch(item.strip()) for item in text.split(",")]
    found = {int(match[1]): int(match[2]) for match in matches if match is not None}
    if None in matches:
        raise typer.BadParameter(f"{text!r} is not SHARD:INDEX[,...]")
    return found
