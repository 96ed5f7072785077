"""The blocks that one client has reserved for the small keys to come, in all its buckets (decision 0085).

What belongs here: the shell around :class:`producers.files.core.block_stock.BlockStock`, whose rules say when blocks
are reserved and given back. Requests for blocks are sent by the thread that writes a key, and nobody waits for their
answers. What cannot be given back (the client is closed, nobody answers) expires on the cluster, as an open key does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from producers.blocks.block_tokens import TokenSource
from producers.errors import StratologError
from producers.files.core.block_stock import RESERVED_BLOCKS, BlockStock, Reservation
from producers.requests.keys import Requester, session_of
from schemas.records.messages import ReleaseBlocks, RequestBody, ReserveBlocks, Response
from schemas.records.rows import BlockLocation
from transport.processes import begins_anew_in_forks
from transport.waiting.deadline import Deadline

LOOK_S = 1.0
"""How often a client that writes small keys looks for old reservations in all its buckets."""
MAX_BUCKETS = 64
"""Buckets in which one client has blocks reserved, or may soon; keys in others are created the other way."""
RELEASE_WAIT_S = 1.0
"""How long closing a client waits for the answers to what it gives back."""

Bucket = tuple[str, str]
"""Names of a volume and a bucket."""
Tokens = Callable[[Bucket, int], TokenSource]
"""Says where the tokens come from for the blocks of a session."""


def is_own(body: RequestBody) -> bool:
    """Say whether a client sends such a request on its own."""
    return isinstance(body, ReserveBlocks | ReleaseBlocks)


def without_own(unanswered: Sequence[RequestBody]) -> list[RequestBody]:
    """Return those unanswered requests of a client that is closed that its callers sent."""
    return [body for body in unanswered if not is_own(body)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedBlock:
    """A block for one key; what became of it is told by one of the methods of :class:`BlockReservations`."""

    bucket: Bucket
    location: BlockLocation
    reservation: Reservation = field(repr=False)
    tokens: TokenSource = field(repr=False)

    @property
    def session_id(self) -> int:
        """The reservation's session."""
        return self.reservation.session_id


class BlockReservations:
    """The reservations of one client; for many threads."""

    def __init__(self, tokens: Tokens, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._now_s = now_s
        self._closed = False
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """Have nothing reserved: in a forked process, what was reserved is the first one's to use and to give back."""
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._stocks: dict[Bucket, BlockStock] = {}
        self._look_at_s = float("-inf")
        self._waiting: set[Future[Response]] = set()
        """Requests without an answer."""

    def serves(self, bucket: Bucket) -> bool:
        """Say whether the next small key of a bucket is likely to get a reserved block."""
        with self._lock:
            stock = self._stocks.get(bucket)
            return stock is not None and stock.serves(self._now_s())

    def on_written(self, client: Requester, bucket: Bucket) -> None:
        """Note that a small key was written."""
        with self._lock:
            now_s = self._now_s()
            old = self._look(now_s)
            stock = self._stock(bucket, now_s)
            if stock is not None:
                stock.on_written(now_s)
        if stock is not None:
            self._send_due(client, bucket, stock)
        for name, one in old:
            self._send_due(client, name, one)

    def take(self, client: Requester, bucket: Bucket, size_bytes: int) -> ReservedBlock | None:
        """Return a block for a key of ``size_bytes``; None if there is none that has room for it."""
        with self._lock:
            stock = self._stocks.get(bucket)
            taken = None if stock is None else stock.take(size_bytes, self._now_s())
        if stock is None or taken is None:
            return None
        reservation, location = taken
        found = ReservedBlock(
            bucket=bucket, location=location, reservation=reservation, tokens=reservation.tokens  # type: ignore[arg-type]
        )  # fmt: skip
        try:
            self._send_due(client, bucket, stock)
        except BaseException:
            self.on_unused(found)
            raise
        return found

    def on_committed(self, client: Requester, block: ReservedBlock) -> None:
        """Note that a key was committed with a block."""
        self._tell(block, lambda stock: stock.on_committed(block.reservation))
        self.on_written(client, block.bucket)

    def on_unused(self, block: ReservedBlock) -> None:
        """Note that the key of a block was not committed, or nobody knows whether it was."""
        self._tell(block, lambda stock: stock.on_unused(block.reservation))

    def on_failed(self, block: ReservedBlock) -> None:
        """Note that a block could not be written, or that the cluster does not know its reservation."""
        self._tell(block, lambda stock: stock.on_failed(block.reservation, self._now_s()))

    def _tell(self, block: ReservedBlock, event: Callable[[BlockStock], None]) -> None:
        with self._lock:
            event(self._stocks[block.bucket])

    def close(self, client: Requester, deadline: Deadline) -> int:
        """Give everything back; return how many requests have no answer after RELEASE_WAIT_S, or at the deadline."""
        until = deadline.sooner(RELEASE_WAIT_S)
        with self._lock:
            self._closed = True
            stocks = list(self._stocks.items())
            for _, stock in stocks:
                stock.stop()
            if not self._waiting and not any(stock.has_to_release for _, stock in stocks):
                return 0
        while True:
            # A client with as many calls in flight as it may have waits for room, so this has a thread of its own.
            sending = threading.Thread(
                target=self._send_all, args=(client, stocks), name="stratolog-release", daemon=True
            )
            sending.start()
            sending.join(until.left_s)
            with self._lock:
                # What was asked for and comes only now is given back, too.
                self._answered.wait_for(
                    lambda: not self._waiting or any(stock.has_to_release for _, stock in stocks),
                    until.left_s,
                )
                if until.has_passed or not any(stock.has_to_release for _, stock in stocks):
                    return len(self._waiting)

    def _send_all(self, client: Requester, stocks: Iterable[tuple[Bucket, BlockStock]]) -> None:
        for bucket, stock in stocks:
            self._send_due(client, bucket, stock)

    def _look(self, now_s: float) -> list[tuple[Bucket, BlockStock]]:
        """Return the stocks that have something to give back, now and then; none in between."""
        if now_s < self._look_at_s:
            return []
        self._look_at_s = now_s + LOOK_S
        for stock in self._stocks.values():
            stock.drop_old(now_s)
        return [(name, stock) for name, stock in self._stocks.items() if stock.has_to_release]

    def _stock(self, bucket: Bucket, now_s: float) -> BlockStock | None:
        stock = self._stocks.get(bucket)
        if stock is None and not self._closed:
            if len(self._stocks) >= MAX_BUCKETS:
                self._stocks = {
                    name: one for name, one in self._stocks.items() if one.is_busy(now_s) or not one.is_empty
                }
            if len(self._stocks) < MAX_BUCKETS:
                stock = self._stocks[bucket] = BlockStock()
        return stock

    # -- requests

    def _send_due(self, client: Requester, bucket: Bucket, stock: BlockStock) -> None:
        with self._lock:
            count = 0 if self._closed else stock.to_ask(self._now_s())
            sessions = stock.to_release()
        volume, name = bucket
        for _ in range(count):
            body = ReserveBlocks(volume=volume, bucket=name, count=RESERVED_BLOCKS)
            self._send(client, body, lambda future: self._on_reserved(bucket, stock, future))
        for session_id in sessions:
            self._send(client, ReleaseBlocks(volume=volume, bucket=name, session_id=session_id), self._on_answer)

    def _send(self, client: Requester, body: RequestBody, done: Callable[[Future[Response]], None]) -> None:
        try:
            future = client.submit(body)
        except BaseException as error:
            future = Future()
            future.set_exception(error)
            done(future)
            if not isinstance(error, StratologError):  # else the client is closed
                raise
            return
        with self._lock:
            self._waiting.add(future)
        future.add_done_callback(done)

    def _on_answer(self, future: Future[Response]) -> None:
        with self._lock:
            self._waiting.discard(future)
            self._answered.notify_all()

    def _on_reserved(self, bucket: Bucket, stock: BlockStock, future: Future[Response]) -> None:
        session = None if future.exception() is not None else session_of(future.result())
        with self._lock:
            if session is None:
                stock.on_refused(self._now_s())
            else:
                found = stock.on_reserved(session.session_id, session.blocks, self._now_s())
                found.tokens = self._tokens(bucket, session.session_id)
                if self._closed:
                    stock.stop()
        self._on_answer(future)
