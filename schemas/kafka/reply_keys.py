"""Where a client reads its responses, as the key of its record of ``om.requests`` says. Pure.

A client whose user has a topic of responses of its own puts its name before what the key is otherwise (a proof of
``schemas.privilege``, a trace; within a signature, its rest)::

    MARK | length of the topic, 1 byte | topic, ASCII | the other key

The key, and no header: asking confluent-kafka for a record's headers may end the process, for a stranger may give one a
name that is no UTF-8 (decision 0033).
"""

from __future__ import annotations

from schemas.topics import is_responses_topic

MARK = b"\xa2reply-to\x00"
"""No ASCII first, so that no ``traceparent`` begins with it; and so long that no proof does."""


def reply_key(topic: str, other: bytes | None = None) -> bytes:
    """Return the key of a record whose responses go to ``topic``; ``other`` is the key without that."""
    name = topic.encode("ascii")
    return MARK + bytes((len(name),)) + name + (other or b"")


def reply_in(key: bytes | None) -> tuple[str | None, bytes | None]:
    """Return the topic of responses that a key names, and the key without it.

    A name that no such topic may have counts as none: nobody makes a leader write anywhere else.

    >>> reply_in(reply_key("om.responses.alice", b"proof"))
    ('om.responses.alice', b'proof')
    >>> reply_in(b"proof")
    (None, b'proof')
    """
    if key is None or not key.startswith(MARK) or len(key) <= len(MARK):
        return None, key
    end = len(MARK) + 1 + key[len(MARK)]
    topic, other = key[len(MARK) + 1 : end].decode("latin-1"), key[end:] or None
    return (topic if is_responses_topic(topic) else None), other
