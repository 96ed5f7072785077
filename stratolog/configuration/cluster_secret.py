"""The file with the cluster's secret: ``stratolog up`` or ``admin make-secret`` makes it; nodes and operators read it.

It holds at least 32 bytes (white space at either end does not count), and nobody but its owner may read it. It never
goes into a settings file, a log or an argument: settings name its path (``cluster_secret_file``).
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from schemas.privilege import MAX_SECRET_BYTES, ClusterSecret
from stratolog.errors import UsageError

FILE_MODE = 0o600
MADE_BYTES = 32
"""Random bytes of a new secret, which is written as hexadecimal digits."""
MAX_READ_BYTES = MAX_SECRET_BYTES + 64
REMEDY = (
    "'stratolog up' makes one for a local stack, 'stratolog admin make-secret' anywhere; all nodes and operators of "
    "a cluster need the same"
)


def read_secret(path: Path) -> ClusterSecret:
    """Return the secret in a file; raises UsageError, naming the setting and the remedy, if it cannot be used."""
    where = f"setting 'cluster_secret_file': {path}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise UsageError(f"{where} does not exist: {REMEDY}") from error
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{where} is no file: {REMEDY}")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise UsageError(f"{where} may be read by others (mode {mode:04o}): 'chmod 600 {path}'")
        content = os.read(descriptor, MAX_READ_BYTES)
    finally:
        os.close(descriptor)
    try:
        return ClusterSecret(content.strip())
    except ValueError as error:
        raise UsageError(f"{where}: {error}; {REMEDY}") from error


def make_secret(path: Path) -> bool:
    """Make a secret in a file that does not exist; return whether this call made it.

    Of two commands at once, the second one finds a whole file. Raises UsageError if it cannot be written.
    """
    if path.exists():
        return False
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with open(descriptor, "w") as file:
            file.write(secrets.token_hex(MADE_BYTES) + "\n")
            file.flush()
            os.fsync(descriptor)
        try:
            # A link, not a rename: a link fails if another command was faster, and its secret may be in use already.
            os.link(scratch, path)
        except FileExistsError:
            return False
        finally:
            scratch.unlink()
    except OSError as error:
        raise UsageError(f"setting 'cluster_secret_file': {path} cannot be made: {error.strerror}") from error
    return True
