"""What the commands of campaigns share: notes on standard error, one JSON line for each, a folder that stays if something is wrong."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any


def note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def stopped_by_interrupts() -> Event:
    """Return what Control-C sets, for a campaign to end after its round; a second one ends it at once."""
    stop = Event()

    def on_interrupt(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        note("this round is the last one")
        stop.set()

    signal.signal(signal.SIGINT, on_interrupt)
    return stop


def run_campaign(
    module: str, names: dict[str, str], body: Callable[[Path], tuple[dict[str, Any], bool]], folder_name: str
) -> bool:
    """Run a campaign in a folder of its own, print its line, and return whether nothing is wrong, as ``body`` says.

    The line has ``names``, the figures of ``body``, the seconds unless they are among these, and the command of ``module``.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"stratolog-chaos-{folder_name}-"))
    begun_s = time.monotonic()
    try:
        figures, is_sound = body(folder)
    except BaseException:
        note(f"journals and logs are in {folder}")
        raise
    line = {**names, **figures}
    line.setdefault("seconds", round(time.monotonic() - begun_s))
    print(json.dumps({**line, "command": f"python -m {module} {shlex.join(sys.argv[1:])}"}), flush=True)
    if is_sound:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        note(f"journals and logs are in {folder}")
    return is_sound
