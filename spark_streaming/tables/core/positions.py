"""Positions as plain values, as each commit of a table carries them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from spark_streaming.records.core.reading import AuditPosition, GenesisFacts
from spark_streaming.tables.core.shard_fold import FoldedPosition

Positions = Mapping[int, FoldedPosition]
"""By shard."""


def plain_position(position: FoldedPosition) -> dict[str, Any]:
    """Return a position in numbers, texts and lists, bytes as hexadecimal."""
    reading = {name: _plain(value) for name, value in asdict(position.reading).items()}
    return {"reading": reading, "gaps": list(position.gaps)}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return list(value) if isinstance(value, tuple) else value


def position_from(values: Mapping[str, Any]) -> FoldedPosition:
    """Return the position in plain values; what newer software may have added is left out.

    Raises KeyError, TypeError or ValueError for values that are no position.
    """
    known = {one.name for one in fields(AuditPosition)}
    found = {name: value for name, value in values["reading"].items() if name in known}
    found |= {"nonce": bytes.fromhex(found["nonce"]), "chain": bytes.fromhex(found["chain"])}
    found["members"] = tuple(found["members"])
    if found["genesis"] is not None:
        facts = found["genesis"]
        lists = {name: tuple(facts[name]) for name in ("replicas", "column_families")}
        found["genesis"] = GenesisFacts(**{**facts, **lists})
    return FoldedPosition(reading=AuditPosition(**found), gaps=tuple(values["gaps"]))


def latest(positions: Iterable[Positions]) -> dict[int, FoldedPosition]:
    """Return for each shard the position that has read most of it."""
    found: dict[int, FoldedPosition] = {}
    for one in positions:
        for shard, position in one.items():
            known = found.setdefault(shard, position)
            if position.reading.next_offset > known.reading.next_offset:
                found[shard] = position
    return found
