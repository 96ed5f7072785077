"""Whether a node's event loop turns: a timer notes when it was last called."""

from __future__ import annotations

import asyncio

import faust

from replicated_db.core.ports import Clock

PULSE_INTERVAL_S = 0.5


class Pulse:
    """The time of the event loop's last turn; read from other threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_ms: int | None = None

    def attach(self, app: faust.App) -> None:
        """Have the app's event loop note its turns.

        The loop's own timer serves: one of Faust's takes a third of what an Object Manager takes at rest.
        """

        @app.task  # type: ignore[untyped-decorator]
        async def pulse() -> None:
            self._beat(asyncio.get_running_loop())

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turned_ms = self._clock.elapsed_ms()
        loop.call_later(PULSE_INTERVAL_S, self._beat, loop)

    def ago_ms(self) -> float | None:
        """Return how long ago the loop turned, None before its first turn."""
        return None if self._turned_ms is None else self._clock.elapsed_ms() - self._turned_ms
