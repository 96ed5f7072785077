"""When regular trimming logs a base and when it trims, over a trimmer whose log is a list of ages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from om_processors.fleet.log_trimming import BASES_KEPT, LEAST_INTERVAL_MS, BaseAnswer, LogTrimLoop
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import LogUnavailable
from replicated_db.core.trimming.trim_rule import RuleFinding, TrimDecision, TrimWish

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
