"""Who asks, where nobody says: the user of the process."""

from __future__ import annotations

import getpass
import os


def default_caller() -> str:
    """Return the name of the process's user; its number if the system knows no name for it, as ``id`` and ``ls`` do.

    In a container that runs under an arbitrary user id there is neither an entry in the password file nor, often, ``USER``.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
