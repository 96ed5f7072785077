"""What a leader executes next: the requests of ``om.requests`` and those of the direct door, in turns.

Both doors put requests into a queue, on threads of their own (``request_reader``, ``doors``). The leader's thread sorts
them into lanes, which take turns (``lanes``), and immediate refusals are sorted out on the way. Answers go back the way
the call came.

When more requests wait than the limit allows, the intake refuses the surplus (``backlog``), of the longest lane.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from om_processors.execution.service import refusal_response
from om_processors.intake.core.backlog import Backlog
from om_processors.intake.core.lanes import Lanes
from om_processors.intake.core.seldom_note import SeldomNote
from om_processors.intake.direct_calls import DirectCalls
from om_processors.intake.gateway import Gateway, Received
from om_processors.intake.outbox import KafkaOutbox
from om_processors.intake.request_reader import RequestReader
from om_processors.leading.core.preparation import RETRY_AFTER_MS
from replicated_db.core.leading.leader import Proposal, Reply
from replicated_db.core.ports import Clock
from schemas.codecs.codec import Undecodable
from schemas.kafka.connection import Brokers
from schemas.records.log import RequestPosition
from schemas.records.messages import CreateSnapshot, Rejected
from schemas.result_codes import OVERLOADED, with_retry_after
from schemas.topics import OM_REQUESTS

MAX_JUDGED = 2_000
"""Most requests that are judged in one turn of the leader's loop; to refuse so many takes about as long as a batch."""
MAX_JUDGED_BYTES = 8 * 1024 * 1024
"""The same, in bytes of requests: each is decoded and hashed."""
MAX_TOLD_AT_END = 20_000
"""Direct calls that are told when a claim ends, in turns of all connections; connections with more are ended."""

if TYPE_CHECKING:
    from replicated_db.shell.tracing.leader_spans import LeaderSpans


class RequestIntake:
    """Takes proposals of one shard for one claim.

    :meth:`put` and :meth:`wake` are for any thread, the rest for the leader's.
    """

    def __init__(
        self, *, bootstrap_servers: Brokers, shard: int, gateway: Gateway, outbox: KafkaOutbox, clock: Clock,
        hint: RequestPosition | None, log: Callable[[str], None], backlog: Backlog,
        beat: Callable[[float], None] = lambda _: None, may_take_snapshot: Callable[[], bool] = lambda: True,
        on_close: Callable[[], None] = lambda: None, spans: LeaderSpans | None = None,
    ) -> None:  # fmt: skip
        """Begin to read requests; raises LogUnavailable.

        ``beat`` is called with how long, in seconds, a question to the brokers may keep the caller's thread.
        ``may_take_snapshot`` is asked at each CreateSnapshot; if it says no, the client is to ask again soon.
        ``on_close`` is called when nothing more may be put in.
        """
        self._may_take_snapshot = may_take_snapshot
        self._on_close = on_close
        self._spans = spans
        self._shard = shard
        self._gateway = gateway
        self._outbox = outbox
        self._clock = clock
        self._backlog = backlog
        self._arrived: queue.SimpleQueue[Sequence[Received] | BaseException | None] = queue.SimpleQueue()
        self._lanes = Lanes[Received]()
        self._put, self._taken = 0, 0
        """Requests that ever came by the direct door, and those of them that were taken from the queue."""
        self._read_taken = 0
        """Requests of the topic that were taken and that the reader has not been told of."""
        self._lock = threading.Lock()
        self._closed = False
        self._rejected = SeldomNote(log)
        self._direct = DirectCalls(shard)
        self.reader = RequestReader(
            bootstrap_servers=bootstrap_servers, shard=shard, clock=clock, hint=hint, log=log,
            arrived=self._arrived.put, unreadable=self._unreadable, failed=self._arrived.put, beat=beat,
        )  # fmt: skip
        self.reader.start()

    # -- from any thread -------------------------------------------------------------------------------------------

    def put(self, requests: Sequence[Received]) -> bool:
        """Queue requests of the direct door, each with its ``way`` back; False if the claim has ended."""
        with self._lock:
            if self._closed:
                return False
            self._put += len(requests)
            self._arrived.put(requests)
        return True

    def wake(self) -> None:
        """End a wait in :meth:`take`."""
        self._arrived.put(None)

    # -- the leader's thread ---------------------------------------------------------------------------------------

    def take(self, limit: int, wait_s: float) -> Sequence[Proposal]:
        """Return up to ``limit`` proposals; the intake sends refusals and rejections itself.

        It judges a bounded number of requests, refused ones among them, and the others with the next call: the leader's
        thread turns meanwhile. So there may be fewer proposals than wait, or none.

        Raises what ended the thread that reads: LogUnavailable.
        """
        lanes = self._lanes
        self._gather(0 if lanes else wait_s)
        if not lanes:
            return ()
        now_ms = self._clock.wall_ms()
        proposals: list[Proposal] = []
        judged, left_bytes = 0, MAX_JUDGED_BYTES
        while lanes and len(proposals) < limit and judged < MAX_JUDGED and left_bytes > 0:
            received = lanes.take()
            judged, left_bytes = judged + 1, left_bytes - len(received.value)
            admitted = self._admit(received, now_ms)
            if isinstance(admitted, Proposal) and self._is_early(admitted):
                self._outbox.reply([self._later(admitted)])
            elif isinstance(admitted, Proposal):
                proposals.append(admitted)
                if self._spans is not None and received.key is not None:
                    self._spans.begin(admitted, received.key)
            elif isinstance(admitted, Reply):
                self._outbox.reply([admitted])
        self._backlog.on_taken(len(proposals), now_ms)
        self._tell_reader()
        if surplus := self._backlog.surplus(queued := self._queued()):
            self._refuse(surplus, queued, now_ms)
        return proposals

    def _gather(self, wait_s: float) -> None:
        """Sort what has arrived into the lanes; wait for the first. Each way bounds what it brings."""
        with suppress(queue.Empty):
            if wait_s:
                self._keep(self._arrived.get(timeout=wait_s))
            while True:
                self._keep(self._arrived.get_nowait())

    def _keep(self, arrived: Sequence[Received] | BaseException | None) -> None:
        if isinstance(arrived, BaseException):
            raise arrived
        if arrived is not None:
            self._lanes.extend(arrived)

    def _admit(self, received: Received, now_ms: int) -> Proposal | Reply | None:
        """Judge a request that was taken; None if nobody is to be answered."""
        admitted = self._gateway.admit(received, now_ms)
        way = received.way
        if way is None:
            self._read_taken += 1
            if isinstance(admitted, Rejected):
                self._reject(admitted)
                return None
            return admitted
        self._taken += 1
        if isinstance(admitted, Rejected):
            way.reject(admitted.message)
            return None
        if admitted is None:  # of records that name a topic alone: a direct call names none
            return None
        self._direct.begin(admitted if isinstance(admitted, Proposal) else admitted.proposal, way)
        return admitted

    def _tell_reader(self) -> None:
        taken, self._read_taken = self._read_taken, 0
        self.reader.took(taken)

    def _is_early(self, proposal: Proposal) -> bool:
        """Whether a request asks for a snapshot that would hold up all others (``core/preparation``)."""
        return proposal.request_type == CreateSnapshot.__name__ and not self._may_take_snapshot()

    def _later(self, proposal: Proposal) -> Reply:
        message = with_retry_after(
            f"shard {self._shard} writes its newest rows to the disk, and takes the snapshot then", RETRY_AFTER_MS
        )
        return Reply(proposal=proposal, response=refusal_response(proposal.body, self._shard, OVERLOADED, message))

    def _queued(self) -> int:
        """Return about how many requests wait, at both doors."""
        return self.reader.ahead + self.reader.unread + self._put - self._taken

    def _refuse(self, number: int, queued: int, now_ms: int) -> None:
        """Answer the next requests with OVERLOADED."""
        self._gather(0)
        what = f"{queued} requests wait for the leader of shard {self._shard}, more than {self._backlog.max_queued}"
        message = with_retry_after(what, self._backlog.retry_after_ms(queued))
        replies: list[Reply] = []
        left_bytes = MAX_JUDGED_BYTES
        while self._lanes and number > 0 and left_bytes > 0:
            number -= 1
            received = self._lanes.take_surplus()
            left_bytes -= len(received.value)
            admitted = self._admit(received, now_ms)
            if isinstance(admitted, Proposal):
                response = refusal_response(admitted.body, self._shard, OVERLOADED, message)
                replies.append(Reply(proposal=admitted, response=response))
            elif isinstance(admitted, Reply):
                replies.append(admitted)
        self._backlog.refused += len(replies)
        self._tell_reader()
        self._outbox.reply(replies)

    def _unreadable(self, received: Received, error: Undecodable) -> None:
        self._reject(self._gateway.reject(received, error, self._clock.wall_ms()))

    def _reject(self, rejected: Rejected) -> None:
        what = f"rejected offset {rejected.offset} of {OM_REQUESTS}/{self._shard}: {rejected.message}"
        self._rejected.note(what, self._clock.elapsed_ms())
        self._outbox.reject(rejected)

    def close(self) -> None:
        """Take no more: every direct call that is left is told that this node does not lead any more."""
        with self._lock:
            self._closed = True
        self._on_close()
        self.reader.stop()
        message = f"the leadership of shard {self._shard} ended before an answer"
        with suppress(queue.Empty):
            while True:
                arrived = self._arrived.get_nowait()
                if arrived is not None and not isinstance(arrived, BaseException):
                    self._lanes.extend(arrived)
        now_ms = self._clock.wall_ms()
        self._lanes.keep_direct()
        left = MAX_TOLD_AT_END
        while self._lanes:
            received = self._lanes.take()
            if left := max(0, left - 1):
                self._admit(received, now_ms)
            elif received.way is not None:  # its client sends them again, over another connection
                received.way.reject(message)
        self._direct.end(message)
