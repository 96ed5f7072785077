"""Open keys that nobody touches: what the cleanup proposes, and what comes of it, over an in-memory shard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.execution.requests.key import MAX_EXPIRED_ROWS
from om_processors.fleet import open_key_cleanup
from om_processors.fleet.open_key_cleanup import MAX_BYTES, REST_MS, OpenKeyCleanup, OpenKeyCleanupLoop, fitting
from om_processors.namespace import tables
from replicated_db.core.tables.memory import ManualClock
from schemas.codecs.codec import encode
from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE
from schemas.features import DATANODES, OPEN_KEY_EXPIRY
from schemas.records.messages import AllocateBlock, CommitKey, CreateKey, ExpireOpenKeys, KeySession, RequestBody
from schemas.topics import MAX_REQUEST_BYTES
from tests.support.om.om_world import World, request_of

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
THRESHOLD_MS = 10_000_000


class Log:
    """The time of the shard's log: the clock's, unless it stands."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.stands_at_ms: int | None = None

    @property
    def timestamp_ms(self) -> int:
        return self.clock.now_ms if self.stands_at_ms is None else self.stands_at_ms


class Case:
    """A shard and its cleanup; what is proposed is executed when the test says so."""

    def __init__(self, threshold_ms: int = THRESHOLD_MS) -> None:
        self.world = World().make()
        self.clock = ManualClock(now_ms=self.world.now_ms, elapsed=1)
        self.proposed: list[ExpireOpenKeys] = []
        self.willing = True
        self.log = Log(self.clock)
        self.replica = SimpleNamespace(store=self.world.tables, state=SimpleNamespace(feature_level=OPEN_KEY_EXPIRY))
        self.notes: list[str] = []
        replica: Any = self.replica
        proposer: Any = self
        self.cleanup = OpenKeyCleanup(
            0, replica, proposer, threshold_ms, self.clock, lambda text, **_: self.notes.append(text),
            lambda: self.log.timestamp_ms,
        )  # fmt: skip

    def propose(self, key: Any, body: RequestBody) -> bool:
        assert isinstance(body, ExpireOpenKeys)
        assert key == ("expire", body.shard, body.rows[0], len(body.rows))
        if self.willing:
            self.proposed.append(body)
        return self.willing

    def open(self, name: str, size: int = 0, **more: Any) -> KeySession:
        self.world.now_ms = self.clock.now_ms
        return self.world.session(CreateKey(**PLACE, key=name, size=size, **more))

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.world.now_ms = self.clock.now_ms

    def turn(self) -> None:
        """Take a turn, and execute what it proposes."""
        before = len(self.proposed)
        self.cleanup.turn()
        for body in self.proposed[before:]:
            self.world.do(body)

    def names(self) -> list[str]:
        return sorted(tables.decode_key(value).key for value in self.world.tables.tables[OPEN_KEY_TABLE].values())


def test_what_nobody_touches_expires_and_what_is_touched_stays():
    case = Case()
    case.open("vanished", 250)
    alive = case.open("alive", 100)
    case.advance(THRESHOLD_MS // 2)
    case.world.block(AllocateBlock(**PLACE, key="alive", session_id=alive.session_id))
    case.turn()
    assert case.proposed == []
    case.advance(THRESHOLD_MS // 2 + 1_000)
    case.turn()
    assert case.names() == ["alive"]
    assert case.notes == ["1 rows of openKeyTable are to expire"]
    (left,) = (tables.decode_key(value) for value in case.world.tables.tables[DELETED_TABLE].values())
    assert (left.key, left.size, len(left.blocks)) == ("vanished", 0, 3)
    case.world.do(CommitKey(**PLACE, key="alive", session_id=alive.session_id, size=200))


def test_an_open_key_stays_until_it_is_older_than_the_threshold():
    case = Case()
    case.open("k")
    (row,) = case.world.tables.tables[OPEN_KEY_TABLE]
    opened_ms = case.world.now_ms
    case.clock.now_ms = opened_ms + THRESHOLD_MS
    case.turn()
    assert case.proposed == []
    case.advance(REST_MS)
    case.turn()
    assert case.proposed == [ExpireOpenKeys(shard=0, modified_before_ms=opened_ms + REST_MS, rows=[row])]
    assert case.names() == []


def test_a_wall_clock_that_jumps_ends_nothing():
    case = Case()
    case.open("k")
    case.log.stands_at_ms = case.clock.now_ms
    case.turn()
    case.clock.now_ms += 10 * THRESHOLD_MS
    case.clock.elapsed += REST_MS
    case.turn()
    assert case.proposed == []


def test_nothing_is_proposed_before_the_feature_level():
    case = Case()
    case.open("k")
    case.advance(THRESHOLD_MS * 2)
    case.replica.state.feature_level = DATANODES
    case.turn()
    assert case.proposed == []
    case.replica.state.feature_level = OPEN_KEY_EXPIRY
    case.turn()
    assert case.names() == []


@pytest.mark.parametrize(("threshold_ms", "rest_ms"), [(THRESHOLD_MS, REST_MS), (2_000, 2_000)])
def test_it_rests_after_the_tables_end(threshold_ms: int, rest_ms: int):
    case = Case(threshold_ms)
    case.turn()
    case.open("k")
    (value,) = case.world.tables.tables[OPEN_KEY_TABLE].values()
    case.clock.now_ms = tables.decode_key(value).modification_time_ms + threshold_ms + 1
    case.clock.elapsed += rest_ms - 1
    case.turn()
    assert case.proposed == []
    case.clock.elapsed += 1
    case.turn()
    assert len(case.proposed) == 1


def test_every_row_is_looked_at_and_no_row_hides_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_key_cleanup, "MAX_ROWS", 2)
    case = Case()
    for number in range(7):
        case.open(f"k{number}")
    case.advance(THRESHOLD_MS + 1_000)
    case.open("a-young-one")
    case.open("k3-young")
    case.willing = False
    for _ in range(5):
        case.turn()
    assert case.proposed == []
    case.willing = True
    case.advance(REST_MS)
    for _ in range(5):
        case.turn()
    assert case.names() == ["a-young-one", "k3-young"]
    assert [len(body.rows) for body in case.proposed] == [1, 2, 1, 2, 1]
    case.turn()
    assert len(case.proposed) == 5, "it rests"


def test_a_table_that_ends_with_a_turn_is_at_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_key_cleanup, "MAX_ROWS", 2)
    case = Case()
    for number in range(2):
        case.open(f"k{number}")
    case.advance(THRESHOLD_MS + 1_000)
    case.turn()
    assert (case.names(), case.cleanup._cursor.at_end) == ([], True)


def test_what_a_turn_proposes_is_within_the_limits():
    """Long names, and rows of many blocks: the request and its operations must be taken."""
    case = Case()
    name = "n" * 4000
    for number in range(300):
        case.open(f"{name}{number:03}", 100 * 60)
    case.advance(THRESHOLD_MS + 1_000)
    turns = 0
    while case.names():
        turns += 1
        case.turn()
    assert turns == len(case.proposed) > 1
    for body in case.proposed:
        assert 1 <= len(body.rows) <= MAX_EXPIRED_ROWS
        assert len(encode(request_of(body))) < MAX_REQUEST_BYTES
    assert len(case.world.tables.tables[DELETED_TABLE]) == 300


def test_a_row_that_is_larger_than_a_turn_goes_alone():
    case = Case()
    case.open("a")
    case.open("b", 100, metadata={"x": "y" * (MAX_BYTES + 1)})
    case.open("c")
    case.advance(THRESHOLD_MS + 1_000)
    for _ in range(3):
        case.turn()
    assert [len(body.rows) for body in case.proposed] == [1, 1, 1]
    (left,) = case.world.tables.tables[DELETED_TABLE].values()
    assert len(left) < 1_000, "without its metadata"


def test_a_key_that_is_committed_on_the_way_is_left_alone():
    case = Case()
    session = case.open("k", 100)
    case.advance(THRESHOLD_MS + 1_000)
    case.cleanup.turn()
    case.world.do(CommitKey(**PLACE, key="k", session_id=session.session_id, size=100))
    before = case.world.tables.rows()
    case.world.do(case.proposed[0])
    assert case.world.tables.rows() == before
    assert case.world.writes == []


def test_the_loop_acts_for_the_shards_that_are_led():
    cases = {0: Case(), 1: Case()}
    for case in cases.values():
        case.open("k")
        case.advance(THRESHOLD_MS + 1_000)
    now_ms = cases[1].clock.now_ms
    loops: Any = {
        shard: SimpleNamespace(leading=shard == 1, replica=case.replica, log_time_ms=lambda: now_ms)
        for shard, case in cases.items()
    }
    proposer: Any = cases[0]
    failures: list[BaseException] = []
    loop = OpenKeyCleanupLoop(loops, proposer, THRESHOLD_MS, cases[1].clock, lambda *_, **__: None, failures.append)
    loop.turn()
    assert [body.shard for body in cases[0].proposed] == [1]
    loop.close()
    assert failures == []


def test_rows_fit_with_their_names_counted_twice():
    """A name is in the request, and in the operation that the request becomes."""
    half = MAX_BYTES // 2
    exact = [(bytes(half // 2), bytes(half - 2 * (half // 2))), (bytes(half // 2), b"")]
    assert list(fitting(exact)) == exact
    assert list(fitting([(bytes(half // 2), b""), (bytes(half // 2), b"xx")])) == [(bytes(half // 2), b"")]
    assert list(fitting([(bytes(MAX_BYTES), b""), (b"k", b"")])) == [(bytes(MAX_BYTES), b"")]
    assert list(fitting([])) == []
