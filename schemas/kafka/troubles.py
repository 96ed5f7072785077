"""What keeps a client from its brokers, in words. librdkafka tells it by a callback, and its calls only time out.

Credentials that were refused, and certificates that were, do not become right by waiting:
:attr:`ConnectionTroubles.is_refused` lets a caller give up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from schemas.kafka.connection import PROTOCOL, Brokers, connection

AUTHENTICATION = -169
TLS = -181
TRANSPORT = -195
RESOLVE = -193
"""librdkafka's codes for refused credentials, for TLS that failed, for a broken connection, for an unknown name."""
MAX_WORDS = 400


class ClientError(Protocol):
    """librdkafka's error."""

    def code(self) -> int:
        """Return the number of its kind."""

    def str(self) -> str:
        """Return it in words."""


class ConnectionTroubles:
    """Remembers a client's newest trouble; ``error_cb`` of its settings. ``then`` is called with each error, too."""

    def __init__(self, brokers: Brokers, then: Callable[[ClientError], None] | None = None) -> None:
        self._connection = connection(brokers)
        self._then = then
        self._worst: ClientError | None = None

    def __call__(self, error: ClientError) -> None:
        """Take an error of the connection."""
        self.note(error)
        if self._then is not None:
            self._then(error)

    def note(self, error: ClientError) -> None:
        """Take the error of a call: where nobody speaks our protocol, librdkafka may tell nothing else."""
        if error.code() in (AUTHENTICATION, TLS, TRANSPORT, RESOLVE) and (_is_refusal(error) or not self.is_refused):
            self._worst = error

    @property
    def is_refused(self) -> bool:
        """Whether a broker has refused this client, or this client the broker's certificate."""
        return self._worst is not None and _is_refusal(self._worst)

    def clear(self) -> None:
        """Forget: the client has an answer, or other credentials."""
        self._worst = None

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return self._worst is not None

    def __str__(self) -> str:
        """Say what is wrong, and which setting to look at; empty if nothing was told."""
        if self._worst is None:
            return ""
        words = self._worst.str()[:MAX_WORDS]
        hint = _hint(self._worst.code(), words.lower(), self._connection.protocol, self._connection.has_tls)
        return f"{words}{hint}"


def _is_refusal(error: ClientError) -> bool:
    """Whether an error is certain to come again: a broker that is being stopped breaks a handshake, too."""
    return error.code() == AUTHENTICATION or (error.code() == TLS and "verif" in error.str().lower())


def _hint(code: int, words: str, protocol: str, has_tls: bool) -> str:
    if code == AUTHENTICATION:
        return "; look at kafka.sasl.username and kafka.sasl.password.file"
    if code == TLS and "certificate" in words and "verif" in words:
        return "; look at kafka.ssl.ca.location: the broker's certificate is from another CA, or names another host"
    if code == TLS:
        return f"; look at kafka.ssl.* and kafka.{PROTOCOL}, which is {protocol}"
    if code == TRANSPORT and ("disconnected" in words or "metadata" in words):
        wants = "perhaps the brokers do not speak TLS there" if has_tls else "perhaps the brokers want TLS and a login"
        return f"; kafka.{PROTOCOL} is {protocol}: {wants}"
    return ""
