"""Keys of table files: against what was written, and with bytes that are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_db.core.diffing.table_file import FOOTER_BYTES, TableFileKeys, UnreadableTable
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
