"""An inventory of a bucket in the form of Amazon S3's: gzipped CSV and a manifest, all as of one index.

python examples/tables/inventory.py TABLES FOLDER VOLUME BUCKET [INDEX]

TABLES is the directory of the tables (``.stratolog/tables`` of a local stack), which ``stratolog tables`` keeps.
FOLDER gets ``data/*.csv.gz`` and ``manifest.json``, which is written last: a folder with a manifest is whole.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

from spark_streaming.records.session import build_session
from spark_streaming.tables.core.versions import parse_indexes
from spark_streaming.tables.keeping import table_settings
from spark_streaming.tables.reading_tables import open_views, shown_indexes
from stratolog.local.jars import delta_jars, spark_jars

SCHEMA = ("Bucket", "Key", "Size", "LastModifiedDate", "StorageClass")


def write_rows(session: SparkSession, folder: Path, volume: str, bucket: str) -> None:
    """Write the bucket's keys as CSV."""
    keys = session.table("keys_current").where((F.col("volume") == volume) & (F.col("bucket") == bucket))
    modified = F.date_format("modification_time", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    rows = keys.select(F.lit(f"{volume}/{bucket}"), "key", "size", modified, "replication").toDF(*SCHEMA)
    rows.orderBy("Key").write.csv(str(folder / "data"), compression="gzip", quoteAll=True, escape='"')


def manifest(folder: Path, volume: str, bucket: str, index: str) -> dict[str, object]:
    """Return what S3's manifest has, and the index."""
    files = [
        {"key": str(path.relative_to(folder)), "size": path.stat().st_size, "MD5checksum": md5(path)}
        for path in sorted((folder / "data").glob("*.csv.gz"))
    ]
    return {
        "sourceBucket": f"{volume}/{bucket}", "version": "2016-11-30", "creationTimestamp": str(int(time.time() * 1000)),
        "fileFormat": "CSV", "fileSchema": ", ".join(SCHEMA), "files": files, "stratologIndex": index,
    }  # fmt: skip


def md5(path: Path) -> str:
    """Return a file's digest, as the manifest has it."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def main(tables: str, folder_name: str, volume: str, bucket: str, index: str = "") -> int:
    """Write one inventory."""
    folder = Path(folder_name).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        session = build_session(table_settings((*spark_jars(), *delta_jars()), Path(scratch)))
        try:
            views = open_views(session, Path(tables), parse_indexes(index) if index else None)
            write_rows(session, folder, volume, bucket)
        finally:
            session.stop()
    told = manifest(folder, volume, bucket, shown_indexes(views.indexes))
    (folder / "manifest.json").write_text(json.dumps(told, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:6]))
