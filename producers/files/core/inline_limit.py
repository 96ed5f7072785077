"""Up to which size a client puts keys into the nodes' tables, as far as refusals have told it. Pure.

The client has a limit of its own (``StreamOptions.inline_bytes``), the cluster another one, which may be lower, and a
cluster that is not finalized takes no PutKey at all. A refusal costs a request, and the key is then written to
datanodes. So a client remembers a refusal, and asks again ASK_AGAIN_S later: the cluster may have been finalized.

A key may also be refused for its metadata, which is written in the same batch. That says nothing of other keys. The
refusal does not tell, but bytes and metadata of up to MAX_INLINE_BYTES together fit into a batch: only if there are no
more was the key refused for its size.
"""

from __future__ import annotations

from producers.blocks.core.write_ways import WayLeft
from schemas.small_objects import MAX_INLINE_BYTES

ASK_AGAIN_S = 60.0
"""How long a client remembers that the cluster refused a PutKey."""


class InlineLimit:
    """What one client knows; any thread may ask and tell it."""

    def __init__(self) -> None:
        self._refused: tuple[int, float] | None = None
        """The largest size that may still be taken, and until when that is remembered."""

    def bytes_at(self, wanted_bytes: int, now_s: float) -> int:
        """Return the most bytes of a key that is put into the tables, ``wanted_bytes`` at most; 0 = none is.

        >>> limit = InlineLimit()
        >>> limit.on_refused(WayLeft.ROW_TOO_LARGE, 5000, 20, 1.0)
        >>> limit.bytes_at(16384, 2.0), limit.bytes_at(16384, 62.0)
        (4999, 16384)
        """
        if self._refused is None or now_s >= self._refused[1]:
            return wanted_bytes
        return min(wanted_bytes, self._refused[0])

    def on_refused(self, left: WayLeft, size_bytes: int, metadata_bytes: int, now_s: float) -> None:
        """Note that a PutKey of ``size_bytes``, and metadata beside them, was refused: NO_ROWS, or ROW_TOO_LARGE."""
        if left is WayLeft.ROW_TOO_LARGE and size_bytes + metadata_bytes > MAX_INLINE_BYTES:
            return
        most = 0 if left is WayLeft.NO_ROWS else max(size_bytes - 1, 0)
        self._refused = most, now_s + ASK_AGAIN_S
