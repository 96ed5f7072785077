"""docker-compose.yml without an engine: its structure, and that it says what the local stack does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_streaming.configuration.audit_config import config_from
from stratolog.configuration.loading import load_settings
from stratolog.local.jars import KAFKA_VERSION, SPARK_VERSION
from stratolog.local.kafka import KafkaCluster, Listener

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NODES = ("om1", "om2", "om3")
DATANODES = ("dn1", "dn2", "dn3")
SECRET_VOLUME = "cluster-secret"
OUR_IMAGE = [name for name, service in SERVICES.items() if "build" in service]


def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


def test_the_services() -> None:
    assert set(SERVICES) == {"kafka", "topics", *NODES, *DATANODES, "audit"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_and_an_image(name: str) -> None:
    service = SERVICES[name]
    check = service["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries"} <= set(check)
    assert re.fullmatch(r"[a-z/]+:[0-9.]+", service["image"])


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "kafka"])
def test_every_service_waits_for_health(name: str) -> None:
    waits = SERVICES[name]["depends_on"]
    assert waits
    for target, how in waits.items():
        assert target in SERVICES
        assert how == {"condition": "service_healthy"}


def test_the_waits_have_no_circle() -> None:
    order: list[str] = []
    while len(order) < len(SERVICES):
        ready = [
            name
            for name, service in SERVICES.items()
            if name not in order and set(service.get("depends_on", {})) <= set(order)
        ]
        assert ready, f"a circle among {set(SERVICES) - set(order)}"
        order += ready
    assert order[0] == "kafka"
    assert order[-1] == "audit"


@pytest.mark.parametrize("name", OUR_IMAGE)
def test_the_settings_are_settings(name: str) -> None:
    settings = load_settings(environment=SERVICES[name]["environment"])
    assert [node.name for node in settings.nodes] == list(NODES)
    assert [node.name for node in settings.datanodes] == list(DATANODES)
    assert settings.bootstrap_servers == "kafka:19092"


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
    assert sorted([*(volume for volume in used if volume != SECRET_VOLUME), SECRET_VOLUME]) == sorted(
        COMPOSE["volumes"]
    )


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
    assert re.search(rf"mkdir -p .*{folder} && chown stratolog .*{folder}\n", dockerfile())


def test_ports_are_the_machines_own_only() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")


def test_the_broker_is_the_local_one() -> None:
    """Every broker setting that compose gives is the local stack's, addresses and directories apart."""
    service = SERVICES["kafka"]
    assert service["image"] == f"apache/kafka:{KAFKA_VERSION}"
    cluster = KafkaCluster(folder=Path("/x"), jars=Path("/x"), listeners=(Listener(broker=1, controller=2),))
    local = cluster._properties(1)
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
    assert contract <= set(given)


def test_the_audits_configuration_is_one() -> None:
    script = " ".join(SERVICES["audit"]["command"])
    found = re.search(r"echo '(\{.*?\})'", script)
    assert found is not None
    config = config_from(json.loads(found.group(1)))
    assert config.jars_dir == Path(f"/var/cache/stratolog/jars/spark-{SPARK_VERSION}")
    assert str(config.health_file) == SERVICES["audit"]["healthcheck"]["test"][-1]
    nodes = SERVICES["audit"]["environment"]["STRATOLOG_NODES"].split(",")
    assert config.addresses["om.log"] == dict(node.split("=") for node in nodes)
    datanodes = (one.split("=") for one in SERVICES["audit"]["environment"]["STRATOLOG_DATANODES"].split(","))
    assert config.addresses["dn.log"] == {
        name: f"{place.split(':')[0]}:{place.split(':')[2]}" for name, place in datanodes
    }


def test_the_image_holds_all_packages_and_the_jars_where_they_are_looked_for() -> None:
    text = dockerfile()
    assert f"/var/cache/stratolog/jars/spark-{SPARK_VERSION}" in text
    assert "STRATOLOG_CACHE_DIR=/var/cache/stratolog" in text
    assert "COPY pyproject.toml README.md LICENSE ./" in text
    for package in (
        "build_tools",
        "schemas",
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
    assert "python -m stratolog.spark_streaming.jobs.audit_stream" in SERVICES["audit"]["command"][0]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_accepts_it() -> None:
    done = subprocess.run(
        ["docker-compose", "-f", str(ROOT / "docker-compose.yml"), "config", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
