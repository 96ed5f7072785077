"""The profile 'secure' of docker-compose.yml as processes of this machine: its commands, variables and health checks, as
they stand there, with folders in place of volumes and an address of the loopback in place of each container.

The audit is left out: it is what ``up --secure`` runs, and its configuration is looked at by tests/unit.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = {
    name: one
    for name, one in yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].items()
    if one["profiles"] == ["secure"] and name != "secure-audit"
}
HOSTS = {
    name: f"127.77.{os.getpid() % 250}.{number}"
    for number, name in enumerate(sorted(SERVICES.keys() - {"keys"}), start=1)
}
HEALTHY_S = 300.0
STOP_S = 60.0
STRATOLOG = [sys.executable, "-m", "stratolog"]


class Containers:
    """The services as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def at(self, text: str) -> str:
        text = re.sub(r"/run/stratolog-key(?![a-z-])", str(self.folder / "key"), text)
        text = re.sub(r"/run/stratolog(?![a-z-])", str(self.folder / "keys"), text)
        return re.sub("|".join(sorted(HOSTS, key=len, reverse=True)), lambda name: HOSTS[name[0]], text)

    def environment(self, name: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("STRATOLOG_")}
        given = {key: self.at(value) for key, value in SERVICES[name]["environment"].items()}
        own = {"STRATOLOG_DATA_DIR": str(self.folder / "data" / name), "STRATOLOG_DATANODE_RESERVE_BYTES": "0"}
        return inherited | own | given | {"PYTHONPATH": str(ROOT)}

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the place of a service; it must succeed."""
        done = subprocess.run(
            command,
            env=self.environment(name),
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            timeout=300,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return done

    def start(self, names: Iterable[str]) -> None:
        """Start services, and wait until all are healthy."""
        started = list(names)
        for name in started:
            command = [*STRATOLOG, *map(self.at, SERVICES[name]["command"])]
            with (self.folder / f"{name}.log").open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    command, env=self.environment(name), stdout=log, stderr=log, cwd=self.folder
                )
        deadline_s = time.monotonic() + HEALTHY_S
        while started:
            started = [name for name in started if not self.is_healthy(name)]
            for name in started:
                said = (self.folder / f"{name}.log").read_text()[-3000:]
                assert self.processes[name].poll() is None, f"{name} has ended: {said}"
                assert time.monotonic() < deadline_s, f"{name} is not healthy: {said}"

    def is_healthy(self, name: str) -> bool:
        """Ask as the file says, from the container's own name."""
        *_, code = SERVICES[name]["healthcheck"]["test"]
        code = f"import socket; socket.gethostname = lambda: {HOSTS[name]!r}; {self.at(code)}"
        done = subprocess.run(
            [sys.executable, "-c", code], env=self.environment(name), capture_output=True, check=False, cwd=self.folder
        )
        return done.returncode == 0

    def close(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    found = Containers(tmp_path_factory.mktemp("containers"))
    try:
        found.run("keys", *STRATOLOG, *map(found.at, SERVICES["keys"]["command"]))
        found.start(name for name in SERVICES if name.startswith("secure-kafka"))
        (script,) = SERVICES["secure-topics"]["command"]
        steps, _, rest = script.partition(" && touch ")
        assert rest == "/tmp/topics-ready && exec sleep infinity"
        for step in steps.split(" && "):
            found.run("secure-topics", *STRATOLOG, *shlex.split(step.removeprefix("stratolog ")))
        found.start(name for name in SERVICES if re.match("secure-(om|dn)", name))
        yield found
    finally:
        found.close()


def test_a_key_is_written_and_read_as_the_operator_of_the_topics_container(containers: Containers) -> None:
    content = os.urandom(300_000)
    (containers.folder / "written").write_bytes(content)
    deadline_s = time.monotonic() + HEALTHY_S
    while "yes" not in containers.run("secure-topics", *STRATOLOG, "status").stdout:  # a pipeline takes blocks
        assert time.monotonic() < deadline_s
    for words in (
        ("volume", "create", "/vol1"), ("bucket", "create", "/vol1/bucket1"),
        ("key", "put", "/vol1/bucket1/key1", "written"), ("key", "get", "/vol1/bucket1/key1", "read"),
    ):  # fmt: skip
        containers.run("secure-topics", *STRATOLOG, "sh", *words)
    assert (containers.folder / "read").read_bytes() == content


def test_no_port_answers_in_clear(containers: Containers) -> None:
    """Of every process, as the kernel lists them."""
    found = 0
    for name, process in containers.processes.items():
        for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            for place in {each.laddr for each in one.net_connections("tcp") if each.status == psutil.CONN_LISTEN}:
                assert place.ip.removeprefix("::ffff:") == HOSTS[name], f"{name} listens at {place}"
                found += 1
                with socket.create_connection((HOSTS[name], place.port), 10) as sock:
                    sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                    sock.settimeout(15)
                    try:
                        heard = sock.recv(4096)
                    except OSError:
                        heard = b""
                assert len(heard) <= len(b"\x15\x03\x03\x00\x02\x02\x32"), f"{name} at {place.port} says {heard!r}"
    assert found == 3 * 3 + 3 + 3 * 2, "brokers have three listeners, nodes one, datanodes two"
