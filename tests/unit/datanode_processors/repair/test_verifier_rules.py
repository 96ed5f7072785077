"""The verifier's rules one by one: real block files, real stream servers; only a pipeline's replica is a dict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.repair import verifier as module
from datanode_processors.repair.committed_files import CommittedFiles
from datanode_processors.repair.verifier import Verifier
from replicated_db.core.errors import StoreFailure
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key
from schemas.records.datanode import Member, OpenPipeline
from tests.support.datanodes.block_nodes import (
    BLOCK,
    CELL,
    CELLS,
    CONTAINER,
    DATA,
    KEY,
    PARTITION,
    Node,
    Replica,
    row_of,
)
from tests.support.local.waiting import eventually

PLACE = (PARTITION, KEY)
WAIT_S = 30.0


class Heard(Replica):
    """A replica that remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, ...]] = []

    def on_verified(self, key: bytes, length: int) -> None:
        self.told.append(("verified", key, length))
        super().on_verified(key, length)

    def forget(self, key: bytes) -> None:
        self.told.append(("forget", key))
        super().forget(key)


class World:
    """A datanode's verifier, its pipeline, and one peer that has all bytes."""

    def __init__(self, folder: Path) -> None:
        self.node, self.peer = Node("dn1", folder), Node("dn2", folder)
        self.replica: Any = Heard()
        self.replica.put(row_of())
        self.peer.write()
        self.members(self.node, self.peer)
        self.notes: list[str] = []
        self.fatal: list[BaseException] = []
        self.changes: list[None] = []
        self.verifier: Any = Verifier(
            self.node.store, node="dn1", cluster="test", note=lambda text, **_: self.notes.append(text),
            fatal=self.fatal.append, changed=lambda: self.changes.append(None),
        )  # fmt: skip
        self.verifier._pipelines[PARTITION] = cast(Any, self.replica)
        self.files: Any = CommittedFiles(self.node.store, note=lambda text, **_: self.notes.append(text))

    def members(self, *nodes: Node) -> None:
        members = [Member(datanode=one.name, address=one.address, http_address="", rack="/r") for one in nodes]
        self.replica.opened = OpenPipeline(pipeline="pipeline-3", partition=PARTITION, generation=1, members=members)

    def step(self) -> None:
        """Do what is to be done next, of which there is something."""
        steps = iter([self.verifier._next_to_verify(), None])
        with patch.object(self.verifier, "_next_to_verify", lambda: next(steps)):
            self.verifier._verify_all()

    def fetch(self) -> int | None:
        """Plan a repair and do it."""
        self.verifier._repairs.add(PLACE, 0.0)
        assert self.verifier._next_to_fetch().place == PLACE
        found: int | None = self.verifier._fetch(self.replica, KEY)
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.verifier.stop()
    made.node.stop()
    made.peer.stop()


# ------------------------------------------------------------------------------------------------ what is wrong here


@pytest.mark.parametrize(
    ("left", "damaged", "wrong"),
    [
        (len(DATA), (), []),
        (len(DATA), (2, 5), [2, 5]),
        (len(DATA), (12,), [12]),
        (12 * CELL, (), [12]),
        (5 * CELL + 9, (), list(range(5, CELLS))),
        (5 * CELL + 9, (1, 4), [1, 4, *range(5, CELLS)]),
        (CELL - 1, (), list(range(CELLS))),
    ],
)
def test_cells_that_are_missing_or_wrong_are_found(
    world: World, left: int, damaged: tuple[int, ...], wrong: list[int]
) -> None:
    world.node.write(DATA[:left])
    world.node.damage(*damaged)
    world.node.store.forget_checksums(CONTAINER, BLOCK)
    assert world.files.wrong_cells(CONTAINER, BLOCK, row_of()) == wrong


def test_bytes_beyond_the_committed_length_are_not_looked_at(world: World) -> None:
    world.node.write()
    world.node.damage(9)
    world.node.store.forget_checksums(CONTAINER, BLOCK)
    assert world.files.wrong_cells(CONTAINER, BLOCK, row_of(DATA[: 9 * CELL])) == []
    assert world.files.wrong_cells(CONTAINER, BLOCK, row_of(DATA[: 9 * CELL + 100])) == [9]


def test_a_file_that_was_cut_behind_the_stores_back_is_compared_as_it_is(world: World) -> None:
    world.node.write()
    world.node.store.forget_checksums(CONTAINER, BLOCK)
    with world.node.path.open("r+b") as file:
        file.truncate(3 * CELL)
    assert world.files.wrong_cells(CONTAINER, BLOCK, row_of()) == list(range(3, CELLS))


def test_a_block_that_is_right_is_verified_to_its_committed_length(world: World) -> None:
    world.node.write()
    world.verifier.verify(world.replica, KEY)
    world.step()
    assert world.replica.told == [("verified", KEY, len(DATA))]
    assert not world.changes
    assert not world.verifier._repairs


def test_a_block_that_is_wrong_is_unhealthy_with_the_reason_and_planned(world: World) -> None:
    world.node.write(DATA[: 10 * CELL])
    world.verifier._verify(world.replica, KEY)
    assert world.replica.unhealthy == {KEY: f"block {CONTAINER}/{BLOCK} has 3 cells missing or wrong"}
    assert PLACE in world.verifier._repairs
    assert len(world.changes) == 1
    assert not world.replica.told


def test_a_block_without_a_file_is_unhealthy(world: World) -> None:
    world.verifier._verify(world.replica, KEY)
    assert KEY in world.replica.unhealthy
    assert PLACE in world.verifier._repairs
    assert len(world.changes) == 1


def test_a_block_that_the_log_does_not_have_is_left_alone(world: World) -> None:
    world.verifier._verify(world.replica, block_key(CONTAINER, BLOCK + 5))
    assert (world.replica.told, world.replica.unhealthy, world.changes) == ([], {}, [])


def test_a_tombstone_deletes_the_block(world: World) -> None:
    world.node.write()
    world.replica.put(row_of(deleted=True))
    world.verifier._verify(world.replica, KEY)
    assert world.replica.told == [("forget", KEY)]
    assert not world.node.path.exists()
    assert not world.replica.unhealthy


def test_a_block_found_right_whose_repair_is_planned_is_left_to_the_repair_which_is_hurried(world: World) -> None:
    repairs = world.verifier._repairs
    repairs.add(PLACE, 0.0)
    repairs.fail(repairs.take(0.0), 1e12)
    assert repairs.next_due_s() > 1e11
    world.node.write()
    world.verifier._verify(world.replica, KEY)
    assert not world.replica.told
    assert repairs.next_due_s() < 1e11


def test_a_cell_that_was_read_wrong_is_news_once(world: World) -> None:
    world.node.write()
    world.node.damage(4)
    world.verifier.repair(world.replica, KEY, 4)
    assert world.replica.unhealthy == {KEY: f"block {CONTAINER}/{BLOCK}: cell 4 has wrong bytes"}
    assert world.verifier._repairs.cells(PLACE) == {4}
    world.verifier.repair(world.replica, KEY, 4)
    assert len(world.changes) == 1
    world.verifier.repair(world.replica, KEY, 5)
    assert world.verifier._repairs.cells(PLACE) == {4, 5}
    assert len(world.changes) == 2
    assert world.files.wrong_cells(CONTAINER, BLOCK, row_of()) == [4], "what the store remembered is forgotten"


# --------------------------------------------------------------------------------------------- lists, and what is next


def test_a_pipeline_is_looked_through_when_it_is_added(world: World) -> None:
    world.node.write(DATA[:-1])
    world.node.write(DATA, BLOCK + 1)
    world.replica.put(row_of(), BLOCK + 1)
    world.replica.put(row_of(deleted=True), BLOCK + 2)
    world.node.write(DATA, BLOCK + 2)
    world.verifier._pipelines.clear()
    world.verifier.add(world.replica)
    world.step()
    assert world.replica.unhealthy.keys() == {KEY}, "whole files are not read again"
    assert world.replica.told == [("forget", block_key(CONTAINER, BLOCK + 2))]


def test_a_look_ends_with_the_datanode(world: World) -> None:
    world.verifier._stopping = True
    world.verifier._look_through(world.replica)
    assert not world.replica.unhealthy


def test_there_is_room_for_what_was_left_out_once_half_of_the_list_is_free(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TO_FETCH", 4)
    for number in range(3):
        assert world.verifier._has_room()
        world.verifier._repairs.add((PARTITION, bytes([number])), 0.0)
    assert not world.verifier._has_room()


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rests does so until it is woken."""
    monkeypatch.setattr(module, "IDLE_WAIT_S", 600.0)


@pytest.mark.usefixtures("sleepy")
def test_threads_end_when_they_are_told(world: World) -> None:
    world.verifier.start()
    threads = world.verifier._threads
    assert [thread.name for thread in threads] == ["verify", "fetch", "fetch", "fetch"]
    assert all(thread.is_alive() and thread.daemon for thread in threads)
    world.verifier.stop()
    assert not any(thread.is_alive() for thread in threads)
    assert world.verifier._next_to_verify() is None
    assert world.verifier._next_to_fetch() is None
    assert not world.fatal


@pytest.mark.usefixtures("sleepy")
@pytest.mark.parametrize("ask", ["add", "verify", "close_container"])
def test_who_rests_is_woken(world: World, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    for of_what, name in (
        (world.verifier, "_verify_blocks"),
        (world.verifier, "_look_through"),
        (world.verifier._files, "close"),
    ):
        monkeypatch.setattr(of_what, name, lambda *_: world.changes.append(None))
    world.verifier.start()
    eventually(lambda: len(world.verifier._to_verify._waiters) == 1, timeout_s=WAIT_S)
    eventually(lambda: len(world.verifier._to_fetch._waiters) == 3, timeout_s=WAIT_S)
    of: dict[str, list[Any]] = {"add": [], "verify": [KEY], "close_container": [CONTAINER]}
    getattr(world.verifier, ask)(world.replica, *of[ask])
    eventually(lambda: world.changes, timeout_s=WAIT_S)


@pytest.mark.usefixtures("sleepy")
def test_who_fetches_is_woken_when_damage_is_found_and_when_it_is_wanted(world: World) -> None:
    world.verifier.start()
    eventually(lambda: len(world.verifier._to_fetch._waiters) == 3, timeout_s=WAIT_S)
    world.verifier.repair(world.replica, KEY, 0)
    eventually(lambda: world.node.path.exists() and world.node.path.read_bytes() == DATA, timeout_s=WAIT_S)
    eventually(lambda: not world.replica.unhealthy, timeout_s=WAIT_S)
    eventually(lambda: len(world.verifier._to_fetch._waiters) == 3, timeout_s=WAIT_S)
    world.verifier._repairs.add(PLACE, 10**9)  # it is not due for a long time
    world.verifier._verify(world.replica, KEY)  # somebody waits for it
    eventually(lambda: PLACE not in world.verifier._repairs, timeout_s=WAIT_S)


def test_an_end_waits_for_those_at_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.verifier.start()
    waited: list[float] = []
    for thread in world.verifier._threads:
        real = thread.join

        def join(timeout_s: float, real: Any = real) -> None:
            waited.append(timeout_s)
            real(timeout_s)

        monkeypatch.setattr(thread, "join", join)
        monkeypatch.setattr(thread, "is_alive", lambda: True)
    world.verifier.stop()
    assert len(waited) == 4
    assert all(0 < timeout_s <= module.PEER_TIMEOUT_S for timeout_s in waited)


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("error", [StoreFailure("the disk fails"), RuntimeError("a defect")])
def test_a_thread_that_fails_is_the_end_but_for_a_store_that_was_closed(
    world: World, stopping: bool, error: Exception
) -> None:
    def fail() -> None:
        raise error

    world.verifier._stopping = stopping
    world.verifier._guarded(fail)
    assert world.fatal == ([] if stopping and isinstance(error, StoreFailure) else [error])


# ---------------------------------------------------------------------------------------------------------- containers


def test_what_lies_beyond_is_reclaimed_when_a_container_is_closed(world: World) -> None:
    world.node.write()
    world.node.write(DATA, BLOCK + 1)
    world.node.write(DATA, BLOCK + 2)
    world.replica.put(row_of(DATA[: 3 * CELL]))
    world.replica.put(row_of(deleted=True), BLOCK + 1)
    world.verifier.close_container(world.replica, CONTAINER)
    world.step()
    assert world.node.path.read_bytes() == DATA[: 3 * CELL]
    assert [local_id for local_id, _ in world.node.store.blocks(CONTAINER)] == [BLOCK]
    assert world.node.store.is_closed(CONTAINER)
    assert not world.notes


def test_a_container_that_cannot_be_closed_is_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise BlockError(codes.DISK_FULL, "no byte is left")

    monkeypatch.setattr(world.node.store, "close_container", refuse)
    world.files.close(world.replica, CONTAINER)
    (note,) = world.notes
    assert note.startswith(f"container {CONTAINER} is not closed here: ")
    assert "no byte is left" in note


def test_a_container_is_closed_at_a_start_if_its_row_says_so_and_it_is_not(world: World) -> None:
    world.node.write()
    assert not world.files.is_to_close(world.replica, CONTAINER)
    world.replica.close()
    assert world.files.is_to_close(world.replica, CONTAINER)
    world.verifier._look_through(world.replica)
    assert world.node.store.is_closed(CONTAINER)
    assert not world.files.is_to_close(world.replica, CONTAINER)


# -------------------------------------------------------------------------------------------------------------- repairs


def test_only_cells_that_differ_are_fetched_and_counted(world: World) -> None:
    world.node.write(DATA[: 12 * CELL])
    world.node.damage(3)
    world.node.store.forget_checksums(CONTAINER, BLOCK)
    assert world.fetch() == len(DATA)
    assert world.node.path.read_bytes() == DATA
    assert world.verifier.fetched_bytes == CELL + 100


def test_a_cell_that_was_read_wrong_is_fetched_whatever_is_remembered(world: World) -> None:
    world.node.write()
    world.verifier._repairs.add(PLACE, 0.0, 6)
    world.verifier._repairs.add(PLACE, 0.0, CELLS)  # one that is beyond the committed length now
    assert world.fetch() == len(DATA)
    assert world.verifier.fetched_bytes == CELL
    assert world.verifier._repairs.cells(PLACE) == {CELLS}


def test_a_block_that_is_deleted_meanwhile_is_not_fetched(world: World) -> None:
    world.replica.put(row_of(deleted=True))
    assert world.fetch() is None
    assert not world.node.path.exists()
    assert world.verifier.fetched_bytes == 0


def test_without_a_peer_the_error_says_so(world: World) -> None:
    world.members(world.node)
    with pytest.raises(BlockError, match=r"not to be had \(no peer\)") as caught:
        world.fetch()
    assert caught.value.code == codes.NOT_COMMITTED


def test_what_the_peers_said_is_in_the_error(world: World) -> None:
    world.peer.damage(1)
    with pytest.raises(BlockError, match=f"block {CONTAINER}/{BLOCK}: .*dn2: "):
        world.fetch()
    assert world.node.path.stat().st_size == CELL, "what lies before the damaged cell has come"


def test_a_peer_that_is_gone_is_asked_last_until_it_answers(world: World) -> None:
    world.peer.server.stop()
    other = Node("dn3", world.peer.path.parents[3])
    other.write()
    world.members(world.node, world.peer, other)
    assert world.fetch() == len(DATA)
    assert [member.datanode for member in world.verifier._peers(world.replica)] == ["dn3", "dn2"]
    world.verifier._away.answered(world.peer.address)
    assert [member.datanode for member in world.verifier._peers(world.replica)] == ["dn2", "dn3"]
    other.stop()


def test_a_refusal_is_an_answer(world: World) -> None:
    world.peer.path.unlink()
    with pytest.raises(BlockError):
        world.fetch()
    assert world.peer.address not in world.verifier._away


@pytest.mark.parametrize(
    ("length", "row", "told"),
    [
        (len(DATA), row_of(), [("verified", KEY, len(DATA))]),
        (len(DATA) - 1, row_of(), []),
        (None, row_of(), []),
        (len(DATA), row_of(deleted=True), [("forget", KEY)]),
        (None, row_of(deleted=True), [("forget", KEY)]),
    ],
)
def test_a_repair_ends_when_what_is_committed_now_is_right(
    world: World, length: int | None, row: Any, told: list[tuple[Any, ...]]
) -> None:
    world.verifier._repairs.add(PLACE, 0.0)
    taken = world.verifier._next_to_fetch()
    world.replica.put(row)
    world.verifier._fetched(world.replica, taken, length)
    assert world.replica.told == told
    assert (PLACE in world.verifier._repairs) == (not told)


@pytest.mark.usefixtures("sleepy")
def test_a_repair_without_success_is_noted_and_tried_again(world: World) -> None:
    world.members(world.node)
    world.verifier.start()
    world.verifier.verify(world.replica, KEY)
    eventually(lambda: world.notes, timeout_s=WAIT_S)
    assert world.notes[0].startswith("pipeline-3: ")
    assert world.notes[0].endswith("; trying again")
    changes = len(world.changes)
    assert changes == 1
    world.members(world.node, world.peer)
    eventually(lambda: not world.replica.unhealthy, timeout_s=WAIT_S)
    eventually(lambda: len(world.changes) == 2, timeout_s=WAIT_S)
    assert world.node.path.read_bytes() == DATA
    assert not world.verifier._repairs
    assert not world.fatal


# ------------------------------------------------------------------------------------------- a disk that does not answer


def put_a_file_for_the_container(node: Node) -> None:
    folder = node.path.parent
    if folder.exists():
        folder.rename(folder.with_name("aside"))
    folder.touch()


def test_a_block_that_cannot_be_looked_at_is_unhealthy_and_says_why(world: World) -> None:
    put_a_file_for_the_container(world.node)
    assert world.files.is_short(CONTAINER, BLOCK, row_of())
    world.verifier._verify(world.replica, KEY)
    assert world.replica.unhealthy == {KEY: f"look at {world.node.path}: Not a directory"}
    assert PLACE in world.verifier._repairs
    assert len(world.changes) == 1


def test_a_tombstone_whose_file_cannot_be_removed_is_tried_again(world: World) -> None:
    world.node.write()
    put_a_file_for_the_container(world.node)
    world.replica.put(row_of(deleted=True))
    world.verifier._verify(world.replica, KEY)
    assert "Not a directory" in world.replica.unhealthy[KEY]
    assert world.replica.told == []


@pytest.mark.parametrize("look", ["wrong_cells", "is_short"])
def test_bytes_that_were_compared_with_a_row_are_not_overwritten_by_a_stream(world: World, look: str) -> None:
    world.node.write()
    getattr(world.files, look)(CONTAINER, BLOCK, row_of())
    with world.node.store.open_writer(CONTAINER, BLOCK, 0, CELL) as writer, pytest.raises(BlockError) as caught:
        writer.write(0, b"other")
    assert caught.value.code == codes.CHECKSUM_MISMATCH
    assert world.node.path.read_bytes() == DATA


@pytest.mark.parametrize(("cell", "asked"), [(0, True), (CELLS - 1, True), (CELLS, False)])
def test_a_cell_that_the_block_does_not_have_is_not_fetched(world: World, cell: int, asked: bool) -> None:
    world.node.write()
    world.verifier._repairs.add(PLACE, 0.0, cell)
    assert world.verifier._next_to_fetch().place == PLACE
    assert world.verifier._fetch(world.replica, KEY) == len(DATA)
    assert (world.verifier.fetched_bytes > 0) == asked


def test_blocks_that_are_verified_together_are_each_told_or_left_to_their_repair(world: World) -> None:
    """One that is damaged, one whose repair is planned already, and one that the log does not have, before others."""
    keys = [block_key(CONTAINER, BLOCK + number) for number in range(5)]
    world.node.write()
    for number in (1, 3, 4):
        world.node.write(DATA, BLOCK + number)
        world.replica.put(row_of(), BLOCK + number)
    (world.node.path.parent / f"{BLOCK + 3}.block").unlink()
    world.node.store.forget_checksums(CONTAINER, BLOCK + 3)
    world.verifier._repairs.add((PARTITION, keys[1]), 10**9)
    world.verifier._verify_blocks(world.replica, keys)
    assert world.replica.told == [("verified", keys[0], len(DATA)), ("verified", keys[4], len(DATA))]
    assert list(world.replica.unhealthy) == [keys[3]]
    assert all((PARTITION, key) in world.verifier._repairs for key in (keys[1], keys[3]))


def test_a_repair_that_fails_keeps_no_thread_from_the_next(world: World) -> None:
    other = block_key(CONTAINER, BLOCK + 1)
    for node in (world.node, world.peer):
        node.write(DATA, BLOCK + 1)
    world.replica.put(row_of(), BLOCK + 1)
    world.peer.replica.put(row_of(), BLOCK + 1)
    fetch = world.verifier._fetch

    def fail(pipeline: Any, key: bytes) -> Any:
        if key == KEY:
            raise BlockError(codes.NOT_COMMITTED, "as if")
        return fetch(pipeline, key)

    world.verifier._fetch = fail
    world.verifier._repairs.add(PLACE, 0.0)
    world.verifier._repairs.add((PARTITION, other), 0.0)
    steps = iter([world.verifier._next_to_fetch(), world.verifier._next_to_fetch(), None])
    world.verifier._next_to_fetch = lambda: next(steps)
    world.verifier._fetch_all()
    assert PLACE in world.verifier._repairs
    assert (PARTITION, other) not in world.verifier._repairs
    assert len(world.notes) == 1
