"""When regular trimming logs a base and when it trims, over a trimmer whose log is a list of ages."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.fleet import log_trimming
from om_processors.fleet.log_trimming import (
    BASES_KEPT,
    BASIS,
    LEAST_INTERVAL_MS,
    TURN_S,
    BaseAnswer,
    LogTrimLoop,
    OMLogTrimming,
)
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.tables.memory import ManualClock
from replicated_db.core.trimming.trim_rule import RuleFinding, TrimDecision, TrimWish
from schemas.records.messages import OWN_DIGESTS, LogDigestBase
from tests.support.local.secret import SECRET

KEEP_MS = 100 * LEAST_INTERVAL_MS * BASES_KEPT
INTERVAL_MS = KEEP_MS // BASES_KEPT


class Trimming:
    """What the loop asks of OMLogTrimming; it answers what the test says."""

    def __init__(self) -> None:
        self.ages_ms: list[int] = []
        self.first_ms = 0
        self.base = BaseAnswer(asked=True, index=1)
        self.decision = held("members", "om3 is a member and its position is not known")
        self.error: Exception | None = None
        self.done: list[str] = []
        self.wishes: list[TrimWish] = []

    def leads(self, shard: int) -> bool:
        return shard == 0

    def base_ages_ms(self, _shard: int) -> list[int]:
        if self.error is not None:
            raise self.error
        return self.ages_ms

    def age_ms(self, _shard: int) -> int:
        return self.first_ms

    def log_base(self, _shard: int, _addresses: Mapping[str, str]) -> BaseAnswer:
        self.done.append("base")
        return self.base

    def trim(self, _shard: int, wish: TrimWish, _addresses: Mapping[str, str]) -> TrimDecision:
        self.done.append("trim")
        self.wishes.append(wish)
        return self.decision


def held(rule: str, why: str, records: int = 0) -> TrimDecision:
    finding = RuleFinding(rule=rule, allows=records, why=why)
    return TrimDecision(first=0, end=100, offset=records, base=None, findings=(finding,), held_by=finding)


@pytest.fixture
def trimming() -> Trimming:
    return Trimming()


def loop(trimming: Any, notes: list[str], fatal: list[BaseException]) -> LogTrimLoop:
    return LogTrimLoop(trimming, 2, KEEP_MS, lambda text, **_: notes.append(text), fatal.append)


@pytest.mark.parametrize(
    ("ages_ms", "first_ms", "done"),
    [
        ([], 0, []),
        ([], INTERVAL_MS, ["base"]),
        ([INTERVAL_MS - 1], KEEP_MS, []),
        ([INTERVAL_MS], KEEP_MS, ["base"]),
        ([KEEP_MS, 0], KEEP_MS, ["trim"]),
        ([KEEP_MS, INTERVAL_MS], KEEP_MS, ["base", "trim"]),
    ],
)
def test_what_is_due(trimming: Trimming, ages_ms: list[int], first_ms: int, done: list[str]) -> None:
    trimming.ages_ms, trimming.first_ms = ages_ms, first_ms
    loop(trimming, [], []).turn(0)
    assert trimming.done == done
    assert all(wish == TrimWish(keep_ms=KEEP_MS) for wish in trimming.wishes)


def test_a_reason_is_told_once(trimming: Trimming) -> None:
    notes: list[str] = []
    trimming.ages_ms = [KEEP_MS, 0]
    turning = loop(trimming, notes, [])
    turning.turn(0)
    turning.turn(0)
    assert notes == ["the log is not trimmed: om3 is a member and its position is not known"]
    trimming.decision = held("base", "none is old enough", records=7)
    turning.turn(0)
    assert notes[1:] == ["the log is trimmed to offset 7, 7 records are deleted"]


def test_nothing_is_trimmed_while_no_base_may_be_logged(trimming: Trimming) -> None:
    notes: list[str] = []
    trimming.ages_ms = [KEEP_MS, INTERVAL_MS]
    trimming.base = BaseAnswer(asked=False, index=1, why="om2 has another digest")
    loop(trimming, notes, []).turn(0)
    assert (trimming.done, notes) == (["base"], ["no base is logged: om2 has another digest"])


def test_silent_brokers_are_asked_again_and_a_broken_store_ends_the_process(trimming: Trimming) -> None:
    notes: list[str] = []
    fatal: list[BaseException] = []
    turning = loop(trimming, notes, fatal)
    trimming.error = LogUnavailable("no broker")
    turning.turn(0)
    assert notes == ["not trimmed: no broker"]
    trimming.error = StoreFailure("RocksDB: sync")
    turning.turn(0)
    assert fatal == [trimming.error]


def test_without_a_time_nothing_runs(trimming: Trimming) -> None:
    idle = LogTrimLoop(trimming, 2, 0, lambda *_, **__: None, pytest.fail)  # type: ignore[arg-type]
    idle.run()
    assert trimming.done == []


class Once:
    """An event that is waited for in vain so many times, and then set."""

    def __init__(self, turns: int) -> None:
        self.left = turns
        self.waited: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waited.append(timeout_s)
        self.left -= 1
        return self.left < 0

    def is_set(self) -> bool:
        return self.left < 0


def test_each_turn_looks_at_the_shards_that_the_node_leads(trimming: Trimming) -> None:
    trimming.first_ms = INTERVAL_MS
    turning = loop(trimming, [], [])
    assert turning._thread.name == "log trimming"
    stop: Any = Once(2)
    turning._stop = stop
    turning.run()
    assert trimming.done == ["base", "base"], "of two shards it leads one"
    assert stop.waited == [TURN_S] * 3


def test_who_is_told_to_end_begins_no_further_shard(trimming: Trimming, monkeypatch: pytest.MonkeyPatch) -> None:
    turning = loop(trimming, [], [])
    stop: Any = Once(1)
    turning._stop = stop
    turned: list[int] = []
    monkeypatch.setattr(trimming, "leads", lambda _: True)

    def turn(shard: int) -> None:
        turned.append(shard)
        stop.left = -1

    monkeypatch.setattr(turning, "turn", turn)
    turning.run()
    assert turned == [0]


class Trimmer:
    """The trimmer below: says whether a base may be logged, and keeps what it is asked."""

    def __init__(self) -> None:
        self.against: str | None = None
        self.asked: list[tuple[Any, ...]] = []

    def agreed(self, *given: Any) -> str | None:
        self.asked.append(("agreed", *given))
        return self.against

    def look(self, *given: Any) -> TrimDecision:
        self.asked.append(("look", *given))
        return held("members", "nobody")

    def trim(self, *given: Any) -> TrimDecision:
        self.asked.append(("trim", *given))
        return held("members", "nobody", records=3)

    def base_ages_ms(self, shard: int, bases: Any) -> list[int]:
        return [shard, *bases]

    def age_ms(self, shard: int) -> int:
        return 100 + shard

    def close(self) -> None:
        self.asked.append(("close",))


class Shard:
    """A node that leads shard 1, its replica and its proposer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[tuple[int, ...]] = []
        self.bases: tuple[Any, ...] = ()
        self.index = 9
        self.proposed: list[Any] = []
        this: Any = self
        config: Any = SimpleNamespace(
            bootstrap_servers="127.0.0.1:1", cluster="c", secret=SECRET, node_addresses=(("om1", "settings:1"),)
        )
        loops: Any = {shard: SimpleNamespace(leading=shard == 1, replica=self) for shard in (0, 1)}
        group = {"om1": "group:1", "om2": "group:2", "om3": "group:3"}
        monkeypatch.setattr(log_trimming, "_group_addresses", lambda _: group)
        self.trimming = OMLogTrimming(config, "topic", loops, this, ManualClock(), lambda shard: (70 + shard,))
        trimmer: Any = Trimmer()
        self.trimmer = trimmer
        self.trimming._trimmer.close()
        self.trimming._trimmer = trimmer

    def durable_place(self, holds: tuple[int, ...]) -> Any:
        self.held.append(holds)
        return SimpleNamespace(bases=self.bases, index=self.index)

    def propose(self, key: Any, body: Any) -> bool:
        self.proposed.append((key, body))
        return True


ALL = {"om1": "settings:1", "om2": "operator:2", "om3": "group:3"}


def test_members_are_asked_where_the_settings_the_operator_or_the_brokers_say(monkeypatch: pytest.MonkeyPatch):
    case = Shard(monkeypatch)
    assert (case.trimming.leads(0), case.trimming.leads(1)) == (False, True)
    wish = TrimWish(keep_ms=5)
    told = {"om1": "operator:1", "om2": "operator:2"}
    assert case.trimming.look(1, wish, told).records == 0
    assert case.trimming.trim(1, wish, told).records == 3
    for asked, what in zip(case.trimmer.asked, ("look", "trim"), strict=True):
        assert (asked[:2], asked[3], asked[4]) == ((what, 1), ALL, wish)
    assert case.held == [(71,)] * 2, "what transfers of this node hold is told"
    case.bases = (4,)
    assert case.trimming.base_ages_ms(1) == [1, 4]
    assert case.trimming.age_ms(1) == 101
    case.trimming.close()
    assert case.trimmer.asked[-1] == ("close",)


def test_a_base_is_proposed_once_for_a_state(monkeypatch: pytest.MonkeyPatch):
    case = Shard(monkeypatch)
    assert case.trimming.log_base(1, {}) == BaseAnswer(asked=True, index=9)
    body = LogDigestBase(shard=1, index=OWN_DIGESTS, slots=[], sums=[], basis=BASIS)
    assert case.proposed == [(("base", 1, 9), body)]
    case.bases = (SimpleNamespace(index=4), SimpleNamespace(index=8))
    assert case.trimming.log_base(1, {}) == BaseAnswer(asked=False, index=8), "nothing has happened since but the base"
    case.index = 10
    assert case.trimming.log_base(1, {}).asked
    case.trimmer.against = "om2 has another digest"
    assert case.trimming.log_base(1, {}) == BaseAnswer(asked=False, index=10, why="om2 has another digest")
    assert [key for key, _ in case.proposed] == [("base", 1, 9), ("base", 1, 10)]


def test_without_brokers_nobody_is_known_from_the_group(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_trimming, "GROUP_TIMEOUT_S", 0.05)
    assert log_trimming._group_addresses("127.0.0.1:1") == {}
