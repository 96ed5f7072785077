"""Copies of containers between two stores: complete and verified, or not there."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.repair.transfer import Imported, check_rows, import_container, stored_rows
from schemas.codecs.block_rows import block_key, encode_block_row
from schemas.codecs.codec import encode
from schemas.records.datanode import BlockRow
from schemas.stream_errors import BLOCK_DELETED, CHECKSUM_MISMATCH, CONTAINER_CLOSED, DISK_FULL, FAILED, INVALID_REQUEST
from tests.support.datanodes.checksums import checksums_of

CELL = 512
CONTENT = {number: random.Random(number).randbytes(number % 4 * 700) for number in range(1, 5)}
Blocks = Iterable[tuple[bytes, bytes, Iterable[bytes | memoryview]]]


def row_of(data: bytes, *, deleted: bool = False) -> bytes:
    checksums = checksums_of(data, CELL)
    return encode_block_row(
        BlockRow(bcs_id=1, length=len(data), bytes_per_checksum=CELL, checksums=checksums, deleted=deleted)
    )


def blocks(changes: Mapping[int, bytes] = MappingProxyType({})) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
    """A container as a peer sends it: key, row and bytes of each block, then a tombstone."""
    for number, data in CONTENT.items():
        yield block_key(9, number), row_of(data), [changes.get(number, data)]
    yield block_key(9, 8), row_of(b"", deleted=True), []


ROWS = [(block_key(9, number), row_of(data)) for number, data in CONTENT.items()] + [
    (block_key(9, 8), row_of(b"", deleted=True))
]


def refused(code: str):
    return pytest.raises(BlockError, check=lambda error: error.code == code)


@pytest.fixture
def source(tmp_path: Path) -> BlockStore:
    store = BlockStore(tmp_path / "source")
    for number, data in CONTENT.items():
        with store.open_writer(9, number, 0, CELL) as writer:
            writer.write(0, data + b"garbage")
            writer.flush()
    store.close_container(9)
    return store


@pytest.fixture
def target(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path / "target")


def folder(target: BlockStore) -> list[str]:
    return sorted(os.listdir(target.container_folder(9).parent))


def test_a_copy_is_the_bytes_and_rows(target: BlockStore, tmp_path: Path):
    imported = import_container(target, 9, blocks())
    assert imported == Imported(container_id=9, blocks=4, bytes=sum(map(len, CONTENT.values())))
    for store in (target, BlockStore(tmp_path / "target")):
        for number, data in CONTENT.items():
            assert b"".join(piece for _, piece, _ in store.read(9, number, 0, len(data))) == data
            assert store.stored_length(9, number) == len(data)
        assert list(stored_rows(store, 9)) == ROWS
        assert store.is_closed(9)
        assert store.used_bytes() == imported.bytes
    with refused(CONTAINER_CLOSED):
        target.open_writer(9, 1, 0, CELL)
    target.delete(9, 1)
    with refused(BLOCK_DELETED):
        target.open_writer(9, 1, 0, CELL, repair=True)
    for number in CONTENT:
        target.delete(9, number)
    assert folder(target) == []


def test_a_state_that_was_looked_at_before_is_looked_at_again(target: BlockStore):
    target.committed(9, 3, 2100)
    assert target.stored_length(9, 3) == 0
    import_container(target, 9, blocks())
    assert target.stored_length(9, 3) == 2100


@pytest.mark.parametrize("wrong", [b"", CONTENT[3][:-1], CONTENT[3] + b"x", bytes(2100)])
def test_bytes_that_are_not_the_rows_are_refused(target: BlockStore, wrong: bytes):
    with refused(CHECKSUM_MISMATCH):
        import_container(target, 9, blocks({3: wrong}))
    assert folder(target) == []
    import_container(target, 9, blocks())
    assert folder(target) == ["9"]


@pytest.mark.parametrize(
    "wrong",
    [
        [(block_key(8, 1), row_of(CONTENT[1]), [CONTENT[1]])],
        [(b"short", row_of(CONTENT[1]), [CONTENT[1]])],
        [(block_key(9, 1), b"no row", [CONTENT[1]])],
        [(block_key(9, 1), row_of(CONTENT[1]), [CONTENT[1]])] * 2,
        [(block_key(9, 2), row_of(CONTENT[2]), [CONTENT[2]]), (block_key(9, 1), row_of(CONTENT[1]), [CONTENT[1]])],
    ],
)
def test_rows_that_are_not_the_containers_are_refused(target: BlockStore, wrong: Blocks):
    with refused(INVALID_REQUEST):
        import_container(target, 9, wrong)
    assert folder(target) == []


def test_what_is_there_is_not_replaced(target: BlockStore):
    with target.open_writer(9, 77, 0, CELL) as writer:
        writer.write(0, b"mine")
    with refused(INVALID_REQUEST):
        import_container(target, 9, blocks())
    assert folder(target) == ["9"]
    assert list(target.blocks(9)) == [(77, 4)]


def test_one_import_of_a_container_at_a_time(target: BlockStore):
    def twice() -> Iterator[tuple[bytes, bytes, list[bytes]]]:
        for block in blocks():
            with refused(INVALID_REQUEST):
                import_container(target, 9, blocks())
            yield block

    import_container(target, 9, twice())
    assert folder(target) == ["9"]


def test_a_peer_that_goes_away_leaves_nothing(target: BlockStore):
    def breaks() -> Iterator[tuple[bytes, bytes, list[bytes]]]:
        yield from list(blocks())[:2]
        raise BlockError(FAILED, "the peer has gone")

    with refused(FAILED):
        import_container(target, 9, breaks())
    assert folder(target) == []


def test_no_room_for_a_copy(tmp_path: Path):
    target = BlockStore(tmp_path / "full", reserve_bytes=1 << 60)
    with refused(DISK_FULL):
        import_container(target, 9, blocks())
    assert folder(target) == []


def test_an_interrupted_import_is_removed_at_start(target: BlockStore, tmp_path: Path):
    target.import_folder(9).mkdir()
    (target.import_folder(9) / "1.block").write_bytes(b"half")
    again = BlockStore(tmp_path / "target")
    assert folder(again) == []


@pytest.mark.parametrize("left", [["rows"], []])
def test_a_copy_whose_removal_was_interrupted_is_not_in_the_way_of_another(
    target: BlockStore, tmp_path: Path, left: list[str]
):
    import_container(target, 9, blocks())
    for name in os.listdir(target.container_folder(9)):
        if name not in left:
            (target.container_folder(9) / name).unlink()
    again = BlockStore(tmp_path / "target")
    assert folder(again) == []
    import_container(again, 9, blocks())
    assert folder(again) == ["9"]


@pytest.mark.parametrize("at", [0, 17, 30, -1])
def test_damaged_rows_are_not_believed(target: BlockStore, at: int):
    import_container(target, 9, blocks())
    path = target.container_folder(9) / "rows"
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)
    with refused(FAILED):
        list(stored_rows(target, 9))


def test_a_container_of_ones_own_has_no_rows_file(source: BlockStore):
    assert list(stored_rows(source, 9)) == []


@pytest.mark.parametrize(
    ("local_id", "changes"),
    [
        (1, {"bytes_per_checksum": 0}),
        (1, {"bytes_per_checksum": -1}),
        (1, {"bytes_per_checksum": 2**31 - 1}),
        (1, {"length": -1, "checksums": b""}),
        (1, {"length": -(2**62), "checksums": b""}),
        (1, {"length": 2**62}),
        (1, {"checksums": b"x"}),
        (0, {}),
        (2**63, {}),
        (2**64 - 1, {}),
        (2**63, {"deleted": True}),
    ],
    ids=str,
)
def test_rows_of_a_peer_that_can_be_none_are_refused(local_id: int, changes: dict[str, Any]):
    """Threads that must not end reckon with them, and ask for the blocks that they name."""
    fields = {
        "bcs_id": 1,
        "length": 700,
        "bytes_per_checksum": CELL,
        "checksums": bytes(8),
        "deleted": False,
        **changes,
    }
    value = bytes(8) + encode(BlockRow(**fields))
    with refused(INVALID_REQUEST):
        check_rows(9, [(block_key(9, local_id), value)])


def test_a_peer_that_sends_more_than_is_committed_is_cut_off_at_once(target: BlockStore) -> None:
    data = CONTENT[3]
    taken: list[int] = []

    def pieces() -> Iterator[bytes]:
        for piece in (data[:1000], data[1000:], b"x", b"never asked for"):
            taken.append(len(piece))
            yield piece

    with pytest.raises(BlockError, match=f"more than the {len(data)} bytes that are committed") as caught:
        import_container(target, 9, [(block_key(9, 3), row_of(data), pieces())])
    assert caught.value.code == CHECKSUM_MISMATCH
    assert taken == [1000, len(data) - 1000, 1]
    assert folder(target) == []
