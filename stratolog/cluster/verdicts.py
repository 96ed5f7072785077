"""Topics as commands read them: brokers and topics that cannot be read are one clear sentence, and exit status 3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from schemas.kafka.connection import Brokers
from schemas.records.messages import Verdict
from schemas.topics import OM_VERDICTS
from stratolog.errors import Unavailable
from transport.topics.topic_tail import TailStart, TopicTail, TopicUnavailable, records_of
from transport.waiting.deadline import Deadline


@contextmanager
def readable(bootstrap_servers: Brokers, hint: str = "") -> Iterator[None]:
    """Raise Unavailable, which names the brokers and gives the hint, where a topic cannot be read."""
    try:
        yield
    except TopicUnavailable as error:
        raise Unavailable(f"{bootstrap_servers}: {error}{hint}") from error


class VerdictReader:
    """Reads ``om.verdicts`` from its beginning or from a moment; close it, or use it in a ``with`` block.

    Raises Unavailable where the topic cannot be read.
    """

    def __init__(self, bootstrap_servers: Brokers, *, since_ms: int | None = None) -> None:
        self._servers = bootstrap_servers
        with readable(bootstrap_servers):
            self._tail = TopicTail(bootstrap_servers, OM_VERDICTS, TailStart(since_ms=since_ms))

    def poll(self, timeout_s: float) -> list[Verdict]:
        """Return new verdicts; wait ``timeout_s`` for the first."""
        with readable(self._servers):
            return list(records_of(Verdict, self._tail.poll(timeout_s)))

    def until(self, deadline: Deadline) -> Iterator[list[Verdict]]:
        """Yield new verdicts (or an empty list) again and again until the deadline."""
        with readable(self._servers):
            for messages in self._tail.until(deadline):
                yield list(records_of(Verdict, messages))

    def close(self) -> None:
        """Let go of the connection."""
        self._tail.close()

    def __enter__(self) -> Self:
        """Return the reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
