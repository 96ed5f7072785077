"""The block tokens of one key: asked for when a block needs one, and again before they end (decision 0074).

Nodes give tokens with the locations of a key, by HTTP, to whoever has the right; a client shows a block's token to
datanodes that demand one. Rules:

1. Nothing is asked for until a node has said that it gives tokens (``GET /v1/pipelines``), or a datanode has refused a
   request for want of one.
2. A token is asked for anew when a quarter of its time is left, and when a datanode refuses it, but not more often
   than every MIN_ASK_S. If no node answers, the old one is shown on: the datanode judges it. Who has none then fails,
   and so do others within MIN_ASK_S.
3. Tokens are kept in memory alone, as long as their key is open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from producers.errors import DatanodeError, RequestFailed, RetryableError
from producers.reads.read_views import BlockName, TokenGrant
from schemas.stream_errors import BLOCK_TOKEN_MISSING, TOKEN_REFUSALS
from transport.processes import begins_anew_in_forks

MIN_ASK_S = 0.5
"""Time between two questions for the tokens of one key."""
RENEW_PART = 4
"""A token is asked for anew when this part of its time is left."""

Ask = Callable[[], TokenGrant | None]
"""Asks the nodes; None: they give no tokens. Raises RequestFailed, RetryableError."""


class TokenSource(Protocol):
    """Where the tokens of blocks come from."""

    def of(self, block: BlockName) -> bytes:
        """Return a block's token, empty if none is needed; raises DatanodeError if one is needed and not to be had."""

    def refused(self, block: BlockName, status: str) -> bool:
        """Note that a datanode has refused a request; return whether another token may do."""


class NoTokens:
    """For requests that need no tokens: those of operators and datanodes, and where there are none."""

    def of(self, block: BlockName) -> bytes:  # noqa: ARG002 - as TokenSource
        """Return no token."""
        return b""

    def refused(self, block: BlockName, status: str) -> bool:  # noqa: ARG002 - as TokenSource
        """Return False: there is no other one."""
        return False


NO_TOKENS = NoTokens()


class KeyTokens:
    """The tokens of one key's blocks; for many threads."""

    def __init__(self, ask: Ask, given: Callable[[], bool], *, now_s: Callable[[], float] = time.monotonic) -> None:
        """``given`` says whether nodes give tokens, as far as known; it is asked for each block."""
        self._ask = ask
        self._given = given
        self._now_s = now_s
        self._demanded = False
        self._tokens: dict[BlockName, tuple[bytes, float]] = {}
        """The token of each block, and when another one is asked for."""
        self._asked_s = float("-inf")
        self._trouble = ""
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """In a forked process, make a lock that nobody holds; the tokens stay good."""
        self._lock = threading.Lock()

    def take(self, grant: TokenGrant) -> None:
        """Take the tokens that came with the key's locations."""
        with self._lock:
            self._keep(grant)

    def of(self, block: BlockName) -> bytes:
        """As :meth:`TokenSource.of`; it may ask a node."""
        with self._lock:
            token, renew_s = self._tokens.get(block, (b"", float("-inf")))
            now_s = self._now_s()
            if now_s < renew_s or not (token or self._demanded or self._given()):
                return token
            if now_s - self._asked_s >= MIN_ASK_S or not (block in self._tokens or self._trouble):
                self._renew()
                token, _ = self._tokens.setdefault(block, (b"", float("-inf")))
            if not token and self._trouble:
                raise DatanodeError(
                    BLOCK_TOKEN_MISSING, f"no token for block {block[0]}/{block[1]} is to be had: {self._trouble}"
                )
            return token

    def refused(self, block: BlockName, status: str) -> bool:
        """As :meth:`TokenSource.refused`."""
        if status not in TOKEN_REFUSALS:
            return False
        with self._lock:
            self._demanded = True
            token, _ = self._tokens.get(block, (b"", 0.0))
            self._tokens[block] = token, float("-inf")
        return True

    def _renew(self) -> None:
        self._trouble = ""
        try:
            grant = self._ask()
        except (RequestFailed, RetryableError) as error:
            self._trouble = str(error)
            return
        finally:
            self._asked_s = self._now_s()  # those who have waited behind this answer do not ask at once again
        if grant is not None:
            self._keep(grant)

    def _keep(self, grant: TokenGrant) -> None:
        renew_s = self._now_s() + grant.lasts_ms / 1000 * (RENEW_PART - 1) / RENEW_PART
        self._tokens.update((block, (token, renew_s)) for block, token in grant.tokens.items())
