"""Reads a key's bytes from its blocks' replicas (design, section 8).

What belongs here: the choice of the block and the replica from which a byte is read. The rules:

1. Replicas are asked in order of nearness; the one that answered last is asked first. If no member of the block's
   pipeline can answer, the container's other present holders are asked too.
2. Bytes arrive in packets of whole checksum cells, of the size with which the block was written. Each packet goes on
   where the one before ended, so each brings new bytes, and none is left out. The next replica is asked if one has not
   applied the committed index of the key's block, lacks bytes, fails, or sends damaged bytes, also in the middle of a
   read. After MAX_ROUNDS of all replicas the last error is raised. A replica that cannot be reached may have moved, so
   the Object Manager is asked.
3. A replica whose block is unhealthy refuses the whole block, so the healthy replicas are read. If none is left, the
   replicas that refused are asked for their good cells (SalvageBlock), each up to its first bad cell; then all are
   asked anew for what lies behind that. No replica is remembered as bad: each may be the only one with a later cell.
4. A sequential reader asks for more at once, twice as much each time, ``read_ahead_bytes`` at most. The bytes asked for
   wait in the sockets' buffers; one packet is held here.
5. While another replica may answer, a silent one is left: one that lets the time for its HELLO pass (it is asked for
   one after LOOK_MS of silence), or that says HELLO and sends nothing for LEAVE_MS. Who is known to be silent
   (``Datanodes.silent``, decision 0082), and whom this reader left, is asked last. The last one to be asked is waited
   for as long as a datanode may be silent.
6. A row that does not add up is refused before its first byte is read (``core/key_blocks``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from producers.blocks.block_commit import NOT_REACHED
from producers.blocks.block_tokens import NO_TOKENS, TokenSource
from producers.blocks.core.topology import nearest_first
from producers.blocks.datanode_directory import PipelineView
from producers.blocks.stream_options import StreamOptions
from producers.errors import DatanodeError, RequestFailed
from producers.files.core.key_blocks import check_blocks
from producers.files.key_streams import KeyStreams
from producers.waiting import SlowWait
from schemas.conversation.conversation import Event
from schemas.records.datanode import Member, ReadBlock, SalvageBlock
from schemas.records.packets import CELL_BYTES, Frame, Kind
from schemas.records.rows import NEVER_WRITTEN, BlockLocation
from schemas.stream_errors import BAD_FRAME, CHECKSUM_MISMATCH, NOT_COMMITTED, TIMED_OUT
from transport.datanodes.connection import PROBE_TIMEOUT_MS, DatanodeConnection
from transport.processes import begins_anew_in_forks
from transport.waiting.core.backoff import Backoff
from transport.waiting.deadline import Deadline

MAX_ROUNDS = 3
PAUSES = Backoff(first_s=0.1, last_s=0.2)
"""Before the second round, and the third."""
FIRST_READ_BYTES = 4 * CELL_BYTES
"""Bytes that a reader asks for at first, unless it wants more."""
DAMAGED = frozenset({NOT_COMMITTED, CHECKSUM_MISMATCH})
"""The error of a replica that refuses a block of which it may have other, good bytes."""
DRAIN_BYTES = 4 * CELL_BYTES
"""If no more of an answer is left than this, the rest is read, for END_MS, so that its connection can be kept."""
LOOK_MS = 1_000
"""A replica that is silent for this long is asked for a HELLO on another connection, while it is waited for."""
END_MS = LOOK_MS
"""How long a connection may be silent before it is closed instead of kept, once it has sent what was wanted.

Equal times spare the kernel a call for each small file.
"""
LEAVE_MS = 8_000
"""A replica that says HELLO and sends nothing for this long is left, if another one may answer."""


class KeyReader:
    """Reads the bytes of ``blocks``, which follow one another; for one thread at a time.

    It raises RequestFailed if the blocks do not add up. Methods raise DatanodeError if no replica of a block can give
    its bytes, RequestFailed if the key says that the block was never written.
    """

    def __init__(
        self, streams: KeyStreams, blocks: Sequence[BlockLocation], *, options: StreamOptions | None = None,
        replica: int | None = None, tokens: TokenSource = NO_TOKENS, size: int | None = None, name: str = "the key",
    ) -> None:  # fmt: skip
        """Read with ``options``; ``tokens`` has what allows the blocks to be read.

        ``size`` is that of the key (None: of the blocks), which errors call ``name``. ``replica`` is an index among a
        pipeline's members: with it, only that replica of each block is read.
        """
        self._streams = streams
        self._replica = replica
        self._tokens = tokens
        self._options = options or streams.options
        self._blocks = list(blocks)
        self.size = check_blocks(name, self._blocks, size)
        """Bytes of the key."""
        self._block: _BlockReader | None = None
        self.failovers = 0
        """How often another replica had to be asked."""
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """Forget the connection at a fork: the answer on it is the first process's."""
        self._block = None

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` with the key's bytes from ``offset`` on; return their number, smaller only at the end."""
        wanted = max(min(len(buffer), self.size - offset), 0)
        done = 0
        while done < wanted:
            part = self.next_bytes(offset + done, wanted - done)
            count = min(len(part), wanted - done)
            buffer[done : done + count] = part[:count]
            done += count
        return done

    def next_bytes(self, offset: int, wanted: int) -> memoryview:
        """Return some bytes from ``offset`` on, which lies within the key; ``wanted`` is how many will be read."""
        block = self._reader_at(offset)
        part = block.next_bytes(offset - block.location.offset, wanted)
        self.failovers += block.take_failovers()
        return part

    def _reader_at(self, offset: int) -> _BlockReader:
        found = self._block
        if found is not None and 0 <= offset - found.location.offset < found.location.length:
            return found
        self.close()
        location = next(block for block in self._blocks if 0 <= offset - block.offset < block.length)
        if location.bcs_id == NEVER_WRITTEN:
            where = f"block {location.container_id}/{location.local_id}"
            raise RequestFailed(NOT_COMMITTED, f"{where} was never written: the key was committed with metadata alone")
        found = self._block = _BlockReader(self._streams, location, self._options, self._replica, self._tokens)
        return found

    def close(self) -> None:
        """Close the connections; reading again opens new ones."""
        if self._block is not None:
            self._block.close()
            self._block = None


def _cell_of(offset: int) -> int:
    """Return where the usual cell of an offset begins: a request says no other."""
    return offset - offset % CELL_BYTES


class _BlockReader:
    """Reads one block."""

    def __init__(
        self, streams: KeyStreams, location: BlockLocation, options: StreamOptions, replica: int | None,
        tokens: TokenSource,
    ) -> None:  # fmt: skip
        self.location = location
        self._tokens = tokens
        self._name = (location.container_id, location.local_id)
        self._replica = replica
        self._streams = streams
        self._options = options
        self._preferred: Member | None = None
        self._connection: DatanodeConnection | None = None
        self._asked: Member | None = None
        """The datanode that the connection leads to."""
        self._left = ""
        """The datanode that was left because it was silent; this reader asks it last."""
        self._last_hope = replica is not None
        """Whether nobody else is left to be asked; rule 5."""
        self._next = self._end = 0
        """The offset of the next packet in the open answer, and the answer's end."""
        self._ahead = FIRST_READ_BYTES
        self._packet = memoryview(b"")
        self._packet_offset = 0
        self._failovers = 0
        self._patience = SlowWait(f"reading block {location.container_id}/{location.local_id}")

    def take_failovers(self) -> int:
        """Return how often another replica was asked since the last call."""
        found, self._failovers = self._failovers, 0
        return found

    def next_bytes(self, offset: int, wanted: int) -> memoryview:
        """As :meth:`KeyReader.next_bytes`, within the block."""
        if not self._has(offset):
            self._fetch(offset, wanted)
        return self._packet[offset - self._packet_offset :]

    def _has(self, offset: int) -> bool:
        return 0 <= offset - self._packet_offset < len(self._packet)

    def _reads_on(self, offset: int) -> bool:
        """Whether ``offset`` lies where the last answer has got to."""
        return _cell_of(offset) <= self._next <= offset

    def _fetch(self, offset: int, wanted: int) -> None:
        """Get the packet in which ``offset`` lies, from any replica."""
        self._patience.begin()
        error: DatanodeError | None = None
        if self._connection is not None and self._reads_on(offset) and offset < self._end:
            error = self._try_receive(self._connection, offset)
            if error is None:
                return
            self._failovers += 1
            self._drop()
            self._note_silence(self._asked, error)
        self._let_go()
        for attempt in range(MAX_ROUNDS):
            if attempt:
                time.sleep(PAUSES.pause_s(attempt))
                self._streams.directory.try_refresh()
            pipeline = self._streams.directory.pipeline(self.location.pipeline)
            damaged: list[Member] = []
            candidates = self._in_order(self._candidates(pipeline, attempt))
            for number, member in enumerate(candidates, start=1):
                self._last_hope = number == len(candidates)
                error = self._ask_where_it_is(pipeline, member, offset, wanted, again=attempt > 0)
                if error is None:
                    return
                self._patience.still(error)
                if error.status in DAMAGED:
                    damaged.append(member)
            # A reader of one replica only checks whether that replica is whole.
            for member in damaged if self._replica is None else []:
                error = self._ask(pipeline, member, offset, wanted, salvage=True)
                if error is None:
                    return
        whom = "members" if self._replica is None else f"member {self._replica}"
        raise error or DatanodeError(NOT_COMMITTED, f"{pipeline.pipeline} has no {whom}")

    def _candidates(self, pipeline: PipelineView, attempt: int) -> list[Member]:
        """Return the datanodes to ask: the members, and from the second attempt on the other holders too."""
        members = list(pipeline.members)
        if self._replica is not None:
            return members[self._replica :][:1]
        if attempt:
            known = {member.datanode for member in members}
            holders = self._streams.directory.holders(self.location.container_id)
            members += [member for member in holders if member.datanode not in known]
        return members

    def _ask_where_it_is(
        self, pipeline: PipelineView, member: Member, offset: int, wanted: int, *, again: bool
    ) -> DatanodeError | None:
        """As :meth:`_ask`, and once more if the datanode cannot be reached but the Object Manager knows a new address.

        ``again`` asks the Object Manager even if it has just answered about this datanode: no other replica could
        answer.
        """
        directory = self._streams.directory
        now = next((one for one in directory.known(pipeline).members if one.datanode == member.datanode), member)
        error = self._ask(pipeline, now, offset, wanted)
        if error is not None and error.status in NOT_REACHED:
            found = directory.whereabouts(pipeline, now, again=again)
            if found.address != now.address:
                return self._ask(pipeline, found, offset, wanted)
        return error

    def _ask(
        self, pipeline: PipelineView, member: Member, offset: int, wanted: int, *, salvage: bool = False
    ) -> DatanodeError | None:
        """As :meth:`_try_replica`, and remember which replica answered."""
        error = self._try_replica(pipeline, member, offset, wanted, salvage=salvage)
        if error is not None and self._tokens.refused(self._name, error.status):
            self._drop()
            error = self._try_replica(pipeline, member, offset, wanted, salvage=salvage)
        if error is None:
            self._preferred = member
            return None
        self._failovers += 1
        self._drop()
        if member is self._preferred:
            self._preferred = None
        self._note_silence(member, error)
        return error

    def _note_silence(self, member: Member | None, error: DatanodeError) -> None:
        if member is not None and error.status == TIMED_OUT:
            self._left = member.datanode

    def _in_order(self, given: list[Member]) -> list[Member]:
        members = nearest_first(random.sample(given, len(given)), self._options.rack)
        last = self._streams.datanodes.silent.among(members) | {self._left}
        return sorted(members, key=lambda member: (member.datanode in last, member != self._preferred))

    def _try_replica(
        self, pipeline: PipelineView, member: Member, offset: int, wanted: int, *, salvage: bool
    ) -> DatanodeError | None:
        """Ask a replica for the cells from that of ``offset`` on, and take its answer up to the packet with it."""
        reads_on = self._next > 0 and self._reads_on(offset)
        self._ahead = min(2 * self._ahead, self._options.read_ahead_bytes) if reads_on else FIRST_READ_BYTES
        cell = _cell_of(offset)
        end = min(max(offset + wanted, cell + self._ahead), self.location.length)
        request = self._request(pipeline.partition, cell, end - cell, salvage=salvage)
        try:
            token = self._tokens.of(self._name)
        except DatanodeError as error:
            return error
        doing = f"{type(request).__name__} of {self.location.container_id}/{self.location.local_id}"

        def send(connection: DatanodeConnection) -> None:
            connection.doing = doing
            connection.send_request(request, tokens=token)
            self._asked, self._next, self._end = member, cell, end

        try:
            patience_ms = None if self._last_hope else PROBE_TIMEOUT_MS
            call = self._streams.datanodes.call(member, send, timeout_ms=patience_ms)
            event = call.hear(self._receive)
            self._connection = call.release()
            self._take_to(self._connection, event, offset)
        except DatanodeError as error:
            return error
        return None

    def _request(self, partition: int, offset: int, length: int, *, salvage: bool) -> ReadBlock | SalvageBlock:
        container_id, local_id, bcs_id = self.location.container_id, self.location.local_id, self.location.bcs_id
        if salvage:
            return SalvageBlock(
                partition=partition, container_id=container_id, local_id=local_id, offset=offset, length=length,
                bcs_id=bcs_id,
            )  # fmt: skip
        return ReadBlock(
            partition=partition, container_id=container_id, local_id=local_id, offset=offset, length=length,
            bcs_id=bcs_id,
            committed_only=True,
        )  # fmt: skip

    def _try_receive(self, connection: DatanodeConnection, offset: int) -> DatanodeError | None:
        """Take the open answer up to the packet with ``offset``."""
        try:
            self._take_to(connection, self._receive(connection), offset)
        except DatanodeError as error:
            return error
        return None

    def _receive(self, connection: DatanodeConnection) -> Event:
        silence_ms = self._streams.datanodes.silence_ms
        limit_ms = silence_ms if self._last_hope else min(silence_ms, LEAVE_MS)
        return connection.receive_patiently(limit_ms, look_ms=LOOK_MS, is_worth_it=self._is_worth_it)

    def _take_to(self, connection: DatanodeConnection, event: Event, offset: int) -> None:
        """Take a packet that has come, and those behind it up to the one with ``offset``; raises as :meth:`_take`."""
        self._take(connection, event)
        while not self._has(offset):
            self._take(connection, self._receive(connection))

    def _take(self, connection: DatanodeConnection, event: Event) -> None:
        """Take a packet that has come; raises DatanodeError if the answer does not go on with it."""
        assert isinstance(event, Frame), event  # noqa: S101 - a request for bytes is answered by DATA and END
        header = event.header
        if header.kind is Kind.END:
            what = f"the answer ended at {header.offset}, {self._end} was asked for"
            raise connection.error(NOT_COMMITTED, what)
        if not header.offset <= self._next < header.offset + header.length:
            what = f"{header.length} bytes at {header.offset} came where the one at {self._next} was expected"
            raise connection.error(BAD_FRAME, what)
        # A copy: readers keep it while more is received. A replica may have more bytes of the block than this key has.
        payload = bytes(event.payload)
        self._packet = memoryview(payload)[: self.location.length - header.offset]
        self._packet_offset = header.offset
        self._next = header.offset + len(payload)
        if self._next >= self._end:
            self._connection = None
            self._finish_answer(connection)

    def _is_worth_it(self) -> bool:
        """Return whether the replica that was asked, and is silent, is still waited for; rule 5."""
        member = self._asked
        assert member is not None  # noqa: S101 - whoever waits has asked somebody
        self._patience.still(f"{member.datanode} at {member.address} is silent")
        silent = self._streams.datanodes.silent
        silent.suspect([member])
        return self._last_hope or member.datanode not in silent.among([member])

    def _finish_answer(self, connection: DatanodeConnection) -> None:
        """Take the end of the answer and give the connection back."""
        try:
            connection.receive(min(self._streams.datanodes.silence_ms, END_MS))
        except DatanodeError:
            connection.close()
            return
        self._streams.datanodes.kept.give_back(connection)

    def _let_go(self) -> None:
        """End the open answer: read it to its end if little is left, else close the connection."""
        connection = self._connection
        if connection is None:
            return
        self._connection = None
        try:
            if 0 < self._end - self._next <= DRAIN_BYTES:
                end = Deadline.after_ms(END_MS)
                while not connection.is_idle and not end.has_passed:
                    connection.receive(min(self._streams.datanodes.silence_ms, END_MS))
        except DatanodeError:
            connection.close()
            return
        self._streams.datanodes.kept.give_back(connection)

    def _drop(self) -> None:
        """Close the connection of a failed answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Let go of the connection."""
        self._let_go()
        self._packet = memoryview(b"")
