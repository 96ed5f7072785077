"""The supervisor of a local stack: ``python -m stratolog.supervision.supervisor DATA_DIR``, which ``up`` starts.

It starts what has died again, each at its own address, with the settings of the stack (``core.restarts`` says when).
Three kinds of death are somebody's purpose, and are left alone:

- ``admin stop-node`` and ``remove-node`` mark the process in the state file before they end it;
- a drill holds its lock from before its first fault until it has given back what it took;
- ``up``, ``down`` and all commands that start or stop a process hold the stack's lock meanwhile.

A death is judged under the stack's lock, from a state that was read under it, and the drill's lock is looked at after
that: a command that killed on purpose still holds a lock then, or has started the process again, or has left it dead.

It ends when it is told to, when the stack's state is gone (``down``), and at once if another one is at work.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from producers.errors import StratologError
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.local import spawning, state
from stratolog.local.contents import remove_if_empty
from stratolog.local.processes import Process, log_tail
from stratolog.local.state import StackMember, StackState
from stratolog.supervision.core.restarts import Restarts
from stratolog.supervision.telling import read_restarts, write_restarts

LOOK_S = 1.0
"""How often it looks."""

log = logging.getLogger("stratolog.supervisor")


class Supervisor:
    """Looks after one data directory; ``detached`` as for ``stratolog.local.processes.spawn``."""

    def __init__(self, data_dir: Path, *, detached: bool = True) -> None:
        self._data_dir = data_dir
        self._detached = detached
        self._book = read_restarts(data_dir)
        self._ended: dict[Process, str] = {}
        """How processes have ended that this one has started."""

    def look(self, now_s: float) -> bool:
        """Start again what is due; return False once there is no stack any more."""
        try:
            known = state.read_state(self._data_dir)
        except UserError:
            return True  # damaged: 'down' puts it away
        if known is None or not known.members:
            return False
        if not self._are_dead(known):
            return True
        # The lock's holder starts or stops something: what is dead then is looked at again.
        with suppress(UserError), state.locked(self._data_dir, who=state.SUPERVISOR):
            known = state.read_state(self._data_dir)
            if known is None:
                remove_if_empty(self._data_dir)  # taking the lock may have made it
                return False
            if (dead := self._are_dead(known)) and not is_drilled(self._data_dir):
                self._start_again(dead, now_s)
        return True

    def _are_dead(self, known: StackState) -> list[StackMember]:
        """Return the members that are to run and do not; the others' troubles are over."""
        dead = []
        self._ended = {one.process: self._ended[one.process] for one in known.members if one.process in self._ended}
        for member in known.members:
            if how := how_ended(member.process):
                self._ended[member.process] = how
            if not member.process.is_running() and not member.is_stopped:
                dead.append(member)
            elif member.name in self._book:
                self._book[member.name] = self._book[member.name].on_life()
        return sorted(dead, key=lambda member: state.KINDS.index(member.kind))

    def _start_again(self, dead: list[StackMember], now_s: float) -> None:
        """Start the dead that are due, brokers first; ``now_s`` in seconds since 1970."""
        for member in dead:
            before = self._book.get(member.name, Restarts())
            seen = before.on_death(now_s, self._why(member))
            if seen is not before:
                log.warning("%s has ended: %s", member.name, seen.why)
            self._book[member.name] = seen
            if now_s >= seen.due_s:
                self._book[member.name] = self._start(member, seen, now_s)
        write_restarts(self._data_dir, self._book)

    def _start(self, member: StackMember, seen: Restarts, now_s: float) -> Restarts:
        try:
            started = spawning.spawn_again(self._settings(), member, detached=self._detached)
        except (UserError, StratologError, OSError, ValueError) as error:
            log.warning("%s cannot be started: %s", member.name, error)
            return seen.on_failed_start(now_s, f"it cannot be started: {error}")
        known = state.read_state(self._data_dir) or StackState()
        others = [one for one in known.members if (one.kind, one.name) != (member.kind, member.name)]
        state.write_state(self._data_dir, StackState(members=(*others, started)))
        log.warning("%s was started again, as process %s", member.name, started.process.pid)
        return seen.on_start(now_s)

    def _settings(self) -> Settings:
        return load_settings(self._data_dir / state.SETTINGS_FILE, environment={})

    def _why(self, member: StackMember) -> str:
        """Return how a process ended, as far as that is known, and the last line of its log."""
        how = self._ended.get(member.process, "")
        return ": ".join(filter(None, (how, log_tail(member.log, 1).strip())))


def how_ended(process: Process) -> str:
    """Return how a child of this process has ended; nothing of one that runs, and of those that others have started."""
    with suppress(ChildProcessError):
        if found := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return f"exit status {found.si_status}" if found.si_code == os.CLD_EXITED else f"signal {found.si_status}"
    return ""


def is_drilled(data_dir: Path) -> bool:
    """Say whether a drill is at work on a stack: it holds its lock until it has given back what it took."""
    try:
        with (data_dir / state.DRILL_LOCK_FILE).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


@contextmanager
def _alone(data_dir: Path) -> Iterator[bool]:
    """Yield whether this process is the stack's supervisor; then its file names it."""
    with (data_dir / state.SUPERVISOR_FILE).open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        state.write_supervisor(handle)
        yield True


def main(arguments: list[str] | None = None) -> int:
    """Look after the data directory that is named."""
    data_dir = Path((sys.argv[1:] if arguments is None else arguments)[0])
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A round under way ends first: what it has started is in the state file then.
        signal.signal(number, lambda *_: told.set())
    try:
        with _alone(data_dir) as alone:
            supervisor = Supervisor(data_dir) if alone else None
            while supervisor is not None and not told.is_set():
                try:
                    if not supervisor.look(time.time()):
                        break
                except UserError as error:  # a full disk, say
                    log.warning("%s", error)
                told.wait(LOOK_S)
    except FileNotFoundError:
        pass  # the stack's directory is gone
    return 0


if __name__ == "__main__":
    sys.exit(main())
