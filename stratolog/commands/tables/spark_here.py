"""A Spark session in this process for tables, and what stays of its output."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from stratolog.cluster.spark_oracle import stderr_to
from stratolog.extras import check_spark
from stratolog.local.jars import delta_jars, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratolog.configuration.settings import Settings

TABLES_DIR = "tables"
"""The directory of the tables below the data directory, unless another is named."""

SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java process of some seconds: its second compiler would cost more processor time than it saves."""


def tables_dir(settings: Settings, named: Path | None) -> Path:
    """Return the directory of the tables."""
    return (settings.data_dir / TABLES_DIR if named is None else named).absolute()


def table_jars(settings: Settings) -> tuple[Path, ...]:
    """Return the jars that a session for tables needs, fetching them if need be."""
    check_spark()
    return (*spark_jars(settings.cache_dir), *delta_jars(settings.cache_dir))


@contextmanager
def table_session(settings: Settings, *, memory: str, is_short: bool = False) -> Iterator[tuple[SparkSession, Path]]:
    """Start Spark with Delta; yield the session, and a folder that goes with it. ``is_short``: for a query or two."""
    from spark_streaming.records.session import build_session
    from spark_streaming.tables.keeping import table_settings

    jars = table_jars(settings)
    if is_short:
        os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIFE)
    with tempfile.TemporaryDirectory(prefix="stratolog-tables-") as scratch:
        folder = Path(scratch)
        # Spark prints warnings when it starts, and leaves a folder in its working directory.
        with stderr_to(folder / "spark.log"), chdir(folder):
            session = build_session(table_settings(jars, folder, driver_memory=memory))
        try:
            yield session, folder
        finally:
            session.stop()


def stop_signals() -> Callable[[], bool]:
    """Take SIGTERM and SIGINT from now on; return whether one has come."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    return lambda: bool(asked)
