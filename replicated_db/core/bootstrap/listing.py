"""The two records of a transfer: what an asking replica has, and what a serving one lists.

Records of other nodes are judged here. Both travel as JSON.

A *path* is ``db/NAME`` (a file of the database) or ``checkpoints/FOLDER/NAME`` (a file of one of
its checkpoints). A name has letters, digits and ``._-`` and begins with a letter or a digit, so no path leads out of a
folder. A *digest* is XXH3-128 over a file's bytes, in hexadecimal. It is the file's address: two files of one digest
and size are one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VERSION = 1
"""Version of both records."""

MAX_LISTED_FILES = 1_000_000
"""Most files that a listing names, and most that an asking replica says to have.

A shard of a thousand snapshots has a thousand checkpoints, which share files but not names.
"""

MAX_LISTED_BYTES = 2**50
"""Most bytes of all files of a listing together."""

MAX_LISTING_BYTES = 256 * 1024 * 1024
"""Most bytes of a record of this conversation."""

MAX_TEXT_CHARACTERS = 256
"""Most characters of a name of a node, cluster or folder."""

MAX_NUMBER = 2**63 - 1

DIGEST_HEADER = "Stratolog-Digest"
"""Header of an answer: XXH3-128 over its body, in hexadecimal. Pieces of files have none: a file's address is one.

A listing has fields that nothing else proves, such as the names of a checkpoint's files. A bit that flips on its way
must not become another name.
"""

DATABASE = "db"
CHECKPOINTS = "checkpoints"
IMMUTABLE_SUFFIXES = (".sst", ".blob")
"""Files that RocksDB never changes once they are written: they alone are linked, and said to be had."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_PATH = re.compile(rf"(?:{DATABASE}|{CHECKPOINTS}/{_NAME})/{_NAME}")
_FOLDER = re.compile(_NAME)
_DIGEST = re.compile(r"[0-9a-f]{32}")


class BadListing(ValueError):
    """A record of a transfer cannot be used; the message names the field."""


@dataclass(frozen=True, slots=True, order=True)
class Content:
    """A file's content: its digest and its size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a checkpoint: its path, and its content."""

    path: str
    content: Content

    @property
    def is_immutable(self) -> bool:
        """Whether RocksDB never changes this file."""
        return self.path.endswith(IMMUTABLE_SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPosition:
    """Where the listed checkpoint stands in the log: term, managed index, offset, and the record's hash."""

    term: int
    index: int
    offset: int
    record_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequest:
    """What an asking replica says: which shard it is, where it stands, and which content it has.

    ``folders`` are the checkpoints that it holds whole: the digest over the files of each, by name.
    """

    asker: str
    cluster: str
    shard: int
    shards: int
    offset: int
    have: frozenset[Content]
    folders: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON's types."""
        return {
            "version": VERSION, "asker": self.asker, "cluster": self.cluster, "shard": self.shard,
            "shards": self.shards, "offset": self.offset,
            "have": [[one.digest, one.size] for one in sorted(self.have)], "folders": dict(self.folders),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a serving replica lists: one checkpoint, whole.

    ``files`` are all files but those of the folders in ``kept``, which the asking replica holds itself. ``links`` are
    groups of paths that are one file on the serving node's disk. ``remove`` is content that the asking replica has and
    that this checkpoint does not need. ``leader`` and ``position.term`` are the leadership as the serving node sees it.
    """

    transfer: str
    node: str
    cluster: str
    shard: int
    shards: int
    position: ListedPosition
    leader: str
    files: tuple[ListedFile, ...]
    links: tuple[tuple[str, ...], ...]
    kept: frozenset[str]
    remove: frozenset[Content]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON's types."""
        where = self.position
        return {
            "version": VERSION, "transfer": self.transfer, "node": self.node, "cluster": self.cluster,
            "shard": self.shard, "shards": self.shards, "leader": self.leader,
            "position": {"term": where.term, "index": where.index, "offset": where.offset,
                         "hash": where.record_hash.hex()},
            "files": [[one.path, one.content.digest, one.content.size] for one in self.files],
            "links": [list(group) for group in self.links], "kept": sorted(self.kept),
            "remove": [[one.digest, one.size] for one in sorted(self.remove)],
        }  # fmt: skip


def is_folder_name(name: str) -> bool:
    """Whether a checkpoint's folder may have this name.

    >>> is_folder_name("snapshot-12"), is_folder_name(".."), is_folder_name("a/b")
    (True, False, False)
    """
    return _FOLDER.fullmatch(name) is not None


def is_path(path: str) -> bool:
    """Whether a text is a path of a listing.

    >>> is_path("db/000012.sst"), is_path("db/../x"), is_path("/etc/passwd"), is_path("checkpoints/s-1/CURRENT")
    (True, False, False, True)
    """
    return _PATH.fullmatch(path) is not None


def request_from(given: Any) -> TransferRequest:
    """Return a request that another node has sent; raises BadListing."""
    record = _record(given)
    folders = record.get("folders")
    if not isinstance(folders, dict) or len(folders) > MAX_LISTED_FILES:
        raise BadListing("folders: a mapping of at most MAX_LISTED_FILES names is wanted")
    for name, digest in folders.items():
        if not is_folder_name(name) or not _is_digest(digest):
            raise BadListing(f"folders: {_shown(name)}: {_shown(digest)} is no name and digest")
    return TransferRequest(
        asker=_text(record, "asker"), cluster=_text(record, "cluster"), shard=_number(record, "shard"),
        shards=_number(record, "shards"), offset=_number(record, "offset", -1),
        have=frozenset(_contents(record, "have")), folders=folders,
    )  # fmt: skip


def listing_from(given: Any) -> Listing:
    """Return a listing that another node has sent; raises BadListing.

    Paths are legal and occur once; only listed, immutable files of one content are linked; every size is bounded.
    """
    record = _record(given)
    files = _files(record)
    by_path = {one.path: one for one in files}
    if len(by_path) != len(files):
        raise BadListing("files: a path occurs twice")
    transfer = _text(record, "transfer")
    if not _is_digest(transfer):
        raise BadListing(f"transfer: {_shown(transfer)} is not 32 hexadecimal digits")
    kept = _texts(record, "kept", is_folder_name)
    listed = {path.split("/")[1] for path in by_path if path.startswith(f"{CHECKPOINTS}/")}
    if twice := listed.intersection(kept):
        raise BadListing(f"kept: {_shown(min(twice))} is listed, too")
    position = record.get("position")
    if not isinstance(position, dict):
        raise BadListing("position: a record is wanted")
    record_hash = position.get("hash")
    if not isinstance(record_hash, str) or not _is_digest(record_hash):
        raise BadListing(f"position.hash: {_shown(record_hash)} is not 32 hexadecimal digits")
    return Listing(
        transfer=transfer, node=_text(record, "node"), cluster=_text(record, "cluster"),
        shard=_number(record, "shard"), shards=_number(record, "shards"), leader=_text(record, "leader", empty=True),
        position=ListedPosition(
            term=_number(position, "term"), index=_number(position, "index"), offset=_number(position, "offset"),
            record_hash=bytes.fromhex(record_hash),
        ),
        files=files, links=_links(record, by_path), kept=frozenset(kept),
        remove=frozenset(_contents(record, "remove")),
    )  # fmt: skip


def _record(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise BadListing("a record is wanted")
    if given.get("version") != VERSION:
        raise BadListing(f"version: {_shown(given.get('version'))} is unknown to this software, which knows {VERSION}")
    return given


def _files(record: Mapping[str, Any]) -> tuple[ListedFile, ...]:
    found = []
    for entry in _list(record, "files"):
        if not isinstance(entry, list) or len(entry) != 3:
            raise BadListing(f"files: {_shown(entry)} is not path, digest, size")
        path, digest, size = entry
        if not isinstance(path, str) or not is_path(path):
            raise BadListing(f"files: {_shown(path)} is no path of a database or checkpoint")
        found.append(ListedFile(path, _content("files", digest, size)))
    sizes = {one.content.digest: one.content.size for one in found}
    if any(sizes[one.content.digest] != one.content.size for one in found):
        raise BadListing("files: one digest has two sizes")
    if sum(one.content.size for one in found) > MAX_LISTED_BYTES:
        raise BadListing(f"files: more than {MAX_LISTED_BYTES} bytes together")
    return tuple(found)


def _links(record: Mapping[str, Any], by_path: Mapping[str, ListedFile]) -> tuple[tuple[str, ...], ...]:
    groups, seen = [], set[str]()
    for group in _list(record, "links"):
        if not isinstance(group, list) or len(group) > MAX_LISTED_FILES:
            raise BadListing("links: a list of paths is wanted")
        for path in group:
            if not isinstance(path, str) or path not in by_path or path in seen:
                raise BadListing(f"links: {_shown(path)} is not listed, or is in two groups")
            if not by_path[path].is_immutable or by_path[path].content != by_path[group[0]].content:
                raise BadListing(f"links: {path} may not be linked: it may change, or its content is another one")
            seen.add(path)
        groups.append(tuple(group))
    return tuple(groups)


def _contents(record: Mapping[str, Any], field: str) -> Iterable[Content]:
    for entry in _list(record, field):
        if not isinstance(entry, list) or len(entry) != 2:
            raise BadListing(f"{field}: {_shown(entry)} is not digest, size")
        yield _content(field, entry[0], entry[1])


def _content(field: str, digest: Any, size: Any) -> Content:
    if not _is_digest(digest) or type(size) is not int or not 0 <= size <= MAX_LISTED_BYTES:
        raise BadListing(f"{field}: {_shown(digest)}, {_shown(size)} is no digest and size")
    return Content(digest, size)


def _list(record: Mapping[str, Any], field: str) -> Sequence[Any]:
    found = record.get(field)
    if not isinstance(found, list) or len(found) > MAX_LISTED_FILES:
        raise BadListing(f"{field}: a list of at most {MAX_LISTED_FILES} entries is wanted")
    return found


def _texts(record: Mapping[str, Any], field: str, legal: Callable[[str], bool]) -> list[str]:
    found = _list(record, field)
    for one in found:
        if not isinstance(one, str) or not legal(one):
            raise BadListing(f"{field}: {_shown(one)} is no legal name")
    return list(found)


def _text(record: Mapping[str, Any], field: str, *, empty: bool = False) -> str:
    found = record.get(field)
    if not isinstance(found, str) or len(found) > MAX_TEXT_CHARACTERS or not (found or empty):
        raise BadListing(f"{field}: {_shown(found)} is no text of 1..{MAX_TEXT_CHARACTERS} characters")
    return found


def _number(record: Mapping[str, Any], field: str, least: int = 0) -> int:
    found = record.get(field)
    if type(found) is not int or not least <= found <= MAX_NUMBER:
        raise BadListing(f"{field}: {_shown(found)} is no number in {least}..{MAX_NUMBER}")
    return found


def _is_digest(text: Any) -> bool:
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def _shown(given: Any) -> str:
    return repr(given)[:MAX_TEXT_CHARACTERS]
