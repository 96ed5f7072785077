"""Contexts that follow files, the layer without a socket, and what goes into a record."""

from __future__ import annotations

import os
import pickle
import random
import ssl
import time
from pathlib import Path

import pytest

from schemas.security import tls
from schemas.security.certificates import AN_OM, Role
from schemas.security.tls import PeerNotAccepted, ProcessTls, TlsFiles, TlsUnusable, must_load, verify_of
from schemas.security.tls_layer import TlsLayer
from schemas.security.tls_socket import RECORD_BYTES, first_record
from tests.support.security.certified import Certified

DAY_S = 86_400
A, B, C = ((1, 1, 1),), ((2, 2, 2),), None


@pytest.mark.parametrize(
    ("loaded", "refused", "seen", "must"),
    [(A, None, A, False), (A, None, B, True), (A, B, B, False), (A, B, A, False), (A, None, C, False)],
)
def test_files_are_read_again_only_if_they_changed_and_are_there(loaded, refused, seen, must):
    assert must_load(loaded, refused, seen) is must


def of(files: TlsFiles) -> Path:
    assert files.certificate is not None
    return files.certificate


class Pair:
    """Both ends of a connection, without a network."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1") -> None:
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(self.into, self.out, server_side=True)
        self.client = TlsLayer(client, host)

    def shake(self) -> None:
        for _ in range(4):
            self.into.write(self.client.take())
            try:
                self.server.do_handshake()
            except ssl.SSLWantReadError:
                pass
            self.client.hear(self.out.read()) if self.out.pending else None

    def to_server(self, data: bytes) -> bytes:
        self.client.say(data)
        self.into.write(self.client.take())
        return self.server.read(len(data)) if data else b""

    def to_client(self, data: bytes, pieces: int = 1) -> bytes:
        self.server.write(data)
        sealed = self.out.read()
        step = max(1, len(sealed) // pieces)
        return b"".join(self.client.hear(sealed[at : at + step]) for at in range(0, len(sealed), step))


def test_what_was_said_early_arrives_and_pieces_are_joined(tmp_path: Path):
    site = Certified(tmp_path / "a")
    pair = Pair(
        site.tls("om1", Role.OM).server(needs_certificate=True), site.tls("me", Role.CLIENT).client(AN_OM)
    )  # fmt: skip
    pair.client.say(b"early")
    assert not pair.client.is_open
    pair.shake()
    assert pair.client.is_open
    assert pair.server.read(100) == b"early"
    assert pair.to_server(b"later") == b"later"
    data = os.urandom(40_000)
    assert pair.to_client(data, pieces=1000) == data
    assert pair.client.hear(b"") == b""


def test_a_server_that_is_another_role_or_says_garbage_is_refused(tmp_path: Path):
    site = Certified(tmp_path / "a")
    pair = Pair(
        site.tls("dn1", Role.DATANODE).server(needs_certificate=True), site.tls("me", Role.CLIENT).client(AN_OM)
    )  # fmt: skip
    with pytest.raises(PeerNotAccepted, match="is that of datanode dn1, not of om"):
        pair.shake()
    chance, context = random.Random(5), site.tls("me", Role.CLIENT).client()
    for _ in range(2000):
        layer = TlsLayer(context, "127.0.0.1")
        try:
            assert layer.hear(chance.randbytes(chance.randrange(1, 600))) == b""
        except ssl.SSLError:
            continue
        assert not layer.is_open


def test_a_renewed_certificate_and_another_authority_are_taken_without_a_restart(tmp_path: Path):
    site, other = Certified(tmp_path / "a"), Certified(tmp_path / "b")
    files = site.files("om1", Role.OM, now_s=int(time.time()) - 25 * DAY_S)
    server = ProcessTls(files).server(needs_certificate=True)
    client = site.tls("me", Role.CLIENT).client(AN_OM)
    Pair(server, client).shake()
    before = of(files).read_bytes()
    site.files("om1", Role.OM)
    assert of(files).read_bytes() != before
    Pair(server, client).shake()
    files.ca.write_bytes(other.authority.ca_file.read_bytes())
    with pytest.raises(ssl.SSLError):
        Pair(server, ProcessTls(TlsFiles(ca=tmp_path / "b/ca.pem")).client()).shake()


def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(tmp_path: Path):
    site = Certified(tmp_path / "a")
    told: list[str] = []
    files = site.files("om1", Role.OM)
    server = ProcessTls(files, told.append).server(needs_certificate=True)
    content = of(files).read_bytes()
    of(files).write_bytes(b"half a certif")
    for _ in range(3):
        Pair(server, site.tls("me", Role.CLIENT).client(AN_OM)).shake()
    assert len(told) == 1
    assert f"certificate {files.certificate} and its key" in told[0]
    of(files).unlink()
    Pair(server, site.tls("me", Role.CLIENT).client(AN_OM)).shake()
    of(files).write_bytes(content)
    Pair(server, site.tls("me", Role.CLIENT).client(AN_OM)).shake()
    assert len(told) == 1


@pytest.mark.parametrize("name", ["ca", "certificate"])
def test_files_that_are_missing_or_no_pem_are_named(tmp_path: Path, name: str):
    site = Certified(tmp_path / "a")
    good = site.files("om1", Role.OM)
    for bad in (tmp_path / "missing.pem", tmp_path / "bad.pem"):
        (tmp_path / "bad.pem").write_text("nothing")
        ca, certificate = (bad, good.certificate) if name == "ca" else (good.ca, bad)
        with pytest.raises(TlsUnusable, match=bad.name):
            ProcessTls(TlsFiles(ca=ca, certificate=certificate))
    with pytest.raises(TlsUnusable, match="needs a certificate of its own"):
        ProcessTls(TlsFiles(ca=good.ca)).server(needs_certificate=True)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(tmp_path: Path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    good = Certified(tmp_path / "a").files("om1", Role.OM)
    sealed = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    (tmp_path / "key.pem").write_bytes(sealed)
    with pytest.raises(TlsUnusable):
        ProcessTls(TlsFiles(ca=good.ca, certificate=good.certificate, key=tmp_path / "key.pem"))


def test_only_tls_1_3_is_spoken(tmp_path: Path):
    site = Certified(tmp_path / "a")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.load_verify_locations(site.authority.ca_file)
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol|version"):
        Pair(site.tls("om1", Role.OM).server(needs_certificate=False), old).shake()


def test_no_session_is_resumed(tmp_path: Path):
    """A client that keeps whatever it was given has nothing by which it could go on as it was known before."""
    site = Certified(tmp_path / "a")
    pair = Pair(site.tls("om1", Role.OM).server(needs_certificate=True), site.tls("me", Role.CLIENT).client(AN_OM))
    pair.shake()
    assert pair.to_client(b"after the handshake tickets would have come") != b""
    session = pair.client._tls.session
    assert session is None or not session.has_ticket


def test_without_tls_of_its_own_a_client_trusts_the_systems_authorities_and_reads_them_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    site, other = Certified(tmp_path / "a"), Certified(tmp_path / "b")
    read: list[ssl.SSLContext] = []

    def system_context() -> ssl.SSLContext:
        read.append(ssl.create_default_context())
        return read[-1]

    monkeypatch.setattr(tls, "_system_context", system_context)
    monkeypatch.setenv("SSL_CERT_FILE", str(site.authority.ca_file))
    client = verify_of(None)
    assert verify_of(None) is client
    assert client.get_ca_certs() == []
    assert read == []
    Pair(site.tls("om1", Role.OM).server(needs_certificate=False), client).shake()
    assert len(read) == 1
    with pytest.raises(ssl.SSLCertVerificationError):
        Pair(other.tls("om1", Role.OM).server(needs_certificate=False), client).shake()
    with pytest.raises(ssl.SSLCertVerificationError):
        Pair(site.tls("om1", Role.OM).server(needs_certificate=False), client, "10.9.8.7").shake()


def test_tls_of_a_process_is_not_pickled(tmp_path: Path):
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Certified(tmp_path / "a").tls("om1", Role.OM))


@pytest.mark.parametrize("seed", range(50))
def test_records_joined_are_the_parts(seed: int):
    chance = random.Random(seed)
    sizes = (0, 1, 40, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 70_000)
    parts: list[bytes | bytearray | memoryview] = [
        os.urandom(chance.choice(sizes)) for _ in range(chance.randrange(1, 5))
    ]
    whole, got = b"".join(parts), b""
    while len(record := first_record(parts)):
        assert len(record) <= RECORD_BYTES
        got += record
        rest = memoryview(whole)[len(got) :]
        parts = [rest[:40], rest[40:]]
    assert got == whole
