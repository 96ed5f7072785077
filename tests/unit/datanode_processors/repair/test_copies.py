"""Copies of other pipelines' containers: fetched from real datanodes, deleted block by block, and read as their rows say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datanode_processors.blocks.block_store import BlockStore
from datanode_processors.errors import BlockError
from datanode_processors.repair import copies as module
from datanode_processors.repair.copies import MAX_FETCHING, Copies, closed_rows
from datanode_processors.repair.copy_sources import MAX_SOURCES
from datanode_processors.repair.transfer import import_container, stored_rows
from datanode_processors.repair.transfer import replace_rows as transfer_rows
from datanode_processors.wire.peer import Peer
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key, decode_block_row, encode_block_row
from schemas.records.datanode import BlockId, BlockRow, DeleteBlocks, FetchContainer
from tests.support.datanodes.block_nodes import (
    BCS_ID,
    BLOCK,
    CELL,
    CONTAINER,
    DATA,
    PARTITION,
    TIMEOUT_S,
    Node,
    row_of,
)
from tests.support.datanodes.streams import hello_frame
from tests.support.local.waiting import eventually

OTHER, EMPTY, GONE = BLOCK + 1, BLOCK + 2, BLOCK + 3
SHORT = DATA[: 2 * CELL + 5]
NOWHERE = "127.0.0.1:1"


class Holder:
    """A datanode that is no member of the pipeline, and its copies."""

    def __init__(self, folder: Path) -> None:
        self.node = Node("dn9", folder, member=False)
        self.copies: Copies = self.node.pipelines.copies
        self.store = self.node.store

    def fetch(self, *sources: str, container_id: int = CONTAINER) -> str:
        request = FetchContainer(partition=PARTITION, container_id=container_id, sources=list(sources))
        return self.copies.fetch(request).detail

    def imported(self, *blocks: int, container_id: int = CONTAINER) -> None:
        """Have a copy of a container with blocks of SHORT."""
        row = encode_block_row(row_of(SHORT))
        rows = [(block_key(container_id, block), row, [SHORT]) for block in blocks]
        import_container(self.store, container_id, rows)

    def delete(self, *blocks: tuple[int, int]) -> int:
        ids = [BlockId(container_id=container_id, local_id=local_id) for container_id, local_id in blocks]
        return self.copies.delete(DeleteBlocks(partition=PARTITION, blocks=ids)).bcs_id

    def files(self, container_id: int = CONTAINER) -> list[int]:
        return [local_id for local_id, _ in self.store.blocks(container_id)]

    def rows_file(self, container_id: int = CONTAINER) -> Path:
        return self.store.container_folder(container_id) / "rows"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path)
    yield made
    made.node.stop()


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Node]:
    """A member whose container has a block, a short one, an empty one and one that is deleted; it is not closed yet."""
    made = Node("dn1", tmp_path)
    made.write()
    made.write(SHORT, OTHER)
    made.replica.put(row_of(SHORT), OTHER)
    made.replica.put(row_of(b""), EMPTY)
    made.replica.put(row_of(deleted=True), GONE)
    yield made
    made.stop()


class Silent:
    """A datanode that greets, and answers nothing until it is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.greeted: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.sendall(hello_frame("dn5", "test"))
            self.greeted.append(sock)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self.greeted:
            sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def refused(do: Callable[[], Any], code: str) -> str:
    with pytest.raises(BlockError) as caught:
        do()
    assert caught.value.code == code
    return caught.value.message


# ------------------------------------------------------------------------------------------------------- fetching


def test_a_copy_has_all_rows_and_the_bytes_of_what_is_not_deleted(holder: Holder, member: Node) -> None:
    member.replica.close()
    assert holder.fetch(NOWHERE, member.address) == f"container {CONTAINER}: 3 blocks, {len(DATA) + len(SHORT)} bytes"
    assert holder.files() == [BLOCK, OTHER, EMPTY]
    assert (holder.store.container_folder(CONTAINER) / f"{BLOCK}.block").read_bytes() == DATA
    assert (holder.store.container_folder(CONTAINER) / f"{OTHER}.block").read_bytes() == SHORT
    assert sorted(holder.copies.stored(CONTAINER)) == [BLOCK, OTHER, EMPTY, GONE]
    assert f"{CONTAINER}: 3 blocks, {len(DATA) + len(SHORT)} bytes from {member.address}" in holder.node.notes[-1]
    assert holder.fetch(NOWHERE) == f"container {CONTAINER} is here already", "nobody is asked again"


def test_a_container_that_is_open_at_its_source_is_not_to_be_had(holder: Holder, member: Node) -> None:
    said = refused(lambda: holder.fetch(NOWHERE, member.address), codes.NOT_COMMITTED)
    assert f"{NOWHERE}: FAILED" in said
    assert f"; {member.address}: NOT_COMMITTED: container {CONTAINER} is not closed there" in said
    assert not holder.copies.is_here(CONTAINER)
    assert not holder.store.import_folder(CONTAINER).exists()


def test_of_a_container_whose_blocks_are_all_deleted_there_is_no_copy(holder: Holder, member: Node) -> None:
    member.replica.close()
    for local_id in (BLOCK, OTHER, EMPTY):
        member.replica.put(row_of(deleted=True), local_id)
    assert "all its blocks are deleted" in holder.fetch(member.address)
    assert not holder.copies.is_here(CONTAINER)


def test_a_source_that_has_a_block_damaged_gives_no_copy(holder: Holder, member: Node) -> None:
    member.replica.close()
    member.damage(3)
    assert codes.CHECKSUM_MISMATCH in refused(lambda: holder.fetch(member.address), codes.NOT_COMMITTED)
    assert not holder.copies.is_here(CONTAINER)


@pytest.mark.parametrize(("number", "code"), [
    (0, codes.INVALID_REQUEST), (1, codes.NOT_COMMITTED), (MAX_SOURCES, codes.NOT_COMMITTED),
    (MAX_SOURCES + 1, codes.INVALID_REQUEST),
])  # fmt: skip
def test_so_many_sources_are_tried(holder: Holder, number: int, code: str) -> None:
    refused(lambda: holder.fetch(*[NOWHERE] * number), code)


def test_so_many_containers_are_fetched_at_once_and_each_by_one(holder: Holder, member: Node) -> None:
    silent = Silent()
    containers = [CONTAINER + 256 * number for number in range(1, MAX_FETCHING + 1)]
    failed: list[str] = []

    def fetch(container_id: int) -> None:
        failed.append(refused(lambda: holder.fetch(silent.address, container_id=container_id), codes.NOT_COMMITTED))

    fetching = [threading.Thread(target=fetch, args=(container_id,)) for container_id in containers]
    fetching[0].start()
    eventually(lambda: len(holder.copies._fetching) == 1)
    again = refused(lambda: holder.fetch(NOWHERE, container_id=containers[0]), codes.OVERLOADED)
    assert again == f"containers [{containers[0]}] are being fetched"
    for thread in fetching[1:]:
        thread.start()
    eventually(lambda: len(holder.copies._fetching) == MAX_FETCHING)
    refused(lambda: holder.fetch(NOWHERE), codes.OVERLOADED)
    eventually(lambda: len(silent.greeted) == MAX_FETCHING)
    silent.close()
    for thread in fetching:
        thread.join(TIMEOUT_S)
    assert len(failed) == MAX_FETCHING
    member.replica.close()
    assert "3 blocks" in holder.fetch(member.address)


def test_rows_that_a_source_gives_are_those_of_the_container(member: Node) -> None:
    member.replica.close()
    with Peer(member.address, own="dn9", cluster="test", timeout_s=TIMEOUT_S) as peer:
        rows = closed_rows(peer, CONTAINER)
    assert [key for key, _ in rows] == [block_key(CONTAINER, local_id) for local_id in (BLOCK, OTHER, EMPTY, GONE)]
    assert [decode_block_row(value).deleted for _, value in rows] == [False, False, False, True]

    class Liar:
        def request(self, _: Any) -> Any:
            return FetchContainer(partition=PARTITION, container_id=CONTAINER, sources=[])

    liar: Any = Liar()
    assert "answered with a FetchContainer" in refused(lambda: closed_rows(liar, CONTAINER), codes.BAD_FRAME)


# ------------------------------------------------------------------------------------------------------- deleting


def test_blocks_are_deleted_one_after_the_other_and_the_copy_goes_with_the_last(holder: Holder) -> None:
    holder.imported(1, 2)
    assert holder.delete((CONTAINER, 1)) == BCS_ID
    assert holder.files() == [2]
    assert {local_id: row.deleted for local_id, row in holder.copies.stored(CONTAINER).items()} == {1: True, 2: False}
    (usage,) = holder.store.containers()
    assert (usage.blocks, usage.used_bytes, usage.closed) == (1, len(SHORT), True)
    rows = holder.rows_file().stat()
    assert holder.delete((CONTAINER, 1)) == BCS_ID, "a second time"
    assert holder.delete((CONTAINER, 9)) == 0, "a block that was never here"
    assert holder.rows_file().stat().st_ino == rows.st_ino, "there is nothing new to write"
    assert holder.files() == [2]
    assert holder.delete((CONTAINER, 2)) == BCS_ID
    assert not holder.copies.is_here(CONTAINER)
    assert holder.store.containers() == []


def test_a_file_that_stayed_behind_goes_with_the_next_deletion(holder: Holder) -> None:
    holder.imported(1, 2)
    path = holder.store.container_folder(CONTAINER) / "1.block"
    data = path.read_bytes()
    holder.delete((CONTAINER, 1))
    path.write_bytes(data)
    holder.copies.recount(CONTAINER)
    assert holder.store.used_bytes() == 2 * len(SHORT)
    holder.delete((CONTAINER, 1))
    assert holder.files() == [2]


def test_blocks_of_no_copy_here_are_the_pipelines(holder: Holder) -> None:
    other = CONTAINER + 256
    said = refused(lambda: holder.delete((other, 1), (CONTAINER, 1)), codes.NO_SUCH_PIPELINE)
    assert said == f"datanode dn9 has no replica or copy of container {CONTAINER}"
    holder.imported(1, 2)
    assert holder.delete((other, 1), (CONTAINER, 1)) == BCS_ID, "one of the containers is here"
    assert holder.delete() == 0


def test_a_copy_with_damaged_rows_does_not_keep_the_others(holder: Holder) -> None:
    other = CONTAINER + 256
    holder.imported(1, 2)
    holder.imported(1, 2, container_id=other)
    holder.rows_file().write_bytes(b"damaged")
    refused(lambda: holder.delete((CONTAINER, 1), (other, 1)), codes.FAILED)
    assert holder.files() == [1, 2]
    assert holder.files(other) == [2]


@pytest.mark.parametrize("last", [False, True])
def test_without_room_for_rows_files_are_removed_first(
    holder: Holder, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    holder.imported(*([1] if last else [1, 2]))
    there: list[list[int]] = []

    def replace_rows(*given: Any) -> None:
        there.append(holder.files())
        if len(there) == 1:
            raise BlockError(codes.DISK_FULL, "as if")
        transfer_rows(*given)

    monkeypatch.setattr(module, "replace_rows", replace_rows)
    assert holder.delete((CONTAINER, 1)) == BCS_ID
    assert there == ([[1]] if last else [[1, 2], [2]]), "the second time there is room"
    assert holder.copies.is_here(CONTAINER) != last


def test_a_disk_that_fails_keeps_the_files_of_rows_that_it_did_not_take(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder.imported(1, 2)

    def replace_rows(*_: Any) -> None:
        raise BlockError(codes.FAILED, "as if")

    monkeypatch.setattr(module, "replace_rows", replace_rows)
    refused(lambda: holder.delete((CONTAINER, 1)), codes.FAILED)
    assert holder.files() == [1, 2]


# ------------------------------------------------------------------------------------------------- what they hold


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the containers whose rows are read from the disk from now on."""
    read: list[int] = []

    def rows(store: BlockStore, container_id: int, strays: Any) -> Iterator[tuple[bytes, bytes]]:
        read.append(container_id)
        return stored_rows(store, container_id, strays)

    monkeypatch.setattr(module, "stored_rows", rows)
    return read


def test_rows_are_read_once_and_again_after_a_deletion(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    holder.imported(1, 2)
    read = watched(monkeypatch)
    row = holder.copies.block(CONTAINER, 1)
    assert row is not None
    assert (row.length, row.deleted) == (len(SHORT), False)
    assert holder.copies.block(CONTAINER, 3) is None
    assert read == [CONTAINER]
    holder.delete((CONTAINER, 1))
    read.clear()
    row = holder.copies.block(CONTAINER, 1)
    assert row is not None
    assert row.deleted
    assert read == [CONTAINER]


def test_rows_of_the_copies_that_were_read_last_are_kept(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    first, second, third = (CONTAINER + 256 * number for number in range(3))
    for container_id in (first, second, third):
        holder.imported(1, container_id=container_id)
    read = watched(monkeypatch)
    for container_id in (first, second, first, third, first, second):
        assert holder.copies.rows(container_id)
    assert read == [first, second, third, second]
    assert holder.copies.rows(CONTAINER + 256 * 9) == {}


def test_rows_that_are_read_while_they_are_replaced_are_not_kept(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder.imported(1, 2)
    deleting = [(CONTAINER, 1)]

    def read(store: Any, container_id: int, strays: Any) -> Iterator[tuple[bytes, bytes]]:
        rows = list(stored_rows(store, container_id, strays))
        if deleting:
            holder.delete(deleting.pop())
        return iter(rows)

    monkeypatch.setattr(module, "stored_rows", read)
    row = holder.copies.block(CONTAINER, 1)
    assert row is not None
    assert not row.deleted, "as it was when it was read"
    row = holder.copies.block(CONTAINER, 1)
    assert row is not None
    assert row.deleted


def test_a_copy_is_listed_in_the_order_of_its_blocks_and_closed(holder: Holder) -> None:
    refused(lambda: holder.copies.listed(CONTAINER), codes.NO_SUCH_PIPELINE)
    holder.imported(1, 2, 11)
    listed = holder.copies.listed(CONTAINER)
    row = encode_block_row(row_of(SHORT))
    assert listed.closed
    assert listed.blocks == [block_key(CONTAINER, local_id) + row for local_id in (1, 2, 11)]


def test_the_rows_that_are_remembered_are_bounded_in_bytes(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    containers = [CONTAINER + 256 * number for number in range(4)]
    for container_id in containers:
        holder.imported(1, 2, container_id=container_id)
    size = sum(map(len, holder.copies.rows(CONTAINER).values()))
    monkeypatch.setattr(module, "MAX_KNOWN_BYTES", 2 * size)
    for container_id in (*containers, containers[1]):
        assert sorted(holder.copies.rows(container_id)) == [1, 2]
    assert list(holder.copies._known) == [containers[3], containers[1]]
    assert holder.copies._known_bytes == 2 * size
    monkeypatch.setattr(module, "MAX_KNOWN_BYTES", 1)
    assert sorted(holder.copies.rows(CONTAINER)) == [1, 2]
    assert (list(holder.copies._known), holder.copies._known_bytes) == ([CONTAINER], size)
    holder.delete((CONTAINER, 1))
    assert holder.copies._known_bytes == 0


@pytest.mark.parametrize("left", [0, 1, 2])
def test_rows_that_lost_their_end_are_damaged(holder: Holder, left: int) -> None:
    """What was left had its checksums, so the copy counted as whole, and the blocks behind as never written."""
    holder.imported(1, 2, 3)
    whole = holder.rows_file().read_bytes()
    holder.rows_file().write_bytes(whole[: len(whole) // 3 * left])
    for ask in (lambda: holder.copies.rows(CONTAINER), lambda: holder.copies.drop_if_deleted(CONTAINER)):
        said = refused(ask, codes.FAILED)
        assert f"{3 - left} blocks have no row, the first of them {left + 1}" in said
    assert holder.files() == [1, 2, 3]
    rows = [(block_key(CONTAINER, local_id), encode_block_row(row_of(SHORT))) for local_id in (1, 2, 3)]
    assert holder.copies.restore_rows(CONTAINER, rows)
    assert holder.rows_file().read_bytes() == whole
    assert sorted(holder.copies.rows(CONTAINER)) == [1, 2, 3]


def test_rows_are_restored_only_where_they_cannot_be_read(holder: Holder) -> None:
    holder.imported(1, 2)
    rows = [(block_key(CONTAINER, 1), encode_block_row(row_of(SHORT)))]
    assert not holder.copies.restore_rows(CONTAINER, rows)
    assert sorted(holder.copies.stored(CONTAINER)) == [1, 2]
    assert holder.copies.block(CONTAINER, 2) is not None
    for damage in (lambda: holder.rows_file().write_bytes(b"damaged"), lambda: holder.rows_file().unlink()):
        damage()
        assert holder.copies.restore_rows(CONTAINER, rows)
        assert sorted(holder.copies.stored(CONTAINER)) == [1]
        assert holder.copies.block(CONTAINER, 2) is None, "what was remembered is forgotten"


def test_what_is_left_of_a_deletion_goes_when_somebody_looks(holder: Holder) -> None:
    holder.imported(1, 2)
    assert not holder.copies.drop_if_deleted(CONTAINER)
    assert holder.files() == [1, 2]
    gone = BlockRow(bcs_id=BCS_ID, length=0, bytes_per_checksum=0, checksums=b"", deleted=True)
    holder.copies._replace_rows(CONTAINER, {1: gone, 2: row_of(SHORT)})
    assert not holder.copies.drop_if_deleted(CONTAINER)
    assert holder.files() == [2], "in a copy that stays"
    holder.copies._replace_rows(CONTAINER, {1: gone, 2: gone})
    assert holder.copies.drop_if_deleted(CONTAINER)
    assert not holder.copies.is_here(CONTAINER)


@pytest.mark.parametrize("files", [False, True])
def test_a_copy_that_has_lost_its_rows_goes_if_it_has_no_file_either(holder: Holder, files: bool) -> None:
    holder.imported(1)
    holder.rows_file().unlink()
    if not files:
        (holder.store.container_folder(CONTAINER) / "1.block").unlink()
    assert holder.copies.drop_if_deleted(CONTAINER) != files
    assert holder.copies.is_here(CONTAINER) == files


def test_blocks_of_copies_go_on_behind_any_place(holder: Holder) -> None:
    other = CONTAINER + 256
    holder.imported(1, 2, 3)
    holder.imported(1, 2, container_id=other)
    holder.delete((CONTAINER, 2))
    places = [(PARTITION, CONTAINER, 1), (PARTITION, CONTAINER, 3), (PARTITION, other, 1), (PARTITION, other, 2)]

    def behind(place: tuple[int, int, int] | None) -> list[tuple[int, int, int]]:
        return [found[:3] for found in holder.node.pipelines.upkeep.committed_blocks(place)]

    assert behind(None) == places
    for number, place in enumerate(places, 1):
        assert behind(place) == places[number:]
    assert behind((PARTITION, CONTAINER, 2)) == places[1:]
    assert behind((PARTITION - 1, other, 9)) == places
    assert behind((PARTITION + 1, CONTAINER, 0)) == []
