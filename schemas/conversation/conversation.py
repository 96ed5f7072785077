"""One side of a conversation with a datanode: it checks what arrives, returns it as events, and encodes what is sent.

Bytes in: receive into ``space()``, call ``received(count)``, then take ``next_event()`` until it is None. Call
``ended()`` when the connection has ended. Commands in: ``hello``, ``request``, ``say`` and others return the bytes to
send. The caller has the socket, the threads and the deadlines.

A mistake of the peer's is a :class:`ConversationFailed` with its :class:`ConversationFault`; it ends the conversation.
A payload that cannot be read is an ``UnreadableRecord``, and the conversation goes on, unless it was the payload of
HELLO. A call at the wrong time is a :class:`MisusedConversation`. The conversation keeps no more bytes than
``FrameBuffer`` and ``limits`` allow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

from schemas.codecs.codec import encode
from schemas.conversation.limits import UnreadableRecord, record_of
from schemas.conversation.states import ANSWERS, TABLE, WORDS, ConversationRole, ConversationState, Way, Word
from schemas.records.datanode import Hello, ReadBlock, SalvageBlock, StreamError, TokenedRequest
from schemas.records.framing import BadFrame, agreed_version, check_cluster
from schemas.records.packets import (
    MAX_PAYLOAD_BYTES,
    MIN_VERSION,
    VERSION,
    VERSIONS,
    Frame,
    FrameBuffer,
    FrameHeader,
    Kind,
    encode_frame,
    encode_header,
)


class ConversationFault(Enum):
    """What was wrong with the bytes that arrived."""

    BAD_FRAME = "no frame"
    """The bytes are no frame, a frame too large, or not what begins a connection; or a checksum is wrong."""
    UNREADABLE = "no HELLO"
    """The payload of HELLO cannot be read."""
    WRONG_CLUSTER = "another cluster"
    UNSUPPORTED_VERSION = "no common version"
    OTHER_DATANODE = "another datanode"
    """The datanode at this address is not the one that was meant."""
    OUT_OF_PLACE = "out of place"
    """A frame is not allowed in the conversation's state, or answers no request."""
    CUT_OFF = "cut off"
    """The connection ended in a frame, or while an answer was due."""


class ConversationFailed(Exception):
    """The peer broke the rules of the conversation, which cannot go on."""

    def __init__(self, fault: ConversationFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class MisusedConversation(RuntimeError):
    """The caller asked for a step that the conversation's state does not allow: a defect of the caller."""


@dataclass(frozen=True, slots=True)
class PeerGreeted:
    """The peer's HELLO, checked."""

    hello: Hello
    version: int
    """The version of the framing to speak."""


@dataclass(frozen=True, slots=True)
class PeerAnswered:
    """A REPLY to the oldest open request."""

    header: FrameHeader
    record: Any


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """An ERROR. It answers the oldest open request or ends the conversation, depending on the state."""

    header: FrameHeader
    error: StreamError


Event = PeerGreeted | PeerAnswered | PeerRefused | Frame
"""A Frame is DATA, END, ACK, OPEN or REQUEST, allowed here and with a good checksum; valid until ``space``
is called.
"""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A request without an answer."""

    sequence: int
    reads: bool
    """Whether the answer consists of cells."""


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


def with_tokens(request: Any, tokens: bytes) -> bytes:
    """Return a record as it is sent with block tokens; without any it is sent as it is. Raises Unencodable."""
    encoded = encode(request)
    return encode(TokenedRequest(tokens=tokens, request=encoded)) if tokens else encoded


def check_brokers(hello: Hello, said: int, own: int) -> None:
    """Raise ConversationFailed if a peer is at other brokers; the numbers stand for them, 0: not known.

    Two clusters may have one name (``schemas/kafka/brokers_id.py``).
    """
    if said and own and said != own:
        what = f"peer {hello.peer!r} is of cluster {hello.cluster!r} at other brokers (mark {said:x}, not {own:x})"
        raise ConversationFailed(ConversationFault.WRONG_CLUSTER, what)


def judge_hello(hello: Hello, cluster: str, *, datanode: str = "", cluster_needed: bool = False) -> int:
    """Return the version to speak with a peer; raises ConversationFailed for another version, cluster or datanode.

    ``cluster`` is this side's, empty if this side does not know it. The peer may leave its own out, unless
    ``cluster_needed``. ``datanode`` is the name that the peer must have; empty: any.
    """
    try:
        check_cluster(hello.peer, hello.cluster, cluster, needed=cluster_needed)
    except BadFrame as error:
        raise ConversationFailed(ConversationFault.WRONG_CLUSTER, str(error)) from error
    try:
        version = agreed_version(hello.min_version, hello.max_version, VERSIONS)
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
        frames: FrameBuffer | None = None, brokers: int = 0,
    ) -> None:  # fmt: skip
        """``hello`` is what this side says; ``frames`` is the buffer to receive into; the others are as for
        ``judge_hello``.

        ``brokers`` stands for this side's brokers (``brokers_mark``), and is the offset of its HELLO.
        """
        self._brokers = brokers
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
        """The present state."""
        return self._state

    @property
    def has_received(self) -> bool:
        """Whether bytes have arrived that no event has been made of yet."""
        return len(self._frames) > 0

    # -- bytes in, events out

    def space(self) -> memoryview:
        """Return where to receive into, never empty. Frames handed out before become invalid."""
        return self._frames.space()

    def received(self, count: int) -> None:
        """Note that ``count`` bytes have arrived in ``space()``."""
        self._frames.received(count)

    def next_event(self) -> Event | None:
        """Return the next event, None until all of its bytes have arrived.

        Raises ConversationFailed, and again at each later call; UnreadableRecord for the payload of a REPLY or an
        ERROR.
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
        """Note that the peer has closed the connection; raises ConversationFailed (CUT_OFF) if more was due."""
        if self._failure is not None:
            raise self._failure
        before = self._state
        after = self._table[before].get((Way.CAME, Word.GONE), before)
        if after is ConversationState.FAILED or self.has_received:
            raise self._fail(ConversationFault.CUT_OFF, f"the connection ended while {before.value}")
        self._state = after

    def shrink(self) -> None:
        """Give back the memory that the buffer has grown by, if it is empty.

        Frames handed out before become invalid.
        """
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
            check_brokers(hello, frame.header.offset, self._brokers)
        except UnreadableRecord as error:
            raise self._fail(ConversationFault.UNREADABLE, str(error)) from error
        except ConversationFailed as error:
            raise self._fail(error.fault, str(error)) from error
        self._state = ConversationState.OPEN
        self._frames.greeting = False
        return PeerGreeted(hello, version)

    def _answers(self, header: FrameHeader) -> bool:
        """Whether a frame answers the oldest open request; an ERROR without a number ends all that is open."""
        if self._role is ConversationRole.SERVER or not self._under_way:
            return True
        oldest = self._under_way[0]
        if header.kind is Kind.ERROR:
            return header.sequence in (0, oldest.sequence)
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
        """Return this side's HELLO."""
        return self.say(Kind.HELLO, encode(self._hello), offset=self._brokers)

    def request(self, request: Any, *, sequence: int = 0, tokens: bytes = b"") -> bytes:
        """Return the REQUEST of a record, with the block tokens that allow it.

        The answer is PeerAnswered or PeerRefused; to a request for bytes, DATA frames, then END or PeerRefused. The
        answer repeats ``sequence``. Raises Unencodable.
        """
        payload = with_tokens(request, tokens)
        self._step(Kind.REQUEST, sequence, reads=isinstance(request, ReadBlock | SalvageBlock))
        return encode_frame(Kind.REQUEST, payload, sequence=sequence)

    def say(self, kind: Kind, payload: bytes = b"", *, stream: int = 0, sequence: int = 0, offset: int = 0) -> bytes:
        """Return a frame of any kind but REQUEST."""
        self._step(kind, sequence)
        return encode_frame(kind, payload, stream=stream, sequence=sequence, offset=offset)

    def header(self, kind: Kind, *, stream: int, sequence: int, offset: int, length: int, crc: int) -> bytes:
        """Return a frame's header; the caller sends the payload, ``length`` bytes with CRC32C ``crc``, behind it."""
        self._step(kind, sequence)
        return encode_header(kind, stream, sequence, offset, length, crc)

    def stream_is_over(self) -> None:
        """Note, on the server's side, that the stream's own state machine has acknowledged END."""
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
        """Take a step that the table allows."""
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
