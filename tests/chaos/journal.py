"""A client's journal on disk: what it tried, and what it was told. Written by the client itself, judged when all is over.

A line is one ``write`` to a file opened for appending, so it survives the client's SIGKILL (not the machine's loss of power)::

    H CLIENT VOLUME BUCKET           first line: the client's id in hexadecimal, and where all its keys are
    T NUMBER STEP                    about to send: c(reate), m (commit) or d(elete) of key NUMBER
    A NUMBER STEP CALL INDEX TIME    acknowledged, as call CALL, at managed index INDEX; TIME in ms of CLOCK_MONOTONIC
    R NUMBER STEP STATUS             refused for good: it must have had no effect
    U NUMBER STEP STATUS             outcome unknown; so is whatever was tried and has no other line

Name and size of a key follow from the client's id and the number, so the journal alone says what a replica has to list.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

CREATE, COMMIT, DELETE = "c", "m", "d"
STEPS = CREATE + COMMIT + DELETE
SIZES = 997
DELETED_OF = 8
"""Every so many-th key is deleted again."""

TRIED, ACKNOWLEDGED, REFUSED, UNKNOWN = "T", "A", "R", "U"


def key_of(client_id: str, number: int) -> str:
    """Return the name of a client's key; never used twice."""
    return f"{client_id[:16]}/{number:08d}"


def size_of(number: int) -> int:
    return 1 + number % SIZES


def is_deleted(number: int) -> bool:
    return number % DELETED_OF == 0


class Writing:
    """A journal that is being written; safe to share between threads, as each line is one write."""

    def __init__(self, path: Path, client_id: str, volume: str, bucket: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self._line(f"H {client_id} {volume} {bucket}\n")

    def tried(self, number: int, step: str) -> None:
        self._line(f"T {number} {step}\n")

    def acknowledged(self, number: int, step: str, call_id: int, index: int) -> None:
        self._line(f"A {number} {step} {call_id} {index} {time.monotonic_ns() // 1_000_000}\n")

    def refused(self, number: int, step: str, status: str) -> None:
        self._line(f"R {number} {step} {status}\n")

    def unknown(self, number: int, step: str, status: str) -> None:
        self._line(f"U {number} {step} {status}\n")

    def _line(self, line: str) -> None:
        os.write(self._file, line.encode())


@dataclass(slots=True, kw_only=True)
class Journal:
    """A journal, read: the last word on each step of each key, and the index of each acknowledged call."""

    client_id: str
    volume: str
    bucket: str
    steps: dict[str, dict[int, str]] = field(default_factory=lambda: {step: {} for step in STEPS})
    calls: dict[int, int] = field(default_factory=dict)
    times_ms: list[int] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a journal; None if its client was killed before it had a name, and so before it sent anything."""
        lines = _complete_lines(path)
        head = next(lines, None)
        if head is None:
            return None
        _, client_id, volume, bucket = head.split()
        journal = cls(client_id=client_id, volume=volume, bucket=bucket)
        for line in lines:
            journal._take(line)
        return journal

    def _take(self, line: str) -> None:
        word, number, step, *rest = line.split()
        self.steps[step][int(number)] = word
        if word == ACKNOWLEDGED:
            self.calls[int(rest[0])] = int(rest[1])
            self.times_ms.append(int(rest[2]))
        elif word == REFUSED:
            self.refusals.append(line)

    @property
    def unknown(self) -> int:
        """The number of requests of which the client was told nothing."""
        return sum(word in (TRIED, UNKNOWN) for words in self.steps.values() for word in words.values())

    def expected(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (keys that must be listed, keys that may be), name -> size; any other name must not be."""
        must: dict[str, int] = {}
        may: dict[str, int] = {}
        deletions = self.steps[DELETE]
        for number, word in self.steps[COMMIT].items():
            deletion = deletions.get(number, REFUSED)
            if word == REFUSED or deletion == ACKNOWLEDGED:
                continue
            certain = word == ACKNOWLEDGED and deletion == REFUSED
            (must if certain else may)[key_of(self.client_id, number)] = size_of(number)
        return must, may

    def deleted(self) -> list[str]:
        """Return the keys of which the deletion was acknowledged."""
        found = self.steps[DELETE].items()
        return [key_of(self.client_id, number) for number, word in found if word == ACKNOWLEDGED]


def _complete_lines(path: Path) -> Iterator[str]:
    """Iterate over the lines; what a killed client has not finished was not sent."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield line


class Tail:
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
            word = line[:1]
            self.acknowledged += word == b"A"
            self.unanswered += (word == b"T") - (word in (b"A", b"R", b"U"))
        return self.acknowledged
