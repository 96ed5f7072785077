"""The topics of a test's logs on a real broker, and the running audit as a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from schemas.codecs.codec import decode_as, encode
from schemas.records.datanode import BlockReport
from schemas.records.messages import AuditReport, Verdict, WindowStats
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.configuration.audit_config import AuditConfig, config_from
from spark_streaming.jobs.running_query import STOP_SECONDS
from spark_streaming.records.logs import KNOWN_LOGS
from spark_streaming.windows.core.reading_windows import LatestWindows
from stratolog.local.jars import spark_jars
from tests.support.local.stack import LocalKafka
from tests.support.logs.logbuilder import LogBuilder
from tests.support.logs.pipelinelog import PipelineLog
from transport.topics.topic_tail import TopicTail
from transport.waiting.deadline import Deadline

ROOT = Path(__file__).parents[3]
WAIT_SECONDS = 300
BY_PYTHON = (sys.executable, "-m", "spark_streaming.jobs.audit_stream")
LAST_WORDS = ("equal", "diverged", "unknown")
"""On each of REPLICAS, in the second half of the test of the running audit."""


class Topics:
    """Topics of their own names for one test, and what goes in and out of them."""

    def __init__(self, kafka: LocalKafka, folder: Path, shards: int, pipelines: int = 0) -> None:
        name = uuid4().hex[:8]
        self.servers = kafka.bootstrap_servers
        self.logs = {
            known.name: dataclasses.replace(
                known, topic=f"{known.topic}-{name}", reports_topic=f"{known.reports_topic}-{name}"
            )
            for known in KNOWN_LOGS
        }
        self.verdicts, self.stats = f"verdicts-{name}", f"stats-{name}"
        self.admin = kafka.admin
        self.sent: dict[tuple[str, int], int] = {}
        self.create([NewTopic(self.verdicts, 1, 1), NewTopic(self.stats, 1, 1)])
        for log, partitions in ((OM_LOG, shards), (DN_LOG, pipelines)):
            if partitions:
                self.create_log(log, partitions)
        self.producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "log_level": 0})
        self.folder = folder

    def create(self, topics: list[NewTopic]) -> None:
        for created in self.admin.create_topics(topics).values():
            created.result()

    def create_log(self, log: str, partitions: int) -> None:
        topics = self.logs[log]
        appended = {"message.timestamp.type": "LogAppendTime"}
        self.create(
            [NewTopic(topics.topic, partitions, 1, config=appended), NewTopic(topics.reports_topic, partitions, 1)]
        )

    def lose_reports(self, log: str, partition: int) -> None:
        """Some come that nobody reads, and go as all that is older does when its time is over."""
        topic = self.logs[log].reports_topic
        for _ in range(5):
            self.producer.produce(topic, b"nobody reads this", partition=partition)
        assert self.producer.flush(30) == 0
        for deleted in self.admin.delete_records([TopicPartition(topic, partition, OFFSET_END)]).values():
            deleted.result()

    def settings(self, **changed: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.servers, "work_dir": str(self.folder / "audit"),
            "logs": [dataclasses.asdict(log) for log in self.logs.values()], "verdicts_topic": self.verdicts, "stats_topic": self.stats, "jars": [str(jar) for jar in spark_jars()],
            "audit_report_timeout_ms": 2000,
        } | changed  # fmt: skip

    def send(self, log: LogBuilder, reports: Sequence[AuditReport | BlockReport]) -> None:
        """Send what is new in a log, and reports."""
        name = DN_LOG if isinstance(log, PipelineLog) else OM_LOG
        topics, at = self.logs[name], (name, log.shard)
        for value in log.values[self.sent.get(at, 0) :]:
            self.producer.produce(topics.topic, value, partition=log.shard)
        self.sent[at] = len(log.values)
        for report in reports:
            node = report.datanode if isinstance(report, BlockReport) else report.node
            key = f"{log.shard}/{node}".encode()
            self.producer.produce(topics.reports_topic, encode(report), key=key, partition=log.shard)
        assert self.producer.flush(30) == 0

    def read_verdicts(self) -> list[Verdict]:
        return [decode_as(Verdict, value) for value in self.read(self.verdicts)]

    def read_windows(self) -> LatestWindows:
        """What a reader has of the windows; wake-ups have no value."""
        latest = LatestWindows()
        latest.take(decode_as(WindowStats, value) for value in self.read(self.stats) if value)
        return latest

    def read(self, topic: str) -> list[bytes]:
        with TopicTail(self.servers, topic) as tail:
            found = tail.to_end(Deadline.after_s(WAIT_SECONDS))
            return [message.value() or b"" for messages in found for message in messages]


class Job:
    """A running ``audit_stream`` process."""

    def __init__(
        self, settings: dict[str, Any], folder: Path, run: Sequence[str | Path] = BY_PYTHON, **environment: str
    ) -> None:
        self.config: AuditConfig = config_from(settings)
        path = folder / "audit.json"
        path.write_text(json.dumps(settings))
        self.output = (folder / f"audit-{uuid4().hex[:4]}.out").open("wb")
        command = [*run, "--config", str(path)]
        environment = os.environ | environment
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self.output, stderr=self.output, env=environment)

    def health(self) -> dict[str, Any]:
        path = self.config.health_file
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"verdicts": {}}
        return found

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            health = self.health()
            if self.is_own(health) and wanted(health):
                return health
            assert self.process.poll() is None, Path(self.output.name).read_text()[-5000:]
            time.sleep(0.2)
        pytest.fail(f"the audit did not get there: {json.dumps(self.health())[:2000]}")

    def is_own(self, health: dict[str, Any]) -> bool:
        return bool(health.get("pid") == self.process.pid)

    def end(self, number: int) -> int:
        """Send a signal; a stop may wait for the micro-batch that is being written, then for Spark."""
        self.process.send_signal(number)
        return self.process.wait(2 * STOP_SECONDS)
