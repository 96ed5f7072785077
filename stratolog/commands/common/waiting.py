"""What a command tells a person while it waits, and when he ends it with Ctrl-C.

Rules:

1. A command that waits longer than :data:`WORD_AFTER_S` says what it waits for and what is amiss
   (``stratolog.cluster.reach``). It says so again when that changes.
2. A command that is interrupted says what was done and what was not, and ends with status 130.
3. With ``--json`` nobody reads along: a wait is silent, and an interrupt is one JSON object on standard error.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from stratolog.cluster.reach import amiss, look
from stratolog.commands.common.output import complain, notes, printed
from stratolog.configuration.settings import Settings
from stratolog.errors import EXIT_INTERRUPTED

WORD_AFTER_S = 2.0
LOOK_INTERVAL_S = 3.0
NOTHING_AMISS = "no answer yet, and nothing is known to be amiss"


@contextmanager
def waiting(
    settings: Settings, what: str, interrupted: str | Callable[[], str], *, quiet: bool, bytes_too: bool = False,
    moving: Callable[[], int] = lambda: printed.results,
) -> Iterator[None]:  # fmt: skip
    """Run code that may wait, within both :func:`waits_told` and :func:`interruptible`."""
    with waits_told(settings, what, quiet=quiet, bytes_too=bytes_too, moving=moving), interruptible(interrupted):
        yield


@contextmanager
def waits_told(
    settings: Settings, what: str, *, quiet: bool = False, bytes_too: bool = False,
    moving: Callable[[], int] = lambda: printed.results,
) -> Iterator[None]:  # fmt: skip
    """Say why the code within takes so long, once it has taken longer than WORD_AFTER_S.

    ``bytes_too``: the code also waits for datanodes. ``moving`` counts what is done (by default, printed results);
    while the count grows, nothing is said.
    """
    if quiet:
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(settings, what, bytes_too, moving, done), daemon=True, name="waits")
    teller.start()
    try:
        yield
    finally:
        done.set()


def _tell(
    settings: Settings, what: str, bytes_too: bool, moving: Callable[[], int], done: threading.Event
) -> None:  # fmt: skip
    told = ""
    pause_s, count = WORD_AFTER_S, moving()
    while not done.wait(pause_s):
        pause_s = LOOK_INTERVAL_S
        if (now := moving()) != count:
            count, told = now, ""
            continue
        reasons = "; ".join(amiss(look(settings, bytes_too=bytes_too))) or NOTHING_AMISS
        if (sense := re.sub(r"\d+ s ago", "", reasons)) != told and not done.is_set():
            told = sense
            notes.print(f"{what}: waiting: {reasons}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def interruptible(say: str | Callable[[], str]) -> Iterator[None]:
    """End the command at Ctrl-C, with a sentence on what was done and what was not."""
    try:
        yield
    except KeyboardInterrupt as error:
        complain("Interrupted", "interrupted", say if isinstance(say, str) else say())
        raise typer.Exit(EXIT_INTERRUPTED) from error
