"""Writers by each way in: through the brokers, straight to the leader, and with a delegation token.

A writer takes the keys that it is given for its next client, and closes the one before: so does a program that reads
its files again. Every fifth key is too large for a row, so blocks go to datanodes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import count

from producers.client import Client
from producers.errors import StratologError
from stratolog.drills.core.report import StepFailed
from stratolog.local.processes import wait_until

SMALL_BYTES, LARGE_BYTES = 100, 200_000
LARGE_EVERY = 5
PACE_S = 0.03
WAIT_S = 120.0
JOIN_S = 150.0

OpenClient = Callable[[], Client]


class SignedWriter:
    """Writes from construction until :meth:`stop`, to a bucket; ``way`` says how its clients come in."""

    def __init__(self, way: str, place: tuple[str, str], open_client: OpenClient) -> None:
        self.way = way
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        self._place = place
        self._next: OpenClient | None = open_client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, name=f"drill-{way}", daemon=True)
        self._thread.start()

    def change(self, open_client: OpenClient) -> None:
        """Go on with a new client from the next key on; waits until it has written something."""
        self._next = open_client
        wait_until(lambda: self._next is None, WAIT_S)
        self.wait_more(3)

    def wait_more(self, number: int) -> None:
        """Wait until so many more keys are acknowledged; raises StepFailed with what failed."""
        wanted = len(self.acknowledged) + number
        if not wait_until(lambda: len(self.acknowledged) >= wanted, WAIT_S):
            failed = f"; failed: {self.failures[-1]}" if self.failures else ""
            raise StepFailed(f"by {self.way}: {len(self.acknowledged)} of {wanted} writes acknowledged{failed}")

    def stop(self) -> None:
        """End after the key at work; raises StepFailed if that hangs."""
        self._ended.set()
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            raise StepFailed(f"the writer by {self.way} hangs")

    def give_up(self) -> None:
        """Tell the writer to end, and do not wait for it."""
        self._ended.set()

    def _write(self) -> None:
        client: Client | None = None
        try:
            for number in count():
                if self._ended.wait(PACE_S):
                    return
                try:
                    if (wanted := self._next) is not None:
                        before, client = client, wanted()
                        self._next = None
                        if before is not None:
                            before.close()
                    if client is not None:
                        self._put(client, number)
                except (StratologError, OSError) as error:
                    self.failures.append(f"by {self.way}, {time.strftime('%H:%M:%S')}: {error}")
        finally:
            if client is not None:
                client.close()

    def _put(self, client: Client, number: int) -> None:
        key = f"{self.way.replace(' ', '-')}/{number:06d}"
        content = os.urandom(SMALL_BYTES if number % LARGE_EVERY else LARGE_BYTES)
        with client.open(f"/{self._place[0]}/{self._place[1]}/{key}", "wb") as file:
            file.write(content)
        self.acknowledged.append(key)
