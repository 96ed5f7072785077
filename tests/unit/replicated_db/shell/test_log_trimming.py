"""When regular trimming logs a base and when it trims, over a trimmer whose log is a list of ages."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.trimming.bases import Base
from replicated_db.core.trimming.places import MemberPlace
from replicated_db.core.trimming.trim_rule import RuleFinding, TrimDecision, TrimWish
from replicated_db.shell.trimming.log_trimming import (
    BASES_KEPT,
    IDLE_RECORDS,
    LEAST_INTERVAL_MS,
    TURN_S,
    BaseAnswer,
    LogTrimLoop,
    LogTrimming,
)

KEEP_MS = 100 * LEAST_INTERVAL_MS * BASES_KEPT
INTERVAL_MS = KEEP_MS // BASES_KEPT


class Trimming:
    """What the loop asks of LogTrimming; it answers what the test says."""

    def __init__(self) -> None:
        self.ages_ms: list[int] = []
        self.first_ms = 0
        self.base = BaseAnswer(asked=True, index=1)
        self.decision = held("members", "om3 is a member and its position is not known")
        self.error: Exception | None = None
        self.done: list[str] = []
        self.wishes: list[TrimWish] = []

    def led(self) -> list[int]:
        return [0]

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
    return LogTrimLoop(trimming, KEEP_MS, lambda text, **_: notes.append(text), fatal.append)


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
    idle = LogTrimLoop(trimming, 0, lambda *_, **__: None, pytest.fail)  # type: ignore[arg-type]
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


def test_each_turn_looks_at_the_shards_that_the_process_leads(trimming: Trimming) -> None:
    trimming.first_ms = INTERVAL_MS
    turning = loop(trimming, [], [])
    assert turning._thread.name == "log trimming"
    stop: Any = Once(2)
    turning._stop = stop
    turning.run()
    assert trimming.done == ["base", "base"]
    assert stop.waited == [TURN_S] * 3


def test_who_is_told_to_end_begins_no_further_shard(trimming: Trimming, monkeypatch: pytest.MonkeyPatch) -> None:
    turning = loop(trimming, [], [])
    stop: Any = Once(1)
    turning._stop = stop
    turned: list[int] = []
    monkeypatch.setattr(trimming, "led", lambda: [0, 1])

    def turn(shard: int) -> None:
        turned.append(shard)
        stop.left = -1

    monkeypatch.setattr(turning, "turn", turn)
    turning.run()
    assert turned == [0]


class Trimmer:
    """What LogTrimming asks of a LogTrimmer about members."""

    def __init__(self) -> None:
        self.why: str | None = None
        self.asked: list[Mapping[str, str]] = []

    def agreed(self, _shard: int, _own: MemberPlace, addresses: Mapping[str, str]) -> str | None:
        self.asked.append(addresses)
        return self.why


def log_trimming(trimmer: Any, *, index: int, offset: int, asked: list[tuple[int, int]]) -> LogTrimming:
    """Return the trimming of shard 3, whose last base is of index 10 and at offset 100."""
    bases = (Base(100, 10, bytes(32)),)
    place = MemberPlace(
        node="n1", cluster="test", shard=3, offset=offset, keeps_from=offset, index=index, flagged=False,
        members=("n1",), bases=bases,
    )  # fmt: skip
    replica = SimpleNamespace(durable_place=lambda _: place)
    loops: Any = {3: SimpleNamespace(leading=True, replica=replica), 4: SimpleNamespace(leading=False)}

    def ask_base(shard: int, found: int) -> str:
        asked.append((shard, found))
        return ""

    return LogTrimming(trimmer, loops, ask_base, lambda _: {"n1": "here:1", "n2": "there:2"})


@pytest.mark.parametrize(
    ("index", "offset", "is_due"),
    [(11, 200, False), (12, 200, True), (11, 100 + IDLE_RECORDS - 1, False), (11, 100 + IDLE_RECORDS, True)],
)
def test_a_base_is_asked_for_if_something_was_written_or_many_records_have_come(
    index: int, offset: int, is_due: bool
) -> None:
    asked: list[tuple[int, int]] = []
    answer = log_trimming(Trimmer(), index=index, offset=offset, asked=asked).log_base(3, {})
    assert answer == BaseAnswer(asked=is_due, index=index if is_due else 10)
    assert asked == ([(3, index)] if is_due else [])


def test_known_addresses_win_and_without_agreement_no_base_is_asked_for() -> None:
    asked: list[tuple[int, int]] = []
    trimmer = Trimmer()
    trimmer.why = "n2 has another digest"
    trimming = log_trimming(trimmer, index=50, offset=200, asked=asked)
    answer = trimming.log_base(3, {"n2": "elsewhere:9", "n3": "new:3"})
    assert (answer.asked, answer.why, asked) == (False, "n2 has another digest", [])
    assert trimmer.asked == [{"n1": "here:1", "n2": "there:2", "n3": "new:3"}]
    assert trimming.led() == [3]
    assert [trimming.has(shard) for shard in (3, 4, 5)] == [True, True, False]
