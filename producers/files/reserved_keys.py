"""A small key whose bytes are all there, written to a reserved block and committed by one request (decision 0085).

What belongs here: the way of one such key. Its caller keeps the bytes: whenever this way does not go well, nothing is
committed, and the caller writes them to a key that it opens for them. If the block is written in one exchange with
others, the thread of that exchange sends the commit, those of all keys of the exchange together; the key's own thread
waits for the answer alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from functools import partial

from producers.blocks.background_commits import BlockFailed
from producers.blocks.block_writer import BlockWriter
from producers.blocks.core.write_ways import KeyWay, WayLeft
from producers.blocks.stream_options import StreamOptions
from producers.errors import RequestFailed, RetryableError, StratologError, TooManyInFlight
from producers.files.block_reservations import ReservedBlock
from producers.files.key_streams import KeyStreams
from producers.files.key_writer import BegunKey
from producers.requests.keys import Requester
from producers.waiting import SlowWait
from schemas.records.messages import CommitReserved, Response
from schemas.records.rows import BlockLocation


class ReservedKey:
    """Writes one key into one reserved block; for one thread, but for :meth:`interrupt`."""

    def __init__(
        self, client: Requester, streams: KeyStreams, place: tuple[str, str, str], begun: BegunKey,
        reserved: ReservedBlock, *, replication: str, metadata: Mapping[str, str], options: StreamOptions,
    ) -> None:  # fmt: skip
        self._client = client
        self._streams = streams
        self._place = place
        self._begun = begun
        self._reserved = reserved
        self._replication = replication
        self._metadata = metadata
        self._options = options
        self._patience = SlowWait(f"writing {begun.path}")
        self._block: BlockWriter | None = None
        self._size = 0
        self._answer: Future[Response] | None = None
        """What CommitReserved is answered, once it was sent."""
        self._context = copy_context()
        self.location: BlockLocation | None = None
        """The block, once the key is committed."""
        self.requests = 0
        """CommitReserved, once it was sent."""

    def write(self, parts: Sequence[bytes]) -> WayLeft | None:
        """Write and commit a key of these bytes, at least one; return why this way was left, if nothing was committed.

        Raises one of ``producers.errors`` if the commit is refused for another reason than its way, or the key fails.
        """
        reservations = self._streams.reservations
        try:
            location = self._store(parts)
            left = WayLeft.BLOCK_FAILED if location is None else self._end_commit(location)
            if left is not None:
                reservations.on_failed(self._reserved)
                return left
        except BaseException:
            reservations.on_unused(self._reserved)
            raise
        reservations.on_committed(self._client, self._reserved)
        self.location = location
        return None

    @property
    def resumed(self) -> int:
        """How often a stream of the block was resumed."""
        return 0 if self._block is None else self._block.resumed

    @property
    def watches_by_majority(self) -> int:
        """Watches that ended with a majority of the replicas only."""
        return 0 if self._block is None else self._block.watches_by_majority

    def interrupt(self) -> None:
        """Raise an error at once in the thread that waits for the block's stream; for any thread."""
        if (block := self._block) is not None:
            block.interrupt()

    def _store(self, parts: Sequence[bytes]) -> BlockLocation | None:
        """Write the block; return None if it fails."""
        self._patience.begin()
        self._size = sum(map(len, parts))
        try:
            block, span = self._begin(), self._begun.span
        except (RequestFailed, RetryableError) as error:  # nobody knows its pipeline
            self._still(error)
            return None
        span.block_began(block, block.pipeline.pipeline, ",".join(one.datanode for one in block.pipeline.members))
        failure: BlockFailed | None = None
        try:
            for part in parts:
                _put(block, memoryview(part))
            block.finish()
            return replace(block.settle(), offset=0)
        except BlockFailed as error:
            failure = error
            self._still(error)
            return None
        finally:
            span.block_ended(block, block.window.watched, failure)
            block.abandon()

    def _begin(self) -> BlockWriter:
        streams, location = self._streams, self._reserved.location
        pipeline = streams.directory.pipeline(location.pipeline)
        self._block = BlockWriter(
            location, pipeline, streams.datanodes, self._options, still=self._still,
            look_again=partial(streams.directory.current, pipeline), small=streams.small_blocks,
            tokens=self._reserved.tokens, follow=self._follow,
        )  # fmt: skip
        return self._block

    def _follow(self, bcs_id: int) -> Future[Response] | None:
        """Send the commit behind the block, on the thread of its exchange, as if it were the key's own.

        Returns None if the key has failed meanwhile, or there is no room for one more call: its own thread meets that.
        """
        self._begun.span.block_ended(self._block, self._size)  # it is written; its commit has a span of its own
        try:
            return self._context.run(self._send_commit, replace(self._block_location(), bcs_id=bcs_id))
        except StratologError:
            return None

    def _block_location(self) -> BlockLocation:
        return replace(self._reserved.location, offset=0, length=self._size)

    def _send_commit(self, location: BlockLocation) -> Future[Response]:
        volume, bucket, key = self._place
        body = CommitReserved(
            volume=volume, bucket=bucket, key=key, session_id=self._reserved.session_id, size=location.length,
            blocks=[location], replication=self._replication, metadata=dict(self._metadata),
        )  # fmt: skip
        self._begun.on_commit_sent()
        try:
            with self._begun.span.current():
                answer = self._client.submit(body)
        except TooManyInFlight:
            self._begun.on_commit_unsent()
            raise
        except Exception as error:
            answer = Future()
            answer.set_exception(error)
        self.requests = 1
        self._answer = answer
        return answer

    def _end_commit(self, location: BlockLocation) -> WayLeft | None:
        answer = self._answer or self._send_commit(location)
        return self._begun.end_commit(answer.result, KeyWay.RESERVED)

    def _still(self, what: object) -> None:
        self._begun.check()
        self._patience.still(what)


def _put(block: BlockWriter, left: memoryview) -> None:
    """Write bytes to a block that has room for them."""
    while left:
        taken = block.put(left, keep=True)
        left = left[taken:]
        block.push()
        if not taken:
            block.wait_for_room()
