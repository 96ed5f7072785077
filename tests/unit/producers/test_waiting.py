"""Which waits are told, and how often; the clock is set by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from producers import waiting
from producers.waiting import WORD_AFTER_MS, WORD_EACH_MS, SlowWait

PassTime = Callable[[float], None]


@pytest.fixture
def pass_ms(monkeypatch: pytest.MonkeyPatch) -> PassTime:
    clock = SimpleNamespace(now_s=1_000.0)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.now_s))

    def go_on(passed_ms: float) -> None:
        clock.now_s += passed_ms / 1000

    return go_on


def test_a_short_wait_is_not_told(pass_ms: PassTime, caplog: pytest.LogCaptureFixture) -> None:
    wait = SlowWait("a read")
    wait.still("nobody leads")
    pass_ms(WORD_AFTER_MS - 1)
    wait.still("nobody leads")
    assert caplog.messages == []


def test_a_long_wait_is_told_with_its_reason_and_rarely_again(
    pass_ms: PassTime, caplog: pytest.LogCaptureFixture
) -> None:
    wait = SlowWait("a read")
    pass_ms(WORD_AFTER_MS)
    wait.still("nobody leads")
    wait.still("nobody leads")
    pass_ms(WORD_EACH_MS - 1)
    wait.still("nobody leads")
    assert caplog.messages == ["a read takes 2 s so far: nobody leads"]
    pass_ms(1)
    wait.still("it is not caught up")
    assert caplog.messages[1:] == ["a read takes 12 s so far: it is not caught up"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert {record.name for record in caplog.records} == {"stratolog.client"}


def test_a_wait_that_begins_anew_has_its_time_again(pass_ms: PassTime, caplog: pytest.LogCaptureFixture) -> None:
    wait = SlowWait("a block")
    pass_ms(WORD_AFTER_MS + 500)
    wait.begin()
    wait.still("it is not written")
    assert caplog.messages == []
    pass_ms(WORD_AFTER_MS)
    wait.still("it is not written")
    assert caplog.messages == ["a block takes 2 s so far: it is not written"]
