"""``spark.authenticate`` on a standalone Spark, as docs/security.md says: who has not the secret is no worker and no driver."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.audit.standalone import StandaloneSpark, standalone_spark

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

SECRET, OTHER = "the-secret-of-this-spark", "the-secret-of-another-one"
WAIT_S = 120.0
DRIVER = """
import sys
from pyspark.sql import SparkSession
options = {"spark.executor.memory": "500m", "spark.ui.enabled": "false", "spark.driver.host": sys.argv[2],
           "spark.pyspark.python": sys.executable}
builder = SparkSession.builder.master(sys.argv[1]).appName("asks")
for name, value in options.items():
    builder = builder.config(name, value)
print("counted", builder.getOrCreate().range(1000, numPartitions=2).count())
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with standalone_spark(tmp_path_factory.mktemp("spark") / "standalone", workers=1, secret=SECRET) as found:
        yield found


def driver(spark: StandaloneSpark, secret: str | None, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", DRIVER, spark.url, spark.host]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=spark.environment(secret), cwd=log.parent)


def applications(spark: StandaloneSpark) -> set[str]:
    """Return the ids of all applications that the master has ever taken."""
    state = spark.state()
    return {one["id"] for one in (*state["activeapps"], *state["completedapps"])}


def until(said: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + WAIT_S
    while not (found := said()) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return found


def test_with_the_secret_a_job_runs(spark: StandaloneSpark, tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    process = driver(spark, SECRET, log)
    assert process.wait(WAIT_S) == 0, log.read_text()[-3000:]
    assert "counted 1000" in log.read_text()
    assert SECRET not in log.read_text()


@pytest.mark.parametrize("secret", [None, OTHER], ids=["none", "another"])
def test_a_driver_without_the_secret_is_refused(secret: str | None, spark: StandaloneSpark, tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    before = applications(spark)
    process = driver(spark, secret, log)
    try:
        assert until(lambda: "Failed to connect to master" in log.read_text()), log.read_text()[-3000:]
        assert applications(spark) == before
        assert "counted" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("secret", [None, OTHER], ids=["none", "another"])
def test_a_worker_without_the_secret_is_refused(secret: str | None, spark: StandaloneSpark) -> None:
    log = spark.add_worker(secret)
    assert until(lambda: "Failed to connect to master" in log.read_text()), log.read_text()[-3000:]
    assert "Successfully registered with master" not in log.read_text()
    assert len(spark.workers()) == 1
