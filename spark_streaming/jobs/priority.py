"""The priority of the audit's processes: writes go first, and the audit catches up when they leave it room."""

from __future__ import annotations

import os
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")


def lower_priority(nice: int) -> None:
    """Give this process and those that it starts a niceness of ``nice`` (0: as it is, up to 19), where allowed.

    Linux may schedule sessions against each other (autogroup), and then niceness counts within a session alone: the
    session's own is set as well.
    """
    if not nice:
        return
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        if os.getsid(0) == os.getpid():  # the session is the audit's own, and not a shell's
            AUTOGROUP.write_text(str(nice))
    except OSError:
        pass  # there are no autogroups, or somebody has just changed this one
