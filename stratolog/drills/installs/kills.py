"""SIGKILL a node at one stage of its install after the other, and read each time what was left.

In a stage that lasts as long as an fsync the node kills itself (``dying_node``); in all others it is killed from
outside. A kill counts for the stage that the disk shows afterwards, not for the one that was aimed at. A stage that was
missed is aimed at again, in a new install if need be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stratolog.drills.core.report import StepFailed
from stratolog.drills.installs.core.stages import ORDER, InstallStage, ReplicaState, mixture
from stratolog.drills.installs.dying_node import dies_in
from stratolog.drills.installs.watch import InstallWatch, contents_of

STAGE_S = 120.0
"""How long a stage may be waited for."""


class Victim(Protocol):
    """A node that installs: its database, its log, its process."""

    database: Path
    log: Path

    def start(self, dies_in: InstallStage | None = None) -> None:
        """Start the process, and do not wait for it. It kills itself in a stage that is given."""

    def kill(self) -> None:
        """SIGKILL; return once the process is gone."""

    def runs(self) -> bool:
        """Whether the process runs."""

    def replays(self) -> bool:
        """Whether it has applied a record behind what it has installed."""

    def left(self) -> ReplicaState:
        """Return the replica that a start would find; the process does not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill: the stage aimed at and the one found, what is wrong, and the content that was there already.

    ``kept_bytes`` is of contents that a former process had fetched and this one found; ``fetched_again`` counts those
    of them that came once more.
    """

    aimed: InstallStage
    found: InstallStage
    wrong: str | None
    kept_bytes: int
    fetched_again: int


class InstallKills:
    """Kills of one victim, which does not run, and needs an install."""

    def __init__(self, victim: Victim) -> None:
        self._victim = victim
        self.needs_again()

    def needs_again(self) -> None:
        """Take note that the victim needs an install from here on; it does not run."""
        self._before = self._victim.left()
        self._last = InstallStage.SEEKING

    def reaches(self, stage: InstallStage) -> bool:
        """Whether the victim's next start can come to a stage: behind the journal nothing comes twice."""
        return not self._last.is_new or ORDER[stage] > ORDER[self._last]

    def kill_at(self, aimed: InstallStage) -> Kill:
        """Start the victim, kill it at a stage, and look. Raises StepFailed if it ended by itself, or nothing came."""
        victim, had, watch = self._victim, contents_of(self._victim.database), self._watch()
        self._start(watch, aimed, aimed if dies_in(aimed) else None)
        victim.kill()
        found, left, here = watch.stage(), victim.left(), contents_of(victim.database)
        if found is InstallStage.INSTALLED and left.installed and left.offset > int(left.installed["offset"]):
            found = InstallStage.REPLAYING
        both = had.keys() & here.keys()
        self._last = found
        return Kill(
            aimed=aimed, found=found, wrong=mixture(found, self._before, left),
            kept_bytes=sum(here[digest][2] for digest in both),
            fetched_again=sum(had[digest] != here[digest] for digest in both),
        )  # fmt: skip

    def see(self, aimed: InstallStage) -> InstallWatch:
        """Start the victim, and return its watch when a stage is reached, or one behind it; the install goes on."""
        watch = self._watch()
        self._start(watch, aimed)
        return watch

    def _watch(self) -> InstallWatch:
        victim = self._victim
        return InstallWatch(
            victim.database, victim.log, replays=victim.replays, runs=victim.runs, renamed=self._last.is_new
        )

    def _start(self, watch: InstallWatch, aimed: InstallStage, dying: InstallStage | None = None) -> None:
        self._victim.start(dying)
        watch.wait(aimed, STAGE_S)
        if dying is None and not self._victim.runs():
            raise StepFailed(f"{self._victim.log.stem} ended by itself: see {self._victim.log}")

    def at_each(self, stages: Sequence[InstallStage], need_again: Callable[[], None], most: int) -> Iterator[Kill]:
        """Kill at each of some stages, in this order while none is missed, with ``most`` kills at most.

        ``need_again`` brings about that the victim needs an install, and does not run.
        """
        missing = list(stages)
        for _ in range(most):
            if not missing:
                return
            aimed = next((stage for stage in missing if self.reaches(stage)), None)
            if aimed is None:
                need_again()
                self.needs_again()
                aimed = missing[0]
            kill = self.kill_at(aimed)
            missing.remove(aimed)
            missing.append(aimed)  # those that are hard to meet wait until the others were met
            if kill.found in missing:
                missing.remove(kill.found)
            yield kill
