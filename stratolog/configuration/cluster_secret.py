"""The file with the cluster's secret: ``stratolog up`` or ``admin make-secret`` makes it; nodes and operators read it.

It holds at least 32 bytes (white space at either end does not count), sealed if there is a key-encryption key
(decision 0075), and nobody but its owner may read it. It never goes into a settings file, a log or an argument:
settings name its path (``cluster_secret_file``).
"""

from __future__ import annotations

import secrets
from pathlib import Path

from schemas.privilege import MAX_SECRET_BYTES, ClusterSecret
from schemas.security.sealed import CannotOpen, KeyFileUnusable, opened
from stratolog.errors import UsageError
from stratolog.security.key_encryption import CLUSTER_SECRET, KeyEncryption
from stratolog.security.private_files import make_private, read_private

MADE_BYTES = 32
"""Random bytes of a new secret, which is written as hexadecimal digits."""
MAX_READ_BYTES = 2 * MAX_SECRET_BYTES
"""Of the file, which may be sealed."""
REMEDY = (
    "'stratolog up' makes one for a local stack, 'stratolog admin make-secret' anywhere; all nodes and operators of "
    "a cluster need the same"
)


def read_secret(path: Path, key_file: Path | None = None) -> ClusterSecret:
    """Return the secret in a file; raises UsageError, naming the setting and the remedy, if it cannot be used.

    ``key_file`` has the key under which the file may be sealed.
    """
    where = f"setting 'cluster_secret_file': {path}"
    content = read_private(path, setting="cluster_secret_file", most=MAX_READ_BYTES)
    if content is None:
        raise UsageError(f"{where} does not exist: {REMEDY}")
    try:
        return ClusterSecret(opened(content, key_file, CLUSTER_SECRET).strip())
    except (CannotOpen, KeyFileUnusable) as error:
        raise UsageError(f"{where}: {error}") from error
    except ValueError as error:
        raise UsageError(f"{where}: {error}; {REMEDY}") from error


def make_secret(path: Path, keys: KeyEncryption | None = None) -> bool:
    """Make a secret in a file that does not exist, sealed if there are ``keys``; return whether this call made it.

    Of two commands at once, the second one finds a whole file. Raises UsageError if it cannot be written.
    """
    if path.exists():
        return False
    content = f"{secrets.token_hex(MADE_BYTES)}\n".encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"setting 'cluster_secret_file': {path} cannot be made: {error.strerror}") from error
    try:
        return make_private(path, content if keys is None else keys.seal(CLUSTER_SECRET, content))
    except UsageError as error:
        raise UsageError(f"setting 'cluster_secret_file': {error}") from error
