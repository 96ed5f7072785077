"""A drill's run: what becomes of errors and findings, what is put back and when, who may run at the same time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from producers.errors import OutcomeUnknown
from stratolog.cli import build_app
from stratolog.cluster.core.findings import Finding
from stratolog.drills import bodies
from stratolog.drills.core.report import COULD_NOT_RUN, FAILED, PASSED, CouldNotRun, DrillStep, StepFailed, verdict_of
from stratolog.drills.kit import catalogue
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.session import Session, run
from stratolog.errors import Unavailable, UsageError


def restoring(what: str, put_back: list[str]) -> Callable[[], str]:
    def restore() -> str:
        put_back.append(what)
        return f"{what} is back"

    return restore


YES = Finding(question="is it there", holds=True, seen="it is")
NO = Finding(question="is it equal", holds=False, seen="3 is not 4")


@pytest.mark.parametrize(
    ("findings", "refused", "failed", "verdict", "word"),
    [
        ([YES, YES], None, None, PASSED, "all 2"),
        ([YES, NO], None, None, FAILED, "is it equal: no: 3 is not 4"),
        ([YES, NO], "one broker", None, FAILED, "is it equal"),
        ([YES, NO], None, "no leader", FAILED, "no leader"),
        ([YES], None, "no leader", FAILED, "no leader"),
        ([YES], "one broker", None, COULD_NOT_RUN, "one broker"),
        ([], None, None, COULD_NOT_RUN, "found nothing out"),
    ],
)
def test_the_verdict(findings: list[Finding], refused: str | None, failed: str | None, verdict: str, word: str) -> None:
    found, reason = verdict_of(findings, refused=refused, failed=failed)
    assert found == verdict
    assert word in reason


def test_steps_and_findings_are_told_in_order_and_end_in_the_report(tmp_path: Path) -> None:
    told: list[DrillStep | Finding] = []
    begun: list[str] = []

    def drill(session: Session) -> None:
        with session.step("look") as found:
            found("three")
        session.find(YES)
        session.figures["seconds"] = 1.5

    report = run("x", 1, drill, data_dir=tmp_path, session=Session(told.append, begun.append))
    assert begun == ["look"]
    assert [type(item) for item in told] == [DrillStep, Finding]
    assert (report.verdict, report.has_passed, report.shard) == (PASSED, True, 1)
    assert [(step.text, step.found) for step in report.steps] == [("look", "three")]
    assert json.loads(json.dumps(report.as_json()))["figures"] == {"seconds": 1.5}


@pytest.mark.parametrize(
    "error", [StepFailed("no leader"), Unavailable("no leader"), OutcomeUnknown("X", "no leader")], ids=repr
)
def test_an_error_fails_a_drill_that_has_touched_something(error: Exception, tmp_path: Path) -> None:
    put_back: list[str] = []

    def drill(session: Session) -> None:
        session.touching("one", restoring("one", put_back))
        now = session.touching("two", restoring("two", put_back))
        session.touching("three", restoring("three", put_back))
        now()
        with session.step("wait for a leader"):
            raise error

    report = run("x", 0, drill, data_dir=tmp_path)
    assert report.verdict == FAILED
    assert "no leader" in report.reason
    assert put_back == ["two", "three", "one"], "each once, the last touched first"
    assert report.touched == ("one", "two", "three")
    assert report.restored == ("two is back", "three is back", "one is back")
    assert report.steps[-1].found == f"ended by {type(error).__name__}"


def test_before_anything_is_touched_it_could_not_run(tmp_path: Path) -> None:
    def drill(session: Session) -> None:
        raise Unavailable("no stack")

    assert run("x", 0, drill, data_dir=tmp_path).verdict == COULD_NOT_RUN


def test_a_drill_may_find_out_late_that_it_cannot_show_anything(tmp_path: Path) -> None:
    def drill(session: Session) -> None:
        session.touching("one", lambda: "one is back")
        session.find(YES)
        raise CouldNotRun("nothing was appended")

    report = run("x", 0, drill, data_dir=tmp_path)
    assert (report.verdict, report.reason) == (COULD_NOT_RUN, "nothing was appended")
    assert report.restored == ("one is back",)


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt()], ids=repr)
def test_a_defect_or_an_interrupt_goes_on_after_all_is_put_back(error: BaseException, tmp_path: Path) -> None:
    put_back: list[str] = []

    def drill(session: Session) -> None:
        session.touching("one", restoring("one", put_back))
        raise error

    with pytest.raises(type(error)):
        run("x", 0, drill, data_dir=tmp_path)
    assert put_back == ["one"]


def test_what_cannot_be_put_back_fails_the_drill_and_keeps_nobody_else_from_it(tmp_path: Path) -> None:
    put_back: list[str] = []

    def fail() -> str:
        raise Unavailable("om2 does not come up")

    def drill(session: Session) -> None:
        session.touching("one", restoring("one", put_back))
        session.touching("two", fail)
        session.find(YES)

    report = run("x", 0, drill, data_dir=tmp_path)
    assert (report.verdict, report.reason) == (FAILED, "om2 does not come up")
    assert put_back == ["one"]


def test_one_drill_at_a_time(tmp_path: Path) -> None:
    inner: list[str] = []

    def outer(session: Session) -> None:
        inner.append(run("inner", 0, lambda s: s.find(YES), data_dir=tmp_path).reason)
        session.find(YES)

    assert run("outer", 0, outer, data_dir=tmp_path).has_passed
    assert inner == [f"another drill runs on the stack in {tmp_path}"]


def test_no_stack(tmp_path: Path) -> None:
    report = run("x", 0, lambda session: session.find(YES), data_dir=tmp_path / "nowhere")
    assert report.verdict == COULD_NOT_RUN
    assert "stratolog up" in report.reason
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", catalogue.names_at(catalogue.DrillPlace.BESIDE))
def test_a_drill_beside_the_stack_needs_no_stack(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    ran: list[Path] = []

    def body(session: Session, cluster: Cluster) -> None:
        ran.append(cluster.settings.data_dir)
        session.find(YES)

    monkeypatch.setitem(cast(dict[str, Any], bodies.BESIDE_THE_STACK), name, body)
    monkeypatch.setenv("STRATOLOG_DATA_DIR", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(build_app(), ["drill", name, "--json"])
    assert (done.exit_code, ran) == (0, [tmp_path / "nowhere"]), done.output


def test_every_drill_has_a_command_and_says_what_it_touches() -> None:
    from stratolog.commands.drill import COMMANDS

    names = [drill.name for drill in catalogue.DRILLS]
    assert len(set(names)) == len(names)
    assert set(COMMANDS) == set(names)
    for drill in catalogue.DRILLS:
        assert drill.does.endswith(".")
        assert drill.touches.endswith(".")
        assert catalogue.find(drill.name) is drill


def test_an_unknown_drill() -> None:
    with pytest.raises(UsageError, match="no drill 'kill-everybody'; there are: kill-leader"):
        catalogue.find("kill-everybody")


def test_a_termination_puts_everything_back(tmp_path: Path) -> None:
    from stratolog.commands.drill import _ended_in_order

    put_back: list[str] = []

    def drill(session: Session) -> None:
        session.touching("one", restoring("one", put_back))
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), _ended_in_order():
        run("x", 0, drill, data_dir=tmp_path)
    assert put_back == ["one"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_could_not_be_put_back_is_named(tmp_path: Path) -> None:
    """An operator must learn from the report what is left to do."""

    def drill(session: Session) -> None:
        put_back = session.touching("process 7 of broker-2: SIGKILL", not_ready)
        put_back()

    def not_ready() -> str:
        raise Unavailable("Kafka is not ready after 120 s:\nits log")

    report = run("x", 0, drill, data_dir=tmp_path)
    assert report.verdict == FAILED
    assert report.restored == (
        "NOT put back, see to it yourself: process 7 of broker-2: SIGKILL: Kafka is not ready after 120 s:",
    )
