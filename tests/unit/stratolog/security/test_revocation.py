"""Revoked certificates: who is on the list, who is heard, what a kill, damage and two commands at once leave."""

from __future__ import annotations

import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509

from schemas.security.certificates import AN_OM, PeerIdentity, Role
from schemas.security.tls import ProcessTls, TlsFiles, TlsUnusable
from schemas.security.tls_layer import TlsLayer
from stratolog.errors import UsageError
from stratolog.security import revocation
from stratolog.security.authority import Authority, open_authority
from stratolog.security.core.renewal import CERTIFICATE_DAYS, DAY_S

OM1, ALICE = PeerIdentity(name="om1", role=Role.OM), PeerIdentity(name="alice", role=Role.CLIENT)


def opened(folder: Path) -> Authority:
    return open_authority(folder, cluster="c", now_s=int(time.time()))


def tls_of(made: Authority, holder: PeerIdentity, *, now_s: int | None = None) -> ProcessTls:
    path = made.certify(holder, now_s=int(time.time()) if now_s is None else now_s).path
    return ProcessTls(TlsFiles(ca=made.ca_file, certificate=path))


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Agree on TLS in memory; raises SSLError of whoever refuses the other."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    own = server.wrap_bio(incoming, outgoing, server_side=True)
    layer = TlsLayer(client, "127.0.0.1")
    layer.say(b"hello")
    for _ in range(6):
        incoming.write(layer.take())
        try:
            if own.read(100) == b"hello":
                return
        except ssl.SSLWantReadError:
            pass
        layer.hear(outgoing.read())
    pytest.fail("neither agreed nor refused")


def test_who_is_revoked_is_heard_by_nobody_from_the_next_connection_on(tmp_path: Path):
    made = opened(tmp_path / "a")
    server, client = tls_of(made, OM1).server(needs_certificate=True), tls_of(made, ALICE).client(AN_OM)
    shake(server, client)
    made.revocation.revoke(made.certificates_of(ALICE, int(time.time())), int(time.time()))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        shake(server, client)
    # A client of another name is heard as before, and refuses a server that is revoked.
    bob = tls_of(made, PeerIdentity(name="bob", role=Role.CLIENT)).client(AN_OM)
    shake(server, bob)
    made.revocation.revoke(made.certificates_of(OM1, int(time.time())), int(time.time()))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        shake(server, bob)
    # The way out: new certificates of the same names. No context was made anew.
    assert made.certify(OM1, now_s=int(time.time())).reason == "it is revoked"
    assert made.certify(ALICE, now_s=int(time.time())).reason == "it is revoked"
    shake(server, client)
    assert made.certify(ALICE, now_s=int(time.time())).reason is None


def test_all_certificates_of_a_holder_that_are_valid_are_revoked(tmp_path: Path):
    """One that was renewed is good for ten days more, and may be the one that was stolen."""
    made, now_s = opened(tmp_path / "a"), int(time.time())
    server = tls_of(made, OM1).server(needs_certificate=True)
    tls_of(made, ALICE, now_s=now_s - 25 * DAY_S)
    stolen = tmp_path / "stolen.pem"
    stolen.write_bytes(made.holder_file(ALICE).read_bytes())
    thief = ProcessTls(TlsFiles(ca=made.ca_file, certificate=stolen)).client(AN_OM)
    tls_of(made, ALICE)
    shake(server, thief)
    assert len(made.certificates_of(ALICE, now_s)) == 2
    made.revocation.revoke(made.certificates_of(ALICE, now_s), now_s)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        shake(server, thief)
    tls_of(made, ALICE)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        shake(server, thief)


def test_a_kill_between_the_list_and_the_file_that_is_trusted_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made, now_s = opened(tmp_path / "a"), int(time.time())
    tls_of(made, ALICE)
    before = made.ca_file.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(revocation.Revocation, "_publish", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.revocation.revoke(made.certificates_of(ALICE, now_s), now_s)
    assert made.ca_file.read_bytes() == before
    again = opened(tmp_path / "a")
    assert b"BEGIN X509 CRL" in again.ca_file.read_bytes()
    assert list(again.revocation.revoked()) == again.certificates_of(ALICE, now_s)


def test_many_who_revoke_at_once_have_all_done_it(tmp_path: Path):
    opened(tmp_path / "a")
    threads = [
        threading.Thread(target=lambda n=n: opened(tmp_path / "a").revocation.revoke([n], int(time.time())))
        for n in range(1, 13)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(opened(tmp_path / "a").revocation.revoked()) == set(range(1, 13))


def test_what_has_expired_leaves_the_list_and_the_records(tmp_path: Path):
    made, now_s = opened(tmp_path / "a"), int(time.time())
    made.certify(ALICE, now_s=now_s)
    made.revocation.revoke(made.certificates_of(ALICE, now_s), now_s)
    later_s = now_s + (CERTIFICATE_DAYS + 1) * DAY_S
    made.certify(OM1, now_s=later_s)
    assert [one.holder for one in made.revocation.given_out()] == [OM1]
    made.revocation.revoke([7], later_s)
    assert made.revocation.revoked() == {7: later_s}


def test_a_damaged_or_foreign_list_is_refused_by_name(tmp_path: Path):
    made, other = opened(tmp_path / "a"), opened(tmp_path / "b")
    other.revocation.revoke([7], int(time.time()))
    path = tmp_path / "a" / "revoked.pem"
    for content in (b"nothing", b"", (tmp_path / "b/revoked.pem").read_bytes()):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(UsageError, match=f"{path} holds no list of revoked certificates of this authority"):
            opened(tmp_path / "a")
    path.unlink()
    assert opened(tmp_path / "a").ca_file == made.ca_file
    # In the file of the authorities, nobody is heard by a list that cannot be read.
    made.ca_file.write_bytes(made.ca_file.read_bytes() + b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
    with pytest.raises((TlsUnusable, ssl.SSLError)):
        shake(tls_of(made, OM1).server(needs_certificate=True), tls_of(made, ALICE).client(AN_OM))


def test_the_list_is_one_that_others_read(tmp_path: Path):
    made, now_s = opened(tmp_path / "a"), int(time.time())
    made.revocation.revoke([7, 1 << 158], now_s)
    content = made.ca_file.read_bytes()
    found, ca = x509.load_pem_x509_crl(content), x509.load_pem_x509_certificate(content)
    assert found.issuer == ca.subject
    assert {one.serial_number for one in found} == {7, 1 << 158}
    assert found.next_update_utc == ca.not_valid_after_utc
    assert ssl.create_default_context(cafile=str(made.ca_file)).cert_store_stats()["crl"] == 1
