"""Faust's sensor without its statistics: nobody looks at them, and each record and each second pays for them."""

from __future__ import annotations

import time
from typing import Any

import faust


class QuietMonitor(faust.Monitor):
    """Keeps only what Faust's watchdog of a partition asks: when its stream took a record last."""

    @faust.Service.task
    async def _sampler(self) -> None:
        """Sample nothing."""

    def on_message_in(self, *_: Any) -> None:
        """Count nothing."""

    def on_stream_event_in(self, tp: Any, *_: Any) -> None:
        """Note the time."""
        self.stream_inbound_time[tp] = time.monotonic()

    def on_stream_event_out(self, *_: Any, **__: Any) -> None:
        """Count nothing."""

    def on_message_out(self, *_: Any) -> None:
        """Count nothing."""
