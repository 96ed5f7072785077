"""Writes a key: its bytes fill one block after the other, then the key is committed (design, section 8).

What belongs here: the choice of the block for the bytes, and what happens to the bytes of a failed block. The rules:

1. A key is a list of blocks in order. One is being written; the one before it may still be waiting for its watch.
2. Together they keep ``client_buffer_bytes`` at most; at this bound a writer waits.
3. When a block fails, its watched bytes stay. All other bytes are still held, and are written to new blocks in its
   place, on other pipelines if there are any, until ``core.failed_blocks`` says that the key gives up. Long waits are
   logged, with their reasons.
4. CommitKey names the blocks in order, with lengths and committed indexes, once everything is watched. A key that is
   aborted or dropped is never committed. Its blocks were never part of a key, and are reclaimed.
5. A failure lasts. Once a method has raised anything, nobody knows what the key would hold: from then on all other
   methods raise, and :meth:`KeyWriter.close` commits nothing. ``core.key_fate`` says what each fate of a key means.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from producers.blocks.background_commits import BlockFailed
from producers.blocks.block_writer import BlockWriter
from producers.blocks.core.write_ways import KeyBytes, KeyWay, WayLeft, left_by
from producers.blocks.stream_options import StreamOptions
from producers.errors import (
    WRITE_FAILED,
    RequestFailed,
    RetryableError,
    StratologError,
)
from producers.files.core.failed_blocks import FailedBlocks, KeyGivesUp
from producers.files.core.key_fate import FateOfKey
from producers.files.key_streams import KeyStreams
from producers.requests.keys import Requester, block_of, session_of
from producers.waiting import SlowWait
from schemas.records.messages import AllocateBlock, CommitKey, CreateKey, RequestBody, Response
from schemas.records.rows import BlockLocation
from schemas.result_codes import FAILED_TO_FIND_ACTIVE_PIPELINE
from transport.waiting.core.backoff import Backoff
from transport.waiting.deadline import Deadline

KEEP_BYTES = 8 * 1024 * 1024
"""``bytes`` objects of up to this size are kept instead of copied: each is released as a whole."""
NO_PIPELINE = Backoff(first_s=0.05, last_s=2.0)
"""The pauses while no pipeline takes a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStatistics:
    """Counts of the writing of a key."""

    bytes: int
    blocks: int
    failed_blocks: int
    resumed_streams: int
    watches_by_majority: int


class BegunKey:
    """What the writing of a key begins with, whichever way its bytes go: its fate and its span. Thread-safe."""

    def __init__(self, streams: KeyStreams, place: tuple[str, str, str]) -> None:
        self.path = "/".join(("", *place))
        self.span = streams.spans.key(self.path)
        self._fate = FateOfKey(self.path)
        self._lock = threading.Lock()

    @property
    def ended(self) -> bool:
        """Whether the key was committed or aborted."""
        return self._fate.ended

    @property
    def failed(self) -> bool:
        """Whether the writing has failed."""
        return self._fate.failed

    def check(self) -> None:
        """Raise what each call must raise now, if anything has failed or the key is closed."""
        with self._lock:
            error = self._fate.refusal()
        if error is not None:
            raise error

    def on_failure(self, error: BaseException) -> None:
        """Note that a method raised, or is about to raise."""
        with self._lock:
            self._fate.on_failure(error)

    def on_abort(self) -> None:
        """Note that the caller lets go of the key."""
        with self._lock:
            self._fate.on_abort()

    def let_go(self) -> None:
        """End the span: nothing more is done for the key."""
        self.span.ended(self._fate.failure)

    def commit(self, send: Callable[[], object], way: KeyWay = KeyWay.OPENED) -> WayLeft | None:
        """Make the key visible by ``send``; return why its way is left if the cluster refuses the way, else None."""
        self.on_commit_sent()
        return self.end_commit(send, way)

    def on_commit_sent(self) -> None:
        """Note that the commit is about to be sent; raises what :meth:`check` raises. :meth:`end_commit` follows."""
        with self._lock:
            self._fate.on_commit_sent()

    def on_commit_unsent(self) -> None:
        """Note that the commit was not sent after all, and the writing goes on."""
        with self._lock:
            self._fate.on_put_elsewhere()

    def end_commit(self, wait: Callable[[], object], way: KeyWay = KeyWay.OPENED) -> WayLeft | None:
        """Note what came of the commit, which ``wait`` returns or raises; return as :meth:`commit`."""
        try:
            wait()
        except StratologError as error:
            left = left_by(way, error.status) if isinstance(error, RequestFailed) else None
            with self._lock:
                if left is not None:
                    self._fate.on_put_elsewhere()
                    return left
                self._fate.on_commit_refused(error)
            raise
        with self._lock:
            self._fate.on_commit_taken()
        return None


class KeyWriter:
    """Writes one key; for one thread at a time. Nothing is visible before :meth:`close` returns.

    ``size`` is the expected number of bytes, for which blocks are allocated at once; 0 if it is not known. The
    constructor and every method may raise one of ``producers.errors``; then the key can only be aborted (rule 5).
    """

    def __init__(
        self, client: Requester, streams: KeyStreams, place: tuple[str, str, str], *, size: int = 0,
        replication: str = "RATIS/THREE", metadata: Mapping[str, str] | None = None,
        options: StreamOptions | None = None, begun: BegunKey | None = None,
    ) -> None:  # fmt: skip
        """``begun`` is what a writer has begun whose place this one takes."""
        self._begun = begun or BegunKey(streams, place)
        self._client = client
        self._streams = streams
        self._options = options or streams.options
        self._volume, self._bucket, self._key = place
        self.path = self._begun.path
        self._patience = SlowWait(f"writing {self.path}")
        self._span = self._begun.span
        body = CreateKey(
            volume=self._volume, bucket=self._bucket, key=self._key, size=size, replication=replication,
            metadata=dict(metadata or {}),
        )  # fmt: skip
        try:
            session = session_of(self._ask(body))
        except BaseException as error:
            self._span.ended(error)
            raise
        self._session_id = session.session_id
        self._tokens = streams.tokens_to_write(place, session.session_id)
        self._spare = list(session.blocks)
        """Blocks that were allocated with the key and not used yet."""
        self._done: list[BlockLocation] = []
        """The committed and watched blocks, in order."""
        self._closing: BlockWriter | None = None
        self._current: BlockWriter | None = None
        self._live: list[BlockWriter] = []
        """Blocks that have neither ended well nor been salvaged: the current and the closing one, and one that is being
        rescued or rewritten.
        """
        self._failed = FailedBlocks(self._options.commit_timeout_ms)
        self._resumed = self._by_majority = self._blocks = 0
        self._written = 0
        self.requests = 1
        """CreateKey, and CommitKey once it was sent."""

    @property
    def written(self) -> int:
        """Bytes passed to :meth:`write` so far."""
        return self._written

    @property
    def ended(self) -> bool:
        """Whether the key was committed or aborted, or its writing failed."""
        return self._begun.ended or self._begun.failed

    @property
    def session_id(self) -> int:
        """The session id of the open key."""
        return self._session_id

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept in memory until the watch."""
        return sum(block.held_bytes for block in (self._closing, self._current) if block is not None)

    def statistics(self) -> WriteStatistics:
        """Return counts of the writing so far."""
        live = [block for block in (self._closing, self._current) if block is not None]
        return WriteStatistics(
            bytes=self._written,
            blocks=self._blocks,
            failed_blocks=self._failed.total,
            resumed_streams=self._resumed + sum(block.resumed for block in live),
            watches_by_majority=self._by_majority + sum(block.watches_by_majority for block in live),
        )

    # -- writing

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of ``data``; returns its length once the data is sent, or kept for a packet that is not full."""
        self._check_open()
        view = memoryview(data).cast("B")
        keep = isinstance(data, bytes) and len(data) <= KEEP_BYTES
        self._patience.begin()
        done = 0
        try:
            while done < len(view):
                self._begun.check()
                taken = self._write_some(view[done:], keep=keep)
                done += taken
                self._written += taken
        except BaseException as error:
            self._begun.on_failure(error)
            self._let_go()
            raise
        return done

    def _write_some(self, view: memoryview, *, keep: bool) -> int:
        block = self._current
        if block is None:
            block = self._current = self._next_block()
        if self._closing is not None:
            left = self._options.client_buffer_bytes - self.held_bytes
            if left <= 0:
                self._settle_closing()
            else:
                view = view[:left]
        taken = block.put(view, keep=keep)
        if taken and not self._guarded(block, block.push):
            return taken
        if block.full:
            self._finish_current()
        elif not taken:
            self._guarded(block, block.wait_for_room)
        return taken

    def flush(self) -> None:
        """Return once all datanodes have everything written so far; it is not committed yet."""
        with self._step():
            if self._current is not None:
                self._guarded(self._current, self._current.flush)

    def hsync(self) -> None:
        """Return once everything written so far is committed, and held by enough replicas to survive."""
        with self._step():
            self._settle_closing()
            if self._current is not None:
                self._guarded(self._current, self._current.hsync)

    def locations(self) -> list[BlockLocation]:
        """Return the blocks with the lengths that are committed and watched, and with their offsets in the key."""
        found = list(self._done)
        for block in (self._closing, self._current):
            location = block.watched_location() if block is not None else None
            if location is not None:
                found.append(location)
        return _with_offsets(found)

    def close(self) -> None:
        """Commit the key.

        Closing again, or after :meth:`abort`, does nothing. After a failure, close commits nothing and raises, each
        time.
        """
        if self._begun.ended:
            return
        with self._step():
            if self._current is not None:
                self._finish_current()
            self._settle_closing()
            blocks = _with_offsets(self._done)
            self.requests += 1
            body = CommitKey(
                volume=self._volume, bucket=self._bucket, key=self._key, session_id=self._session_id,
                size=self._written, blocks=blocks,
            )  # fmt: skip
            self._begun.commit(lambda: self._submit(body).result())
            if self._options.way_limits().fit(self._written) is KeyBytes.FOR_BLOCK:
                self._streams.reservations.on_written(self._client, (self._volume, self._bucket))
        self._let_go()

    def abort(self) -> None:
        """Let go of the key without committing it; does nothing after :meth:`close`."""
        self._begun.on_abort()
        self._let_go()

    def interrupt(self, reason: str) -> None:
        """Make the thread that is in a method of this writer fail soon, and the key with it: rule 5. For any thread."""
        self._begun.on_failure(RetryableError(WRITE_FAILED, reason))
        for block in list(self._live):
            block.interrupt()

    @contextmanager
    def _step(self) -> Iterator[None]:
        self._check_open()
        self._patience.begin()
        try:
            yield
        except BaseException as error:
            self._begun.on_failure(error)
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Stop the blocks: nothing more is sent or committed."""
        for block in self._live:
            block.abandon()
        self._live.clear()
        self._begun.let_go()

    def _check_open(self) -> None:
        if self._begun.failed:
            # The key may have been interrupted by a thread that could not do this.
            self._let_go()
        self._begun.check()

    # -- blocks

    def _next_block(self) -> BlockWriter:
        location = self._allocate()
        pipeline = self._streams.directory.pipeline(location.pipeline)
        self._blocks += 1
        block = BlockWriter(
            location, pipeline, self._streams.datanodes, self._options, still=self._still,
            look_again=partial(self._streams.directory.current, pipeline), small=self._streams.small_blocks,
            tokens=self._tokens,
        )  # fmt: skip
        self._live.append(block)
        datanodes = ",".join(member.datanode for member in pipeline.members)
        self._span.block_began(block, pipeline.pipeline, datanodes)
        return block

    def _still(self, what: object) -> None:
        """Note what is waited for; raises if the key has failed meanwhile."""
        self._begun.check()
        self._patience.still(what)

    def _allocate(self) -> BlockLocation:
        while self._spare:
            location = self._spare.pop(0)
            if location.pipeline not in self._failed.excluded:
                return location
        body = AllocateBlock(
            volume=self._volume, bucket=self._bucket, key=self._key, session_id=self._session_id,
            excluded_pipelines=list(self._failed.excluded),
        )  # fmt: skip
        if self._failed.excluded:
            try:
                return block_of(self._submit(body).result())
            except (RequestFailed, RetryableError):
                # Only pipelines that failed before are left, and these may have recovered.
                self._failed.on_nothing_else()
        return block_of(self._ask(replace(body, excluded_pipelines=[])))

    def _submit(self, body: RequestBody) -> Future[Response]:
        with self._span.current():
            return self._client.submit(body)

    def _ask(self, body: RequestBody) -> Response:
        """Ask the Object Manager for blocks; while no pipeline takes any, wait, as one may be in the making."""
        deadline = Deadline.after_ms(self._options.commit_timeout_ms)
        failures = 0
        while True:
            failures += 1
            pause_s = NO_PIPELINE.pause_s(failures)
            try:
                return self._submit(body).result()
            except RequestFailed as error:
                if error.status != FAILED_TO_FIND_ACTIVE_PIPELINE or not deadline.has_room_for(pause_s):
                    raise
                self._still(error)
            time.sleep(pause_s)

    def _guarded(self, block: BlockWriter, step: Callable[[], None]) -> bool:
        """Run a step of a block; if the block fails, write its held bytes elsewhere. Return whether it went well."""
        try:
            step()
        except BlockFailed as failure:
            if block is self._current:
                self._settle_closing()
                self._current = None
            self._rescue(block, failure)
            return False
        return True

    def _finish_current(self) -> None:
        """End the current block; its watch goes on while the next block is written."""
        block = self._current
        if block is not None and self._guarded(block, block.finish):
            self._settle_closing()
            self._closing, self._current = block, None

    def _settle_closing(self) -> None:
        block = self._closing
        if block is None:
            return
        self._closing = None
        if self._guarded(block, lambda: self._done.append(block.settle())):
            self._count(block)
            self._failed.on_ended_well()

    def _rescue(self, block: BlockWriter, failure: BlockFailed) -> None:
        """Keep the durable part of a failed block, and write its other bytes to new blocks in its place."""
        waiting: list[memoryview] = []
        failed: tuple[BlockWriter, BlockFailed] | None = (block, failure)
        while failed is not None:
            block, failure = failed
            self._failed.on_failed(time.monotonic())
            self._still(failure)
            location = block.salvage(failure)
            self._count(block, failure)
            if location is not None:
                self._done.append(location)
            pipeline = block.pipeline.pipeline
            verdict = self._failed.on_salvaged(time.monotonic(), pipeline, kept=location is not None)
            if isinstance(verdict, KeyGivesUp):
                raise failure.error
            time.sleep(verdict.pause_s)
            self._streams.directory.try_refresh()
            waiting[:0] = block.unwatched()
            failed = self._rewrite(waiting)

    def _rewrite(self, waiting: list[memoryview]) -> tuple[BlockWriter, BlockFailed] | None:
        """Write bytes into new blocks, each one to its end.

        Return the block that fails, None if none does. The failed block holds the bytes that were taken from
        ``waiting`` and are not in a block that ended well.
        """
        while waiting:
            block = self._next_block()
            try:
                while waiting and not block.full:
                    # The buffers of packets do not change any more.
                    taken = block.put(waiting[0], keep=True)
                    if taken == len(waiting[0]):
                        waiting.pop(0)
                    else:
                        waiting[0] = waiting[0][taken:]
                    block.push()
                    if not taken and not block.full:
                        block.wait_for_room()
                block.finish()
                self._done.append(block.settle())
            except BlockFailed as failure:
                return block, failure
            self._count(block)
            self._failed.on_ended_well()
        return None

    def _count(self, block: BlockWriter, failure: BlockFailed | None = None) -> None:
        """Add the counts of a block that has ended."""
        self._live.remove(block)
        self._span.block_ended(block, block.window.watched, failure)
        self._resumed += block.resumed
        self._by_majority += block.watches_by_majority


def _with_offsets(locations: Iterable[BlockLocation]) -> list[BlockLocation]:
    """Return the blocks with their offsets in the key, which follow from their order."""
    found, offset = [], 0
    for location in locations:
        found.append(replace(location, offset=offset))
        offset += location.length
    return found
