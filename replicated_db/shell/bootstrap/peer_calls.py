"""The calls of the installing side to a peer. What a peer sends is bounded in size and time, whoever it is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from xxhash import xxh3_128_hexdigest

from replicated_db.core.bootstrap.listing import (
    DIGEST_HEADER,
    MAX_LISTING_BYTES,
    BadListing,
    Content,
    Listing,
    TransferRequest,
    listing_from,
)
from replicated_db.core.bootstrap.peer_choice import PeerView, ServingPeer, view_from
from replicated_db.shell.bootstrap.transfer_desk import MAX_PIECE_BYTES
from schemas.privilege import ClusterSecret
from schemas.security.certificates import A_MEMBER
from schemas.security.tls import ProcessTls, scheme_of, verify_of

VIEW_TIMEOUT_S = 2.0
"""How long a peer may take to say where it stands."""

LISTING_TIMEOUT_S = 120.0
"""How long a peer may take to take a checkpoint and list it. It keeps the digests, so a second question is quicker."""

PIECE_TIMEOUT_S = 60.0
"""How long a peer may take for one piece of a file, with the wait that its throttle makes."""

MAX_VIEW_BYTES = 64 * 1024
FETCH_ATTEMPTS = 4
"""How often one piece is asked for before the peer counts as failed."""

RETRY_PAUSE_S = 0.5


class PeerError(Exception):
    """A peer does not answer, refuses, or answers what cannot be used."""


class PeerCalls:
    """Calls to peers; for one thread at a time."""

    def __init__(
        self, secret: ClusterSecret | None, *, now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep, tls: ProcessTls | None = None,
    ) -> None:  # fmt: skip
        self._scheme = scheme_of(tls)
        self._secret = secret
        self._now_s = now_s
        self._sleep = sleep
        self._http = httpx.Client(
            trust_env=False, follow_redirects=False,
            headers={"Accept-Encoding": "identity"}, verify=verify_of(tls, A_MEMBER),
        )  # fmt: skip

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def view(self, peer: ServingPeer, shard: int) -> PeerView:
        """Ask a peer where it stands; raises PeerError."""
        body = self._ask("GET", peer, f"/v1/shards/{shard}/checkpoint", MAX_VIEW_BYTES, VIEW_TIMEOUT_S)
        try:
            return view_from(peer, json.loads(body))
        except (ValueError, RecursionError) as error:
            raise PeerError(f"its answer cannot be used: {error}") from error

    def listing(self, peer: ServingPeer, request: TransferRequest) -> Listing:
        """Have a peer take a checkpoint; return its listing. Raises PeerError."""
        path = f"/v1/shards/{request.shard}/checkpoint"
        content = json.dumps(request.to_json()).encode()
        body = self._ask("POST", peer, path, MAX_LISTING_BYTES, LISTING_TIMEOUT_S, content)
        try:
            return listing_from(json.loads(body))
        except (BadListing, ValueError, RecursionError) as error:
            raise PeerError(f"its listing cannot be used: {error}") from error

    def release(self, peer: ServingPeer, transfer: str) -> None:
        """Tell a peer that a transfer is no longer needed; raises PeerError."""
        self._ask("POST", peer, f"/v1/transfers/{transfer}/release", MAX_VIEW_BYTES, VIEW_TIMEOUT_S)

    def touch(self, peer: ServingPeer, transfer: str, content: Content) -> None:
        """Ask for nothing of a transfer, so that it does not end for want of readers; raises PeerError."""
        self._ask("GET", peer, f"/v1/transfers/{transfer}/{content.digest}?offset={content.size}", 0, VIEW_TIMEOUT_S)

    def fetch(
        self, peer: ServingPeer, transfer: str, content: Content, part: Path, on_bytes: Callable[[int], None]
    ) -> None:  # fmt: skip
        """Append to ``part`` until it has the content's size, and make it durable; raises PeerError.

        A part that has bytes already is continued. Whether the bytes are right is for the caller to see.
        """
        with part.open("ab") as file:
            got = file.tell()
            if got > content.size:
                file.truncate(0)
                got = 0
            failures = 0
            while got < content.size:
                try:
                    piece = self._piece(peer, transfer, content, got)
                except PeerError:
                    failures += 1
                    if failures >= FETCH_ATTEMPTS:
                        raise
                    self._sleep(RETRY_PAUSE_S * failures)
                    continue
                failures = 0
                file.write(piece)
                got += len(piece)
                on_bytes(len(piece))
            file.flush()
            os.fsync(file.fileno())

    def _piece(self, peer: ServingPeer, transfer: str, content: Content, offset: int) -> bytes:
        path = f"/v1/transfers/{transfer}/{content.digest}?offset={offset}"
        most = min(MAX_PIECE_BYTES, content.size - offset)
        piece = self._ask("GET", peer, path, most, PIECE_TIMEOUT_S)
        if not piece:
            raise PeerError(f"content {content.digest} ends after {offset} of {content.size} bytes")
        return piece

    def _ask(
        self, method: str, peer: ServingPeer, target: str, most: int, timeout_s: float, content: bytes | None = None
    ) -> bytes:
        """Return the body of a peer's answer.

        Raises PeerError unless it is a 200 of ``most`` bytes at most, in time.
        """
        deadline_s = self._now_s() + timeout_s
        # Reading is signed, too: a peer may serve its rows to members alone.
        auth = None if self._secret is None else self._secret.sign
        # One silence may last as long as the whole answer: a peer prepares, or its throttle waits. The deadline bounds
        # answers that come in drops.
        timeout = httpx.Timeout(timeout_s, connect=VIEW_TIMEOUT_S)
        pieces, size = [], 0
        try:
            with self._http.stream(
                method, f"{self._scheme}://{peer.address}{target}", content=content, auth=auth, timeout=timeout
            ) as answer:
                allowed = most if answer.status_code == 200 else MAX_VIEW_BYTES
                for piece in answer.iter_raw():
                    size += len(piece)
                    if size > allowed:
                        raise PeerError(f"its answer to {method} {target} has more than {allowed} bytes")
                    if self._now_s() > deadline_s:
                        raise PeerError(f"its answer to {method} {target} takes longer than {timeout_s:.0f} s")
                    pieces.append(piece)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise PeerError(f"it does not answer {method} {target}: {type(error).__name__} {error}") from error
        body = b"".join(pieces)
        # Software of before sends no digest.
        if (said := answer.headers.get(DIGEST_HEADER)) is not None and said != xxh3_128_hexdigest(body):
            raise PeerError(f"its answer to {method} {target} came damaged: its digest is not {said[:32]}")
        if answer.status_code != 200:
            raise PeerError(f"{answer.status_code}: {_message(body)}")
        return body


def _message(body: bytes) -> str:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    message = found.get("message") if isinstance(found, Mapping) else None
    return str(message)[:300] if message else "no reason is given"
