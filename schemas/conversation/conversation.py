"""A conversation with a datanode, as a datanode or with one: what came, in order and judged, and what may be said.

Bytes in: receive into ``space()``, tell ``received(count)``, then take ``next_event()`` until it is None; call
``ended()`` when the connection has ended. Commands in: ``hello``, ``request``, ``say`` and the like return the bytes to
send. The caller has the socket, the threads and the deadlines.

What came wrong is a :class:`ConversationFailed` with its :class:`ConversationFault`, once and for all. A payload that
cannot be read is an ``UnreadableRecord``, and the conversation goes on, unless the payload was that of HELLO. What is
asked of the conversation at the wrong time is a :class:`MisusedConversation`. No more is kept than ``FrameBuffer`` and
``limits`` allow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

from schemas.codecs.codec import encode
from schemas.conversation.limits import UnreadableRecord, record_of
from schemas.conversation.states import ANSWERS, TABLE, WORDS, ConversationRole, ConversationState, Way, Word
from schemas.records.datanode import Hello, ReadBlock, SalvageBlock, StreamError
from schemas.records.packets import (
    MAX_PAYLOAD_BYTES,
    MIN_VERSION,
    VERSION,
    BadFrame,
    Frame,
    FrameBuffer,
    FrameHeader,
    Kind,
    agreed_version,
    encode_frame,
    encode_header,
)


class ConversationFault(Enum):
    """What was wrong with what came."""

    BAD_FRAME = "no frame"
    """The bytes are no frame, or one too large, or not what a connection begins with; or a checksum is wrong."""
    UNREADABLE = "no HELLO"
    """The payload of HELLO cannot be read."""
    WRONG_CLUSTER = "another cluster"
    UNSUPPORTED_VERSION = "no common version"
    OTHER_DATANODE = "another datanode"
    """Another datanode than was meant is at this address."""
    OUT_OF_PLACE = "out of place"
    """A frame has no place in the state that the conversation is in, or answers no request."""
    CUT_OFF = "cut off"
    """The connection ended in a frame, or while an answer was due."""


class ConversationFailed(Exception):
    """The peer said what it must not say; the conversation is of no further use."""

    def __init__(self, fault: ConversationFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class MisusedConversation(RuntimeError):
    """The caller asked for a step that the conversation's state does not have: a defect of the caller's."""


@dataclass(frozen=True, slots=True)
class PeerGreeted:
    """The peer's HELLO, found good."""

    hello: Hello
    version: int
    """The version of the framing to speak."""


@dataclass(frozen=True, slots=True)
class PeerAnswered:
    """A REPLY to the oldest request that was under way."""

    header: FrameHeader
    record: Any


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """An ERROR: the answer to the oldest request, or the end of the conversation, as its state says."""

    header: FrameHeader
    error: StreamError


Event = PeerGreeted | PeerAnswered | PeerRefused | Frame
"""A Frame is DATA, END, ACK, OPEN or REQUEST, in its place and with its checksum; good until ``space`` is called."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A request without an answer."""

    sequence: int
    reads: bool
    """Whether it is answered by cells."""


_OUT_OF_PLACE = {
    ConversationState.OPEN: "outside of a stream",
    ConversationState.STREAMING: "within a stream",
    ConversationState.ENDING: "before END was acknowledged",
}


def own_hello(name: str, cluster: str) -> Hello:
    """Return the HELLO of a side that calls itself ``name``; ``cluster`` is empty if it does not know it."""
    return Hello(
        peer=name, cluster=cluster, min_version=MIN_VERSION, max_version=VERSION, max_payload_bytes=MAX_PAYLOAD_BYTES
    )


def judge_hello(hello: Hello, cluster: str, *, datanode: str = "", cluster_needed: bool = False) -> int:
    """Return the version to speak with a peer; raises ConversationFailed: another version, cluster or datanode.

    ``cluster`` is this side's, empty if it does not know; a peer need not say its own, unless ``cluster_needed``.
    ``datanode`` is the name that the peer must have, empty: any.
    """
    unknown = not cluster_needed and not (hello.cluster and cluster)
    if not unknown and hello.cluster != cluster:
        raise ConversationFailed(
            ConversationFault.WRONG_CLUSTER, f"peer {hello.peer!r} is of cluster {hello.cluster!r}, not {cluster!r}"
        )
    try:
        version = agreed_version(hello.min_version, hello.max_version)
    except BadFrame as error:
        raise ConversationFailed(ConversationFault.UNSUPPORTED_VERSION, str(error)) from error
    if datanode and hello.peer != datanode:
        raise ConversationFailed(
            ConversationFault.OTHER_DATANODE, f"it is now the address of {hello.peer!r}, not of {datanode!r}"
        )
    return version


class Conversation:
    """One side of a conversation; for one thread at a time."""

    def __init__(
        self, role: ConversationRole, hello: Hello, *, datanode: str = "", cluster_needed: bool = False,
        frames: FrameBuffer | None = None,
    ) -> None:  # fmt: skip
        """``hello`` is what this side says, ``frames`` the buffer to receive into; the rest as for ``judge_hello``."""
        self._role = role
        self._table = TABLE[role]
        self._state = ConversationState.IDLE
        self._hello = hello
        self._datanode = datanode
        self._cluster_needed = cluster_needed
        self._frames = FrameBuffer() if frames is None else frames
        self._frames.greeting = True
        self._under_way: deque[_UnderWay] = deque()
        self._end = -1
        """The sequence number of END, in ENDING."""
        self._failure: ConversationFailed | None = None

    @property
    def state(self) -> ConversationState:
        """Where the conversation stands."""
        return self._state

    @property
    def has_received(self) -> bool:
        """Whether bytes are here that no event was made of."""
        return len(self._frames) > 0

    # -- bytes in, events out

    def space(self) -> memoryview:
        """Return where to receive into, never empty; ends the life of the frames that were handed out."""
        return self._frames.space()

    def received(self, count: int) -> None:
        """Note that ``count`` bytes have come into ``space()``."""
        self._frames.received(count)

    def next_event(self) -> Event | None:
        """Return what came next, None if it has not come whole.

        Raises ConversationFailed, each time anew once it has; UnreadableRecord for the payload of a REPLY or an ERROR.
        """
        if self._failure is not None:
            raise self._failure
        if self._state is ConversationState.IDLE:
            raise MisusedConversation("a side says HELLO before it listens")
        try:
            frame = self._frames.frame()
            if frame is None:
                return None
            frame.check()
        except BadFrame as error:
            raise self._fail(ConversationFault.BAD_FRAME, str(error)) from error
        return self._hear(frame)

    def ended(self) -> None:
        """Note that the peer has closed the connection; raises ConversationFailed (CUT_OFF) if more was to come."""
        if self._failure is not None:
            raise self._failure
        before = self._state
        after = self._table[before].get((Way.CAME, Word.GONE), before)
        if after is ConversationState.FAILED or self.has_received:
            raise self._fail(ConversationFault.CUT_OFF, f"the connection ended while {before.value}")
        self._state = after

    def shrink(self) -> None:
        """Give back what the buffer has grown by, if nothing is in it; ends the life of frames that were handed out."""
        self._frames.shrink()

    def _hear(self, frame: Frame) -> Event:
        header = frame.header
        kind = header.kind
        before = self._state
        after = self._table[before].get((Way.CAME, self._word(kind, header.sequence)))
        if after is None or not self._answers(header):
            raise self._fail(ConversationFault.OUT_OF_PLACE, self._misplaced(header))
        if kind is Kind.HELLO:
            return self._greet(frame)
        self._go(kind, header.sequence, after)
        if kind is Kind.ERROR:
            return PeerRefused(header, record_of(frame, StreamError))
        if kind is Kind.REPLY:
            return PeerAnswered(header, record_of(frame))
        return frame

    def _greet(self, frame: Frame) -> PeerGreeted:
        try:
            hello: Hello = record_of(frame, Hello)
            version = judge_hello(
                hello, self._hello.cluster, datanode=self._datanode, cluster_needed=self._cluster_needed
            )
        except UnreadableRecord as error:
            raise self._fail(ConversationFault.UNREADABLE, str(error)) from error
        except ConversationFailed as error:
            raise self._fail(error.fault, str(error)) from error
        self._state = ConversationState.OPEN
        self._frames.greeting = False
        return PeerGreeted(hello, version)

    def _answers(self, header: FrameHeader) -> bool:
        """Whether a frame that comes while requests are under way answers the oldest; an ERROR always does."""
        if self._role is ConversationRole.SERVER or not self._under_way or header.kind is Kind.ERROR:
            return True
        oldest = self._under_way[0]
        return header.sequence == oldest.sequence and oldest.reads is not (header.kind is Kind.REPLY)

    def _misplaced(self, header: FrameHeader) -> str:
        if self._under_way:
            asked = self._under_way[0].sequence
            return f"{header.kind.name} {header.sequence} does not answer request {asked}"
        return f"{header.kind.name} {_OUT_OF_PLACE.get(self._state, f'while {self._state.value}')}"

    def _fail(self, fault: ConversationFault, message: str) -> ConversationFailed:
        self._state = ConversationState.FAILED
        self._failure = ConversationFailed(fault, message)
        return self._failure

    # -- commands in, bytes out

    def hello(self) -> bytes:
        """Return this side's first words."""
        return self.say(Kind.HELLO, encode(self._hello))

    def request(self, request: Any, *, sequence: int = 0) -> bytes:
        """Return the REQUEST of a record.

        Its answer will be PeerAnswered or PeerRefused; of a request for bytes DATA frames, then END or PeerRefused.
        ``sequence`` comes back in the answer. Raises Unencodable.
        """
        payload = encode(request)
        self._step(Kind.REQUEST, sequence, reads=isinstance(request, ReadBlock | SalvageBlock))
        return encode_frame(Kind.REQUEST, payload, sequence=sequence)

    def say(self, kind: Kind, payload: bytes = b"", *, stream: int = 0, sequence: int = 0, offset: int = 0) -> bytes:
        """Return a frame of any kind but REQUEST."""
        self._step(kind, sequence)
        return encode_frame(kind, payload, stream=stream, sequence=sequence, offset=offset)

    def header(self, kind: Kind, *, stream: int, sequence: int, offset: int, length: int, crc: int) -> bytes:
        """Return the header of a frame, whose payload of ``length`` bytes with CRC32C ``crc`` is sent behind it."""
        self._step(kind, sequence)
        return encode_header(kind, stream, sequence, offset, length, crc)

    def stream_is_over(self) -> None:
        """Note, as a server, that the machine of the stream has acknowledged its END."""
        self._step(Kind.ACK, self._end, word=Word.LAST_ACK)

    def _step(self, kind: Kind, sequence: int, *, reads: bool = False, word: Word | None = None) -> None:
        step = Way.SENT, word or self._word(kind, sequence)
        after = self._table[self._state].get(step)
        if after is None:
            if self._failure is not None:
                raise self._failure
            raise MisusedConversation(
                f"{step[1].value} cannot be sent by a {self._role.value} while {self._state.value}"
            )
        self._go(kind, sequence, after, reads=reads)

    # -- both

    def _word(self, kind: Kind, sequence: int) -> Word:
        last = kind is Kind.ACK and self._state is ConversationState.ENDING and sequence == self._end
        return Word.LAST_ACK if last else WORDS[kind]

    def _go(self, kind: Kind, sequence: int, after: ConversationState, *, reads: bool = False) -> None:
        """Take a step that the table has."""
        before = self._state
        if kind is Kind.REQUEST:
            self._under_way.append(_UnderWay(sequence, reads))
        elif (
            self._under_way
            and before in (ConversationState.ASKING, ConversationState.READING)
            and WORDS[kind] in ANSWERS
        ):
            self._under_way.popleft()
        if after is ConversationState.ENDING and before is ConversationState.STREAMING:
            self._end = sequence
        if after is ConversationState.OPEN and self._under_way:
            after = ConversationState.ASKING
        self._state = after
