"""Sealed files: what opens them, what does not, and that no error shows a key or a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from schemas.security.sealed import (
    MARK,
    CannotOpen,
    KeyFileUnusable,
    encrypted_key,
    is_sealed,
    next_file,
    opened,
    password_that_opens,
    plain_key_text,
    read_keys,
    sealed,
    unsealed,
)

KEY, OTHER = b"k" * 43, b"o" * 43
SECRET = b"the secret of the cluster"


def key_file(path: Path, text: bytes = KEY, mode: int = 0o600) -> Path:
    path.write_bytes(text)
    path.chmod(mode)
    return path


@given(content=st.binary(max_size=5000), salt=st.binary(min_size=32, max_size=32), purpose=st.text(max_size=30))
def test_what_is_sealed_opens_with_its_key_alone(content: bytes, salt: bytes, purpose: str):
    made = sealed(KEY, purpose, content, salt)
    assert is_sealed(made)
    assert made.isascii()
    assert unsealed([OTHER, KEY], purpose, made) == content
    for keys, what in (([OTHER], purpose), ([KEY], purpose + "!"), ([], purpose)):
        with pytest.raises(CannotOpen):
            unsealed(keys, what, made)


@given(st.binary(max_size=200))
def test_any_bytes_open_nothing(noise: bytes):
    with pytest.raises(CannotOpen):
        unsealed([KEY], "a", MARK + noise)


def test_every_changed_byte_is_noticed():
    made = sealed(KEY, "a", SECRET, os.urandom(32))
    for at in range(len(MARK), len(made) - 1):
        changed = made[:at] + bytes((made[at] ^ 1,)) + made[at + 1 :]
        with pytest.raises(CannotOpen):
            unsealed([KEY], "a", changed)


def test_a_file_in_clear_is_read_as_it_is(tmp_path: Path):
    assert opened(SECRET, None, "a") == opened(SECRET, tmp_path / "none", "a") == SECRET
    with pytest.raises(CannotOpen, match="no 'key_encryption_file' is named"):
        opened(sealed(KEY, "a", SECRET, bytes(32)), None, "a")
    with pytest.raises(CannotOpen, match="encrypted under another key, not that of") as caught:
        opened(sealed(KEY, "a", SECRET, bytes(32)), key_file(tmp_path / "key", OTHER), "a")
    assert OTHER.decode() not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (KEY, 0o640, r"may be read by others \(mode 0640\): 'chmod 600"),
        (b"", 0o600, "has 32 to 1000 characters, not 0"),
        (b"short", 0o600, "has 32 to 1000 characters, not 5"),
        (b"x" * 1001, 0o600, "has 32 to 1000 characters"),
        (b"two words".ljust(40, b"x"), 0o600, "is one word"),
        (b"\0" * 40, 0o600, "is one word"),
        ("schlüssel".encode() * 5, 0o600, "is one word"),
    ],
)
def test_a_file_that_is_no_key_is_refused_by_name(tmp_path: Path, text: bytes, mode: int, said: str):
    with pytest.raises(KeyFileUnusable, match=said) as caught:
        read_keys(key_file(tmp_path / "key", text, mode))
    assert str(tmp_path / "key") in str(caught.value)


def test_a_key_that_is_not_there_is_named(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, said in (("none", "does not exist"), (".", "is no file|may be read"), ("pipe", "is no file")):
        with pytest.raises(KeyFileUnusable, match=said):
            read_keys(tmp_path / name)


def test_while_keys_are_changed_both_open(tmp_path: Path):
    path = key_file(tmp_path / "key", KEY + b"\n")
    assert read_keys(path) == (KEY,)
    key_file(next_file(path), OTHER)
    assert read_keys(path) == (KEY, OTHER)


def test_a_private_key_is_encrypted_and_read_back():
    key = ec.generate_private_key(ec.SECP256R1())
    clear = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    made = encrypted_key(clear, KEY)
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in made
    assert plain_key_text(made, [OTHER, KEY]).encode() == clear
    assert password_that_opens(made, [OTHER, KEY]) == KEY
    assert password_that_opens(clear, [OTHER, KEY]) == OTHER
    for keys in ([], [OTHER]):
        with pytest.raises(CannotOpen, match="encrypted"):
            plain_key_text(made, keys)
    with pytest.raises(CannotOpen, match="no private key"):
        plain_key_text(b"nothing", [KEY])
