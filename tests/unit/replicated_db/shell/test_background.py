"""Background threads of a process, and how it waits for its brokers."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from replicated_db.core.ports import LogUnavailable
from replicated_db.core.tables.memory import ManualClock
from replicated_db.shell import process
from replicated_db.shell.process import BROKER_WAIT_S, Background, when_brokers_answer
from tests.support.local.waiting import deadlines_by, eventually


class Work(Background):
    """Runs until it is stopped, or fails before or after."""

    def __init__(self, *, early: bool = False, late: bool = False) -> None:
        self.failures: list[BaseException] = []
        super().__init__("work", self.failures.append)
        self.early, self.late = early, late
        self.begun = threading.Event()

    def run(self) -> None:
        self.begun.set()
        if self.early:
            raise ValueError("early")
        self._stop.wait()
        if self.late:
            raise ValueError("late")


def running(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_thread_runs_until_it_is_closed():
    work = Work()
    work.start()
    assert work.begun.wait(30)
    (thread,) = running("work")
    assert thread.daemon, "a process that ends by a failure does not wait for it"
    work.close()
    assert running("work") == []
    assert work.failures == []


def test_one_that_was_never_started_closes_all_the_same():
    Work().close()


def test_an_error_ends_the_process_unless_it_follows_from_closing():
    early, late = Work(early=True), Work(late=True)
    for work in (early, late):
        work.start()
    eventually(lambda: early.failures)
    assert [str(error) for error in early.failures] == ["early"]
    late.close()
    early.close()
    assert late.failures == []


def test_closing_waits_a_bounded_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "END_WAIT_S", 0.01)
    go = threading.Event()

    class Stubborn(Work):
        def run(self) -> None:
            go.wait()

    work = Stubborn()
    work.start()
    work.close()
    assert running("work")
    go.set()
    eventually(lambda: not running("work"))


def test_brokers_are_asked_until_they_answer(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr("replicated_db.shell.process.time", SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append))
    answers = [LogUnavailable("no"), LogUnavailable("no"), None]

    def ask() -> int:
        if (error := answers.pop(0)) is not None:
            raise error
        return 7

    assert when_brokers_answer(ask) == 7
    assert slept == [1, 1]


def test_brokers_that_do_not_answer_in_time_are_an_error(monkeypatch: pytest.MonkeyPatch):
    clock = ManualClock(elapsed=0)

    def sleep(seconds: float) -> None:
        clock.elapsed += round(seconds * 1000)

    monkeypatch.setattr(process, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(process, "Deadline", deadlines_by(lambda: clock.elapsed / 1000))

    def ask() -> int:
        raise LogUnavailable(f"{clock.elapsed_ms()} ms have passed")

    with pytest.raises(LogUnavailable, match=f"^{BROKER_WAIT_S * 1000:.0f} ms have passed$"):
        when_brokers_answer(ask)


def test_another_error_is_told_at_once():
    with pytest.raises(ZeroDivisionError):
        when_brokers_answer(lambda: 1 // 0)
