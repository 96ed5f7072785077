"""One direct connection on the node's side: asyncio calls it with bytes, leaders' threads with answers.

What a peer may make the node hold is bounded: MAX_UNANSWERED requests, or keys of lookups, of MAX_UNANSWERED_BYTES
without an answer (then nothing more is read from the connection), MAX_UNSENT_BYTES of answers that the peer does not
read (then the connection is ended), less than one frame that is not whole (then it is ended after HALF_FRAME_S). All
connections together are bounded too (``held_bytes``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from om_processors.doors.door_lookups import Told, refused, weight_of
from schemas.access.credentials import TokenName
from schemas.access.signatures import Seal, seal_of
from schemas.codecs.codec import Undecodable, decode_as, encode
from schemas.codecs.envelopes import enveloped_responses, requests_in
from schemas.door.frames import DoorFrame, DoorFrames, DoorKind, door_frame, key_and_request
from schemas.door.talk import DoorRole, DoorState, DoorTalk, error_frame
from schemas.records.door import DoorRead, DoorRows
from schemas.records.framing import BadFrame
from schemas.result_codes import INVALID_REQUEST, OVERLOADED

MAX_UNANSWERED = 10_000
"""Requests and keys of lookups."""
MAX_UNANSWERED_BYTES = 16 * 1024 * 1024
REQUEST_BYTES = 256
"""What a request that waits takes besides its own bytes: many small ones weigh as few large ones do."""
MAX_UNSENT_BYTES = 32 * 1024 * 1024
CROWDED_UNANSWERED_BYTES = 1024 * 1024
"""The same limit while all connections together hold much."""
MAX_GATHERED_BYTES = 256 * 1024
"""Frames that leave in one turn of the event loop gather up to here; beyond, they are written at once."""
GREETING_S = 10.0
"""How long a peer may take to say HELLO."""
HALF_FRAME_S = 30.0
UNREAD_S = 60.0
"""How long a peer may read nothing though answers wait for it."""
LAST_WORDS_S = 10.0
"""How long a connection that is being closed waits for its peer to read what was said."""


class DoorHost(Protocol):
    """What a connection needs of its node; for the event loop's thread."""

    node: str
    cluster: str
    shards: int

    @property
    def crowded(self) -> bool:
        """Whether all connections together hold so much that each may have less unanswered."""

    def submit(
        self, connection: DoorConnection, shard: int, requests: Sequence[bytes], key: bytes | None, seal: Seal | None
    ) -> None:
        """Have requests executed and answered; ``seal`` is the signature of the frame that brought them."""

    def look_up(self, connection: DoorConnection, reads: Sequence[tuple[DoorRead, Told]]) -> None:
        """Have lookups answered."""

    def leaders_frame(self) -> bytes:
        """Return who leads."""

    def held(self, connection: DoorConnection, held_bytes: int) -> None:
        """Hear how many bytes a connection makes the node hold."""


class DoorConnection(asyncio.Protocol):
    """Made for a connection whose upgrade has been answered; ``ended`` is called once, when it is closed."""

    def __init__(
        self, host: DoorHost, loop: asyncio.AbstractEventLoop, ended: Callable[[DoorConnection], None]
    ) -> None:
        self._host = host
        self.token: TokenName | None = None
        """The token that signed the upgrade; None for a member, or if calls are not signed."""
        self._loop = loop
        self._ended = ended
        self._talk = DoorTalk(DoorRole.NODE, host.node, host.cluster)
        self._frames = DoorFrames(DoorRole.NODE.hears)
        self._transport: asyncio.Transport | None = None
        self._unanswered, self._unanswered_bytes = 0, 0
        self._peer_reads = True
        self._unread_since_s = self._closing_since_s = 0.0
        self._reads_on = True
        self._since_s = loop.time()
        """When the connection began, or the frame that is not whole."""
        self._stirred_s = self._since_s
        """When the connection was last at work, as far as was seen."""
        self._unread_bytes = 0
        """What the peer had not read when that was last looked at."""
        self._gathered: list[bytes] = []
        """Frames that leave together, in the same turn of the event loop: each write is a call of the kernel."""
        self._gathered_bytes = 0

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the client."""
        self._transport = cast("asyncio.Transport", transport)
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(self._talk.hello())
        self.tell_leaders(self._host.leaders_frame())
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the connection: answers that come later are dropped."""
        self._transport = None
        self._ended(self)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        reads: list[tuple[DoorRead, Told]] = []
        try:
            for frame in self._frames.take(data):
                self._talk.hear(frame)
                self._hear(frame, reads)
        except (BadFrame, Undecodable) as error:
            self.reject(str(error))
        if reads:
            self._host.look_up(self, reads)
            self._flush()
        if not self._frames:
            self._since_s = 0.0
        elif not self._since_s:
            self._since_s = self._loop.time()
        self._stirred_s = self._loop.time()
        self._tell_held()
        self._keep_pace()

    def pause_writing(self) -> None:
        """Read nothing more while the client does not read."""
        self._peer_reads = False
        self._unread_since_s = self._loop.time()
        self._keep_pace()

    def resume_writing(self) -> None:
        """Go on."""
        self._peer_reads = True
        self._unread_since_s = 0.0
        self._keep_pace()

    # -- frames in -------------------------------------------------------------------------------------------------

    def _hear(self, frame: DoorFrame, reads: list[tuple[DoorRead, Told]]) -> None:
        match frame.kind:
            case DoorKind.REQUESTS:
                self._submit(frame, requests_in(frame.payload), None)
            case DoorKind.KEYED:
                key, value = key_and_request(frame.payload)
                if (seal := seal_of(key, value)) is None:
                    self._submit(frame, [value], key)
                else:
                    requests = requests_in(value)
                    self._submit(frame, requests, (seal.rest or None) if requests[-1:] == [value] else None, seal)
            case DoorKind.READ:
                self._look_up(frame, decode_as(DoorRead, frame.payload), reads)

    def _look_up(self, frame: DoorFrame, read: DoorRead, reads: list[tuple[DoorRead, Told]]) -> None:
        """Have a lookup answered, unless too much came at once: reading stops only behind what has arrived."""
        number, weight = frame.number, weight_of(read)
        if self._unanswered > MAX_UNANSWERED:
            what = f"{self._unanswered} keys and requests of this connection wait for answers"
            self._send_rows(number, refused(OVERLOADED, what))
            return
        self._unanswered += weight
        self._unanswered_bytes += len(frame.payload)

        def told(rows: DoorRows) -> None:
            self._count_down(weight)
            self._send_rows(number, rows)
            self._tell_held()
            self._keep_pace()

        reads.append((read, told))

    def _submit(self, frame: DoorFrame, requests: Sequence[bytes], key: bytes | None, seal: Seal | None = None) -> None:
        if frame.shard >= self._host.shards:
            raise BadFrame(f"there is no shard {frame.shard}; there are 0..{self._host.shards - 1}")
        self._unanswered += len(requests)
        self._unanswered_bytes += len(frame.payload) + len(requests) * REQUEST_BYTES
        self._host.submit(self, frame.shard, requests, key, seal)

    # -- frames out ------------------------------------------------------------------------------------------------

    def answer(self, shard: int, responses: Sequence[bytes]) -> None:
        """Send responses; for any thread."""
        frames = b"".join(door_frame(DoorKind.ANSWERS, value, shard=shard) for value in enveloped_responses(responses))
        self._call(lambda: self._answered(len(responses), frames))

    def reject(self, message: str) -> None:
        """Tell the client what cannot be read, and end the connection; for any thread."""
        self._call(lambda: self._end(message))

    def _call(self, act: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            pass  # the loop is closed: the node stops, and the client asks another one

    def _answered(self, number: int, frames: bytes) -> None:
        self._count_down(number)
        self._send(frames)
        self._flush()
        self._tell_held()
        self._keep_pace()

    def _count_down(self, number: int) -> None:
        self._stirred_s = self._loop.time()
        if self._unanswered > number:
            self._unanswered_bytes -= self._unanswered_bytes * number // self._unanswered
            self._unanswered -= number
        else:
            self._unanswered, self._unanswered_bytes = 0, 0

    def _send_rows(self, number: int, rows: DoorRows) -> None:
        self._send(door_frame(DoorKind.ROWS, encode(rows), number=number))

    def tell_leaders(self, frame: bytes) -> None:
        """Send the frame that says who leads: one frame serves all connections."""
        self._send(frame)

    def _send(self, data: bytes) -> None:
        """Send a frame with those that follow in this turn of the event loop, or with the next :meth:`_flush`."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes > MAX_GATHERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        transport, gathered = self._transport, self._gathered
        if not gathered:
            return
        self._gathered, self._gathered_bytes = [], 0
        if transport is None or transport.is_closing():
            return
        transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            transport.abort()

    def _end(self, message: str, code: str = INVALID_REQUEST) -> None:
        self._talk.state = DoorState.FAILED
        self._send(error_frame(code, message, self._host.node))
        self.close()

    def make_room(self, message: str) -> None:
        """End the connection for the sake of others, who need room. What its peer does not read is given up."""
        self._end(message, OVERLOADED)
        if self._transport is not None and self._transport.get_write_buffer_size() > CROWDED_UNANSWERED_BYTES:
            self._transport.abort()

    @property
    def held_bytes(self) -> int:
        """How many bytes the node holds for the peer: half a frame, what is unanswered, what the peer does not read."""
        return len(self._frames) + self._unanswered_bytes + self._gathered_bytes + self._unsent_bytes

    @property
    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def _is_at_work(self) -> bool:
        """Whether the node owes an answer, or the peer the rest of a frame."""
        return bool(self._unanswered or self._since_s)

    @property
    def rests_since_s(self) -> float | None:
        """Since when nothing happens here; None if the connection is at work, or ends.

        Answers that the peer does not read are no work: else whoever reads nothing would keep its place.
        """
        return None if self._is_at_work or self.is_gone else self._stirred_s

    @property
    def is_gone(self) -> bool:
        """Whether nothing reaches the client any more."""
        return self._transport is None or self._transport.is_closing()

    def _tell_held(self) -> None:
        if self._transport is not None:
            self._host.held(self, self.held_bytes)

    def close(self) -> None:
        """Close the connection once what was said has been sent."""
        self._flush()
        self._closing_since_s = self._closing_since_s or self._loop.time()
        if self._transport is not None:
            self._transport.close()

    def look(self, now_s: float) -> None:
        """End the connection if its client keeps the node waiting; called about once a second."""
        unread = self._unsent_bytes
        if self._is_at_work or unread != self._unread_bytes:
            self._stirred_s = now_s
        self._unread_bytes = unread
        if self._is_unread(now_s) and self._transport is not None:
            self._transport.abort()
            return
        if not self._since_s:
            return
        late_s = now_s - self._since_s
        if self._talk.state is DoorState.GREETING and late_s > GREETING_S:
            self._end(f"no HELLO within {GREETING_S:.0f} s")
        elif self._reads_on and late_s > HALF_FRAME_S:
            self._end(f"half a frame for {HALF_FRAME_S:.0f} s")

    def _is_unread(self, now_s: float) -> bool:
        """Whether the peer has read nothing for too long: it cannot be told, either."""
        if self._closing_since_s:
            return now_s - self._closing_since_s > LAST_WORDS_S
        return bool(self._unread_since_s) and now_s - self._unread_since_s > UNREAD_S

    def _keep_pace(self) -> None:
        """Read from the connection, or do not, as there is room."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        most_bytes = CROWDED_UNANSWERED_BYTES if self._host.crowded else MAX_UNANSWERED_BYTES
        full = self._unanswered > MAX_UNANSWERED or self._unanswered_bytes > most_bytes
        wanted = self._peer_reads and not full
        if wanted is self._reads_on:
            return
        self._reads_on = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()
