"""Files with a user's credentials: ``stratolog admin user add`` makes them, the setting ``credentials_file`` names one.

Nobody but its owner may read such a file. Its contents never go into a settings file, a log or an argument.
"""

from __future__ import annotations

import os
from pathlib import Path

from schemas.access.credentials import MAX_FILE_BYTES, Credentials, parse_credentials
from schemas.security.sealed import CREDENTIALS, opened
from stratolog.errors import UsageError
from stratolog.security.private_files import read_private

FILE_MODE = 0o600


def read_credentials(path: Path, key_file: Path | None = None) -> Credentials:
    """Return the credentials in a file; raises UsageError, naming the setting, if they cannot be used.

    ``key_file`` has the key under which the file may be sealed.
    """
    content = read_private(path, setting="credentials_file", most=MAX_FILE_BYTES)
    if content is None:
        raise UsageError(f"setting 'credentials_file': {path} does not exist")
    try:
        return parse_credentials(opened(content, key_file, CREDENTIALS).decode())
    except ValueError as error:
        raise UsageError(f"setting 'credentials_file': {path}: {error}") from error


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
