"""Requests that this node is to execute as a pipeline's leader: its LeaderLoop's intake, outbox and service in one.

Rules:
    - At most MAX_WAITING requests of MAX_WAITING_BYTES are unanswered; more are refused with OVERLOADED.
    - An answer leaves when its batch is effective and applied. The one exception is a PutBlock that asks for an early
      answer (``wait_effective`` false): it is answered once the record that holds it has been handed to the appender.
      Refusals always wait.
    - When the leadership ends, unanswered requests fail with NOT_LEADER. Their outcome is unknown, and asking again is
      harmless.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from datanode_processors.errors import BlockError
from datanode_processors.pipeline.core.block_service import BlockService, LogPipelineBase
from replicated_db.core.applying.replica import Offered, Replica
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import Executed, Proposal, Refusal, Reply
from replicated_db.core.ports import Appender, DeliveryReport, Entry, Log, LogBounds
from replicated_db.shell.leader_loop import Publisher, take_queued
from schemas import stream_errors as codes
from schemas.codecs.codec import decode
from schemas.records.datanode import BlockCommitted, PutBlock, PutBlocks, StreamError, WriteChunk
from schemas.records.log import RequestPosition

MAX_WAITING = 4096
"""Requests of one pipeline that may be unanswered."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Bytes of chunks and checksums that the unanswered requests may have."""

Answer = Future[Any]


class Proposals:
    """The waiting requests of one pipeline. ``submit`` runs on any thread; everything else on the leader's."""

    def __init__(self, service: BlockService, outbox: Publisher, first: Callable[[], Any]) -> None:
        """``first`` returns a request to execute before all others of a new claim, or None."""
        self._service = service
        self._outbox = outbox
        self._first = first
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Proposal | None] = queue.SimpleQueue()
        self._waiting: dict[Answer, int] = {}
        self._waiting_bytes = 0
        self._early: list[tuple[Answer, bytes]] = []
        self._open = False
        self._offset = -1
        self.refused = 0
        """Requests refused with OVERLOADED."""

    def submit(self, request: Any) -> Answer:
        """Queue a request; the future has its answer, or a BlockError. Raises BlockError: NOT_LEADER, OVERLOADED."""
        answer: Answer = Future()
        answer.set_running_or_notify_cancel()
        size = _size_of(request)
        with self._lock:
            if not self._open:
                raise BlockError(codes.NOT_LEADER, f"partition {request.partition} is not led here")
            if len(self._waiting) >= MAX_WAITING or (self._waiting and self._waiting_bytes + size > MAX_WAITING_BYTES):
                self.refused += 1
                raise BlockError(
                    codes.OVERLOADED,
                    f"partition {request.partition}: {len(self._waiting)} requests of {self._waiting_bytes} bytes wait",
                )
            self._waiting[answer] = size
            self._waiting_bytes += size
            self._queue.put(_proposal(request, answer))
        return answer

    # -- intake ----------------------------------------------------------------------------------------------------

    def begin(self, hint: RequestPosition | None) -> Proposals:  # noqa: ARG002 - the intake of LeaderLoop
        """Take requests: a claim begins."""
        with self._lock:
            self._queue = queue.SimpleQueue()
            if (first := self._first()) is not None:
                answer: Answer = Future()
                answer.set_running_or_notify_cancel()
                self._waiting[answer] = 0
                self._queue.put(_proposal(first, answer))
            self._open = True
        return self

    def take(self, limit: int, wait_s: float) -> Sequence[Proposal]:
        """Return queued requests."""
        return take_queued(self._queue, limit, wait_s)

    def wake(self) -> None:
        """End a wait in :meth:`take`."""
        self._queue.put(None)

    def close(self) -> None:
        """Fail the unanswered requests: the claim has ended."""
        with self._lock:
            self._open = False
            waiting, self._waiting = self._waiting, {}
            self._waiting_bytes = 0
            self._early.clear()
        for answer in waiting:
            answer.set_exception(
                BlockError(codes.NOT_LEADER, "the leadership was lost meanwhile; whether it was executed is not known")
            )

    # -- service ---------------------------------------------------------------------------------------------------

    def execute(self, proposal: Proposal, transaction: Transaction, timestamp_ms: int) -> Executed:
        """Execute a request."""
        executed = self._service.execute(proposal, transaction, timestamp_ms)
        request = proposal.body
        if executed.keep and isinstance(request, PutBlock) and not request.wait_effective:
            self._early.append((proposal.reply_to, executed.response))
        return executed

    def refuse(self, proposal: Proposal, refusal: Refusal, message: str, index: int) -> bytes:
        """Encode a refusal."""
        return self._service.refuse(proposal, refusal, message, index)

    def handed_over(self) -> None:
        """Send the answers that may leave early: everything executed so far has been handed to the appender."""
        if self._early:
            early, self._early = self._early, []
            for answer, response in early:
                self._resolve(answer, response, -1)

    # -- outbox ----------------------------------------------------------------------------------------------------

    def publish(self, replica: Replica, outcome: Offered) -> None:
        """Publish the events of an applied record; its answers come next."""
        self._offset = outcome.position.offset
        self._outbox.publish(replica, outcome)

    def reply(self, replies: Sequence[Reply]) -> None:
        """Resolve the answers of the record that was published last."""
        for reply in replies:
            self._resolve(reply.proposal.reply_to, reply.response, self._offset)

    def _resolve(self, answer: Answer, response: bytes, offset: int) -> None:
        with self._lock:
            size = self._waiting.pop(answer, None)
            if size is None:  # it was answered early
                return
            self._waiting_bytes -= size
        record = decode(response)
        if isinstance(record, StreamError):
            answer.set_exception(BlockError(record.code, record.message))
        elif isinstance(record, BlockCommitted):
            answer.set_result(replace(record, log_offset=offset))
        else:
            answer.set_result(record)


def _proposal(request: Any, answer: Answer) -> Proposal:
    return Proposal(
        client_id=b"", call_id=b"", request_hash=b"", first_sent_at_ms=0, request_type=type(request).__name__,
        body=request, reply_to=answer, begins_batch=isinstance(request, LogPipelineBase),
    )  # fmt: skip


def _size_of(request: Any) -> int:
    if isinstance(request, WriteChunk):
        return len(request.data)
    if isinstance(request, PutBlocks):
        return sum(len(block.checksums) for block in request.blocks)
    return len(request.checksums) if isinstance(request, PutBlock) else 0


class HandedOver:
    """A log that calls ``handed_over`` after each append: the requests executed before it are in flight."""

    def __init__(self, log: Log, handed_over: Callable[[], None]) -> None:
        self._log = log
        self._handed_over = handed_over

    def topic_id(self) -> str:
        """Return the topic's identity."""
        return self._log.topic_id()

    def bounds(self) -> LogBounds:
        """Return first and end offset."""
        return self._log.bounds()

    def read(self, offset: int, limit: int, wait_s: float) -> Sequence[Entry]:
        """Return entries."""
        return self._log.read(offset, limit, wait_s)

    def rest(self) -> None:
        """Keep nothing ready."""
        self._log.rest()

    def appender(self) -> Appender:
        """Return a fresh appender that calls ``handed_over``."""
        return _TellingAppender(self._log.appender(), self._handed_over)


class _TellingAppender:
    def __init__(self, appender: Appender, handed_over: Callable[[], None]) -> None:
        self._appender = appender
        self._handed_over = handed_over

    def append(self, token: int, value: bytes) -> None:
        """Hand over a record, and call ``handed_over``."""
        self._appender.append(token, value)
        self._handed_over()

    def poll(self, wait_s: float) -> Sequence[DeliveryReport]:
        """Return reports."""
        return self._appender.poll(wait_s)

    def close(self) -> None:
        """Give up what is in flight."""
        self._appender.close()
