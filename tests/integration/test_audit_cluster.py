"""The audit by ``spark-submit`` on a standalone Spark of a master and two workers, against a real broker."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from schemas.topics import OM_LOG
from spark_streaming.records.transforms import TASK, with_tasks
from stratolog.local.jars import spark_jars
from tests.support.audit.running_audit import ROOT, Job, Topics
from tests.support.audit.spark import spark
from tests.support.audit.standalone import SPARK_HOME, StandaloneSpark, standalone_spark
from tests.support.local.stack import LocalKafka
from tests.support.logs.logbuilder import REPLICAS, ordinary_log

pytestmark = pytest.mark.integration

SHARDS = 2
SCRIPT = ROOT / "spark_streaming" / "jobs" / "audit_stream.py"


class SubmittedJob(Job):
    """The running audit under ``spark-submit``; its Python is a child of the process that was started."""

    def is_own(self, health: dict[str, Any]) -> bool:
        return any(child.pid == health.get("pid") for child in psutil.Process(self.process.pid).children())

    def stop(self) -> int:
        """Ask the audit itself to stop; spark-submit ends with its status."""
        psutil.Process(self.health()["pid"]).send_signal(signal.SIGTERM)
        return self.process.wait(180)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneSpark]:
    with standalone_spark(tmp_path / "spark") as found:
        yield found


def submit(cluster: StandaloneSpark) -> list[str | Path]:
    """The command of docs/spark.md."""
    options = {
        "spark.pyspark.python": sys.executable, "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.executor.memory": "500m", "spark.ui.enabled": "false",
    }  # fmt: skip
    return [
        SPARK_HOME / "bin" / "spark-submit", "--master", cluster.url, "--jars", ",".join(map(str, spark_jars())),
        "--driver-memory", "500m", *(word for name, value in options.items() for word in ("--conf", f"{name}={value}")),
        SCRIPT,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_audit_runs_on_two_workers_and_finds_a_divergence(
    cluster: StandaloneSpark, kafka_broker: LocalKafka, tmp_path: Path
):
    sent = Topics(kafka_broker, tmp_path, SHARDS)
    logs = [ordinary_log(shard, shards=SHARDS) for shard in range(SHARDS)]
    for log in logs:
        sent.send(log, log.all_reports())
    settings = sent.settings(
        shuffle_partitions=SHARDS, checkpoint=str(tmp_path / "shared"), driver_host=cluster.host,
        report_timeout_ms=60_000,
    )  # fmt: skip
    del settings["jars"]
    job = SubmittedJob(settings, tmp_path, submit(cluster), PYTHONPATH=str(ROOT))
    try:
        _check(job, sent, logs, cluster)
        assert job.stop() == 0
        assert job.health()["status"] == "stopped"
    finally:
        if job.process.poll() is None:
            for process in [*psutil.Process(job.process.pid).children(recursive=True), job.process]:
                process.kill()
            job.process.wait()
        job.output.close()
    assert list((tmp_path / "shared").glob("checkpoint-*/commits/*")), "the checkpoint lies where it was told"


def _check(job: Job, sent: Topics, logs: list[Any], cluster: StandaloneSpark) -> None:
    def said(wanted: set[tuple[int, int, str, str]]) -> Callable[[dict[str, Any]], bool]:
        names = ("shard", "barrier_offset", "node", "verdict")
        return lambda health: wanted <= {tuple(v[name] for name in names) for v in health["verdicts"].values()}

    first = {log.shard: log.barriers[-1].offset for log in logs}
    job.wait_for(said({(shard, at, node, "equal") for shard, at in first.items() for node in REPLICAS}))
    (application,) = cluster.state()["activeapps"]
    assert application["cores"] == 2
    assert [worker["coresused"] for worker in cluster.state()["workers"]] == [1, 1], "both workers have work"

    wrong = logs[1]
    wrong.batch(wrong.put("keyTable", b"/vol/b/more", b"m"))
    at = wrong.barrier()
    rows = {**at.rows, ("keyTable", b"/vol/b/more"): b"n"}
    sent.send(wrong, [wrong.report(at, "om1"), wrong.report(at, "om2", rows=rows), wrong.report(at, "om3")])
    found = {"om1": "equal", "om2": "diverged", "om3": "equal"}
    job.wait_for(said({(1, at.offset, node, verdict) for node, verdict in found.items()}))


@pytest.mark.parametrize("shards", [2, 4, 8, 13])
def test_each_shard_has_a_task_of_its_own(shards: int):
    """As Spark spreads groups: by the hash of their keys."""
    rows = spark().range(shards).select(F.lit(OM_LOG).alias("log"), F.col("id").cast("int").alias("shard"))
    task = F.pmod(F.hash("log", "shard", TASK), F.lit(shards))
    found = with_tasks(rows, shards).select("shard", task.alias("at")).collect()
    assert sorted(row["at"] for row in found) == list(range(shards))
