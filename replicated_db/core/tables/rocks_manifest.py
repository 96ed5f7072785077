"""Whether a database of RocksDB lacks rows that it had in table files, told by the end of its MANIFEST.

RocksDB takes the table files that its MANIFEST names for all there are, and removes the others. So a MANIFEST that has
lost its end opens without an error: with the newest rows, for those are in the write-ahead log (WAL), and without older
ones. It does tell of itself if a file that it names is missing, or has another size.

Rules, as RocksDB writes (rocksdict 0.3.29):

1. A MANIFEST says from which WAL on (*least*) rows may be in no table file. Rows are whole if no WAL from there on is
   missing: what is in no table file that the MANIFEST names is read from a WAL.
2. When rows have gone to table files, *least* becomes the number of a WAL that is there. It stays until a later *least*
   is on the disk. So if that WAL is missing, the MANIFEST once said more.
3. Each opening writes a MANIFEST of its own, and syncs it before CURRENT names it: what there is, in records without
   a next file number, and then what the opening did. *least* is then one more than the last WAL's number, each family
   says that it needs no WAL before, and the opening's own WAL lies between *least* and the MANIFEST's number.

So no crash puts rows in doubt, and each end that was cut off together with rows of table files does. One cut is left
to others: that of a family's making, all of whose rows are in WALs. RocksDB passes over them, and the family is empty.
A format that is not known here, or no WAL at all, is in doubt: that costs a scan.

Layout: blocks of 32 KiB with records, or first, middle and last fragments of records: checksum (4 bytes), length (2),
kind (1). A record is a row of fields: a number (varint), and its value. Those that are needed here come first.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 32 * 1024
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LEAST_LOG = 1, 2, 3, 10
_NUMBERS: Final = frozenset({_LOG_NUMBER, _NEXT_FILE, 4, 9, _LEAST_LOG, 203})
_TEXTS: Final = frozenset({_COMPARATOR, 1 << 13 | 1})


class UnreadableManifest(Exception):
    """The file is no MANIFEST of the known format. The message says why."""


class ManifestEdit(NamedTuple):
    """What one record says, as far as it is needed here; None for what it does not say.

    ``family``: whether it makes known a column family.
    """

    family: bool
    log: int | None
    least: int | None
    next_file: int | None


def doubt_about(number: int, end: bytes, logs: Collection[int], *, whole: bool) -> str | None:
    """Return why rows may be missing; "" if none are.

    ``number`` is the MANIFEST's, ``end`` its end, which begins at a block; ``logs`` are the numbers of the WALs on the
    disk. None: the end does not say; it does if it is ``whole``.
    """
    try:
        edits = list(_edits(end))
    except UnreadableManifest as error:
        return str(error)
    least = next((edit.least for edit in reversed(edits) if edit.least is not None), 0)
    if least > number:
        return "" if least in logs else f"the MANIFEST wants write-ahead log {least}, which is not there"
    return _doubt_about_opening(number, edits, logs, least) if whole else None


def _doubt_about_opening(number: int, edits: Sequence[ManifestEdit], logs: Collection[int], least: int) -> str:
    """Judge a database that has written no table file since it was opened: rule 3."""
    told = [edit for edit in edits if edit.next_file is None]
    opened = [edit.least for edit in edits if edit.next_file is not None and edit.least is not None]
    families = sum(edit.family for edit in edits)
    beyond = sum(edit.log is not None and edit.log >= least for edit in edits)
    if len(told) == len(edits) or beyond < families or (not opened and sum(edit.family for edit in told) > 1):
        return "the MANIFEST ends before what its opening wrote"
    if not any(least <= log < number for log in logs):
        return f"the MANIFEST wants a write-ahead log from {least} to {number}, and none is there"
    return ""


def _edits(end: bytes) -> Iterator[ManifestEdit]:
    for record in _records(end):
        try:
            yield _edit(record)
        except IndexError as error:
            raise UnreadableManifest("the MANIFEST has a record that ends within a field") from error


def _records(end: bytes) -> Iterator[bytes]:
    """Iterate over the records that begin in ``end``; one that is cut off, or zeros, are its end, as for RocksDB."""
    place, fragments, size = 0, list[bytes](), len(end)
    while place + _HEADER.size <= size:
        if BLOCK_BYTES - place % BLOCK_BYTES < _HEADER.size:
            place += BLOCK_BYTES - place % BLOCK_BYTES
            continue
        _, length, kind = _HEADER.unpack_from(end, place)
        place += _HEADER.size + length
        if kind == 0 or place > size:
            return
        if kind not in {_FULL, _FIRST, _MIDDLE, _LAST}:
            raise UnreadableManifest(f"the MANIFEST has a record of kind {kind}, which is not known")
        if kind in {_FULL, _FIRST}:
            fragments = []
        elif not fragments:
            continue  # it begins before ``end``
        fragments.append(end[place - length : place])
        if kind in {_FULL, _LAST}:
            yield b"".join(fragments)
            fragments = []


def _edit(record: bytes) -> ManifestEdit:
    found: dict[int, int] = {}
    place = 0
    while place < len(record):
        field, place = _varint(record, place)
        if field in _NUMBERS:
            found[field], place = _varint(record, place)
        elif field in _TEXTS:
            length, place = _varint(record, place)
            found[field] = length
            place += length
        else:
            break  # the fields of files and families, none of which is needed
    return ManifestEdit(_COMPARATOR in found, found.get(_LOG_NUMBER), found.get(_LEAST_LOG), found.get(_NEXT_FILE))


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number at a place, 7 bits a byte, the lowest first, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
