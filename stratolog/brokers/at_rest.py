"""The files of a data directory that hold keys and secrets: written anew under the key-encryption key, or in clear.

::

    authority/*.pem, authority/certificates/*.pem   private keys: encrypted PKCS #8
    authority/certificates/*.p12                    those of brokers, for Java
    cluster-secret, kafka-users/*.password          sealed (schemas.security.sealed)
    audit/audit.credentials                         sealed

Each file is replaced whole, and says itself how it is written, so any mixture can be read: a command that was killed is
given again, or ``up`` ends its work. Passwords that were handed out, and users' credentials, are their users' own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from schemas.security import sealed
from stratolog.brokers.identities import AUTHORITY, USERS_FOLDER
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.security.authority import AUTHORITY_FILE, CERTIFICATES, KEY_STORE_SUFFIX
from stratolog.security.key_encryption import (
    CLUSTER_SECRET,
    KeyEncryption,
    default_file,
    password_purpose,
)
from stratolog.security.private_files import read_private, write_private

STACK_SETTINGS = "stack.toml"
"""Where the settings of a stack are (stratolog.local.state)."""
PASSWORD_SUFFIX = ".password"  # noqa: S105 - the end of a name
AUDIT_CREDENTIALS = "audit/audit.credentials"
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretFile:
    """A file with a private key, or, sealed for a ``purpose``, with a secret."""

    path: Path
    purpose: str | None
    content: bytes

    @property
    def is_encrypted(self) -> bool:
        """Whether the file says nothing without the key-encryption key."""
        return sealed.is_sealed(self.content) if self.purpose else sealed.ENCRYPTED_KEY in self.content


def secret_files(settings: Settings) -> Iterator[SecretFile]:
    """Yield all of them that are there; raises UsageError for one that cannot be read, or that others may read."""
    folder = settings.data_dir
    named: list[tuple[Path, str | None]] = [(folder / AUTHORITY / AUTHORITY_FILE, None)]
    named += [(path, None) for path in sorted((folder / AUTHORITY / CERTIFICATES).glob("*.pem"))]
    named += [(settings.secret_file, CLUSTER_SECRET), (folder / AUDIT_CREDENTIALS, sealed.CREDENTIALS)]
    for path in sorted((folder / USERS_FOLDER).glob(f"*{PASSWORD_SUFFIX}")):
        named.append((path, password_purpose(path.name.removesuffix(PASSWORD_SUFFIX))))
    for path, purpose in named:
        content = read_private(path)
        # A secret that a person has put elsewhere in clear is that person's file.
        is_foreign = path == settings.cluster_secret_file and not sealed.is_sealed(content or b"")
        if content is not None and not is_foreign:
            yield SecretFile(path=path, purpose=purpose, content=content)


def ensure_key(settings: Settings, key_file: Path) -> KeyEncryption:
    """Return the key-encryption key, made if nothing is encrypted yet; raises UsageError if it is missing or wrong."""
    keys = KeyEncryption(key_file)
    if not key_file.exists() and not any(one.is_encrypted for one in secret_files(settings)):
        keys.make()
    keys.keys()
    return keys


def key_file_of(settings: Settings, stored: Settings | None) -> Path | None:
    """Return where a stack's key-encryption key is; None: its secrets are in clear.

    A secure stack that has no authority yet gets one. What was made without one stays in clear until it is encrypted,
    for older software reads nothing else.
    """
    found = settings.key_encryption_file or (stored.key_encryption_file if stored else None)
    secure = settings.secure if settings.secure is not None else bool(stored and stored.secure)
    is_new = not (settings.data_dir / AUTHORITY / AUTHORITY_FILE).exists()
    return default_file(settings.data_dir) if found is None and secure and is_new else found


def with_stored_key(settings: Settings) -> Settings:
    """Return the settings with the key-encryption key of the stack in their data directory, unless they name one."""
    path = settings.data_dir / STACK_SETTINGS
    if settings.key_encryption_file is not None or not path.exists():
        return settings
    return replace(settings, key_encryption_file=load_settings(path, environment={}).key_encryption_file)


def encrypt(settings: Settings, keys: KeyEncryption) -> list[Path]:
    """Write all files under the newest key that are not; return those. Ends a change of keys. Raises UsageError."""
    done = []
    for one in secret_files(settings):
        if not _is_under(one, keys.newest()):
            write_private(one.path, _encrypted(one, keys))
            done.append(one.path)
    for store in (settings.data_dir / AUTHORITY / CERTIFICATES).glob(f"*{KEY_STORE_SUFFIX}"):
        if done:
            store.unlink()  # of a broker, which gets another one when it is started
    keys.end_change()
    return done


def decrypt(settings: Settings, keys: KeyEncryption) -> list[Path]:
    """Write all files in clear; return those that were not. Raises UsageError."""
    done = []
    for one in secret_files(settings):
        if one.is_encrypted:
            write_private(one.path, _clear(one, keys))
            done.append(one.path)
    for store in (settings.data_dir / AUTHORITY / CERTIFICATES).glob(f"*{KEY_STORE_SUFFIX}"):
        store.unlink()
    return done


def rotate(settings: Settings, keys: KeyEncryption) -> list[Path]:
    """Replace the key-encryption key, and write all files under the new one; return those. Raises UsageError."""
    for one in secret_files(settings):
        _clear(one, keys)  # a file that cannot be opened is told before anything is changed
    keys.begin_change()
    return encrypt(settings, keys)


def _is_under(one: SecretFile, key: bytes) -> bool:
    try:
        if one.purpose is None:
            return sealed.load_key(one.content, [key])[1] is not None
        return one.is_encrypted and bool(sealed.unsealed([key], one.purpose, one.content))
    except sealed.CannotOpen:
        return False


def _clear(one: SecretFile, keys: KeyEncryption) -> bytes:
    if one.purpose is not None:
        return keys.open(one.purpose, one.content, one.path)
    try:
        return sealed.plain_key_text(one.content, keys.keys()).encode() + _certificates(one)
    except sealed.CannotOpen as error:
        raise UsageError(f"{one.path}: {error}, not that of setting 'key_encryption_file': {keys.path}") from error


def _encrypted(one: SecretFile, keys: KeyEncryption) -> bytes:
    clear = _clear(one, keys)
    if one.purpose is not None:
        return keys.seal(one.purpose, clear)
    return sealed.encrypted_key(clear, keys.newest()) + _certificates(one)


def _certificates(one: SecretFile) -> bytes:
    return b"".join(_CERTIFICATE.findall(one.content))
