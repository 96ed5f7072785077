"""Commands that are forked from a warm process (``tests.support.command.warm``): what they are given, and how they end."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from tests.support.command import warm

ROOT = Path(__file__).parents[3]


def test_a_command_that_hangs_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = f"om1=127.0.0.1:{silent.getsockname()[1]}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "STRATOLOG_NODES": node}
        done = warm.run("sh", "volume", "list", env=environment, cwd=tmp_path, timeout_s=1)
        assert done.returncode == -signal.SIGALRM
        assert warm.run("version", env=environment, cwd=tmp_path, timeout_s=60).returncode == 0
