"""The record of one backup: for each shard a checkpoint of one replica, and pieces of the log from there on.

A manifest is JSON, and the last file of a backup to be written: without it there is no backup. All other files are
named by their content (``Content``), so backups share what is the same in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replicated_db.core.bootstrap.listing import (
    MAX_LISTED_BYTES,
    MAX_NUMBER,
    MAX_TEXT_CHARACTERS,
    BadListing,
    Content,
    Listing,
    listing_from,
)

VERSION = 1
"""Version of the record. Software refuses a later one."""

MAX_SHARD_PARTS = 1024
"""Most shards of a backup."""

MAX_LOG_PIECES = 100_000
"""Most pieces of one shard's log in a backup."""

MAX_MEMBERS = 1024

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_SUM = re.compile(r"[0-9a-f]{16}")


class BadManifest(ValueError):
    """A manifest cannot be used; the message names the field."""


class FutureManifest(BadManifest):
    """A manifest that later software wrote."""


@dataclass(frozen=True, slots=True, order=True)
class LogPiece:
    """Records of a log from offset ``first`` up to, without, ``end``, in one file."""

    first: int
    end: int
    content: Content


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBackup:
    """What a backup holds of one shard.

    ``digest`` is that of the checkpoint, 16 hexadecimal digits; ``timestamp_ms`` the time of its last batch. The pieces
    of the log follow one another; they reach from the checkpoint's position, or from before it, up to ``log_end``,
    which was the log's end at ``log_end_ms``.
    """

    listing: Listing
    digest: str
    timestamp_ms: int
    topic_id: str
    members: tuple[str, ...]
    level: int
    log: tuple[LogPiece, ...]
    log_end: int
    log_end_ms: int
    fetched_bytes: int
    saved_bytes: int

    @property
    def shard(self) -> int:
        """Number of the shard."""
        return self.listing.shard

    @property
    def index(self) -> int:
        """Managed index of the checkpoint."""
        return self.listing.position.index

    def contents(self) -> frozenset[Content]:
        """Return all files that this part needs."""
        return frozenset(one.content for one in self.listing.files) | {piece.content for piece in self.log}

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON's types."""
        return {
            "listing": self.listing.to_json(), "digest": self.digest, "timestamp_ms": self.timestamp_ms,
            "topic_id": self.topic_id, "members": list(self.members), "level": self.level,
            "log": [[piece.first, piece.end, piece.content.digest, piece.content.size] for piece in self.log],
            "log_end": self.log_end, "log_end_ms": self.log_end_ms, "fetched_bytes": self.fetched_bytes,
            "saved_bytes": self.saved_bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """One backup of all shards of a cluster.

    ``service`` is the service's own part, JSON's types; ``service_files`` are files that this part needs.
    """

    name: str
    created_at_ms: int
    cluster: str
    shards: int
    parts: tuple[ShardBackup, ...]
    service: Mapping[str, Any] = field(default_factory=dict)
    service_files: tuple[Content, ...] = ()

    def part(self, shard: int) -> ShardBackup:
        """Return the part of a shard, which must exist."""
        return self.parts[shard]

    def contents(self) -> frozenset[Content]:
        """Return all files that this backup needs."""
        return frozenset(self.service_files).union(*(part.contents() for part in self.parts))

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON's types."""
        return {
            "version": VERSION, "name": self.name, "created_at_ms": self.created_at_ms, "cluster": self.cluster,
            "shards": self.shards, "parts": [part.to_json() for part in self.parts], "service": dict(self.service),
            "service_files": [[one.digest, one.size] for one in self.service_files],
        }  # fmt: skip


def is_backup_name(name: str) -> bool:
    """Whether a backup may have this name.

    >>> is_backup_name("20261123T170000Z"), is_backup_name("../x"), is_backup_name("")
    (True, False, False)
    """
    return NAME.fullmatch(name) is not None


def check_version(given: Any) -> None:
    """Raise FutureManifest for a record of a later version, BadManifest for one of none."""
    version = given.get("version") if isinstance(given, Mapping) else None
    if type(version) is int and version > VERSION:
        raise FutureManifest(f"version {version}: this software knows versions up to {VERSION}, upgrade it")
    if version != VERSION:
        raise BadManifest(f"version: {version!r} is unknown")


def manifest_from(given: Any) -> BackupManifest:
    """Return the manifest that a file holds; raises BadManifest, which names the field."""
    check_version(given)
    shards = _count(given, "shards", 1, MAX_SHARD_PARTS)
    parts = tuple(_part(item, shard, shards) for shard, item in enumerate(_items(given, "parts", MAX_SHARD_PARTS)))
    if len(parts) != shards:
        raise BadManifest(f"parts: {len(parts)} of {shards} shards")
    name = _words(given, "name")
    if not is_backup_name(name):
        raise BadManifest(f"name: {name!r} is no name of a backup")
    service = given.get("service")
    if not isinstance(service, Mapping):
        raise BadManifest("service: a record is wanted")
    cluster = _words(given, "cluster")
    if foreign := next((part for part in parts if part.listing.cluster != cluster), None):
        raise BadManifest(f"parts: shard {foreign.shard} is of cluster {foreign.listing.cluster!r}, not {cluster!r}")
    return BackupManifest(
        name=name, created_at_ms=_count(given, "created_at_ms"), cluster=cluster, shards=shards, parts=parts,
        service=service, service_files=tuple(_file(item) for item in _items(given, "service_files", MAX_SHARD_PARTS)),
    )  # fmt: skip


def _part(given: Any, shard: int, shards: int) -> ShardBackup:
    where = f"parts[{shard}]"
    if not isinstance(given, Mapping):
        raise BadManifest(f"{where}: a record is wanted")
    try:
        listing = listing_from(given.get("listing"))
        if (listing.shard, listing.shards) != (shard, shards):
            raise BadManifest(f"it is of shard {listing.shard} of {listing.shards}")
        if listing.kept:
            raise BadManifest(f"checkpoint {min(listing.kept)} is left out")
        part = ShardBackup(
            listing=listing, digest=_matching(given, "digest", _SUM), timestamp_ms=_count(given, "timestamp_ms"),
            topic_id=_words(given, "topic_id"), members=_names(given, "members"), level=_count(given, "level", 1),
            log=tuple(_piece(item) for item in _items(given, "log", MAX_LOG_PIECES)),
            log_end=_count(given, "log_end"), log_end_ms=_count(given, "log_end_ms"),
            fetched_bytes=_count(given, "fetched_bytes"), saved_bytes=_count(given, "saved_bytes"),
        )  # fmt: skip
        _check_log(part)
    except (BadListing, BadManifest) as error:
        raise BadManifest(f"{where}: {error}") from error
    return part


def _check_log(part: ShardBackup) -> None:
    for before, after in zip(part.log, part.log[1:], strict=False):
        if after.first != before.end:
            raise BadManifest(f"log: offset {after.first} follows {before.end}")
    if part.log and part.log[-1].end != part.log_end:
        raise BadManifest(f"log: it ends at {part.log[-1].end}, not at {part.log_end}")


def _piece(item: Any) -> LogPiece:
    if not isinstance(item, Sequence) or len(item) != 4:
        raise BadManifest("log: a piece is first, end, digest, size")
    first, end, digest, size = item
    numbers = all(type(number) is int and 0 <= number <= MAX_NUMBER for number in (first, end, size))
    if not numbers or first >= end or size > MAX_LISTED_BYTES:
        raise BadManifest(f"log: {first!r}, {end!r}, {size!r} are no offsets and size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BadManifest(f"log: {str(digest)[:MAX_TEXT_CHARACTERS]!r} is no digest")
    return LogPiece(first, end, Content(digest, size))


def _file(item: Any) -> Content:
    digest, size = item if isinstance(item, list) and len(item) == 2 else (None, None)
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
        raise BadManifest("service_files: a file is digest, size")
    return Content(digest, size)


def _items(given: Mapping[str, Any], field_name: str, most: int) -> list[Any]:
    found = given.get(field_name)
    if not isinstance(found, list) or len(found) > most:
        raise BadManifest(f"{field_name}: a list of at most {most} entries is wanted")
    return found


def _count(given: Mapping[str, Any], field_name: str, least: int = 0, most: int = MAX_NUMBER) -> int:
    found = given.get(field_name)
    if type(found) is not int or not least <= found <= most:
        raise BadManifest(f"{field_name}: {str(found)[:MAX_TEXT_CHARACTERS]!r} is no number in {least}..{most}")
    return found


def _words(given: Mapping[str, Any], field_name: str) -> str:
    found = given.get(field_name)
    if not isinstance(found, str) or not 0 < len(found) <= MAX_TEXT_CHARACTERS:
        raise BadManifest(f"{field_name}: a text of 1..{MAX_TEXT_CHARACTERS} characters is wanted")
    return found


def _matching(given: Mapping[str, Any], field_name: str, pattern: re.Pattern[str]) -> str:
    found = _words(given, field_name)
    if not pattern.fullmatch(found):
        raise BadManifest(f"{field_name}: {found!r} is no digest")
    return found


def _names(given: Mapping[str, Any], field_name: str) -> tuple[str, ...]:
    found: Iterable[Any] = _items(given, field_name, MAX_MEMBERS)
    if not all(isinstance(name, str) and 0 < len(name) <= MAX_TEXT_CHARACTERS for name in found):
        raise BadManifest(f"{field_name}: names are wanted")
    return tuple(found)
