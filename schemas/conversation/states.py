"""The states of a conversation, and the table of what may be said in each, as one side sees it.

Rules
    1. Each side says HELLO first, without waiting for the other's. It listens only after it has said its own.
    2. The client asks and streams; the server answers. Several requests may be open at once; they are answered in
       order.
    3. An ERROR that answers a request leaves the conversation open. Any other ERROR ends it: instead of HELLO, in a
       stream, or unasked (a server that stops).
    4. What the table does not name is not allowed: receiving it is the peer's fault, sending it the caller's.

A step is a direction, as this side sees it, and a word. ``TABLE`` is written once, by who speaks, and then turned for
each role. Two things depend on more than the state: an ACK of END's own sequence number is LAST_ACK, and a conversation
that would be OPEN while requests are open is ASKING (``conversation``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from schemas.records.packets import Kind


class ConversationRole(Enum):
    """Which side this is."""

    CLIENT = "client"
    """It connects, and asks."""
    SERVER = "server"
    """It accepts, and answers."""


class ConversationState(Enum):
    """The state of a conversation."""

    __hash__ = object.__hash__  # each packet's step hashes its state, and Enum's own hash is written in Python

    IDLE = "idle"
    """Nothing has been said."""
    GREETING = "greeting"
    """This side has said HELLO and has not heard the other's."""
    OPEN = "open"
    """Both have said HELLO; no request or stream is open."""
    ASKING = "asking"
    """One or more requests have no answer yet."""
    READING = "reading"
    """A request for bytes is being answered: cells have arrived, END has not."""
    STREAMING = "streaming"
    """A block's bytes stream."""
    ENDING = "ending"
    """END is sent and not yet acknowledged."""
    ENDED = "ended"
    """The peer closed the connection while nothing was open."""
    FAILED = "failed"
    """The conversation has failed and cannot be used again."""


class Way(Enum):
    """The direction of a word, as this side sees it."""

    __hash__ = object.__hash__

    SENT = "sent"
    CAME = "came"


class Word(Enum):
    """A frame, by its kind; or the end of the connection."""

    __hash__ = object.__hash__

    HELLO = "HELLO"
    OPEN = "OPEN"
    DATA = "DATA"
    END = "END"
    ACK = "ACK"
    LAST_ACK = "ACK of END"
    REQUEST = "REQUEST"
    REPLY = "REPLY"
    ERROR = "ERROR"
    GONE = "the end of the connection"


WORDS: Sequence[Word] = [Word.GONE, *(Word[kind.name] for kind in sorted(Kind))]
"""By number of the kind of frame; there is no kind 0."""

Step = tuple[Way, Word]

_GREETING: tuple[tuple[ConversationState, Way, Word, ConversationState], ...] = (
    (ConversationState.IDLE, Way.SENT, Word.HELLO, ConversationState.GREETING),
    (ConversationState.GREETING, Way.CAME, Word.HELLO, ConversationState.OPEN),
    (ConversationState.GREETING, Way.CAME, Word.ERROR, ConversationState.FAILED),
    (ConversationState.GREETING, Way.CAME, Word.GONE, ConversationState.FAILED),
    (ConversationState.OPEN, Way.CAME, Word.GONE, ConversationState.ENDED),
    (ConversationState.ASKING, Way.CAME, Word.GONE, ConversationState.FAILED),
    (ConversationState.READING, Way.CAME, Word.GONE, ConversationState.FAILED),
    (ConversationState.STREAMING, Way.CAME, Word.GONE, ConversationState.FAILED),
    (ConversationState.ENDING, Way.CAME, Word.GONE, ConversationState.FAILED),
)
"""The same for both roles: how a conversation begins, and its state once the connection ends."""

_SPOKEN: tuple[tuple[ConversationState, ConversationRole, Word, ConversationState], ...] = (
    (ConversationState.OPEN, ConversationRole.CLIENT, Word.REQUEST, ConversationState.ASKING),
    (ConversationState.OPEN, ConversationRole.CLIENT, Word.OPEN, ConversationState.STREAMING),
    (ConversationState.OPEN, ConversationRole.SERVER, Word.ERROR, ConversationState.FAILED),
    (ConversationState.ASKING, ConversationRole.CLIENT, Word.REQUEST, ConversationState.ASKING),
    (ConversationState.ASKING, ConversationRole.SERVER, Word.REPLY, ConversationState.OPEN),
    (ConversationState.ASKING, ConversationRole.SERVER, Word.DATA, ConversationState.READING),
    (ConversationState.ASKING, ConversationRole.SERVER, Word.END, ConversationState.OPEN),
    (ConversationState.ASKING, ConversationRole.SERVER, Word.ERROR, ConversationState.OPEN),
    (ConversationState.READING, ConversationRole.CLIENT, Word.REQUEST, ConversationState.READING),
    (ConversationState.READING, ConversationRole.SERVER, Word.DATA, ConversationState.READING),
    (ConversationState.READING, ConversationRole.SERVER, Word.END, ConversationState.OPEN),
    (ConversationState.READING, ConversationRole.SERVER, Word.ERROR, ConversationState.OPEN),
    (ConversationState.STREAMING, ConversationRole.CLIENT, Word.DATA, ConversationState.STREAMING),
    (ConversationState.STREAMING, ConversationRole.CLIENT, Word.END, ConversationState.ENDING),
    (ConversationState.STREAMING, ConversationRole.SERVER, Word.ACK, ConversationState.STREAMING),
    (ConversationState.STREAMING, ConversationRole.SERVER, Word.ERROR, ConversationState.FAILED),
    (ConversationState.ENDING, ConversationRole.SERVER, Word.ACK, ConversationState.ENDING),
    (ConversationState.ENDING, ConversationRole.SERVER, Word.LAST_ACK, ConversationState.OPEN),
    (ConversationState.ENDING, ConversationRole.SERVER, Word.ERROR, ConversationState.FAILED),
)
"""Between HELLO and the end, by who speaks."""

_SERVER: tuple[tuple[ConversationState, Way, Word, ConversationState], ...] = (
    (ConversationState.IDLE, Way.SENT, Word.ERROR, ConversationState.FAILED),
    (ConversationState.GREETING, Way.SENT, Word.ERROR, ConversationState.FAILED),
    (ConversationState.FAILED, Way.SENT, Word.ERROR, ConversationState.FAILED),
    # The stream's own state machine takes the stream's frames itself, END included.
    (ConversationState.STREAMING, Way.SENT, Word.LAST_ACK, ConversationState.OPEN),
)
"""What a server may say besides: an ERROR, why it refuses or gives up. It may also leave a stream to the stream's own
machine.
"""

ANSWERS = frozenset({Word.REPLY, Word.END, Word.ERROR})
"""These words, in ASKING or READING, answer the oldest request."""


def table_of(role: ConversationRole) -> Mapping[ConversationState, Mapping[Step, ConversationState]]:
    """Return the steps that one side may take in each state, and the state after each."""
    table: dict[ConversationState, dict[Step, ConversationState]] = {state: {} for state in ConversationState}
    for state, way, word, after in _GREETING + (_SERVER if role is ConversationRole.SERVER else ()):
        table[state][way, word] = after
    for state, speaker, word, after in _SPOKEN:
        table[state][Way.SENT if speaker is role else Way.CAME, word] = after
    return table


TABLE: Mapping[ConversationRole, Mapping[ConversationState, Mapping[Step, ConversationState]]] = {
    role: table_of(role) for role in ConversationRole
}
