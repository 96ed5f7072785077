"""Writers that fail and are closed all the same, over keys that exist: each key holds its old bytes or its fully acknowledged new ones.

A client of the campaign of datanodes (``tests.chaos.datanodes``) has a few keys of its own that it writes again and again. Most of these writers
fail: their commits have next to no time, an exception comes between, and datanodes die meanwhile. Each is closed in one of the WAYS that do not ask
whether it failed. After each the key's row is compared with the one from before, and what the key holds is read back.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from producers.errors import RetryableError, StratologError
from producers.files.key_files import KeyOutput
from tests.support.sdk.key_world import KIB, MIB, KeyWorld

SLOTS = 4
"""Keys of a client's own."""
MAX_BYTES = 3 * MIB
PIECE_BYTES = 100 * KIB
HASTES_MS = (1, 20, 500, 30_000)
"""How long commits may take: 1 fails always, 30,000 only with what is killed."""


class Ours(Exception):
    """An exception of the program that writes."""


def bytes_of(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def in_a_finally(file: KeyOutput, write: Callable[[Any], None]) -> None:
    try:
        write(file)
    finally:
        file.close()


def in_a_wrapper(file: KeyOutput, write: Callable[[Any], None]) -> None:
    with file, io.BufferedWriter(file) as wrapper:
        write(wrapper)


def in_a_text(file: KeyOutput, write: Callable[[Any], None]) -> None:
    class Encoded:
        """Takes bytes where text is taken."""

        def write(self, data: bytes) -> None:
            text.write(data.decode("latin-1"))

    with file, io.TextIOWrapper(file, "latin-1", newline="") as text:
        write(Encoded())


def swallowed(file: KeyOutput, write: Callable[[Any], None]) -> None:
    with file, suppress(StratologError):
        write(file)


WAYS = (in_a_finally, in_a_wrapper, in_a_text, swallowed)


class Overwriter:
    """Writes keys of one client again and again, and says what became of them."""

    def __init__(self, world: KeyWorld, number: int, chance: random.Random) -> None:
        self._world = world
        self._number = number
        self._chance = chance
        self._held: dict[str, tuple[int, int]] = {}
        """Seed and length of what each key holds, as it was acknowledged."""

    def turn(self) -> dict[str, Any]:
        """Write one of the keys, whole or in vain; return the line for the journal."""
        chance = self._chance
        key = f"slot{self._number}-{chance.randrange(SLOTS)}"
        seed, length = chance.randrange(2**60), chance.randint(1, MAX_BYTES)
        before = self._row(key)
        fails_at = None if before is None or chance.random() < 0.5 else chance.randrange(length)
        haste_ms = 30_000 if before is None else chance.choice(HASTES_MS)
        way = chance.choice(WAYS)
        if fails_at is not None and way is in_a_finally:
            fails_at = None  # A close in a finally is a close: what its program does of its own accord is committed.
        error = self._write(key, bytes_of(seed, length), way, fails_at, haste_ms)
        after = self._row(key)
        line: dict[str, Any] = {"key": key, "way": way.__name__, "haste_ms": haste_ms, "error": repr(error)[:300]}
        if error is None and fails_at is not None:
            return line | {"problem": "replaced: it was acknowledged though its program failed"}
        if error is None:
            self._held[key] = seed, length
            if after is None or after.size != length:
                return line | {"problem": f"replaced: {length} bytes were acknowledged, the key is {after}"}
            blocks = [[b.container_id, b.local_id, b.offset, b.length, b.bcs_id] for b in after.blocks]
            return {"seed": seed, "length": length, "blocks": blocks}
        if after != before:
            return line | {"problem": f"replaced: {before} by {after}"}
        return line | {"failed": 1} | (self._read_back(key) if before else {})

    def _row(self, key: str) -> Any:
        return self._world.cluster.keys.get(("v", "b", key))

    def _write(
        self, key: str, data: bytes, way: Callable[..., None], fails_at: int | None, haste_ms: int
    ) -> BaseException | None:
        chance = self._chance
        # What fails within its first write has written nothing: closed all the same, that is an empty key.
        piece = chance.choice([PIECE_BYTES, len(data)])

        def write(target: Any) -> None:
            for at in range(0, len(data), piece):
                if fails_at is not None and at + piece > fails_at:
                    raise Ours
                target.write(data[at : at + piece])
                if isinstance(target, KeyOutput) and chance.random() < 0.1:
                    target.hsync()

        options = self._world.options(
            commit_way=chance.choice([0, 1, 2, 3]), commit_timeout_ms=haste_ms, watch_timeout_ms=min(haste_ms, 2_000)
        )
        try:
            way(self._world.client.open(f"/v/b/{key}", "wb", options=options), write)
        except (StratologError, Ours) as error:
            return error
        return None

    def _read_back(self, key: str) -> dict[str, str]:
        """Return nothing, or that the key has other bytes than were acknowledged. Datanodes may be down: then nobody can say now."""
        data = bytes_of(*self._held[key])
        try:
            with self._world.client.open(f"/v/b/{key}") as file:
                found = file.read()
        except RetryableError:
            return {}
        return {} if found == data else {"problem": f"replaced: {len(found)} bytes are read where {len(data)} were"}


def counted(lines: list[dict[str, Any]]) -> Counter[str]:
    """Return how many of the journals' lines are of which kind."""
    return Counter(
        "problem" if "problem" in line else "failed" if "failed" in line else "acknowledged" for line in lines
    )
