"""The thread that leads a shard: when it tries again, when it leaves the group to others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.leading import shard_thread
from om_processors.leading.shard_thread import LONGEST_FAILING_S, MAX_FAILING_S, ClaimPatience, ShardThread
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell.claiming import UnfitToLead
from tests.support.local.waiting import deadlines_by

DEADLINE_S = 30.0


class Loop:
    """A loop whose claims end as the script says; time passes only as the script lets it."""

    def __init__(self, *script: Callable[[Loop], str]) -> None:
        self.replica = SimpleNamespace(identity=SimpleNamespace(shard=3))
        self.times_led = 0
        self.now_s = 1000.0
        self.turns = 0
        self._script = script

    def beat(self) -> None:
        pass

    def lead(self, stop: Any) -> str:
        self.turns += 1
        if self.turns > len(self._script):
            stop.set()
            return "stopped"
        return self._script[self.turns - 1](self)


def fails(after_s: float = 0.0, *, won: bool = False) -> Callable[[Loop], str]:
    def turn(loop: Loop) -> str:
        loop.times_led += won
        loop.now_s += after_s
        raise LogUnavailable("no answer")

    return turn


def run(monkeypatch: pytest.MonkeyPatch, loop: Loop, **options: Any) -> list[str]:
    """Run the thread to its end; return what it said of itself."""
    said: list[str] = []
    monkeypatch.setattr(shard_thread, "Deadline", deadlines_by(lambda: loop.now_s))
    monkeypatch.setattr(shard_thread, "RETRY_S", 0.0)
    found = ShardThread(
        loop, lambda *_, **__: None,  # type: ignore[arg-type]
        ended=lambda why: said.append(why.name), fatal=lambda error: said.append(repr(error)),
        patience=options.pop("patience", ClaimPatience()), **options,
    )  # fmt: skip
    found.thread.join(DEADLINE_S)
    assert not found.running
    return said


def test_it_tries_again_while_the_brokers_do_not_answer(monkeypatch: pytest.MonkeyPatch):
    loop = Loop(*[fails(MAX_FAILING_S / 4)] * 4)
    assert run(monkeypatch, loop) == ["TOLD"]
    assert loop.turns == 5


def test_it_leaves_the_group_after_a_while(monkeypatch: pytest.MonkeyPatch):
    loop = Loop(fails(), fails(MAX_FAILING_S + 1))
    assert run(monkeypatch, loop) == ["FAILED"]


def test_what_failed_before_a_claim_was_won_is_over(monkeypatch: pytest.MonkeyPatch):
    """It led for two hours; then one read fails."""
    loop = Loop(fails(), fails(7200, won=True), fails())
    assert run(monkeypatch, loop) == ["TOLD"]
    assert loop.turns == 4


def test_another_node_could_do_no_better_with_a_partition_that_has_no_leader(monkeypatch: pytest.MonkeyPatch):
    loop = Loop(fails(), fails(MAX_FAILING_S * 10))
    assert run(monkeypatch, loop, leaderless=lambda: True) == ["TOLD"]


def test_each_time_that_leaving_has_not_helped_it_is_more_patient(monkeypatch: pytest.MonkeyPatch):
    patience = ClaimPatience()
    assert run(monkeypatch, Loop(fails(), fails(MAX_FAILING_S + 1)), patience=patience) == ["FAILED"]
    assert run(monkeypatch, Loop(fails(), fails(MAX_FAILING_S + 1)), patience=patience) == ["TOLD"]
    assert run(monkeypatch, Loop(fails(), fails(2 * MAX_FAILING_S + 1)), patience=patience) == ["FAILED"]
    assert patience.lasts_s == 4 * MAX_FAILING_S
    patience.left = 1000
    assert patience.lasts_s == LONGEST_FAILING_S
    assert run(monkeypatch, Loop(fails(won=True)), patience=patience) == ["TOLD"]
    assert patience.lasts_s == MAX_FAILING_S


def test_one_that_is_unfit_says_so(monkeypatch: pytest.MonkeyPatch):
    def is_unfit(_: Loop) -> str:
        raise UnfitToLead("its clock is wrong")

    assert run(monkeypatch, Loop(is_unfit)) == ["UNFIT"]


def test_leading_in_order_gives_the_patience_back(monkeypatch: pytest.MonkeyPatch):
    patience = ClaimPatience()
    patience.left = 5

    def leads(loop: Loop) -> str:
        loop.times_led += 1
        return "did not count"

    assert run(monkeypatch, Loop(leads), patience=patience) == ["DEPOSED"]
    assert patience.lasts_s == MAX_FAILING_S


def test_anything_else_ends_the_process(monkeypatch: pytest.MonkeyPatch):
    def breaks(_: Loop) -> str:
        raise RuntimeError("broken")

    assert run(monkeypatch, Loop(breaks)) == ["TOLD", "RuntimeError('broken')"]
