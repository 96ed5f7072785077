"""The overlay: the rows that batches in flight will have written, over the store (design, section 4).

The overlay has one entry per row, the newest value. So a read is one lookup, however many batches are in flight. Each
layer (batch) has the rows that it wrote. A layer is dropped only after its write is visible in the store.

A value of ``None`` is a deleted row. Reads see the overlay over the store; iteration merges both in key order.

The overlay remembers rows of the store: those that it read lately, and those of dropped layers. Every request of a
bucket reads the bucket's row, and a commit reads what its CreateKey wrote shortly before. Remembering is safe because,
while a claim lasts, only its own layers change the store. Where something else does (late validation),
:meth:`Overlay.forget` is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from replicated_db.core.ports import StoreView

Row = tuple[str, bytes]
"""Column family and key."""

MAX_REMEMBERED = 16_384
"""Most rows of the store that are remembered, absent ones included. Beyond it all are forgotten."""
MAX_REMEMBERED_BYTES = 8 * 1024 * 1024
"""Most bytes of their values, likewise."""
MAX_REMEMBERED_VALUE_BYTES = 4096
"""A longer value that is read from the store is not remembered."""


class Overlay:
    """Layers over ``base``; the newest layer is the one being built."""

    def __init__(self, base: StoreView) -> None:
        self._base = base
        self.known: dict[Row, bytes | None] = {}
        """The newest value of every row that is known without the store: of the layers' rows, and of remembered ones.

        For lookups on the hot path: :meth:`get` without its call. To read a row that is missing here, call it.
        """
        self._layers: deque[tuple[int, dict[Row, bytes | None]]] = deque()
        self._room, self._room_bytes = MAX_REMEMBERED, MAX_REMEMBERED_BYTES
        """How many more rows of the store, and bytes of them, are remembered before all are forgotten."""

    def open_layer(self, number: int) -> None:
        """Begin a layer; numbers ascend."""
        self._layers.append((number, {}))

    def set(self, cf: str, key: bytes, value: bytes | None) -> None:
        """Write a row into the newest layer."""
        row = (cf, key)
        self.known[row] = self._layers[-1][1][row] = value

    def set_all(self, rows: Mapping[Row, bytes | None]) -> None:
        """Write rows into the newest layer."""
        self.known.update(rows)
        self._layers[-1][1].update(rows)

    def get(self, cf: str, key: bytes) -> bytes | None:
        """Return the row's newest value, or None."""
        row = (cf, key)
        known = self.known
        if row in known:
            return known[row]
        value = self._base.get(cf, key)
        size_bytes = 0 if value is None else len(value)
        if size_bytes <= MAX_REMEMBERED_VALUE_BYTES:
            if not self._room or size_bytes > self._room_bytes:
                self.forget()
            self._room -= 1
            self._room_bytes -= size_bytes
            self.known[row] = value
        return value

    def forget(self) -> None:
        """Forget the rows of the store: something other than a layer has written to it, or too many are remembered."""
        self.known = self._in_flight()
        self._room, self._room_bytes = MAX_REMEMBERED, MAX_REMEMBERED_BYTES

    def _in_flight(self) -> dict[Row, bytes | None]:
        return {row: value for _, rows in self._layers for row, value in rows.items()}

    def layer_of(self, cf: str, key: bytes) -> int | None:
        """Return the number of the layer in flight that last wrote the row, or None if no layer holds the row."""
        return next((number for number, rows in reversed(self._layers) if (cf, key) in rows), None)

    def iterate(self, cf: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over [start, stop); overlay rows hide the store's."""
        above = {
            key: value
            for _, rows in self._layers
            for (family, key), value in rows.items()
            if family == cf and _within(key, start, stop)
        }
        return merge_ordered(self._base.iterate(cf, start, stop), above)

    def drop_layer(self, number: int) -> None:
        """Drop the oldest layer, whose write is visible in the store: its rows are remembered, if there is room.

        Raises ValueError if it is not the oldest.
        """
        if not self._layers or self._layers[0][0] != number:
            raise ValueError(f"layer {number} is not the oldest")
        rows = self._layers.popleft()[1]
        self._room -= len(rows)
        self._room_bytes -= sum(map(len, filter(None, rows.values())))
        if self._room < 0 or self._room_bytes < 0:
            self.forget()

    def close_empty_layer(self) -> None:
        """Remove the newest layer, which is empty. Raises ValueError if something was written into it."""
        if self._layers[-1][1]:
            raise ValueError(f"layer {self._layers[-1][0]} is not empty")
        self._layers.pop()

    def __len__(self) -> int:
        """Return the number of rows held over the store."""
        return len(self._in_flight())


def _within(key: bytes, start: bytes, stop: bytes | None) -> bool:
    return key >= start and (stop is None or key < stop)


def merge_ordered(
    base: Iterator[tuple[bytes, bytes]], above: dict[bytes, bytes | None]
) -> Iterator[tuple[bytes, bytes]]:
    """Merge ordered rows with newer values; a newer None hides the row."""
    pending = deque(sorted(above))
    for key, value in base:
        while pending and pending[0] < key:
            newer = pending.popleft()
            if (found := above[newer]) is not None:
                yield newer, found
        if pending and pending[0] == key:
            pending.popleft()
            if (found := above[key]) is not None:
                yield key, found
        else:
            yield key, value
    for newer in pending:
        if (found := above[newer]) is not None:
            yield newer, found
