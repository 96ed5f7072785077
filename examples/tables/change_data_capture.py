"""Change data capture: each change of a key since the last run, as a line of JSON.

Keep tables first: ``stratolog tables``. Then:

python examples/tables/change_data_capture.py TABLES STATE

TABLES is the directory of the tables (``.stratolog/tables`` of a local stack), STATE a directory of one's own, which
remembers what was told. A line has ``change`` (insert, update_preimage, update_postimage, delete), the table's version,
and the key's row. A rename is a delete and an insert with one ``object_id``. A run that is killed tells its last lines
once more; versions tell them apart. Versions that are older than seven days are gone: remove STATE, and begin anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame

from spark_streaming.records.session import build_session
from spark_streaming.tables.keeping import table_settings
from stratolog.local.jars import delta_jars, spark_jars

COLUMNS = ("volume", "bucket", "key", "size", "object_id", "index", "owner", "modification_time")


def tell(changes: DataFrame, _batch_id: int) -> None:
    """Print a micro-batch of changes, in their order."""
    ordered = changes.orderBy("_commit_version", "volume", "bucket", "key", "_change_type")
    for row in ordered.toLocalIterator():
        told = {"change": row["_change_type"], "version": row["_commit_version"]}
        told |= {name: row[name] for name in COLUMNS}
        print(json.dumps(told, default=str))
    sys.stdout.flush()


def main(tables: str, state: str) -> int:
    """Tell what is new, and end."""
    with tempfile.TemporaryDirectory() as scratch:
        session = build_session(table_settings((*spark_jars(), *delta_jars()), Path(scratch)))
        try:
            reader = session.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
            changes = reader.load(str(Path(tables, "keys_current").absolute()))
            writer = changes.writeStream.foreachBatch(tell).option("checkpointLocation", str(Path(state).absolute()))
            writer.trigger(availableNow=True).start().awaitTermination()
        finally:
            session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
