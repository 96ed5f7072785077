"""The caller of a request if the program names none: the user of the process."""

from __future__ import annotations

import getpass
import os


def default_caller() -> str:
    """Return the name of the process's user, or its number if the system knows no name for it, as ``id`` and ``ls`` do.

    A container that runs under an arbitrary user id has no entry in the password file, and often no ``USER`` either.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
