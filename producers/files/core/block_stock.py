"""The blocks that one client has reserved in one bucket for the small keys to come (decision 0085). Pure.

What belongs here: when blocks are reserved, which one a key gets, when a reservation is given back. The rules:

1. A bucket is *busy* after BUSY_KEYS small keys within BUSY_S. Blocks are reserved for busy buckets alone: whoever
   writes a key now and then gets its block with CreateKey.
2. Reservations of RESERVED_BLOCKS blocks are asked for until the stock, with what was asked for, is at its target:
   FIRST_TARGET blocks, twice as many each time a key of a busy bucket finds none, LAST_TARGET at most. A key that finds
   none does not wait: it is created the other way.
3. A key gets the next block of the oldest reservation. A reservation is used for FRESH_S: later its pipeline may be
   closed.
4. A reservation of which a block failed, or that the cluster refuses to know, is not used any more, and neither are the
   others on its pipeline.
5. After a failure or a refusal nothing is reserved for CLOSED_S, twice as long each time it happens again,
   LAST_CLOSED_S at most; what happens meanwhile counts as the same. A key that is committed ends that series. Blocks
   that are there are used meanwhile.
6. A reservation ends by itself when a key is committed with its last block. Any other one is given back once it is not
   used any more and none of its blocks is in a key that is being written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.records.rows import BlockLocation
from transport.waiting.core.backoff import Backoff

BUSY_KEYS = 8
BUSY_S = 1.0
RESERVED_BLOCKS = 16
"""Blocks of one reservation: its row has them all, and is written anew with each key."""
FIRST_TARGET = 16
LAST_TARGET = 64
FRESH_S = 30.0
"""For how long a reservation is used, in seconds."""
CLOSED_S = 5.0
LAST_CLOSED_S = 60.0
CLOSED = Backoff(first_s=CLOSED_S, last_s=LAST_CLOSED_S)


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks of one session that are not in any key yet."""

    session_id: int
    since_s: float
    blocks: deque[BlockLocation]
    """Those that no key got yet."""
    pipeline: str = ""
    in_keys: int = 0
    """How many are in keys that are being written."""
    lost: int = 0
    """How many were in keys that were not committed."""
    used: bool = True
    """Whether keys still get blocks of it."""
    tokens: object = field(default=None, repr=False)
    """What its owner keeps with it."""


class BlockStock:
    """The reservations in one bucket; its caller makes sure that one thread at a time calls it."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=BUSY_KEYS)
        """When the last small keys were written."""
        self._reservations: deque[Reservation] = deque()
        """Those that are used, the oldest first."""
        self._to_release: list[int] = []
        self._in_keys = 0
        """Blocks of any reservation that are in keys that are being written."""
        self._asked = 0
        self._target = FIRST_TARGET
        self._closed_until_s = float("-inf")
        self._failures = 0
        """Failures and refusals in a row, those in one closed time as one."""

    # -- keys

    def on_written(self, now_s: float) -> None:
        """Note that a small key was written, whichever way."""
        self._times.append(now_s)

    def is_busy(self, now_s: float) -> bool:
        """Say whether so many small keys are written that blocks are reserved for them: rule 1."""
        return len(self._times) == BUSY_KEYS and now_s - self._times[0] <= BUSY_S

    def serves(self, now_s: float) -> bool:
        """Say whether the next small key is likely to get a block: rules 1 and 5."""
        return self.is_busy(now_s) and (not self._is_closed(now_s) or any(one.blocks for one in self._reservations))

    def take(self, size_bytes: int, now_s: float) -> tuple[Reservation, BlockLocation] | None:
        """Return the block of the next key, which has ``size_bytes``; None if there is none with room for it.

        :meth:`on_committed`, :meth:`on_unused` or :meth:`on_failed` follow.
        """
        self.drop_old(now_s)
        if not self._reservations:
            if self.is_busy(now_s) and not self._is_closed(now_s):
                self._target = min(2 * self._target, LAST_TARGET)
            return None
        first = self._reservations[0]
        if first.blocks[0].length < size_bytes:
            return None
        first.in_keys += 1
        self._in_keys += 1
        return first, first.blocks.popleft()

    def on_committed(self, reservation: Reservation) -> None:
        """Note that a key was committed with a block of a reservation."""
        self._failures = 0
        self._leave(reservation)

    def on_unused(self, reservation: Reservation) -> None:
        """Note that a key was not committed, for a reason that is not the reservation's."""
        reservation.lost += 1
        self._leave(reservation)

    def on_failed(self, reservation: Reservation, now_s: float) -> None:
        """Note that a block could not be written, or that the cluster does not know the reservation: rules 4 and 5."""
        for one in [one for one in self._reservations if one.pipeline == reservation.pipeline]:
            self._stop_using(one)
        self._close(now_s)
        self.on_unused(reservation)

    # -- reservations

    def to_ask(self, now_s: float) -> int:
        """Return how many reservations are to be asked for now; they count as asked for from now on."""
        self.drop_old(now_s)
        if not self.is_busy(now_s) or self._is_closed(now_s):
            return 0
        there = self._asked * RESERVED_BLOCKS + sum(len(one.blocks) for one in self._reservations)
        wanted = max(0, -((there - self._target) // RESERVED_BLOCKS))
        self._asked += wanted
        return wanted

    def on_reserved(self, session_id: int, blocks: Iterable[BlockLocation], now_s: float) -> Reservation:
        """Note what came of one that was asked for."""
        self._asked -= 1
        waiting = deque(blocks)
        found = Reservation(
            session_id=session_id, since_s=now_s, blocks=waiting, pipeline=waiting[0].pipeline if waiting else ""
        )
        self._reservations.append(found)
        return found

    def on_refused(self, now_s: float) -> None:
        """Note that one that was asked for did not come: rule 5."""
        self._asked -= 1
        self._close(now_s)

    def drop_old(self, now_s: float) -> None:
        """Use no reservation any more that is old or has no blocks left: rule 3."""
        for one in [one for one in self._reservations if now_s - one.since_s > FRESH_S or not one.blocks]:
            self._stop_using(one)

    def stop(self) -> None:
        """Use no reservation any more."""
        for one in list(self._reservations):
            self._stop_using(one)

    def to_release(self) -> list[int]:
        """Return the sessions of reservations that are to be given back, each once."""
        found, self._to_release = self._to_release, []
        return found

    @property
    def has_to_release(self) -> bool:
        """Whether a reservation is to be given back."""
        return bool(self._to_release)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is reserved or asked for, nor in a key that is being written."""
        return not (self._reservations or self._asked or self._to_release or self._in_keys)

    def _is_closed(self, now_s: float) -> bool:
        return now_s < self._closed_until_s

    def _close(self, now_s: float) -> None:
        if not self._is_closed(now_s):
            self._failures += 1
            self._closed_until_s = now_s + CLOSED.pause_s(self._failures)

    def _stop_using(self, reservation: Reservation) -> None:
        reservation.used = False
        self._reservations.remove(reservation)
        self._settle(reservation)

    def _leave(self, reservation: Reservation) -> None:
        reservation.in_keys -= 1
        self._in_keys -= 1
        self._settle(reservation)

    def _settle(self, reservation: Reservation) -> None:
        if not reservation.used and not reservation.in_keys and (reservation.blocks or reservation.lost):
            self._to_release.append(reservation.session_id)
            reservation.blocks.clear()
            reservation.lost = 0
