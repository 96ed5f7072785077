"""Says what a long piece of work is at: when that changes, and every TELL_INTERVAL_S from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

TELL_INTERVAL_S = 2.0
"""How long the work is silent at most."""


class Telling:
    """A context in which somebody is told what goes on; for one worker thread."""

    def __init__(self, note: Callable[[str], None], *, thread: str = "backup-progress") -> None:
        self._note = note
        self._what: Callable[[], str] = lambda: ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tell, name=thread, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def at(self, what: str | Callable[[], str]) -> None:
        """Say what the work is at from here on."""
        text = what if callable(what) else (lambda: str(what))
        self._what = text
        self.say(text())

    def say(self, text: str) -> None:
        """Say one thing."""
        self._note(text)

    def _tell(self) -> None:
        while not self._done.wait(TELL_INTERVAL_S):
            if text := self._what():
                self.say(text)
