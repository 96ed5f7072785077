"""How far the bytes of one block have come, and how many more the client may send (design, section 8).

What belongs here: the pure bookkeeping of a block that is being written. Seven offsets, each at most the one before::

    written >= packed >= sent >= acknowledged >= asked >= committed >= watched

* *written*: the caller passed them in; *packed*: they are in whole packets, ready to be sent.
* *sent*, and *acknowledged* by all datanodes of the stream. ``window_bytes`` bounds the bytes between these two.
* *asked*: a PutBlock for them is on its way; *committed*: it is effective.
* *watched*: enough replicas have applied the entry and hold verified bytes. Only then are buffers released.
  ``buffer_bytes`` bounds the bytes between written and watched; at this bound a writer waits.

The rules:

1. Packets end at multiples of ``packet_bytes``, so that a packet of a cell's size is a cell. A flush ends a packet
   early; the next packet is shorter, and the grid is kept.
2. A commit is due at each multiple of ``flush_bytes`` that is acknowledged. When MAX_HELD_PACKETS are held, a commit of
   all acknowledged bytes is due. One commit is on its way at a time.
3. A stream that fails falls back to the acknowledged offset; the packets from there on are sent again (``resume``).
4. Only the end of a packet is ever acknowledged or committed; any other offset that a datanode reports is rounded down.
5. The checksum of a cell is its CRC32C, carried from packet to packet. For each held packet's end, the CRC32C of the
   last, shorter cell is known too, so that the length up to there may be committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from schemas.records.packets import CELL_BYTES, MAX_PACKET_BYTES
from schemas.settings.table import StreamSettings

_CRC_BYTES = 4
MIN_PACKET_BYTES = 4 * 1024
MAX_HELD_PACKETS = 128 * 1024
"""Packets held at most, however short flushes make them."""

SEND_BYTES = 64 * 1024
SEND_PACKETS = 64
"""Packets that are sent with one call, at most."""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """Limits of a block that is being written, in bytes. Raises ValueError for a value out of range, naming it."""

    block_bytes: int
    packet_bytes: int = StreamSettings.packet_bytes
    window_bytes: int = 8 * 1024 * 1024
    flush_bytes: int = StreamSettings.flush_bytes
    buffer_bytes: int = StreamSettings.client_buffer_bytes

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.block_bytes < 1:
            raise ValueError(f"block_bytes must be at least 1, not {self.block_bytes}")
        packet = self.packet_bytes
        aligned = packet % CELL_BYTES == 0 or CELL_BYTES % packet == 0 if packet > 0 else False
        if not MIN_PACKET_BYTES <= packet <= MAX_PACKET_BYTES or not aligned:
            raise ValueError(
                f"packet_bytes must be {MIN_PACKET_BYTES} to {MAX_PACKET_BYTES} and divide, or be a multiple of,"
                f" {CELL_BYTES}; not {packet}"
            )
        if self.window_bytes < packet:
            raise ValueError(f"window_bytes must be at least packet_bytes ({packet}), not {self.window_bytes}")
        if self.flush_bytes < packet or self.flush_bytes % packet:
            raise ValueError(f"flush_bytes must be a multiple of packet_bytes ({packet}), not {self.flush_bytes}")
        if self.buffer_bytes < self.flush_bytes:
            raise ValueError(
                f"buffer_bytes must be at least flush_bytes ({self.flush_bytes}), not {self.buffer_bytes}:"
                " a writer would wait for ever"
            )


@dataclass(slots=True, kw_only=True)
class Packet:
    """Bytes of the block that travel in one frame, with their CRC32C, and that of their cell up to their end."""

    offset: int
    data: Buffer
    crc: int
    cell_crc: int

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + len(self.data)


class StreamWindow:
    """The bytes of one block between the caller and the watch."""

    def __init__(self, limits: WindowLimits) -> None:
        self.limits = limits
        self.written = self.packed = self.sent = self.acknowledged = 0
        self.asked = self.committed = self.watched = 0
        self.bcs_id = 0
        """Index of the entry that committed most bytes; 0 = none has."""
        self.watched_bcs_id = 0
        """Index of the entry that committed *watched*."""
        self._held: deque[Packet] = deque()
        """Packets that are not released, in order; the first ``_sent_packets`` of them are sent."""
        self._sent_packets = 0
        self._filling = bytearray()
        self._cells = bytearray()
        """Packed checksums of whole cells."""
        self._cell_crc = 0
        """Checksum of the present cell up to ``packed``."""
        self._tails: dict[int, int] = {0: 0}
        """By end of a held packet (and by the end of what is released): the checksum of its cell up to there."""

    # -- writing

    @property
    def held_bytes(self) -> int:
        """Bytes held in case of a failure."""
        return self.written - self.watched

    @property
    def full(self) -> bool:
        """Whether the block takes no more bytes."""
        return self.written == self.limits.block_bytes

    def room(self) -> int:
        """Return how many bytes may be written now; 0 before the block is full means: wait for a watch."""
        limits = self.limits
        if len(self._held) >= MAX_HELD_PACKETS:
            return 0
        return min(limits.block_bytes - self.written, limits.buffer_bytes - self.held_bytes)

    def write(self, data: memoryview, *, keep: bool) -> int:
        """Take up to :meth:`room` bytes, and return how many; ``keep`` if the data will never change.

        Data that will not change is not copied, except where it fills less than a whole packet.
        """
        taken = min(self.room(), len(data))
        done = 0
        while done < taken:
            wanted = self._packet_end() - self.written
            part = data[done : min(done + wanted, taken)]
            if not self._filling and len(part) == wanted:
                self.written += wanted
                self._pack(part if keep else bytes(part))
            else:
                self._filling += part
                self.written += len(part)
                if len(part) == wanted:
                    self.seal()
            done += len(part)
        return taken

    def seal(self) -> None:
        """Make a short packet of the bytes left over."""
        if self._filling:
            filled, self._filling = self._filling, bytearray()
            self._pack(filled)

    def _packet_end(self) -> int:
        """Return where the packet that is being filled ends at the latest."""
        size = self.limits.packet_bytes
        return min((self.written // size + 1) * size, self.limits.block_bytes)

    def _pack(self, data: Buffer) -> None:
        crc = crc32c(data)
        offset = self.packed
        if offset % CELL_BYTES == 0 and len(data) == CELL_BYTES:
            self._cells += crc.to_bytes(_CRC_BYTES, "big")
        else:
            self._add_to_cells(memoryview(data))
        self.packed += len(data)
        self._tails[self.packed] = self._cell_crc
        self._held.append(Packet(offset=offset, data=data, crc=crc, cell_crc=self._cell_crc))

    def _add_to_cells(self, data: memoryview) -> None:
        offset, done = self.packed, 0
        while done < len(data):
            left = CELL_BYTES - (offset + done) % CELL_BYTES
            part = data[done : done + left]
            self._cell_crc = crc32c(part, self._cell_crc)
            done += len(part)
            if len(part) == left:
                self._cells += self._cell_crc.to_bytes(_CRC_BYTES, "big")
                self._cell_crc = 0

    # -- sending

    def next_packet(self) -> Packet | None:
        """Return the packet to be sent next, or None if there is none or the window is full."""
        if self._sent_packets == len(self._held):
            return None
        packet = self._held[self._sent_packets]
        if packet.end - self.acknowledged > self.limits.window_bytes and self.sent > self.acknowledged:
            return None
        return packet

    def next_packets(self) -> list[Packet]:
        """Return the packets to send next, none if there are none or the window is full.

        It is one packet, or small ones of up to SEND_BYTES together.
        """
        first = self.next_packet()
        if first is None:
            return []
        packets = [first]
        stop = min(first.offset + SEND_BYTES, self.acknowledged + self.limits.window_bytes)
        for number in range(self._sent_packets + 1, min(len(self._held), self._sent_packets + SEND_PACKETS)):
            packet = self._held[number]
            if packet.end > stop:
                break
            packets.append(packet)
        return packets

    def on_sent(self, packet: Packet) -> None:
        """Note that the packet which :meth:`next_packet` returned is on its way."""
        if packet.offset != self.sent:
            raise ValueError(f"a packet at {packet.offset} was sent where {self.sent} follows")
        self.sent = packet.end
        self._sent_packets += 1

    def on_acknowledged(self, offset: int) -> None:
        """Note that all datanodes of the stream have everything below ``offset``.

        Raises ValueError for what was never sent. An older acknowledgement changes nothing.
        """
        if offset > self.sent:
            raise ValueError(f"{offset} bytes are acknowledged, but {self.sent} were sent")
        if offset > self.acknowledged:
            self.acknowledged = self._packet_end_below(offset)

    def _packet_end_below(self, offset: int) -> int:
        if offset in self._tails:
            return offset
        return max((end for end in self._tails if end < offset), default=self.acknowledged)

    def resume(self) -> int:
        """Forget what is on its way, and return the offset from which packets are sent again."""
        self.sent = self.acknowledged
        self._sent_packets = sum(packet.end <= self.acknowledged for packet in self._held)
        return self.sent

    # -- committing

    def due(self) -> int | None:
        """Return the length that should be committed now, None if no commit is due: rule 2."""
        if self.acknowledged == self.limits.block_bytes:
            return None  # the end of a block is committed when the block is closed
        crowded = len(self._held) >= MAX_HELD_PACKETS
        point = self.acknowledged if crowded else self.acknowledged - self.acknowledged % self.limits.flush_bytes
        return point if point > self.asked and self.asked == self.watched else None

    def begin_commit(self, length: int) -> bytes:
        """Note that ``length`` bytes are about to be committed; return their checksums.

        Raises ValueError for a length that is not acknowledged, or that is less than one asked for before.
        """
        if not self.asked <= length <= self.acknowledged:
            raise ValueError(
                f"{length} bytes cannot be committed: {self.acknowledged} are acknowledged, {self.asked} were asked for"
            )
        checksums = self.checksums(length)
        self.asked = length
        return checksums

    def checksums(self, length: int) -> bytes:
        """Return the packed CRC32C of the cells of the first ``length`` bytes; ValueError if no packet ended there."""
        cells, rest = divmod(length, CELL_BYTES)
        whole = bytes(self._cells[: cells * _CRC_BYTES])
        if not rest:
            if length > self.packed:
                raise ValueError(f"{length} bytes are not packed")
            return whole
        if length not in self._tails:
            raise ValueError(f"no packet ended at {length}")
        return whole + self._tails[length].to_bytes(_CRC_BYTES, "big")

    def on_committed(self, length: int, bcs_id: int) -> None:
        """Note that ``length`` bytes are committed by the entry at ``bcs_id``."""
        if length > self.asked:
            raise ValueError(f"{length} bytes are committed, but {self.asked} were asked for")
        if length > self.committed or (length == self.committed and bcs_id > self.bcs_id):
            self.committed, self.bcs_id = length, bcs_id

    def on_watched(self, length: int) -> None:
        """Note that enough replicas hold ``length`` committed bytes, and release them."""
        if length > self.committed:
            raise ValueError(f"{length} bytes were watched, but {self.committed} are committed")
        if length > self.watched or (length == self.watched and self.bcs_id):
            self.watched, self.watched_bcs_id = length, self.bcs_id
        while self._held and self._held[0].end <= self.watched:
            self._tails.pop(self._held.popleft().offset, None)
            self._sent_packets -= 1

    def on_commit_failed(self) -> None:
        """Note that the commit on its way failed; it may be asked for again."""
        self.asked = self.committed

    def unwatched(self) -> Iterator[memoryview]:
        """Iterate over all bytes from *watched* on, to write them elsewhere."""
        for packet in self._held:
            yield memoryview(packet.data)[max(self.watched - packet.offset, 0) :]
        if self._filling:
            yield memoryview(bytes(self._filling))
