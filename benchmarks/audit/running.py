"""The audit as a process, its topics on a broker, and what its processes take."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from schemas.codecs.codec import encode
from schemas.kafka.client_settings import client_settings
from schemas.records.messages import AuditReport
from schemas.topics import DN_LOG, OM_AUDIT, OM_LOG, OM_STATS, OM_VERDICTS
from stratolog.local.jars import spark_jars
from stratolog.local.spawning import audit_tasks
from tests.support.local.stack import LocalKafka
from tests.support.logs.logbuilder import LogBuilder

SEND_SECONDS = 60
STOP_SECONDS = 120
NEW_RECORDS = 500
"""Records that an audit which is not behind may have before it: some seconds' worth."""
ROOT = Path(__file__).parents[2]


class Topics:
    """The topics that an audit reads and writes, and a producer of logs and reports."""

    def __init__(self, kafka: LocalKafka, shards: int) -> None:
        self.servers = kafka.bootstrap_servers
        appended = {"message.timestamp.type": "LogAppendTime"}
        wanted = [
            NewTopic(OM_LOG, shards, 1, config=appended), NewTopic(OM_AUDIT, shards, 1), NewTopic(OM_VERDICTS, 1, 1),
            NewTopic(OM_STATS, 1, 1),
        ]  # fmt: skip
        for made in kafka.admin.create_topics(wanted).values():
            made.result()
        self._producer = Producer(client_settings(self.servers, {"enable.idempotence": True, "linger.ms": 1}))
        self._sent: dict[int, int] = {}

    def send(self, log: LogBuilder, reports: Sequence[AuditReport]) -> None:
        """Send what is new in a log, and reports; the log's values are dropped, and their number is remembered."""
        for number, value in enumerate(log.values):
            if value:
                self._produce(OM_LOG, value, log.shard)
                log.values[number] = b""
        for report in reports:
            self._produce(OM_AUDIT, encode(report), log.shard, f"{log.shard}/{report.node}".encode())
        if self._producer.flush(SEND_SECONDS):
            raise RuntimeError(f"the brokers did not take the log within {SEND_SECONDS} s")

    def _produce(self, topic: str, value: bytes, shard: int, key: bytes | None = None) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key=key, partition=shard)
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return


class AuditProcess:
    """The running audit, and what its processes have taken."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        path = folder / "audit.json"
        path.write_text(json.dumps(settings))
        self.log = folder / "audit.log"
        with self.log.open("ab") as output:
            command = [sys.executable, "-m", "spark_streaming.jobs.audit_stream", "--config", str(path)]
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        self._health = Path(settings["work_dir"]) / "health.json"
        self._gone: dict[int, float] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def cpu_s(self) -> float:
        """Return the seconds of processor time of all its processes so far, also of those that have ended."""
        for process in self._tree():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._gone[process.pid] = max(self._gone.get(process.pid, 0.0), times.user + times.system)
        return sum(self._gone.values())

    def memory_bytes(self) -> tuple[int, int]:
        """Return the resident memory of all its processes: added up, and with shared pages counted once."""
        found = []
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):  # Spark's workers come and go
                found.append(process.memory_full_info())
        return sum(one.rss for one in found), sum(one.pss for one in found)

    def health(self) -> dict[str, Any]:
        """Return what the audit says of itself; empty before it says anything."""
        try:
            found: dict[str, Any] = json.loads(self._health.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def is_behind(self, servers: str) -> bool:
        """Say whether there are more than NEW_RECORDS in the logs that it has not read."""
        offsets = self.health().get("offsets") or {}
        if not offsets.get(OM_LOG):
            return True
        consumer = Consumer(client_settings(servers, {"group.id": "benchmark", "log_level": 0}))
        try:
            ends = [
                consumer.get_watermark_offsets(TopicPartition(topic, int(number)), timeout=SEND_SECONDS)[1] - offset
                for topic in (OM_LOG, DN_LOG)
                for number, offset in offsets.get(topic, {}).items()
            ]
        finally:
            consumer.close()
        return bool(sum(ends) > NEW_RECORDS)

    def check(self) -> None:
        """Raises RuntimeError with the end of its log if the audit has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the audit has ended:\n{self.log.read_text()[-3000:]}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def audit(folder: Path, servers: str, *, shards: int, **changed: Any) -> Iterator[AuditProcess]:
    """Run an audit of what ``servers`` hold, as ``stratolog up`` sets it up but for ``changed``."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "bootstrap_servers": servers, "work_dir": str(folder / "work"),
        "jars": [str(jar) for jar in spark_jars()], "shuffle_partitions": audit_tasks(shards),
    } | changed  # fmt: skip
    running = AuditProcess(folder, settings)
    try:
        yield running
    finally:
        running.stop()


def now_s() -> float:
    return time.monotonic()
