"""Where a command looks for its settings file and its stack's data by default: here and above, as git does.

Rules:

1. The *project's directory* is the nearest of the working directory and its parents that has a ``stratolog.toml``, or a
   ``.stratolog`` with a stack; without one it is the working directory. The search creates nothing.
2. Above the working directory only files of the same user count: a stranger's file further up (in ``/tmp``) would make
   commands talk to his servers.
3. A path that begins with ``~`` stays as it is where no home directory is known; the code that needs the path refuses
   it, by name.
"""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from stratolog.errors import UsageError

DEFAULT_FILE = "stratolog.toml"
DEFAULT_DATA_DIR = ".stratolog"
STACK_FILES = ("stack.toml", "stack.json")
"""What a data directory holds as soon as a stack was started in it (stratolog.local.state)."""


def working_directory() -> Path:
    """Return the working directory; raises UsageError if it is gone."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(f"the working directory is gone ({error.strerror}): go to another one") from error


def project_directory(start: Path) -> Path:
    """Return the project's directory of ``start`` (rule 1)."""
    return _nearest(start, [DEFAULT_FILE, *_stack_files()])


def stack_directory(start: Path) -> Path:
    """Return the nearest directory with a stack, from ``start`` upwards; ``start`` if there is none."""
    return _nearest(start, _stack_files())


def _stack_files() -> list[str]:
    return [f"{DEFAULT_DATA_DIR}/{name}" for name in STACK_FILES]


def _nearest(start: Path, names: list[str]) -> Path:
    for folder in (start, *start.parents):
        for name in names:
            path = folder / name
            # Not Path.is_file, which raises for a directory that may not be entered.
            if os.path.isfile(path) and (folder == start or _is_own(path)):
                return folder
    return start


def _is_own(path: Path) -> bool:
    try:
        return {path.stat().st_uid, path.parent.stat().st_uid} == {os.geteuid()}
    except OSError:
        return False


def user_name() -> str:
    """Return the name of the process's user, or his number.

    ``producers.requests.caller`` does the same, but importing it loads all of the SDK.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def is_homeless(path: Path) -> bool:
    """Say whether a path lies in a home directory that is not known."""
    return bool(path.parts) and path.parts[0].startswith("~")
