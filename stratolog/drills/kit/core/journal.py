"""What a client tried, and what it was told. Pure; ``kit.journal_file`` keeps one on the disk.

Each key has steps, one after the other (CHAINS), and each step one word in the end: ACKNOWLEDGED; REFUSED for good, so
it must have had no effect; UNKNOWN, or TRIED alone, of which the client was told nothing. Name, size and bytes of a
numbered key follow from the client's id, the number and the step. So the journal alone says what a replica has to list.

>>> journal = Journal(client_id="c", volume="v", bucket="b")
>>> key = key_of("c", 1)
>>> for step in CREATE, COMMIT:
...     journal.on_tried(key, step)
...     journal.on_acknowledged(key, step, call_id=7, index=70, at_ms=5)
>>> journal.on_tried(key, DELETE)
>>> [(name, sorted(steps)) for name, steps in journal.expected()], journal.size(key, COMMIT)
([('c/00000001', ['', 'm'])], 2)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self

CREATE, COMMIT, DELETE, PUT, REPLACE = "c", "m", "d", "p", "o"
KEYS_OF_BLOCKS = (CREATE + COMMIT,)
"""The steps of a light load: each key is created and committed."""
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
"""What is done with a key, by its number: blocks, bytes in the row, one in the place of the other, deleted or not."""
SIZES = 997
BLOB_OF, BLOB_BYTES = 32, 4096
"""Of so many keys those of one chain have so many bytes more: such values lie in blob files."""

TRIED, ACKNOWLEDGED, REFUSED, UNKNOWN = "T", "A", "R", "U"
ABSENT = ""
"""Stands for the step after which there is no key."""


def key_of(client_id: str, number: int) -> str:
    """Return the name of a client's numbered key; never used twice."""
    return f"{client_id[:16]}/{number:08d}"


def number_of(key: str) -> int:
    """Return the number of a numbered key."""
    return int(key.rpartition("/")[2])


def size_of(number: int, step: str = COMMIT) -> int:
    """Return the size in bytes that a numbered key has after a step; no two steps of a chain give the same."""
    size = 1 + number % SIZES
    if step == COMMIT:
        return size
    larger = BLOB_BYTES if number % BLOB_OF < len(CHAINS) else 0
    return size + larger + (SIZES if step == PUT else 2 * SIZES)


def data_of(client_id: str, number: int, step: str) -> bytes | None:
    """Return the bytes that a numbered key has in its row after a step; None if it has blocks."""
    if step == COMMIT:
        return None
    size, word = size_of(number, step), f"{client_id} {number} {step},".encode()
    return (word * (size // len(word) + 1))[:size]


@dataclass(frozen=True, slots=True)
class Ack:
    """A step that was acknowledged: by which call, at which managed index, when (milliseconds, monotonic clock)."""

    key: str
    step: str
    call_id: int
    index: int
    at_ms: int


@dataclass(slots=True, kw_only=True)
class Journal:
    """One client's requests about the keys of one bucket; the client's threads take notes by the ``on_…`` methods.

    ``keys`` has the last word on each step of each key, in order. ``acknowledged`` has each key's last acknowledged
    step that changed it. ``sizes`` has the keys that have no number: they are created and committed, with that size.
    """

    client_id: str = ""
    volume: str = ""
    bucket: str = ""
    keys: dict[str, dict[str, str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    acks: list[Ack] = field(default_factory=list)
    acknowledged: dict[str, Ack] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    # -- notes ---------------------------------------------------------------------------------------------------------

    def on_tried(self, key: str, step: str, size: int | None = None) -> None:
        """Take note of a request that is about to be sent; ``size`` is of a key without a number."""
        if size is not None:
            self.sizes[key] = size
        self.keys.setdefault(key, {})[step] = TRIED

    def on_acknowledged(self, key: str, step: str, *, call_id: int, index: int, at_ms: int) -> None:
        """Take note of an acknowledgement."""
        self.keys[key][step] = ACKNOWLEDGED
        ack = Ack(key, step, call_id, index, at_ms)
        self.acks.append(ack)
        if step != CREATE:
            self.acknowledged[key] = ack

    def on_refused(self, key: str, step: str, why: str) -> None:
        """Take note of a refusal for good."""
        self.keys[key][step] = REFUSED
        self.refusals.append(f"{key} {step}: {why}")

    def on_unknown(self, key: str, step: str, why: str) -> None:
        """Take note that nobody knows what became of a request."""
        self.keys[key][step] = UNKNOWN
        self.doubts.append(f"{key} {step}: {why}")

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> dict[int, int]:
        """The managed index of each acknowledged call, by its id."""
        return {ack.call_id: ack.index for ack in self.acks}

    @property
    def failures(self) -> list[str]:
        """Requests that were refused, or of which nothing is known."""
        return [*self.refusals, *self.doubts]

    @property
    def unknown(self) -> int:
        """The number of requests of which the client was told nothing."""
        return sum(word in (TRIED, UNKNOWN) for steps in self.keys.values() for word in steps.values())

    def expected(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield each key, and the steps of which one must have been the last: ABSENT if there may be no key."""
        for key, steps in self.keys.items():
            possible = frozenset({ABSENT})
            for step, word in steps.items():
                if step == CREATE or word == REFUSED:
                    continue
                after = ABSENT if step == DELETE else step
                possible = frozenset({after}) if word == ACKNOWLEDGED else possible | {after}
            yield key, possible

    def size(self, key: str, step: str) -> int | None:
        """Return a key's size in bytes after a step; None after ABSENT."""
        if step == ABSENT:
            return None
        return self.sizes[key] if key in self.sizes else size_of(number_of(key), step)

    def data(self, key: str, step: str) -> bytes | None:
        """Return the bytes that a key has in its row after a step; None if it has blocks."""
        return None if key in self.sizes else data_of(self.client_id, number_of(key), step)

    def was_deleted(self, key: str) -> bool:
        """Return whether the deletion of a key was acknowledged."""
        return self.keys[key].get(DELETE) == ACKNOWLEDGED

    def effects(self, key: str) -> tuple[int, int]:
        """Return how often a key may have been written, and deleted."""
        steps = {step for step, word in self.keys[key].items() if word != REFUSED}
        return len(steps & {COMMIT, PUT, REPLACE}), int(DELETE in steps)

    def as_of(self, index: int) -> Self:
        """Return the journal to a client that knows the log as far as a managed index: later steps are in doubt."""
        keys = {key: dict(steps) for key, steps in self.keys.items()}
        for ack in self.acks:
            if ack.index > index:
                keys[ack.key][ack.step] = UNKNOWN
        known = {key: ack for key, ack in self.acknowledged.items() if ack.index <= index}
        return replace(self, keys=keys, acks=[ack for ack in self.acks if ack.index <= index], acknowledged=known)

    def longest_gap_s(self, begin_s: float, end_s: float) -> float:
        """Return the longest time without an acknowledgement in an interval, in seconds of the monotonic clock."""
        moments = [begin_s, *(s for ack in list(self.acks) if begin_s < (s := ack.at_ms / 1000) < end_s), end_s]
        return max(later - earlier for earlier, later in pairwise(moments))


def longest_gap_ms(journals: Iterable[Journal]) -> int:
    """Return the longest time in which clients of one shard were told nothing, between the first and the last ack."""
    moments = sorted(ack.at_ms for journal in journals for ack in journal.acks)
    return max((later - earlier for earlier, later in pairwise(moments)), default=0)
