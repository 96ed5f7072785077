"""One run of a drill: steps are timed and told as they end, and whatever happens becomes a report.

Rules:
    - An error that a person can act on (UserError, StratologError, CouldNotRun, StepFailed) ends the drill with a
      verdict: *could not run* as long as nothing was touched, else *failed*. Any other error is a defect and keeps its
      traceback.
    - A drill first names what it touches, and how that is put back (``touching``). It is put back however the drill
      ends.
    - Only one drill at a time runs on a stack (``DATA_DIR/drill.lock``).
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from producers.errors import StratologError
from stratolog.cluster.core.findings import Finding
from stratolog.drills.core.report import CouldNotRun, DrillReport, DrillStep, StepFailed, verdict_of
from stratolog.errors import UserError
from stratolog.local.state import DRILL_LOCK_FILE

Tell = Callable[[DrillStep | Finding], None]
"""Called with each step and each finding when it is done."""


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


class Session:
    """What one run of a drill did and found."""

    def __init__(self, tell: Tell = lambda _: None, begin: Callable[[str], None] = lambda _: None) -> None:
        self._tell = tell
        self._begin = begin
        self._begun_s = time.monotonic()
        self._undo = ExitStack()
        self.steps: list[DrillStep] = []
        self.findings: list[Finding] = []
        self.figures: dict[str, float] = {}
        self.touched: list[str] = []
        self.restored: list[str] = []

    @contextmanager
    def step(self, text: str) -> Iterator[Callable[[str], None]]:
        """Time a step; the function that is yielded takes the step's outcome. A step that raises is told too."""
        found: list[str] = []
        self._begin(text)
        at_s = time.monotonic()
        try:
            yield found.append
        except BaseException as error:
            found.append(f"ended by {type(error).__name__}")
            raise
        finally:
            now_s = time.monotonic()
            step = DrillStep(
                text=text,
                at_s=at_s - self._begun_s,
                took_s=now_s - at_s,
                found="; ".join(word for word in found if word),
            )
            self.steps.append(step)
            self._tell(step)

    def find(self, *findings: Finding) -> None:
        """Add findings, and tell each."""
        for finding in findings:
            self.findings.append(finding)
            self._tell(finding)

    def touching(self, what: str, restore: Callable[[], str]) -> Callable[[], None]:
        """Say what is touched from here on, and how it is put back; return a function that puts it back now.

        ``restore`` is called once, by that function or at the end of the drill, and returns in words what it did.
        """
        self.touched.append(what)
        done: list[bool] = []

        def put_back() -> None:
            if not done:
                done.append(True)
                try:
                    self.restored.append(restore())
                except BaseException as error:
                    self.restored.append(f"NOT put back, see to it yourself: {what}: {_first_line(error)}")
                    raise

        self._undo.callback(put_back)
        return put_back

    def close(self) -> None:
        """Put back all that is still touched, the last one first."""
        self._undo.close()


def run(
    name: str, shard: int | None, drill: Callable[[Session], None], *, data_dir: Path, session: Session | None = None
) -> DrillReport:
    """Run a drill and return its report; only defects and interrupts are raised, after everything was put back."""
    session = session or Session()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    begun_s = time.monotonic()
    refused = failed = None
    try:
        with _alone(data_dir):
            try:
                drill(session)
            finally:
                session.close()
    except CouldNotRun as error:
        refused = str(error)
    except (StepFailed, UserError, StratologError) as error:
        refused, failed = (None, str(error)) if session.touched else (str(error), None)
    verdict, reason = verdict_of(session.findings, refused=refused, failed=failed)
    return DrillReport(
        drill=name, shard=shard, started_at=started, took_s=time.monotonic() - begun_s, verdict=verdict, reason=reason,
        steps=tuple(session.steps), findings=tuple(session.findings), figures=dict(session.figures),
        touched=tuple(session.touched), restored=tuple(session.restored),
    )  # fmt: skip


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    """Keep a second drill out; raises CouldNotRun."""
    if not data_dir.is_dir():
        raise CouldNotRun(f"no stack is running in {data_dir}: start one with 'stratolog up'")
    with (data_dir / DRILL_LOCK_FILE).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CouldNotRun(f"another drill runs on the stack in {data_dir}") from error
        yield
