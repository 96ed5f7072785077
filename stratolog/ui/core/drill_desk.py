"""Drills that were started from the page: their output, line by line, and how they ended. Pure.

What one may start: drills that run without further options. One at a time runs on a stack
(``stratolog/drills/kit/session.py``); who else runs one is told by the lock file.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from stratolog.ui.core.words import Tone

MAX_RUNS = 8
"""Runs that are kept, the last ones."""
MAX_LINES = 400
"""Lines that are kept of a run, the last ones."""
MAX_LINE_CHARACTERS = 500

ENDINGS = {0: ("passed", Tone.GOOD), 1: ("FAILED", Tone.BAD), 3: ("could not run", Tone.WARN)}
"""Exit status of ``stratolog drill``: the verdict, and its tone."""


@dataclass(slots=True, kw_only=True)
class DrillRun:
    """One run: what it has said, and its exit status once it has ended (-1: it could not be started)."""

    number: int
    name: str
    shard: int | None
    started_ms: int
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    ended_ms: int | None = None
    exit_status: int | None = None

    def say(self, line: str) -> None:
        """Take a line of its output."""
        if text := line.rstrip():
            self.lines.append(text[:MAX_LINE_CHARACTERS])

    def end(self, exit_status: int, now_ms: int) -> None:
        """Take its end."""
        self.exit_status, self.ended_ms = exit_status, now_ms

    @property
    def outcome(self) -> tuple[str, Tone]:
        """How it stands, in words, and the tone."""
        if self.exit_status is None:
            return "running", Tone.PLAIN
        return ENDINGS.get(self.exit_status, (f"ended with status {self.exit_status}", Tone.BAD))


@dataclass(slots=True)
class DrillDesk:
    """The last runs, the newest last."""

    runs: deque[DrillRun] = field(default_factory=lambda: deque(maxlen=MAX_RUNS))
    started: int = 0

    def begin(self, name: str, shard: int | None, now_ms: int) -> DrillRun:
        """Add a run; the caller has checked that none runs."""
        self.started += 1
        run = DrillRun(number=self.started, name=name, shard=shard, started_ms=now_ms)
        self.runs.append(run)
        return run

    @property
    def running(self) -> DrillRun | None:
        """The run that has not ended."""
        return next((run for run in self.runs if run.exit_status is None), None)
