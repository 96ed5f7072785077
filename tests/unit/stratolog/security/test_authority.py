"""The authority of a cluster: what it makes, keeps, renews and refuses; held against OpenSSL's own view of the files."""

from __future__ import annotations

import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from schemas.security.certificates import ExpectedPeer, PeerIdentity, Role, WrongPeer, identity_of
from stratolog.errors import UsageError
from stratolog.security.authority import Authority, holder_file, open_authority
from stratolog.security.core.renewal import AUTHORITY_DAYS, CERTIFICATE_DAYS, DAY_S

NOW_S = 1_790_000_000
OM1 = PeerIdentity(name="om1", role=Role.OM)


def authority(folder: Path, now_s: int = NOW_S) -> Authority:
    return open_authority(folder, cluster="c", now_s=now_s)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_nobody_but_the_owner_may_read_anything(tmp_path: Path):
    made = authority(tmp_path / "authority")
    made.certify(OM1, now_s=NOW_S)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "authority").rglob("*")}
    assert stat.S_IMODE((tmp_path / "authority").stat().st_mode) == 0o700
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}
    (issued,) = (tmp_path / "authority/issued").iterdir()
    names = sorted(path.name for path in found if path.is_file())
    assert names == sorted(["authority.pem", "ca.pem", "om-om1.pem", issued.name])


def test_a_certificate_says_who_and_where_and_openssl_reads_it(tmp_path: Path):
    made = authority(tmp_path / "a")
    path = made.certify(OM1, ["Node-1.example", "10.0.0.7"], now_s=NOW_S).path
    names = certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "node-1.example"}
    assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "::1", "10.0.0.7"}
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    assert b"BEGIN PRIVATE KEY" in path.read_bytes()  # PKCS8: what Kafka's PEM key stores read
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(made.ca_file)
    assert len(context.get_ca_certs()) == 1


def test_a_right_certificate_stays_until_a_third_of_its_time_is_left(tmp_path: Path):
    made = authority(tmp_path / "a")
    first = made.certify(OM1, now_s=NOW_S)
    content = first.path.read_bytes()
    assert first.reason == "there is none that can be read"
    assert made.certify(OM1, now_s=NOW_S + (CERTIFICATE_DAYS * 2 // 3 - 1) * DAY_S).reason is None
    assert first.path.read_bytes() == content
    later = NOW_S + (CERTIFICATE_DAYS * 2 // 3 + 1) * DAY_S
    assert made.certify(OM1, now_s=later).reason == "less than a third of its time is left"
    assert first.path.read_bytes() != content
    assert certificate(first.path).not_valid_after_utc.timestamp() == later + CERTIFICATE_DAYS * DAY_S


def test_a_certificate_is_made_anew_when_that_is_asked_for(tmp_path: Path):
    made = authority(tmp_path / "a")
    path = made.certify(OM1, ["om.example"], now_s=NOW_S).path
    content = path.read_bytes()
    ((holder, hosts),) = made.holders()
    assert made.certify(holder, hosts, now_s=NOW_S).reason is None
    assert made.certify(holder, hosts, now_s=NOW_S, anew=True).reason == "it was asked for"
    assert path.read_bytes() != content
    assert made.certify(OM1, ["om.example"], now_s=NOW_S).reason is None, "it is for the same hosts"


@pytest.mark.parametrize(
    "damage", [b"", b"\0" * 100, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_damaged_certificate_is_made_anew(tmp_path: Path, damage: bytes):
    made = authority(tmp_path / "a")
    path = made.certify(OM1, now_s=NOW_S).path
    path.write_bytes(damage)
    assert made.certify(OM1, now_s=NOW_S).reason == "there is none that can be read"
    assert made.certify(OM1, now_s=NOW_S).reason is None


def test_other_hosts_another_authority_and_anothers_key_are_reasons(tmp_path: Path):
    one, other = authority(tmp_path / "a"), authority(tmp_path / "b")
    path = one.certify(OM1, now_s=NOW_S).path
    assert one.certify(OM1, ["om.example"], now_s=NOW_S).reason == "it is not for om.example"
    path.write_bytes(other.certify(OM1, ["om.example"], now_s=NOW_S).path.read_bytes())
    assert one.certify(OM1, now_s=NOW_S).reason == "another authority has signed it"
    own = path.read_bytes()
    key = one.certify(PeerIdentity(name="om2", role=Role.OM), now_s=NOW_S).path.read_bytes().partition(b"-----END")[0]
    path.write_bytes(key + b"-----END" + own.partition(b"-----END")[2])
    assert one.certify(OM1, now_s=NOW_S).reason == "the key beside it is another one's"


def test_an_authority_that_is_there_is_opened(tmp_path: Path):
    first = authority(tmp_path / "a")
    issued = first.certify(OM1, now_s=NOW_S)
    again = authority(tmp_path / "a", NOW_S + DAY_S)
    assert again.certify(OM1, now_s=NOW_S + DAY_S).reason is None
    assert again.ca_file.read_bytes() == first.ca_file.read_bytes()
    assert issued.path == holder_file(tmp_path / "a", OM1)


def test_two_that_make_an_authority_at_once_have_the_same(tmp_path: Path):
    made: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: made.append(authority(tmp_path / "a").ca_file.read_bytes())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1


def test_what_others_may_read_and_what_is_damaged_is_refused_by_name(tmp_path: Path):
    folder = tmp_path / "a"
    authority(folder)
    (folder / "authority.pem").chmod(0o640)
    with pytest.raises(UsageError, match=r"authority.pem may be read by others \(mode 0640\)"):
        authority(folder)
    (folder / "authority.pem").chmod(0o600)
    (folder / "authority.pem").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="authority.pem holds no key and certificate"):
        authority(folder)
    folder.chmod(0o755)
    with pytest.raises(UsageError, match="may be entered by others"):
        authority(folder)


def test_no_certificate_outlives_its_authority(tmp_path: Path):
    made = authority(tmp_path / "a")
    end = NOW_S + AUTHORITY_DAYS * DAY_S
    path = made.certify(OM1, now_s=end - DAY_S).path
    assert certificate(path).not_valid_after_utc.timestamp() == end
    assert made.is_due(end - DAY_S)
    with pytest.raises(UsageError, match="has expired"):
        made.certify(OM1, now_s=end)


def test_a_holder_cannot_sign_for_others(tmp_path: Path):
    path = authority(tmp_path / "a").certify(OM1, now_s=NOW_S).path
    found = certificate(path).extensions
    assert found.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert found.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    assert key.public_key() == certificate(path).public_key()


def subject(*pairs: tuple[str, str]) -> dict[str, object]:
    return {"subject": tuple((pair,) for pair in pairs)}


RIGHT = (("organizationName", "stratolog"), ("organizationalUnitName", "datanode"), ("commonName", "dn1"))


def test_a_subject_is_read_back():
    assert identity_of(subject(*RIGHT)) == PeerIdentity(name="dn1", role=Role.DATANODE)


@pytest.mark.parametrize(
    "shown",
    [
        None,
        {},
        subject(),
        subject(*RIGHT[:2]),
        subject(*RIGHT, ("commonName", "dn2")),
        subject(("organizationName", "other"), *RIGHT[1:]),
        subject(RIGHT[0], ("organizationalUnitName", "king"), RIGHT[2]),
        subject(*RIGHT[:2], ("commonName", "dn1,OU=om")),
        subject(*RIGHT[:2], ("commonName", "x" * 65)),
    ],
)
def test_no_other_subject_names_anybody(shown: dict[str, object] | None):
    with pytest.raises(WrongPeer):
        identity_of(shown)


def test_an_expected_peer_has_a_role_and_a_name():
    assert ExpectedPeer(roles=frozenset({Role.DATANODE}), name="dn1").check(subject(*RIGHT)).name == "dn1"
    with pytest.raises(WrongPeer, match="is that of datanode dn1, not of datanode dn2"):
        ExpectedPeer(roles=frozenset({Role.DATANODE}), name="dn2").check(subject(*RIGHT))
    with pytest.raises(WrongPeer, match=r"not of om \(any\)"):
        ExpectedPeer(roles=frozenset({Role.OM})).check(subject(*RIGHT))


@pytest.mark.parametrize("name", ["", "a,b", "a=b", "a/b", "a\nb", "../x", "é" * 33])
def test_a_name_that_could_be_read_otherwise_is_refused(name: str):
    with pytest.raises(ValueError, match="a certified name has"):
        PeerIdentity(name=name, role=Role.CLIENT)


def test_holders_are_those_whose_file_has_their_name(tmp_path: Path):
    made = authority(tmp_path / "a")
    made.certify(OM1, ["om.example"], now_s=NOW_S)
    other = made.certify(PeerIdentity(name="dn1", role=Role.DATANODE), now_s=NOW_S).path
    (tmp_path / "a/certificates/om-om7.pem").write_bytes(other.read_bytes())
    (tmp_path / "a/certificates/om-om8.pem").write_bytes(b"nothing")
    for path in (tmp_path / "a/certificates").iterdir():
        path.chmod(0o600)
    found = dict(made.holders())
    assert set(found) == {OM1, PeerIdentity(name="dn1", role=Role.DATANODE)}
    assert "om.example" in found[OM1]
    assert [made.certify(holder, hosts, now_s=NOW_S).reason for holder, hosts in made.holders()] == [None, None]
