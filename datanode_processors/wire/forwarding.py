"""One stream at one datanode: checks packets from above, sends them on, writes them, and acknowledges them upward.

One thread does everything. It never holds more than the packet in hand, so bytes that it does not take wait in TCP's
buffers and slow exactly the client that sent them.

Small packets that have arrived together (as many as a usual one holds) are taken as one. They are checked one by one,
sent on with one call, written with one, and acknowledged once. If one of them is wrong, those before it are taken
first. A packet is first offered to all children, then written here while the kernel sends; only then does the thread
wait for a child that has not taken it whole.

The children's acknowledgements are read whenever nothing more has arrived from above, after each ACK_EVERY_BYTES, and
while the thread waits for a child. An acknowledgement is sent upward when nothing more is on its way from above (the
beginning of a frame shows that more is), and after each ACK_EVERY_BYTES. ``stream`` has the rules of what fits and what
may be acknowledged.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from datanode_processors.errors import BlockError
from datanode_processors.tokens.guard import BlockTokenGuard
from datanode_processors.wire.children import Child, StreamChildren
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.core.stream import (
    MAX_BLOCK_BYTES,
    StreamState,
    check_open,
    patience_s,
    place_in,
    reached_at,
)
from datanode_processors.wire.ports import Blocks, PipelineRequests, Writer
from datanode_processors.wire.small_blocks import SmallBlockExchange
from datanode_processors.wire.wire import (
    HANG_UP,
    Wire,
    WireClosed,
    read_record,
    read_request,
)
from datanode_processors.wire.wire_tls import WireTls
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.records.datanode import OpenStream, PutBlock
from schemas.records.framing import BadFrame
from schemas.records.packets import Frame, FrameHeader, Kind, encode_frame
from transport.waiting.deadline import Deadline

ACK_EVERY_BYTES = 1024 * 1024
"""Bytes after which a stream that never pauses is acknowledged."""
TAKEOVER_POLL_S = 0.02
"""How often a stream checks whether an older one of its block has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHost:
    """The datanode that serves a connection."""

    name: str
    cluster: str
    limits: WireLimits
    blocks: Blocks
    pipelines: PipelineRequests
    small_blocks: SmallBlockExchange
    attach: Callable[[Wire, str], None]
    """Called with each connection to another datanode, and that datanode's name, for the counters."""
    detach: Callable[[Wire], None]
    tls: WireTls | None = None
    """How connections are made and taken; None: in clear."""
    block_tokens: BlockTokenGuard | None = None
    """What judges block tokens; None: nobody needs any."""
    brokers: int = 0
    """What stands for the datanode's brokers (``brokers_mark``); 0: they are not known."""


class Forwarding:
    """Runs one stream, from its OPEN to the acknowledgement of its END."""

    def __init__(
        self, node: StreamHost, upstream: Wire, opening: FrameHeader, request: OpenStream, *,
        limit_bytes: int = MAX_BLOCK_BYTES,
    ) -> None:  # fmt: skip
        """Check the stream's OPEN; raises BlockError (INVALID_REQUEST, or what the pipeline says).

        ``limit_bytes`` is up to where the stream may write.
        """
        check_open(request)
        place = place_in(request.routes, node.name)
        node.pipelines.check_stream(request.partition, request.container_id, request.local_id)
        if node.tls is not None:
            place = reached_at(place, partial(node.pipelines.address_of, request.partition))
        self.state = StreamState(request, opening.sequence, place, limit_bytes=limit_bytes)
        self._node = node
        self._limits = node.limits
        self._upstream = upstream
        self._request = request
        self._stream = opening.stream
        self._poll = select.poll()
        self._children = StreamChildren(
            self.state, self._poll, node.limits, name=node.name, cluster=node.cluster,
            attach=node.attach, detach=node.detach, tls=node.tls,
        )  # fmt: skip
        self._heard_at = time.monotonic()
        self._told_at = self._heard_at
        self._unacknowledged = 0
        self._reads_client = False
        """Whether the thread waits for frames of the client; if not, only for its going away."""
        self._writer: Writer | None = None

    def run(self) -> None:
        """Run the stream; raises BlockError to tell the client, WireClosed if it has gone.

        On return everything is closed.
        """
        try:
            self._open()
            end = self._transfer()
            self._finish(end)
        except BlockError as error:
            # The error must not carry the store's own offset, which is only how far this replica has come. The client
            # would believe that all replicas have come so far.
            error.offset = self.state.everyone
            raise
        except BadFrame as error:
            raise BlockError(stream_errors.BAD_FRAME, str(error), offset=self.state.everyone) from error
        finally:
            self._close()

    # ------------------------------------------------------------------------------------------------- begin

    def _open(self) -> None:
        opening = encode_frame(
            Kind.OPEN,
            encode(self._request),
            stream=self._stream,
            sequence=self.state.sequence,
            offset=self._request.offset,
        )
        for child in self._children:
            self._children.connect(child, opening)
        self._writer = self._open_writer()
        for child in self._children:
            self._children.greet(child)
        self._poll.register(self._upstream, HANG_UP)
        while not self.state.is_open:
            self._wait(self._limits.open_timeout_s)
        self._poll.modify(self._upstream, select.POLLIN)
        self._reads_client = True
        self._send_ack(b"", self.state.sequence, self._request.offset)

    def _open_writer(self) -> Writer:
        """Open the block, once an older stream of it has ended or is given up.

        A client that opens a second stream has lost the first one, and this datanode may not have seen its end yet.
        """
        request = self._request
        deadline = Deadline.after_s(self._limits.takeover_wait_s)
        while True:
            try:
                return self._node.blocks.open_writer(
                    request.container_id,
                    request.local_id,
                    request.offset,
                    request.bytes_per_checksum,
                    alive=self._alive,
                )
            except BlockError as error:
                if error.code != stream_errors.OVERLOADED or deadline.has_passed:
                    raise
            time.sleep(TAKEOVER_POLL_S)

    def _alive(self) -> bool:
        """Return whether the client may still send. Called by the threads of other streams."""
        silent_s = time.monotonic() - self._heard_at
        return silent_s < self._limits.takeover_silence_s and not self._upstream.has_hung_up()

    # ---------------------------------------------------------------------------------------------- transfer

    def _transfer(self) -> Frame:
        """Take packets until END, and return it."""
        upstream = self._upstream
        while True:
            frame = upstream.frame()
            if frame is None:
                if not upstream.is_receiving:
                    self._acknowledge()
                self._wait(self._limits.stall_timeout_s)
                continue
            self._heard_at = time.monotonic()
            packets, end, fault = self._gather(frame)
            if packets:
                self._take(packets)
            if fault is not None:
                raise fault
            if end is not None:
                return end

    def _gather(self, first: Frame) -> tuple[list[Frame], Frame | None, Exception | None]:
        """Return the packets that have arrived together, and after them END, or the error in what followed them."""
        packets: list[Frame] = []
        frame: Frame | None = first
        try:
            while frame is not None:
                header = frame.header
                if header.stream != self._stream:
                    raise BlockError(
                        stream_errors.OUT_OF_ORDER, f"a frame of stream {header.stream} within stream {self._stream}"
                    )
                if header.kind is Kind.END:
                    return packets, frame, None
                if header.kind is not Kind.DATA:
                    raise BlockError(stream_errors.OUT_OF_ORDER, f"{header.kind.name} within a stream")
                frame.check()
                self.state.on_data(header)
                packets.append(frame)
                frame = self._upstream.ready()
        except (BadFrame, BlockError) as error:
            return packets, None, error
        return packets, None, None

    def _take(self, packets: list[Frame]) -> None:
        together = self._upstream.together(packets[0], packets[-1])
        for child in self._children:
            self._children.offer(child, together)
        offset = packets[0].header.offset
        self._own.write_packets(offset, [(packet.payload, packet.header.crc) for packet in packets])
        self.state.on_stored()
        for child in self._children:
            while child.left is not None:
                self._wait_to_send(child, self._limits.stall_timeout_s)
        self._upstream.packets += len(packets)
        self._unacknowledged += self.state.received - offset
        if self._unacknowledged >= ACK_EVERY_BYTES:
            for child in self._children:
                self._children.hear(child)
            self._acknowledge()

    def _wait_to_send(self, child: Child, timeout_s: float) -> None:
        assert child.left is not None  # noqa: S101 - asked by the caller
        self._poll.modify(child.connection, select.POLLIN | select.POLLOUT)
        # Frames that the client has sent meanwhile stay unread, and must not wake this thread again and again.
        self._poll.modify(self._upstream, HANG_UP)
        self._reads_client = False
        try:
            self._wait(timeout_s)
            self._acknowledge()
            self._children.offer(child, child.left)
        finally:
            self._poll.modify(child.connection, select.POLLIN)
            self._poll.modify(self._upstream, select.POLLIN)
            self._reads_client = True

    # ------------------------------------------------------------------------------------------------- end

    def _finish(self, end: Frame) -> None:
        end.check()
        self.state.on_end(end.header)
        put = put_on_end(end, self._request) if self.state.place.is_root else None
        for child in self._children:
            self._children.offer(child, end.whole)
        self._own.flush()
        self.state.on_flushed()
        for child in self._children:
            child.moved_at = time.monotonic()
            while child.left is not None:
                self._wait_to_send(child, self._limits.end_timeout_s)
        while not self.state.is_complete:
            self._wait(self._limits.end_timeout_s)
            if (early := self._upstream.frame()) is not None:
                raise BlockError(stream_errors.OUT_OF_ORDER, f"{early.header.kind.name} before END was acknowledged")
        self._close()
        answer = b"" if put is None else encode(self._node.pipelines.handle(put))
        self._send_ack(answer, end.header.sequence, end.header.offset)

    # ------------------------------------------------------------------------------------- acknowledgements

    def _acknowledge(self, *, again: bool = False) -> None:
        """Acknowledge upward what everyone has.

        Only if it is more than before (or ``again``), and the connection takes the frame.
        """
        everyone = self.state.everyone
        if everyone == self.state.acknowledged and not again:
            return
        self._told_at = time.monotonic()
        frame = encode_frame(Kind.ACK, stream=self._stream, sequence=self.state.sequence, offset=everyone)
        if self._upstream.send_small(frame):
            self.state.acknowledged = everyone
            self._unacknowledged = 0

    def _send_ack(self, payload: bytes, sequence: int, offset: int) -> None:
        frame = encode_frame(Kind.ACK, payload, stream=self._stream, sequence=sequence, offset=offset)
        self._told_at = time.monotonic()
        self._upstream.wait_send(frame, timeout_s=self._limits.send_timeout_s)

    # ------------------------------------------------------------------------------------------------ waits

    def _wait(self, timeout_s: float) -> None:
        """Wait until a child has said something (and take it), or until an event happens that the poll asks for.

        ``timeout_s`` is how long a child that owes an acknowledgement may stand still. Raises DOWNSTREAM_FAILED for a
        child that stood still longer, TIMED_OUT for a client that has not sent a whole frame, WireClosed for a client
        that has gone while its frames are not read. Deadlines are checked after every event, because events may never
        stop.
        """
        deadline, silent = self._next_deadline(timeout_s)
        wake_at = deadline
        if silent is not None and self.state.is_open:
            wake_at = min(deadline, self._told_at + self._limits.alive_s)
        events = self._poll.poll(max(0.0, wake_at - time.monotonic()) * 1000)
        for fileno, _ in events:
            if (child := self._children.by_fileno(fileno)) is not None:
                self._children.hear(child)
            elif not self._reads_client:
                raise WireClosed("the peer closed the connection")
        if events:
            deadline, silent = self._next_deadline(timeout_s)
        if time.monotonic() < deadline:
            if not events:
                self._acknowledge(again=True)
            return
        if silent is None:
            raise BlockError(stream_errors.TIMED_OUT, f"the client was silent for {self._limits.idle_timeout_s:g} s")
        raise self.state.child_failed(
            silent.name, f"neither took nor said anything for {timeout_s:g} s", stream_errors.TIMED_OUT
        )

    def _next_deadline(self, timeout_s: float) -> tuple[float, Child | None]:
        """Return until when to wait, and for which child (None: the client)."""
        deadline, silent = self._heard_at + self._limits.idle_timeout_s, None
        for child in self._children:
            if child.left is not None or self.state.is_outstanding(child.name):
                patience = timeout_s if self.state.is_open else patience_s(timeout_s, child.height)
                if child.moved_at + patience < deadline:
                    deadline, silent = child.moved_at + patience, child
        return deadline, silent

    @property
    def _own(self) -> Writer:
        assert self._writer is not None  # noqa: S101 - opened before the first packet is asked for
        return self._writer

    def _close(self) -> None:
        """Close the children's connections and the writer; may be called again."""
        self._children.close()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()


def stream_request(frame: Frame) -> tuple[OpenStream, bytes]:
    """Return the OpenStream of an OPEN frame, and its block tokens; raises INVALID_REQUEST."""
    request, tokens = read_request(frame, OpenStream)
    assert isinstance(request, OpenStream)  # noqa: S101 - read_request saw to it
    if request.offset != frame.header.offset:
        raise BlockError(
            stream_errors.INVALID_REQUEST,
            f"OPEN's header says offset {frame.header.offset}, its request {request.offset}",
        )
    return request, tokens


def put_on_end(end: Frame, request: OpenStream) -> PutBlock | None:
    """Return the PutBlock that rides a stream's END, None if there is none.

    Raises INVALID_REQUEST if it does not belong to the stream.
    """
    if not end.header.length:
        return None
    put = read_record(end, PutBlock)
    assert isinstance(put, PutBlock)  # noqa: S101 - read_record saw to it
    its = (put.partition, put.container_id, put.local_id, put.length)
    stream = (request.partition, request.container_id, request.local_id, end.header.offset)
    if its != stream:
        raise BlockError(
            stream_errors.INVALID_REQUEST,
            f"the PutBlock on END is of partition, container, block, length {its}; the stream is {stream}",
        )
    return put
