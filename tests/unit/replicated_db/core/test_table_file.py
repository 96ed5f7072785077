"""Keys of table files: against what was written, and with bytes that are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_db.core.diffing.table_file import (
    FOOTER_BYTES,
    TRAILER_BYTES,
    BlockHandle,
    TableFileKeys,
    UnreadableTable,
    _entries,
    _index_entries,
    _keys,
    varint,
)
from replicated_db.shell.diffing.checkpoint_diff import _decompressed
from replicated_db.shell.rocks import RocksReader, RocksStore

END = b"\xff"


def keys_of(content: bytes) -> TableFileKeys:
    return TableFileKeys(lambda offset, size: content[offset : offset + size], len(content), _decompressed)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a table file of 3,000 rows of which every third is removed again, in some hundred blocks."""
    folder = tmp_path_factory.mktemp("table")
    store = RocksStore(folder / "store", ["things"])
    rows = [("things", b"key %06d" % number, b"value %d" % number * 20) for number in range(3000)]
    store.write(rows)
    store.copy_to(folder / "before")
    store.write([("things", key, None if number % 3 == 0 else value) for number, (_, key, value) in enumerate(rows)])
    store.copy_to(folder / "after")
    store.close()
    reader = RocksReader(folder / "after", ["things"])
    names = [found["name"] for found in reader.live_files()]
    reader.close()
    newest: Path = max((folder / "after" / name.lstrip("/") for name in names), key=lambda path: path.name)
    return newest.read_bytes()


def test_all_keys_removed_ones_too(file: bytes):
    found = keys_of(file)
    assert found.family == "things"
    assert list(found.keys(b"", END)) == [b"key %06d" % number for number in range(3000)]


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 0), (17, 1501), (2990, 9999), (4000, 5000), (2999, 3000)])
def test_a_range(file: bytes, start: int, stop: int):
    wanted = [b"key %06d" % number for number in range(3000) if start <= number < stop]
    assert list(keys_of(file).keys(b"key %06d" % start, b"key %06d" % stop)) == wanted


def test_a_key_between_keys_as_the_start(file: bytes):
    assert next(keys_of(file).keys(b"key 000017\x00", END)) == b"key 000018"


def test_the_last_key_of_a_block_as_the_start(file: bytes):
    found = keys_of(file)
    whole = list(found.keys(b"", END))
    fences = found.fences()
    assert set(fences) & set(whole), "some are keys, and not only what divides them"
    for fence in fences:
        assert next(found.keys(fence, END), None) == next((key for key in whole if key >= fence), None)


@pytest.mark.parametrize("length", [0, 1, FOOTER_BYTES - 1, FOOTER_BYTES, 1000])
def test_a_file_that_is_cut(file: bytes, length: int):
    for part in (file[:length], file[len(file) - length :]):
        with pytest.raises(UnreadableTable):
            list(keys_of(part).keys(b"", END))


def places(file: bytes) -> Iterator[int]:
    yield from range(0, len(file), 997)
    yield from range(len(file) - 300, len(file))


def test_a_changed_byte_is_noticed_or_harmless(file: bytes):
    """Harmless: filters are not read, and nor are some bytes of the footer."""
    wanted = list(keys_of(file).keys(b"", END))
    noticed = 0
    for place in places(file):
        damaged = bytearray(file)
        damaged[place] ^= 0x10
        try:
            assert list(keys_of(bytes(damaged)).keys(b"", END)) == wanted
        except UnreadableTable:
            noticed += 1
    assert noticed > 200


def test_other_bytes_are_no_table_file():
    for content in (b"\0" * 4096, b"\xff" * 4096, bytes(range(256)) * 16):
        with pytest.raises(UnreadableTable):
            keys_of(content)


@pytest.mark.parametrize(
    ("kind", "content", "fault"),
    [
        (7, b"", "compression 7"),
        (4, b"\xff\xff\xff\xff\x7f", "a block of"),
        (4, b"\x05\xf0", "not LZ4|not 5"),
        (4, b"\x05", "not LZ4|not 5"),
    ],
)
def test_what_is_no_block(kind: int, content: bytes, fault: str):
    with pytest.raises(ValueError, match=fault):
        _decompressed(kind, content)


# Single blocks, made by hand.


def number(value: int) -> bytes:
    """Return a number, 7 bits a byte, the lowest first."""
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def block(*entries: tuple[int, bytes, bytes], restarts: int = 1) -> bytes:
    """Return a block of entries: bytes shared with the key before, the key's other bytes, the value."""
    body = b"".join(
        number(shared) + number(len(own)) + number(len(value)) + own + value for shared, own, value in entries
    )
    return body + bytes(4 * restarts) + restarts.to_bytes(4, "little")


SEQUENCE = bytes(8)
LONG = b"k" * 300


def test_entries_share_the_beginnings_of_their_keys():
    made = block((0, b"abc", b"1"), (2, b"x", b""), (0, LONG, b"v" * 200))
    assert list(_entries(made)) == [(b"abc", b"1"), (b"abx", b""), (LONG, b"v" * 200)]
    assert list(_entries(block(restarts=0))) == []


def test_keys_of_a_data_block_come_without_their_sequence_numbers():
    made = block((0, b"a" + SEQUENCE, b"1"), (1, SEQUENCE, b""), (0, LONG + SEQUENCE, b"v" * 200))
    assert list(_keys(made)) == [b"a", b"a", LONG]


@pytest.mark.parametrize(
    "entry",
    [(1, b"a" + SEQUENCE, b""), (0, b"short", b"")],
    ids=["shares what is not there", "no sequence number"],
)
def test_a_data_block_that_contradicts_itself(entry: tuple[int, bytes, bytes]):
    with pytest.raises(UnreadableTable, match="an entry of a data block is longer than the block"):
        list(_keys(block(entry)))


def test_a_block_ends_where_its_entries_do():
    cut = number(0) + number(9) + number(1) + b"a" + SEQUENCE
    tail = bytes(4) + (1).to_bytes(4, "little")
    for read, said in ((_keys, "of a data block is longer"), (_entries, "of a block is longer")):
        with pytest.raises(UnreadableTable, match=said):
            list(read(cut + tail))
        assert list(read(cut + b"v" + tail))
    with pytest.raises(UnreadableTable, match="an entry of a block is longer than the block"):
        list(_entries(block((1, b"a", b""))))


def test_handles_are_whole_or_differ_from_the_one_before():
    """The size's difference is signed: even numbers are not negative, odd ones are."""
    made = (
        number(0) + number(1) + b"a" + number(1000) + number(50)
        + number(1) + number(1) + b"b" + number(2 * 3)
        + number(1) + number(1) + b"c" + number(2 * 5 - 1)
        + bytes(4) + (1).to_bytes(4, "little")
    )  # fmt: skip
    first = BlockHandle(1000, 50)
    second = BlockHandle(1000 + 50 + TRAILER_BYTES, 53)
    third = BlockHandle(second.offset + 53 + TRAILER_BYTES, 48)
    assert list(_index_entries(made)) == [(b"a", first), (b"ab", second), (b"ac", third)]
    for entry in (number(1) + number(1) + b"a", number(0) + number(9) + b"a"):
        with pytest.raises(UnreadableTable, match="an entry of an index is longer than the index"):
            list(_index_entries(entry + bytes(4) + (1).to_bytes(4, "little")))


@pytest.mark.parametrize("value", [0, 127, 128, 300, 2**32, 2**63])
def test_numbers_of_up_to_64_bits(value: int):
    assert varint(b"x" + number(value) + b"y", 1) == (value, 1 + len(number(value)))


def test_a_number_that_does_not_end():
    for content in (b"", b"\x80", b"\xff" * 20):
        with pytest.raises(UnreadableTable, match="a number in a block does not end"):
            varint(content, 0)


def test_restart_points_lie_in_the_block():
    for content in (b"", b"\0\0\0", bytes(4) + (2).to_bytes(4, "little")):
        with pytest.raises(UnreadableTable, match="restart points"):
            list(_entries(content))
    assert list(_entries(bytes(4) + (1).to_bytes(4, "little"))) == []
