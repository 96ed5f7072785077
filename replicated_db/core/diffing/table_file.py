"""The keys in a table file (SST) of RocksDB, removals included, read from its bytes.

A database hides a removed key, so it cannot say which keys a file removes. The file itself can. This module reads what
the stores of this project write: format version 6, checksums XXH3, partitioned index, data blocks as they are or
compressed. It checks the checksum of each block that it reads. Everything else raises UnreadableTable, and the caller
compares the rows of the file's key range instead. So a new format costs time, never a wrong answer.

Layout, from the end: a footer of 53 bytes; before it the metaindex block, which names the index and the properties. The
index is a tree of two levels: a block of handles of partitions, each with handles of data blocks. A handle is offset
and size of a block. Each block ends with 5 bytes: how it is compressed, and its checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import xxhash

Read = Callable[[int, int], bytes]
"""Offset and length in bytes to the file's bytes."""

Decompress = Callable[[int, bytes], bytes]
"""Compression type (RocksDB's number) and a block without its trailer to the block. Raises ValueError for no block."""

FOOTER_BYTES: Final = 53
MAGIC: Final = 0x88E241B785F4CFF7
FORMAT_VERSION: Final = 6
XXH3: Final = 4
TRAILER_BYTES: Final = 5
UNCOMPRESSED: Final = 0
MAX_BLOCK_BYTES = 64 * 1024 * 1024
"""Largest block that is read, in bytes. A row has at most a few MiB, and a block ends after the row that fills it."""
BYTEWISE: Final = b"leveldb.BytewiseComparator"
TWO_LEVEL_INDEX: Final = 2
INTERNAL_BYTES: Final = 8
"""Bytes behind each key in a data block: sequence number and kind of entry."""
U32: Final = 0xFFFF_FFFF


class UnreadableTable(Exception):
    """The file has a format that is not known here, or is damaged. The message says which."""


class BlockHandle(NamedTuple):
    """Where a block lies in its file, in bytes, without its trailer."""

    offset: int
    size: int


class TableFileKeys:
    """The keys of one table file. Raises UnreadableTable if the file is not of the known format."""

    def __init__(self, read: Read, size: int, decompress: Decompress) -> None:
        """``size`` is the file's length in bytes."""
        self._read = read
        self._decompress = decompress
        self._size = size
        if size < FOOTER_BYTES:
            raise UnreadableTable(f"a table file of {size} bytes has no footer")
        footer = self._bytes(size - FOOTER_BYTES, FOOTER_BYTES)
        version = int.from_bytes(footer[41:45], "little")
        if int.from_bytes(footer[45:], "little") != MAGIC or version != FORMAT_VERSION or footer[0] != XXH3:
            raise UnreadableTable(
                f"not a table file of format {FORMAT_VERSION} with XXH3: its footer is {footer.hex()}"
            )
        self._context = int.from_bytes(footer[9:13], "little")
        metaindex_size = int.from_bytes(footer[13:17], "little")
        metaindex = BlockHandle(size - FOOTER_BYTES - TRAILER_BYTES - metaindex_size, metaindex_size)
        blocks = dict(_entries(self._block(metaindex)))
        if b"rocksdb.range_del" in blocks:
            raise UnreadableTable("the file removes ranges of keys")
        try:
            self._index = _handle(blocks[b"rocksdb.index"], 0)[0]
            properties = dict(_entries(self._block(_handle(blocks[b"rocksdb.properties"], 0)[0])))
            self.family = properties[b"rocksdb.column.family.name"].decode()
            """Name of the column family that the file belongs to."""
            known = (
                properties[b"rocksdb.comparator"] == BYTEWISE
                and int.from_bytes(properties[b"rocksdb.block.based.table.index.type"], "little") == TWO_LEVEL_INDEX
                and properties[b"rocksdb.index.value.is.delta.encoded"] == b"\x01"
            )
            # It is 0 if two entries of one key lie in two blocks: their sequence numbers then tell the blocks apart.
            self._suffix = 0 if properties[b"rocksdb.index.key.is.user.key"] == b"\x01" else INTERNAL_BYTES
        except (KeyError, UnicodeDecodeError) as error:
            raise UnreadableTable(f"the file does not say {error}") from error
        if not known:
            raise UnreadableTable(f"the file's properties are not those of a two-level index: {properties}")

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Iterate over the keys in [start, stop), ascending; a key with several entries comes several times."""
        for top_last, partition in self._index_entries(self._index):
            if top_last < start:
                continue
            for last, handle in self._index_entries(partition):
                if last < start:
                    continue
                for key in _keys(self._block(handle)):
                    if key >= stop:
                        return
                    if key >= start:
                        yield key

    def fences(self) -> list[bytes]:
        """Return keys that cut the file into parts of about equal size: no key of part i exceeds fence i."""
        return [key for key, _ in self._index_entries(self._index)]

    def _index_entries(self, handle: BlockHandle) -> Iterator[tuple[bytes, BlockHandle]]:
        """Iterate over an index block: for each block below it a key that none of its keys exceeds, and its handle."""
        suffix = self._suffix
        for key, below in _index_entries(self._block(handle)):
            yield key[: len(key) - suffix], below

    def _bytes(self, offset: int, length: int) -> bytes:
        found = self._read(offset, length) if 0 <= offset <= self._size - length else b""
        if len(found) != length:
            raise UnreadableTable(f"a block of {length} bytes at {offset} lies outside the file's {self._size}")
        return found

    def _block(self, handle: BlockHandle) -> bytes:
        if handle.size > MAX_BLOCK_BYTES:
            raise UnreadableTable(f"a block of {handle.size} bytes; at most {MAX_BLOCK_BYTES} are read")
        found = self._bytes(handle.offset, handle.size + TRAILER_BYTES)
        content, kind = found[: handle.size], found[handle.size]
        claimed = int.from_bytes(found[handle.size + 1 :], "little")
        if claimed != checksum(content, kind, self._context, handle.offset):
            raise UnreadableTable(f"the block at {handle.offset} has a wrong checksum")
        if kind == UNCOMPRESSED:
            return content
        try:
            return self._decompress(kind, content)
        except ValueError as error:
            raise UnreadableTable(f"the block at {handle.offset}, compression {kind}: {error}") from error


def checksum(content: bytes, kind: int, context: int, offset: int) -> int:
    """Return a block's checksum: of its content, its compression type and, if ``context`` is not 0, its offset."""
    found = (xxhash.xxh3_64_intdigest(content) & U32) ^ (kind * 0x6B9083D9 & U32)
    if context:
        found += context ^ ((offset & U32) + (offset >> 32) & U32)
    return found & U32


def varint(block: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 64 bits, 7 a byte, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(block):
            break
        byte = block[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise UnreadableTable("a number in a block does not end")


def _handle(block: bytes, at: int) -> tuple[BlockHandle, int]:
    offset, at = varint(block, at)
    size, at = varint(block, at)
    return BlockHandle(offset, size), at


def _end(block: bytes) -> int:
    """Return where a block's entries end; behind them are the restart points and their number."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:
        raise UnreadableTable(f"a block of {len(block)} bytes cannot have {restarts} restart points")
    return end


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over keys and values of a block."""
    at, end, key = 0, _end(block), b""
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + own + length > end:
            raise UnreadableTable("an entry of a block is longer than the block")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length


def _keys(block: bytes) -> Iterator[bytes]:
    """Iterate over the keys of a data block. It does what :func:`_entries` does in half the time."""
    at, end, key = 0, _end(block), b""
    while at < end:
        shared, own, length = block[at], block[at + 1], block[at + 2]
        if shared < 0x80 and own < 0x80 and length < 0x80:
            at += 3
        else:
            shared, at = varint(block, at)
            own, at = varint(block, at)
            length, at = varint(block, at)
        if shared > len(key) or shared + own < INTERNAL_BYTES or at + own + length > end:
            raise UnreadableTable("an entry of a data block is longer than the block")
        key = key[:shared] + block[at : at + own]
        yield key[:-INTERNAL_BYTES]
        at += own + length


def _index_entries(block: bytes) -> Iterator[tuple[bytes, BlockHandle]]:
    """Iterate over the keys and handles in an index block.

    A handle is whole where the key is; elsewhere it is the difference of its size from that of the block before it.
    """
    at, end, key, handle = 0, _end(block), b"", BlockHandle(0, 0)
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        if shared > len(key) or at + own > end:
            raise UnreadableTable("an entry of an index is longer than the index")
        key = key[:shared] + block[at : at + own]
        at += own
        if shared == 0:
            handle, at = _handle(block, at)
        else:
            zigzag, at = varint(block, at)
            size = handle.size + (zigzag >> 1 ^ -(zigzag & 1))
            handle = BlockHandle(handle.offset + handle.size + TRAILER_BYTES, size)
        yield key, handle
