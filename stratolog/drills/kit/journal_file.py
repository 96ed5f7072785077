"""A journal on the disk, written by a client's process and read by others: meanwhile, or when all is over.

A line is one ``write`` to a file opened for appending. So it survives the client's SIGKILL, not the machine's loss of
power. All keys are numbered ones (``kit.core.journal``)::

    H CLIENT VOLUME BUCKET           first line: the client's id in hexadecimal, and where all its keys are
    T NUMBER STEP                    about to send a step of key NUMBER
    A NUMBER STEP CALL INDEX TIME    acknowledged, as call CALL, at managed index INDEX; TIME in ms of CLOCK_MONOTONIC
    R NUMBER STEP WHY                refused for good
    U NUMBER STEP WHY                outcome unknown; so is whatever was tried and has no other line
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stratolog.drills.kit.core.journal import (
    ACKNOWLEDGED,
    REFUSED,
    TRIED,
    UNKNOWN,
    Journal,
    key_of,
    number_of,
)

JOURNAL_HEAD = "H"


class JournalFile:
    """A journal that is being written; safe to share between threads, as each line is one write."""

    def __init__(self, path: Path, client_id: str, volume: str, bucket: str) -> None:
        """Make the file; raises FileExistsError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self._line(JOURNAL_HEAD, client_id, volume, bucket)

    def on_tried(self, key: str, step: str) -> None:
        """Write that a request is about to be sent."""
        self._line(TRIED, number_of(key), step)

    def on_acknowledged(self, key: str, step: str, *, call_id: int, index: int, at_ms: int) -> None:
        """Write an acknowledgement."""
        self._line(ACKNOWLEDGED, number_of(key), step, call_id, index, at_ms)

    def on_refused(self, key: str, step: str, why: str) -> None:
        """Write a refusal."""
        self._line(REFUSED, number_of(key), step, why)

    def on_unknown(self, key: str, step: str, why: str) -> None:
        """Write that nobody knows."""
        self._line(UNKNOWN, number_of(key), step, why)

    def _line(self, *words: object) -> None:
        os.write(self._file, (" ".join(" ".join(map(str, words)).splitlines()) + "\n").encode())


def read_journal(path: Path) -> Journal | None:
    """Read a journal; None if its client was killed before it had a name, and so before it sent anything."""
    lines = _complete_lines(path)
    head = next(lines, None)
    if head is None:
        return None
    _, client_id, volume, bucket = head.split()
    journal = Journal(client_id=client_id, volume=volume, bucket=bucket)
    for line in lines:
        _take(journal, *line.split(maxsplit=3))
    return journal


def _take(journal: Journal, word: str, number: str, step: str, rest: str = "") -> None:
    key = key_of(journal.client_id, int(number))
    if word == TRIED:
        journal.on_tried(key, step)
    elif word == ACKNOWLEDGED:
        call_id, index, at_ms = map(int, rest.split())
        journal.on_acknowledged(key, step, call_id=call_id, index=index, at_ms=at_ms)
    else:
        (journal.on_refused if word == REFUSED else journal.on_unknown)(key, step, rest.strip())


def _complete_lines(path: Path) -> Iterator[str]:
    """Iterate over the lines; what a killed client has not finished was not sent."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield line


class JournalTail:
    """Counts acknowledgements in a journal that somebody else is writing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._rest = b""
        self.acknowledged = 0
        self.unanswered = 0

    def poll(self) -> int:
        """Read on, and return the number of acknowledgements so far."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                found = file.read()
        except FileNotFoundError:
            return 0
        self._read += len(found)
        lines = (self._rest + found).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            word = line[:1].decode()
            self.acknowledged += word == ACKNOWLEDGED
            self.unanswered += (word == TRIED) - (word in (ACKNOWLEDGED, REFUSED, UNKNOWN))
        return self.acknowledged
