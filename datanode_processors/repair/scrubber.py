"""Scrubbing: reads the committed blocks from the disk again and again, slowly, and has bad cells repaired.

Rules:

1. A block's row says what its bytes must be; the store's own memory of checksums is not asked. Bytes come from the
   disk, not from the page cache. Scrubbing leaves the page cache as small as it was.
2. A cell is bad if its bytes do not have the row's checksum, cannot be read, or are not there. Bytes beyond the
   committed length are not checked.
3. The rate (``bytes_per_second``) bounds the average, block by block in steps of what is read at once; a step is never
   split.
4. The cursor is the last block that was finished. It is kept in a file, so that a restart goes on there and the
   scrubber reaches the end of a large disk. After the last block the next round begins; rounds begin ``round_s`` apart
   at least.
5. A block that is deleted meanwhile is no error. An error of one block is logged and counted, and does not end the
   round.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event, Lock

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.blocks.core.checksums import CHECKSUM_BYTES, cell_count, check_list, checksum_at
from datanode_processors.errors import BlockError
from schemas.records.datanode import BlockRow
from schemas.records.record import record
from schemas.stream_errors import NO_SUCH_BLOCK, OVERLOADED

SCRUB_BYTES_PER_SECOND = 16 * 1024 * 1024
"""Usual rate of reading: a 4 TB disk in three days."""
ROUND_S = 3600.0
"""Seconds from the beginning of one round to that of the next, at least."""
MAX_PAUSE_S = 1.0
"""Longest sleep at once: stopping waits for one step at most, and for no sleep."""
CURSOR_EVERY_S = 10.0
"""Seconds after which the cursor is written again."""
CURSOR_FILE = "scrub-cursor"

logger = logging.getLogger(__name__)

Place = tuple[int, int, int]
"""(partition, container id, local id)."""
CommittedBlocks = Callable[[Place | None], Iterable[tuple[int, int, int, BlockRow]]]
"""Yields (partition, container id, local id, row) of the committed blocks behind a place, in the order of places.

Tombstones are left out.
"""
Repair = Callable[[int, int, int, list[int]], None]
"""Called with (partition, container id, local id, bad cells); runs on the scrubber's thread."""


def bad_cells(
    store: BlockStore, container_id: int, local_id: int, row: BlockRow, read: Callable[[int], None]
) -> list[int]:
    """Read a block's committed bytes from the disk and return the cells that are bad (rule 2), ascending.

    ``read`` is called with the bytes of each step, and may sleep. Raises BlockError OVERLOADED; ValueError if the row
    contradicts itself.
    """
    check_list(row.checksums, row.length, row.bytes_per_checksum)
    found: list[int] = []
    cell, cells = 0, cell_count(row.length, row.bytes_per_checksum)
    while cell < cells:
        # Every cell of a file that was cut fails: one line in the log is enough.
        for number, crc in _read(store, container_id, local_id, row, cell, read, quiet=bool(found)):
            if crc != checksum_at(row.checksums, number):
                found.append(number)
            cell = number + 1
        if cell < cells:  # this cell cannot be read, or is not there
            found.append(cell)
            cell += 1
    return found


def _read(
    store: BlockStore,
    container_id: int,
    local_id: int,
    row: BlockRow,
    cell: int,
    read: Callable[[int], None],
    last: int | None = None,
    *,
    quiet: bool = False,
) -> Iterator[tuple[int, int]]:
    """Iterate over (cell, CRC32C) from a cell on, to before the ``last``, as far as the bytes can be read."""
    size = row.bytes_per_checksum
    offset = cell * size
    try:
        stop = min(row.length, store.written_length(container_id, local_id))
        if stop < row.length:
            stop -= stop % size
        if last is not None:
            stop = min(stop, last * size)
        if offset >= stop:
            return
        cells = store.read(
            container_id, local_id, offset, stop - offset, bytes_per_checksum=size, end=row.length, from_disk=True
        )
        for at, data, crc in cells:
            read(len(data))
            yield at // size, crc
    except BlockError as error:
        if error.code == OVERLOADED:
            raise
        if error.code != NO_SUCH_BLOCK and not quiet:
            logger.error("block %d/%d, cell %d: %s", container_id, local_id, cell, error)


def is_good(store: BlockStore, container_id: int, local_id: int, row: BlockRow, cell: int) -> bool:
    """Read one cell from the disk and return whether it has the row's checksum. Raises BlockError OVERLOADED."""
    first = next(_read(store, container_id, local_id, row, cell, lambda _: None, cell + 1), None)
    return first == (cell, checksum_at(row.checksums, cell))


def read_checksums(
    store: BlockStore, container_id: int, local_id: int, row: BlockRow, read: Callable[[int], None] = lambda _: None
) -> tuple[int, bytes]:
    """Return (length, packed checksums) of a block's committed bytes on the disk, up to the first unreadable cell.

    For ``digests.container_digest``. ``read`` is called with the bytes of each cell, and may sleep. Raises BlockError
    OVERLOADED.
    """
    packed = bytearray()
    for _, crc in _read(store, container_id, local_id, row, 0, read):
        packed += crc.to_bytes(CHECKSUM_BYTES, "big")
    return min(row.length, len(packed) // CHECKSUM_BYTES * row.bytes_per_checksum), bytes(packed)


class Pace:
    """Keeps an average rate by sleeping; at most a second of idleness is made up for.

    Threads that share a Pace share its rate.
    """

    def __init__(self, bytes_per_second: int, stop: Event) -> None:
        self._rate = bytes_per_second
        self._stop = stop
        self._lock = Lock()
        self._due = time.monotonic()

    def took(self, size: int) -> None:
        """``size`` bytes were read: sleep until they are due, or until stopped."""
        with self._lock:
            self._due = due = max(self._due, time.monotonic() - MAX_PAUSE_S) + size / self._rate
        while (wait := due - time.monotonic()) > 0 and not self._stop.wait(min(wait, MAX_PAUSE_S)):
            pass


@record
class ScrubCounts:
    """What a scrubber has done since the process started."""

    rounds: int
    blocks: int
    bytes: int
    bad_cells: int
    errors: int


class Scrubber:
    """Goes round and round over the committed blocks of a store; ``run`` is a thread's target."""

    def __init__(
        self,
        store: BlockStore,
        blocks: CommittedBlocks,
        repair: Repair,
        *,
        cursor_file: Path,
        bytes_per_second: int = SCRUB_BYTES_PER_SECOND,
        round_s: float = ROUND_S,
    ) -> None:
        """``cursor_file`` is where the cursor is kept (CURSOR_FILE in the datanode's folder).

        Raises ValueError for a rate below 1.
        """
        if bytes_per_second < 1:
            raise ValueError(f"a scrubber at {bytes_per_second} bytes per second")
        self._store = store
        self._blocks = blocks
        self._repair = repair
        self._file = cursor_file
        self._round_s = round_s
        self._stop = Event()
        self.pace = Pace(bytes_per_second, self._stop)
        """Shared by everything that reads blocks in the background, so that all keep one rate."""
        self._saved_at = time.monotonic()
        self.cursor: Place | None = read_cursor(cursor_file)
        self._rounds = self._done = self._bytes = self._bad = self._errors = 0

    @property
    def counts(self) -> ScrubCounts:
        """Return what has been done so far."""
        return ScrubCounts(
            rounds=self._rounds, blocks=self._done, bytes=self._bytes, bad_cells=self._bad, errors=self._errors
        )

    def run(self) -> None:
        """Scrub until stopped."""
        while not self._stop.is_set():
            began = time.monotonic()
            self.scrub_round()
            while (wait := began + self._round_s - time.monotonic()) > 0 and not self._stop.wait(
                min(wait, MAX_PAUSE_S)
            ):
                pass

    def stop(self) -> None:
        """Have ``run`` return soon. From any thread."""
        self._stop.set()

    def scrub_round(self) -> bool:
        """Scrub from the cursor to the last block; returns False if it was stopped before."""
        for partition, container_id, local_id, row in self._blocks(self.cursor):
            self.scrub_block(partition, container_id, local_id, row)
            if self._stop.is_set():
                self._save(self.cursor)
                return False
            self.cursor = (partition, container_id, local_id)
            if time.monotonic() - self._saved_at > CURSOR_EVERY_S:
                self._save(self.cursor)
        self.cursor = None
        self._rounds += 1
        self._save(None)
        return True

    def scrub_block(self, partition: int, container_id: int, local_id: int, row: BlockRow) -> list[int]:
        """Verify one block now, have its bad cells repaired, and return these cells."""
        try:
            found = bad_cells(self._store, container_id, local_id, row, self._took)
            if found and not self._stop.is_set():
                self._bad += len(found)
                self._store.forget_checksums(container_id, local_id)
                logger.error("block %d/%d: %d bad cells, the first is %d", container_id, local_id, len(found), found[0])
                self._repair(partition, container_id, local_id, found)
        except Exception:
            # One block's trouble (a peer is away, a row contradicts itself) must not end the scrubbing of the others.
            self._errors += 1
            logger.exception("block %d/%d could not be scrubbed", container_id, local_id)
            return []
        self._done += 1
        return found

    def _took(self, size: int) -> None:
        self._bytes += size
        self.pace.took(size)

    def _save(self, cursor: Place | None) -> None:
        self._saved_at = time.monotonic()
        try:
            write_cursor(self._file, cursor)
        except OSError as error:  # a full disk: the next start scrubs some blocks again
            logger.warning("%s cannot be written: %s", self._file, error.strerror)


def read_cursor(file: Path) -> Place | None:
    """Return the place that is kept in a file; None (begin anew) if the file holds no place. Raises OSError."""
    try:
        partition, container_id, local_id = json.loads(file.read_text("utf-8"))
        return int(partition), int(container_id), int(local_id)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write_cursor(file: Path, cursor: Place | None) -> None:
    """Keep a place in a file. It is not fsynced: losing it costs reading some blocks twice. Raises OSError."""
    aside = file.with_name(f".{file.name}.new")
    aside.write_text(json.dumps(cursor), "utf-8")
    aside.rename(file)
