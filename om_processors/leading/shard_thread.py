"""The thread that leads one shard while it is this node's to lead."""

from __future__ import annotations

import threading
from collections.abc import Callable

from om_processors.leading.core.leadership_events import ThreadEnd
from replicated_db.core.ports import LogUnavailable
from replicated_db.shell.claiming import UnfitToLead
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from transport.waiting.core.backoff import Backoff
from transport.waiting.deadline import Deadline

MAX_FAILING_S = 30.0
"""How long a node that owns a shard may fail to claim it before it leaves the group to others."""

LONGEST_FAILING_S = 30 * 60.0
"""Upper limit of that time, which doubles while leaving does not help."""

RETRY_S = 0.5


class ClaimPatience:
    """How long a node tries to claim a shard that it owns before it leaves the group, with all its shards, to let
    another try.

    The time doubles at each failure: a partition that nobody can read must not cost the other shards their leader again
    and again. It begins anew once the node has led the shard.
    """

    def __init__(self) -> None:
        self.left = 0
        """How often this node has left the group because of the shard since it last led the shard."""

    @property
    def lasts_s(self) -> float:
        """The present patience, in seconds."""
        return Backoff(first_s=MAX_FAILING_S, last_s=LONGEST_FAILING_S).pause_s(self.left + 1)


class ShardThread:
    """Claims and leads until it is told to stop, is deposed, or cannot go on.

    ``ended`` is called last, with the reason; ``fatal`` is called with anything that must end the process.
    ``leaderless`` says whether the shard's partition has no leader, so that no other node could do better.
    """

    def __init__(
        self, loop: LeaderLoop, note: Note, *,
        ended: Callable[[ThreadEnd], None], fatal: Callable[[BaseException], None],
        patience: ClaimPatience, leaderless: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.shard = loop.replica.identity.shard
        self.stop = threading.Event()
        self._loop = loop
        self._note = note
        self._ended = ended
        self._fatal = fatal
        self._patience = patience
        self._leaderless = leaderless
        loop.beat()
        self.thread = threading.Thread(target=self._run, name=f"leader-{self.shard}", daemon=True)
        self.thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread has not ended yet."""
        return self.thread.is_alive()

    def end(self) -> None:
        """Have it drain and end. Does not wait for it."""
        self.stop.set()
        self._loop.wake()

    def _run(self) -> None:
        why = ThreadEnd.TOLD
        try:
            try:
                why = self._lead()
            finally:
                self._ended(why)
        except BaseException as error:
            self._fatal(error)

    def _lead(self) -> ThreadEnd:
        leaving: Deadline | None = None
        while not self.stop.is_set():
            led = self._loop.times_led
            try:
                try:
                    reason = self._loop.lead(self.stop)
                finally:
                    if self._loop.times_led > led:  # the node has led since, so earlier failures do not count
                        leaving, self._patience.left = None, 0
            except LogUnavailable as error:
                leaving = leaving or Deadline.after_s(self._patience.lasts_s)
                if leaving.has_passed and not self._leaderless():
                    self._note(
                        f"shard {self.shard}: {error}; leaving the group, so that another node may try",
                        shard=self.shard,
                    )
                    self._patience.left += 1
                    return ThreadEnd.FAILED
                self._note(f"shard {self.shard}: {error}; trying again", shard=self.shard)
                self.stop.wait(RETRY_S)
                continue
            except UnfitToLead as error:
                self._note(f"shard {self.shard}: {error}", shard=self.shard)
                return ThreadEnd.UNFIT
            self._note(f"shard {self.shard}: leadership ended: {reason}", shard=self.shard)
            return ThreadEnd.TOLD if self.stop.is_set() else ThreadEnd.DEPOSED
        return ThreadEnd.TOLD
