"""Block deletion over an in-memory shard: what is asked of datanodes, and when rows are purged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.execution.requests.blocks import SMALL_FILES_RUN
from om_processors.fleet import block_deletion
from om_processors.fleet.block_deletion import BlockDeletion
from om_processors.fleet.core.deletion_grace import MARKS
from om_processors.fleet.core.fleet import Fleet, Picture
from om_processors.namespace import tables
from replicated_db.core.ports import RowPage
from replicated_db.core.tables.memory import ManualClock
from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE, SNAPSHOT_TABLE
from schemas.features import DELETION_GRACE
from schemas.records.datanode import BlocksDeleted, DeleteBlocks
from schemas.records.messages import (
    CommitKey,
    CreateKey,
    CreateSnapshot,
    DeleteKey,
    DeleteSnapshot,
    ExpireOpenKeys,
    PurgeBlocks,
    PurgeSnapshots,
    ReleaseBlocks,
    RequestBody,
    ReserveBlocks,
)
from tests.support.om.fleets import CLUSTER, TIMEOUT_MS, container, heartbeat, pipeline_row, report
from tests.support.om.om_world import World

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}


class Post:
    """Takes what is sent and proposed; answers when it is told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, str, DeleteBlocks, Any]] = []
        self.proposed: list[PurgeBlocks] = []

    def send(self, key: Any, address: str, request: Any, *, datanode: str, done: Any) -> bool:
        assert address == f"{datanode}:1"
        if any(key == one[0] for one in self.sent):
            return False
        self.sent.append((key, address, request, done))
        return True

    def propose(self, key: Any, body: RequestBody) -> bool:
        assert isinstance(body, PurgeBlocks)
        self.proposed.append(body)
        return True

    def answer(self) -> None:
        sent, self.sent = self.sent, []
        for _, _, request, done in sent:
            done(BlocksDeleted(bcs_id=len(request.blocks)))


class Case:
    """A shard whose keys live on pipelines 0 to 2, as the test world's are named."""

    def __init__(self, grace_ms: int = 0) -> None:
        self.world = World().make()
        self.post = Post()
        self.clock = ManualClock(now_ms=1, elapsed=1)
        self.grace_ms = grace_ms
        self.deletion = self.led_anew()
        self.following = {0, 1, 2}
        self.copies: list[int] = []
        """Containers that dn3 holds, which is in no pipeline."""

    @property
    def position(self) -> Any:
        """The replica's."""
        return SimpleNamespace(index=self.world.index)

    @property
    def store(self) -> Any:
        """The replica's."""
        return self.world.tables

    def led_anew(self) -> BlockDeletion:
        """Return the block deletion of the next leader, which remembers nothing."""
        replica: Any = self
        post: Any = self.post
        note: Any = lambda *_, **__: None  # noqa: E731
        return BlockDeletion(0, replica, post, post, self.clock, note, self.grace_ms, lambda: self.world.now_ms)

    def written(self, name: str, blocks: int = 3) -> None:
        """Write a key."""
        session = self.world.session(CreateKey(**PLACE, key=name, size=100 * blocks))
        self.world.do(CommitKey(**PLACE, key=name, session_id=session.session_id, size=100 * blocks))

    def key(self, name: str, blocks: int = 3) -> None:
        """Write a key and delete it."""
        self.written(name, blocks)
        self.world.do(DeleteKey(**PLACE, key=name))

    def picture(self, listened_ms: int = TIMEOUT_MS) -> Picture:
        fleet = Fleet(cluster=CLUSTER, timeout_ms=TIMEOUT_MS, min_free_bytes=0, since_ms=1 - listened_ms)
        for name in ("dn1", "dn2"):
            reports = [report(number, leading=name == "dn2") for number in sorted(self.following)]
            fleet.on_heartbeat(heartbeat(name, pipelines=reports), 1)
        fleet.on_heartbeat(heartbeat("dn3", containers=[container(number) for number in self.copies]), 1)
        return fleet.picture([pipeline_row(number, ["dn1", "dn2"]) for number in range(3)], (), 1)

    def turn(self) -> None:
        self.clock.elapsed += block_deletion.REST_MS
        self.deletion.turn(self.picture())

    def rows(self) -> list[bytes]:
        return sorted(self.world.tables.tables[DELETED_TABLE])


class _Open:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_rows_go_once_every_pipeline_has_deleted():
    case = Case()
    case.key("a")
    blocks = [
        block
        for key in case.rows()
        for block in tables.decode_key(case.world.tables.get(DELETED_TABLE, key) or b"").blocks
    ]
    case.turn()
    asked = {
        request.partition: [(one.container_id, one.local_id) for one in request.blocks]
        for _, _, request, _ in case.post.sent
    }
    assert asked == {
        number: [(b.container_id, b.local_id) for b in blocks if b.container_id & 255 == number] for number in range(3)
    }  # fmt: skip
    assert {address for _, address, _, _ in case.post.sent} == {"dn2:1"}, "the leaders are asked"
    case.turn()
    assert case.post.proposed == []
    case.post.answer()
    case.turn()
    assert case.post.proposed == [PurgeBlocks(shard=0, rows=case.rows())]


def test_nothing_is_deleted_before_each_holder_of_a_copy_has_had_time_to_be_heard():
    case = Case()
    case.key("a", 1)
    case.deletion.turn(case.picture(TIMEOUT_MS - 1))
    assert case.post.sent == []
    case.deletion.turn(case.picture())
    assert len(case.post.sent) == 1


def test_a_pipeline_that_nobody_follows_keeps_its_rows_and_no_others():
    case = Case()
    case.key("a", 1)
    case.world.index += SMALL_FILES_RUN  # the next small file goes to the next pipeline
    case.key("b", 1)
    numbers = [
        tables.decode_key(case.world.tables.get(DELETED_TABLE, key) or b"").blocks[0].container_id & 255 for key in case.rows()
    ]  # fmt: skip
    assert len(set(numbers)) == 2
    case.following.discard(numbers[0])
    for _ in range(3):
        case.turn()
        case.post.answer()
    case.turn()
    assert {row for body in case.post.proposed for row in body.rows} == {case.rows()[1]}


def test_blocks_that_are_on_no_datanode_are_purged_at_once():
    case = Case()
    case.key("a", 1)
    (row,) = case.rows()
    info = tables.decode_key(case.world.tables.get(DELETED_TABLE, row) or b"")
    elsewhere = replace(info, blocks=[replace(info.blocks[0], pipeline="somewhere")])
    tx = case.world.begin()
    tables.put_deleted(tx, elsewhere)
    tx.commit()
    case.turn()
    assert case.post.sent == []
    assert case.post.proposed == [PurgeBlocks(shard=0, rows=[row])]


def test_a_purge_of_long_names_stays_below_the_limits_of_a_request():
    keys = [b"/vol1/bucket1/" + b"k" * 4000 + b"%03d" % number for number in range(500)]
    purged = block_deletion.fitting(keys)
    assert purged == keys[: len(purged)]
    assert block_deletion.MAX_PURGE_BYTES - 4100 < sum(map(len, purged)) <= block_deletion.MAX_PURGE_BYTES
    assert block_deletion.fitting([b"k" * (block_deletion.MAX_PURGE_BYTES + 1), b"l"]) == [
        b"k" * (block_deletion.MAX_PURGE_BYTES + 1)
    ]


def test_copies_elsewhere_are_deleted_before_the_row_goes():
    case = Case()
    case.key("a", 1)
    (row,) = case.rows()
    (block,) = tables.decode_key(case.world.tables.get(DELETED_TABLE, row) or b"").blocks
    case.copies = [block.container_id]
    case.turn()
    assert sorted(address for _, address, _, _ in case.post.sent) == ["dn2:1", "dn3:1"]
    copy = [one for one in case.post.sent if one[1] == "dn3:1"]
    case.post.sent = [one for one in case.post.sent if one[1] != "dn3:1"]
    case.post.answer()
    case.post.sent = copy
    case.turn()
    assert case.post.proposed == []
    case.post.answer()
    case.turn()
    assert case.post.proposed == [PurgeBlocks(shard=0, rows=[row])]


def test_a_purge_that_is_lost_is_proposed_again_after_the_blocks_were_deleted_again():
    """What was deleted is forgotten with the proposal, so that nothing is remembered for ever."""
    case = Case()
    case.key("a")
    for purges in (1, 2):
        case.turn()
        assert len(case.post.sent) == 3
        case.post.answer()
        case.turn()
        assert case.post.sent == []
        assert len(case.post.proposed) == purges
    assert case.post.proposed[0] == case.post.proposed[1]


def test_an_empty_table_rests():
    case = Case()
    case.turn()
    case.key("a", 1)
    case.deletion.turn(case.picture())
    assert case.post.sent == []
    case.turn()
    assert len(case.post.sent) == 1


def test_every_row_is_looked_at(monkeypatch):
    monkeypatch.setattr(block_deletion, "MAX_ROWS", 2)
    case = Case()
    for number in range(5):
        case.key(f"k{number}", 1)
    case.following.clear()
    seen: set[bytes] = set()
    for _ in range(4):
        case.clock.elapsed += block_deletion.REST_MS
        seen |= {key for key, _ in case.deletion._next_rows()}
    assert seen == set(case.rows())


def until_purged(case: Case, turns: int) -> list[int]:
    """Take turns, answer all that is asked, purge what is proposed, and return how many blocks each request named."""
    sizes: list[int] = []
    for _ in range(turns):
        case.turn()
        sizes += [len(request.blocks) for _, _, request, _ in case.post.sent]
        case.post.answer()
        for key in [key for purge in case.post.proposed for key in purge.rows]:
            case.world.tables.tables[DELETED_TABLE].pop(key, None)
    return sizes


def test_blocks_that_a_snapshot_needs_are_not_even_asked_for():
    case = Case()
    case.key("before", 1)
    session = case.world.session(CreateKey(**PLACE, key="kept", size=100))
    case.world.do(CommitKey(**PLACE, key="kept", session_id=session.session_id, size=100))
    case.world.do(CreateSnapshot(**PLACE, snapshot="snap1"))
    case.world.do(DeleteKey(**PLACE, key="kept"))
    case.key("after", 1)
    until_purged(case, 5)
    (row,) = case.rows()
    kept = tables.decode_key(case.world.tables.get(DELETED_TABLE, row) or b"")
    assert kept.key == "kept"
    assert [row for body in case.post.proposed for row in body.rows if b"kept" in row] == []
    case.world.do(DeleteSnapshot(**PLACE, snapshot="snap1"))
    assert until_purged(case, 5) == [], "it is not purged yet"
    case.world.do(PurgeSnapshots(shard=0, rows=sorted(case.world.tables.tables[SNAPSHOT_TABLE])))
    until_purged(case, 5)
    assert case.rows() == []


def test_rows_behind_pages_that_snapshots_need_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_deletion, "MAX_ROWS", 2)
    case = Case()
    names = [f"k{number}" for number in range(30)]
    for name in names:
        session = case.world.session(CreateKey(**PLACE, key=name, size=100))
        case.world.do(CommitKey(**PLACE, key=name, session_id=session.session_id, size=100))
    case.world.do(CreateSnapshot(**PLACE, snapshot="snap1"))
    for name in names:
        case.world.do(DeleteKey(**PLACE, key=name))
    case.key("z", 1)
    assert [key for key, _ in case.deletion._next_rows()] == [], "ten pages a turn"
    (row,) = [key for key, _ in case.deletion._next_rows()]
    assert b"/z/" in row
    until_purged(case, 8)
    assert len(case.rows()) == 30
    assert case.post.sent == []


def test_a_walk_that_finds_only_what_snapshots_need_rests():
    case = Case()
    session = case.world.session(CreateKey(**PLACE, key="kept", size=100))
    case.world.do(CommitKey(**PLACE, key="kept", session_id=session.session_id, size=100))
    case.world.do(CreateSnapshot(**PLACE, snapshot="snap1"))
    case.world.do(DeleteKey(**PLACE, key="kept"))
    case.turn()
    case.key("a", 1)
    case.deletion.turn(case.picture())
    assert case.post.sent == []
    case.turn()
    assert len(case.post.sent) == 1


def test_the_rows_are_read_before_the_snapshots():
    """Between the two reads a snapshot is made and a key that it names retired: read the other way round, its blocks would go."""
    case = Case()
    session = case.world.session(CreateKey(**PLACE, key="kept", size=100))
    case.world.do(CommitKey(**PLACE, key="kept", session_id=session.session_id, size=100))
    view = case.world.tables
    page, iterate = view.page, view.iterate
    order: list[str] = []

    def reading_rows(cf: str, start: bytes, limit: int) -> RowPage:
        if not order:
            case.world.do(CreateSnapshot(**PLACE, snapshot="snap1"))
            case.world.do(DeleteKey(**PLACE, key="kept"))
        order.append(cf)
        return page(cf, start, limit)

    def reading_snapshots(cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        if cf == SNAPSHOT_TABLE and order:
            order.append(cf)
        return iterate(cf, start, stop)

    view.page, view.iterate = reading_rows, reading_snapshots  # type: ignore[method-assign]
    case.turn()
    assert order == [DELETED_TABLE, SNAPSHOT_TABLE]
    assert (case.post.sent, case.post.proposed) == ([], [])


def test_no_request_names_more_blocks_than_a_datanode_takes(monkeypatch: pytest.MonkeyPatch):
    """Rows went in whole: 334 of three blocks were 1,002, which is refused, each time anew, and nothing in the page was ever deleted."""
    monkeypatch.setattr(block_deletion, "MAX_BLOCKS", 3)
    case = Case()
    for number in range(4):
        case.key(f"k{number}", blocks=6)  # two on each of three pipelines
    assert max(until_purged(case, 10)) == 2
    assert case.rows() == []


def test_a_row_with_more_blocks_than_a_datanode_takes_goes_in_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_deletion, "MAX_BLOCKS", 2)
    case = Case()
    case.key("large", blocks=15)  # five on each
    [row] = case.rows()
    info = tables.decode_key(case.world.tables.get(DELETED_TABLE, row) or b"")
    whole = {(block.container_id, block.local_id) for block in info.blocks}
    case.turn()
    case.post.sent.pop()  # an answer is lost: that part is asked for again
    named = {(block.container_id, block.local_id) for _, _, request, _ in case.post.sent for block in request.blocks}
    case.post.answer()
    assert case.post.proposed == []
    while case.post.proposed == []:
        case.turn()
        asked = [request.blocks for _, _, request, _ in case.post.sent]
        assert all(1 <= len(blocks) <= 2 for blocks in asked)
        named |= {(block.container_id, block.local_id) for blocks in asked for block in blocks}
        case.post.answer()
    assert named == whole, "no block is left behind when the row goes"
    assert [purge.rows for purge in case.post.proposed] == [[row]]
    assert (case.deletion._deleted, case.deletion._answered) == ({}, {}), "nothing is remembered"


def test_rows_are_purged_though_there_are_more_than_are_remembered(monkeypatch: pytest.MonkeyPatch):
    """What was deleted was forgotten before the walk came round: beyond 10,000 rows none was ever purged."""
    monkeypatch.setattr(block_deletion, "MAX_ROWS", 4)
    monkeypatch.setattr(block_deletion, "MAX_DONE", 5)
    case = Case()
    for number in range(30):
        case.key(f"k{number:02}")
    until_purged(case, 20)
    assert case.rows() == []
    case.turn()
    assert (case.deletion._deleted, case.deletion._answered) == ({}, {})


def test_rows_of_a_pipeline_that_nobody_follows_do_not_keep_others_from_being_purged(monkeypatch: pytest.MonkeyPatch):
    """A datanode that is down keeps more rows than are remembered; the others go, and these once it is back."""
    monkeypatch.setattr(block_deletion, "MAX_ROWS", 4)
    monkeypatch.setattr(block_deletion, "MAX_DONE", 5)
    case = Case()
    for number in range(20):
        case.key(f"a{number:02}")  # on all three pipelines
    for number in range(20):
        case.key(f"b{number:02}", 1)
    case.following.discard(2)
    until_purged(case, 40)
    left = [tables.decode_key(value) for value in case.world.tables.tables[DELETED_TABLE].values()]
    assert {info.key for info in left} >= {f"a{number:02}" for number in range(20)}
    assert all(any(block.container_id & 255 == 2 for block in info.blocks) for info in left)
    case.following.add(2)
    until_purged(case, 60)
    assert case.rows() == []


def test_a_purge_that_is_not_proposed_is_proposed_in_the_next_turn(monkeypatch: pytest.MonkeyPatch):
    case = Case()
    case.key("a")
    case.turn()
    case.post.answer()
    with monkeypatch.context() as patch:
        patch.setattr(case.post, "propose", lambda *_: False)
        case.turn()
    case.turn()
    assert case.post.sent == [], "no block is deleted again"
    assert [purge.rows for purge in case.post.proposed] == [case.rows()]


def test_what_has_gone_meanwhile_is_forgotten():
    """Another leader has purged the row."""
    case = Case()
    case.key("a")
    case.turn()
    case.post.answer()
    case.world.tables.tables[DELETED_TABLE].clear()
    case.turn()
    assert (case.deletion._deleted, case.deletion._answered, case.post.proposed) == ({}, {}, [])


GRACE_MS = 60_000


def later(case: Case, ms: int) -> list[bytes]:
    """Let time pass, delete and purge what may be, and return the rows that are left."""
    case.world.now_ms += ms
    until_purged(case, 4)
    return case.rows()


def test_an_open_reader_goes_on_for_the_grace():
    """Its blocks were deleted two seconds after its key was replaced or deleted, whatever it had still to read."""
    case = Case(GRACE_MS)
    case.key("deleted")
    deleted_ms = case.world.now_ms
    case.written("replaced")
    case.written("replaced")
    replaced_ms = case.world.now_ms
    assert len(later(case, 0)) == 2
    assert len(later(case, deleted_ms + GRACE_MS - 1 - case.world.now_ms)) == 2
    assert case.post.proposed == []
    (row,) = later(case, 1)
    assert row.startswith(b"/vol1/bucket1/replaced/"), "each has its own time"
    assert later(case, replaced_ms + GRACE_MS - case.world.now_ms) == []


def test_the_time_since_deletion_counts_and_not_the_age_of_the_key():
    case = Case(GRACE_MS)
    case.written("old")
    case.world.now_ms += 100 * GRACE_MS
    case.world.do(DeleteKey(**PLACE, key="old"))
    assert len(later(case, GRACE_MS - 1)) == 1
    assert later(case, 1) == []


def test_blocks_that_were_never_a_committed_keys_go_at_once():
    case = Case(GRACE_MS)
    opened = case.world.session(CreateKey(**PLACE, key="vanished", size=300))
    case.world.do(ExpireOpenKeys(shard=0, modified_before_ms=case.world.now_ms + 1, rows=[opened_row(case)]))
    used = case.world.session(CreateKey(**PLACE, key="shorter", size=300))
    case.world.do(CommitKey(**PLACE, key="shorter", session_id=used.session_id, size=100, blocks=used.blocks[:1]))
    reserved = case.world.session(ReserveBlocks(**PLACE, count=3))
    case.world.do(ReleaseBlocks(**PLACE, session_id=reserved.session_id))
    assert len(case.rows()) == 3
    assert opened.blocks
    assert later(case, 0) == []


def opened_row(case: Case) -> bytes:
    (row,) = case.world.tables.tables[OPEN_KEY_TABLE]
    return row


@pytest.mark.parametrize("changes", [0, 3])
def test_a_change_of_leader_does_not_begin_a_stamped_grace_anew(changes: int):
    case = Case(GRACE_MS)
    case.key("a")
    for _ in range(changes):
        assert len(later(case, GRACE_MS // 4)) == 1
        case.deletion = case.led_anew()
    assert later(case, GRACE_MS - changes * (GRACE_MS // 4)) == []


def test_rows_without_a_stamp_wait_for_a_grace_from_when_their_leader_first_sees_them():
    """Such a row looks as old as its key: it must not be taken for one that has waited."""
    case = Case(GRACE_MS)
    case.world.level = DELETION_GRACE - 1
    case.written("a")
    case.world.now_ms += 100 * GRACE_MS
    case.world.do(DeleteKey(**PLACE, key="a"))
    assert len(later(case, 0)) == 1
    assert len(later(case, GRACE_MS - 1)) == 1
    case.deletion = case.led_anew()
    assert len(later(case, GRACE_MS - 1)) == 1, "the next leader does not know for how long it has waited"
    assert len(later(case, GRACE_MS - 1)) == 1
    assert later(case, 1) == []


def test_any_number_of_rows_without_a_stamp_go_and_nothing_is_remembered_of_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_deletion, "MAX_DONE", 5)
    case = Case(GRACE_MS)
    case.world.level = DELETION_GRACE - 1
    for number in range(100):
        case.key(f"k{number:03}", 1)
    assert len(later(case, GRACE_MS // 2)) == 100
    most = 0
    for _ in range(40):
        case.world.now_ms += GRACE_MS // 30
        case.turn()
        most = max(most, len(case.deletion._grace._marks))
    until_purged(case, 40)
    assert case.rows() == []
    assert most <= MARKS + 1


def test_rows_in_their_grace_do_not_hold_up_others_and_the_walk_rests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_deletion, "MAX_ROWS", 2)
    case = Case(GRACE_MS)
    case.key("z", 1)
    case.world.now_ms += GRACE_MS
    for number in range(30):
        case.key(f"k{number:02}", 1)
    assert len(later(case, 0)) == 30
    until_purged(case, 4)
    case.deletion.turn(case.picture())
    assert case.deletion._rest_until_ms > case.clock.elapsed, "a walk that found nothing rests"
    case.world.now_ms += GRACE_MS
    until_purged(case, 60)
    assert case.rows() == []


def test_a_grace_of_nothing_is_as_before():
    case = Case(0)
    case.world.level = DELETION_GRACE - 1
    case.key("a")
    case.world.level = DELETION_GRACE
    case.key("b")
    assert later(case, 0) == []
