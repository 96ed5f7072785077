"""How far a node's install is, seen from outside while it runs: its folders, its progress file, its log.

Some stages last as long as a folder's fsync, which may be microseconds. Who has to meet one of them has the node die
there (``dying_node``): the disk then shows the stage for as long as one likes.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from replicated_db.shell.bootstrap.bootstrap import progress_file
from replicated_db.shell.bootstrap.candidate import candidate_folder
from replicated_db.shell.bootstrap.install import look
from stratolog.drills.installs.core.kill_findings import CandidateSight
from stratolog.drills.installs.core.stages import ORDER, InstallStage, Sight, stage_of
from transport.waiting.deadline import Deadline

WANTED_FILES = re.compile(rb" in (\d+) files are to be fetched")
ROUND = re.compile(rb"bootstrap: round (\d+): ")
CLOCK_STEP_NS = 20_000_000
"""By how much a file's time may lag behind the clock."""

ASK_INTERVAL_S = 0.05
"""How often a node is asked whether it replays: asking takes longer than all looks at the disk."""

LOOK_INTERVAL_S = 0.002
"""How often to look."""

PART = ".part"
BEING_WRITTEN = "?"
"""For a progress file that is empty: the node was about to write it."""


@dataclass(slots=True)
class InstallWatch:
    """Watches one start of a node; make it before the start.

    ``replays`` says whether the node has replayed something, ``runs`` whether its process runs.
    """

    database: Path
    log: Path
    replays: Callable[[], bool]
    runs: Callable[[], bool]
    renamed: bool = False
    """Whether the replica is the new one: set it if a former process has come so far."""
    listings: int = 0
    """Listings that the node has accepted since the start."""
    _begun: bool = False
    _since_ns: int = field(default_factory=lambda: time.time_ns() - CLOCK_STEP_NS)
    _had: frozenset[str] = frozenset()
    _read: int = 0
    _wanted: int | None = None
    _round: int = 0
    _asked_s: float = 0.0

    def __post_init__(self) -> None:
        self._had = frozenset(contents_of(self.database))
        with suppress(FileNotFoundError):
            self._read = self.log.stat().st_size

    def stage(self) -> InstallStage:
        """Return the stage that the install is at."""
        self._read_log()
        progress = self._progress()
        disk = look(self.database)
        self._begun = self._begun or bool(progress)
        self.renamed = self.renamed or disk.journal or disk.replaced
        return stage_of(
            Sight(
                disk=disk, fetched=self._fetched(), wanted=self._wanted, round=self._round, progress=progress,
                candidate=candidate_folder(self.database).exists(), begun=self._begun,
                renamed=self.renamed, replays=self._replays(),
            )
        )  # fmt: skip

    def wait(self, wanted: InstallStage, timeout_s: float) -> InstallStage:
        """Look until the install is at a stage or behind it; return the stage seen last.

        It ends, too, when the node has ended, or the time is up.
        """
        deadline = Deadline.after_s(timeout_s)
        while True:
            found = self.stage()
            if ORDER[found] >= ORDER[wanted] or not self.runs() or deadline.has_passed:
                return found
            time.sleep(LOOK_INTERVAL_S)

    def _progress(self) -> str:
        """Return what the node says; empty if a former process said it."""
        file = progress_file(self.database)
        with suppress(OSError, UnicodeDecodeError):
            if file.stat().st_mtime_ns >= self._since_ns:
                return file.read_text() or BEING_WRITTEN
        return ""

    def _fetched(self) -> int:
        """Count what came since the start; by names alone, because this is asked thousands of times in a second."""
        with suppress(FileNotFoundError):
            names = os.listdir(candidate_folder(self.database) / "content")
            return sum(name not in self._had and not name.endswith(PART) for name in names)
        return 0

    def _read_log(self) -> None:
        with suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(self._read)
            found = file.read()
            whole = found.rfind(b"\n") + 1
            self._read += whole
            for match in WANTED_FILES.finditer(found, 0, whole):
                self._wanted = int(match[1])
                self.listings += 1
            for match in ROUND.finditer(found, 0, whole):
                self._round = int(match[1])

    def _replays(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._asked_s < ASK_INTERVAL_S:
            return False
        self._asked_s = now_s
        return self.replays()


def candidate_of(database: Path) -> CandidateSight | None:
    """Return what is in a candidate's folder; None while no listing was accepted."""
    folder = candidate_folder(database)
    try:
        mark = json.loads((folder / "mark.json").read_text())
    except (OSError, ValueError):
        return None
    return CandidateSight(
        peer=mark["peer"], term=mark["term"], leader=mark["leader"], whole=contents_of(database),
        tree=(folder / "tree").exists(),
    )  # fmt: skip


def contents_of(database: Path) -> dict[str, tuple[int, int, int]]:
    """Return the contents that are whole in a candidate's folder: digest -> inode, time of its last byte, size."""
    found = {}
    with suppress(FileNotFoundError):
        for path in (candidate_folder(database) / "content").iterdir():
            with suppress(FileNotFoundError):
                status = path.stat()
                if path.suffix != PART:
                    found[path.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found
