"""The profile 'secure' of docker-compose.yml without an engine: what its services name is what 'keys' makes for them.

The keys are made for real, by the service's own command, in folders that stand for its volumes.
"""

from __future__ import annotations

import json
import re
import ssl
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from schemas.security.certificates import Role, identity_of
from schemas.security.tls import ProcessTls
from spark_streaming.configuration.audit_config import AuditConfig, config_from
from spark_streaming.jobs.audit_metrics import AuditMetrics
from spark_streaming.jobs.health import JobHealth
from spark_streaming.jobs.metrics_server import MetricsServer
from stratolog.brokers.cluster_keys import holders
from stratolog.cli import build_app
from stratolog.commands.brokers.kafka_rights import members_of
from stratolog.commands.brokers.one_broker import CONTROLLER_PORT, broker_cluster
from stratolog.configuration.loading import load_settings
from stratolog.configuration.node_configs import datanode_config, node_config
from stratolog.configuration.settings import Settings
from stratolog.local.jars import SPARK_VERSION
from stratolog.nodes import node_http

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = {
    name: one for name, one in COMPOSE["services"].items() if "secure" in one["profiles"]
}
BROKERS = [f"secure-kafka{n}" for n in (1, 2, 3)]
NODES = [f"secure-om{n}" for n in (1, 2, 3)]
DATANODES = [f"secure-dn{n}" for n in (1, 2, 3)]
MEMBERS = [*BROKERS, "secure-topics", *NODES, *DATANODES, "secure-audit"]
KEYS, KEY_ENCRYPTION = "/run/stratolog", "/run/stratolog-key"
NAMED = re.compile(r"/run/stratolog(?:-key)?/[A-Za-z0-9._-]+")


class Place:
    """Folders in place of the volumes, filled by the command of the service ``keys``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys, self.key_encryption = folder / "keys", folder / "key"
        service = SERVICES["keys"]
        command = [self.at(word) for word in service["command"]]
        self.done = CliRunner().invoke(
            build_app(command), command, env=self.environment("keys"), catch_exceptions=False
        )

    def at(self, text: str) -> str:
        """Return a text of the file with folders of this machine."""
        text = re.sub(rf"{KEY_ENCRYPTION}(?![a-z-])", str(self.key_encryption), text)
        return re.sub(rf"{KEYS}(?![a-z-])", str(self.keys), text)

    def environment(self, name: str) -> dict[str, str]:
        data = {"STRATOLOG_DATA_DIR": str(self.folder / "data" / name)}
        return data | {variable: self.at(value) for variable, value in SERVICES[name]["environment"].items()}

    def settings(self, name: str) -> Settings:
        return load_settings(environment=self.environment(name))

    def audit(self) -> AuditConfig:
        found = re.search(r"echo '(\{.*\})'", " ".join(SERVICES["secure-audit"]["command"]))
        assert found is not None
        return config_from(json.loads(self.at(found.group(1))))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("secure"))


def test_the_services_of_the_profile_are_of_no_other() -> None:
    assert set(SERVICES) == {"keys", *MEMBERS}
    assert all(one["profiles"] == ["secure"] for one in SERVICES.values())


def test_the_keys_are_made_once_and_stay(place: Place) -> None:
    assert place.done.exit_code == 0, place.done.output
    before = {path: path.read_bytes() for path in place.keys.iterdir()}
    command = [place.at(word) for word in SERVICES["keys"]["command"]]
    again = CliRunner().invoke(build_app(command), command, env=place.environment("keys"))
    assert again.output.startswith("0 files made"), again.output
    assert {path: path.read_bytes() for path in place.keys.iterdir()} == before


def test_the_service_of_keys_ends_and_all_wait_for_its_success() -> None:
    assert SERVICES["keys"]["restart"] == "on-failure"
    for name in BROKERS:
        assert SERVICES[name]["depends_on"] == {"keys": {"condition": "service_completed_successfully"}}
    healthy = {"condition": "service_healthy"}
    assert SERVICES["secure-topics"]["depends_on"] == dict.fromkeys(BROKERS, healthy)
    for name in (*NODES, *DATANODES):
        assert SERVICES[name]["depends_on"] == {"secure-topics": healthy}
    assert SERVICES["secure-audit"]["depends_on"] == dict.fromkeys(NODES, healthy)


def test_every_file_that_a_service_names_is_made_for_its_owner_alone(place: Place) -> None:
    made = {*place.keys.iterdir(), *place.key_encryption.iterdir()}
    for name in MEMBERS:
        service = SERVICES[name]
        text = json.dumps([service["environment"], service["command"]])
        named = {Path(place.at(path)) for path in NAMED.findall(text)}
        assert named, name
        assert named <= made, f"{name} names {named - made}"
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}


def test_keys_are_read_only_and_the_authoritys_key_is_nobody_elses(place: Place) -> None:
    own = []
    for name in MEMBERS:
        volumes = SERVICES[name]["volumes"]
        assert {f"secure-keys:{KEYS}:ro", f"secure-key-encryption:{KEY_ENCRYPTION}:ro"} <= set(volumes)
        own += [volume.partition(":")[0] for volume in volumes if not volume.endswith(":ro")]
    makes = [f"secure-keys:{KEYS}", f"secure-key-encryption:{KEY_ENCRYPTION}"]
    assert SERVICES["keys"]["volumes"] == ["secure-authority:/data", *makes]
    assert len(set(own)) == len(own), "a volume of data is one process's"
    shared = {"secure-authority", "secure-keys", "secure-key-encryption"}
    assert {*own, *shared} == {name for name in COMPOSE["volumes"] if name.startswith("secure-")}
    authority = place.folder / "data" / "keys" / "authority" / "authority.pem"
    assert b"ENCRYPTED" in authority.read_bytes()
    assert not list(place.keys.glob("authority*"))
    assert not any(b"BEGIN PRIVATE KEY" in path.read_bytes() for path in place.keys.iterdir())


def test_the_image_has_the_folders_of_the_keys() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for folder in ("/data", KEYS, KEY_ENCRYPTION):
        assert re.search(rf"mkdir -p [^\n]*{folder}\b", text)
        assert re.search(rf"chown stratolog: [^\n]*{folder}\b", text)


def shown_by(settings: Settings) -> tuple[Role, str, frozenset[str]]:
    """Return role, name and hosts of the certificate that a process shows, from a connection in memory."""
    files = settings.tls_files()
    assert files is not None
    tls = ProcessTls(files)
    server, client = tls.server(needs_certificate=False), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(files.ca)
    client.check_hostname = False
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks, answers = client.wrap_bio(one, other), server.wrap_bio(other, one, server_side=True)
    for side in (asks, answers, asks, answers):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate = asks.getpeercert()
    assert certificate is not None
    identity = identity_of(certificate)
    names: Any = certificate["subjectAltName"]
    return identity.role, identity.name, frozenset(str(name) for _, name in names)


def test_every_process_shows_the_certificate_of_its_name_and_host(place: Place) -> None:
    wanted = {
        **{name: (Role.BROKER, f"broker-{n}") for n, name in enumerate(BROKERS, 1)},
        **{name: (Role.OM, name.removeprefix("secure-")) for name in NODES},
        **{name: (Role.DATANODE, name.removeprefix("secure-")) for name in DATANODES},
        "secure-topics": (Role.ADMIN, "operator"),
    }
    for name, (role, holder) in wanted.items():
        found = shown_by(place.settings(name))
        assert found[:2] == (role, holder)
        assert role is Role.ADMIN or SERVICES[name]["hostname"] in found[2], name
    certified = {holder for holder, _ in holders(place.settings("keys"))}
    assert len(certified) == len(MEMBERS), "one each, and the operator's for the topics"


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_is_the_one_of_up_secure_and_speaks_in_clear_with_nobody(name: str, place: Place) -> None:
    service, number = SERVICES[name], BROKERS.index(name) + 1
    assert service["command"] == ["broker", "run", str(number)]
    cluster = broker_cluster(place.settings(name), number, Path("/jars"))
    properties: Mapping[str, str] = cluster._properties(number)
    assert properties["listener.security.protocol.map"] == "USERS:SASL_SSL,NODES:SSL,CONTROLLER:SSL"
    assert properties["listeners"] == f"USERS://{name}:9092,NODES://{name}:9093,CONTROLLER://{name}:{CONTROLLER_PORT}"
    assert properties["allow.everyone.if.no.acl.found"] == "false"
    assert properties["super.users"].split(";")[1:] == [f"User:broker:broker-{n}" for n in (1, 2, 3)]
    for setting in ("ssl.keystore.location", "ssl.truststore.location"):
        assert Path(properties[setting]).exists(), setting
    assert Path(properties["ssl.keystore.location"]).name == f"broker-broker-{number}.p12"
    assert not service.get("ports"), "brokers are reached by the other containers"


def test_all_brokers_are_of_one_cluster(place: Place) -> None:
    ids = {broker_cluster(place.settings(name), n, Path("/jars")).cluster_id for n, name in enumerate(BROKERS, 1)}
    assert len(ids) == 1


@pytest.mark.parametrize("name", [*NODES, *DATANODES])
def test_a_member_speaks_tls_demands_signatures_and_tokens(name: str, place: Place) -> None:
    settings, own = place.settings(name), name.removeprefix("secure-")
    assert SERVICES[name]["command"] == ["node" if name in NODES else "datanode", "run", own]
    config = node_config(settings, own) if name in NODES else datanode_config(settings, own)
    assert config.tls is not None
    assert config.block_tokens
    assert getattr(config, "auth", "signed") == "signed"
    assert settings.connection.has_tls
    assert settings.connection.servers == settings.node_bootstrap_servers
    found = settings.node(own) if name in NODES else settings.datanode(own)
    assert found.host == SERVICES[name]["hostname"]
    if name in NODES:
        assert SERVICES[name]["ports"] == [f"127.0.0.1:{found.port}:{found.port}"]


def test_the_operator_gives_all_members_their_rights(place: Place) -> None:
    (command,) = SERVICES["secure-topics"]["command"]
    assert command.startswith("stratolog topics ensure && stratolog admin kafka-rights && ")
    assert [name for _, name in members_of(place.settings("secure-topics"))] == [
        "om1", "om2", "om3", "dn1", "dn2", "dn3", "audit",
    ]  # fmt: skip


def test_the_audit_reads_by_its_certificate_and_is_asked_by_this_container_alone(place: Place) -> None:
    config = place.audit()
    settings = place.settings("secure-audit")
    assert config.tls() is not None
    found = config.credentials()
    assert found is not None
    assert found.user == "_audit"
    assert (config.metrics_host, config.driver_host, config.master) == ("127.0.0.1", "127.0.0.1", "local[2]")
    assert str(config.jars_dir) == f"/var/cache/stratolog/jars/spark-{SPARK_VERSION}"
    assert config.addresses == {
        "om.log": {node.name: node.address for node in settings.nodes},
        "dn.log": {datanode.name: datanode.http_address for datanode in settings.datanodes},
    }
    brokers: Any = config.bootstrap_servers
    assert brokers.servers == settings.node_bootstrap_servers
    brokers.check_files()
    assert not SERVICES["secure-audit"].get("ports")
    # What the core's audit is judged by, its metrics asked for by its certificate.
    *_, own = SERVICES["secure-audit"]["healthcheck"]["test"]
    *_, of_core = COMPOSE["services"]["audit"]["healthcheck"]["test"]
    assert own.partition(" said = ")[2] == of_core.partition(" said = ")[2]
    assert "https://127.0.0.1:9610/metrics" in own


def test_the_audits_metrics_are_asked_for_by_its_certificate(place: Place, tmp_path: Path) -> None:
    """The very check of the file, with another port and other folders."""
    metrics = AuditMetrics()
    metrics.on_idle("audit")
    JobHealth(tmp_path / "health.json").update(status="running")
    found = re.search(r"echo '(\{.*\})'", " ".join(SERVICES["secure-audit"]["command"]))
    assert found is not None
    (tmp_path / "audit.json").write_text(place.at(found.group(1)))
    *_, code = SERVICES["secure-audit"]["healthcheck"]["test"]
    server = MetricsServer("127.0.0.1", 0, metrics.shown(), place.audit().tls())
    try:
        for what, own in (
            ("/data/audit/health.json", tmp_path / "health.json"), ("/tmp/audit.json", tmp_path / "audit.json"),
            ("from stratolog.spark_streaming.", "from spark_streaming."), ("127.0.0.1:9610", server.address),
        ):  # fmt: skip
            assert what in code
            code = code.replace(what, str(own))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        in_clear = code.replace("https://", "http://")
        done = subprocess.run([sys.executable, "-c", in_clear], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0
    finally:
        server.close()


def test_only_processes_that_speak_tls_have_ports() -> None:
    assert {name for name, one in SERVICES.items() if one.get("ports")} == set(NODES)


def test_a_member_is_asked_how_it_is_by_its_own_certificate(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The very check of the file; the call itself is not made."""
    asked: list[str] = []

    class Answer:
        def raise_for_status(self) -> None:
            asked.append("judged")

    class Http:
        def get(self, url: str) -> Answer:
            asked.append(url)
            return Answer()

    *_, code = SERVICES["secure-om2"]["healthcheck"]["test"]
    for name, url in (
        ("secure-om2", "https://secure-om2:9872/health"),
        ("secure-dn3", "https://secure-dn3:10003/health"),
    ):
        assert SERVICES[name]["healthcheck"]["test"] == ["CMD", "python", "-c", code]
        with monkeypatch.context() as patched:
            for variable, value in place.environment(name).items():
                patched.setenv(variable, value)
            patched.setattr("socket.gethostname", lambda name=name: name)
            patched.setattr(node_http, "http_to", lambda _: Http())
            exec(code, {})
        assert asked == [url, "judged"]
        asked.clear()
