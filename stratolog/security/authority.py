"""The certificate authority of a cluster: a folder with its key, and the certificates that it has given out.

::

    authority/                    0700
        authority.pem             0600: the authority's key (PKCS8) and certificate
        ca.pem                    0600: the authority's certificate alone, which everybody trusts
        certificates/ROLE-NAME.pem    0600: a holder's key (PKCS8), then its certificate

Rules:

1. A holder's key and certificate are one file. It is replaced by a rename, so no reader ever pairs an old key with a
   new certificate. OpenSSL, librdkafka and Kafka's PEM key stores all read it (``ssl.keystore.type=PEM``; the trust
   store is ``ca.pem``).
2. ``certify`` is idempotent: a certificate that is right and has a third of its time left stays as it is, byte for
   byte. A renewed one has a new key.
3. Keys are of the curve P-256. A certificate of a server is one of a client, too: nodes call each other.
4. The authority signs holders alone (path length 0), never other authorities.
5. Of two processes that make an authority at once, one makes it and both have it.

The time comes from the caller. Keys and serial numbers come from the operating system, through ``cryptography``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from schemas.security.certificates import ORGANIZATION, PeerIdentity, Role
from schemas.security.sealed import ENCRYPTED_KEY, CannotOpen
from stratolog.errors import UsageError
from stratolog.security.core.renewal import AUTHORITY_DAYS, CERTIFICATE_DAYS, Held, is_due, reason_to_renew, validity
from stratolog.security.key_encryption import KeyEncryption, key_pem, read_key_pem
from stratolog.security.private_files import make_private, make_private_folder, read_private, write_private
from stratolog.security.revocation import CA_FILE, Revocation

AUTHORITY_FILE = "authority.pem"
CERTIFICATES = "certificates"
KEY_STORE_SUFFIX = ".p12"
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
"""Hosts of every certificate: a process is always reached from its own machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A holder's file, and why it was made anew just now (None: it was not)."""

    path: Path
    reason: str | None


class Authority:
    """An authority that is open: its key is in memory. Made by :func:`open_authority`."""

    def __init__(
        self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate,
        keys: KeyEncryption | None = None,
    ) -> None:  # fmt: skip
        """``keys``: under what the private keys that it makes are encrypted."""
        self._folder = folder
        self.keys = keys
        self._key = key
        self._certificate = certificate
        self.revocation = Revocation(folder, key, certificate)

    @property
    def ca_file(self) -> Path:
        """The file with the certificate that everybody trusts."""
        return self._folder / CA_FILE

    def holder_file(self, holder: PeerIdentity) -> Path:
        """Return where a holder's key and certificate are."""
        return holder_file(self._folder, holder)

    def certify(self, holder: PeerIdentity, hosts: Iterable[str] = (), *, now_s: int, anew: bool = False) -> Issued:
        """Give a holder a certificate for its hosts, unless it has one that need not be renewed. ``anew``: always.

        Raises UsageError if the folder cannot be written, or the authority's own certificate has expired.
        """
        names = tuple(dict.fromkeys((*LOCAL_HOSTS, *map(str.lower, hosts))))
        path = self.holder_file(holder)
        subject = subject_of(holder)
        reason = reason_to_renew(
            self._held(path), subject=subject.rfc4514_string(), hosts=names, now_s=now_s
        ) or ("it was asked for" if anew else None)  # fmt: skip
        if reason is not None:
            self._refuse_if_expired(now_s)
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = self._sign(subject, key.public_key(), names, now_s)
            self.revocation.note(certificate, holder, now_s)
            write_private(path, key_pem(key, self.keys) + certificate.public_bytes(serialization.Encoding.PEM))
        return Issued(path=path, reason=reason)

    def in_clear(self, holder: PeerIdentity) -> bytes:
        """Return a holder's key, in clear, and its certificate as PEM: what a program elsewhere can read.

        Raises UsageError if the holder has none, or the key cannot be decrypted.
        """
        path = self.holder_file(holder)
        content = read_private(path)
        if content is None:
            raise UsageError(f"{path} is not there: 'stratolog admin certificate make' makes one for {holder}")
        try:
            key, certificate = _parse(content, self.keys)
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError(f"{path} has a key of another kind")
        return key_pem(key, None) + certificate.public_bytes(serialization.Encoding.PEM)

    def key_store(self, holder: PeerIdentity) -> Path:
        """Write a holder's key and certificate as PKCS #12, whose password is the key-encryption key; return the file.

        For Java, which does not read keys that OpenSSL encrypts. Raises UsageError.
        """
        if self.keys is None:
            raise UsageError("a key store has a password, and there is no key-encryption key")
        key, certificate = _parse(read_private(self.holder_file(holder)) or b"", self.keys)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError(f"{self.holder_file(holder)} has a key of another kind")
        how = serialization.BestAvailableEncryption(self.keys.newest())
        made = pkcs12.serialize_key_and_certificates(holder.name.encode(), key, certificate, [self._certificate], how)
        path = self.holder_file(holder).with_suffix(KEY_STORE_SUFFIX)
        write_private(path, made)
        return path

    def certificates_of(self, holder: PeerIdentity, now_s: int) -> list[int]:
        """Return the serial numbers of all certificates of a holder that are valid: renewed ones have not ended."""
        given = self.revocation.given_out()
        found = {one.serial for one in given if one.holder == holder and one.until_s > now_s}
        content = read_private(self.holder_file(holder))
        with suppress(ValueError):  # the holder has no file
            found.add(x509.load_pem_x509_certificate(content or b"").serial_number)
        return sorted(found)

    def holders(self) -> list[tuple[PeerIdentity, frozenset[str]]]:
        """Return who has a certificate of this authority, and for which hosts; files that are none are left out."""
        found = []
        for path in sorted((self._folder / CERTIFICATES).glob("*.pem")):
            try:
                certificate = x509.load_pem_x509_certificate(read_private(path) or b"")
                names = {one.oid: str(one.value) for one in certificate.subject}
                role, name = Role(names[NameOID.ORGANIZATIONAL_UNIT_NAME]), names[NameOID.COMMON_NAME]
                holder = PeerIdentity(name=name, role=role)
            except (ValueError, KeyError):
                continue
            if path == self.holder_file(holder):
                found.append((holder, _hosts_of(certificate)))
        return found

    def is_due(self, now_s: int) -> bool:
        """Say whether the authority's own certificate has less than a third of its time left."""
        return is_due(*_validity_of(self._certificate), now_s)

    def _refuse_if_expired(self, now_s: int) -> None:
        if now_s >= _validity_of(self._certificate)[1]:
            raise UsageError(f"the authority in {self._folder} has expired: stop the cluster, remove it, start again")

    def _sign(
        self, subject: x509.Name, key: CertificatePublicKeyTypes, hosts: Iterable[str], now_s: int
    ) -> x509.Certificate:  # fmt: skip
        begin, end = validity(now_s, CERTIFICATE_DAYS)
        end = min(end, _validity_of(self._certificate)[1])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(subject, self._certificate.subject, key, begin, end)
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage(usages), False),
            (x509.SubjectAlternativeName([_host(name) for name in hosts]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ]
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, critical=is_critical)
        return builder.sign(self._key, hashes.SHA256())

    def _held(self, path: Path) -> Held | None:
        content = read_private(path)
        if content is None:
            return None
        try:
            key, certificate = _parse(content, self.keys)
        except ValueError:
            return None
        begin, end = _validity_of(certificate)
        return Held(
            valid_from_s=begin, valid_until_s=end, subject=certificate.subject.rfc4514_string(),
            hosts=_hosts_of(certificate), is_issued_here=self._has_signed(certificate),
            has_its_key=key.public_key() == certificate.public_key(),
            is_revoked=certificate.serial_number in self.revocation.revoked(),
        )  # fmt: skip

    def _has_signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def open_authority(folder: Path, *, cluster: str, now_s: int, keys: KeyEncryption | None = None) -> Authority:
    """Open the authority in a folder; make it if there is none, its keys encrypted if there are ``keys`` for that.

    Raises UsageError if what is there cannot be read, is damaged, or may be read by others.
    """
    make_private_folder(folder)
    make_private_folder(folder / CERTIFICATES)
    path = folder / AUTHORITY_FILE
    content = read_private(path)
    if content is None:
        make_private(path, _new_authority(cluster, now_s, keys))
        content = read_private(path) or b""
    try:
        key, certificate = _parse(content, keys)
    except CannotOpen as error:
        if ENCRYPTED_KEY not in content:
            raise UsageError(f"{path} holds no key and certificate of an authority: {error}") from error
        under = "" if keys is None else f", not that of setting 'key_encryption_file': {keys.path}"
        raise UsageError(f"{path}: {error}{under}") from error
    except ValueError as error:
        raise UsageError(f"{path} holds no key and certificate of an authority: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise UsageError(f"{path} holds no key and certificate of an authority: they are no pair")
    made = Authority(folder, key, certificate, keys)
    made.revocation.publish()
    return made


def holder_file(folder: Path, holder: PeerIdentity) -> Path:
    """Return where, below an authority's folder, a holder's key and certificate are."""
    return folder / CERTIFICATES / f"{holder.role}-{holder.name}.pem"


def subject_of(holder: PeerIdentity) -> x509.Name:
    """Return the subject of a holder's certificate, as ``schemas.security.certificates`` reads it."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, holder.role),
            x509.NameAttribute(NameOID.COMMON_NAME, holder.name),
        ]
    )


def _new_authority(cluster: str, now_s: int, keys: KeyEncryption | None) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION)
    name = x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {cluster}"[:64])])
    certificate = (
        _builder(name, name, key.public_key(), *validity(now_s, AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key_pem(key, keys) + certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, begin_s: int, end_s: int
) -> x509.CertificateBuilder:  # fmt: skip
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(datetime.fromtimestamp(begin_s, UTC))
    builder = builder.not_valid_after(datetime.fromtimestamp(end_s, UTC))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _parse(content: bytes, keys: KeyEncryption | None) -> tuple[PrivateKeyTypes, x509.Certificate]:
    """Return key and first certificate of a file; raises ValueError if either is missing, damaged or not opened."""
    return read_key_pem(content, keys), x509.load_pem_x509_certificate(content)


def _validity_of(certificate: x509.Certificate) -> tuple[int, int]:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return int(begin.timestamp()), int(end.timestamp())


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _hosts_of(certificate: x509.Certificate) -> frozenset[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return frozenset((*addresses, *names.get_values_for_type(x509.DNSName)))
