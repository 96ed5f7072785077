"""A client's journal on disk: what it tried, and what it was told. Written by the client itself, judged when all is over.

A line is one ``write`` to a file opened for appending, so it survives the client's SIGKILL (not the machine's loss of power)::

    H CLIENT VOLUME BUCKET           first line: the client's id in hexadecimal, and where all its keys are
    T NUMBER STEP                    about to send: c(reate), m (commit), p(ut), o (put over it) or d(elete) of key NUMBER
    A NUMBER STEP CALL INDEX TIME    acknowledged, as call CALL, at managed index INDEX; TIME in ms of CLOCK_MONOTONIC
    R NUMBER STEP STATUS             refused for good: it must have had no effect
    U NUMBER STEP STATUS             outcome unknown; so is whatever was tried and has no other line

Name, size and bytes of a key follow from the client's id, the number and the step, so the journal alone says what a replica
has to list, and which bytes an inline key has. Each key has steps of its own, one after the other (CHAINS).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

CREATE, COMMIT, DELETE, PUT, REPLACE = "c", "m", "d", "p", "o"
STEPS = CREATE + COMMIT + DELETE + PUT + REPLACE
CHAINS = (
    CREATE + COMMIT + DELETE,
    CREATE + COMMIT,
    PUT,
    PUT + REPLACE,
    PUT + DELETE,
    PUT + REPLACE + DELETE,
    CREATE + COMMIT + REPLACE,
    PUT + CREATE + COMMIT,
)
"""What is done with a key, by its number: blocks and bytes in the row, one in the place of the other, deleted or not."""
SIZES = 997
BLOB_OF, BLOB_BYTES = 32, 4096
"""Of so many keys those of one chain have so many bytes more: such values lie in blob files."""

TRIED, ACKNOWLEDGED, REFUSED, UNKNOWN = "T", "A", "R", "U"
ABSENT = ""
"""Stands for the step after which there is no key."""


def key_of(client_id: str, number: int) -> str:
    """Return the name of a client's key; never used twice."""
    return f"{client_id[:16]}/{number:08d}"


def chain_of(number: int) -> str:
    """Return the steps of a key, in order."""
    return CHAINS[number % len(CHAINS)]


def size_of(number: int, step: str = COMMIT) -> int:
    """Return the size that a key has after a step; no two steps of a chain give the same."""
    size = 1 + number % SIZES
    if step == COMMIT:
        return size
    larger = BLOB_BYTES if number % BLOB_OF < len(CHAINS) else 0
    return size + larger + (SIZES if step == PUT else 2 * SIZES)


def data_of(client_id: str, number: int, step: str) -> bytes | None:
    """Return the bytes that a key has in its row after a step; None if it has blocks."""
    if step == COMMIT:
        return None
    size, word = size_of(number, step), f"{client_id} {number} {step},".encode()
    return (word * (size // len(word) + 1))[:size]


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
    """A journal, read: the last word on each step of each key, in order, and the index of each acknowledged call."""

    client_id: str
    volume: str
    bucket: str
    keys: dict[int, dict[str, str]] = field(default_factory=dict)
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
        self.keys.setdefault(int(number), {})[step] = word
        if word == ACKNOWLEDGED:
            self.calls[int(rest[0])] = int(rest[1])
            self.times_ms.append(int(rest[2]))
        elif word == REFUSED:
            self.refusals.append(line)

    @property
    def unknown(self) -> int:
        """The number of requests of which the client was told nothing."""
        return sum(word in (TRIED, UNKNOWN) for steps in self.keys.values() for word in steps.values())

    def expected(self) -> Iterator[tuple[int, frozenset[str]]]:
        """Yield each key's number, and the steps of which one must have been the last: ABSENT if there may be no key."""
        for number, steps in self.keys.items():
            possible = frozenset({ABSENT})
            for step, word in steps.items():
                if step == CREATE or word == REFUSED:
                    continue
                after = ABSENT if step == DELETE else step
                possible = frozenset({after}) if word == ACKNOWLEDGED else possible | {after}
            yield number, possible

    def was_deleted(self, number: int) -> bool:
        """Return whether the deletion of a key was acknowledged."""
        return self.keys[number].get(DELETE) == ACKNOWLEDGED

    def effects(self, number: int) -> tuple[int, int]:
        """Return how often a key may have been written, and deleted."""
        steps = {step for step, word in self.keys[number].items() if word != REFUSED}
        return len(steps & {COMMIT, PUT, REPLACE}), int(DELETE in steps)


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
