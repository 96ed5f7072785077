"""What a stack leaves in its data directory: whether there is any of it, and its removal."""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

from stratolog.local import state
from stratolog.local.processes import wait_until
from stratolog.settings import SECRET_FILE

FOLDERS = ("kafka", "nodes", "datanodes", "audit", "logs", "drills")
REMOVE_TIMEOUT_S = 2.0
"""A child of a child may still be writing when the processes of a stack have ended."""


def unreadable_file(data_dir: Path) -> Path:
    """Return where a state file that could not be read is put aside."""
    return state.state_file(data_dir).with_suffix(".unreadable")


def has_stack(data_dir: Path) -> bool:
    """Say whether a directory holds a stack, or what is left of one."""
    names = (*FOLDERS, state.SETTINGS_FILE, state.STATE_FILE)
    return any((data_dir / name).exists() for name in names)


def remove_if_empty(data_dir: Path) -> None:
    """Delete a data directory in which there is nothing but a lock: of a start that was refused."""
    with suppress(OSError):
        if not has_stack(data_dir):
            (data_dir / state.LOCK_FILE).unlink(missing_ok=True)
            data_dir.rmdir()


def remove_contents(data_dir: Path) -> None:
    """Delete what a stack made in its data directory, and nothing else that may be there; raises OSError if it cannot."""
    for folder in (data_dir / name for name in FOLDERS):
        if not wait_until(partial(_is_removed, folder), REMOVE_TIMEOUT_S):
            shutil.rmtree(folder)  # for the error that says why
    for name in (state.SETTINGS_FILE, SECRET_FILE, state.LOCK_FILE, state.DRILL_LOCK_FILE):
        (data_dir / name).unlink(missing_ok=True)
    unreadable_file(data_dir).unlink(missing_ok=True)
    if not any(data_dir.iterdir()):
        data_dir.rmdir()


def _is_removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
