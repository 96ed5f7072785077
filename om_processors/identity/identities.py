"""Who has signed: what a node finds out about signatures, and how long it believes it (decision 0071).

Every node has a replica of shard 0, so it asks nobody. A signature is compared first, with a secret that is derived;
then the rows of the user and of the token decide. Rules:

1. A row is looked at again once what is known of it is KNOWN_MS old. So a removed user, or a cancelled token, is
   refused KNOWN_MS after this node's replica of shard 0 has applied the removal.
2. A token that is newer than this node's replica of shard 0 is not refused for good: the client asks again soon.
3. A request's token must have been valid when the request was first sent, by the client's clock. A request expires five
   minutes after that, so an expired token serves five minutes more at the most, and a retry is judged as the first
   sending was.
4. A replica of shard 0 that is flagged is not believed.
5. The id of a client begins with what its user decides. So nobody uses up another's call ids, or has its retry rows
   removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from om_processors.namespace import users
from om_processors.namespace.access import Caller
from replicated_db.core.applying.replica import Replica
from replicated_db.core.ports import Clock
from schemas.access.block_tokens import TOKEN_KEYS_USER
from schemas.access.credentials import (
    AUDITOR,
    CLIENT_PREFIX_BYTES,
    MAX_NUMBER,
    OPERATOR,
    Credentials,
    TokenName,
    client_prefix,
    credentials_of,
    parse_token,
)
from schemas.access.signatures import MAX_CLOCK_SKEW_MS, Seal, presented
from schemas.privilege import ClusterSecret
from schemas.records.identity import ProvenCaller
from schemas.records.messages import Request
from schemas.records.record import record
from schemas.result_codes import OVERLOADED, PERMISSION_DENIED, with_retry_after

KNOWN_MS = 100
"""How long what a row said of a token is believed."""
MAX_KNOWN = 4096
"""Most tokens of which secrets and findings are kept; a node that meets more begins anew."""
RETRY_AFTER_MS = 100
"""When a client asks again whose token this node does not know yet."""

Known = TypeVar("Known")

REMEDY = "'stratolog admin user add' makes a user, and a file with credentials"


@record
class Denied:
    """Why somebody is not believed."""

    status: str
    message: str


@record
class KnownToken:
    """What is known of a token, until it is looked at again at ``again_ms`` of the node's monotonic clock."""

    standing: ProvenCaller
    until_ms: int
    """Until when the token may sign; MAX_NUMBER = until somebody changes a row."""
    again_ms: float


class Identities:
    """Judges signatures for all shards of a node; for any thread.

    ``system`` returns the replica of shard 0, None until it is open.
    """

    def __init__(self, secret: ClusterSecret, system: Callable[[], Replica | None], clock: Clock) -> None:
        self._secret = secret
        self._system = system
        self._clock = clock
        self._credentials: dict[str, Credentials] = {}
        self._findings: dict[str, KnownToken] = {}

    def of_request(self, seal: Seal | None, request: Request) -> ProvenCaller | Denied:
        """Judge a request in a signed record; the seal remembers what was found for the next request in it."""
        if seal is None:
            return Denied(
                status=PERMISSION_DENIED,
                message=f"the request has no signature, and this cluster takes no others: {REMEDY}",
            )
        found: tuple[str, KnownToken] | Denied | None = seal.finding
        if found is None:
            found = seal.finding = self._of_seal(seal)
        if isinstance(found, Denied):
            return found
        user, finding = found
        if request.caller != user:
            message = f"the request names {request.caller[:64]!r} as its caller, and {user} has signed it"
            return Denied(status=PERMISSION_DENIED, message=message)
        if request.client_id[:CLIENT_PREFIX_BYTES] != client_prefix(user):
            message = f"the id of the client is not one of user {user}: a client makes it with its credentials"
            return Denied(status=PERMISSION_DENIED, message=message)
        if request.first_sent_at_ms > finding.until_ms:
            return Denied(status=PERMISSION_DENIED, message=f"token {seal.token} has expired")
        standing: ProvenCaller = finding.standing
        return standing

    def of_call(
        self, authorization: str | None, method: str, host: str, target: str
    ) -> tuple[TokenName, Caller] | Denied:
        """Judge a call of HTTP by its header; ``target`` is the path with its query, as sent."""
        given = presented(authorization)
        if given is None:
            return Denied(
                status=PERMISSION_DENIED, message=f"the call is not signed, and this cluster takes no others: {REMEDY}"
            )
        now_ms = self._clock.wall_ms()
        if abs(now_ms - given.time_ms) > MAX_CLOCK_SKEW_MS:
            message = f"the call was signed {abs(now_ms - given.time_ms) // 1000} s ago or ahead: look at the clocks"
            return Denied(status=PERMISSION_DENIED, message=message)
        if not given.is_of(self._credentials_of(given.name), method, host, target):
            return Denied(status=PERMISSION_DENIED, message=f"the signature is not that of token {given.name.text}")
        found = self.of_token(given.name)
        return found if isinstance(found, Denied) else (given.name, found)

    def of_token(self, name: TokenName) -> Caller | Denied:
        """Judge now a token whose signature was seen before."""
        finding = self._finding(name)
        if isinstance(finding, Denied):
            return finding
        if self._clock.wall_ms() > finding.until_ms:
            return Denied(status=PERMISSION_DENIED, message=f"token {name.text} has expired")
        standing = finding.standing
        return Caller(user=name.user, administrator=standing.administrator, groups=standing.groups)

    def _of_seal(self, seal: Seal) -> tuple[str, KnownToken] | Denied:
        try:
            name = parse_token(seal.token)
        except ValueError as error:
            return Denied(status=PERMISSION_DENIED, message=str(error))
        if name.user == AUDITOR:
            return Denied(status=PERMISSION_DENIED, message="the audit reads, and sends no requests")
        if not seal.is_of(self._credentials_of(name)):
            return Denied(status=PERMISSION_DENIED, message=f"the signature is not that of token {seal.token}")
        finding = self._finding(name)
        return finding if isinstance(finding, Denied) else (name.user, finding)

    def _credentials_of(self, name: TokenName) -> Credentials:
        found = self._credentials.get(name.text)
        if found is None:
            found = credentials_of(self._secret, name)
            _remember(self._credentials, name.text, found)
        return found

    def _finding(self, name: TokenName) -> KnownToken | Denied:
        now_ms = self._clock.elapsed_ms()
        known = self._findings.get(name.text)
        if known is not None and now_ms < known.again_ms:
            return known
        found = self._look_up(name, now_ms)
        if isinstance(found, KnownToken):
            _remember(self._findings, name.text, found)
        return found

    def _look_up(self, name: TokenName, now_ms: float) -> KnownToken | Denied:
        if name.user in (OPERATOR, AUDITOR):
            is_operator = name.user == OPERATOR
            standing = ProvenCaller(administrator=is_operator, groups=[], generation=0, token=name.number)
            if not name.number:
                return KnownToken(standing=standing, until_ms=MAX_NUMBER, again_ms=now_ms + KNOWN_MS)
            return Denied(status=PERMISSION_DENIED, message=f"{name.user} has no delegation tokens")
        replica = self._system()
        if replica is None:
            return _later("this node still opens its replica of shard 0")
        if name.user == TOKEN_KEYS_USER:
            return Denied(
                status=PERMISSION_DENIED, message=f"{TOKEN_KEYS_USER} has the keys of block tokens, and signs nothing"
            )
        with replica.lock:
            index, flagged = replica.position.index, replica.evidence is not None
            user = users.get_user(replica.rows, name.user)
            token = users.get_token(replica.rows, name.user, name.number) if name.number else None
        if flagged:
            return _later("this node's replica of shard 0 is flagged, so it cannot say who you are")
        if name.newest > index:
            return _later(f"token {name.text} is newer than this node's replica of shard 0, which is at {index}")
        if user is None:
            return Denied(status=PERMISSION_DENIED, message=f"there is no user {name.user}")
        if name.generation == user.generation:
            until_ms = MAX_NUMBER
        elif name.generation == user.previous_generation:
            until_ms = user.previous_until_ms
        else:
            return Denied(status=PERMISSION_DENIED, message=f"the secret of token {name.text} was replaced")
        if name.number:
            if token is None or token.generation != name.generation:
                return Denied(status=PERMISSION_DENIED, message=f"there is no delegation token {name.text}")
            until_ms = min(until_ms, token.expiry_time_ms)
        standing = ProvenCaller(
            administrator=user.administrator, groups=user.groups, generation=name.generation, token=name.number
        )
        return KnownToken(standing=standing, until_ms=until_ms, again_ms=now_ms + KNOWN_MS)


def _remember(known: dict[str, Known], text: str, found: Known) -> None:
    if len(known) >= MAX_KNOWN:
        known.clear()
    known[text] = found


def _later(why: str) -> Denied:
    return Denied(status=OVERLOADED, message=with_retry_after(why, RETRY_AFTER_MS))
