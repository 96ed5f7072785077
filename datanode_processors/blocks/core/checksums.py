"""Checksums of a block: one CRC32C for each *cell* of ``cell_bytes``, kept while the block is written. Pure.

A block's checksums are the CRC32Cs of its cells, 4 bytes big-endian each, one after another. The last cell may be
partial; its CRC32C then covers the bytes that it has. ``PutBlock`` and ``BlockRow`` carry checksums in this form.

Rules:

1. Packets have any size and alignment. If a packet begins where a cell begins and does not reach beyond it, its own
   CRC32C is used for the cell and not computed again.
2. A write may begin anywhere up to the length, so it may overwrite. A cell that is overwritten in part is *unknown*
   until its bytes have been written up to its old end, or a caller has read them and sets the checksum
   (:meth:`CellChecksums.learn`).
3. A running checksum (the *cursor*) follows the last write, so small packets that follow each other cost one pass over
   their bytes, whether they append or overwrite.
4. Two lists of checksums can be compared in the cells that are whole in both; a partial cell only with one of the same
   length.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from crc32c import crc32c

from schemas.records.packets import MAX_PACKET_BYTES

CHECKSUM_BYTES = 4
"""Bytes of one packed checksum."""
MIN_CELL_BYTES = 512
MAX_CELL_BYTES = MAX_PACKET_BYTES
"""Limits of ``bytes_per_checksum``. There is an upper one because a cell is read, sent and repaired whole."""

_CRC = Struct(">I")
_NO_CELL = -1


def check_cell_bytes(cell_bytes: int) -> None:
    """Raise ValueError unless a cell may have this size."""
    if not MIN_CELL_BYTES <= cell_bytes <= MAX_CELL_BYTES:
        raise ValueError(f"{cell_bytes} bytes per checksum; {MIN_CELL_BYTES} to {MAX_CELL_BYTES} are taken")


def cell_count(length: int, cell_bytes: int) -> int:
    """Return the number of cells of a block of ``length`` bytes, a partial last one included."""
    return -(-length // cell_bytes)


def cell_range(cell: int, length: int, cell_bytes: int) -> tuple[int, int]:
    """Return (offset of the cell, its bytes) in a block of ``length`` bytes; beyond the end the bytes are 0 or less."""
    start = cell * cell_bytes
    return start, min(cell_bytes, length - start)


def checksum_at(checksums: bytes | bytearray, cell: int) -> int:
    """Return the CRC32C of one cell from a packed list."""
    found: int = _CRC.unpack_from(checksums, cell * CHECKSUM_BYTES)[0]
    return found


def check_list(checksums: bytes | bytearray, length: int, cell_bytes: int) -> None:
    """Raise ValueError unless a packed list has exactly the checksums of ``length`` bytes."""
    expected = cell_count(length, cell_bytes) * CHECKSUM_BYTES
    if len(checksums) != expected:
        raise ValueError(
            f"{len(checksums)} bytes of checksums for {length} bytes in cells of {cell_bytes}; "
            f"{expected} belong to them"
        )


def comparable_cells(length: int, other_length: int, cell_bytes: int) -> int:
    """Return how many leading cells of two lists can be compared (rule 4)."""
    if length == other_length:
        return cell_count(length, cell_bytes)
    return min(length, other_length) // cell_bytes


def differing_cells(checksums: bytes, length: int, other: bytes, other_length: int, cell_bytes: int) -> list[int]:
    """Return the comparable cells in which two packed lists differ, ascending.

    Raises ValueError if a list does not fit its length. With different lengths a partial last cell of the shorter block
    is not compared: compare it by checksums that were computed to the same length.
    """
    check_list(checksums, length, cell_bytes)
    check_list(other, other_length, cell_bytes)
    count = comparable_cells(length, other_length, cell_bytes)
    stop = count * CHECKSUM_BYTES
    if checksums[:stop] == other[:stop]:
        return []
    return [cell for cell in range(count) if checksum_at(checksums, cell) != checksum_at(other, cell)]


class CellChecksums:
    """The checksums of a block that is being written, or that was found on disk (all cells are unknown at first).

    ``length`` is the number of bytes that are covered. For one thread at a time.
    """

    __slots__ = ("_crc", "_cursor_cell", "_cursor_end", "_packed", "_unknown", "cell_bytes", "length")

    def __init__(self, cell_bytes: int, length: int = 0) -> None:
        """Raises ValueError if ``cell_bytes`` is not allowed, or the length is negative."""
        check_cell_bytes(cell_bytes)
        if length < 0:
            raise ValueError(f"a block of {length} bytes")
        self.cell_bytes = cell_bytes
        self.length = length
        count = cell_count(length, cell_bytes)
        self._packed = bytearray(count * CHECKSUM_BYTES)
        self._unknown = set(range(count))
        self._cursor_cell, self._cursor_end, self._crc = _NO_CELL, 0, 0

    @property
    def cells(self) -> int:
        """The number of cells, a partial one included."""
        return len(self._packed) // CHECKSUM_BYTES

    def write(self, offset: int, data: bytes | bytearray | memoryview, crc: int | None = None) -> None:
        """Take account of bytes written at ``offset``; ``crc`` is their CRC32C, if it is known to be right.

        Raises ValueError if they would leave a gap.
        """
        if not 0 <= offset <= self.length:
            raise ValueError(f"bytes at {offset} of a block that has {self.length}")
        size = len(data)
        if not size:
            return
        cell, start = divmod(offset, self.cell_bytes)
        if start + size <= self.cell_bytes:
            self._piece(cell, start, data, size, crc)
        else:
            view = memoryview(data)
            taken = 0
            while taken < size:
                piece = view[taken : taken + self.cell_bytes - start]
                self._piece(cell, start, piece, len(piece), None)
                taken += len(piece)
                cell, start = cell + 1, 0
        self.length = max(self.length, offset + size)

    def _piece(self, cell: int, start: int, data: bytes | bytearray | memoryview, size: int, crc: int | None) -> None:
        """Account for bytes within one cell, ``start`` counted from where it begins."""
        filled = min(max(self.length - cell * self.cell_bytes, 0), self.cell_bytes)
        if start == 0:
            running = crc32c(data) if crc is None else crc
        elif self._cursor_cell == cell and self._cursor_end == start:
            running = crc32c(data, self._crc)
        elif start == filled and cell not in self._unknown:
            running = crc32c(data, checksum_at(self._packed, cell))
        else:
            self._unknown.add(cell)
            self._cursor_cell = _NO_CELL
            return
        self._cursor_cell, self._cursor_end, self._crc = cell, start + size, running
        if start + size >= filled:
            self.learn(cell, running)
        else:
            self._unknown.add(cell)

    def learn(self, cell: int, crc: int) -> None:
        """Set a cell's checksum, as computed from all the bytes that the cell has now."""
        at = cell * CHECKSUM_BYTES
        if at == len(self._packed):
            self._packed += _CRC.pack(crc)
        else:
            _CRC.pack_into(self._packed, at, crc)
        self._unknown.discard(cell)

    def forget(self, offset: int, end: int) -> None:
        """Make the cells unknown that have bytes in [offset, end): these bytes have to be read again."""
        last = min(cell_count(end, self.cell_bytes), self.cells)
        self._unknown.update(range(offset // self.cell_bytes, last))
        self._cursor_cell = _NO_CELL

    def cut(self, length: int) -> None:
        """Cover the first ``length`` bytes only; a cell that is cut through becomes unknown.

        Does nothing if there are fewer.
        """
        if length >= self.length:
            return
        self.length = length
        count = cell_count(length, self.cell_bytes)
        del self._packed[count * CHECKSUM_BYTES :]
        self._unknown = {cell for cell in self._unknown if cell < count}
        if length % self.cell_bytes:
            self._unknown.add(count - 1)
        self._cursor_cell = _NO_CELL

    def is_known(self, cell: int) -> bool:
        """Return whether a cell's checksum is known."""
        return 0 <= cell < self.cells and cell not in self._unknown

    def unknown(self, length: int) -> list[int]:
        """Return the unknown cells, ascending, that are whole within the first ``length`` bytes or end the block."""
        count = comparable_cells(length, self.length, self.cell_bytes)
        return sorted(cell for cell in self._unknown if cell < count)

    def packed(self, length: int) -> bytes:
        """Return the packed checksums of the cells whole within the first ``length`` bytes, or ending with the block.

        Raises ValueError if one of them is unknown.
        """
        if unknown := self.unknown(length):
            raise ValueError(f"{len(unknown)} cells are unknown, the first is {unknown[0]}")
        return bytes(self._packed[: comparable_cells(length, self.length, self.cell_bytes) * CHECKSUM_BYTES])

    def __iter__(self) -> Iterator[int | None]:
        """Iterate over the checksums of all cells, None where unknown."""
        for cell in range(self.cells):
            yield None if cell in self._unknown else checksum_at(self._packed, cell)
