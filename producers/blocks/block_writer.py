"""Writes one block: streams its bytes, commits them, and keeps them until the watch ends (design, section 8).

What belongs here: the shell around :class:`producers.blocks.core.stream_window.StreamWindow`: the stream and its
failures. The rules:

1. The caller's thread sends packets and takes acknowledgements. Commits, each with its watch, run one at a time on the
   block's own thread (``background_commits``). The two threads share the window, under a lock.
2. A stream that fails is resumed from the last offset that all datanodes acknowledged, without the datanodes that are
   known to fail: their replicas catch up by themselves through the log. This goes on while a majority of the pipeline
   lives and attempts make progress.
3. Otherwise the block is given up (:class:`BlockFailed`). Its acknowledged bytes are committed through the log if
   possible, its watched bytes stay as a block of their own, and all other bytes are still here to be written elsewhere.
4. ``core.write_ways`` decides whether the bytes are kept, written in one exchange when the block ends
   (``small_blocks``), or a stream. If an exchange does not go well the block becomes a stream, as if nothing had been
   tried.
5. A flush sends the bytes that are kept.
6. ``core.stream_recovery`` decides which datanode fails, and whether the block is given up. This module asks its
   questions: the Object Manager is asked where datanodes are now, datanodes are asked whether they are there.
7. A datanode that other blocks of the client just found silent is left out from the beginning, as one that this block
   found failing, if a majority is left (``Datanodes.silent``, decision 0082).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from producers.blocks.background_commits import BackgroundCommits, BlockFailed
from producers.blocks.block_commit import BlockCommitter
from producers.blocks.block_stream import ACK_PACKETS, BlockStream, ChunkStream, PacketStream
from producers.blocks.block_tokens import NO_TOKENS, TokenSource
from producers.blocks.core.stream_recovery import OF_THE_BLOCK, GiveUp, Probe, RecoveryStep, Resume, StreamRecovery
from producers.blocks.core.stream_window import StreamWindow
from producers.blocks.core.topology import nearest_first, spanning_tree
from producers.blocks.core.write_ways import PATHS_AFTER, BlockWay, KeyMoment, WayLeft, block_way
from producers.blocks.datanode_directory import PipelineView
from producers.blocks.datanodes import Datanodes
from producers.blocks.small_blocks import Follow, SmallBlocks
from producers.blocks.stream_options import StreamOptions
from producers.errors import DatanodeError
from schemas.records.datanode import BlockCommitted, OpenStream
from schemas.records.packets import CELL_BYTES
from schemas.records.rows import BlockLocation
from schemas.stream_errors import BAD_FRAME, DOWNSTREAM_FAILED
from transport.datanodes.connection import PROBE_TIMEOUT_MS

MAX_STREAM_ID = 2**63 - 1


class BlockWriter:
    """Writes one block; for one thread. Methods raise BlockFailed unless they say otherwise."""

    def __init__(
        self, location: BlockLocation, pipeline: PipelineView, datanodes: Datanodes, options: StreamOptions,
        *, failing: set[str] | None = None, still: Callable[[object], None] = lambda _: None,
        look_again: Callable[[], PipelineView] | None = None, small: SmallBlocks | None = None,
        tokens: TokenSource = NO_TOKENS, follow: Follow | None = None,
    ) -> None:  # fmt: skip
        """``still`` is called with what is waited for, and may raise to end the wait; ``look_again`` finds the
        datanodes now. ``small`` writes blocks that stay small; without it each block is a stream. ``tokens`` has what
        allows the block to be written. ``follow`` is begun if the block is written in one exchange: :meth:`finish`
        then returns at its end.
        """
        self.location = location
        self._tokens = tokens
        self._block = (location.container_id, location.local_id)
        self.pipeline = pipeline
        self.window = StreamWindow(options.limits(location.length))
        self.resumed = 0
        """How often a stream was resumed."""
        self._still = still
        self._look_again = look_again
        self._follow = follow
        self._path = options.path
        self._small = small
        self._together = small is not None and self._path.together
        """Whether the block may be written in one exchange."""
        self._datanodes = datanodes
        self._options = options
        members = random.sample(pipeline.members, len(pipeline.members))
        self._members = nearest_first(members, options.rack)
        self._failing = failing if failing is not None else set()
        names = [member.datanode for member in members]
        self._recovery = StreamRecovery(names, pipeline.majority, self._failing)
        self._committer = BlockCommitter(
            location, pipeline, self._members, datanodes, options, self._failing, moved=self._moved,
            tokens=tokens,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._commits = BackgroundCommits(
            self.window, self._lock, self._committer, options,
            block=f"{location.container_id}/{location.local_id}", pipeline=pipeline.pipeline, still=still,
        )  # fmt: skip
        self._stream: BlockStream | None = None
        self._resumed_at = -1
        self._since_ack = 0

    # -- bytes

    @property
    def held_bytes(self) -> int:
        """Bytes kept in memory."""
        with self._lock:
            return self.window.held_bytes

    @property
    def full(self) -> bool:
        """Whether the block takes no more bytes."""
        return self.window.full

    @property
    def stuck(self) -> bool:
        """Whether one of its commits does not end, and keeps the block's thread busy."""
        return self._commits.stuck

    @property
    def watches_by_majority(self) -> int:
        """Watches that ended with a majority of the replicas only."""
        return self._committer.fell_to_majority

    def put(self, data: memoryview, *, keep: bool) -> int:
        """Take bytes without sending them yet; return how many were taken. Never raises. See StreamWindow.write."""
        with self._lock:
            return self.window.write(data, keep=keep)

    def push(self) -> None:
        """Send the packets that are ready, unless they are kept; return when they are on their way, in the window."""
        if self._way(KeyMoment.WRITTEN) is BlockWay.STREAM:
            self._drive(self._send_all)

    def wait_for_room(self) -> None:
        """Wait until :meth:`put` can take a byte; the block must not be full."""
        while True:
            self._drive(self._send_all)
            with self._lock:
                if self.window.room():
                    return
            if self._unacknowledged():
                self._drive(self._send_and_hear)
            elif self._commits.is_under_way:
                self._commits.wait()
            elif not self._commits.begin_due():
                # A flush may have put the last flush point short of the buffer's limit.
                self._commits.begin(self.window.acknowledged)

    def _unacknowledged(self) -> bool:
        return self.window.sent > self.window.acknowledged

    def flush(self) -> None:
        """Send everything and wait until all datanodes have it."""
        with self._lock:
            self.window.seal()
        self._drive(self._send_and_wait)

    def hsync(self) -> None:
        """Return once everything is committed and watched."""
        self.flush()
        self._commits.wait()
        if self.window.watched < self.window.written:
            self._commits.begin(self.window.written)
            self._commits.wait()

    def finish(self) -> None:
        """End the stream and commit; the watch goes on in the background until :meth:`settle`."""
        with self._lock:
            self.window.seal()
        length = self.window.written
        if self._way(KeyMoment.CLOSED) is BlockWay.TOGETHER:
            if self._write_small(length):
                return
            self._together = False  # WayLeft.NOT_TOGETHER
        answers: list[BlockCommitted | None] = []
        self._drive(lambda: answers.append(self._end(length)))
        self._close_stream()
        self._commits.wait()
        if self.window.watched == length:
            return
        self._commits.finish(length, answers[-1])

    def _way(self, when: KeyMoment) -> BlockWay:
        small = 0 < self.window.written <= self._options.small_block_bytes
        begun = self._stream is not None or self.window.sent > 0
        return block_way(when, small=small, begun=begun, together=self._together)

    def _write_small(self, length: int) -> bool:
        """Write the whole block in one exchange; return False if it has to be a stream."""
        window, small = self.window, self._small
        assert small is not None  # noqa: S101 - asked by the caller
        with self._lock:
            data, checksums = list(window.unwatched()), window.checksums(length)
        try:
            token = self._tokens.of(self._block)
        except DatanodeError:
            return False
        bcs_id = small.write(
            self.location, self.pipeline, data, checksums, self._options, self._still, token, self._follow
        )
        if bcs_id is None:
            return False
        with self._lock:
            while (packet := window.next_packet()) is not None:
                window.on_sent(packet)
                window.on_acknowledged(packet.end)
            window.begin_commit(length)
            window.on_committed(length, bcs_id)
            window.on_watched(length)
        return True

    def settle(self) -> BlockLocation:
        """Return the block with its committed and watched length, after :meth:`finish`."""
        try:
            self._commits.wait()
        finally:
            self._commits.end()
        return self._watched()

    def watched_location(self) -> BlockLocation | None:
        """Return the watched part of the block, None if nothing is watched; never raises."""
        found = self._watched()
        return found if found.length else None

    def _watched(self) -> BlockLocation:
        with self._lock:
            return replace(self.location, length=self.window.watched, bcs_id=self.window.watched_bcs_id)

    # -- the stream

    def _drive(self, step: Callable[[], None]) -> None:
        """Run a step that uses the stream; resume the stream and run it again whenever it fails."""
        while True:
            self._commits.check()
            try:
                step()
            except DatanodeError as error:
                self._recover(error)
            else:
                return

    def _opened(self) -> BlockStream:
        """Return the stream, opening one if there is none."""
        if self._stream is None:
            self._leave_out_silent()
            with self._lock:
                offset = self.window.resume()
            self._stream = self._open(offset)
        return self._stream

    def _leave_out_silent(self) -> None:
        """Take members that are silent for failing; rule 7."""
        failing = self._failing | self._datanodes.silent.among(self._members)
        if len(self._members) - len(failing) >= self.pipeline.majority:
            self._failing |= failing

    def _open(self, offset: int) -> BlockStream:
        members = [member for member in self._members if member.datanode not in self._failing]
        # The datanode that failed as primary may do better further down.
        members.sort(key=lambda member: member.datanode == self._recovery.avoided)
        location, pipeline, options = self.location, self.pipeline, self._options
        if self._path.chunks:
            hinted = [member for member in members if self._recovery.leader_hint in {member.datanode, member.address}]
            # The first of the list leads first; any other would forward each chunk to it.
            avoided = self._recovery.avoided
            listed = [member for member in pipeline.members if member in members and member.datanode != avoided]
            primary = (hinted or listed or members)[0]
            self._recovery.on_began(primary.datanode, [primary.datanode])
            stream: BlockStream = ChunkStream(
                partial(self._datanodes.connect, primary), partition=pipeline.partition,
                container_id=location.container_id, local_id=location.local_id, silence_ms=self._datanodes.silence_ms,
                token=lambda: self._tokens.of(self._block),
            )  # fmt: skip
        else:
            primary = members[0]
            self._recovery.on_began(primary.datanode, [member.datanode for member in members])
            opening = OpenStream(
                container_id=location.container_id, local_id=location.local_id, partition=pipeline.partition,
                offset=offset, bytes_per_checksum=CELL_BYTES, window_bytes=self.window.limits.window_bytes,
                routes=spanning_tree(members, primary.datanode, options.topology),
            )  # fmt: skip
            stream = PacketStream(
                self._datanodes.connect(primary), opening, stream=random.randint(1, MAX_STREAM_ID),
                silence_ms=self._datanodes.silence_ms, token=self._tokens.of(self._block),
            )  # fmt: skip
        try:
            stream.begin(offset)
        except BaseException:
            stream.close()
            raise
        return stream

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _send_all(self) -> None:
        """Send all packets; wait for acknowledgements when the window is full."""
        while True:
            with self._lock:
                packets = self.window.next_packets()
                left = self.window.packed > self.window.sent
            if packets:
                self._opened().send(packets)
                with self._lock:
                    # A stream that was just opened begins at what all datanodes have, which is at these packets or
                    # before them.
                    for packet in packets:
                        self.window.on_sent(packet)
                self._since_ack += 1
                if self._since_ack >= ACK_PACKETS:
                    self._since_ack = 0
                    self._take_acknowledgements(wait=False)
            elif left:
                self._take_acknowledgements(wait=True)
            else:
                break
        self._commits.begin_due()

    def _send_and_hear(self) -> None:
        self._send_all()
        if self._unacknowledged():
            self._take_acknowledgements(wait=True)

    def _send_and_wait(self) -> None:
        self._send_all()
        while self._unacknowledged():
            self._take_acknowledgements(wait=True)

    def _take_acknowledgements(self, *, wait: bool) -> None:
        offset = self._opened().acknowledged(wait=wait)
        if offset is not None:
            self._acknowledge(offset)
        self._commits.begin_due()

    def _acknowledge(self, offset: int) -> None:
        try:
            with self._lock:
                self.window.on_acknowledged(offset)
        except ValueError as error:
            raise DatanodeError(BAD_FRAME, str(error), datanode=self._recovery.primary) from error

    def _end(self, length: int) -> BlockCommitted | None:
        self._send_all()
        commit = None
        if self._path.rides_end and self.window.watched < length:
            with self._lock:
                commit = self._committer.request(length, self.window.checksums(length))
            self._path = PATHS_AFTER[WayLeft.END_FAILED]  # it rides once
        elif self._stream is None and self.window.acknowledged == length:
            return None
        answer = self._opened().end(length, commit, self._acknowledge)
        self._acknowledge(length)
        return answer

    # -- failures

    def _recover(self, error: DatanodeError) -> None:
        """Prepare to open another stream; raises BlockFailed if that would be useless."""
        self._close_stream()
        self._still(error)
        self._tokens.refused(self._block, error.status)
        with self._lock:
            window = self.window
            # With other errors, datanodes of earlier versions report their own progress, which says nothing of the
            # others.
            if error.status == DOWNSTREAM_FAILED and window.acknowledged < error.offset <= window.sent:
                window.on_acknowledged(error.offset)
            progress = window.acknowledged > self._resumed_at
            self._resumed_at = window.acknowledged
            window.resume()
        self.resumed += 1
        step: RecoveryStep = self._recovery.on_failed(error, progress=progress)
        while not isinstance(step, GiveUp | Resume):
            if isinstance(step, Probe):
                step = self._recovery.on_probed(self._silent(step.suspects))
            else:
                step = self._recovery.on_asked(moved=self._moved())
        if isinstance(step, GiveUp):
            raise BlockFailed(error)
        time.sleep(step.pause_ms / 1000)

    def _silent(self, names: Sequence[str]) -> set[str]:
        """Return which of these datanodes do not say HELLO now."""
        suspects = [member for member in self._members if member.datanode in names]
        return set(names) - self._datanodes.answers(suspects, timeout_ms=PROBE_TIMEOUT_MS, still=self._still)

    def _moved(self) -> bool:
        """Ask where the datanodes are now, and go on with those that have moved; return whether any has."""
        if self._look_again is None:
            return False
        pipeline = self._look_again()
        known = {member.datanode: member.address for member in self._members}
        now = {member.datanode: member for member in pipeline.members}
        moved = {name for name, address in known.items() if name in now and now[name].address != address}
        if not moved:
            return False
        self.pipeline = pipeline
        self._members[:] = [now.get(member.datanode, member) for member in self._members]
        self._recovery.on_moved(moved)
        return True

    # -- the end

    def salvage(self, failure: BlockFailed) -> BlockLocation | None:
        """Commit the acknowledged bytes if possible; return the part that stays. Never raises BlockFailed.

        :meth:`unwatched` has all bytes beyond it. A commit that is still under way changes neither, even if it succeeds
        later.
        """
        self._close_stream()
        try:
            if not self.stuck:
                with suppress(BlockFailed):
                    self._commits.wait()
        finally:
            self._commits.end()
        if not self.stuck:
            self._commit_acknowledged(failure)
        self._commits.ignore_later()
        return self.watched_location()

    def _commit_acknowledged(self, failure: BlockFailed) -> None:
        # A datanode that accepts no stream may still follow the log.
        self._failing -= self._datanodes.answers(self._members, timeout_ms=PROBE_TIMEOUT_MS, still=self._still)
        living = [member for member in self._members if member.datanode not in self._failing]
        if failure.error.status not in OF_THE_BLOCK and len(living) >= self.pipeline.majority:
            self._commits.salvage()

    def unwatched(self) -> Iterator[memoryview]:
        """Iterate over the bytes beyond :meth:`watched_location`, after :meth:`salvage`."""
        return self.window.unwatched()

    def interrupt(self) -> None:
        """Raise an error at once in the thread that waits for the stream; for any thread."""
        if (stream := self._stream) is not None:
            stream.interrupt()

    def abandon(self) -> None:
        """Let go of the block: send and commit nothing more."""
        self._close_stream()
        self._commits.end()
