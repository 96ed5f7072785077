"""Who reads: the middleware before a node's HTTP API if calls are to be signed (decision 0071).

It says for every path who may call: anybody, every user (then the page judges rights, by :class:`Question`), or members
and administrators. A path that nobody has thought of is for members and administrators.

What changes something (any method but GET, HEAD and OPTIONS, but for POSTs that the first guard leaves to anybody) is
for administrators, whoever may read.

Members and operators prove the cluster's secret as always (``schemas.privilege``), for reading as well; on a TLS server
their certificate will do (decision 0073). A client's certificate says nothing of its user: the signature does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from om_processors.identity.identities import Denied, Identities
from om_processors.namespace.access import Caller
from schemas.access.credentials import AUDITOR, OPERATOR, TokenName
from schemas.door.frames import DOOR_PATH
from schemas.privilege import AUTHORIZATION, ClusterSecret
from schemas.result_codes import OVERLOADED, PERMISSION_DENIED
from schemas.security.certificates import ADMINISTRATORS, PeerIdentity
from transport.web.http_guard import AUDITOR_PATHS, CALLER, OPEN_PATHS, HttpGuard, is_reader, local_of

USER_PATHS = re.compile(
    r"/v1/volumes|/v1/volumes/.*|/v1/snapshot-diffs/.*|/v1/acl|/v1/tokens|/v1/pipelines|/v1/datanodes|/v1/containers/.*"
     "|" + re.escape(DOOR_PATH)
)  # fmt: skip
"""Pages that judge rights themselves, or tell where datanodes are."""
HOLDERS_PATHS = re.compile(f"{OPEN_PATHS.pattern}|{USER_PATHS.pattern}")
"""What every holder of a certificate may read where calls are not signed."""

MEMBER = Caller(user=OPERATOR, administrator=True, groups=())
"""Whoever has the cluster's secret."""

_READER = "stratolog.reader"
_TOKEN = "stratolog.token"  # noqa: S105 - a name


class Question(dict[str, str]):
    """The parameters of a call, and who asks; ``reader`` is None if rights are not judged (``auth = none``)."""

    __slots__ = ("reader",)

    def __init__(self, parameters: Mapping[str, str], reader: Caller | None) -> None:
        super().__init__((name, parameters[name]) for name in parameters)
        self.reader = reader


def question_of(request: Any) -> Question:
    """Return the question that a request of aiohttp asks."""
    return Question(request.query, request.get(_READER))


def reader_in(query: Mapping[str, str]) -> Caller | None:
    """Return who asks; None if rights are not judged."""
    return query.reader if isinstance(query, Question) else None


def token_of(request: Any) -> TokenName | None:
    """Return the token that signed a request; None for a member, or if calls are not signed."""
    found: TokenName | None = request.get(_TOKEN)
    return found


class ReaderGuard:
    """Judges calls of HTTP. It stands behind the guard of the cluster's secret, which has judged what is not signed."""

    def __init__(
        self, secret: ClusterSecret, identities: Identities, first: HttpGuard, *, secure: bool = False
    ) -> None:
        """``first`` is the guard before this one: it says which POSTs change nothing.

        ``secure``: the server speaks TLS, where open pages, too, are for those alone who are known.
        """
        self._first = first
        self._secure = secure
        self._secret = secret
        self._identities = identities

    def judge(
        self, method: str, path: str, target: str, headers: Mapping[str, str], peer: PeerIdentity | None = None,
        local: tuple[str, int] | None = None,
    ) -> tuple[TokenName | None, Caller | None] | Denied:  # fmt: skip
        """Say who calls; None and None: nobody needs to know.

        ``target`` is the path with its query, as sent; ``peer`` is whom the caller's certificate names; ``local`` is
        where the connection ends here.
        """
        is_open = OPEN_PATHS.fullmatch(path) is not None
        if is_open and (peer is not None or not self._secure):
            return None, None
        changes = self._first.changes(method, target)
        if peer is not None and (peer.role in ADMINISTRATORS if changes else is_reader(peer, path)):
            return None, MEMBER
        authorization, host = headers.get(AUTHORIZATION), headers.get("Host", "")
        if not self._first.is_meant(host, local):
            return Denied(status=PERMISSION_DENIED, message=self._first.of_another(host))
        if self._secret.authorizes(authorization, method, host, target):
            return None, MEMBER
        found = self._identities.of_call(authorization, method, host, target)
        if isinstance(found, Denied):
            return found
        if found[0].user == AUDITOR:
            if method == "GET" and AUDITOR_PATHS.fullmatch(path):
                return found
            return Denied(status=PERMISSION_DENIED, message=f"{path[:100]} is not for the audit")
        if changes and not found[1].administrator:
            message = f"{method} {path[:100]} is for members and administrators, and {found[0].user} is none"
            return Denied(status=PERMISSION_DENIED, message=message)
        if not (is_open or USER_PATHS.fullmatch(path) or found[1].administrator):
            return Denied(status=PERMISSION_DENIED, message=f"{path[:100]} is for members and administrators")
        return found

    def middleware(self) -> Any:
        """Return the middleware that aiohttp calls before any handler."""

        @web.middleware
        async def readers(request: web.Request, handler: Any) -> Any:
            peer = request.get(CALLER)
            headers, local = request.headers, local_of(request)
            found = self.judge(request.method, request.path, request.raw_path, headers, peer, local)
            if isinstance(found, Denied):
                status = 503 if found.status == OVERLOADED else 403
                return web.json_response({"error": found.status, "message": found.message}, status=status)
            request[_TOKEN], request[_READER] = found
            return await handler(request)

        return readers
