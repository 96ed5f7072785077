"""The thread that leads one shard while it is this node's to lead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from replicated_db.leader_loop import LeaderLoop, UnfitToLead
from replicated_db.logs import Note
from replicated_db.ports import LogUnavailable

MAX_FAILING_S = 30.0
"""How long a node that owns a shard may fail to claim it before it leaves the group to others."""

RETRY_S = 0.5


class ShardThread:
    """Claims and leads until it is told to stop, is deposed, or cannot.

    ``deposed`` is called when another leads, ``unfit`` when this node had better not try again soon, ``fatal`` with anything that
    must end the process.
    """

    def __init__(
        self, loop: LeaderLoop, note: Note, *,
        deposed: Callable[[], None], unfit: Callable[[], None], fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self.shard = loop.replica.identity.shard
        self.stop = threading.Event()
        self._loop = loop
        self._note = note
        self._deposed = deposed
        self._unfit = unfit
        self._fatal = fatal
        loop.beat()
        self.thread = threading.Thread(target=self._run, name=f"leader-{self.shard}", daemon=True)
        self.thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread has not ended."""
        return self.thread.is_alive()

    def _run(self) -> None:
        try:
            self._lead()
        except BaseException as error:
            self._fatal(error)

    def _lead(self) -> None:
        failing_since: float | None = None
        while not self.stop.is_set():
            try:
                reason = self._loop.lead(self.stop)
            except LogUnavailable as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > MAX_FAILING_S:
                    self._note(
                        f"shard {self.shard}: {error}; leaving the group, so that another node may try",
                        shard=self.shard,
                    )
                    self._unfit()
                    return
                self._note(f"shard {self.shard}: {error}; trying again", shard=self.shard)
                self.stop.wait(RETRY_S)
                continue
            except UnfitToLead as error:
                self._note(f"shard {self.shard}: {error}", shard=self.shard)
                self._unfit()
                return
            self._note(f"shard {self.shard}: leadership ended: {reason}", shard=self.shard)
            if not self.stop.is_set():
                self._deposed()
            return
