"""The key-encryption key: the file that holds it, and what is written under it (decision 0075).

The file is 0600, lies where copies of the data do not go, and is named by the setting ``key_encryption_file``. Whoever
has a copy of the data directory, and not this file, has no secret of the cluster.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.security import sealed
from stratolog.errors import UsageError
from stratolog.security.private_files import make_private, make_private_folder, write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

CLUSTER_SECRET = "cluster-secret"  # noqa: S105 - a purpose
MADE_BYTES = 32
"""Random bytes of a new key, written in base64."""
DEFAULT_NAME = "key-encryption-key"
SETTING = "setting 'key_encryption_file'"


def password_purpose(user: str) -> str:
    """Return for what a user's password is sealed."""
    return f"kafka password of {user}"


def default_file(data_dir: Path) -> Path:
    """Return where ``up --secure`` makes the key: in a folder beside the data directory, so that no copy has both."""
    return data_dir.with_name(f"{data_dir.name}-keys") / DEFAULT_NAME


@dataclass(frozen=True, slots=True)
class KeyEncryption:
    """The file with the key-encryption key. Every method raises UsageError if the file cannot be used."""

    path: Path

    def keys(self) -> tuple[bytes, ...]:
        """Return the key, and the next one if a change of keys has not ended."""
        try:
            return sealed.read_keys(self.path)
        except sealed.KeyFileUnusable as error:
            raise UsageError(f"{SETTING}: {error}; without it the keys and secrets cannot be read") from error

    def newest(self) -> bytes:
        """Return the key under which files are written."""
        return self.keys()[-1]

    def seal(self, purpose: str, content: bytes) -> bytes:
        """Return what a file for a purpose is to hold."""
        return sealed.sealed(self.newest(), purpose, content, os.urandom(sealed.SALT_BYTES))

    def open(self, purpose: str, content: bytes, where: Path) -> bytes:
        """Return what a file says, sealed or not; raises UsageError naming it."""
        try:
            return sealed.unsealed(self.keys(), purpose, content) if sealed.is_sealed(content) else content
        except sealed.CannotOpen as error:
            raise UsageError(f"{where}: {error}, not that of {SETTING}: {self.path}") from error

    def make(self) -> bool:
        """Make the file with a new key, unless it is there; return whether this call made it."""
        if self.path.exists():
            self.keys()
            return False
        try:
            if not self.path.parent.exists():
                make_private_folder(self.path.parent)
                # Nobody commits the key by the way.
                write_private(self.path.parent / ".gitignore", b"*\n")
            return make_private(self.path, _new_key())
        except UsageError as error:
            raise UsageError(f"{SETTING}: {error}") from error

    def begin_change(self) -> None:
        """Make the next key, unless an earlier change has not ended."""
        self.keys()
        make_private(sealed.next_file(self.path), _new_key())

    def end_change(self) -> None:
        """Have the next key, if there is one, take the place of the key: nothing is under the old one any more."""
        following = sealed.next_file(self.path)
        if following.exists():
            write_private(self.path, following.read_bytes())
            following.unlink()


def key_pem(key: EllipticCurvePrivateKey, keys: KeyEncryption | None) -> bytes:
    """Return a private key as PKCS #8, encrypted if there are ``keys``."""
    from cryptography.hazmat.primitives import serialization as form

    how = form.NoEncryption() if keys is None else form.BestAvailableEncryption(keys.newest())
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, how)


def read_key_pem(pem: bytes, keys: KeyEncryption | None) -> PrivateKeyTypes:
    """Return the private key in a PEM file; raises ValueError if it cannot be read, UsageError for the file of keys."""
    if sealed.ENCRYPTED_KEY in pem and keys is None:
        raise sealed.CannotOpen("its key is encrypted, and no 'key_encryption_file' is named")
    return sealed.load_key(pem, () if keys is None else keys.keys())[0]


def _new_key() -> bytes:
    return f"{secrets.token_urlsafe(MADE_BYTES)}\n".encode()
