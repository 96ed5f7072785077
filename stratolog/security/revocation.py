"""Which certificates of an authority were given out, and which of them are revoked.

::

    FOLDER/issued/SERIAL   one small file for each certificate that is valid: role, name, end in seconds since the epoch
    FOLDER/revoked.pem     the list of those that are revoked (X.509 CRL), signed by the authority
    FOLDER/ca.pem          the authority's certificate, and that list behind it

Whoever trusts ``ca.pem`` reads both for each new connection (``schemas.security.tls``), so a list needs no setting and
no server of its own. It is as valid as the authority is: a list that ends earlier would stop a cluster whose operator
is away. A certificate that has expired leaves it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from schemas.security.certificates import PeerIdentity, Role
from stratolog.errors import UsageError
from stratolog.security.core.renewal import CERTIFICATE_DAYS, DAY_S
from stratolog.security.private_files import locked_folder, make_private_folder, read_private, write_private

CA_FILE = "ca.pem"
REVOKED_FILE = "revoked.pem"
ISSUED = "issued"
SERIAL_DIGITS = 40
"""Hexadecimal digits of a serial number, which has 20 bytes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOut:
    """A certificate that was given out: its serial number, its holder, and its end in seconds since the epoch."""

    serial: int
    holder: PeerIdentity
    until_s: int


class Revocation:
    """The records of an authority whose key and certificate are these. Methods raise UsageError for files."""

    def __init__(self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._folder = folder
        self._key = key
        self._certificate = certificate

    def note(self, certificate: x509.Certificate, holder: PeerIdentity, now_s: int) -> None:
        """Remember a certificate before anybody has it, and forget those that have expired."""
        make_private_folder(self._folder / ISSUED)
        until_s = int(certificate.not_valid_after_utc.timestamp())
        write_private(self._path(certificate.serial_number), f"{holder.role} {until_s} {holder.name}\n".encode())
        for one in self.given_out():
            if one.until_s < now_s:
                self._path(one.serial).unlink(missing_ok=True)

    def given_out(self) -> list[GivenOut]:
        """Return the certificates that are remembered; what is no record of one is left out."""
        found = []
        for path in sorted((self._folder / ISSUED).glob("[0-9a-f]*")):
            try:
                role, until, name = (read_private(path) or b"").decode().rstrip("\n").split(" ", 2)
                holder = PeerIdentity(name=name, role=Role(role))
                found.append(GivenOut(serial=int(path.name, 16), holder=holder, until_s=int(until)))
            except ValueError:
                continue
        return found

    def revoked(self) -> dict[int, int]:
        """Return the serial numbers on the list, and since when they are, in seconds since the epoch."""
        path = self._folder / REVOKED_FILE
        content = read_private(path)
        if content is None:
            return {}
        try:
            found = x509.load_pem_x509_crl(content)
            if not found.is_signature_valid(self._key.public_key()):
                raise ValueError("another authority has signed it")
        except (ValueError, TypeError) as error:
            raise UsageError(f"{path} holds no list of revoked certificates of this authority: {error}") from error
        return {one.serial_number: int(one.revocation_date_utc.timestamp()) for one in found}

    def revoke(self, serials: Collection[int], now_s: int) -> None:
        """Put certificates on the list. Of two who do it at once, both have done it."""
        with locked_folder(self._folder):
            kept = {one: since for one, since in self.revoked().items() if since + CERTIFICATE_DAYS * DAY_S > now_s}
            listed = {**dict.fromkeys(serials, now_s), **kept}
            write_private(self._folder / REVOKED_FILE, self._list(listed, now_s))
            self._publish()

    def publish(self) -> None:
        """Have ``ca.pem`` say what the list says: a command may have been killed between the two."""
        self.revoked()  # a damaged list is told, and not given out
        if self._trusted() != read_private(self._folder / CA_FILE):
            with locked_folder(self._folder):
                self._publish()

    def _publish(self) -> None:
        write_private(self._folder / CA_FILE, self._trusted())

    def _trusted(self) -> bytes:
        listed = read_private(self._folder / REVOKED_FILE) or b""
        return self._certificate.public_bytes(serialization.Encoding.PEM) + listed

    def _list(self, listed: dict[int, int], now_s: int) -> bytes:
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._certificate.subject)
        # An hour earlier: clocks of other machines may be behind.
        builder = builder.last_update(datetime.fromtimestamp(now_s - 3_600, UTC))
        builder = builder.next_update(self._certificate.not_valid_after_utc)
        for serial, since_s in sorted(listed.items()):
            one = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(one.revocation_date(datetime.fromtimestamp(since_s, UTC)).build())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False).add_extension(x509.CRLNumber(now_s), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _path(self, serial: int) -> Path:
        return self._folder / ISSUED / f"{serial:0{SERIAL_DIGITS}x}"
