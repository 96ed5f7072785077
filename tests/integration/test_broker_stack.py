"""The local stack as a user runs it: up, status, up again after a loss, down; and a start that fails leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratolog.errors import EXIT_FAILED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE
from stratolog.local.ports import free_ports
from stratolog.local.processes import Process, wait_until
from tests.support.local.stack import TestStack

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
NODES = ("om1", "om2", "om3")
DATANODES = ("dn1", "dn2", "dn3")


class Command:
    """The ``stratolog`` command in a directory of its own, with ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kafka, *ports = free_ports(10)
        nodes, streams, http = ports[:3], ports[3:6], ports[6:]
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATOLOG_")}
        self.environment |= {"PYTHONPATH": str(ROOT)}
        (folder / "stratolog.toml").write_text(
            f'bootstrap_servers = "127.0.0.1:{kafka}"\naudit = false\nui = false\nsession_timeout_ms = 3000\n[nodes]\n'
            + "".join(f'om{n} = "127.0.0.1:{port}"\n' for n, port in enumerate(nodes, start=1))
            + "[datanodes]\n"
            + "".join(f'dn{n} = "127.0.0.1:{streams[n - 1]}:{http[n - 1]}"\n' for n in (1, 2, 3))
        )

    def __call__(self, *arguments: str) -> tuple[int, Any]:
        """Run a command with ``--json``; return its exit code and what it printed (on stderr if it failed)."""
        done = subprocess.run(
            [sys.executable, "-m", "stratolog", *arguments, "--json"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        text = done.stdout or done.stderr
        assert text.startswith("{"), text
        return done.returncode, json.loads(text)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command("down", "--remove-data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stratolog.toml"]


def running(found: dict[str, Any]) -> dict[str, int]:
    return {member["name"]: member["pid"] for member in found["members"] if member["running"]}


@pytest.mark.timeout(400)
def test_up_status_loss_up_again_down(command: Command) -> None:
    code, found = command("up")
    assert code == EXIT_OK, found
    first = running(found)
    assert first.keys() == {"broker-1", *NODES, *DATANODES}
    assert [one["datanode"] for one in found["datanodes"]] == list(DATANODES)
    assert any(row["usable"] for row in found["pipelines"])
    assert all(len(node["shards"]) == 2 for node in found["nodes"].values())

    assert running(command("up")[1]) == first, "a second 'up' starts nothing"

    lost = Process.of(first["om2"])
    assert lost is not None
    assert not found["unsupervised"]
    assert command("admin", "stop-node", "om2", "--kill")[1]["stopped"]
    assert not lost.is_running()
    code, found = command("status")
    assert (code, sorted(running(found))) == (EXIT_FAILED, ["broker-1", *DATANODES, "om1", "om3"])
    assert found["restarts"] == {}, "it was stopped on purpose"

    code, found = command("up")
    assert code == EXIT_OK, found
    again = running(found)
    assert again.pop("om2") != first.pop("om2")
    assert again == first, "what ran was left alone"

    killed = Process.of(again["om1"])
    assert killed is not None
    killed.kill()
    assert wait_until(lambda: command("status")[1]["restarts"].get("om1", {"times": 0})["times"] == 1, 60)
    assert command("up")[0] == EXIT_OK
    assert sorted(running(command("status")[1])) == ["broker-1", *DATANODES, *NODES]

    code, found = command("topics", "ensure")
    assert (code, found["created"]) == (EXIT_OK, []), "other commands find the running stack"

    code, found = command("up", "--brokers", "3")
    assert code == EXIT_USAGE
    assert "was made with brokers = 1, which stays: for 3 make another" in found["message"]

    code, found = command("down")
    assert (code, sorted(found["stopped"])) == (EXIT_OK, ["broker-1", *DATANODES, *NODES])
    assert command("status")[0] == EXIT_UNAVAILABLE


@pytest.mark.slow
def test_a_start_that_fails_stops_what_it_started_and_says_why(command: Command) -> None:
    # The node's data directory cannot be made: a file has its name.
    nodes = command.folder / ".stratolog" / "nodes"
    nodes.mkdir(parents=True)
    (nodes / "om2").write_text("in the way")
    code, found = command("up")
    assert code == EXIT_UNAVAILABLE
    assert "node om2 ended at its start" in found["message"]
    assert json.loads((command.folder / ".stratolog" / "stack.json").read_text())["members"] == []
    assert command("status")[0] == EXIT_UNAVAILABLE


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_the_stack_for_tests_loses_and_regains_nodes(make_stack: Callable[..., TestStack]) -> None:
    stack = make_stack(shards=1)
    leader = stack.wait_leader(0)
    stack.kill_node(leader)
    second = stack.wait_leader(0, other_than=leader)
    stack.start_node(leader)
    stack.pause_node(second)
    third = stack.wait_leader(0, other_than=second)
    stack.resume_node(second)
    stack.wait_led()
    assert stack.leaders(0) == [third]
    stack.wait_converged()
    stack.stop_node(third)
    assert stack.status(third) is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_operators_move_leaders_change_members_and_prepare(command: Command) -> None:
    # No addresses in the settings: the commands take them from the stack, which finds free ports.
    (command.folder / "stratolog.toml").write_text("audit = false\nsession_timeout_ms = 3000\n")
    assert command("up")[0] == EXIT_OK

    code, found = command("admin", "transfer", "0", "om3")
    assert (code, found["leader"]) == (EXIT_OK, "om3")
    assert command("admin", "transfer", "0", "om3")[1]["moved"] is False
    code, found = command("admin", "transfer", "7", "om3")
    assert (code, found["message"]) == (EXIT_USAGE, "no shard 7; there are 0..1")
    assert command("admin", "transfer", "0", "om9")[0] == EXIT_USAGE

    code, found = command("admin", "add-node", "om4")
    assert code == EXIT_OK, found
    assert command("admin", "add-node", "om4")[1]["address"] == found["address"], "given again, it changes nothing"
    code, status = command("status")
    assert (code, len(status["nodes"])) == (EXIT_OK, 4)
    members = {tuple(shard["members"]) for node in status["nodes"].values() for shard in node["shards"]}
    assert members == {("om1", "om2", "om3", "om4")}
    assert command("admin", "transfer", "1", "om4")[0] == EXIT_OK

    code, found = command("admin", "prepare", "--checkpoint", "v2")
    assert code == EXIT_OK, found
    assert [(one["shard"], one["replicas"]) for one in found["shards"]] == [
        (n, ["om1", "om2", "om3", "om4"]) for n in (0, 1)
    ]
    assert command("admin", "prepare", "--cancel")[0] == EXIT_OK
    assert command("admin", "finalize")[0] == EXIT_OK
    code, found = command("admin", "finalize", "--level", "99")
    assert (code, "knows feature level" in found["message"]) == (EXIT_FAILED, True)

    assert command("admin", "remove-node", "om1")[0] == EXIT_OK
    assert sorted(command("up")[1]["nodes"]) == ["om2", "om3", "om4"], "the stack's settings follow"
    assert command("status")[0] == EXIT_OK
