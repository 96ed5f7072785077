"""From the rows that differ between two views of a bucket to the entries of a diff.

Keys are told apart by their object ids, as in Ozone:

=====================================================  =======================================
in the older view                in the newer view     entries
=====================================================  =======================================
an object id under a name        under another name    RENAME; also MODIFY if more differs than
                                                       the name and the times of the renaming
an object id under a name        the same name, with   MODIFY
                                 another update id
a name with an object id that    the same name with    MODIFY (an overwritten key gets a new
is nowhere in the newer view     a new object id       object id here; Ozone keeps the old one)
an object id                     nowhere               DELETE
nowhere                          an object id          CREATE
=====================================================  =======================================

Order: deletions, renames, creations, modifications; each by the bytes of the name, a rename by the old one. That is
Ozone's order of the kinds, in which a copy of the older view can be made into the newer one. A modification names the
key as the older view does.

Memory does not grow with the number of rows: all that has to be matched is put into a Scratch, which may be on a disk.
Whoever gives a row twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import xxhash

from om_processors.namespace.tables import decode_key
from replicated_db.core.diffing.sweep import RowChange
from schemas.codecs.codec import encode
from schemas.records.rows import KeyInfo

DELETE, RENAME, CREATE, MODIFY = "DELETE", "RENAME", "CREATE", "MODIFY"

ORDER: Mapping[str, bytes] = {DELETE: b"0", RENAME: b"1", CREATE: b"2", MODIFY: b"3"}
"""The kinds of entries, in the order of a report."""
KINDS: Mapping[bytes, str] = {order: kind for kind, order in ORDER.items()}

BY_ID, BY_NAME, REPORT = b"i", b"n", b"r"
"""First byte of a scratch row's key: sides by object id, unmatched sides by name, entries in their order."""
OLD, NEW = b"0", b"1"
"""Last byte of a side's key: that of the older view comes first."""
END_OF_NAME = b"\xff"
"""Ends a name in a scratch row's key. UTF-8 has no such byte, so all rows of a name are neighbours."""
ID_BYTES = 8
FINGERPRINT_BYTES = 16


class Scratch(Protocol):
    """Sorted rows that one diff writes and reads."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row; it replaces the row of the same key."""

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows in [start, stop) by key, as they are at the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffEntry:
    """One entry of a diff. ``to_key`` is the new name of a renamed key, None for other kinds."""

    kind: str
    key: str
    to_key: str | None = None


def match_rows(prefix: bytes, scratch: Scratch) -> Callable[[RowChange], None]:
    """Return what takes the rows that differ, one by one. ``prefix`` is that of the bucket's keys in keyTable."""
    skipped = len(prefix)

    def take(row: RowChange) -> None:
        name = row.key[skipped:]
        old = None if row.old is None else decode_key(row.old)
        new = None if row.new is None else decode_key(row.new)
        if old is not None and new is not None and old.object_id == new.object_id:
            if old.update_id != new.update_id:
                scratch.put(_report_key(MODIFY, name), b"")
            return
        if old is not None:
            scratch.put(_id_key(old, OLD), _fingerprint(old) + name)
        if new is not None:
            scratch.put(_id_key(new, NEW), _fingerprint(new) + name)

    return take


def finish(scratch: Scratch, on_row: Callable[[], None]) -> None:
    """Match what was taken, and leave the entries in the scratch. ``on_row`` is called for each row; it may raise."""
    waiting: tuple[bytes, bytes, bytes] | None = None  # an object id with its older side, whose newer one may follow
    for key, value in scratch.iterate(BY_ID, _after(BY_ID)):
        on_row()
        object_id, side = key[1 : 1 + ID_BYTES], key[1 + ID_BYTES :]
        fingerprint, name = value[:FINGERPRINT_BYTES], value[FINGERPRINT_BYTES:]
        if side == OLD:
            if waiting is not None:
                scratch.put(_name_key(waiting[2], OLD), b"")
            waiting = object_id, fingerprint, name
        elif waiting is not None and waiting[0] == object_id:
            scratch.put(_report_key(RENAME, waiting[2]), name)
            if waiting[1] != fingerprint:
                scratch.put(_report_key(MODIFY, waiting[2]), b"")
            waiting = None
        else:
            scratch.put(_name_key(name, NEW), b"")
    if waiting is not None:
        scratch.put(_name_key(waiting[2], OLD), b"")
    gone: bytes | None = None  # a name with an older side, whose newer one may follow
    for key, _ in scratch.iterate(BY_NAME, _after(BY_NAME)):
        on_row()
        name, side = key[1 : -len(END_OF_NAME + OLD)], key[-len(OLD) :]
        if side == OLD:
            if gone is not None:
                scratch.put(_report_key(DELETE, gone), b"")
            gone = name
        elif gone == name:
            scratch.put(_report_key(MODIFY, name), b"")
            gone = None
        else:
            scratch.put(_report_key(CREATE, name), b"")
    if gone is not None:
        scratch.put(_report_key(DELETE, gone), b"")


def report(scratch: Scratch, start_after: bytes = b"") -> Iterator[tuple[bytes, DiffEntry]]:
    """Iterate over the entries after a place, with the place of each. The first one comes after ``b""``."""
    for key, value in scratch.iterate(REPORT + start_after + b"\0" if start_after else REPORT, _after(REPORT)):
        kind = KINDS[key[1:2]]
        yield key[1:], DiffEntry(kind=kind, key=key[2:].decode(), to_key=value.decode() if kind == RENAME else None)


def _after(prefix: bytes) -> bytes:
    return bytes((prefix[0] + 1,))


def _id_key(info: KeyInfo, side: bytes) -> bytes:
    return BY_ID + info.object_id.to_bytes(ID_BYTES, "big") + side


def _name_key(name: bytes, side: bytes) -> bytes:
    return BY_NAME + name + END_OF_NAME + side


def _report_key(kind: str, name: bytes) -> bytes:
    return REPORT + ORDER[kind] + name


def _fingerprint(info: KeyInfo) -> bytes:
    """Return a hash of what a renaming leaves as it is."""
    return xxhash.xxh3_128_digest(encode(replace(info, key="", update_id=0, modification_time_ms=0)))
