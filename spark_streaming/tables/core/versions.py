"""Which version of each table is read: as of one index of each shard, the same for all tables. Pure.

A version is named by the last index of each shard that it holds. Tables are committed one after the other, so the
newest versions of two tables may differ by a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schemas.codecs.decimals import decimal_of

Indexes = Mapping[int, int]
"""An index by shard."""

ALL_SHARDS = -1
"""Stands for every shard that is not named."""


class TableVersion(NamedTuple):
    """A version of a table, and the indexes that it holds."""

    version: int
    indexes: Indexes


def parse_indexes(text: str) -> dict[int, int]:
    """Return indexes by shard; an index alone is of ALL_SHARDS. Raises ValueError naming what is wrong.

    >>> parse_indexes("17"), parse_indexes("0:17,1:4")
    ({-1: 17}, {0: 17, 1: 4})
    """
    found: dict[int, int] = {}
    for part in text.split(","):
        shard, colon, index = part.strip().rpartition(":")
        number, of_shard = decimal_of(index), decimal_of(shard) if colon else ALL_SHARDS
        if number is None or of_shard is None:
            raise ValueError(f"{part.strip()!r} is no index and no SHARD:INDEX")
        found[of_shard] = number
    if ALL_SHARDS in found and len(found) > 1:
        raise ValueError(f"{text!r} names an index of all shards beside others")
    return found


def is_within(indexes: Indexes, wanted: Indexes) -> bool:
    """Say whether a version holds nothing after the wanted indexes; shards that are not named are not looked at."""
    return all(index <= wanted.get(shard, wanted.get(ALL_SHARDS, index)) for shard, index in indexes.items())


def version_at(versions: Sequence[TableVersion], wanted: Indexes) -> TableVersion | None:
    """Return the newest version that holds nothing after the wanted indexes; None if all hold more."""
    fitting = [one for one in versions if is_within(one.indexes, wanted)]
    return max(fitting, key=lambda one: one.version, default=None)
