"""Which way the bytes of a key go, for every kind of size, option and refusal: a transcript of real writes.

``tests/golden/writing/ways.txt`` was written by the software before there was one table of the ways, and holds the
requests and exchanges of each write. ``REWRITE_GOLDEN=1`` writes it afresh: a difference that nobody meant is a fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from producers.files.block_reservations import BlockReservations
from producers.files.core.block_stock import BUSY_KEYS
from producers.files.core.inline_limit import InlineLimit
from schemas.codecs.codec import decode_as
from schemas.records.messages import DeleteKey, Request
from tests.support.sdk.datanodes import KIB, World

GOLDEN = Path(__file__).parents[3] / "golden" / "writing" / "ways.txt"
ROW, BLOCK = 1 * KIB, 4 * KIB
"""Most bytes of a key in its row, and of one in a reserved block, where these ways are open."""
SIZES = (0, ROW, ROW + 1, BLOCK, BLOCK + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One write: its options, what the client knows, and what the caller does."""

    way: int = 1
    inline: int = ROW
    small: int = BLOCK
    stock: bool = False
    announced: int = 0
    written: int
    flushed: bool = False
    refused: bool = False

    def __str__(self) -> str:
        flags = [name for name in ("stock", "flushed", "refused") if getattr(self, name)]
        sizes = f"inline {self.inline:4} small {self.small:4} announced {self.announced:4} written {self.written:4}"
        return f"way {self.way} {sizes} {' '.join(flags) or '-'}"


def cases() -> Iterator[Case]:
    knowledge = list(product((0, ROW), (0, BLOCK), (False, True)))
    for (inline, small, stock), written in product(knowledge, SIZES):
        for way, announced in ((0, 0), (0, BLOCK), (1, 0), (1, ROW), (1, BLOCK), (1, BLOCK + 1)):
            yield Case(way=way, inline=inline, small=small, stock=stock, announced=announced, written=written)
        for way in (2, 3):
            yield Case(way=way, inline=inline, small=small, stock=stock, written=written)
        yield Case(inline=inline, small=small, stock=stock, written=written, flushed=True)
        if inline:
            yield Case(small=small, stock=stock, written=written, refused=True)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Recorder:
    """Writes cases in one world, each as a key of its own, and says what each took."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world = world
        self.clock = clock
        self.count = 0

    def record(self, case: Case) -> str:
        self._prepare(case)
        self.count += 1
        key = f"k{self.count}"
        world, data = self.world, os.urandom(case.written)
        log, small = world.logs[1], world.client.streams.small_blocks
        options = replace(
            world.options, commit_way=case.way, inline_bytes=case.inline, small_block_bytes=case.small
        )  # fmt: skip
        puts, chunks, together = len(log.puts), len(log.chunks), small.written
        steps: list[list[str]] = []
        file = world.client.open(f"/v/b/{key}", "wb", size=case.announced, options=options)
        steps.append(self._kinds(key, steps))
        half = case.written // 2
        for part in (data[:half], data[half:]):
            file.write(part)
            if case.flushed:
                file.flush()
        steps.append(self._kinds(key, steps))
        file.close()
        steps.append(self._kinds(key, steps))
        assert world.get(f"/v/b/{key}") == data
        waits = {put.wait_effective for put in log.puts[puts:]}
        counts = f"together {small.written - together} puts {len(log.puts) - puts} chunks {len(log.chunks) - chunks}"
        opened, written, closed = (" ".join(step) or "-" for step in steps)
        early = " early" if False in waits else ""
        return f"{case} | {opened} | {written} | {closed} | {counts}{early}"

    def _kinds(self, key: str, before: list[list[str]]) -> list[str]:
        bodies = [decode_as(Request, value).body for value in self.world.cluster.seen]
        kinds = [type(body).__name__ for body in bodies if getattr(body, "key", None) == key]
        return kinds[sum(map(len, before)) :]

    def _prepare(self, case: Case) -> None:
        world, streams = self.world, self.world.client.streams
        self.clock.now_s += 10.0
        world.cluster.seen.clear()
        world.cluster.inline_bytes = -1 if case.refused else ROW
        streams.inline_limit = InlineLimit()
        if case.stock:
            for _ in range(BUSY_KEYS):
                streams.reservations.on_written(world.client, ("v", "b"))
            none = DeleteKey(volume="v", bucket="b", key="none")
            assert world.client.submit(none).exception() is not None, "answers come in order"
            assert streams.reservations.serves(("v", "b"))


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    clock = Clock()
    defaults = BlockReservations.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "now_s", clock)
    world = World(tmp_path / "world", small=True)
    yield Recorder(world, clock)
    world.close()


def test_each_write_goes_the_way_that_it_always_went(recorder: Recorder) -> None:
    found = "".join(f"{recorder.record(case)}\n" for case in cases())
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found.splitlines() == GOLDEN.read_text().splitlines()
