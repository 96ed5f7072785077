"""What the campaigns of the audit share: a stack with the running audit beside it, and its verdicts as they come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from producers import Client
from schemas.records.messages import AuditReport, Verdict
from stratolog.cluster.verdicts import VerdictReader
from stratolog.configuration.loading import load_settings
from stratolog.drills.kit.load import put_key
from stratolog.local.processes import Process, log_tail, spawn
from stratolog.local.spawning import SOURCES, audit_command, audit_folder, audit_health
from tests.support.faults.stack_faults import AuditTap, fresh_volume
from tests.support.local.stack import TestStack

SHARD = 0
BUCKET = "bucket"
PATIENCE_S = 180.0
START_S = 600.0
"""The audit starts slowly on a machine that has other work."""

BARRIER_INTERVAL_MS = 500
SCRUB_INTERVAL_MS = 5_000


class TimedVerdict(NamedTuple):
    """A verdict, and when it could be read (milliseconds since the epoch)."""

    verdict: Verdict
    at_ms: int


class AuditWorld:
    """A stack of one shard, the audit, and all verdicts since the world began."""

    def __init__(self, stack: TestStack, folder: Path) -> None:
        self.stack = stack
        self.client: Client = stack.client(caller="audit")
        self.verdicts: list[TimedVerdict] = []
        self._log = folder / "logs" / "audit.log"
        self._reader = VerdictReader(stack.settings.bootstrap_servers)
        self._reports = AuditTap(stack.settings.bootstrap_servers)
        self.audit: Process | None = None

    # ------------------------------------------------------------------------------------------------ the audit

    def start_audit(self) -> None:
        """Start the audit, and wait until it has written something."""
        settings = self.stack.settings
        command, folder = audit_command(settings), audit_folder(settings)
        (folder / "health.json").unlink(missing_ok=True)
        # Spark leaves files in its working directory.
        environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
        self.audit = spawn(command, log=self._log, detached=False, env=environment, cwd=folder)
        self.wait("the audit runs", self._is_up, START_S)

    def _is_up(self) -> bool:
        assert self.audit is not None
        assert self.audit.is_running(), f"the audit has ended\n{log_tail(self._log)}"
        return audit_health(self.stack.settings).get("status") == "running"

    def kill_audit(self) -> None:
        """SIGKILL the audit, the JVM with it."""
        assert self.audit is not None
        self.audit.kill()
        self.audit = None

    # ------------------------------------------------------------------------------------------------ verdicts

    def poll(self) -> list[TimedVerdict]:
        """Take the verdicts that have come, and return all so far."""
        while found := self._reader.poll(0.05):
            now_ms = time.time_ns() // 1_000_000
            self.verdicts += [TimedVerdict(verdict, now_ms) for verdict in found]
        return self.verdicts

    def reports(self) -> list[AuditReport]:
        """Return the replicas' reports since the world began."""
        return [one for basis in ("incremental", "scrubbed", "evidence") for one in self._reports.reports(SHARD, basis)]

    def wait(self, what: str, condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
        """Wait until ``condition`` returns something; fails with the ends of all logs."""
        try:
            return self.stack.wait(what, condition, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log_tail(self._log)}") from error

    # ------------------------------------------------------------------------------------------------ writes

    def fresh_place(self) -> str:
        """Return a new volume with a bucket."""
        volume = fresh_volume(SHARD, self.stack.settings.shards)
        self.client.create_volume(volume)
        self.client.create_bucket(volume, BUCKET)
        return volume

    def write(self, volume: str, key: str, size: int = 7) -> None:
        put_key(self.client, volume, BUCKET, key, size)

    def close(self) -> None:
        self._reader.close()
        self._reports.close()
        self.client.close(timeout_ms=1_000)
        if self.audit is not None:
            self.audit.kill()


@contextmanager
def audit_world(folder: Path, **settings: Any) -> Iterator[AuditWorld]:
    """Start brokers, three nodes and the audit in ``folder``."""
    given: dict[str, Any] = {
        "shards": 1, "barrier_interval_ms": BARRIER_INTERVAL_MS, "scrub_interval_ms": SCRUB_INTERVAL_MS,
        "bootstrap_records": 1, "cache_dir": load_settings(environment={}).cache_dir,
    }  # fmt: skip
    with ExitStack() as started:
        stack = started.enter_context(TestStack(folder, **given | settings))
        stack.patience_s = START_S
        world = AuditWorld(stack, folder)
        started.callback(world.close)
        world.start_audit()
        yield world
