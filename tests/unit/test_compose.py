"""docker-compose.yml without an engine: its structure, and that it says what the local stack does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from spark_streaming.configuration.audit_config import AuditConfig, config_from
from spark_streaming.jobs import audit_metrics
from spark_streaming.jobs.audit_metrics import AuditMetrics
from spark_streaming.jobs.health import JobHealth
from spark_streaming.jobs.metrics_server import MetricsServer
from spark_streaming.records.session import JAVA_OPTIONS
from stratolog.cli import COMMANDS, build_app
from stratolog.commands.common.helps import tidied
from stratolog.configuration.loading import load_settings
from stratolog.local.jars import KAFKA_VERSION, SPARK_VERSION
from stratolog.local.kafka import KafkaCluster, Listener

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
ALL: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVICES = {name: one for name, one in ALL.items() if "secure" not in one["profiles"]}
SECURE = {name: one for name, one in ALL.items() if "secure" in one["profiles"]}
"""See test_compose_secure.py."""
BROKERS = ("kafka1", "kafka2", "kafka3")
NODES = ("om1", "om2", "om3")
DATANODES = ("dn1", "dn2", "dn3")
SPARK = ("spark-master", "spark-worker")
CORE = {*BROKERS, "topics", *NODES, *DATANODES, *SPARK, "audit"}
PROFILES = {"core": CORE, "observability": CORE | {"prometheus", "grafana"}, "ui": CORE | {"ui", "kafka-ui"}}
SERVERS = "kafka1:19092,kafka2:19092,kafka3:19092"
SECRET_VOLUME = "cluster-secret"
AUDIT_VOLUME = "audit-data"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OUR_IMAGE = [name for name, service in SERVICES.items() if "build" in service]


def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


def test_the_services_and_their_profiles() -> None:
    """Each profile is whole: what a service waits for is in its profiles too."""
    found = {profile: {name for name, one in SERVICES.items() if profile in one["profiles"]} for profile in PROFILES}
    assert found == PROFILES
    assert set(SERVICES) == set().union(*PROFILES.values())
    for name, service in SERVICES.items():
        for target in service.get("depends_on", {}):
            assert set(service["profiles"]) <= set(SERVICES[target]["profiles"]), f"{name} waits for {target}"


def test_without_a_profile_the_core_starts() -> None:
    assert (ROOT / ".env").read_text().splitlines()[-1] == "COMPOSE_PROFILES=core"


@pytest.mark.parametrize("name", ALL)
def test_every_service_has_a_health_check_and_a_pinned_image(name: str) -> None:
    service = ALL[name]
    check = service["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries"} <= set(check)
    assert re.fullmatch(r"[a-z/-]+:v?[0-9]+(\.[0-9]+){2}", service["image"])


@pytest.mark.parametrize("name", ALL)
def test_every_service_is_bounded_and_nobody_is_root(name: str) -> None:
    service = ALL[name]
    assert re.fullmatch(r"[0-9]+[mg]", service["mem_limit"])
    assert 0 < service["cpus"] <= 2
    assert service["pids_limit"] > 0
    assert {"max-size", "max-file"} == set(service["logging"]["options"])
    assert re.fullmatch(r"[1-9][0-9]*:[0-9]+", service["user"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["cap_drop"] == ["ALL"]


def test_our_services_run_as_the_images_user() -> None:
    (uid,) = re.findall(r"^USER ([0-9:]+)$", dockerfile(), re.MULTILINE)
    assert {ALL[name]["user"] for name in (*OUR_IMAGE, *SECURE)} == {uid}
    assert f"useradd --uid {uid.partition(':')[0]} " in dockerfile()


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in (*BROKERS, "spark-master")])
def test_every_service_waits_for_health(name: str) -> None:
    waits = SERVICES[name]["depends_on"]
    assert waits
    for target, how in waits.items():
        assert target in SERVICES
        assert how == {"condition": "service_healthy"}


def test_the_waits_have_no_circle() -> None:
    order = list(TopologicalSorter({name: one.get("depends_on", {}) for name, one in SERVICES.items()}).static_order())
    assert order.index("audit") > max(map(order.index, (*BROKERS, "topics", *NODES, *SPARK)))


@pytest.mark.parametrize("name", [name for name in OUR_IMAGE if name not in SPARK])
def test_the_settings_are_settings(name: str) -> None:
    settings = load_settings(environment=SERVICES[name]["environment"])
    assert [node.name for node in settings.nodes] == list(NODES)
    assert [node.name for node in settings.datanodes] == list(DATANODES)
    assert (settings.bootstrap_servers, settings.brokers) == (SERVERS, len(BROKERS))


@pytest.mark.parametrize("name", NODES)
def test_a_node_runs_under_its_name_and_is_reached_by_it(name: str) -> None:
    service = SERVICES[name]
    address = load_settings(environment=service["environment"]).node(name)
    assert service["command"] == ["node", "run", name]
    assert address.host == service["hostname"] == name
    assert service["ports"] == [f"127.0.0.1:{address.port}:{address.port}"]
    assert address.port == 9870 + int(name[-1])  # what the shared health check computes from the host's name


@pytest.mark.parametrize("name", DATANODES)
def test_a_datanode_runs_under_its_name_and_is_reached_by_it(name: str) -> None:
    service = SERVICES[name]
    settings = load_settings(environment=service["environment"])
    address = settings.datanode(name)
    assert service["command"] == ["datanode", "run", name]
    assert address.host == service["hostname"] == name
    assert address.http_port == 10_000 + int(name[-1])  # what the shared health check computes from the host's name
    assert len({settings.rack_of(one) for one in DATANODES}) == 2


def test_every_volume_is_declared_and_used_once() -> None:
    used = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    shared = {SECRET_VOLUME, AUDIT_VOLUME}
    own = [volume for volume in used if volume not in shared and not volume.startswith("./")]
    assert sorted([*own, *shared]) == sorted(name for name in COMPOSE["volumes"] if not name.startswith("secure-"))
    assert all((ROOT / volume).exists() for volume in used if volume.startswith("./"))
    assert {name for name in SERVICES if f"{AUDIT_VOLUME}:/data" in SERVICES[name].get("volumes", [])} == {
        "audit",
        "spark-worker",
    }


def test_all_members_have_the_secret_that_one_service_makes() -> None:
    """It is in a volume that only the members share; the image makes its directory, so that the volume is the user's."""
    users = {
        name: [v for v in service.get("volumes", []) if v.startswith(SECRET_VOLUME)]
        for name, service in SERVICES.items()
    }
    folder = str(load_settings(environment=SERVICES["om1"]["environment"]).secret_file.parent)
    members = {name: [f"{SECRET_VOLUME}:{folder}:ro"] for name in (*NODES, *DATANODES)}
    assert {name: found for name, found in users.items() if found} == {
        "topics": [f"{SECRET_VOLUME}:{folder}"],
        **members,
    }
    assert SERVICES["topics"]["command"][0].startswith("stratolog admin make-secret && ")
    assert "topics" in {*SERVICES["om1"]["depends_on"]} & {*SERVICES["dn1"]["depends_on"]}
    assert re.search(rf"mkdir -p .*{folder} && chown stratolog: .*{folder}\n", dockerfile())


def test_ports_are_the_machines_own_only() -> None:
    for service in ALL.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", BROKERS)
def test_the_brokers_are_the_local_ones(name: str) -> None:
    """Every broker setting that compose gives is the local stack's, addresses and directories apart."""
    service, number = SERVICES[name], BROKERS.index(name) + 1
    assert service["image"] == f"apache/kafka:{KAFKA_VERSION}"
    listeners = tuple(Listener(broker=n, controller=10 + n) for n in range(1, len(BROKERS) + 1))
    local = KafkaCluster(folder=Path("/x"), jars=Path("/x"), listeners=listeners)._properties(number)
    own = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs", "listener.security.protocol.map",
           "inter.broker.listener.name"}  # fmt: skip
    given = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in service["environment"].items()
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS"
    }
    assert {name: local[name] for name in given if name not in own} == {
        name: value for name, value in given.items() if name not in own
    }
    contract = {"auto.create.topics.enable", "unclean.leader.election.enable", "message.max.bytes"}
    assert contract | {"socket.request.max.bytes"} <= set(given)


def test_what_dies_is_started_again_and_no_claim_of_a_peer_ends_java() -> None:
    one_shot = {"keys"}
    assert {name: one["restart"] for name, one in ALL.items()} == {
        name: "on-failure" if name in one_shot else "unless-stopped" for name in ALL
    }
    # A few bytes of a peer claim gigabytes of a broker, or of Spark: with this option they would end it (decision 0106).
    assert "OutOfMemoryError" not in str(ALL) + str(JAVA_OPTIONS)


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_is_reached_by_its_name_and_from_this_machine(name: str) -> None:
    service, number = SERVICES[name], BROKERS.index(name) + 1
    port = 9091 + number
    assert (service["hostname"], service["ports"]) == (name, [f"127.0.0.1:{port}:{port}"])
    environment = service["environment"]
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"INSIDE://{name}:19092,OUTSIDE://127.0.0.1:{port}"
    assert f"OUTSIDE://:{port}" in environment["KAFKA_LISTENERS"]
    assert f"{number}@{name}:29093" in environment["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    assert f"{name}:19092" in SERVERS


def audit_config() -> AuditConfig:
    found = re.search(r"echo '(\{.*?\})'", " ".join(SERVICES["audit"]["command"]))
    assert found is not None
    return config_from(json.loads(found.group(1)))


def test_the_audits_configuration_is_one() -> None:
    config = audit_config()
    assert f"/var/cache/stratolog/jars/spark-{SPARK_VERSION}/*.jar" in SERVICES["audit"]["command"][0]
    nodes = SERVICES["audit"]["environment"]["STRATOLOG_NODES"].split(",")
    assert config.addresses["om.log"] == dict(node.split("=") for node in nodes)
    datanodes = (one.split("=") for one in SERVICES["audit"]["environment"]["STRATOLOG_DATANODES"].split(","))
    assert config.addresses["dn.log"] == {
        name: f"{place.split(':')[0]}:{place.split(':')[2]}" for name, place in datanodes
    }
    assert (str(config.bootstrap_servers), config.driver_host) == (SERVERS, SERVICES["audit"]["hostname"])
    assert config.cluster == SERVICES["audit"]["environment"]["STRATOLOG_CLUSTER"]


@pytest.mark.parametrize(
    ("status", "silent_s", "healthy"), [("running", 0, True), ("starting", 0, False), ("running", 70, False)]
)
def test_an_audit_that_hangs_or_has_not_begun_is_not_healthy(
    status: str, silent_s: float, healthy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very check of the file, with another port and another folder."""
    metrics = AuditMetrics()
    spoken_s = time.time() - silent_s
    with monkeypatch.context() as patched:
        patched.setattr(audit_metrics, "time", SimpleNamespace(time=lambda: spoken_s))
        metrics.on_idle("audit")
    JobHealth(tmp_path / "health.json").update(status=status)
    *_, python, option, code = SERVICES["audit"]["healthcheck"]["test"]
    assert (python, option, code.count(str(audit_config().health_file))) == ("python", "-c", 1)
    server = MetricsServer("127.0.0.1", 0, metrics.shown())
    try:
        code = code.replace(str(audit_config().health_file), str(tmp_path / "health.json"))
        code = code.replace(f":{audit_config().metrics_port}/", f":{server.address.rpartition(':')[2]}/")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    finally:
        server.close()
    assert (done.returncode == 0) is healthy, done.stderr


def test_the_audit_finds_its_master_and_so_does_the_worker() -> None:
    """The executors write the state of the queries where the driver keeps its checkpoint."""
    master, worker = (SERVICES[name] for name in SPARK)
    host, port = (master["command"][master["command"].index(option) + 1] for option in ("--host", "--port"))
    assert host == master["hostname"]
    assert worker["command"][-1] == f"spark://{host}:{port}"
    assert f"/opt/spark/bin/spark-submit --master spark://{host}:{port} " in SERVICES["audit"]["command"][0]
    assert {one["entrypoint"][0] for one in (master, worker)} == {"/opt/spark/bin/spark-class"}
    assert 'ln -s "$(python -c ' in dockerfile()
    assert audit_config().work_dir.is_relative_to("/data")


def test_prometheus_asks_every_process_of_ours() -> None:
    config = yaml.safe_load((ROOT / "observability" / "prometheus" / "prometheus.yml").read_text())
    asked = {one["job_name"]: one["static_configs"][0]["targets"] for one in config["scrape_configs"]}
    settings = load_settings(environment=SERVICES["om1"]["environment"])
    assert asked == {
        "om": [node.address for node in settings.nodes],
        "datanode": [f"{node.host}:{node.http_port}" for node in settings.datanodes],
        "audit": [f"{SERVICES['audit']['hostname']}:{audit_config().metrics_port}"],
    }
    assert audit_config().metrics_host == "0.0.0.0"


@pytest.mark.skipif("ui" not in COMMANDS, reason="this version has no dashboard")
def test_the_dashboards_command_is_one() -> None:
    context = tidied(build_app(["ui"])).commands["ui"].make_context("ui", SERVICES["ui"]["command"][1:])
    assert context.params


def test_the_image_holds_all_packages_and_the_jars_where_they_are_looked_for() -> None:
    text = dockerfile()
    assert f"/jars /var/cache/stratolog/jars/spark-{SPARK_VERSION}\n" in text
    assert f"/kafka-jars /var/cache/stratolog/jars/kafka-{KAFKA_VERSION}\n" in text
    assert "STRATOLOG_CACHE_DIR=/var/cache/stratolog" in text
    assert "COPY pyproject.toml README.md LICENSE requirements-dev.lock ./" in text
    # `docs` and `mutation` are for the repository; `dev` too.
    extras = sorted(set(PROJECT["optional-dependencies"]) - {"dev", "docs", "mutation"})
    (installed,) = re.findall(r"pip install .* '\.\[(.*)\]'", text)
    assert sorted(installed.split(",")) == extras
    for package in (
        "build_tools",
        "schemas",
        "transport",
        "replicated_db",
        "om_processors",
        "datanode_processors",
        "producers",
        "spark_streaming",
        "stratolog",
    ):
        assert f"COPY {package} ./{package}" in text
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for path in copied.split():
            assert (ROOT / path).exists(), path


def test_the_image_does_not_run_among_its_sources() -> None:
    """They have the repository's layout, and 'python -m' looks into the working directory first."""
    sources, runs = re.findall(r"^WORKDIR (.*)$", dockerfile(), re.MULTILINE)
    assert not Path(runs).is_relative_to(sources)
    assert 'find_spec as f; print(f("stratolog.spark_streaming.jobs.audit_stream").origin)' in " ".join(
        SERVICES["audit"]["command"][0].split()
    )


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_accepts_it() -> None:
    """It needs no engine for that. What it read has the profiles, limits and users that the file means."""
    chosen = [word for profile in (*PROFILES, "secure") for word in ("--profile", profile)]
    done = subprocess.run(
        ["docker-compose", *chosen, "config"], capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(done.stdout)["services"]
    assert {profile: {name for name, one in found.items() if profile in one["profiles"]} for profile in PROFILES} == (
        PROFILES
    )
    assert {name for name, one in found.items() if "secure" in one["profiles"]} == set(SECURE)
    assert all(found[name]["user"] == ALL[name]["user"] for name in ALL)
    assert all(one["mem_limit"] and one["healthcheck"]["test"] for one in found.values())
