"""Keys and secrets at rest: encrypted, put under another key, written in clear; killed anywhere, nothing is lost."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12

from schemas.kafka.client_settings import client_settings, java_settings
from schemas.kafka.connection import connection
from schemas.security.certificates import PeerIdentity, Role
from schemas.security.sealed import next_file
from schemas.security.tls import LiveContext, ProcessTls, TlsFiles, TlsUnusable
from stratolog.brokers import at_rest
from stratolog.brokers.identities import authority_of, broker_identities, member_options
from stratolog.brokers.secure_listeners import BrokerIdentity, listener_properties
from stratolog.configuration.cluster_secret import make_secret
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.local.effective_settings import effective_settings
from stratolog.local.state import StackState
from stratolog.security import key_encryption
from stratolog.security.key_encryption import KeyEncryption, default_file
from stratolog.security.private_files import make_private_folder, write_private

PASSWORD = b"a-password-of-alice"
HOLDERS = (PeerIdentity(name="om1", role=Role.OM), PeerIdentity(name="broker-1", role=Role.BROKER))


class Killed(BaseException):
    pass


class Kept:
    """A data directory with every kind of secret, as older software has written it."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(data_dir=folder / "data", secure=True)
        self.keys = KeyEncryption(folder / "elsewhere" / "key")
        authority = authority_of(self.settings.data_dir, "c")
        for holder in HOLDERS:
            authority.certify(holder, now_s=int(time.time()))
        make_secret(self.settings.secret_file)
        self.proof = self.settings.secret().proof(b"x")
        make_private_folder(self.settings.data_dir / "kafka-users")
        write_private(self.settings.data_dir / "kafka-users/alice.password", PASSWORD)
        self.clear = {one.path: one.content for one in at_rest.secret_files(self.settings)}
        self.clear_words = [content.splitlines()[1] for content in self.clear.values() if b"PRIVATE KEY" in content]
        self.clear_words += [PASSWORD, self.settings.secret_file.read_bytes().strip()]

    def named(self) -> Settings:
        return replace(self.settings, key_encryption_file=self.keys.path)

    def check_whole(self) -> None:
        """Everything can be read, whichever files are under which key."""
        assert self.named().secret().proof(b"x") == self.proof
        made = authority_of(self.settings.data_dir, "c", self.keys.path)
        for holder in HOLDERS:
            assert made.certify(holder, now_s=int(time.time())).reason is None
            ProcessTls(
                TlsFiles(ca=made.ca_file, certificate=made.holder_file(holder), key_encryption=self.keys.path)
            ).server(needs_certificate=True)
        password = next(one for one in at_rest.secret_files(self.settings) if one.path.name == "alice.password")
        assert at_rest._clear(password, self.keys) == PASSWORD

    def shown(self) -> list[Path]:
        """Return the files of the data directory that show a secret."""
        files = [path for path in self.settings.data_dir.rglob("*") if path.is_file()]
        return [path for path in files if any(word in path.read_bytes() for word in self.clear_words)]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_an_older_directory_is_encrypted_and_the_way_back_is_whole(kept: Kept):
    assert len(kept.shown()) == 5
    at_rest.encrypt(kept.settings, at_rest.ensure_key(kept.settings, kept.keys.path))
    assert kept.shown() == []
    kept.check_whole()
    assert at_rest.encrypt(kept.settings, kept.keys) == []
    files = [path for path in kept.settings.data_dir.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in [*files, kept.keys.path]} == {0o600}
    at_rest.decrypt(kept.settings, kept.keys)
    assert {one.path: one.content for one in at_rest.secret_files(kept.settings)} == kept.clear


@pytest.mark.parametrize("command", ["encrypt", "rotate", "decrypt"])
def test_a_kill_at_any_write_loses_nothing(kept: Kept, command: str, monkeypatch: pytest.MonkeyPatch):
    keys = kept.keys
    at_rest.ensure_key(kept.settings, keys.path)
    if command != "encrypt":
        at_rest.encrypt(kept.settings, keys)
    run: Callable[..., list[Path]] = getattr(at_rest, command)
    before = [(kept.settings.data_dir, kept.settings.data_dir.with_name("copy-1")),
              (keys.path.parent, keys.path.parent.with_name("copy-2"))]  # fmt: skip
    for there, copy in before:
        shutil.copytree(there, copy)
    writes, ended = 0, False
    while not ended:
        for there, copy in before:
            shutil.rmtree(there)
            shutil.copytree(copy, there)
        left = writes

        def dying(real: Callable[..., object], *given: object) -> object:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real(*given)

        with monkeypatch.context() as patched:
            for module, name in ((at_rest, "write_private"), (key_encryption, "write_private"),
                                 (key_encryption, "make_private")):  # fmt: skip
                real = getattr(module, name)
                patched.setattr(module, name, lambda *given, real=real: dying(real, *given))
            try:
                run(kept.settings, keys)
                ended = True
            except Killed:
                writes += 1
        kept.check_whole()
        run(kept.settings, keys)
        kept.check_whole()
        assert kept.shown() == ([] if command != "decrypt" else kept.shown())
        assert not next_file(keys.path).exists() or command == "decrypt"
    assert writes >= 5


def test_after_a_change_of_keys_the_old_one_opens_nothing(kept: Kept):
    at_rest.encrypt(kept.settings, at_rest.ensure_key(kept.settings, kept.keys.path))
    old = kept.keys.path.read_bytes()
    assert len(at_rest.rotate(kept.settings, kept.keys)) == 5
    assert kept.keys.path.read_bytes() != old
    kept.check_whole()
    write_private(kept.keys.path, old)
    for one in at_rest.secret_files(kept.settings):
        with pytest.raises(UsageError, match=f"{one.path}: .*key_encryption_file': {kept.keys.path}"):
            at_rest._clear(one, kept.keys)


def test_a_key_that_is_missing_or_wrong_is_named_and_nothing_is_changed(kept: Kept):
    at_rest.encrypt(kept.settings, at_rest.ensure_key(kept.settings, kept.keys.path))
    before = {one.path: one.content for one in at_rest.secret_files(kept.settings)}
    key = kept.keys.path.read_bytes()
    kept.keys.path.unlink()

    def all_refused(said: str) -> None:
        for attempt in (
            lambda: at_rest.ensure_key(kept.settings, kept.keys.path),
            lambda: at_rest.rotate(kept.settings, kept.keys), lambda: at_rest.decrypt(kept.settings, kept.keys),
            kept.named().secret, lambda: authority_of(kept.settings.data_dir, "c", kept.keys.path),
        ):  # fmt: skip
            with pytest.raises(UsageError, match=said):
                attempt()

    all_refused(f"{kept.keys.path} does not exist")
    assert not kept.keys.path.exists(), "a key of which nothing is under would be made for nothing"
    write_private(kept.keys.path, b"w" * 43)
    at_rest.ensure_key(kept.settings, kept.keys.path)
    for attempt in (kept.named().secret, lambda: authority_of(kept.settings.data_dir, "c", kept.keys.path),
                    lambda: at_rest.rotate(kept.settings, kept.keys)):  # fmt: skip
        with pytest.raises(UsageError, match="another key, not that of"):
            attempt()
    for attempt in (kept.settings.secret, lambda: authority_of(kept.settings.data_dir, "c")):
        with pytest.raises(UsageError, match="encrypted, and no 'key_encryption_file' is named"):
            attempt()
    assert {one.path: one.content for one in at_rest.secret_files(kept.settings)} == before
    assert not next_file(kept.keys.path).exists()
    write_private(kept.keys.path, key)
    kept.check_whole()


def test_brokers_get_a_store_of_their_own_whose_password_no_setting_shows(kept: Kept):
    at_rest.encrypt(kept.settings, at_rest.ensure_key(kept.settings, kept.keys.path))
    made = authority_of(kept.settings.data_dir, "c", kept.keys.path)
    (own,) = broker_identities(made, 1)
    key, certificate, _ = pkcs12.load_key_and_certificates(own.key_store.read_bytes(), kept.keys.newest())
    assert key is not None
    assert certificate is not None
    properties = listener_properties(own, ("broker-1",), users="h:1", nodes="h:2", controller="h:3", heap_mib=400)
    assert properties["ssl.keystore.type"] == "PKCS12"
    assert properties["ssl.key.password"] == f"${{passwords:{kept.keys.path.parent}:key}}"
    assert kept.keys.newest().decode() not in str(properties)
    odd = BrokerIdentity(name="b", key_store=own.key_store, trust_store=own.trust_store, password_file=Path("/a:b/key"))
    with pytest.raises(UsageError, match="key_encryption_file': Kafka reads no file whose path has ':'"):
        listener_properties(odd, (), users="h:1", nodes="h:2", controller="h:3", heap_mib=400)
    at_rest.rotate(kept.settings, kept.keys)
    assert not own.key_store.exists()
    (again,) = broker_identities(made, 1)
    assert pkcs12.load_key_and_certificates(again.key_store.read_bytes(), kept.keys.newest())[0] is not None


def test_clients_of_kafka_get_the_password_from_the_file_and_java_the_key(kept: Kept):
    at_rest.encrypt(kept.settings, at_rest.ensure_key(kept.settings, kept.keys.path))
    made = authority_of(kept.settings.data_dir, "c", kept.keys.path)
    kafka = connection("h:1", dict(member_options(made, Role.OM, "om1")))
    kafka.check_files()
    assert client_settings(kafka)["ssl.key.password"] == kept.keys.newest().decode()
    java = java_settings(kafka)
    assert java["ssl.keystore.key"].encode() in kept.clear[made.holder_file(HOLDERS[0])]
    assert "ssl.key.password" not in java
    # While keys are changed, a file is under either.
    kept.keys.begin_change()
    assert client_settings(kafka)["ssl.key.password"] == kept.keys.keys()[0].decode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KeyEncryption, "end_change", lambda _: None)
        at_rest.encrypt(kept.settings, kept.keys)
    assert client_settings(kafka)["ssl.key.password"] == kept.keys.keys()[1].decode()
    kept.check_whole()


def test_a_secret_that_a_person_keeps_elsewhere_stays_as_it_is_written(kept: Kept, tmp_path: Path):
    named = replace(kept.named(), cluster_secret_file=tmp_path / "a-secret")
    write_private(named.secret_file, b"0123456789abcdef" * 4)
    keys = at_rest.ensure_key(named, kept.keys.path)
    assert named.secret_file not in at_rest.encrypt(named, keys)
    assert named.secret().proof(b"x")
    # One that was made sealed is kept so, and goes along when the key is changed.
    named.secret_file.unlink()
    assert make_secret(named.secret_file, keys)
    proof = named.secret().proof(b"x")
    assert named.secret_file in at_rest.rotate(named, keys)
    assert named.secret().proof(b"x") == proof


def test_a_users_certificate_is_handed_out_in_clear(kept: Kept, tmp_path: Path):
    """The cluster's copy is encrypted under a key that no user has."""
    at_rest.encrypt(kept.settings, at_rest.ensure_key(kept.settings, kept.keys.path))
    made = authority_of(kept.settings.data_dir, "c", kept.keys.path)
    alice = PeerIdentity(name="alice", role=Role.CLIENT)
    with pytest.raises(UsageError, match=r"client-alice.pem is not there: .*certificate make"):
        made.in_clear(alice)
    made.certify(alice, now_s=int(time.time()))
    own = tmp_path / "alice.pem"
    write_private(own, made.in_clear(alice))
    ProcessTls(TlsFiles(ca=made.ca_file, certificate=own)).client()
    # The encrypted copy is of no use to alice, who would be asked for a password without a file of it.
    with pytest.raises(TlsUnusable, match="key_encryption_file"):
        ProcessTls(TlsFiles(ca=made.ca_file, certificate=made.holder_file(alice))).client()
    write_private(made.holder_file(alice), b"damaged")
    with pytest.raises(UsageError, match="client-alice.pem: it holds no private key"):
        made.in_clear(alice)


def test_a_process_whose_key_was_taken_away_keeps_its_certificate_and_says_so_once(kept: Kept):
    at_rest.encrypt(kept.settings, at_rest.ensure_key(kept.settings, kept.keys.path))
    made = authority_of(kept.settings.data_dir, "c", kept.keys.path)
    notes: list[str] = []
    files = TlsFiles(ca=made.ca_file, certificate=made.holder_file(HOLDERS[0]), key_encryption=kept.keys.path)
    context = ProcessTls(files, notes.append).server(needs_certificate=True)
    assert isinstance(context, LiveContext)
    away = kept.keys.path.with_name("away")
    made.certify(HOLDERS[0], ["renewed.example"], now_s=int(time.time()))
    kept.keys.path.rename(away)
    before = context.current
    assert [context.fresh() is before for _ in range(5)] == [True] * 5
    (note,) = notes
    assert f"'key_encryption_file': {kept.keys.path} does not exist" in note
    assert "stay in use" in note
    away.rename(kept.keys.path)
    assert context.fresh() is not before


def test_a_new_secure_stack_is_encrypted_and_stays_so_when_it_becomes_open(tmp_path: Path):
    data = tmp_path / "stack"
    new, _ = effective_settings(Settings(data_dir=data, secure=True), StackState())
    assert new.key_encryption_file == default_file(data)
    assert not data.joinpath("authority/authority.pem").read_bytes().count(b"BEGIN PRIVATE KEY")
    assert dict(new.kafka)["ssl.key.password.file"] == str(default_file(data))
    assert (default_file(data).parent / ".gitignore").read_text() == "*\n"
    make_secret(new.secret_file, new.keys())
    (data / "stack.toml").write_text(new.to_toml())
    opened, _ = effective_settings(Settings(data_dir=data, secure=False), StackState())
    assert opened.tls_files() is None
    assert opened.secret().proof(b"x") == new.secret().proof(b"x")
    (data / "stack.toml").write_text(opened.to_toml())
    again, _ = effective_settings(Settings(data_dir=data, secure=True), StackState())
    assert again.key_encryption_file == new.key_encryption_file
    assert again.tls() is not None


def test_processes_that_run_are_not_cut_off_from_their_keys(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    """They do not know where another key is, and could read no renewed certificate."""
    (kept.settings.data_dir / "stack.toml").write_text(kept.settings.to_toml())
    with monkeypatch.context() as patched:
        patched.setattr(StackState, "running", lambda _: ("one that runs",))
        with pytest.raises(UsageError, match="know another 'key_encryption_file': 'stratolog down' first"):
            effective_settings(
                Settings(data_dir=kept.settings.data_dir, key_encryption_file=kept.keys.path), StackState()
            )
    assert len(kept.shown()) == 5
    assert not kept.keys.path.exists()


def test_what_older_software_made_stays_in_clear(kept: Kept):
    (kept.settings.data_dir / "stack.toml").write_text(kept.settings.to_toml())
    again, _ = effective_settings(Settings(data_dir=kept.settings.data_dir), StackState())
    assert again.key_encryption_file is None
    assert {one.path: one.content for one in at_rest.secret_files(kept.settings)}.items() >= kept.clear.items()
    # The operator names a key: 'up' encrypts what is there.
    at, _ = effective_settings(
        Settings(data_dir=kept.settings.data_dir, key_encryption_file=kept.keys.path), StackState()
    )
    assert at.key_encryption_file == kept.keys.path
    assert kept.shown() == []
    (kept.settings.data_dir / "stack.toml").write_text(at.to_toml())
    assert at_rest.with_stored_key(load_settings(environment={"STRATOLOG_DATA_DIR": str(kept.settings.data_dir)})
                                   ).key_encryption_file == kept.keys.path  # fmt: skip
