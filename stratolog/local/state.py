"""What the local stack consists of and where it runs: ``DATA_DIR/stack.json``, written by ``up``, read by all others.

Processes are recorded with their start times (``stratolog.local.processes``): a state file may outlive a reboot or a
crash, and no command may signal a stranger because of it. The settings that the stack was started with lie beside it in
``stack.toml``; commands without explicit settings use those (:func:`connected`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import NAMES, Settings
from stratolog.errors import Unavailable, UserError
from stratolog.local.processes import POLL_INTERVAL_S, Process
from stratolog.security.private_files import private_umask
from transport.waiting.deadline import Deadline

STATE_FILE = "stack.json"
SETTINGS_FILE = "stack.toml"
LOCK_FILE = "stack.lock"
DRILL_LOCK_FILE = "drill.lock"
SUPERVISOR_FILE = "supervisor.json"
"""Names the process that starts again what has died, which holds a lock on it (``stratolog.supervision``)."""
RESTARTS_FILE = "restarts.json"
"""What the supervisor has started again, how often and why."""
VERSION = 1

BROKER = "broker"
NODE = "node"
DATANODE = "datanode"
AUDIT = "audit"
UI = "ui"
KINDS = (BROKER, NODE, DATANODE, AUDIT, UI)
KNOWN_LATER = (UI,)
"""Kinds that the file names apart: older software, to which a user may go back, refuses kinds that it does not know."""

SUPERVISOR = "supervisor"
"""What the lock's file says while the supervisor holds it."""
SUPERVISOR_WAIT_S = 60.0
"""How long commands wait for a start that the supervisor is at."""
STOPPED = "stopped"
"""With this in ``extra`` a process does not run because somebody has stopped it, until somebody starts it."""

WAY_OUT = "'stratolog down' stops what still runs of it and puts the file away"
OTHER_DIR = "choose a directory that you may write: STRATOLOG_DATA_DIR, or 'data_dir' in the settings file"

PERSONAL = frozenset({"data_dir", "cache_dir", "caller"})
"""Settings that belong to the person who runs a command, not to the stack."""


_CANNOT_WRITE = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
    errno.ENAMETOOLONG, errno.ELOOP,
})  # fmt: skip


class Unreadable(UserError):
    """The state file is damaged, or of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackMember:
    """One process of the stack. ``kind`` is broker, node, datanode, audit or ui; ``address`` is empty for the audit."""

    kind: str
    name: str
    address: str
    log: Path
    process: Process
    extra: dict[str, int]

    @property
    def is_stopped(self) -> bool:
        """Whether it is not to run: ``admin stop-node`` has ended it."""
        return bool(self.extra.get(STOPPED))

    def stopped(self, on_purpose: bool) -> StackMember:
        """Return the member with, or without, the word that it is not to run."""
        extra = {name: value for name, value in self.extra.items() if name != STOPPED}
        return replace(self, extra=extra | {STOPPED: 1} if on_purpose else extra)

    def as_json(self) -> dict[str, Any]:
        """Return the member as plain values."""
        return {
            "kind": self.kind, "name": self.name, "address": self.address, "log": str(self.log),
            "process": asdict(self.process), "extra": self.extra,
        }  # fmt: skip

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> StackMember:
        """Return the member that :meth:`as_json` wrote; raises ValueError, KeyError or TypeError for anything else.

        Signals go to the process ids read here, so a number that is no process id is refused: -1 stands for all
        processes of the user.
        """
        process = Process(**found["process"])
        if type(process.pid) is not int or process.pid < 1 or type(process.started) is not str or not process.started:
            raise ValueError(f"{found['process']} is no process")
        if found["kind"] not in KINDS:
            raise ValueError(f"{found['kind']!r} is no kind of process")
        texts = (found["kind"], found["name"], found["address"], found["log"])
        if not all(isinstance(text, str) for text in texts) or not isinstance(found["extra"], dict):
            raise TypeError(f"{found} is no member of a stack")
        return cls(**{**found, "log": Path(found["log"]), "process": process})


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """All processes of a local stack."""

    members: tuple[StackMember, ...] = ()

    def of(self, kind: str) -> tuple[StackMember, ...]:
        """Return the members of one kind."""
        return tuple(member for member in self.members if member.kind == kind)

    def running(self) -> tuple[StackMember, ...]:
        """Return the members that run now."""
        return tuple(member for member in self.members if member.process.is_running())


def state_file(data_dir: Path) -> Path:
    """Return where a stack's state is."""
    return data_dir / STATE_FILE


def read_state(data_dir: Path) -> StackState | None:
    """Return the stack's state, None if there is none; raises Unreadable if the file cannot be read."""
    path = state_file(data_dir)
    try:
        found = json.loads(path.read_text())
        if found["version"] != VERSION:
            raise Unreadable(
                f"{path} is of version {found['version']}, not {VERSION}: another Stratolog wrote it; {WAY_OUT}"
            )
        return StackState(members=tuple(map(StackMember.from_json, [*found["members"], *found.get("more", ())])))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise UserError(f"{path}: {error.strerror}: the stack belongs to another user; {OTHER_DIR}") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unreadable(f"{path} is not readable as the state of a stack: {error!r}; {WAY_OUT}") from error


def write_state(data_dir: Path, state: StackState) -> None:
    """Replace the stack's state as a whole; raises UserError if the directory cannot be written."""
    path = state_file(data_dir)
    old, more = (
        [one.as_json() for one in state.members if (one.kind in KNOWN_LATER) is is_later] for is_later in (False, True)
    )
    text = json.dumps({"version": VERSION, "members": old, "more": more}, indent=2)
    scratch = path.with_suffix(f".{os.getpid()}")
    with writing(data_dir):
        path.parent.mkdir(parents=True, exist_ok=True)
        with private_umask():
            scratch.write_text(text + "\n")
        scratch.replace(path)


@contextmanager
def writing(data_dir: Path) -> Iterator[None]:
    """Write into a data directory: raises UserError, with what to do, if it cannot be written or its disk is full."""
    try:
        yield
    except OSError as error:
        # A missing file is an error of the user's only in this directory; anywhere else it is a defect.
        own = error.errno == errno.ENOENT and str(error.filename).startswith(str(data_dir))
        if error.errno not in _CANNOT_WRITE and not own:
            raise
        remedy = "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else OTHER_DIR
        raise UserError(f"{error.filename or data_dir}: {error.strerror or error}; {remedy}") from error


@contextmanager
def locked(data_dir: Path, who: str = "") -> Iterator[None]:
    """Keep other ``up`` and ``down`` commands out of the same stack; raises UserError if one is at work.

    ``who`` is written into the lock's file: commands wait while the SUPERVISOR holds it. Makes the data directory.
    """
    with writing(data_dir):
        data_dir.mkdir(parents=True, exist_ok=True)
        handle = (data_dir / LOCK_FILE).open("a+")
    with handle:
        deadline = Deadline.after_s(SUPERVISOR_WAIT_S)
        while not _is_taken(handle):
            handle.seek(0)
            if who or handle.read(len(SUPERVISOR)) != SUPERVISOR or deadline.has_passed:
                raise UserError(f"another command is starting or stopping the stack in {data_dir}")
            time.sleep(POLL_INTERVAL_S)
        handle.truncate(0)
        handle.write(who)
        handle.flush()
        yield  # the word stays: without it a waiting command would refuse


def _is_taken(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def mark_stopped(data_dir: Path, kind: str, name: str, *, on_purpose: bool) -> None:
    """Note that a process is not to run, or is to run again; call it under the lock. Raises as :func:`write_state`."""
    known = read_state(data_dir)
    if known is not None:
        members = tuple(
            one.stopped(on_purpose) if (one.kind, one.name) == (kind, name) else one for one in known.members
        )
        write_state(data_dir, StackState(members=members))


def write_supervisor(handle: IO[str]) -> None:
    """Write into the supervisor's file that this process is the supervisor."""
    found = Process.of(os.getpid())
    handle.truncate(0)
    handle.write(json.dumps(None if found is None else asdict(found)) + "\n")
    handle.flush()


def supervisor_of(data_dir: Path) -> Process | None:
    """Return the supervisor of a stack, if one runs."""
    try:
        found = Process(**json.loads((data_dir / SUPERVISOR_FILE).read_text()))
        is_one = type(found.pid) is int and found.pid > 0 and type(found.started) is str
    except (OSError, ValueError, TypeError):
        return None
    return found if is_one and found.is_running() else None


def running_state(data_dir: Path) -> StackState:
    """Return the state of a stack that runs (wholly or partly); raises Unavailable if none does."""
    state = read_state(data_dir)
    if state is None or not state.running():
        raise Unavailable(f"no stack is running in {data_dir}: start one with 'stratolog up'")
    return state


def member_of(settings: Settings, name: str) -> StackMember | None:
    """Return a node of the local stack, running or not; raises Unavailable if there is no stack."""
    known = read_state(settings.data_dir)
    if known is None:
        raise Unavailable(f"no stack is running in {settings.data_dir}: start one with 'stratolog up'")
    return next((member for member in known.of(NODE) if member.name == name), None)


def connected(settings: Settings) -> Settings:
    """Return the settings that reach the running stack: the stack's own, overridden by those given explicitly.

    Without a running stack, or with ``bootstrap_servers`` given, the settings stay as they are.
    """
    if "bootstrap_servers" in settings.explicit:
        return settings
    state = read_state(settings.data_dir)
    if state is None or not state.running():
        return settings
    stack = load_settings(settings.data_dir / SETTINGS_FILE, environment={})
    own = settings.explicit | PERSONAL
    if "kafka" in settings.explicit:  # a user of his own reaches the brokers where users do
        own |= {"node_bootstrap_servers"}
    taken = {name: getattr(stack, name) for name in NAMES if name not in own}
    return replace(settings, **taken)
