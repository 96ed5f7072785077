"""A state file that cannot be read is no hindrance to ``down``: the processes are found by what they were started with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.local import stack
from stratolog.local.orphans import find_orphans
from stratolog.local.processes import Process, spawn, wait_until
from stratolog.local.state import SETTINGS_FILE, Unreadable, read_state, state_file

PATIENCE_S = 15.0
READY = "import time; print('ready', flush=True); time.sleep(600)"

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "kafka" / "broker-1").mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / SETTINGS_FILE).write_text("")
    return folder


@pytest.fixture(params=["", "stratolog."], ids=["checkout", "wheel"])
def prefix(request: pytest.FixtureRequest) -> str:
    """Where the packages are: the wheel has them below one."""
    return str(request.param)


@pytest.fixture
def running(data: Path, tmp_path: Path, prefix: str) -> Iterator[dict[str, Process]]:
    """A broker, a node, a datanode and an audit, as far as their command lines go, and strangers that look like them."""
    package = tmp_path / "code" / "stratolog"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(READY)
    (package / "__init__.py").write_text("")
    for home in (package.parent, package):
        jobs = home / "spark_streaming" / "jobs"
        jobs.mkdir(parents=True)
        (jobs / "audit_stream.py").write_text(READY)
        (jobs.parent / "__init__.py").write_text("")
    script = tmp_path / "sleeper.py"
    script.write_text(READY)
    other = tmp_path / "other"
    other.mkdir()
    (other / SETTINGS_FILE).write_text("")
    ours = {"PYTHONPATH": str(tmp_path / "code"), "STRATOLOG_CONFIG": str(data / SETTINGS_FILE)}
    theirs = {**ours, "STRATOLOG_CONFIG": str(other / SETTINGS_FILE)}
    node = [sys.executable, "-m", "stratolog"]
    audit = [sys.executable, "-m", f"{prefix}spark_streaming.jobs.audit_stream"]
    plain = [sys.executable, "-S", str(script)]
    commands = {
        "broker-1": ([*plain, "kafka.Kafka", str(data / "kafka" / "broker-1" / "server.properties")], {}),
        "om1": ([*node, "node", "run", "om1"], ours),
        "dn1": ([*node, "datanode", "run", "dn1"], ours),
        "audit": ([*audit, "--config", str(data / "audit" / "audit.json")], ours),
        "their om1": ([*node, "node", "run", "om1"], theirs),
        "their broker": ([*plain, "kafka.Kafka", str(other / "kafka" / "broker-1" / "server.properties")], {}),
        "a reader": ([*plain, "--config", str(data / "audit" / "audit.json")], ours),
        "an editor": ([*plain, str(data / "kafka" / "broker-1" / "server.properties")], ours),
    }
    found = {}
    for name, (command, variables) in commands.items():
        log = tmp_path / f"{name}.out"
        found[name] = spawn(command, log=log, detached=False, env=variables, cwd=package.parent)
    for name in commands:
        log = tmp_path / f"{name}.out"
        assert wait_until(lambda log=log: b"ready" in log.read_bytes(), PATIENCE_S)  # type: ignore[misc]
    yield found
    for process in found.values():
        process.kill()


def settings_of(data: Path) -> Settings:
    return load_settings(environment={"STRATOLOG_DATA_DIR": str(data)})


def test_the_stacks_own_processes_are_found_and_nobody_elses(data: Path, running: dict[str, Process]) -> None:
    found = {member.name: member.process for member in find_orphans(data).members}
    assert found == {name: running[name] for name in ("broker-1", "om1", "dn1", "audit")}


def test_they_are_found_by_another_path_to_the_same_directory(data: Path, running: dict[str, Process]) -> None:
    link = data.parent / "link"
    link.symlink_to(data)
    assert {member.name for member in find_orphans(link).members} == {"broker-1", "om1", "dn1", "audit"}


def test_a_relative_path_of_a_strangers_process_is_not_one_from_here(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its working directory was not asked about: `data/stack.toml` of another project was taken for that of this stack."""
    elsewhere = tmp_path / "elsewhere"
    package = elsewhere / "stratolog"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(READY)
    jobs = elsewhere / "spark_streaming" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "audit_stream.py").write_text(READY)
    (jobs.parent / "__init__.py").write_text("")
    python, variables = sys.executable, {"STRATOLOG_CONFIG": f"data/{SETTINGS_FILE}"}
    commands = [
        [python, "-m", "stratolog", "node", "run", "om1"],
        [python, "-m", "stratolog", "datanode", "run", "dn1"],
        [python, "-m", "spark_streaming.jobs.audit_stream", "--config", "data/audit/audit.json"],
        [python, "-S", "-c", READY, "kafka.Kafka", "data/kafka/broker-1/server.properties"],
    ]
    log = tmp_path / "strangers.out"
    strangers = [spawn(command, log=log, detached=False, env=variables, cwd=elsewhere) for command in commands]
    try:
        assert wait_until(lambda: log.read_bytes().count(b"ready") == len(commands), PATIENCE_S)
        monkeypatch.chdir(tmp_path)
        assert find_orphans(data).members == ()
    finally:
        for process in strangers:
            process.kill()


def test_processes_of_another_user_are_not_found(data: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, and setpriv")
    file = data / "kafka" / "broker-1" / "server.properties"
    log = tmp_path / "stranger.out"
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    shell = ["sh", "-c", "echo ready; read line", "kafka.Kafka", str(file)]
    reader, writer = os.pipe()
    with log.open("wb") as output:
        stranger = subprocess.Popen([*command, *shell], stdin=reader, stdout=output)
    try:
        assert wait_until(lambda: b"ready" in log.read_bytes(), PATIENCE_S)
        assert find_orphans(data).members == ()
    finally:
        stranger.kill()
        stranger.wait()
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("prefix", [""], indirect=True)
@pytest.mark.parametrize(
    "content", ["", "\xff", '{"version": 2, "members": []}', "[" * 100_000, '{"version": 1, "members": [{}]}']
)
def test_down_stops_them_when_the_state_cannot_be_read(content: str, data: Path, running: dict[str, Process]) -> None:
    """Such a file blocked even ``down --remove-data``."""
    state_file(data).write_bytes(content.encode("latin-1"))
    with pytest.raises(Unreadable, match="'stratolog down' stops what still runs of it and puts the file away"):
        read_state(data)
    told: list[str] = []
    stopped = stack.down(settings_of(data), report=told.append)
    assert {member.name for member in stopped} == {"broker-1", "om1", "dn1", "audit"}
    assert [name for name, process in running.items() if process.is_running()] == [
        "their om1", "their broker", "a reader", "an editor"
    ]  # fmt: skip
    assert "stack.json" in told[0]
    assert read_state(data) is None
    assert (data / "stack.unreadable").is_file()
    stack.down(settings_of(data), remove_data=True)
    assert not data.exists()


@pytest.mark.parametrize(
    "process",
    [
        {"pid": -1, "started": None}, {"pid": -1, "started": "x"}, {"pid": 0, "started": "x"}, {"pid": "1", "started": "x"},
        {"pid": True, "started": "x"}, {"pid": 1, "started": None}, {"pid": 1, "started": ""}, {"pid": 1.5, "started": "x"},
    ],
)  # fmt: skip
def test_a_process_id_that_is_none_is_not_signalled(process: object, tmp_path: Path) -> None:
    """Process -1 with no start time counted as running: a signal to it goes to all processes of the user."""
    member = {"kind": "node", "name": "om1", "address": "", "log": "/x", "process": process, "extra": {}}
    state_file(tmp_path).write_text(json.dumps({"version": 1, "members": [member]}))
    with pytest.raises(UserError, match="not readable"):
        read_state(tmp_path)
