"""The guard of a process's HTTP server.

It refuses calls of foreign web pages, and calls that change something without a proof of the cluster's secret. A
browser on a machine that reaches a node does what any page says: a form that posts, a script that fetches, a name that
resolves to the node's address (DNS rebinding). Rules, for every path:

1. ``Host`` is an address, localhost, this machine's name or one that the settings give (``http_hosts``). So a page
   cannot use a name of its own.
2. A request made by a page of another origin (``Origin``, ``Sec-Fetch-Site``) is refused.
3. Any method but GET, HEAD and OPTIONS needs the header Authorization of ``schemas.privilege``. Reading is open. So is
   asking for a read index, which changes nothing: followers of older software send no proof. A service may open more
   paths that change nothing of its data (``open_posts``).
4. On a TLS server (``secure``) nobody is anonymous: a request needs a certificate of the cluster's authority, or the
   header Authorization, whatever its method (decision 0073). A certificate of ``ADMINISTRATORS`` is as good as the
   secret; any other may do what rule 3 leaves open.
5. Where users sign their calls (``signed``), a call of another scheme of Authorization passes, whatever its method: it
   is judged behind this guard, which must refuse what changes something to all but administrators.
6. ``for_holders``, on a TLS server: what every holder of a certificate may read. The rest, such as replicas' rows, is
   for members and operators (``READERS``). The audit reads the rows of a digest's bucket, too.
7. A proof is for one server: the signed ``Host`` must be this server's (:meth:`HttpGuard.is_meant`). So whoever has
   received a call cannot send it to another node (decision 0107).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Any

from aiohttp import web

from schemas.privilege import AUTHORIZATION, SCHEME, ClusterSecret
from schemas.result_codes import PERMISSION_DENIED
from schemas.security.certificates import ADMINISTRATORS, READERS, PeerIdentity, Role, WrongPeer, identity_of

ANY_HOST = "*"
CALLER: web.RequestKey[object] = web.RequestKey("stratolog.caller", object)
"""Under this key a request that passed has the PeerIdentity of its caller's certificate, None without one."""
OPEN_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FOREIGN_SITES = frozenset({"cross-site", "same-site"})
"""``Sec-Fetch-Site`` of requests that a page of another origin makes."""
OPEN_PATHS = re.compile(r"/health|/status|/metrics")
"""The state of the process: no name of an object, a user or a group. On a TLS server for those who are known."""
AUDITOR_PATHS = re.compile(r"/v1/shards/[0-9]{1,9}/rows")
"""What the running audit reads, and nothing else: rows of a digest's bucket, by which it names keys."""
MAX_PORT_DIGITS = 5
MAX_SHOWN_CHARACTERS = 100
READ_INDEX = re.compile(r"/v1/shards/[0-9]{1,9}/read-index")


class HttpGuard:
    """Judges requests. Without a ``secret`` it refuses every request that changes something.

    A POST whose target, path and query, matches ``open_posts`` as a whole needs no proof.
    """

    def __init__(
        self, secret: ClusterSecret | None, hosts: Collection[str] = (), open_posts: re.Pattern[str] | None = None,
        *, secure: bool = False, signed: bool = False, for_holders: re.Pattern[str] | None = None,
        address: str | None = None, named: Collection[str] = (),
    ) -> None:  # fmt: skip
        """``secure``: the server speaks TLS. ``signed``: behind this guard another one judges signatures of users.

        ``for_holders`` matches paths (rule 6); None: all. ``address`` is the server's own ``host:port``, and ``named``
        are names that a person gave it (rule 7); without an address proofs are good for whatever ``Host`` they name.
        """
        self._secure = secure
        self._signed = signed
        self._for_holders = for_holders
        self._address = None if address is None else self._host_and_port(address)
        self._named = frozenset(name.lower().strip("[]") for name in (*named, socket.gethostname()))
        self._secret = secret
        self._open_posts = (READ_INDEX,) if open_posts is None else (READ_INDEX, open_posts)
        self._hosts = frozenset(host.lower() for host in (*hosts, socket.gethostname()))

    def refusal(
        self, method: str, target: str, headers: Mapping[str, str], caller: PeerIdentity | None = None,
        local: tuple[str, int] | None = None,
    ) -> str | None:  # fmt: skip
        """Say why a request is refused; None if it is not. ``target`` is the path with its query, as it was sent.

        ``caller`` is who the certificate names that the peer has shown; ``local`` is where the connection ends here.
        """
        host = headers.get("Host", "")
        if not self._is_own(host):
            return (
                f"this server is not known as {host[:MAX_SHOWN_CHARACTERS]!r}: "
                "the setting 'http_hosts' names the names by which it is asked"
            )
        if (origin := headers.get("Origin")) is not None and origin.lower() not in (
            f"http://{host}",
            f"https://{host}",
        ):
            return f"a page of {origin[:MAX_SHOWN_CHARACTERS]!r} may not ask this server"
        if headers.get("Sec-Fetch-Site") in FOREIGN_SITES and headers.get("Sec-Fetch-Mode") != "navigate":
            return "a page of another site may not ask this server"
        if caller is not None and caller.role in ADMINISTRATORS:
            return None
        is_open = not self.changes(method, target)
        if is_open and (not self._secure or (caller is not None and self._may_read(caller, target))):
            return None
        if self._secret is None:
            return "this server has no secret, and so takes no calls that change anything"
        given = headers.get(AUTHORIZATION)
        if self._secret.authorizes(given, method, host, target):
            return None if self.is_meant(host, local) else self.of_another(host)
        if self._signed and given is not None and not given.startswith(f"{SCHEME} "):
            return None
        what = "has no" if given is None else "has a wrong"
        if is_open and caller is not None:
            return (
                f"{target.partition('?')[0][:MAX_SHOWN_CHARACTERS]} is for members and operators, and not for {caller}"
            )
        if is_open:
            return (
                f"this server answers nobody whom it does not know: the caller has shown no certificate, and {what} header "
                f"{AUTHORIZATION}: the settings 'tls_certificate_file' and 'tls_ca_file' name a caller's files"
            )
        return (
            f"{method} is for the cluster's members and operators, and the call {what} header {AUTHORIZATION}: "
            "the sender needs the file that the setting 'cluster_secret_file' names"
        )

    def changes(self, method: str, target: str) -> bool:
        """Say whether a call may change something: it needs a proof (rule 3)."""
        return method not in OPEN_METHODS and not (
            method == "POST" and any(one.fullmatch(target) for one in self._open_posts)
        )

    def is_meant(self, host: str, local: tuple[str, int] | None) -> bool:
        """Say whether a call that was signed for ``host`` is for this server, on whose socket ``local`` it came.

        It is if the port is that of the server, and the name is the server's own, one that a person gave it, or the
        address at which the call came. ``*`` among the names stands for any.
        """
        if self._address is None or ANY_HOST in self._named:
            return True
        (name, port), (own, own_port) = self._host_and_port(host), self._address
        came_at, came_port = ("", own_port) if local is None else (local[0].removeprefix("::ffff:"), local[1])
        if port not in (own_port, came_port):
            return False
        if name == own or name in self._named:
            return True
        if name == "localhost" or name.endswith(".localhost"):
            return _is_loopback(came_at)
        return _is_address(name) and _is_address(came_at) and ip_address(name) == ip_address(came_at)

    def of_another(self, host: str) -> str:
        """Say why a call is refused that was signed for another server."""
        own, port = self._address or ("", 0)
        return (
            f"the call is signed for {host[:MAX_SHOWN_CHARACTERS]!r}, and this server is {own}:{port}: the setting "
            "'http_hosts' names other names of it"
        )

    def _host_and_port(self, host: str) -> tuple[str, int]:
        name, _, port = host.rpartition(":")
        if not (port.isascii() and port.isdecimal() and len(port) <= MAX_PORT_DIGITS):
            name, port = host, "443" if self._secure else "80"
        return name.lower().removesuffix(".").removeprefix("[").removesuffix("]"), int(port)

    def _may_read(self, caller: PeerIdentity, target: str) -> bool:
        path = target.partition("?")[0]
        return (
            self._for_holders is None or is_reader(caller, path) or self._for_holders.fullmatch(path) is not None
        )  # fmt: skip

    def _is_own(self, host: str) -> bool:
        # An empty Host passes: every browser sends one.
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.lower().removesuffix(".")
        if not name or ANY_HOST in self._hosts or name in self._hosts:
            return True
        return name == "localhost" or name.endswith(".localhost") or _is_address(name)

    def middleware(self) -> Any:
        """Return the middleware that aiohttp calls before any handler."""

        @web.middleware
        async def guard(request: web.Request, handler: Any) -> Any:
            headers = request.headers
            if len(headers.getall("Host", [])) > 1 or len(headers.getall("Origin", [])) > 1:
                refusal: str | None = "a request names one host, and one origin"
            else:
                caller = request[CALLER] = _caller(request)
                refusal = self.refusal(request.method, request.raw_path, headers, caller, local_of(request))
            if refusal is not None:
                return web.json_response({"error": PERMISSION_DENIED, "message": refusal}, status=403)
            return await handler(request)

        return guard


def _caller(request: web.Request) -> PeerIdentity | None:
    """Return who the certificate names that a request's peer has shown; None for one that names nobody of ours."""
    certificate = request.get_extra_info("peercert")
    try:
        return identity_of(certificate) if certificate else None
    except WrongPeer:
        return None


def is_reader(caller: PeerIdentity, path: str) -> bool:
    """Say whether a certificate's holder may read what is not for users."""
    return caller.role in READERS or (caller.role is Role.AUDIT and AUDITOR_PATHS.fullmatch(path) is not None)


def local_of(request: web.Request) -> tuple[str, int] | None:
    """Return address and port of this end of a request's connection; None if it has gone."""
    found = request.get_extra_info("sockname")
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
