"""TLS contexts made of files, which follow the files: a renewed certificate needs no restart.

What belongs here: which TLS is spoken (1.3 alone, no session tickets), who must show a certificate, and when files are
read again. Sockets, loops and clocks are those of others: nothing here waits or connects.

1. A context is asked for each new connection, and looks whether a file has changed (``must_load``, the decision). If
   so, it is made anew; connections that are open stay as they are.
2. What cannot be read changes nothing: the context that was right stays, and ``note`` is told once.
3. A peer's certificate is checked when the handshake ends: the authority, the time, for a client the host, and who the
   holder is (``ExpectedPeer``). Its peer is told nothing more than that it is not wanted.
4. The file of the authorities may have a list of revoked certificates (CRL): whoever is on it is not heard.
5. Sessions are not resumed: a resumed one would outlive the certificate by which it was begun.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from schemas.security.certificates import ExpectedPeer, WrongPeer
from schemas.security.sealed import ENCRYPTED_KEY, CannotOpen, KeyFileUnusable, password_that_opens, read_keys

CRL = b"-----BEGIN X509 CRL-----"
"""How a list of revoked certificates begins, in the file of the authorities."""
Stamp = tuple[tuple[int, int, int], ...]
"""Of each file: inode, time of change in nanoseconds, size."""


class TlsUnusable(ValueError):
    """TLS cannot be spoken with these files; the message names the file."""


class PeerNotAccepted(ssl.SSLCertVerificationError):
    """The peer's certificate is valid, and not that of the peer that was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where the certificates of a process are: PEM files."""

    ca: Path
    """Certificates of the authorities that are trusted."""
    certificate: Path | None = None
    """The own certificate, and those between it and the authority; None: this process shows none."""
    key: Path | None = None
    """The certificate's key; None: it is in the same file."""
    key_encryption: Path | None = None
    """The file with the key-encryption key, if the certificate's key is encrypted (``schemas.security.sealed``)."""

    @property
    def all(self) -> tuple[Path, ...]:
        """Return every file that must be there."""
        return tuple(path for path in (self.ca, self.certificate, self.key) if path is not None)


def must_load(loaded: Stamp, refused: Stamp | None, seen: Stamp | None) -> bool:
    """Say whether files are to be read again: they are there, have changed, and were not refused as they are now.

    >>> must_load(((1, 5, 9),), None, ((1, 5, 9),)), must_load(((1, 5, 9),), None, ((2, 6, 9),))
    (False, True)
    """
    return seen is not None and seen not in (loaded, refused)


def stamp_of(files: TlsFiles) -> Stamp | None:
    """Return what tells one state of the files from another; None if one is not there."""
    try:
        stamps = tuple(_stamp(path) for path in files.all)
    except OSError:
        return None
    try:
        return stamps if files.key_encryption is None else (*stamps, _stamp(files.key_encryption))
    except OSError:
        # An operator may take the key away from a running process. A renewed certificate then says so.
        return (*stamps, (0, 0, 0))


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


class ProcessTls:
    """How one process speaks TLS. Raises TlsUnusable if its files cannot be used. For any thread."""

    def __init__(self, files: TlsFiles, note: Callable[[str], None] = lambda _: None) -> None:
        self.files = files
        self._note = note
        _new_context(files, ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)

    def client(self, expected: ExpectedPeer | None = None, *, framed: bool = False) -> ssl.SSLContext:
        """Return a context for connections that this process makes, to ``expected`` (None: whoever has the host).

        ``framed``: what is said is told whole by its own frames, so a connection that is cut reads as its end.
        """
        return _live(self.files, ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED, expected, self._note, framed=framed)

    def server(self, *, needs_certificate: bool, framed: bool = False) -> ssl.SSLContext:
        """Return a context for connections that this process takes; without the need a certificate may be shown.

        Raises TlsUnusable without a certificate of its own. ``framed``: as for ``client``.
        """
        if self.files.certificate is None:
            raise TlsUnusable("a server needs a certificate of its own")
        verify = ssl.CERT_REQUIRED if needs_certificate else ssl.CERT_OPTIONAL
        return _live(self.files, ssl.PROTOCOL_TLS_SERVER, verify, None, self._note, framed=framed)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: it is this process's."""
        raise TypeError("a process's TLS is not pickled")


class LiveContext(ssl.SSLContext):
    """A context that has another one, made of the files as they are, wrap each new connection."""

    make: Callable[[], ssl.SSLContext]
    stamp: Callable[[], Stamp | None]
    note: Callable[[str], None]
    current: ssl.SSLContext
    loaded: Stamp
    refused: Stamp | None
    may_greet: Callable[[], bool]
    """Asked before a handshake of a connection in an event loop; no ends the connection without a word."""

    def fresh(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        seen = self.stamp()
        if seen is not None and must_load(self.loaded, self.refused, seen):
            try:
                self.current, self.loaded, self.refused = self.make(), seen, None
            except TlsUnusable as error:
                self.refused = seen
                self.note(f"{error}; the certificates that were read before stay in use")
        return self.current

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        """As ``ssl.SSLContext.wrap_socket``, with the files as they are now."""
        return self.fresh().wrap_socket(*arguments, **named)

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """As ``ssl.SSLContext.wrap_bio``, with the files as they are now. Raises SSLError if it may not greet."""
        if not self.may_greet():
            raise ssl.SSLError("too many peers have not agreed on TLS")
        return self.fresh().wrap_bio(*arguments, **named)


def _live(
    files: TlsFiles, protocol: int, verify: ssl.VerifyMode, expected: ExpectedPeer | None, note: Callable[[str], None],
    *, framed: bool,
) -> LiveContext:  # fmt: skip
    live = LiveContext(protocol)
    live.verify_mode = ssl.CERT_REQUIRED if protocol == ssl.PROTOCOL_TLS_CLIENT else verify
    live.make = lambda: _new_context(files, protocol, verify, expected, framed=framed)
    live.stamp = lambda: stamp_of(files)
    live.note = note
    live.may_greet = lambda: True
    # The stamp is taken first: files that change while they are read are read once more.
    live.loaded, live.refused = stamp_of(files) or (), None
    live.current = live.make()
    return live


def _new_context(
    files: TlsFiles, protocol: int, verify: ssl.VerifyMode, expected: ExpectedPeer | None = None,
    *, framed: bool = False,
) -> ssl.SSLContext:  # fmt: skip
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = verify
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if framed:
        # Without it OpenSSL takes an end for an attack, and says nothing more on the connection, not even why it ends.
        context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    _load(f"authorities' certificates {files.ca}", lambda: context.load_verify_locations(files.ca))
    if has_list(files.ca):
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if files.certificate is not None:
        certificate, key = files.certificate, files.key
        what = f"certificate {certificate} and its key"
        # Without a password OpenSSL would ask for one on the terminal.
        password = _password(what, key or certificate, files.key_encryption)
        _load(what, lambda: context.load_cert_chain(certificate, key, lambda: password))
    if expected is not None:
        # mypy knows the classes that ssl has, not that others may take their place.
        context.sslsocket_class, context.sslobject_class = _judging_classes(expected)
    return context


def has_list(ca: Path) -> bool:
    """Say whether a file of authorities has a list of revoked certificates: then nobody on it is heard.

    If the file names several authorities, each must have its list. Raises TlsUnusable.
    """
    try:
        return CRL in ca.read_bytes()
    except OSError as error:
        raise TlsUnusable(f"authorities' certificates {ca}: {error.strerror}") from error


def _load(what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TlsUnusable(f"{what}: {why}") from error


def _password(what: str, key: Path, key_encryption: Path | None) -> bytes:
    """Return the password of a private key, empty for one in clear; raises TlsUnusable."""
    try:
        pem = key.read_bytes()
        if ENCRYPTED_KEY not in pem:
            return b""
        if key_encryption is None:
            raise TlsUnusable(f"{what}: the key is encrypted, and no 'key_encryption_file' is named")
        return password_that_opens(pem, read_keys(key_encryption))
    except OSError as error:
        raise TlsUnusable(f"{what}: {error.strerror}") from error
    except CannotOpen as error:
        raise TlsUnusable(f"{what}: {error}, not that of {key_encryption}") from error
    except KeyFileUnusable as error:
        raise TlsUnusable(f"{what}: 'key_encryption_file': {error}") from error


def _judging_classes(expected: ExpectedPeer) -> tuple[type[ssl.SSLSocket], type[ssl.SSLObject]]:
    """Return what sockets are made of that refuse a peer who is not expected as soon as the handshake has ended."""

    def judge(certificate: Any) -> None:
        try:
            expected.check(certificate)
        except WrongPeer as error:
            raise PeerNotAccepted(str(error)) from error

    class JudgingSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            judge(self.getpeercert())

    class JudgingObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            judge(self.getpeercert())

    return JudgingSocket, JudgingObject


def scheme_of(tls: ProcessTls | None) -> str:
    """Return the scheme of the URLs of a cluster's processes."""
    return "http" if tls is None else "https"


def verify_of(tls: ProcessTls | None, expected: ExpectedPeer | None = None) -> ssl.SSLContext:
    """Return what an HTTP client is to verify servers with: without TLS of its own, by the system's authorities."""
    return _unread_context() if tls is None else tls.client(expected)


class _UnreadContext(ssl.SSLContext):
    """Has the context of the system's authorities wrap each connection; they are read at the first one.

    A client without TLS of its own speaks plain HTTP, and most never meet an address of another kind: to read more
    than a hundred certificates takes longer than all else about such a client.
    """

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        """As ``ssl.SSLContext.wrap_socket``."""
        return _system_context().wrap_socket(*arguments, **named)

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """As ``ssl.SSLContext.wrap_bio``."""
        return _system_context().wrap_bio(*arguments, **named)


@cache
def _unread_context() -> ssl.SSLContext:
    return _UnreadContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _system_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def certificate_of(sock: Any) -> dict[str, Any] | None:
    """Return the verified certificate that a connection's peer has shown; None if it has shown none."""
    with suppress(ValueError):  # the handshake has not ended
        found: dict[str, Any] | None = sock.getpeercert()
        return found or None
    return None
