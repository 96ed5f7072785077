"""One stream of a block's bytes: through a tree of datanodes, or, the old way, as chunks through the log.

What belongs here: the frames of a stream, in the order that datanodes expect, and acknowledgements. Both kinds of
stream have the same methods, so that a writer can use either. All methods may raise DatanodeError; the stream is over
then.

A :class:`PacketStream` numbers its frames: OPEN is 0, packets and END follow. It is acknowledged in bytes. A
:class:`ChunkStream` sends its requests over CHUNK_CONNECTIONS connections in turn, so that as many chunks are in the
log's pipeline at once, and takes the answers in the order of the chunks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from producers.blocks.core.stream_window import Buffer, Packet
from schemas.codecs.codec import encode
from schemas.conversation.conversation import Event, with_tokens
from schemas.conversation.limits import UnreadableRecord, record_of
from schemas.records.datanode import BlockCommitted, ChunkWritten, OpenStream, PutBlock, WriteChunk
from schemas.records.packets import Frame, Kind
from schemas.stream_errors import BAD_FRAME, TIMED_OUT
from transport.datanodes.connection import DatanodeConnection
from transport.waiting.deadline import Deadline

ACK_PACKETS = 8
"""While there is room in the window, acknowledgements are looked for only once in so many packets."""

END_PATIENCE = 3
"""The end of a stream may take this many times longer: datanodes write whole blocks to disks."""

REPEATS_PATIENCE = 2 * END_PATIENCE
"""A datanode that waits for others repeats its acknowledgement; it may say nothing new for this many times longer."""


CHUNK_CONNECTIONS = 4
"""Chunks on their way at once: a datanode answers the requests of one connection one after the other."""


class BlockStream(Protocol):
    """The stream as a writer uses it."""

    def close(self) -> None:
        """Close its connections."""

    def interrupt(self) -> None:
        """Raise an error in the thread that waits on the stream; for any thread."""

    def begin(self, offset: int) -> None:
        """Open the stream at ``offset``; returns when all datanodes are ready."""

    def send(self, packets: Sequence[Packet]) -> None:
        """Send packets in order."""

    def acknowledged(self, *, wait: bool) -> int | None:
        """Return how far all datanodes have the bytes, None if nothing new arrived; with ``wait``, wait for news."""

    def end(self, length: int, commit: PutBlock | None, acknowledged: Callable[[int], None]) -> BlockCommitted | None:
        """End the stream; return the answer to ``commit``, if any, once all datanodes have ``length`` bytes."""


class PacketStream:
    """A stream through a spanning tree, on its own connection to the primary."""

    def __init__(
        self, connection: DatanodeConnection, opening: OpenStream, *, stream: int, silence_ms: int, token: bytes = b""
    ) -> None:  # fmt: skip
        """``token`` is what allows the block to be written, where that is demanded."""
        self._connection = connection
        self._token = token
        self._opening = opening
        self._stream = stream
        self._silence_ms = silence_ms
        self._sequence = 0
        self._sent = self._acknowledged = -1
        """Offsets: up to where bytes were sent, and up to where they were acknowledged at most."""
        self._expect_news()
        connection.doing = f"stream of block {opening.container_id}/{opening.local_id}"

    def close(self) -> None:
        """As :meth:`BlockStream.close`."""
        self._connection.close()

    def interrupt(self) -> None:
        """As :meth:`BlockStream.interrupt`."""
        self._connection.interrupt()

    def begin(self, offset: int) -> None:
        """As :meth:`BlockStream.begin`."""
        said = with_tokens(self._opening, self._connection.presented(self._token))
        opening = self._connection.talk.say(Kind.OPEN, said, stream=self._stream, offset=offset)
        self._connection.send_parts([opening])
        self._sent = offset
        self._expect_news()
        opened = self._acknowledgement(self._connection.receive_patiently(self._silence_ms)).header.offset
        if opened != offset:
            raise self._connection.error(BAD_FRAME, f"a stream at {offset} was opened at {opened}")

    def send(self, packets: Sequence[Packet]) -> None:
        """As :meth:`BlockStream.send`."""
        parts: list[Buffer] = []
        for packet in packets:
            self._sequence += 1
            data = packet.data
            header = self._connection.talk.header(
                Kind.DATA, stream=self._stream, sequence=self._sequence, offset=packet.offset, length=len(data),
                crc=packet.crc,
            )  # fmt: skip
            parts += (header, data)
        if self._acknowledged >= self._sent:
            self._expect_news()
        self._sent = packets[-1].end
        self._connection.send_parts(parts)

    def acknowledged(self, *, wait: bool) -> int | None:
        """As :meth:`BlockStream.acknowledged`."""
        found = None
        if wait:
            found = self._acknowledgement(self._connection.receive_patiently(self._silence_ms)).header.offset
        while (event := self._connection.receive_now()) is not None:
            found = self._acknowledgement(event).header.offset
        return found

    def end(self, length: int, commit: PutBlock | None, acknowledged: Callable[[int], None]) -> BlockCommitted | None:
        """As :meth:`BlockStream.end`."""
        self._sequence += 1
        payload = b"" if commit is None else encode(commit)
        ending = self._connection.talk.say(
            Kind.END, payload, stream=self._stream, sequence=self._sequence, offset=length
        )
        self._expect_news()
        self._connection.send_parts([ending])
        while True:
            last = self._acknowledgement(self._connection.receive_patiently(END_PATIENCE * self._silence_ms))
            header, answered = last.header, last.header.length > 0
            acknowledged(header.offset)
            if header.sequence == self._sequence and header.offset == length and (answered or commit is None):
                break
        try:
            return record_of(last, BlockCommitted) if answered else None
        except UnreadableRecord as error:
            raise self._connection.error(BAD_FRAME, f"the last acknowledgement cannot be read: {error}") from error

    def _expect_news(self) -> None:
        """From now on, only so long may acknowledgements say nothing new."""
        self._news_by = Deadline.after_ms(REPEATS_PATIENCE * self._silence_ms)

    def _acknowledgement(self, event: Event) -> Frame:
        """Return an ACK of this stream: in a stream, a conversation returns no other event."""
        assert isinstance(event, Frame), event  # noqa: S101 - an ERROR was raised
        if event.header.stream != self._stream:
            raise self._connection.error(BAD_FRAME, f"an ACK of stream {event.header.stream}, not of {self._stream}")
        if event.header.offset > self._acknowledged:
            self._acknowledged = event.header.offset
            self._expect_news()
        elif self._news_by.has_passed:
            raise self._connection.error(
                TIMED_OUT, f"acknowledged nothing behind {self._acknowledged} for too long, again and again"
            )
        return event


class ChunkStream:
    """The old way: every chunk is a request to the pipeline's leader, and an entry in the pipeline's log.

    ``connect`` opens a connection to the leader.
    """

    def __init__(
        self,
        connect: Callable[[], DatanodeConnection],
        *,
        partition: int,
        container_id: int,
        local_id: int,
        silence_ms: int,
        token: Callable[[], bytes] = bytes,
    ) -> None:
        """``token`` returns what allows the block to be written, where that is demanded; each chunk shows it."""
        self._token = token
        self._connect = connect
        self._connections: list[DatanodeConnection] = []
        self._partition = partition
        self._container_id = container_id
        self._local_id = local_id
        self._silence_ms = silence_ms
        self._sent = 0
        self._under_way: deque[tuple[DatanodeConnection, int]] = deque()
        """The unanswered chunks: the connection of each, and its end."""

    def close(self) -> None:
        """As :meth:`BlockStream.close`."""
        for connection in self._connections:
            connection.close()

    def interrupt(self) -> None:
        """As :meth:`BlockStream.interrupt`."""
        for connection in list(self._connections):
            connection.interrupt()

    def begin(self, offset: int) -> None:
        """Open one connection; the first chunk begins the stream."""
        del offset
        self._connection_for(0)

    def send(self, packets: Sequence[Packet]) -> None:
        """As :meth:`BlockStream.send`."""
        for packet in packets:
            self._send_chunk(packet)

    def _send_chunk(self, packet: Packet) -> None:
        request = WriteChunk(
            partition=self._partition, container_id=self._container_id, local_id=self._local_id,
            offset=packet.offset, data=bytes(packet.data), checksum=packet.crc,
        )  # fmt: skip
        connection = self._connection_for(self._sent % CHUNK_CONNECTIONS)
        connection.send_request(request, tokens=self._token())
        self._sent += 1
        self._under_way.append((connection, packet.end))

    def acknowledged(self, *, wait: bool) -> int | None:
        """As :meth:`BlockStream.acknowledged`."""
        found = None
        if wait and self._under_way:
            connection, _ = self._under_way[0]
            found = self._take(connection.receive_patiently(self._silence_ms))
        while self._under_way and (event := self._under_way[0][0].receive_now()) is not None:
            found = self._take(event)
        return found

    def end(self, length: int, commit: PutBlock | None, acknowledged: Callable[[int], None]) -> BlockCommitted | None:
        """Wait for all answers; PutBlock is a request of its own."""
        del length, commit
        while self._under_way:
            offset = self.acknowledged(wait=True)
            if offset is not None:
                acknowledged(offset)
        return None

    def _connection_for(self, number: int) -> DatanodeConnection:
        if number == len(self._connections):
            self._connections.append(self._connect())
            self._connections[-1].doing = f"WriteChunk of block {self._container_id}/{self._local_id}"
        return self._connections[number]

    def _take(self, event: Event) -> int:
        connection, end = self._under_way.popleft()
        answer = connection.answered(event)
        if not isinstance(answer, ChunkWritten):
            raise connection.error(BAD_FRAME, f"WriteChunk was answered with a {type(answer).__name__}")
        return end
