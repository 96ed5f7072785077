"""Where bytes are: datanodes with their room, health and damage; buckets by size, with their quotas. Pure.

The datanodes' rows are those of ``/v1/datanodes`` (heartbeats, as a node of the Object Manager has heard them), joined
with what the datanodes say of themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratolog.ui.core.observed import Json, Observed
from stratolog.ui.core.words import Tone

HEALTHY = "HEALTHY"
DEAD = "DEAD"
SHOWN_BUCKETS = 12
NEAR_QUOTA = 0.9
"""A bucket is yellow from this share of its quota on."""


class DatanodeLine(NamedTuple):
    """A datanode; sizes in bytes. What only the datanode itself knows is None if it does not answer."""

    name: str
    state: str
    health: str
    silent_ms: int | None
    capacity_bytes: int
    free_bytes: int
    used_bytes: int | None
    blocks: int | None
    streams: int
    unhealthy_blocks: int | None
    installing: Sequence[str]
    faults: Sequence[str]
    tone: Tone


def fleet_lines(seen: Observed) -> list[DatanodeLine]:
    """Return the datanodes by name."""
    ordered = sorted(seen.datanodes, key=lambda one: str(one["datanode"]))
    return [_line(one, seen.datanode_statuses.get(str(one["datanode"]))) for one in ordered]


def _line(heard: Json, status: Json | None) -> DatanodeLine:
    store = None if status is None else status["store"]
    damaged = None if status is None else _damaged(status)
    return DatanodeLine(
        name=str(heard["datanode"]), state=str(heard["state"]), health=str(heard["health"]),
        silent_ms=heard["silent_ms"], capacity_bytes=int(heard["capacity_bytes"]), free_bytes=int(heard["free_bytes"]),
        used_bytes=None if store is None else int(store["used_bytes"]),
        blocks=None if store is None else int(store["blocks"]),
        streams=int(heard["active_streams"]) if status is None else int(status["streams"]["active"]),
        unhealthy_blocks=damaged,
        installing=[] if status is None else [str(one.get("progress", "")) for one in status.get("installing", ())],
        faults=[str(fault) for fault in heard["faults"]], tone=_tone(heard, status, damaged or 0),
    )  # fmt: skip


def _damaged(status: Json) -> int:
    """Return how many committed blocks are missing or wrong on a datanode."""
    of_pipelines = sum(int(one["unhealthy_blocks"]) for one in status.get("pipelines", ()))
    return of_pipelines + int(status["copies"]["unhealthy_blocks"])


def _tone(heard: Json, status: Json | None, damaged: int) -> Tone:
    if heard["health"] == DEAD or damaged or heard["faults"]:
        return Tone.BAD
    return Tone.GOOD if heard["health"] == HEALTHY and status is not None else Tone.WARN


class BucketUsage(NamedTuple):
    """A bucket: what its committed keys take, and its quotas (-1: none). ``share`` is of the nearer quota, 0 to 1."""

    name: str
    keys: int
    used_bytes: int
    quota_bytes: int
    quota_keys: int
    share: float | None
    tone: Tone


class UsageSummary(NamedTuple):
    """The largest buckets, and sums over all that were read; ``is_cut`` if there are more."""

    buckets: Sequence[BucketUsage]
    bucket_count: int
    keys: int
    used_bytes: int
    is_cut: bool


def usage_of(seen: Observed) -> UsageSummary:
    """Return the largest buckets first."""
    found = sorted((_usage(one) for one in seen.buckets), key=lambda one: (-one.used_bytes, -one.keys, one.name))
    keys, size = sum(one.keys for one in found), sum(one.used_bytes for one in found)
    return UsageSummary(found[:SHOWN_BUCKETS], len(found), keys, size, seen.buckets_cut)


def _usage(row: Json) -> BucketUsage:
    used, keys = int(row["usage"]["used_bytes"]), int(row["usage"]["used_namespace"])
    of_bytes, of_keys = int(row["quota_in_bytes"]), int(row["quota_in_namespace"])
    shares = [amount / quota for amount, quota in ((used, of_bytes), (keys, of_keys)) if quota > 0]
    share = min(1.0, max(shares)) if shares else None
    tone = Tone.WARN if share is not None and share >= NEAR_QUOTA else Tone.PLAIN
    return BucketUsage(f"{row['volume']}/{row['bucket']}", keys, used, of_bytes, of_keys, share, tone)
