"""What has died is started again, but where somebody meant it: real processes, in a directory of their own."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.local import spawning, state
from stratolog.local.processes import POLL_INTERVAL_S, Process, spawn, wait_until
from stratolog.local.state import BROKER, NODE, StackMember, StackState
from stratolog.supervision import supervisor as supervisors
from stratolog.supervision.core.restarts import PAUSES, STEADY_S, Restarts, as_json, from_json
from stratolog.supervision.supervisor import Supervisor, is_drilled
from stratolog.supervision.telling import is_left_alone, read_restarts, restart_lines, shown

NOW_S = 1_800_000_000.0
SLEEPS = "import time; time.sleep(600)"


class Stack:
    """Processes that do nothing, as a stack's state names them, and their supervisor."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.code = SLEEPS
        self.begun: list[str] = []
        self.failure: Exception | None = None
        (folder / state.SETTINGS_FILE).write_text(Settings(data_dir=folder).to_toml())
        monkeypatch.setattr(spawning, "spawn_again", self.spawn_again)
        state.write_state(folder, StackState(members=tuple(self.run(k, n) for k, n in ((NODE, "om1"), (BROKER, "b")))))
        self.begun.clear()
        self.supervisor = Supervisor(folder, detached=False)

    def run(self, kind: str, name: str) -> StackMember:
        self.begun.append(name)
        log = self.folder / f"{name}.log"
        process = spawn([sys.executable, "-c", self.code], log=log, detached=False)
        return StackMember(kind=kind, name=name, address="", log=log, process=process, extra={})

    def spawn_again(self, _settings: Settings, old: StackMember, *, detached: bool) -> StackMember:
        assert not detached
        if self.failure is not None:
            raise self.failure
        return self.run(old.kind, old.name)

    def process(self, name: str) -> Process:
        found = state.read_state(self.folder)
        assert found is not None
        return next(one.process for one in found.members if one.name == name)

    def look(self, after_s: float = 0.0) -> bool:
        return self.supervisor.look(NOW_S + after_s)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    made = Stack(tmp_path, monkeypatch)
    yield made
    for member in (state.read_state(tmp_path) or StackState()).members:
        member.process.kill()


def test_what_has_died_is_started_again_brokers_first_and_told(stack: Stack) -> None:
    assert stack.look()
    assert stack.begun == []
    for name in ("om1", "b"):
        stack.process(name).kill()
    (stack.folder / "om1.log").write_text("first\nTerminating due to java.lang.OutOfMemoryError: Java heap space\n")
    assert stack.look()
    assert stack.begun == ["b", "om1"]
    assert stack.process("om1").is_running()
    told = read_restarts(stack.folder)
    assert {name: one.times for name, one in told.items()} == {"b": 1, "om1": 1}
    (_, line) = restart_lines({name: shown(one) for name, one in told.items()})
    # Python may have waited for this child of the test's already, and then nobody knows how it ended.
    assert line.replace("signal 9: ", "") == (
        "om1 died at 2027-01-15T08:00:00Z, was started again 1 time: "
        "Terminating due to java.lang.OutOfMemoryError: Java heap space"
    )
    assert stack.look()
    assert len(stack.begun) == 2


def test_what_dies_at_its_start_is_started_more_seldom_and_its_status_is_told(stack: Stack) -> None:
    stack.process("om1").kill()
    stack.code = "import sys; print('no disk'); sys.exit(3)"
    starts = []
    for second in range(40):
        before = len(stack.begun)
        stack.look(second)
        if len(stack.begun) > before:
            starts.append(second)
            assert wait_until(lambda: supervisors.how_ended(stack.process("om1")) != "", 10)
    assert starts == [0, 2, 5, 10, 19, 36]
    stack.look(41)
    assert read_restarts(stack.folder)["om1"].why == "exit status 3: no disk"
    stack.code = SLEEPS
    stack.look(41 + PAUSES.last_s)
    alive = stack.process("om1")
    assert alive.is_running()
    stack.look(42 + PAUSES.last_s + STEADY_S)
    alive.kill()
    stack.look(43 + PAUSES.last_s + STEADY_S)
    assert stack.process("om1").is_running(), "what has run for a while is started again at once"


def test_what_cannot_be_started_is_tried_again(stack: Stack) -> None:
    stack.process("om1").kill()
    stack.failure = Unavailable("no Java")
    assert stack.look()
    (line,) = restart_lines({name: shown(one) for name, one in read_restarts(stack.folder).items()})
    assert line.endswith("was started again 0 times, and is due at 2027-01-15T08:00:01Z: it cannot be started: no Java")
    stack.failure = None
    stack.look(0.5)
    assert stack.begun == []
    stack.look(1.5)
    assert stack.begun == ["om1"]


def test_what_somebody_has_stopped_stays_until_somebody_starts_it(stack: Stack) -> None:
    state.mark_stopped(stack.folder, NODE, "om1", on_purpose=True)
    stack.process("om1").kill()
    assert stack.look()
    assert stack.begun == []
    state.mark_stopped(stack.folder, NODE, "om1", on_purpose=False)
    stack.look()
    assert stack.begun == ["om1"]


def test_what_a_drill_kills_is_the_drills(stack: Stack) -> None:
    with (stack.folder / state.DRILL_LOCK_FILE).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert is_drilled(stack.folder)
        stack.process("om1").kill()
        for second in range(5):
            stack.look(second)
        assert stack.begun == []
    assert not is_drilled(stack.folder)
    stack.look(6)
    assert stack.begun == ["om1"], "a drill that is killed leaves what it took"


def test_while_a_command_starts_or_stops_something_nothing_is_started(stack: Stack) -> None:
    stack.process("om1").kill()
    with state.locked(stack.folder):
        assert stack.look()
    assert stack.begun == []
    stack.look()
    assert stack.begun == ["om1"]


def test_it_ends_with_the_stack_and_makes_nothing_anew(stack: Stack) -> None:
    for name in ("om1", "b"):
        stack.process(name).kill()
    members = state.read_state(stack.folder)
    state.state_file(stack.folder).write_text("{")
    assert stack.look(), "a damaged state is for 'down'"
    assert members is not None
    state.state_file(stack.folder).unlink()
    assert not stack.look()
    assert stack.begun == []
    assert not state.state_file(stack.folder).exists()


def test_commands_wait_while_the_supervisor_starts_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "SUPERVISOR_WAIT_S", 2 * POLL_INTERVAL_S)
    with state.locked(tmp_path, who=state.SUPERVISOR):
        with pytest.raises(UserError, match="another command"), state.locked(tmp_path):
            pass
        monkeypatch.setattr(state, "SUPERVISOR_WAIT_S", 60.0)
        waiting = threading.Thread(target=lambda: taken.append(take(tmp_path)))
        taken: list[str] = []
        waiting.start()
        waiting.join(4 * POLL_INTERVAL_S)
        assert taken == []
    waiting.join(30)
    assert taken == ["taken"]
    with state.locked(tmp_path):
        assert (tmp_path / state.LOCK_FILE).read_text() == ""


def take(folder: Path) -> str:
    with state.locked(folder):
        return "taken"


def test_the_process_is_alone_ends_with_the_stack_and_when_it_is_told(tmp_path: Path) -> None:
    (tmp_path / state.SETTINGS_FILE).write_text(Settings(data_dir=tmp_path).to_toml())
    member = StackMember(
        kind=NODE, name="om1", address="", log=tmp_path / "x", process=this_process(), extra={}
    )  # fmt: skip
    state.write_state(tmp_path, StackState(members=(member,)))
    first = run(tmp_path)
    try:
        assert wait_until(lambda: state.supervisor_of(tmp_path) is not None, 30)
        second = run(tmp_path)
        assert second.wait(30), "another one is at work"
        assert first.is_running()
        assert not is_left_alone(tmp_path)
        first.kill()
        assert is_left_alone(tmp_path)
        first = run(tmp_path)
        assert wait_until(lambda: state.supervisor_of(tmp_path) == first, 30)
        first.stop(30)
        assert not first.is_running()
        first = run(tmp_path)
        state.state_file(tmp_path).unlink()
        assert first.wait(30)
    finally:
        first.kill()


def run(folder: Path) -> Process:
    return spawn([sys.executable, "-m", spawning.SUPERVISOR_MODULE, folder], log=folder / "s.log", detached=False)


def this_process() -> Process:
    found = Process.of(os.getpid())
    assert found is not None
    return found


@pytest.mark.parametrize(
    "damaged",
    [
        [],
        {"om1": {"times": "x"}},
        {"om1": {"when": 1}},
        {"om1": 3},
        None,
        {"om1": {"times": -1}},
        {"om1": {"died_s": 1e20}},
        {"om1": {"died_s": float("inf")}},
        {"om1": {"died_s": float("nan")}},
    ],
)
def test_a_damaged_book_is_refused_by_name(damaged: object) -> None:
    with pytest.raises(ValueError, match="no book of restarts"):
        from_json(damaged)


def test_a_book_is_read_back() -> None:
    book = {"om1": Restarts().on_death(NOW_S, "why" * 500).on_start(NOW_S), "b": Restarts(times=2)}
    assert from_json(as_json(book)) == book
    assert len(book["om1"].why) == 300


def test_a_clock_that_goes_back_starts_nothing_twice() -> None:
    one = Restarts().on_death(NOW_S, "").on_start(NOW_S)
    again = one.on_death(NOW_S - 3600, "")
    assert again.is_dead
    assert not again.on_start(NOW_S - 3600).is_dead
