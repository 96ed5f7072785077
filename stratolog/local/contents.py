"""The files of a stack in its data directory: whether there are any, and their removal."""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

from schemas.security.sealed import next_file
from stratolog.configuration.settings import SECRET_FILE
from stratolog.local import state
from stratolog.local.processes import wait_until
from stratolog.security.key_encryption import default_file

FOLDERS = (
    "kafka", "nodes", "datanodes", "audit", "logs", "drills", "restore", "authority", "kafka-users",
)  # fmt: skip
REMOVE_TIMEOUT_S = 2.0
"""A child of a child may still be writing when the processes of a stack have ended."""


def unreadable_file(data_dir: Path) -> Path:
    """Return where a state file that could not be read is put aside."""
    return state.state_file(data_dir).with_suffix(".unreadable")


def has_stack(data_dir: Path) -> bool:
    """Say whether a directory holds a stack, or remains of one, by the files that only a stack has.

    Its folders prove nothing: other programs also have one that is called ``logs``.
    """
    files = (data_dir / state.SETTINGS_FILE, state.state_file(data_dir), unreadable_file(data_dir))
    return any(file.exists() for file in files)


def remove_if_empty(data_dir: Path) -> None:
    """Delete a data directory that holds nothing but a lock, which a refused start has left."""
    with suppress(OSError):
        if not has_stack(data_dir):
            (data_dir / state.LOCK_FILE).unlink(missing_ok=True)
            data_dir.rmdir()


def remove_contents(data_dir: Path) -> None:
    """Delete the files that a stack made in its data directory, and nothing else; raises OSError if that fails.

    Deletes nothing where there never was a stack. The files that prove a stack are deleted last, so a failed removal
    can be tried again. The directory itself stays if something else is in it, or if it cannot be deleted (a mount
    point).
    """
    if not has_stack(data_dir):
        remove_if_empty(data_dir)
        return
    for folder in (data_dir / name for name in FOLDERS):
        if not wait_until(partial(_is_removed, folder), REMOVE_TIMEOUT_S):
            shutil.rmtree(folder)  # again, for the error that says why
    _remove_own_key(data_dir)
    for name in (
        SECRET_FILE, state.DRILL_LOCK_FILE, state.SUPERVISOR_FILE, state.RESTARTS_FILE, state.STATE_FILE,
    ):  # fmt: skip
        (data_dir / name).unlink(missing_ok=True)
    unreadable_file(data_dir).unlink(missing_ok=True)
    for name in (state.SETTINGS_FILE, state.LOCK_FILE):
        (data_dir / name).unlink(missing_ok=True)
    with suppress(OSError):
        data_dir.rmdir()


def _remove_own_key(data_dir: Path) -> None:
    """Delete the key-encryption key that ``up`` made; one that a person has put elsewhere stays."""
    own = default_file(data_dir)
    for path in (own, next_file(own), own.parent / ".gitignore"):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        own.parent.rmdir()


def _is_removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
