"""The listing that a cluster should give after an ingest, the one that it gives, and their differences.

What belongs here: the comparison at the end of the demo and of tests: all names, sizes, modification times and
checksums, from one node. Both listings are held in memory: a few hundred bytes for each file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from producers.bulk.tree import FileContent, FoundFile, Skipped, read_file, walk
from producers.bulk.tree_layout import TreeLayout
from producers.reads.reads import DEFAULT_CONSISTENCY, Consistency, Reads
from schemas.records.rows import KeyInfo

MTIME_NS = "mtime_ns"
"""Key of CreateKey.metadata: the file's modification time in ns since the epoch, decimal."""
SHA256 = "sha256"
"""Key of CreateKey.metadata: the SHA-256 of the file's bytes, hex."""


def metadata_of(content: FileContent) -> dict[str, str]:
    """Return the metadata of a file's key."""
    return {MTIME_NS: str(content.mtime_ns), SHA256: content.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKey:
    """A file in a cluster's listing; ``size`` in bytes, metadata as strings, empty if the key has none."""

    volume: str
    bucket: str
    key: str
    size: int
    mtime_ns: str
    sha256: str


Listing = Mapping[tuple[str, str, str], ListedKey]
"""By (volume, bucket, key)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingDifference:
    """A key on which two listings differ; None where it is absent."""

    key: tuple[str, str, str]
    expected: ListedKey | None
    actual: ListedKey | None


def listed_file(content: FileContent, layout: TreeLayout) -> ListedKey:
    """Return a file's entry in a cluster's listing."""
    volume, bucket = layout.bucket_for(content.relative_path)
    return ListedKey(
        volume=volume,
        bucket=bucket,
        key=content.relative_path,
        size=content.size,
        mtime_ns=str(content.mtime_ns),
        sha256=content.sha256,
    )


def expected_listing(
    root: str | os.PathLike[str], layout: TreeLayout | None = None, leave_out: Collection[str] = ()
) -> dict[tuple[str, str, str], ListedKey]:
    """Read a tree again and return the listing that a cluster should give: every file that an ingest takes.

    ``leave_out`` are directories, as for ``walk``.

    >>> len(expected_listing("/usr/lib/python3"))  # doctest: +SKIP
    """
    rule = layout or TreeLayout()
    listing = {}
    for found in walk(root, leave_out):
        content = read_file(root, found.relative_path) if isinstance(found, FoundFile) else found
        if not isinstance(content, Skipped):
            listed = listed_file(content, rule)
            listing[listed.volume, listed.bucket, listed.key] = listed
    return listing


def actual_listing(
    reads: Reads, layout: TreeLayout | None = None, *, consistency: Consistency = DEFAULT_CONSISTENCY
) -> dict[tuple[str, str, str], ListedKey]:
    """Return the nodes' listing of a layout's volumes; raises as :class:`Reads` does.

    Give ``reads`` one address to get the listing of that replica.

    >>> actual_listing(Reads(["http://127.0.0.1:9872"]), consistency="stale")  # doctest: +SKIP
    """
    rule = layout or TreeLayout()
    names = set(rule.volume_names())
    listing = {}
    for volume in reads.list_volumes(prefix=f"{rule.prefix}-", consistency=consistency):
        if volume.volume not in names:
            continue
        for bucket in reads.list_buckets(volume.volume, consistency=consistency):
            for info in reads.list_keys(volume.volume, bucket.bucket, consistency=consistency):
                listing[info.volume, info.bucket, info.key] = _listed_key(info)
    return listing


def _listed_key(info: KeyInfo) -> ListedKey:
    return ListedKey(
        volume=info.volume,
        bucket=info.bucket,
        key=info.key,
        size=info.size,
        mtime_ns=info.metadata.get(MTIME_NS, ""),
        sha256=info.metadata.get(SHA256, ""),
    )


def differences(expected: Listing, actual: Listing) -> list[ListingDifference]:
    """Return the keys on which two listings differ, in order; an empty list means that they are equal."""
    return [
        ListingDifference(key=key, expected=expected.get(key), actual=actual.get(key))
        for key in sorted(expected.keys() | actual.keys())
        if expected.get(key) != actual.get(key)
    ]
