"""Words and numbers as the page shows them. Pure."""

from __future__ import annotations

from enum import Enum

from schemas.topics import OM_LOG

KIB = 1024
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Tone(Enum):
    """How something is meant: it gives the colour, and a word for who sees none."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    STALE = "stale"
    PLAIN = "plain"


ORDER = (Tone.BAD, Tone.WARN, Tone.STALE, Tone.PLAIN, Tone.GOOD)
"""From what has to be seen first."""


def worst(tones: list[Tone]) -> Tone:
    """Return the tone that has to be seen first; PLAIN if there is none."""
    return min(tones, key=ORDER.index, default=Tone.PLAIN)


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_of(1, "replica"), count_of(1200, "replica")
    ('1 replica', '1,200 replicas')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def bytes_of(size: float) -> str:
    """Return a number of bytes for people.

    >>> bytes_of(0), bytes_of(1023), bytes_of(1536), bytes_of(5 * 1024**3)
    ('0 B', '1,023 B', '1.5 KiB', '5.0 GiB')
    """
    power = 0
    while size >= KIB and power < len(UNITS) - 1:
        size, power = size / KIB, power + 1
    return f"{size:,.0f} B" if power == 0 else f"{size:,.1f} {UNITS[power]}"


def rate_of(per_second: float) -> str:
    """Return a rate for people, without its unit.

    >>> rate_of(0), rate_of(0.25), rate_of(12.34), rate_of(2345.6)
    ('0', '0.2', '12.3', '2,346')
    """
    if per_second == 0:
        return "0"
    return f"{per_second:,.1f}" if per_second < 100 else f"{per_second:,.0f}"


def partition_words(log: str, shard: int) -> str:
    """Return the name of a partition of a log.

    >>> partition_words("om.log", 1), partition_words("dn.log", 0)
    ('shard 1', 'pipeline 0')
    """
    return f"shard {shard}" if log == OM_LOG else f"pipeline {shard}"


def listed(names: list[str], most: int = 3) -> str:
    """Return names as a list, at most ``most`` of them.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a', 'a and b', 'a, b, c and 2 more')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""
