"""Files with a user's credentials: ``stratolog admin user add`` makes them, the setting ``credentials_file`` names one.

Nobody but its owner may read such a file. Its contents never go into a settings file, a log or an argument.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from schemas.access.credentials import MAX_FILE_BYTES, Credentials, parse_credentials
from stratolog.errors import UsageError

FILE_MODE = 0o600


def read_credentials(path: Path) -> Credentials:
    """Return the credentials in a file; raises UsageError, naming the setting, if they cannot be used."""
    where = f"setting 'credentials_file': {path}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{where} is no file")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise UsageError(f"{where} may be read by others (mode {mode:04o}): 'chmod 600 {path}'")
        content = os.read(descriptor, MAX_FILE_BYTES)
    finally:
        os.close(descriptor)
    try:
        return parse_credentials(content.decode())
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def write_credentials(path: Path, credentials: Credentials) -> None:
    """Write a file that nobody but its owner may read, in place of one that is there; raises UsageError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        with open(descriptor, "w") as file:
            os.fchmod(file.fileno(), FILE_MODE)
            file.write(credentials.text())
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
