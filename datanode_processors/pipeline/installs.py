"""Pipelines whose replica wants a member's checkpoint: a thread installs one after another, while the others serve.

Until then the pipeline is not followed here, and requests for it are refused. Heartbeats name it with a fault, so the
Object Manager gives it no blocks, but does not take the datanode for dead. A member that gives no checkpoint now is
asked again: another member may be on its way back. What was fetched stays for the next attempt, and for the next start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell.bootstrap.bootstrap import NoPeerServes
from replicated_db.shell.bootstrap.candidate import NoRoom
from replicated_db.shell.bootstrap.opening import BootstrapPolicy, ReplicaToOpen, WantsCheckpoint, catch_up
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from schemas.records.datanode import PipelineReport

PAUSE_S = 1.0
"""Pause between two looks at the pipelines that wait."""

MAX_SHOWN_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineToInstall:
    """A pipeline that waits for a checkpoint."""

    partition: int
    pipeline: str
    place: ReplicaToOpen
    wants: WantsCheckpoint


class PipelineInstalls(Background):
    """Installs until it is closed. ``opened`` gets each replica, on the thread that installs."""

    def __init__(
        self, policy: Callable[[int], BootstrapPolicy], opened: Callable[[int, ReplicaToOpen, Replica], None],
        note: Note, fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        """``policy`` says for a partition who may be asked; it is called at each attempt."""
        super().__init__("pipeline-installs", fatal)
        self._policy = policy
        self._opened = opened
        self._note = note
        self._lock = threading.Lock()
        self._waiting: dict[int, PipelineToInstall] = {}
        self._said: dict[int, str] = {}
        self._logged: dict[int, str] = {}

    def add(self, one: PipelineToInstall) -> None:
        """Have a pipeline installed; for any thread."""
        with self._lock:
            self._waiting[one.partition] = one
            self._said[one.partition] = one.wants.why[:MAX_SHOWN_CHARACTERS]

    @property
    def is_stopping(self) -> bool:
        """Whether the thread is to end."""
        return self._stop.is_set()

    def run(self) -> None:
        """Take turns until it is closed."""
        while not self._stop.wait(PAUSE_S):
            for one in self._all():
                if not self._stop.is_set():
                    self._install(one)

    def _install(self, one: PipelineToInstall) -> None:
        def note(text: str) -> None:
            self._said[one.partition] = text[:MAX_SHOWN_CHARACTERS]
            self._tell(one, text)

        try:
            replica = catch_up(one.place, one.wants, self._policy(one.partition), note)
        except (NoPeerServes, NoRoom, LogUnavailable) as error:
            note(f"{one.pipeline} waits for a checkpoint, and asks again: {error}")
            return
        if self._stop.is_set():
            replica.store.close()
            return
        with self._lock:
            del self._waiting[one.partition]
        self._opened(one.partition, one.place, replica)
        self._tell(one, f"{one.pipeline} is installed and followed from offset {replica.position.offset} on")

    def _tell(self, one: PipelineToInstall, text: str) -> None:
        """Log what is news: attempts that fail alike are not repeated."""
        if self._logged.get(one.partition) != text:
            self._logged[one.partition] = text
            self._note(text, shard=one.partition)

    def _all(self) -> list[PipelineToInstall]:
        with self._lock:
            return [self._waiting[partition] for partition in sorted(self._waiting)]

    # -- what it says --------------------------------------------------------------------------------------------------

    def status(self) -> list[dict[str, Any]]:
        """Return the pipelines that wait, each with why, and what its install is at."""
        return [
            {
                "pipeline": one.pipeline, "shard": one.partition, "why": one.wants.why,
                "own_offset": one.wants.own_offset, "progress": self._said.get(one.partition, ""),
            }
            for one in self._all()
        ]  # fmt: skip

    def reports(self) -> list[PipelineReport]:
        """Return what heartbeats say of the pipelines that wait: nothing is applied, and there is a fault."""
        return [
            PipelineReport(
                partition=one.partition, generation=0, leading=False, applied_index=0, healthy=False,
                fault="its replica is being installed from a member",
            )
            for one in self._all()
        ]  # fmt: skip
