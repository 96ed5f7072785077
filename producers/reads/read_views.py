"""The results of reads: rows with their usage and positions, and the pages of listings.

What belongs here: the values, and the walk from page to page. ``producers.reads.reads`` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from schemas.records.record import made_in_c, record
from schemas.records.rows import BucketInfo, KeyInfo, SnapshotInfo, VolumeInfo

PAGE_ENTRIES = 1000
"""Entries that a listing asks for at once: as many as a node gives at most."""


@record
class ListedVolume(VolumeInfo):
    """A volume in a listing: its row, and ``usage``, its counters ``used_namespace`` and ``allotted_bytes``."""

    usage: Mapping[str, int]


@record
class ListedBucket(BucketInfo):
    """A bucket in a listing: its row, and ``usage``, its counters ``used_bytes`` and ``used_namespace``."""

    usage: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AclView:
    """An access control list: its entries, as ``schemas.access.acl`` writes them, and the owner; a prefix has none."""

    owner: str
    acls: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDiffEntry:
    """One difference between two states of a bucket.

    ``kind`` is CREATE, DELETE, MODIFY or RENAME. ``key`` is the key's name; of a renamed or modified one, the name that
    it had in the older state. ``to_key`` is the new name of a renamed key, None for other kinds.
    """

    kind: str
    key: str
    to_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageView:
    """The counters of a bucket beside what its keys amount to; those of a volume, and its buckets.

    ``kept`` is what the counters say, ``counted`` what was counted, at one index. ``bytes`` of a volume is the sum of
    its buckets' quotas, ``names`` are keys or buckets. ``update_id``: the index that has written the row.
    """

    update_id: int
    kept_bytes: int
    counted_bytes: int
    kept_names: int
    counted_names: int

    @property
    def is_right(self) -> bool:
        """Whether the counters say what was counted."""
        return (self.kept_bytes, self.kept_names) == (self.counted_bytes, self.counted_names)


BlockName = tuple[int, int]
"""Container and local id of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """The tokens of a key's blocks, as a node gave them; ``lasts_ms`` is how long they last from then on."""

    tokens: Mapping[BlockName, bytes] = field(repr=False)
    lasts_ms: int


Row = TypeVar("Row", bound=VolumeInfo | BucketInfo | KeyInfo | SnapshotInfo | SnapshotDiffEntry)


@made_in_c
@dataclass(frozen=True, slots=True, kw_only=True)
class View(Generic[Row]):
    """A row as a node read it.

    ``info`` is the row, ``usage`` its counters by name, ``positions`` the index at which it was read, by shard.
    """

    info: Row
    usage: Mapping[str, int]
    positions: Mapping[int, int]


VolumeView = View[VolumeInfo]
BucketView = View[BucketInfo]
KeyView = View[KeyInfo]
SnapshotView = View[SnapshotInfo]
"""A snapshot; its usage is that of the node that answered.

``disk_files`` and ``disk_bytes`` are the number and bytes of its database files, ``only_disk_bytes`` the bytes of those
that nothing else on that disk shares.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Row]):
    """A part of a listing.

    ``next_after`` is the ``start_after`` of the next page, None if this is the last; ``positions`` the index at which
    it was read, by shard.
    """

    entries: list[Row]
    next_after: str | None
    positions: Mapping[int, int]


class Pages(Generic[Row]):
    """The pages of a listing, ``limit`` entries in all (None: every one); each page is read when it is asked for."""

    def __init__(self, read: Callable[[str, int], Page[Row]], start_after: str, limit: int | None) -> None:
        self._read = read
        self._after: str | None = start_after
        self._left = limit

    def next_page(self) -> list[Row] | None:
        """Read the next page and return its entries, None if there is none; raises as :class:`Reads` does."""
        if self._after is None or self._left == 0:
            return None
        wanted = PAGE_ENTRIES if self._left is None else min(self._left, PAGE_ENTRIES)
        page = self._read(self._after, wanted)
        self._after = page.next_after
        if self._left is not None:
            self._left -= len(page.entries)
        return page.entries

    def entries(self) -> Iterator[Row]:
        """Iterate over the entries of all pages."""
        while (entries := self.next_page()) is not None:
            yield from entries
