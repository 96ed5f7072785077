"""Privileged requests and calls: proofs that the sender knows the cluster's secret (decision 0033).

Operators' commands, and the requests of leaders and of the placement loop, change how a shard is run or what is
forgotten. Only members and operators may send them. Until there are real identities, a member or operator is whoever
knows the cluster's secret. Rules:

1. A request of a type in PRIVILEGED travels in a record of ``om.requests`` of its own, never in an envelope. The
   record's key is the proof: HMAC-SHA256 over the request's bytes, under a key that is derived from the secret for this
   use. The request's bytes do not change through the proof, nor do those of its retries.
2. The leader's gateway checks the proof before anything else depends on the request. A replica that executes a logged
   request does not check it again.
3. A POST to a node or datanode has ``Authorization: Stratolog HEX``: HMAC-SHA256, under another key, over method,
   ``Host`` and the path with its query. So the receiver learns nothing that another one would accept.
4. Proofs hold no time. A request that a stranger sends again is the same request (retry rows, REQUEST_EXPIRED); a
   repeated call asks the same node for the same thing.

Comparisons take constant time. Nothing here reveals the secret: no representation, no error, no pickle.
"""

from __future__ import annotations

import hmac
from typing import Any, NoReturn

from schemas.records.identity import USER_REQUESTS
from schemas.records.messages import FLEET_REQUESTS, LEADER_REQUESTS, SHARD_COMMANDS, RepairQuota

PRIVILEGED: frozenset[type] = frozenset(
    (*SHARD_COMMANDS, *FLEET_REQUESTS, *LEADER_REQUESTS, *USER_REQUESTS, RepairQuota)
)
"""Types of the requests that only members and operators may send."""

AUTHORIZATION = "Authorization"
SCHEME = "Stratolog"

MIN_SECRET_BYTES = 32
MAX_SECRET_BYTES = 4096


class ClusterSecret:
    """The secret of a cluster; raises ValueError unless it has MIN_SECRET_BYTES to MAX_SECRET_BYTES bytes."""

    __slots__ = ("_http", "_links", "_requests", "_tokens", "_users")

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes | bytearray):
            raise TypeError(f"a secret is bytes, not {type(secret).__name__}")
        if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
            raise ValueError(f"a secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, not {len(secret)}")
        self._requests = hmac.digest(secret, b"stratolog om.requests", "sha256")
        self._http = hmac.digest(secret, b"stratolog http", "sha256")
        self._links = hmac.digest(secret, b"stratolog links", "sha256")
        self._users = hmac.digest(secret, b"stratolog users", "sha256")
        self._tokens = hmac.digest(secret, b"stratolog block tokens", "sha256")

    def proof(self, request: bytes) -> bytes:
        """Return the proof for an encoded request."""
        return hmac.digest(self._requests, request, "sha256")

    def proves(self, proof: bytes | None, request: bytes) -> bool:
        """Say whether ``proof`` is the one for an encoded request."""
        return proof is not None and hmac.compare_digest(self.proof(request), proof)

    def authorization(self, method: str, host: str, target: str) -> str:
        """Return the value of the header AUTHORIZATION for a call; ``target`` is the path with its query, as sent."""
        text = f"{method.upper()}\0{host.lower()}\0{target}".encode(errors="surrogateescape")
        return f"{SCHEME} {hmac.digest(self._http, text, 'sha256').hex()}"

    def authorizes(self, authorization: str | None, method: str, host: str, target: str) -> bool:
        """Say whether the value of a header AUTHORIZATION is the one for a call."""
        wanted = self.authorization(method, host, target)
        given = (authorization or "").encode(errors="surrogateescape")
        return hmac.compare_digest(wanted.encode(), given)

    def user_secret(self, token: str) -> bytes:
        """Return the secret of a user's token (``schemas.access.credentials``)."""
        return hmac.digest(self._users, token.encode(), "sha256")

    def block_token_key(self, key_id: int) -> bytes:
        """Return the key of block tokens that has an id, 32 bytes (``schemas.access.block_tokens``)."""
        return hmac.digest(self._tokens, b"%d" % key_id, "sha256")

    def link_key(self, number: str) -> str:
        """Return the key, in hexadecimal, of operators of the dashboard that has drawn ``number`` (decision 0052)."""
        return hmac.digest(self._links, number.encode(), "sha256").hex()

    def sign(self, request: Any) -> Any:
        """Give an httpx request its AUTHORIZATION: an ``auth`` for httpx."""
        target = request.url.raw_path.decode("ascii")
        request.headers[AUTHORIZATION] = self.authorization(request.method, request.headers["host"], target)
        return request

    def __repr__(self) -> str:
        """Return a text without the secret."""
        return "ClusterSecret(…)"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        raise TypeError("a cluster's secret is not pickled")


def is_privileged(body: object) -> bool:
    """Say whether only members and operators may send a request."""
    return type(body) in PRIVILEGED
