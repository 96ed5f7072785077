"""Delta tables under one directory: made, widened, committed with positions, read back, compacted.

Every commit of ours carries in its user metadata what it holds: the position of each shard, or for a table that is made
of another one the version of that one. Nothing else says how far a table is. So a commit and its position are one, and
no checkpoint of Spark's is needed to go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from spark_streaming.tables.core.positions import Positions, plain_position, position_from
from spark_streaming.tables.core.versions import TableVersion
from spark_streaming.tables.definitions import TableDefinition

DELTA_CONFIGURATION: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A commit without rows moves a position.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    # A table's log is small: one partition, not fifty.
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""What a session needs for Delta tables."""

KEPT = "interval 7 days"
"""How long versions can be read after newer ones have replaced them."""

MAX_VERSIONS = 100_000
"""Most versions of a table that are looked at for one of a given index."""

RECENT_VERSIONS = 64
"""Versions among which the newest commit of ours is looked for first."""

MARK = "stratolog"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class HeldCommit(NamedTuple):
    """One of our commits: ``positions`` by shard, ``source`` the version of the table that it was made of, or None."""

    version: int
    positions: Positions
    source: int | None

    def as_version(self) -> TableVersion:
        """Return the commit as what it holds."""
        return TableVersion(self.version, {shard: one.reading.last_index for shard, one in self.positions.items()})


class TableHistory(NamedTuple):
    """The newest version of a table, and our commits, the newest first. Other versions change no row: they compact."""

    newest: int
    commits: list[HeldCommit]

    def readable(self, commit: TableVersion | None) -> int:
        """Return the last version with the rows of a commit: files of those before it may be gone by compaction."""
        numbers = [one.version for one in self.commits]
        later = [number for number in numbers if commit is None or number > commit.version]
        return min(later) - 1 if later else self.newest


class DeltaTables:
    """The tables of one directory, through one Spark session."""

    def __init__(self, session: SparkSession, root: Path) -> None:
        self._session = session
        self.root = root.absolute()

    def path(self, name: str) -> str:
        """Return a table as SQL names it."""
        return f"delta.`{self.folder(name)}`"

    def folder(self, name: str) -> Path:
        """Return a table's directory."""
        return self.root / name

    def exists(self, name: str) -> bool:
        """Say whether there is a table of this name."""
        return is_table(self.folder(name))

    def open(self, definition: TableDefinition) -> None:
        """Make a table, or give one that exists the columns that it lacks."""
        if not self.exists(definition.name):
            self._create(definition)
            return
        there = {
            field.name for field in self._session.read.format("delta").load(str(self.folder(definition.name))).schema
        }
        lacking = [f"`{name}` {kind}" for name, kind in definition.columns if name not in there]
        if lacking:
            self._session.sql(f"ALTER TABLE {self.path(definition.name)} ADD COLUMNS ({', '.join(lacking)})")

    def _create(self, definition: TableDefinition) -> None:
        columns = ", ".join(f"`{name}` {kind}" for name, kind in definition.columns)
        clustered = f"CLUSTER BY ({', '.join(definition.clustered_by)})" if definition.clustered_by else ""
        properties = {
            "delta.enableChangeDataFeed": str(definition.change_feed).lower(), "delta.enableDeletionVectors": "true",
            "delta.logRetentionDuration": KEPT, "delta.deletedFileRetentionDuration": KEPT,
        }  # fmt: skip
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        table = self.path(definition.name)
        self._session.sql(f"CREATE TABLE {table} ({columns}) USING delta {clustered} TBLPROPERTIES ({listed})")

    def last_commit(self, name: str) -> HeldCommit | None:
        """Return the newest of our commits, None for a table without one."""
        return next(iter(self.history(name, RECENT_VERSIONS).commits or self.history(name).commits), None)

    def history(self, name: str, limit: int = MAX_VERSIONS) -> TableHistory:
        """Return the newest version, and our commits among the last ``limit`` versions, the newest first."""
        listed = self._session.sql(f"DESCRIBE HISTORY {self.path(name)} LIMIT {limit}")
        rows = sorted(listed.select("version", "userMetadata").collect(), key=lambda row: -row.version)
        held = (held_commit(row.version, row.userMetadata) for row in rows if row.userMetadata is not None)
        return TableHistory(rows[0].version, [one for one in held if one is not None])

    def append(self, name: str, rows: DataFrame, metadata: str) -> None:
        """Append rows in one commit; without rows it moves the position alone."""
        rows.write.format("delta").mode("append").option("userMetadata", metadata).save(str(self.folder(name)))

    def overwrite(self, name: str, rows: DataFrame, metadata: str) -> None:
        """Replace all rows in one commit."""
        rows.write.format("delta").mode("overwrite").option("userMetadata", metadata).save(str(self.folder(name)))

    def merge(self, name: str, rows: DataFrame, clauses: str, on: Iterable[str], metadata: str) -> None:
        """Merge rows (``s``) into a table (``t``) by the columns ``on``, in one commit."""
        session = rows.sparkSession
        view = f"merged_into_{name}"
        rows.createOrReplaceTempView(view)
        same = " AND ".join(f"t.`{column}` <=> s.`{column}`" for column in on)
        session.conf.set(USER_METADATA, metadata)
        try:
            session.sql(f"MERGE INTO {self.path(name)} t USING {view} s ON {same} {clauses}")
        finally:
            session.conf.unset(USER_METADATA)

    def changes(self, name: str, first: int, last: int) -> DataFrame:
        """Return a table's change feed between two versions, both included."""
        reader = self._session.read.format("delta").option("readChangeFeed", "true")
        return reader.option("startingVersion", first).option("endingVersion", last).load(str(self.folder(name)))

    def read(self, name: str, version: int | None = None) -> DataFrame:
        """Return a table, as it is or as of a version."""
        reader = self._session.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(str(self.folder(name)))

    def compact(self, name: str) -> None:
        """Join a table's small files, and delete those that no readable version needs."""
        self._session.sql(f"OPTIMIZE {self.path(name)}").collect()
        self._session.sql(f"VACUUM {self.path(name)}").collect()


def is_table(folder: Path) -> bool:
    """Say whether a directory is a Delta table."""
    return (folder / "_delta_log").is_dir()


def metadata_of(positions: Positions, source: int | None = None) -> str:
    """Return what a commit says of itself."""
    plain = {str(shard): plain_position(one) for shard, one in positions.items()}
    return json.dumps({MARK: 1, "positions": plain, "source": source})


def held_commit(version: int, text: str) -> HeldCommit | None:
    """Return what a commit says of itself, None if it is not ours."""
    try:
        told: Any = json.loads(text)
        if not isinstance(told, dict) or MARK not in told:
            return None
        positions = {int(shard): position_from(one) for shard, one in told["positions"].items()}
    except (ValueError, KeyError, TypeError):
        return None
    return HeldCommit(version, positions, told.get("source"))
