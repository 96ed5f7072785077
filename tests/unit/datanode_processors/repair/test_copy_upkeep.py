"""Copies are kept right: damage is found and repaired, what members deleted is deleted, and nothing else is.

Real pipelines, stores and stream servers over sockets; only the replica of a member's database is a dict.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datanode_processors.blocks.block_writer import BlockFileWriter
from datanode_processors.errors import BlockError
from datanode_processors.heartbeats import Heartbeats
from datanode_processors.repair import copies, copy_actions, copy_peers, copy_upkeep
from datanode_processors.repair.cell_fetch import fetch_cells
from datanode_processors.repair.copy_sources import SOURCES_FILE, CopySources
from datanode_processors.repair.core import away, upkeep_plan
from datanode_processors.repair.core.copy_look import NotDeleted
from datanode_processors.repair.core.copy_states import CopyState
from datanode_processors.repair.core.instructions import DeleteHere, LookAt, RepairOne
from datanode_processors.repair.scrubber import Place, Scrubber, bad_cells
from datanode_processors.repair.transfer import has_rows, import_container, replace_rows
from datanode_processors.status import DatanodeStatus
from replicated_db.shell.bootstrap.transfer_desk import TransferDesk
from replicated_db.shell.system import SystemClock
from schemas import stream_errors as codes
from schemas.codecs.block_rows import block_key
from schemas.records.datanode import BlockId, BlockRow, DeleteBlocks, FetchContainer, ListContainer
from tests.support.datanodes.block_nodes import BCS_ID, BLOCK, CELL, CELLS, CONTAINER, DATA, PARTITION, Node, row_of
from tests.support.local.waiting import eventually
from transport.waiting.core.backoff import Backoff

OTHER = BLOCK + 1
SHORT = DATA[: 2 * CELL + 5]
COPY = f"the copy of block {CONTAINER}/{BLOCK} here"
Run = Callable[..., Node]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_plan, "PAUSES", Backoff(0.05, 600.0))
    monkeypatch.setattr(away, "PAUSES", Backoff(0.05, 600.0))
    monkeypatch.setattr(upkeep_plan, "SAVE_S", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Makes members ``dn1``… that have two blocks in a closed container, and others that have what they fetch."""
    made: list[Node] = []

    def begin(name: str, *, member: bool = True, **options: Any) -> Node:
        node = Node(name, tmp_path, member=member, **options)
        made.append(node)
        if member:
            node.write()
            node.write(SHORT, OTHER)
            node.replica.put(row_of(SHORT), OTHER)
            node.replica.close()
            node.store.close_container(CONTAINER)
        else:
            node.pipelines.upkeep.start(lambda _: None)
        return node

    yield begin
    for node in made:
        stop(node)


def stop(node: Node) -> None:
    node.pipelines.upkeep.stop()
    node.stop()


def fetch(node: Node, *sources: Node) -> None:
    request = FetchContainer(
        partition=PARTITION, container_id=CONTAINER, sources=[source.address for source in sources]
    )
    node.pipelines.handle(request)


def status(node: Node) -> Any:
    return node.pipelines.upkeep.status()


def is_settled(node: Node) -> bool:
    return bool(status(node)["unconfirmed"] == 0)


def is_whole(node: Node) -> bool:
    return status(node)["unhealthy_blocks"] == 0 and node.path.exists() and node.path.read_bytes() == DATA


def healthy(node: Node) -> bool:
    """Return what heartbeats say of the copy."""
    beats = Heartbeats(
        node.config, node.store, node.pipelines, streams=lambda: 0, layout_version=1, prepared=lambda: False,
        clock=SystemClock(), send=lambda *_: None, fatal=lambda _: None,
    )  # fmt: skip
    reports = beats.heartbeat().containers
    assert [(report.container_id, report.closed) for report in reports] == [(CONTAINER, True)]
    return reports[0].healthy


def scrubber(node: Node) -> Scrubber:
    return Scrubber(
        node.store, node.pipelines.committed_blocks, node.pipelines.repair, cursor_file=node.path.parent.parent / "cursor"
    )  # fmt: skip


def damaged_and_alone(run: Run) -> Node:
    """A copy that the scrubber has found damaged, and that nobody answers for."""
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    stop(member)
    node.damage(2)
    scrubber(node).scrub_round()
    return node


def delete_at(node: Node, local_id: int) -> None:
    """Have a member's rows say that a block is deleted, as if the log did."""
    node.replica.put(BlockRow(bcs_id=BCS_ID + 1, length=0, bytes_per_checksum=0, checksums=b"", deleted=True), local_id)
    node.store.delete(CONTAINER, local_id)


# ------------------------------------------------------------------------------------------------------- scrubbing


def test_the_scrubber_reads_copies_too_and_what_it_finds_is_repaired(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    found = scrubber(node)
    found.scrub_round()
    assert (found.counts.blocks, found.counts.bytes, found.counts.bad_cells) == (2, len(DATA) + len(SHORT), 0)
    node.damage(3, 8)
    found.scrub_round()
    assert found.counts.bad_cells == 2
    eventually(lambda: is_whole(node))
    assert healthy(node)
    assert f"{COPY} is damaged in 2 cells" in node.notes
    assert f"{COPY} is repaired: 2 cells" in node.notes
    assert node.pipelines.fetched_bytes == 2 * CELL


def test_the_scrubber_goes_on_behind_its_cursor_through_pipelines_and_copies_in_the_order_of_places(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    pipelines: Any = node.pipelines
    own = [(number, number, 1, row_of()) for number in (1, 2, 5)]
    pipelines._answers.committed_blocks = lambda after: (one for one in own if after is None or one[:3] > after)
    places = [one[:3] for one in node.pipelines.committed_blocks(None)]
    copied: list[Place] = [(PARTITION, CONTAINER, BLOCK), (PARTITION, CONTAINER, OTHER)]
    assert places == [(1, 1, 1), (2, 2, 1), *copied, (5, 5, 1)]
    for number, place in enumerate(places):
        assert [one[:3] for one in node.pipelines.committed_blocks(place)] == places[number + 1 :]


@pytest.mark.parametrize("left", [0, 5 * CELL, 5 * CELL + 77, None])
def test_a_file_that_is_cut_or_removed_is_restored(run: Run, left: int | None) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    if left is None:
        node.path.unlink()
    else:
        os.truncate(node.path, left)
    scrubber(node).scrub_round()
    eventually(lambda: is_whole(node))
    assert node.read() == (DATA, None)
    usage = next(one for one in node.store.containers() if one.container_id == CONTAINER)
    assert (usage.blocks, usage.used_bytes) == (2, len(DATA) + len(SHORT))


@pytest.mark.parametrize("left", [5 * CELL, None])
def test_damage_that_happens_while_the_datanode_is_down_is_found_when_it_starts(run: Run, left: int | None) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    stop(node)
    if left is None:
        node.path.unlink()
    else:
        os.truncate(node.path, left)
    again = run("dn4", member=False)
    eventually(lambda: is_whole(again))


def test_a_reader_finds_damage_and_a_copy_that_is_damaged_elsewhere_helps(run: Run) -> None:
    member, other, node = run("dn1"), run("dn5", member=False), run("dn4", member=False)
    fetch(other, member)
    fetch(node, member, other)
    member.damage(2)
    other.pipelines.upkeep.stop()
    other.damage(5, 7)
    node.damage(2, 5)
    assert node.read()[1] is not None
    eventually(lambda: is_whole(node))


# ------------------------------------------------------------------------------------- what nobody has right any more


def test_what_nobody_has_right_is_named_and_all_else_is_repaired(run: Run) -> None:
    nodes = [run("dn1"), run("dn2")]
    node = run("dn4", member=False)
    fetch(node, *nodes)
    for one in nodes:
        one.damage(4)
    node.damage(1, 4, 9)
    expected = bytearray(DATA)
    expected[4 * CELL + 9] ^= 1
    scrubber(node).scrub_round()
    eventually(lambda: node.path.read_bytes() == expected)
    assert not healthy(node)
    (named,) = status(node)["unhealthy"]
    eventually(lambda: "1 cells, the first is 4" in status(node)["unhealthy"][0]["reason"])
    assert (named["container"], named["block"]) == (CONTAINER, BLOCK)
    noted = len(node.notes)
    for _ in range(50):
        assert node.read(4 * CELL, 1)[1] is not None
        assert node.salvage(4 * CELL, 1)[1] is not None
    assert len(node.notes) - noted <= 1, "not one for each read"
    assert node.read(5 * CELL, len(DATA)) == (DATA[5 * CELL :], None)
    nodes[1].damage(4)  # the same bit again: it is right
    eventually(lambda: is_whole(node))
    assert healthy(node)


def test_a_copy_whose_sources_are_gone_is_unhealthy_until_others_are_named(run: Run) -> None:
    node = damaged_and_alone(run)
    eventually(lambda: any("trying again" in note for note in node.notes))
    assert not healthy(node)
    fetch(node, run("dn2"))
    eventually(lambda: is_whole(node))
    assert healthy(node)


def test_health_and_metrics_tell_of_a_damaged_copy(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    pipelines: Any = node.pipelines
    config = node.config
    desk = TransferDesk("dn4", {}, lambda _: False, note=lambda _: None)
    scrubbing = scrubber(node)
    told = DatanodeStatus(
        config, node.store, pipelines, node.server.snapshot, lambda: 0, lambda: False, desk, lambda: scrubbing.counts
    )
    assert told.health() == (200, {"status": "ok"})
    member.damage(2)
    node.damage(2)
    scrubbing.scrub_round()
    code, said = told.health()
    assert (code, said["copies"][0]["block"]) == (503, BLOCK)
    assert 'stratolog_datanode_unhealthy_copy_blocks{datanode="dn4"} 1.0' in told.metrics()
    assert told.status()["copies"]["containers"] == 1
    assert told.status()["scrub"]["rounds"] == 1


def test_more_damage_than_is_known_by_block_is_repaired_by_container(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_plan, "MAX_DAMAGED", 0)
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    stop(member)
    node.damage(2)
    (node.path.parent / f"{OTHER}.block").unlink()
    scrubber(node).scrub_round()
    assert status(node)["unhealthy_blocks"] == 1
    assert not healthy(node)
    fetch(node, run("dn2"))
    eventually(lambda: is_whole(node))
    assert (node.path.parent / f"{OTHER}.block").read_bytes() == SHORT


@pytest.mark.parametrize("how", ["damaged", "removed", "cut", "empty"])
def test_rows_that_cannot_be_read_come_from_a_source(run: Run, how: str) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    stop(node)
    rows = node.path.parent / "rows"
    right = rows.read_bytes()
    if how == "damaged":
        rows.write_bytes(right[:30] + bytes([right[30] ^ 1]) + right[31:])
    elif how in ("cut", "empty"):  # where a row ends: what is left has its checksums
        end = 20 + int.from_bytes(right[16:20], "big") + 4
        assert end < len(right)
        rows.write_bytes(right[:end] if how == "cut" else b"")
    else:
        rows.unlink()
    node.damage(1)
    again = run("dn4", member=False)
    eventually(lambda: rows.exists() and rows.read_bytes() == right)
    eventually(lambda: is_whole(again))
    assert any("are taken from dn1" in note for note in again.notes)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_damaged_where_a_cell_is_right_in_the_end_if_anybody_has_it(run: Run, seed: int) -> None:
    chance = random.Random(seed)
    sources = [run("dn1"), run("dn2")]
    node = run("dn4", member=False)
    fetch(node, *sources)
    bad = {one.name: {cell for cell in range(CELLS) if chance.random() < 0.4} for one in [*sources, node]}
    for one in [*sources, node]:
        one.damage(*bad[one.name])
    lost = set.intersection(*bad.values())
    expected = bytearray(DATA)
    for cell in lost:
        expected[cell * CELL + 9] ^= 1
    scrubber(node).scrub_round()
    eventually(lambda: node.path.read_bytes() == expected)
    eventually(lambda: healthy(node) == (not lost))


# ------------------------------------------------------------------------------------------------------- deletions


def test_a_holder_that_was_down_deletes_what_members_have_deleted(run: Run) -> None:
    members = [run("dn1"), run("dn2")]
    node = run("dn4", member=False)
    fetch(node, *members)
    eventually(lambda: is_settled(node))
    stop(node)
    delete_at(members[1], BLOCK)  # dn1 is behind
    again = run("dn4", member=False)
    eventually(lambda: not again.path.exists())
    eventually(lambda: any("1 blocks of the copy here are deleted, as dn2 has" in note for note in again.notes))
    found, error = again.read()
    assert (found, error and error.code) == (b"", codes.BLOCK_DELETED)
    assert again.store.written_length(CONTAINER, OTHER) == len(SHORT)
    assert healthy(again)


def test_a_block_that_is_deleted_while_its_container_is_fetched_goes_afterwards(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, node = run("dn1"), run("dn4", member=False)

    def import_and_delete(*arguments: Any) -> Any:
        imported = import_container(*arguments)
        delete_at(member, BLOCK)
        return imported

    monkeypatch.setattr(copies, "import_container", import_and_delete)
    fetch(node, member)
    eventually(lambda: not node.path.exists())
    assert node.store.written_length(CONTAINER, OTHER) == len(SHORT)


def test_a_copy_goes_with_its_last_block(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    delete_at(member, BLOCK)
    delete_at(member, OTHER)
    fetch(node, member)
    eventually(lambda: not node.path.parent.exists())
    eventually(lambda: node.store.containers() == [])
    fetch(node, member)
    assert not node.path.parent.exists(), "there is nothing to fetch"


def test_nobody_but_a_member_with_a_tombstone_has_anything_deleted(run: Run) -> None:
    member, node, other = run("dn1"), run("dn4", member=False), run("dn5", member=False)
    fetch(node, member)
    fetch(other, member)
    eventually(lambda: is_settled(node) and is_settled(other))
    # A copy's tombstone is not a member's.
    other.pipelines.handle(DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=BLOCK)]))
    # A member without a row that was committed is not right, whatever has come to it.
    member.replica.store.tables["blockTable"].pop(next(iter(member.replica.store.tables["blockTable"])))
    fetch(node, other, member)
    eventually(lambda: any("dn1 has no row of 1 blocks" in note for note in node.notes))
    stop(member)
    stop(other)
    stop(node)
    again = run("dn4", member=False)
    time.sleep(0.5)
    assert not is_settled(again)
    assert is_whole(again)
    assert again.read() == (DATA, None)


def test_a_deletion_that_was_interrupted_is_completed(run: Run) -> None:
    """The rows say that a block is deleted, its file stayed behind; or the other way round, as on a full disk."""
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    before = (node.path.parent / "rows").read_bytes()
    delete_at(member, BLOCK)
    node.pipelines.handle(DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=BLOCK)]))
    after = (node.path.parent / "rows").read_bytes()
    for rows, data in ((after, DATA), (before, None)):
        stop(node)
        (node.path.parent / "rows").write_bytes(rows)
        if data is not None:
            node.path.write_bytes(data)
        node = run("dn4", member=False)
        eventually(lambda node=node: is_settled(node) and not node.path.exists())  # type: ignore[misc]
        eventually(lambda node=node: healthy(node))  # type: ignore[misc]
        assert node.pipelines.handle(ListContainer(partition=PARTITION, container_id=CONTAINER)).blocks
        found, error = node.read()
        assert (found, error and error.code) == (b"", codes.BLOCK_DELETED)


def test_damage_of_a_block_that_is_deleted_is_nobodys(run: Run) -> None:
    node = damaged_and_alone(run)
    assert not healthy(node)
    node.pipelines.handle(DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=BLOCK)]))
    eventually(lambda: healthy(node))


def test_a_copy_that_has_lost_a_file_keeps_its_rows_when_another_block_is_deleted(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    stop(member)
    node.path.unlink()
    scrubber(node).scrub_round()
    node.pipelines.handle(DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=OTHER)]))
    assert not healthy(node)
    fetch(node, run("dn2"))
    eventually(lambda: is_whole(node))


def test_rows_for_which_there_is_no_room_do_not_keep_a_block(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    calls: list[bool] = []

    def replace(*arguments: Any) -> None:
        calls.append(node.path.exists())
        if node.path.exists() or len(calls) < 5:
            raise BlockError(codes.DISK_FULL, "no room")
        replace_rows(*arguments)

    monkeypatch.setattr(copies, "replace_rows", replace)
    request = DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=BLOCK)])
    with pytest.raises(BlockError, check=lambda error: error.code == codes.DISK_FULL):
        node.pipelines.handle(request)
    assert calls == [True, False]
    assert not node.path.exists()
    with pytest.raises(BlockError):
        node.pipelines.handle(request)
    node.pipelines.handle(request)
    assert node.read()[1].code == codes.BLOCK_DELETED  # type: ignore[union-attr]
    eventually(lambda: healthy(node))


# -------------------------------------------------------------------------------------------- one thread for all


def test_a_source_that_does_not_answer_is_asked_less_and_less(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    upkeep = run("dn4", member=False).pipelines.upkeep
    upkeep.stop()
    clock: list[float] = [1000.0]
    tried: list[float] = []
    monkeypatch.setattr(copy_peers, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(away, "PAUSES", Backoff(15.0, 600.0))

    def silent(address: str, **_: Any) -> Any:
        tried.append(clock[0])
        raise BlockError(codes.TIMED_OUT, address)

    monkeypatch.setattr(copy_peers, "Peer", silent)

    def ask_for(seconds: int) -> list[float]:
        tried.clear()
        for _ in range(seconds):
            with pytest.raises(BlockError), upkeep._peers.connect("dn9:1"):
                pass
            clock[0] += 1
        return [later - earlier for earlier, later in itertools.pairwise(tried)]

    assert ask_for(3000) == [15, 30, 60, 120, 240, 480, 600, 600, 600]
    upkeep.named(CONTAINER, ["dn9:1"])
    assert ask_for(60) == [15, 30]


@pytest.mark.parametrize("code", [codes.TIMED_OUT, codes.NO_SUCH_BLOCK, None])
def test_a_source_that_greets_and_then_is_silent_is_away_too(run: Run, code: str | None) -> None:
    member, upkeep = run("dn1"), run("dn4", member=False).pipelines.upkeep
    upkeep.stop()
    for _ in range(2):
        with suppress(BlockError), upkeep._peers.connect(member.address):
            if code is not None:
                raise BlockError(code, "")
        assert (member.address in upkeep._peers._away) == (code == codes.TIMED_OUT)
    with suppress(BlockError), upkeep._peers.connect(member.address):
        pass
    time.sleep(2 * away.PAUSES.first_s)
    with upkeep._peers.connect(member.address):
        pass
    assert member.address not in upkeep._peers._away


def test_a_repair_does_not_wait_until_all_copies_are_looked_at(run: Run) -> None:
    upkeep = run("dn4", member=False).pipelines.upkeep
    upkeep.stop()
    upkeep._stopping.clear()
    for number in range(1, 6):
        upkeep._plan.look_soon(number, number)
    for number in range(1, 4):
        upkeep._plan.find(number, BLOCK, "", 10)
    taken = [upkeep._next() for _ in range(8)]
    assert [number for number, task in enumerate(taken) if isinstance(task, RepairOne)] == [0, 2, 4]
    assert {task.container_id for task in taken if isinstance(task, LookAt)} == set(range(1, 6))


# ------------------------------------------------------------------------------------------- deleted while it is read


@pytest.mark.parametrize("where", ["scrub", "look"])
def test_a_block_that_is_deleted_while_it_is_read_is_not_damaged(
    run: Run, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    upkeep = node.pipelines.upkeep
    upkeep.stop()
    rows = upkeep._copies.stored(CONTAINER)
    changed: list[None] = []
    monkeypatch.setattr(upkeep, "_changed", lambda: changed.append(None))
    deleted = DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=BLOCK)])
    if where == "scrub":
        found = Scrubber(
            node.store, lambda _: iter([(PARTITION, CONTAINER, BLOCK, rows[BLOCK])]), node.pipelines.repair,
            cursor_file=node.path.parent.parent / "cursor",
        )  # fmt: skip
        node.pipelines.handle(deleted)
        assert found.scrub_block(PARTITION, CONTAINER, BLOCK, rows[BLOCK]), "it has read nothing"
    else:
        node.pipelines.handle(deleted)
        upkeep._actions.compare_lengths(CONTAINER, rows)
    assert (changed, upkeep.unhealthy_blocks()) == ([], 0)
    upkeep.damaged(CONTAINER + 256, BLOCK, "a copy that is not here")
    assert upkeep.unhealthy_blocks() == 0
    upkeep.damaged(CONTAINER, OTHER, "one that is")
    assert upkeep.unhealthy_blocks() == 1


# ------------------------------------------------------------------------------------------------- damaged as a whole


def test_one_cell_that_nobody_has_does_not_have_the_whole_copy_read_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    read: list[int] = []

    def reading(*said: Any) -> list[int]:
        read.append(said[2])
        return bad_cells(*said)

    monkeypatch.setattr(copy_actions, "bad_cells", reading)
    member.damage(4)
    node.damage(4)
    node.pipelines.upkeep.damaged(CONTAINER, upkeep_plan.WHOLE, "found by a test")
    eventually(lambda: read.count(BLOCK) > 3)
    assert read.count(OTHER) == 1
    assert [one["block"] for one in status(node)["unhealthy"]] == [BLOCK]
    member.damage(4)  # the same bit again: it is right
    eventually(lambda: is_whole(node))
    assert healthy(node)


def test_without_a_place_for_each_block_the_copy_stays_damaged_as_a_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_plan, "MAX_DAMAGED", 1)
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    member.damage(4)
    node.damage(4)
    node.pipelines.upkeep.damaged(CONTAINER, upkeep_plan.WHOLE, "found by a test")
    eventually(lambda: any("trying again" in note for note in node.notes))
    assert [one["block"] for one in status(node)["unhealthy"]] == [None]


# ---------------------------------------------------------------------------------------- what is lost, here and there


def test_a_copy_that_has_lost_rows_and_files_is_dropped(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    stop(node)
    stop(member)
    for path in node.path.parent.iterdir():
        if path.name != "closed":
            path.unlink()
    again = run("dn4", member=False)
    eventually(lambda: again.store.containers() == [])
    eventually(lambda: status(again)["unhealthy_blocks"] == 0)
    assert not again.path.parent.exists()


def test_a_copy_keeps_what_has_no_row_and_is_not_looked_at_without_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    (node.path.parent / "999.block").write_bytes(DATA)
    looks: list[int] = []
    drop = node.pipelines.copies.drop_if_deleted

    def counted(container_id: int) -> bool:
        looks.append(container_id)
        return drop(container_id)

    monkeypatch.setattr(node.pipelines.copies, "drop_if_deleted", counted)
    delete_at(member, BLOCK)
    delete_at(member, OTHER)
    fetch(node, member)
    eventually(lambda: not node.path.exists())
    time.sleep(0.3)
    assert len(looks) < 10
    assert (node.path.parent / "999.block").exists()


def test_a_source_without_rows_does_not_restore_a_copy(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    upkeep, rows = node.pipelines.upkeep, node.path.parent / "rows"
    table = member.replica.store.tables["blockTable"]
    kept = dict(table)
    table.clear()
    rows.unlink()
    upkeep.damaged(CONTAINER, upkeep_plan.WHOLE, "found by a test")
    eventually(lambda: any("has no rows there" in note for note in node.notes))
    assert not rows.exists()
    assert not healthy(node)
    table.update(kept)
    eventually(lambda: rows.exists() and is_whole(node))


def test_rows_that_can_be_read_by_now_are_not_replaced(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    rows = node.pipelines.copies.rows(CONTAINER)
    before = [(block_key(CONTAINER, local_id), rows[local_id]) for local_id in sorted(rows)]
    deleted = DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=BLOCK)])
    node.pipelines.handle(deleted)
    assert not node.pipelines.copies.restore_rows(CONTAINER, before)
    assert node.pipelines.copies.stored(CONTAINER)[BLOCK].deleted


def test_a_disk_that_does_not_tell_has_no_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node = run("dn4", member=False)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fails)
        assert not has_rows(node.store, CONTAINER)


def test_cells_that_came_are_fsynced_though_the_source_broke_off(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    node = run("dn4", member=False)
    synced: list[None] = []
    sync = BlockFileWriter.sync
    monkeypatch.setattr(BlockFileWriter, "sync", lambda self: [synced.append(None), sync(self)][1])  # type: ignore[func-returns-value]

    class Broken:
        def __init__(self, cells: int) -> None:
            self.cells = cells

        def read_block(self, _: Any) -> Iterator[tuple[int, memoryview, int]]:
            for cell in range(self.cells):
                yield cell * CELL, memoryview(DATA[cell * CELL : (cell + 1) * CELL]), 0
            raise BlockError(codes.FAILED, "the connection broke")

    ask = copy_actions.ask_for(CONTAINER, BLOCK)
    for cells in (0, 2):
        fetched: set[int] = set()
        peer: Any = Broken(cells)
        with pytest.raises(BlockError, match="broke"):
            fetch_cells(node.store, peer, ask, (CONTAINER, BLOCK), row_of(), [0, 1, 2], fetched, sync=True)
        assert (len(fetched), len(synced)) == (cells, cells // 2)


def test_a_copy_that_comes_back_while_it_is_forgotten_is_looked_at(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    upkeep = node.pipelines.upkeep
    upkeep.stop()
    upkeep.gone(CONTAINER)
    assert LookAt(CONTAINER) in upkeep._plan._looks
    assert status(node)["unconfirmed"] == 1
    node.store.recount(CONTAINER)
    upkeep.damaged(CONTAINER, BLOCK, "found by a test")
    shutil.rmtree(node.path.parent)
    node.store.recount(CONTAINER)
    upkeep._copies._blocks._containers._known.clear()
    upkeep.gone(CONTAINER)
    assert (LookAt(CONTAINER) in upkeep._plan._looks, len(upkeep._plan._repairs), upkeep.unhealthy_blocks()) == (
        False,
        0,
        0,
    )


def test_a_source_that_is_too_long_is_not_kept(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    request = FetchContainer(partition=PARTITION, container_id=CONTAINER, sources=["x" * 60_000 + ":1"])
    with pytest.raises(BlockError, match="60002 characters") as caught:
        node.pipelines.handle(request)
    assert caught.value.code == codes.INVALID_REQUEST
    assert node.pipelines.upkeep._sources.of(CONTAINER) == (member.address,)


def test_whom_to_ask_is_kept_though_the_datanode_ends_right_after_it_was_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = run("dn4", member=False)
    fetch(node, run("dn1"))
    eventually(lambda: is_settled(node))
    monkeypatch.setattr(upkeep_plan, "SAVE_S", 3600.0)
    node.pipelines.upkeep.named(CONTAINER, ["127.0.0.1:1"])
    node.pipelines.upkeep.stop()
    assert CopySources(node.config.data_dir / SOURCES_FILE).of(CONTAINER)[0] == "127.0.0.1:1"


@pytest.mark.parametrize("source", [".:1", "a..b:1", f"{'x' * 300}:1", "nobody", "\ud800:1"], ids=ascii)
def test_a_source_that_is_no_address_ends_nothing(run: Run, source: str) -> None:
    """They come with FetchContainer, from anybody, and are kept over a start."""
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    upkeep = node.pipelines.upkeep
    upkeep.named(CONTAINER, [source])
    node.damage(2)
    upkeep.damaged(CONTAINER, BLOCK, "found by a test")
    eventually(lambda: is_whole(node) and healthy(node))
    assert upkeep._thread.is_alive()


def test_a_failure_that_nobody_expects_ends_the_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its thread nobody would repair copies, and nobody would know."""
    heard: list[BaseException] = []
    node = run("dn4", member=False, fatal=heard.append)
    upkeep = node.pipelines.upkeep
    failure = MemoryError("as if")

    def fail() -> None:
        raise failure

    monkeypatch.setattr(upkeep, "save", fail)
    upkeep.named(CONTAINER, ["127.0.0.1:1"])
    eventually(lambda: heard == [failure])


def test_a_copy_that_was_confirmed_stays_so_when_its_sources_are_named(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    upkeep = node.pipelines.upkeep
    upkeep.stop()
    stop(member)
    upkeep._stopping.clear()
    upkeep.named(CONTAINER, ["127.0.0.1:1"])
    upkeep._look(CONTAINER)
    assert status(node)["unconfirmed"] == 0
    assert upkeep._plan.state_of(CONTAINER) is CopyState.FRESH, (
        "it is to be looked at twice when a member is heard again"
    )


def test_a_repair_ends_with_the_datanode(run: Run) -> None:
    node = run("dn4", member=False)
    fetch(node, run("dn1"))
    eventually(lambda: is_settled(node))
    node.damage(2)
    upkeep = node.pipelines.upkeep
    upkeep.stop()
    with pytest.raises(BlockError, check=lambda error: error.code == codes.STOPPING):
        upkeep._work.repair_block(CONTAINER, BLOCK, row_of())


# ------------------------------------------------------------------------------------------- a disk that does not answer


def test_a_copy_whose_files_cannot_be_looked_at_is_damaged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    stop(node)
    actions = node.pipelines.upkeep._actions
    found: list[tuple[int, int, str]] = []
    monkeypatch.setattr(actions, "_found", lambda *given: found.append(given))

    def fail(*_: Any) -> int:
        raise BlockError(codes.FAILED, "look at it: Input/output error")

    monkeypatch.setattr(node.store, "written_length", fail)
    rows = actions.rows(CONTAINER)
    actions.compare_lengths(CONTAINER, rows)
    assert found == [
        (CONTAINER, local_id, f"the copy of block {CONTAINER}/{local_id} here: look at it: Input/output error")
        for local_id in (BLOCK, OTHER)
    ]


def test_a_deletion_that_fails_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    fetch(node, member)
    eventually(lambda: is_settled(node))
    stop(node)
    actions = node.pipelines.upkeep._actions

    def fail(*_: Any, **__: Any) -> None:
        raise BlockError(codes.FAILED, "delete it: Input/output error")

    monkeypatch.setattr(node.store, "delete", fail)
    asked = DeleteHere((BLOCK,), "dn1")
    assert actions.delete(CONTAINER, asked) == NotDeleted(f"{codes.FAILED}: delete it: Input/output error")
    assert node.path.exists()


def test_sources_that_cannot_be_written_are_only_noted(run: Run) -> None:
    node = run("dn4", member=False)
    file = node.config.data_dir / SOURCES_FILE
    file.with_suffix(".new").mkdir()
    node.pipelines.upkeep.named(CONTAINER, ["127.0.0.1:1"])
    eventually(lambda: "the sources of copies are not written: Is a directory" in node.notes)


# ------------------------------------------------------------------------------------------------------- being woken


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the thread rest until something is due, or it is woken."""
    monkeypatch.setattr(copy_upkeep, "IDLE_WAIT_S", 600.0)
    monkeypatch.setattr(upkeep_plan, "SETTLE_S", 600.0)


def rests(node: Node) -> bool:
    return bool(node.pipelines.upkeep._lock._waiters)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("sleepy")
def test_who_rests_is_woken_by_damage_by_names_and_by_deletions(run: Run) -> None:
    member, node = run("dn1"), run("dn4", member=False)
    upkeep = node.pipelines.upkeep
    eventually(lambda: rests(node))
    fetch(node, member)
    eventually(lambda: is_settled(node) and rests(node))
    node.damage(2)
    upkeep.damaged(CONTAINER, BLOCK, "as if")
    eventually(lambda: is_whole(node) and node.path.read_bytes() == DATA)
    eventually(lambda: rests(node))
    stop(member)
    node.damage(3)
    upkeep.damaged(CONTAINER, BLOCK, "as if")
    eventually(lambda: status(node)["unhealthy_blocks"] == 1)
    delete = DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=CONTAINER, local_id=BLOCK)])
    node.pipelines.handle(delete)
    eventually(lambda: status(node)["unhealthy_blocks"] == 0)


@pytest.mark.usefixtures("sleepy")
def test_who_rests_ends_when_it_is_told(run: Run) -> None:
    node = run("dn4", member=False)
    upkeep = node.pipelines.upkeep
    eventually(lambda: rests(node))
    assert upkeep._thread.daemon
    upkeep.stop()
    assert not upkeep._thread.is_alive()


def test_a_failure_when_it_ends_already_is_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[BaseException] = []
    node = run("dn4", member=False, fatal=heard.append)
    upkeep = node.pipelines.upkeep

    def fail() -> None:
        upkeep._stopping.set()
        raise MemoryError("as if")

    monkeypatch.setattr(upkeep, "save", fail)
    upkeep.named(CONTAINER, ["127.0.0.1:1"])
    upkeep._thread.join(30)
    assert not upkeep._thread.is_alive()
    assert not heard
