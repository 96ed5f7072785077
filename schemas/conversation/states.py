"""The states of a conversation, and the table of what may be said in each; from the point of view of one side.

Rules
    1. Each side says HELLO first, without waiting for the other's, and listens only when it has said its own.
    2. The client asks and streams, the server answers. Requests may be under way together; they are answered in turn.
    3. An ERROR that answers a request leaves the conversation open. Any other ends it: instead of HELLO, in a stream,
       or unasked (a server that stops).
    4. What the table does not name is out of place: the peer's fault if it came, the caller's if it is to be sent.

A step is the way that a word goes, seen from this side, and the word. ``TABLE`` is written once, by who speaks, and
turned for each role. Two things depend on more than the state: an ACK of END's own sequence number is LAST_ACK, and a
conversation that would be OPEN while requests are under way is ASKING (``conversation``).
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
    """Where a conversation stands."""

    __hash__ = object.__hash__  # of each packet's step: enum's own is written in Python

    IDLE = "idle"
    """Nothing was said."""
    GREETING = "greeting"
    """This side has said HELLO, and has not heard the other's."""
    OPEN = "open"
    """Both have; nothing is under way."""
    ASKING = "asking"
    """A request, or some, have no answer yet."""
    READING = "reading"
    """A request for bytes is being answered: cells have come, and its END has not."""
    STREAMING = "streaming"
    """A block's bytes stream."""
    ENDING = "ending"
    """END is said; its acknowledgement is not."""
    ENDED = "ended"
    """The peer closed the connection while nothing was under way."""
    FAILED = "failed"
    """The conversation is of no further use."""


class Way(Enum):
    """Which way a word goes, seen from this side."""

    __hash__ = object.__hash__

    SENT = "sent"
    CAME = "came"


class Word(Enum):
    """What is said: a frame, by its kind; or nothing any more."""

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
"""The same for both roles: how a conversation begins, and what it is when the connection ends."""

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
"""Between the greeting and the end, by who speaks."""

_SERVER: tuple[tuple[ConversationState, Way, Word, ConversationState], ...] = (
    (ConversationState.IDLE, Way.SENT, Word.ERROR, ConversationState.FAILED),
    (ConversationState.GREETING, Way.SENT, Word.ERROR, ConversationState.FAILED),
    (ConversationState.FAILED, Way.SENT, Word.ERROR, ConversationState.FAILED),
    # The machine of the stream takes its frames itself, END too.
    (ConversationState.STREAMING, Way.SENT, Word.LAST_ACK, ConversationState.OPEN),
)
"""What a server may do besides: say why it refuses or gives up; and leave a stream to a machine of its own."""

ANSWERS = frozenset({Word.REPLY, Word.END, Word.ERROR})
"""With these, in ASKING or READING, the oldest request is answered."""


def table_of(role: ConversationRole) -> Mapping[ConversationState, Mapping[Step, ConversationState]]:
    """Return, by state, the steps that one side's conversation may take, and where each leads."""
    table: dict[ConversationState, dict[Step, ConversationState]] = {state: {} for state in ConversationState}
    for state, way, word, after in _GREETING + (_SERVER if role is ConversationRole.SERVER else ()):
        table[state][way, word] = after
    for state, speaker, word, after in _SPOKEN:
        table[state][Way.SENT if speaker is role else Way.CAME, word] = after
    return table


TABLE: Mapping[ConversationRole, Mapping[ConversationState, Mapping[Step, ConversationState]]] = {
    role: table_of(role) for role in ConversationRole
}
