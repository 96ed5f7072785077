"""How far the log reaches that backups keep: pieces of several backups of one log, joined.

A backup keeps the log from its checkpoint, or from the end of the one before it, up to the log's end when it was made.
So together they keep it from the first one's checkpoint on, unless the log was trimmed in between. Pieces of two
backups may overlap: a replica that was behind gives a checkpoint from before the last end. A record that brokers lost
between two backups does not go unnoticed: the reading rule finds another chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from replicated_db.core.backup.manifest import BackupManifest, LogPiece, ShardBackup


class NotKept(ValueError):
    """The backups do not hold what was asked for; the message says what they hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMoment:
    """A point to which a shard is restored: a managed ``index``, a time (``time_ms``), or the end of what is kept."""

    index: int | None = None
    time_ms: int | None = None

    def __str__(self) -> str:
        """Say it for people."""
        if self.index is not None:
            return f"index {self.index}"
        return "the end" if self.time_ms is None else f"time {self.time_ms} ms"

    def is_after(self, index: int, timestamp_ms: int) -> bool:
        """Whether a state of this index and batch time is from after the moment."""
        if self.index is not None:
            return index > self.index
        return self.time_ms is not None and timestamp_ms > self.time_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRange:
    """The pieces to be read from offset ``first`` on, in order; they reach up to ``end``, the log's at ``end_ms``."""

    first: int
    end: int
    end_ms: int
    pieces: tuple[LogPiece, ...]


def from_where(previous: Iterable[ShardBackup], topic_id: str, position: int, first: int) -> int:
    """Return the offset from which a new backup keeps the log.

    ``position`` is that of its checkpoint, ``first`` the log's first offset. The pieces of the last backup of the same
    log are continued if the log still reaches back so far.
    """
    ends = [part.log_end for part in previous if part.topic_id == topic_id]
    wanted = min(max(ends, default=position + 1), position + 1)
    return wanted if wanted >= first else position + 1


def kept_range(parts: Iterable[ShardBackup], begin: ShardBackup) -> KeptRange:
    """Return the longest unbroken range of records behind the checkpoint of ``begin`` that ``parts`` hold."""
    known = [part for part in parts if part.topic_id == begin.topic_id]
    offset = first = begin.listing.position.offset + 1
    chosen: list[LogPiece] = []
    pieces = [piece for part in known for piece in part.log]
    while usable := [piece for piece in pieces if piece.first <= offset < piece.end]:
        best = max(usable, key=lambda piece: piece.end)
        chosen.append(best)
        offset = best.end
    ends = [part.log_end_ms for part in known if part.log_end <= offset]
    return KeptRange(first=first, end=offset, end_ms=max(ends, default=begin.log_end_ms), pieces=tuple(chosen))


def backup_for(manifests: Sequence[BackupManifest], moments: Sequence[RestoreMoment]) -> BackupManifest:
    """Return the latest backup of which no shard is from after its moment; ``moments`` are those of all shards.

    ``manifests`` are of one cluster, oldest first. Raises NotKept if all are later.
    """
    for manifest in reversed(manifests):
        pairs = zip(manifest.parts, moments, strict=True)
        if not any(moment.is_after(part.index, part.timestamp_ms) for part, moment in pairs):
            return manifest
    late = next(
        (part, moment)
        for part, moment in zip(manifests[0].parts, moments, strict=True)
        if moment.is_after(part.index, part.timestamp_ms)
    )
    raise NotKept(
        f"{late[1]} lies before the first backup: shard {late[0].shard} of {manifests[0].name} is at index "
        f"{late[0].index}, time {late[0].timestamp_ms} ms"
    )


def check_reached(shard: int, moment: RestoreMoment, kept: KeptRange, index: int, *, passed: bool) -> None:
    """Raise NotKept if a moment lies behind what is kept: the log was read to its kept end, and did not pass it.

    ``index`` is the last one read. The state of an index is known once it is reached; that of a time once a later
    record is known, or the log's end was seen at that time or later.
    """
    if passed or moment == RestoreMoment():
        return
    if moment.index is not None and index < moment.index:
        raise NotKept(f"shard {shard}: {moment} lies behind what the backups keep, which ends with index {index}")
    if moment.time_ms is not None and moment.time_ms > kept.end_ms:
        raise NotKept(
            f"shard {shard}: {moment} lies behind what the backups keep, which ends at {kept.end_ms} ms, index {index}"
        )
