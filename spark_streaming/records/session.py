"""The Spark session, from one frozen settings object; ``is_submitted`` alone reads the environment.

Spark's connector jars are the caller's: ``stratolog`` fetches them once and passes their paths. All that Spark writes
(shuffle files, native libraries, state) lies under ``work_dir``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from spark_streaming.records.callbacks import guard_accumulators, guard_callbacks

PACKAGE_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""Where Spark's Python workers find this package and ``schemas``: the folder above the outermost package.

In an installed wheel that package is ``stratolog``.
"""

ARROW_RECORDS = 64
"""Rows in one Arrow batch to Python: a log record of 8 MiB may hold 200,000 operations, 24 bytes each in flat arrays.

Spark bounds such a batch by rows alone (its limit in bytes does not hold for stateful operators).
"""

CODEGEN_FIELDS = 5_000
"""More fields than any frame of ours has, nested ones counted.

Up to this limit (100 by default) Spark compiles a stage as a whole, once. Beyond it, each task of each micro-batch
compiles its projections anew, and reads Hadoop's configuration again for each record type.
"""

SECRET_OPTIONS = "(?i)url|secret|password|token|jaas|keystore|access[.]?key"  # noqa: S105 - names, no secrets
"""Names of options and settings whose values Spark never shows."""

LOG_LEVEL = "ERROR"
"""What Spark logs."""

LOOPBACK = "127.0.0.1"
ANY_ADDRESS = "0.0.0.0"
JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:MinHeapFreeRatio=10", "-XX:MaxHeapFreeRatio=30")
"""A collector without threads of its own, which gives memory back: an audit has a small heap, and mostly waits."""

KNOWN_ALONE = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""Spark's own ports deserialise what a peer sends, so a peer must prove that it has the session's secret. With a master
in this process Spark makes one, and keeps it in memory: no file and no command line has it."""

CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
"""Writes a checkpoint's files under other names, and renames them.

So does Spark's default for local folders, but that starts a process (``readlink``) for each look at a file, more than
forty for each micro-batch: a third of the processor time of a small one.
"""

PYTHON_DAEMON = f"{__name__.rpartition('.')[0]}.python_daemon"
"""Forks Python's workers: see there."""

STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """What a session needs.

    ``jars``: spark-sql-kafka-0-10, spark-token-provider-kafka-0-10, spark-avro (2.13, 4.0.0), kafka-clients 3.9.0,
    commons-pool2. ``shuffle_partitions``: the stateful operator's parallelism; a query keeps the number that it
    started with. ``driver_memory`` in Java's notation. ``driver_host``: name by which the executors of
    another machine reach this process, which then listens on all addresses. ``more``: further settings of Spark's own
    names.

    ``submitted``: ``spark-submit`` has started this process. Then its options say what the master is, which jars and
    which Python the executors take, and how much memory there is; nothing that is named here goes to them.
    """

    jars: tuple[Path, ...]
    work_dir: Path
    app_name: str = "stratolog-audit"
    master: str = "local[2]"
    shuffle_partitions: int = 2
    driver_memory: str = "1g"
    driver_host: str = LOOPBACK
    log_level: str = LOG_LEVEL
    more: Mapping[str, str] = field(default_factory=dict)
    submitted: bool = False


def is_submitted() -> bool:
    """Say whether ``spark-submit`` has started this process; ask before the first session is built."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def build_session(settings: SparkSettings) -> SparkSession:
    """Start a session, or return the process's own.

    Raises FileNotFoundError naming a jar that is not there, ValueError for an impossible setting, RuntimeError if
    strangers could call what the session calls (``callbacks``).
    """
    for jar in settings.jars:
        if not jar.is_file():
            raise FileNotFoundError(f"Spark jar not found: {jar}")
    if settings.shuffle_partitions < 1:
        raise ValueError(f"shuffle_partitions must be at least 1, not {settings.shuffle_partitions}")
    builder = SparkSession.builder.appName(settings.app_name)
    options = _queries(settings)
    if settings.submitted:
        options |= _submitted(settings)
    else:
        options |= _own(settings)
        builder = builder.master(settings.master)
    for name, value in options.items():
        builder = builder.config(name, value)
    guard_accumulators()
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel(settings.log_level)
    guard_callbacks(session)
    return session


def give_memory_back(session: SparkSession) -> None:
    """Let Java collect its garbage, and give free memory back to the machine; it stops all of Java for a moment."""
    java = session.sparkContext._jvm
    if java is not None:
        java.System.gc()


def _own(settings: SparkSettings) -> dict[str, str]:
    """Return what the Java that this process starts is told; sets what PySpark takes from the environment alone."""
    work_dir = settings.work_dir.resolve()
    temporary = work_dir / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    temporary.chmod(0o700)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if settings.driver_host == LOOPBACK:
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    return {
        "spark.jars": ",".join(str(jar.resolve()) for jar in settings.jars),
        "spark.driver.host": settings.driver_host,
        "spark.driver.bindAddress": LOOPBACK if settings.driver_host == LOOPBACK else ANY_ADDRESS,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(
            [*JAVA_OPTIONS, f"-Djava.io.tmpdir={temporary}", f"-Dderby.system.home={temporary}"]
        ),
        "spark.local.dir": str(temporary),
        "spark.executorEnv.PYTHONPATH": str(PACKAGE_ROOT),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        **(KNOWN_ALONE if settings.master.partition("[")[0] == "local" else {}),
    }


def _submitted(settings: SparkSettings) -> dict[str, str]:
    """Return the driver's address, if one is named: else Spark takes this machine's name, or spark-submit's option."""
    if settings.driver_host == LOOPBACK:
        return {}
    return {"spark.driver.host": settings.driver_host, "spark.driver.bindAddress": ANY_ADDRESS}


def _queries(settings: SparkSettings) -> dict[str, str]:
    """Return how queries run, wherever that is."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # The checkpoint depends on the number of the stateful operator's partitions: adaptive execution must not merge
        # them.
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.codegen.maxFields": str(CODEGEN_FIELDS),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS),
        "spark.python.daemon.module": PYTHON_DAEMON,
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        # Write one delta file per micro-batch instead of a whole snapshot.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stopTimeout": "30000",
        "spark.sql.streaming.metricsEnabled": "false",
        # Plans are printed with their sources' options, and those may hold passwords and keys.
        "spark.sql.redaction.options.regex": SECRET_OPTIONS,
        "spark.redaction.regex": SECRET_OPTIONS,
        # Hadoop gives files its own mode, whatever the process has said.
        "spark.hadoop.fs.permissions.umask-mode": f"{_umask():03o}",
        **settings.more,
    }


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found
