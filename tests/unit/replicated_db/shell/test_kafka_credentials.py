"""Credentials of a Faust app: what aiokafka gets of a connection, and what is refused by name."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from replicated_db.shell.follower import make_app
from replicated_db.shell.kafka.credentials import faust_credentials
from schemas.kafka.connection import BadKafkaSetting, KafkaConnection, connection
from schemas.security.certificates import PeerIdentity, Role
from stratolog.security.authority import open_authority


def scram(folder: Path, protocol: str = "SASL_SSL") -> KafkaConnection:
    authority = open_authority(folder / "authority", cluster="test", now_s=int(time.time()))
    password = folder / "password"
    password.write_text("secret-4711\n")
    password.chmod(0o600)
    options = {"security.protocol": protocol, "sasl.username": "alice", "sasl.password.file": password}
    return connection("h:1,h:2", options | ({"ssl.ca.location": authority.ca_file} if protocol == "SASL_SSL" else {}))


def certified(folder: Path, **more: str) -> KafkaConnection:
    authority = open_authority(folder / "authority", cluster="test", now_s=int(time.time()))
    held = authority.certify(PeerIdentity(name="om1", role=Role.OM), now_s=int(time.time())).path
    options = {
        "security.protocol": "SSL", "ssl.ca.location": authority.ca_file, "ssl.certificate.location": held,
        "ssl.key.location": held,
    }  # fmt: skip
    return connection("h:1", options | more)


def test_open_brokers_need_none():
    assert faust_credentials("h:1") is None


def test_a_password_and_tls_go_together(tmp_path):
    found: Any = faust_credentials(scram(tmp_path))
    assert (found.username, found.password, found.mechanism.value) == ("alice", "secret-4711", "SCRAM-SHA-512")
    assert found.protocol.value == "SASL_SSL"
    assert found.ssl_context.verify_mode is ssl.CERT_REQUIRED
    assert found.ssl_context.check_hostname
    assert "secret-4711" not in repr(found)
    plain: Any = faust_credentials(scram(tmp_path, "SASL_PLAINTEXT"))
    assert (plain.protocol.value, plain.ssl_context) == ("SASL_PLAINTEXT", None)


def test_a_certificate_is_shown(tmp_path):
    found: Any = faust_credentials(certified(tmp_path))
    assert found.protocol.value == "SSL"
    assert found.context.check_hostname
    loose: Any = faust_credentials(certified(tmp_path, **{"ssl.endpoint.identification.algorithm": "none"}))
    assert not loose.context.check_hostname
    assert loose.context.verify_mode is ssl.CERT_REQUIRED


def test_files_that_hold_something_else_are_named(tmp_path):
    other = tmp_path / "other.pem"
    other.write_text("nothing")
    other.chmod(0o600)
    with pytest.raises(BadKafkaSetting, match=r"kafka.ssl.ca.location: .*other.pem holds no certificates"):
        faust_credentials(certified(tmp_path, **{"ssl.ca.location": str(other)}))
    with pytest.raises(BadKafkaSetting, match=r"kafka.ssl.key.location: .*other.pem"):
        faust_credentials(certified(tmp_path, **{"ssl.key.location": str(other)}))


def test_an_app_has_them(tmp_path):
    app = make_app(
        "name", bootstrap_servers=scram(tmp_path), host="127.0.0.1", port=1, data_dir=tmp_path, fatal=lambda _: None
    )
    assert [str(one) for one in app.conf.broker] == ["kafka://h:1", "kafka://h:2"]
    credentials: Any = app.conf.broker_credentials
    assert credentials.username == "alice"
