"""A directory tree's layout in the store: the place of each of its files, as a pure function.

What belongs here: the rule; nothing here looks at files. For a path relative to the tree's root:

* **key**: the relative path itself, unchanged, with ``/`` between its parts.
* **bucket**: from the first part of the path, or ``root`` for a file directly in the root. Letters become lower case,
  each run of other characters than ``a-z`` and ``0-9`` becomes one hyphen, hyphens at the ends are removed, and 54
  characters are kept. If that changed the part, or left fewer than 3 characters, a hyphen and 8 hex digits of XXH64
  of the part follow, so that two parts rarely share a bucket. If 32 bits of two hashes agree they do, which harms
  nothing, because keys are whole paths.
* **volume**: ``PREFIX-N``, where N is XXH64 of the directory that holds the file, mod the number of volumes. Files
  of one directory stay together; the directories spread over the volumes, and the volumes over the shards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from xxhash import xxh64_hexdigest, xxh64_intdigest

ROOT_BUCKET = "root"
"""Bucket of the files directly in the root."""
DEFAULT_VOLUMES = 16
MAX_VOLUMES = 1000
_SLUG_CHARACTERS = 54
_HASH_CHARACTERS = 8
_MIN_BUCKET_CHARACTERS = 3
_OTHER = re.compile(r"[^a-z0-9]+")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]{0,56}[a-z0-9])?")


class BucketAddress(NamedTuple):
    """A bucket, by its volume's name and its own."""

    volume: str
    bucket: str


class LayoutRule(Protocol):
    """What an ingest needs to know: the volume and bucket of a file."""

    def bucket_for(self, relative_path: str) -> BucketAddress:
        """Return the volume and bucket of a file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBucket:
    """Another rule: every file into one bucket.

    >>> OneBucket(volume="vol1", bucket="bucket1").bucket_for("a/b.txt")
    BucketAddress(volume='vol1', bucket='bucket1')
    """

    volume: str
    bucket: str

    def bucket_for(self, relative_path: str) -> BucketAddress:
        """Return volume and bucket; raises as :meth:`TreeLayout.bucket_for` does."""
        _check_path(relative_path)
        relative_path.encode()
        return BucketAddress(self.volume, self.bucket)


def _check_path(relative_path: str) -> None:
    if not relative_path or relative_path.startswith("/"):
        raise ValueError(f"{relative_path!r} is not the relative path of a file")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLayout:
    """The rule with its two parameters. Raises ValueError for an illegal prefix or number, naming it.

    >>> TreeLayout(prefix="tree", volumes=8).bucket_for("Lib_2/email/mime.py")
    BucketAddress(volume='tree-6', bucket='lib-2-7b359b09')
    """

    prefix: str = "tree"
    volumes: int = DEFAULT_VOLUMES

    def __post_init__(self) -> None:
        """Check that the rule gives legal names."""
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError(
                f"prefix must be 1 to 58 of a-z, 0-9 and hyphens, with none at the ends, not {self.prefix!r}"
            )
        if not 1 <= self.volumes <= MAX_VOLUMES:
            raise ValueError(f"volumes must be in 1..{MAX_VOLUMES}, not {self.volumes}")

    def bucket_for(self, relative_path: str) -> BucketAddress:
        """Return the volume and bucket of a file; the key is the path itself.

        Raises ValueError for a path that is empty or absolute, UnicodeEncodeError for one that is not UTF-8.
        """
        _check_path(relative_path)
        directory, _, _ = relative_path.rpartition("/")
        number = xxh64_intdigest(directory.encode()) % self.volumes
        first = relative_path.split("/", 1)[0] if directory else ""
        return BucketAddress(f"{self.prefix}-{number}", bucket_of(first))

    def volume_names(self) -> list[str]:
        """Return the names of all volumes that the rule can give."""
        return [f"{self.prefix}-{number}" for number in range(self.volumes)]


def bucket_of(part: str) -> str:
    """Return the legal bucket name for a path's first part; an empty part means the root.

    >>> bucket_of("asyncio"), bucket_of("")
    ('asyncio', 'root')
    """
    if not part:
        return ROOT_BUCKET
    slug = _OTHER.sub("-", part.lower()).strip("-")[:_SLUG_CHARACTERS].strip("-")
    if slug == part and len(slug) >= _MIN_BUCKET_CHARACTERS and slug != ROOT_BUCKET:
        return slug
    digest = xxh64_hexdigest(part.encode())[:_HASH_CHARACTERS]
    return f"{slug}-{digest}" if slug else digest
