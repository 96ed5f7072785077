"""The databases of one datanode, on a log in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datanode_processors.config import DatanodeConfig
from datanode_processors.node import host_settings
from replicated_db.core.ports import Log
from replicated_db.shell.database.host import DatabaseHost
from replicated_db.shell.startup import Topics
from replicated_db.shell.system import SystemClock


class NoReports:
    """What is applied is published to nobody."""

    def publish(self, replica: Any, outcome: Any) -> None:
        if outcome.snapshot is not None:
            outcome.snapshot.close()

    def judge_rows(self, replica: Any, differences: Any, standing: Any) -> None:
        assert differences == {}, "these replicas' rows are right"

    def close(self) -> None: ...


class LocalHost(DatabaseHost):
    """All its databases read one log, which may be none: then the host's own, of brokers."""

    def __init__(
        self, config: DatanodeConfig, log: Log | None = None, *, reports: Any = None, clock: Any = None,
        note: Callable[[str], None] = lambda _: None, fatal: Callable[[BaseException], None] | None = None,
    ) -> None:  # fmt: skip
        published: Any = reports or NoReports()
        topics = Topics(log_topic_id="", partitions={}, min_session_timeout_ms=0)
        super().__init__(
            host_settings(config, topics), published, clock=clock or SystemClock(),
            fatal=fatal or self.raised, note=lambda text, **_: note(text),
        )  # fmt: skip
        self.local_log = log

    def log(self, shard: int, headers: Any = None) -> Log:
        return super().log(shard, headers) if self.local_log is None else self.local_log

    @staticmethod
    def raised(error: BaseException) -> None:
        raise error

    def close_databases(self) -> None:
        """Close the stores alone: closing the process is not this process's end."""
        for database in self.databases.values():
            database.close()
