"""Secrets at rest: a file of a secret is *sealed* under a key-encryption key, which is in a file of its own.

What belongs here: the form of sealed files, and how the file with the key is read (decision 0075). Who writes them is
``stratolog.security``. Private keys of TLS are not sealed but encrypted PKCS #8, which OpenSSL and librdkafka read;
their password is the text of the key-encryption key.

A sealed file is one line::

    stratolog-sealed-1 BASE64

of 32 random bytes, and AES-256-GCM's text and tag. AES's key and nonce are HKDF-SHA256 of the key-encryption key with
those random bytes as the salt, so no nonce is ever used twice under one key. The *purpose* is authenticated with it: a
file that is put in the place of another one does not open.

While the key-encryption key is changed, the next one lies beside it (``NEXT``), and files are under either.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

MARK = b"stratolog-sealed-1 "
SALT_BYTES = 32
MIN_KEY_BYTES, MAX_KEY_BYTES = 32, 1_000
"""OpenSSL takes no password of more than 1,023 bytes."""
NEXT = ".next"
"""What the name of the file with the next key ends with."""
ENCRYPTED_KEY = b"BEGIN ENCRYPTED PRIVATE KEY"
OTHERS = 0o077
"""Bits of a file's mode that let others than its owner at it."""
CREDENTIALS = "credentials"
"""The purpose of a file with credentials, which a process of any package may read."""
_AES_BYTES, _NONCE_BYTES = 32, 12


class KeyFileUnusable(ValueError):
    """The file with the key-encryption key cannot be used; the message names it, and no key."""


class CannotOpen(ValueError):
    """A sealed file is damaged, or was sealed under another key, or for another purpose."""


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return the key-encryption key, and the next one if a change of keys has not ended; raises KeyFileUnusable."""
    found = _read_key(path)
    return (found,) if not next_file(path).exists() else (found, _read_key(next_file(path)))


def next_file(path: Path) -> Path:
    """Return where the next key is while keys are changed."""
    return path.with_name(path.name + NEXT)


def check_key(content: bytes) -> bytes:
    """Return a key from a file's content, without white space at its ends; raises ValueError that does not show it."""
    key = content.strip()
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"a key-encryption key has {MIN_KEY_BYTES} to {MAX_KEY_BYTES} characters, not {len(key)}")
    if not all(0x21 <= byte <= 0x7E for byte in key):
        raise ValueError("a key-encryption key is one word of printable ASCII characters")
    return key


def is_sealed(content: bytes) -> bool:
    """Say whether a file's content is sealed."""
    return content.startswith(MARK)


def sealed(key: bytes, purpose: str, content: bytes, salt: bytes) -> bytes:
    """Return ``content`` sealed for a purpose. ``salt`` are SALT_BYTES random bytes that were used for nothing else.

    >>> unsealed([b"k" * 32], "test", sealed(b"k" * 32, "test", b"secret", bytes(32)))
    b'secret'
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    aes, nonce = _derived(key, salt)
    return MARK + b64encode(salt + AESGCM(aes).encrypt(nonce, content, purpose.encode())) + b"\n"


def unsealed(keys: Sequence[bytes], purpose: str, content: bytes) -> bytes:
    """Return what one of the keys opens; raises CannotOpen."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        found = b64decode(content.removeprefix(MARK).strip(), validate=True)
    except ValueError:
        raise CannotOpen("it is damaged") from None
    salt, text = found[:SALT_BYTES], found[SALT_BYTES:]
    for key in keys:
        aes, nonce = _derived(key, salt)
        try:
            return AESGCM(aes).decrypt(nonce, text, purpose.encode())
        except (InvalidTag, ValueError):
            continue
    raise CannotOpen("it is damaged, or encrypted under another key")


def opened(content: bytes, key_file: Path | None, purpose: str) -> bytes:
    """Return what a file says, sealed or not; raises CannotOpen, KeyFileUnusable."""
    if not is_sealed(content):
        return content
    if key_file is None:
        raise CannotOpen("it is encrypted, and no 'key_encryption_file' is named")
    try:
        return unsealed(read_keys(key_file), purpose, content)
    except CannotOpen as error:
        raise CannotOpen(f"{error}, not that of {key_file}") from None


def plain_key_text(pem: bytes, keys: Sequence[bytes]) -> str:
    """Return the private key in a PEM file as PKCS #8 text in clear; raises CannotOpen."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = load_key(pem, keys)[0].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return bytes(made).decode()


def encrypted_key(pem: bytes, password: bytes) -> bytes:
    """Return the private key in clear of a PEM file as PKCS #8 under a password; raises CannotOpen."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    key = load_key(pem, ())[0]
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password)))


def password_that_opens(pem: bytes, keys: Sequence[bytes]) -> bytes:
    """Return which of the keys opens the private key in a PEM file, the first for one in clear; raises CannotOpen."""
    return load_key(pem, keys)[1] or keys[0]


def load_key(pem: bytes, keys: Sequence[bytes]) -> tuple[PrivateKeyTypes, bytes | None]:
    """Return the private key in a PEM file, and the password that opened it, None for one in clear.

    Raises CannotOpen for a file that no password opens, or that has no key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    is_encrypted = ENCRYPTED_KEY in pem
    for password in keys if is_encrypted else (None,):
        try:
            return load_pem_private_key(pem, password), password
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            why = error
    if is_encrypted:
        raise CannotOpen("its key is damaged, or encrypted under another key" if keys else "its key is encrypted")
    raise CannotOpen(f"it holds no private key: {why}")


def _derived(key: bytes, salt: bytes) -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    found = HKDF(algorithm=SHA256(), length=_AES_BYTES + _NONCE_BYTES, salt=salt, info=MARK).derive(key)
    return found[:_AES_BYTES], found[_AES_BYTES:]


def _read_key(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode & 0o7777
        if not path.is_file():
            raise KeyFileUnusable(f"{path} is no file")
        if mode & OTHERS:
            raise KeyFileUnusable(f"{path} may be read by others (mode {mode:04o}): 'chmod 600 {path}'")
        with path.open("rb") as file:
            return check_key(file.read(4 * MAX_KEY_BYTES))
    except FileNotFoundError:
        raise KeyFileUnusable(f"{path} does not exist") from None
    except OSError as error:
        raise KeyFileUnusable(f"{path} cannot be read: {error.strerror}") from error
    except KeyFileUnusable:
        raise
    except ValueError as error:
        raise KeyFileUnusable(f"{path}: {error}") from error
