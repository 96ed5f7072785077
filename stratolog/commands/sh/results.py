"""What commands of ``stratolog sh`` share: optional quotas, messages on what was done, listings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from stratolog.commands.common.addresses import Address
from stratolog.commands.common.output import console, notes, print_json
from stratolog.commands.sh.rows import print_rows
from stratolog.errors import UsageError

if TYPE_CHECKING:
    from producers.client import Client
    from producers.reads.read_views import UsageView

NO_QUOTA = -1
"""The value of a quota that stands for no quota (``schemas.records.messages.UNLIMITED``)."""

QUOTAS = ("quota_in_bytes", "quota_in_namespace")


def quota_or_unlimited(given: int | None) -> int:
    """Return the quota to be written; without one, the value for no quota."""
    return NO_QUOTA if given is None else given


def check_quota_given(*quotas: object) -> None:
    """Raise UsageError if a command about quotas was given none."""
    if all(quota is None for quota in quotas):
        raise UsageError("which quota? give --space-quota or --namespace-quota, or both")


def print_done(what: str, address: Address, client: Client, as_json: bool, **more: object) -> None:
    """Say what was done, and where in the log; with ``--json`` also ``more``."""
    if as_json:
        positions = {str(shard): index for shard, index in client.positions.items()}
        print_json({"done": what, "address": str(address), **more, "positions": positions})
    else:
        console.print(f"{what} {address}", markup=False, highlight=False, soft_wrap=True)


def print_repair(place: Address, found: UsageView, *, is_done: bool, as_json: bool) -> None:
    """Print what the counters of a bucket or volume said, and what was counted."""
    if as_json:
        print_json({"address": str(place), **asdict(found), "right": found.is_right, "repaired": is_done})
        return
    what = ("bytes", "keys") if place.bucket else ("bytes of its buckets' quotas", "buckets")
    said = "right" if found.is_right else "repaired" if is_done else "wrong"
    changes = [
        f"{kept} {name}" if kept == counted else f"{kept} -> {counted} {name}"
        for name, kept, counted in (
            (what[0], found.kept_bytes, found.counted_bytes),
            (what[1], found.kept_names, found.counted_names),
        )
    ]
    console.print(f"{said} {place}: {', '.join(changes)}", markup=False, highlight=False, soft_wrap=True)


def print_list(title: str, columns: tuple[str, ...], found: Iterable[Any], length: int | None, as_json: bool) -> None:
    """Print the first ``length`` rows (None: all) as they come, and say if there are more."""
    rows = iter(found)
    shown = islice(rows, length)
    if as_json:
        for row in shown:
            print_json(asdict(row))
    else:
        print_rows(title, columns, shown)
    if length is not None and next(rows, None) is not None:
        notes.print("there are more: give --length, --all or --start", highlight=False)
