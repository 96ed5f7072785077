"""One Spark session for all tests of a run: starting one costs seconds."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from schemas.topics import OM_LOG
from spark_streaming.records.session import SparkSettings, build_session
from stratolog.local.jars import spark_jars

APPENDED_AT = datetime(2025, 6, 15, 15, 6, 40, tzinfo=UTC)
"""Timestamp of raw records; a little after ``logbuilder.START_MS``."""


@functools.cache
def spark() -> SparkSession:
    folder = Path(tempfile.mkdtemp(prefix="stratolog-spark-"))
    # One task at a time: each has a Python worker, and starting those takes longer than what they do here.
    settings = SparkSettings(jars=tuple(spark_jars()), work_dir=folder, app_name="tests", master="local[1]")
    session = build_session(settings)

    def stop() -> None:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return session


def raw_records(shards: dict[int, Iterable[bytes | None]], key: bytes | None = None, log: str = OM_LOG) -> DataFrame:
    """Kafka values as ``sources`` gives them: shard -> values from offset 0."""
    rows = [
        (None if value is None else bytearray(value), key and bytearray(key), log, shard, offset, APPENDED_AT)
        for shard, values in shards.items()
        for offset, value in enumerate(values)
    ]
    return spark().createDataFrame(
        rows, "value binary, key binary, log string, shard int, offset long, timestamp timestamp"
    )
