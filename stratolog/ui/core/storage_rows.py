"""Where bytes are: datanodes with their room, health and damage; buckets by size, with their quotas; sizes. Pure.

The datanodes' rows are those of ``/v1/datanodes`` (heartbeats, as a node of the Object Manager has heard them), joined
with what the datanodes say of themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE
from stratolog.ui.core.observed import Json, Observed, RowCount
from stratolog.ui.core.words import Tone

HEALTHY = "HEALTHY"
DEAD = "DEAD"
SHOWN_BUCKETS = 12
NEAR_QUOTA = 0.9
"""A bucket is yellow from this share of its quota on."""
SMALLEST_CLASS = 10
"""Sizes up to 2 to this power (1 KiB) are one class of the histogram; each further one ends at twice as much."""


class StreamFigures(NamedTuple):
    """Streams of blocks: those that are open, and how many have ended so far. None: only heartbeats tell of them."""

    active: int
    completed: int | None
    failed: int | None


class ScanFigures(NamedTuple):
    """What a datanode's scrubber has done since its start: whole rounds, bytes read, cells found bad."""

    rounds: int
    read_bytes: int
    bad_cells: int


class DatanodeLine(NamedTuple):
    """A datanode; sizes in bytes. What only the datanode itself knows is None if it does not answer.

    ``scans`` is None for an older datanode, too.
    """

    name: str
    state: str
    health: str
    silent_ms: int | None
    capacity_bytes: int
    free_bytes: int
    used_bytes: int | None
    blocks: int | None
    streams: StreamFigures
    scans: ScanFigures | None
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
        streams=_streams(heard, status), scans=_scans(status),
        unhealthy_blocks=damaged,
        installing=[] if status is None else [str(one.get("progress", "")) for one in status.get("installing", ())],
        faults=[str(fault) for fault in heard["faults"]], tone=_tone(heard, status, damaged or 0),
    )  # fmt: skip


def _streams(heard: Json, status: Json | None) -> StreamFigures:
    if status is None:
        return StreamFigures(int(heard["active_streams"]), None, None)
    told = status["streams"]
    failed = int(told.get("failed", 0)) + int(told.get("reclaimed", 0))
    return StreamFigures(int(told["active"]), int(told.get("completed", 0)), failed)


def _scans(status: Json | None) -> ScanFigures | None:
    if status is None or (told := status.get("scrub")) is None:
        return None
    return ScanFigures(int(told["rounds"]), int(told["bytes"]), int(told["bad_cells"]))


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

    volume: str
    bucket: str
    keys: int
    used_bytes: int
    quota_bytes: int
    quota_keys: int
    share: float | None
    tone: Tone

    @property
    def name(self) -> str:
        """``volume/bucket``."""
        return f"{self.volume}/{self.bucket}"


class UsageSummary(NamedTuple):
    """The largest buckets, and sums over all that were read; ``is_cut`` if there are more.

    ``open_keys`` are sessions that write; ``deletions`` are deleted keys whose blocks wait, or that snapshots keep.
    Both are None if no node counts them.
    """

    buckets: Sequence[BucketUsage]
    bucket_count: int
    keys: int
    used_bytes: int
    is_cut: bool
    open_keys: RowCount | None
    deletions: RowCount | None


def usage_of(seen: Observed) -> UsageSummary:
    """Return the largest buckets first."""
    found = sorted((_usage(one) for one in seen.buckets), key=lambda one: (-one.used_bytes, -one.keys, one.name))
    keys, size = sum(one.keys for one in found), sum(one.used_bytes for one in found)
    return UsageSummary(
        found[:SHOWN_BUCKETS], len(found), keys, size, seen.buckets_cut, seen.waiting.get(OPEN_KEY_TABLE),
        seen.waiting.get(DELETED_TABLE),
    )  # fmt: skip


def _usage(row: Json) -> BucketUsage:
    used, keys = int(row["usage"]["used_bytes"]), int(row["usage"]["used_namespace"])
    of_bytes, of_keys = int(row["quota_in_bytes"]), int(row["quota_in_namespace"])
    shares = [amount / quota for amount, quota in ((used, of_bytes), (keys, of_keys)) if quota > 0]
    share = min(1.0, max(shares)) if shares else None
    tone = Tone.WARN if share is not None and share >= NEAR_QUOTA else Tone.PLAIN
    return BucketUsage(str(row["volume"]), str(row["bucket"]), keys, used, of_bytes, of_keys, share, tone)


class SizeClass(NamedTuple):
    """Keys of more than half ``up_to`` bytes and of at most that; the smallest class has all below, too."""

    up_to: int
    keys: int


class SizeHistogram(NamedTuple):
    """Sizes of a bucket's keys in classes without gaps; ``is_cut`` if only its first keys by name were read."""

    classes: Sequence[SizeClass]
    keys: int
    empty: int
    total_bytes: int
    median: int
    largest: int
    is_cut: bool


def histogram_of(sizes: Iterable[int], *, is_cut: bool) -> SizeHistogram:
    """Return the histogram of sizes in bytes.

    >>> [(one.up_to, one.keys) for one in histogram_of([0, 5, 1024, 1025, 9000], is_cut=False).classes]
    [(1024, 2), (2048, 1), (4096, 0), (8192, 0), (16384, 1)]
    """
    ordered = sorted(sizes)
    powers = Counter(max(SMALLEST_CLASS, (size - 1).bit_length()) for size in ordered if size > 0)
    span = range(min(powers), max(powers) + 1) if powers else range(0)
    return SizeHistogram(
        classes=[SizeClass(2**power, powers[power]) for power in span], keys=len(ordered),
        empty=sum(size <= 0 for size in ordered), total_bytes=sum(ordered),
        median=ordered[len(ordered) // 2] if ordered else 0, largest=ordered[-1] if ordered else 0, is_cut=is_cut,
    )  # fmt: skip
