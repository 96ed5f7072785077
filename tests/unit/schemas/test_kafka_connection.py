"""A connection to the brokers: what is accepted, what is refused with which words, and that no secret is shown."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kafka import connection as kafka
from schemas.kafka.client_settings import client_settings, java_settings, properties_text, spark_options
from schemas.kafka.connection import BadKafkaSetting, Brokers, connection
from schemas.kafka.troubles import AUTHENTICATION, TLS, TRANSPORT, ConnectionTroubles

ROOT = Path(__file__).parents[3]
SECRET = 'Kestrel-4711 \\ "quoted"'


def password_file(folder: Path, text: str = SECRET, mode: int = 0o600) -> Path:
    path = folder / "alice.password"
    path.write_text(text)
    path.chmod(mode)
    return path


def scram(folder: Path, **more: str) -> dict[str, object]:
    return {
        "security.protocol": "SASL_SSL", "ssl.ca.location": str(folder / "ca.pem"), "sasl.username": "alice",
        "sasl.password.file": str(password_file(folder)), **more,
    }  # fmt: skip


def test_plain_addresses_are_open_brokers():
    assert client_settings("h:1") == {"bootstrap.servers": "h:1"}
    assert java_settings("h:1") == {"bootstrap.servers": "h:1"}
    assert spark_options("h:1") == {"kafka.bootstrap.servers": "h:1"}
    assert str(connection("h:1,h:2")) == "h:1,h:2"


def test_own_settings_come_last_and_the_given_ones_pass_through(tmp_path):
    made = connection("h:1", scram(tmp_path, **{"client.rack": "r1", "connections.max.idle.ms": "5000"}))
    settings = client_settings(made, {"acks": "all", "client.rack": "mine"})
    assert settings["acks"] == "all"
    assert settings["client.rack"] == "mine"
    assert settings["connections.max.idle.ms"] == "5000"
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.mechanism"] == "SCRAM-SHA-512"
    assert settings["sasl.password"] == SECRET
    assert not [name for name in settings if name.endswith(".file")]


def test_java_and_spark_get_the_same_connection(tmp_path):
    made = connection("h:1", scram(tmp_path))
    settings = java_settings(made)
    assert settings["sasl.mechanism"] == "SCRAM-SHA-512"
    assert settings["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" password="Kestrel-4711 \\\\ \\"quoted\\"";'
    )
    assert settings["ssl.truststore.type"] == "PEM"
    assert settings["ssl.truststore.location"] == str(tmp_path / "ca.pem")
    assert settings["ssl.endpoint.identification.algorithm"] == "https"
    assert spark_options(made) == {f"kafka.{name}": value for name, value in settings.items()}
    plain = {**scram(tmp_path), "sasl.mechanism": "plain"}
    assert "plain.PlainLoginModule" in java_settings(connection("h:1", plain))["sasl.jaas.config"]


def test_a_client_proves_itself_by_a_certificate(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_text("CERTIFICATE")
    key.write_text("KEY")
    key.chmod(0o600)
    given = {"security.protocol": "ssl", "ssl.certificate.location": certificate, "ssl.key.location": str(key)}
    made = connection("h:1", given)
    made.check_files()
    assert client_settings(made)["ssl.key.location"] == str(key)
    assert java_settings(made)["ssl.keystore.key"] == "KEY"
    assert java_settings(made)["ssl.keystore.certificate.chain"] == "CERTIFICATE"
    both = connection("h:1", {**given, "ssl.certificate.location": str(key)})
    assert java_settings(both)["ssl.keystore.location"] == str(key)
    assert "ssl.keystore.key" not in java_settings(both)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"security.protocol": "TLS"}, "kafka.security.protocol must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, "SASL_SSL needs kafka.sasl.username"),
        ({"security.protocol": "SASL_SSL", "sasl.username": "a"}, "needs kafka.sasl.password.file"),
        ({"sasl.username": "a"}, "kafka.sasl.username needs kafka.security.protocol"),
        ({"ssl.ca.location": "/ca"}, "kafka.ssl.ca.location needs kafka.security.protocol = SSL or SASL_SSL"),
        ({"security.protocol": "SSL", "ssl.key.location": "/k"}, "belong together"),
        ({"security.protocol": "SSL", "ssl.key.password.file": "/k"}, "kafka.ssl.key.password.file needs"),
        ({"acks": "0"}, "kafka.acks is no setting that can be given"),
        ({"kafka.isolation.level": "read_committed"}, "kafka.isolation.level is no setting"),
        ({"bootstrap.servers": "h:1"}, "kafka.bootstrap.servers is no setting"),
        ({"sasl.mechanism": "GSSAPI"}, "kafka.sasl.mechanism must be SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN"),
        ({"client.rack": ""}, "kafka.client.rack must be a text, not empty"),
        ({"client.rack": ["r"]}, "kafka.client.rack must be a text"),
        ({"client.rack": "a\nb"}, "kafka.client.rack must be printable"),
        ({"client.rack": "a" * 4097}, "at most 4096 characters"),
        ({"connections.max.idle.ms": "0"}, "kafka.connections.max.idle.ms must be milliseconds"),
        ({3: "x"}, "kafka.3 is no setting"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_by_name(given, words):
    with pytest.raises(BadKafkaSetting) as caught:
        connection("h:1", given)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password"])
def test_a_secret_is_refused_where_it_would_be_seen_and_not_repeated(name):
    with pytest.raises(BadKafkaSetting, match=rf"kafka.{name} is taken from a file: give kafka.{name}.file") as caught:
        connection("h:1", {name: SECRET})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (SECRET, 0o640, "others than its owner may read"), (SECRET, 0o604, "chmod 600"),
        ("", 0o600, "one line of printable"), ("\n", 0o600, "one line"), ("a\nb", 0o600, "one line"),
        ("x" * 4097, 0o600, "more than 4096 bytes"),
    ],
)  # fmt: skip
def test_a_password_file_that_cannot_be_used_is_named(tmp_path, content, mode, words):
    made = connection("h:1", scram(tmp_path))
    path = password_file(tmp_path, content, mode)
    with pytest.raises(BadKafkaSetting) as caught:
        client_settings(made)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert not content.strip() or content.strip() not in str(caught.value)


def test_a_missing_or_binary_password_file_is_named(tmp_path):
    made = connection("h:1", scram(tmp_path))
    path = tmp_path / "alice.password"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadKafkaSetting, match="is no UTF-8 text") as caught:
        made.password()
    assert caught.value.__cause__ is None
    path.unlink()
    with pytest.raises(BadKafkaSetting, match="No such file"):
        made.password()
    path.mkdir()
    with pytest.raises(BadKafkaSetting, match="is no file"):
        made.check_files()


def test_a_password_is_read_each_time_and_a_line_end_is_none_of_it(tmp_path):
    made = connection("h:1", scram(tmp_path))
    assert made.password() == SECRET
    password_file(tmp_path, "another\r\n")
    assert client_settings(made)["sasl.password"] == "another"


def test_no_secret_is_in_a_connection(tmp_path):
    made = connection("h:1", scram(tmp_path))
    assert SECRET not in repr(made) + str(made)
    assert SECRET.encode() not in pickle.dumps(made)
    assert pickle.loads(pickle.dumps(made)) == made


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_a_properties_file_says_in_latin_1_what_was_meant(text):
    line = properties_text({"a": text})
    assert line.isascii()
    assert line.count("\n") == 1
    value = line.removeprefix("a=").removesuffix("\n")
    value = value.removeprefix("\\") if value.startswith("\\ ") else value  # Java's own escape, for a first space
    read = value.encode().decode("unicode_escape").encode("utf-16", "surrogatepass").decode("utf-16")
    assert read == text


class Told:
    """An error of librdkafka's."""

    def __init__(self, code: int, words: str) -> None:
        self._code, self._words = code, words

    def code(self) -> int:
        return self._code

    def str(self) -> str:
        return self._words


def test_troubles_say_which_setting_to_look_at():
    secure = connection("h:1", {"security.protocol": "SSL"})
    cases: list[tuple[Brokers, Told, str]] = [
        ("h:1", Told(TRANSPORT, "h:1: Disconnected while requesting ApiVersion"), "perhaps the brokers want TLS"),
        (secure, Told(TRANSPORT, "Disconnected"), "perhaps the brokers do not speak TLS"),
        (secure, Told(TLS, "broker certificate could not be verified"), "kafka.ssl.ca.location"),
        (secure, Told(AUTHENTICATION, "invalid credentials"), "kafka.sasl.password.file"),
        (secure, Told(TLS, "wrong version number"), "kafka.security.protocol, which is SSL"),
    ]
    for brokers, error, words in cases:
        troubles = ConnectionTroubles(brokers)
        assert not troubles
        assert str(troubles) == ""
        troubles(error)
        assert words in str(troubles)


def test_a_refusal_is_not_forgotten_for_a_broken_connection():
    seen: list[object] = []
    troubles = ConnectionTroubles("h:1", seen.append)
    troubles(Told(TRANSPORT, "Disconnected"))
    assert not troubles.is_refused
    refusal = Told(AUTHENTICATION, "invalid credentials")
    for error in (refusal, Told(TRANSPORT, "Disconnected"), Told(-187, "all down")):
        troubles(error)
    assert troubles.is_refused
    assert "invalid credentials" in str(troubles)
    assert len(seen) == 4
    troubles.clear()
    assert not troubles


# -- one place ---------------------------------------------------------------------------------------------------------

PACKAGES = (
    "schemas", "transport", "replicated_db", "om_processors", "datanode_processors", "producers", "spark_streaming", "stratolog",
    "benchmarks", "examples",
)  # fmt: skip
FOREIGN = "examples/foreign"
"""Programs of people who have nothing of ours."""
CLIENTS = {"Producer", "Consumer", "AdminClient", "AIOKafkaConsumer", "AIOKafkaProducer"}


def test_nobody_else_writes_a_connections_settings():
    """Settings of a connection come from ``client_settings`` alone: a name of theirs in another place is a find."""
    names = {"bootstrap.servers", "kafka.bootstrap.servers", "sasl.jaas.config", *kafka.NAMES, *kafka.IN_FILES}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith((FOREIGN, "schemas/kafka/", "stratolog/brokers/secure_listeners"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names - {"client.rack"}
    ]
    assert found == []


def test_every_client_is_made_from_a_connection():
    """No client gets a literal dict: it would lack the connection's security."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(FOREIGN)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) in CLIENTS
        and (not node.args or isinstance(node.args[0], ast.Dict))
    ]
    assert found == []
