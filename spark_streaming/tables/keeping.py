"""The query that keeps the tables: from the tables' own positions to the log's end, and on.

Spark's checkpoint is thrown away at each start: the tables say where to go on. A kill at any time loses and repeats
nothing. One process keeps the tables of a directory, by a lock that its Java process holds: that is the one that
commits, and it may outlive a killed keeper by a moment.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.topics import OM_LOG
from spark_streaming.records.batch_gate import BatchGate
from spark_streaming.records.checkpoints import ADMIN_TIMEOUT_S, ASIDE, log_starts
from spark_streaming.records.logs import topic_partitions
from spark_streaming.records.session import LOG_LEVEL, SparkSettings
from spark_streaming.records.sources import KafkaSource, kafka_options
from spark_streaming.tables.core.positions import Positions
from spark_streaming.tables.core.shard_fold import FoldedPosition
from spark_streaming.tables.definitions import TABLES
from spark_streaming.tables.delta_tables import DELTA_CONFIGURATION, DeltaTables
from spark_streaming.tables.sink import LogStopped, TableSink, Written
from spark_streaming.verdicts.query import SLOW_STARTS, SLOW_WORKER
from transport.waiting.deadline import Deadline

RECORDS_PER_TRIGGER = 4_000
"""Most log records in a micro-batch, all shards together."""

TRIGGER_MS = 5_000
STOP_SECONDS = 120.0
"""How long a stop waits for the micro-batch that is being written."""

POLL_SECONDS = 0.5
MAX_REASON_CHARACTERS = 2_000
LOCK_FILE = "lock"
LOCK_SECONDS = 5.0
EARLIEST = -2
"""Spark's number for a partition's first offset."""


class TablesError(Exception):
    """The tables cannot be kept; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesConfig:
    """What keeping the tables needs: ``root`` is their directory, ``once``: end at the log's present end."""

    bootstrap_servers: Brokers
    root: Path
    work_dir: Path
    topic: str = OM_LOG
    once: bool = False
    trigger_ms: int = TRIGGER_MS
    records_per_trigger: int = RECORDS_PER_TRIGGER


def table_settings(
    jars: tuple[Path, ...], work_dir: Path, *, master: str = "local[2]", driver_memory: str = "1g"
) -> SparkSettings:
    """Return the settings of a session that reads and writes the tables; ``jars`` include Delta's."""
    return SparkSettings(
        jars=jars, work_dir=work_dir, app_name="stratolog-tables", master=master, driver_memory=driver_memory,
        more=DELTA_CONFIGURATION,
    )  # fmt: skip


@contextmanager
def sole_keeper(session: SparkSession, root: Path) -> Iterator[None]:
    """Hold the lock of a directory of tables; raises TablesError if another process has it for LOCK_SECONDS."""
    root.mkdir(parents=True, exist_ok=True)
    jvm: Any = session.sparkContext._jvm
    file = jvm.java.io.RandomAccessFile(str(root.absolute() / LOCK_FILE), "rw")
    deadline = Deadline.after_s(LOCK_SECONDS)
    try:
        while (lock := file.getChannel().tryLock()) is None:
            if deadline.has_passed:
                raise TablesError(f"another process keeps the tables in {root}: one is enough")
            time.sleep(POLL_SECONDS)
        yield
        lock.release()
    finally:
        file.close()


def keep(
    session: SparkSession, config: TablesConfig, is_asked_to_stop: Callable[[], bool], on_written: Written
) -> None:
    """Keep the tables until a stop is asked for, or with ``once`` up to the log's end.

    Raises TablesError if the log cannot be read on, KafkaException if the brokers do not answer.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    tables = DeltaTables(session, config.root)
    slow_starts = 0
    while True:
        for definition in TABLES:
            tables.open(definition)
        gate = BatchGate()
        sink = TableSink(tables, gate, on_written)
        failure = _run(session, config, sink, gate, is_asked_to_stop)
        if failure is None:
            return
        slow_starts = slow_starts + 1 if SLOW_WORKER in failure and not gate.passed else 0
        if not (SLOW_WORKER in failure and slow_starts <= SLOW_STARTS):
            raise TablesError(f"the tables in {config.root} are kept no longer: {failure}")


def _run(
    session: SparkSession, config: TablesConfig, sink: TableSink, gate: BatchGate, is_asked_to_stop: Callable[[], bool]
) -> str | None:
    """Run the query once; return why it failed, None if it has not."""
    checkpoint = config.work_dir / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    stopped: list[str] = []

    def write(raw: DataFrame, batch_id: int) -> None:
        try:
            sink(raw, batch_id)
        except LogStopped as error:
            stopped.append(f"{error} (if they belong to another cluster's log: move them away)")
            raise

    writer = log_stream(session, config, sink.positions).writeStream.queryName("tables").foreachBatch(write)
    writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
    writer = writer.trigger(availableNow=True) if config.once else writer.trigger(
        processingTime=f"{config.trigger_ms} milliseconds"
    )  # fmt: skip
    query = writer.start()
    try:
        while not is_asked_to_stop():
            if query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
                break
    except PySparkException as error:
        return stopped[0] if stopped else str(error)[:MAX_REASON_CHARACTERS]
    finally:
        _stop(session, query, gate)
    return None


def _stop(session: SparkSession, query: StreamingQuery, gate: BatchGate) -> None:
    session.sparkContext.setLogLevel("OFF")
    gate.close(STOP_SECONDS)
    query.stop()
    session.sparkContext.setLogLevel(LOG_LEVEL)


def log_stream(session: SparkSession, config: TablesConfig, positions: Positions) -> DataFrame:
    """Return the log as a stream that goes on at ``positions``: value, shard, offset."""
    partitions = range(topic_partitions(config.bootstrap_servers, config.topic))
    starts = {
        str(shard): positions.get(shard, FoldedPosition()).reading.next_offset or EARLIEST for shard in partitions
    }
    options = kafka_options(KafkaSource(bootstrap_servers=config.bootstrap_servers, topics={config.topic: OM_LOG}))
    del options["subscribePattern"]
    options |= {
        "assign": json.dumps({config.topic: list(partitions)}),
        "startingOffsets": json.dumps({config.topic: starts}),
    }
    reader = session.readStream.format("kafka").options(**options)
    return reader.option("maxOffsetsPerTrigger", config.records_per_trigger).load().selectExpr(
        "value", "partition AS shard", "offset"
    )  # fmt: skip


def check_log(config: TablesConfig, positions: Positions) -> str | None:
    """Compare the tables' positions with the log; return what they would miss if they went on, None if nothing.

    Raises TablesError if there is no log, or if it is another one: shorter than what the tables hold.
    """
    count = topic_partitions(config.bootstrap_servers, config.topic)
    if not count:
        raise TablesError(f"there is no topic {config.topic}: has the cluster been started?")
    partitions = [TopicPartition(config.topic, shard) for shard in range(count)]
    ends = _ends(config.bootstrap_servers, partitions)
    starts = {one.partition: offset for one, offset in log_starts(config.bootstrap_servers, partitions).items()}
    lost = None
    for shard, one in positions.items():
        offset = one.reading.next_offset
        if offset > ends.get(shard, 0):
            raise TablesError(
                f"the tables in {config.root} hold shard {shard} up to offset {offset}, and {config.topic} ends at "
                f"{ends.get(shard, 0)}: they belong to another log; move them away, or name another directory"
            )
        if 0 < offset < starts.get(shard, 0):
            lost = lost or f"shard {shard} begins at offset {starts[shard]}, and had been read up to {offset}"
    return lost


def _ends(bootstrap_servers: Brokers, partitions: list[TopicPartition]) -> Mapping[int, int]:
    admin = AdminClient(client_settings(bootstrap_servers, {"log_level": 0}))
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    answers = admin.list_offsets(dict.fromkeys(partitions, latest), request_timeout=ADMIN_TIMEOUT_S)
    return {one.partition: future.result().offset for one, future in answers.items()}


def set_aside(root: Path) -> Path:
    """Move all tables of a directory into ``root`` + ASIDE, where an older set is removed; return that."""
    aside = root.with_name(root.name + ASIDE)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for definition in TABLES:
        if (root / definition.name).exists():
            (root / definition.name).rename(aside / definition.name)
    return aside
