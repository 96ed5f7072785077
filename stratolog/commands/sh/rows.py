"""Rows of the object store for people: quotas with units, times as dates, listings in tables of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from stratolog.commands.common.addresses import shown_size
from stratolog.commands.common.output import console, print_json, print_table

if TYPE_CHECKING:
    from producers.reads.read_views import View

TABLE_ROWS = 1000
"""A longer listing is printed as several tables, because all rows of one table are held in memory."""
BYTES = frozenset(
    {
        "size", "quota_in_bytes", "used_bytes", "allotted_bytes", "referenced_bytes", "disk_bytes", "only_disk_bytes",
    }
)  # fmt: skip
LESS = ("owner", "creator", "namespace quota", "space quota", "creation time", "modification time")
"""Columns that are left out where there is no room, the first one first."""
HEADINGS = {"quota_in_bytes": "space quota", "quota_in_namespace": "namespace quota"}


def print_rows(title: str, columns: tuple[str, ...], rows: Iterable[Any]) -> None:
    """Print rows, dataclasses with the fields ``columns``, as they come."""
    headings = tuple(_heading(column) for column in columns)
    source = iter(rows)
    part = list(islice(source, TABLE_ROWS))
    if not part:
        console.print(f"{title}: none", markup=False, highlight=False)
    while part:
        print_table(
            title, headings, [tuple(_short(column, getattr(row, column)) for column in columns) for row in part], LESS
        )
        part = list(islice(source, TABLE_ROWS))


def print_fields(title: str, view: View[Any], as_json: bool) -> None:
    """Print one row with its counters, and the shard and index at which it was read."""
    fields = asdict(view.info)
    if as_json:
        positions = {str(shard): index for shard, index in view.positions.items()}
        print_json({**fields, "usage": dict(view.usage), "positions": positions})
        return
    blocks = fields.pop("blocks", None)
    lines = [(_heading(name), shown(name, value)) for name, value in (fields | dict(view.usage)).items()]
    for number, block in enumerate(blocks or [], start=1):
        lines.append((f"block {number}", ", ".join(f"{name} {value}" for name, value in block.items())))
    lines += [(f"read in shard {shard} at index", str(index)) for shard, index in view.positions.items()]
    print_table(title, ("field", "value"), lines)


def shown(name: str, value: Any) -> str:
    """Return a field's value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.startswith("quota_") and value < 0:
        return "none"
    if name in BYTES:
        return shown_size(value) if value < 1024 else f"{shown_size(value)} ({value})"
    if name.endswith("_time_ms"):
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _short(name: str, value: Any) -> str:
    """Return a field's value for a listing, sizes rounded."""
    return shown_size(value) if name in BYTES and value >= 0 else shown(name, value)


def _heading(name: str) -> str:
    return HEADINGS.get(name, name.removesuffix("_ms").replace("_", " "))
