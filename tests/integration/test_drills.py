"""The drills on a stack as ``stratolog up`` starts it: each passes, says what it touched, and leaves the stack whole.

What is quick runs in `make test`; what kills processes or needs three brokers or Spark is slow. Processes that a drill starts again
are tethered to the test run like all others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratolog.cli import build_app
from stratolog.drills import kill_follower, kill_leader, poison_request, zombie_leader
from stratolog.drills.cluster import Cluster
from stratolog.drills.report import COULD_NOT_RUN, PASSED, Report
from stratolog.drills.session import Session, run
from stratolog.errors import EXIT_OK, EXIT_UNAVAILABLE
from stratolog.local import stack
from stratolog.local.processes import free_ports
from stratolog.settings import Settings, load_settings
from stratolog.settings_values import NodeAddress

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(400)]
SHARDS = 2
SHARD = 0


def settings_in(folder: Path, **changed: Any) -> Settings:
    kafka, *nodes = free_ports(4)
    given: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{kafka}", "data_dir": folder, "cache_dir": load_settings(environment={}).cache_dir, "audit": False, "shards": SHARDS,
        "session_timeout_ms": 3_000, "barrier_interval_ms": 200,
        "nodes": tuple(NodeAddress(name=f"om{n}", host="127.0.0.1", port=p) for n, p in enumerate(nodes, start=1)),
    }  # fmt: skip
    return Settings(**given | changed)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = stack.up(settings_in(tmp_path_factory.mktemp("drills")), detached=False)
    try:
        yield Cluster(settings=settings, detached=False)
    finally:
        stack.down(settings, remove_data=True)


def drilled(cluster: Cluster, name: str, drill: Callable[[Session, Cluster, int], None], shard: int = SHARD) -> Report:
    """Run a drill that is to pass, and check that it leaves the stack whole."""
    report = run(name, shard, lambda session: drill(session, cluster, shard), data_dir=cluster.settings.data_dir)
    assert report.verdict == PASSED, json.dumps(report.as_json(), indent=2)
    assert report.steps
    cluster.check_whole()
    return report


def command(cluster: Cluster, *arguments: str) -> Any:
    environment = {"STRATOLOG_DATA_DIR": str(cluster.settings.data_dir), "COLUMNS": "200"}
    return CliRunner(env=environment).invoke(build_app(), ["drill", *arguments])


# -- quick -------------------------------------------------------------------------------------------------------------


def test_list(cluster: Cluster) -> None:
    lines = [json.loads(line) for line in command(cluster, "list", "--json").stdout.splitlines()]
    assert {"kill-leader", "zombie-leader", "kill-follower", "poison-request"} <= {line["name"] for line in lines}
    assert "kill-leader" in command(cluster, "list").stdout


def test_poison_requests_by_the_command(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = command(cluster, "poison-request", "--shard", "1", "--json", "--report", str(file))
    assert done.exit_code == EXIT_OK, done.output
    report = json.loads(done.stdout)
    assert report == json.loads(file.read_text())
    assert (report["drill"], report["shard"], report["verdict"]) == ("poison-request", 1, PASSED)
    assert all(finding["holds"] for finding in report["findings"])
    assert len(report["findings"]) == 14
    done = command(cluster, "poison-request")
    assert done.exit_code == EXIT_OK
    assert "passed, after" in done.stdout
    assert "digest of the data" in done.stderr, "steps and findings are told as they go"


def test_a_shard_that_there_is_not(cluster: Cluster) -> None:
    done = command(cluster, "kill-leader", "--shard", "7")
    assert "no shard 7" in str(done.exception)


# -- slow --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kill_leader(cluster: Cluster, fault_round: int) -> None:
    report = drilled(cluster, "kill-leader", kill_leader.run)
    assert report.figures["kill_to_first_acknowledged_write_s"] > 0
    assert report.figures["acknowledged_writes"] > 0
    assert len(report.touched) == len(report.restored) == 2


@pytest.mark.slow
def test_kill_follower(cluster: Cluster, fault_round: int) -> None:
    assert drilled(cluster, "kill-follower", kill_follower.run).figures["records_read_after_restart"] > 0


@pytest.mark.slow
def test_zombie_leader(cluster: Cluster, fault_round: int) -> None:
    assert drilled(cluster, "zombie-leader", zombie_leader.run).figures["void_records"] > 0


@pytest.mark.slow
def test_a_drill_does_not_begin_on_half_a_stack(cluster: Cluster) -> None:
    with_undo = Session()
    try:
        cluster.kill(with_undo, cluster.names[0])
        report = run("x", 0, lambda s: poison_request.run(s, cluster, 0), data_dir=cluster.settings.data_dir)
        assert report.verdict == COULD_NOT_RUN
        assert f"not running: {cluster.names[0]}" in report.reason
        assert command(cluster, "poison-request").exit_code == EXIT_UNAVAILABLE
    finally:
        with_undo.close()
    cluster.check_whole()
