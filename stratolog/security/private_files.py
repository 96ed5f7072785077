"""Files that nobody but their owner may read: written whole or not at all, or taken from others (decision 0107)."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stratolog.errors import UsageError
from transport.files.durable_files import sync_folder

FOLDER_MODE = 0o700
FILE_MODE = 0o600
PRIVATE_UMASK = 0o077
"""Of every process of a cluster: what it makes is for its account alone."""
OTHERS = 0o077
STRANGERS = 0o007
MAX_FILE_BYTES = 1024 * 1024
"""A longer file is none of ours."""


def make_private_folder(path: Path) -> None:
    """Make a folder for its owner alone; raises UsageError if there is one that others may enter, or it cannot be."""
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}") from error
    if mode & 0o077:
        raise UsageError(f"{path} may be entered by others (mode {mode:04o}): 'chmod 700 {path}'")


@contextmanager
def private_umask() -> Iterator[None]:
    """Have this process make files and folders for its account alone meanwhile."""
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def be_private(folder: Path) -> None:
    """Have this process make files for its account alone from now on, and those in ``folder`` be so. Raises UsageError.

    For a process that is about to serve: its files are users' bytes.
    """
    os.umask(PRIVATE_UMASK)
    tighten(folder)


def tighten(folder: Path, *, again: bool = False) -> int:
    """Take a folder, and all files in it, from others; return how many had been theirs. Nothing is made.

    The folder is closed first, so nobody can put a link into it meanwhile. One that is closed already is not looked
    into, unless ``again``: processes of an older release may have made files in it. Raises UsageError for what belongs
    to another account and strangers may enter.
    """
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UsageError(f"{folder} cannot be looked at: {error.strerror}") from error
    if not mode & OTHERS and not again:
        return 0
    changed = int(_take_from_others(folder, mode))
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # a process has removed it
                found = path.lstat().st_mode
                if stat.S_ISREG(found) or stat.S_ISDIR(found):
                    changed += _take_from_others(path, found)
    return changed


def _take_from_others(path: Path, mode: int) -> bool:
    if not mode & OTHERS:
        return False
    try:
        path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except PermissionError as error:
        if not mode & STRANGERS:
            return False  # a volume that its group may write, as containers have them
        raise UsageError(
            f"{path} belongs to another account, and strangers may use it (mode {stat.S_IMODE(mode):04o}): its owner "
            f"gives 'chmod o-rwx {path}'"
        ) from error
    return True


def read_private(path: Path, *, setting: str = "", most: int = MAX_FILE_BYTES) -> bytes | None:
    """Return what is in a file, None if there is none; raises UsageError if it cannot be read, or others may.

    Errors name the ``setting`` that names the file. A file of more than ``most`` bytes is refused.
    """
    where = f"setting '{setting}': {path}" if setting else str(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{where} is no file")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise UsageError(f"{where} may be read by others (mode {mode:04o}): 'chmod 600 {path}'")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise UsageError(f"{where} has more than {most} bytes: it is none of ours")
    return content


def write_private(path: Path, content: bytes) -> None:
    """Put ``content`` into a file, synced: a reader sees the old one or the new one whole. Raises UsageError."""
    scratch = _scratch(path, content)
    try:
        os.replace(scratch, path)
        sync_folder(path.parent)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def make_private(path: Path, content: bytes) -> bool:
    """Make a file that is not there; return whether this call made it. Of two at once the first one's stays."""
    scratch = _scratch(path, content)
    try:
        os.link(scratch, path)
        sync_folder(path.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)
    return True


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep others who lock it out of a folder meanwhile; they wait. Raises UsageError if it cannot be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _scratch(path: Path, content: bytes) -> Path:
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return scratch
